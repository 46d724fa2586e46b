//! [`Incident`]: a stall from its beginning to its end, and what is kept of those that are over.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::verdict::{Confidence, Verdict};

/// One stall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Incident {
    /// Counts incidents from 1.
    pub id: u64,
    /// The name of the worker. Empty: the whole process, whose hearts beat.
    pub worker: String,
    /// When it began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// How long it lasted, or has lasted.
    pub lasted_ms: u64,
    /// Whether it still lasts.
    pub is_ongoing: bool,
    /// How many reports of it there were.
    pub reports: u32,
    /// What it means.
    pub verdict: Verdict,
    /// What was seen: the last that explains the stall.
    pub evidence: Evidence,
}

impl Incident {
    pub(crate) fn new(
        id: u64,
        worker: &str,
        lasted_ms: u64,
        evidence: Evidence,
        verdict: Verdict,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id,
            worker: worker.into(),
            began_unix_ms: (now.as_millis() as u64).saturating_sub(lasted_ms),
            lasted_ms,
            is_ongoing: true,
            reports: 1,
            verdict,
            evidence,
        }
    }

    /// Takes what was seen later. If that explains nothing, what was seen earlier stays: the thread may have been on its
    /// way back to the loop.
    pub(crate) fn update(&mut self, lasted_ms: u64, evidence: Evidence, verdict: Verdict) {
        self.lasted_ms = lasted_ms;
        let explained = self.verdict.confidence() > Confidence::Possible;
        if !explained || verdict.confidence() > Confidence::Possible {
            (self.evidence, self.verdict) = (evidence, verdict);
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.worker.as_str() {
            "" => f.write_str("The process")?,
            worker => write!(f, "Worker {worker}")?,
        }
        if self.is_ongoing {
            write!(f, " has stalled for {} ms: {}", self.lasted_ms, self.verdict)
        } else {
            write!(
                f,
                " stalled for {} ms: {} ({}).",
                self.lasted_ms,
                self.verdict.class(),
                self.verdict.confidence()
            )
        }
    }
}

/// The last incidents that are over, and those that last. The watchdog writes, anybody reads.
#[derive(Debug)]
pub(crate) struct Incidents {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    over: VecDeque<Incident>,
    ongoing: Vec<Incident>,
}

impl Incidents {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default() }
    }

    /// Replaces what is known of an incident.
    pub(crate) fn update(&self, incident: Incident) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ongoing.retain(|known| known.id != incident.id);
        if incident.is_ongoing {
            state.ongoing.push(incident);
        } else if self.max > 0 {
            if state.over.len() == self.max {
                state.over.pop_front();
            }
            state.over.push_back(incident);
        }
    }

    /// Those that are over, the oldest first, and then those that last.
    pub(crate) fn all(&self) -> Vec<Incident> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.over.iter().chain(&state.ongoing).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Class, judge};

    fn recorded(text: &str) -> (Evidence, Verdict) {
        let evidence = serde_json::from_str(text).unwrap();
        let verdict = judge(&evidence);
        (evidence, verdict)
    }

    /// The thread is seen on its way back to the loop, and that explains nothing.
    #[test]
    fn evidence_that_explains_nothing_replaces_none_that_does() {
        let (unknown, nothing) = recorded(r#"{"late_ms": 1808, "threads": [{"state": "R"}]}"#);
        let (blocked, verdict) = recorded(include_str!("../tests/evidence/blocked_loop-read.json"));
        let mut incident = Incident::new(1, "w", 50, unknown.clone(), nothing.clone());
        assert_eq!(incident.verdict.class(), Class::Unknown);
        incident.update(100, blocked.clone(), verdict.clone());
        assert_eq!(incident.verdict.class(), Class::BlockedLoop);
        incident.update(200, unknown, nothing);
        assert_eq!((incident.lasted_ms, &incident.evidence), (200, &blocked));
        assert_eq!(incident.verdict, verdict);
    }
}

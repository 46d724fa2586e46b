//! [`Incident`]: a stall from its beginning to its end, and what is kept of those that are over.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::verdict::{Class, Confidence, Verdict, may_be_overload};

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

    /// Takes what was seen later. If that explains nothing, what was seen earlier stays: the thread may have been on
    /// its way back to the loop. But a wait for a CPU, and overload, explain the moment alone: a stall that begins so may
    /// last because of what the thread does, and that may be no more than possible. Overload explains no long stall at all.
    pub(crate) fn update(&mut self, lasted_ms: u64, evidence: Evidence, verdict: Verdict) {
        self.lasted_ms = lasted_ms;
        let was_overload = self.verdict.class() == Class::Overload;
        let explained = self.verdict.confidence() > Confidence::Possible
            && (!was_overload || may_be_overload(lasted_ms, evidence.threshold_ms));
        let is_passing = was_overload || self.verdict.class() == Class::WaitingForCpu;
        let is_lasting = matches!(
            verdict.class(),
            Class::BlockedLoop | Class::ConnectionOwnsWorker | Class::SelfWakingTask
        );
        if !explained || is_passing && is_lasting || verdict.confidence() > Confidence::Possible {
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
    over: VecDeque<Arc<Incident>>,
    ongoing: Vec<Arc<Incident>>,
}

impl Incidents {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default() }
    }

    /// Replaces what is known of an incident. The lock is held for some pointers only: a worker may wait for it.
    pub(crate) fn update(&self, incident: Arc<Incident>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.ongoing.iter().position(|known| known.id == incident.id);
        let replaced = known.map(|known| state.ongoing.remove(known));
        let mut evicted = None;
        if incident.is_ongoing {
            state.ongoing.push(incident);
        } else if self.max > 0 {
            if state.over.len() == self.max {
                evicted = state.over.pop_front();
            }
            state.over.push_back(incident);
        }
        drop(state);
        drop((replaced, evicted));
    }

    /// Those that are over, the oldest first, and then those that last.
    pub(crate) fn all(&self) -> Vec<Arc<Incident>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.over.iter().chain(&state.ongoing).cloned().collect()
    }
}

/// Serializes shared incidents as if they were not shared.
pub(crate) mod shared {
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        incidents: &[Arc<Incident>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(incidents.iter().map(Arc::as_ref))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Arc<Incident>>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().map(Arc::new).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::judge;

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

    /// It waited for a CPU when the stall began, and has run ever since. What it does is not known for sure.
    #[test]
    fn a_wait_for_a_cpu_does_not_explain_what_comes_later() {
        let waiting = include_str!("../tests/evidence/waiting_for_cpu+blocked_loop-no-signal.json");
        let (evidence, verdict) = recorded(waiting);
        let mut incident = Incident::new(1, "w", 2_447, evidence, verdict);
        assert_eq!(incident.verdict.class(), Class::WaitingForCpu);
        let (evidence, verdict) = recorded(
            r#"{"late_ms": 4900, "threshold_ms": 50, "threads": [{"state": "R", "window_ms": 4900, "ran_ms": 3000,
                "waited_ms": 1900}]}"#,
        );
        assert_eq!(verdict.confidence(), Confidence::Possible);
        incident.update(4_900, evidence, verdict);
        assert_eq!(incident.verdict.class(), Class::BlockedLoop);
    }

    /// "What lasts longer is not called load."
    #[test]
    fn overload_explains_no_long_stall() {
        let of = |late_ms: u64, polls: u64| {
            recorded(&format!(
                r#"{{"late_ms": {late_ms}, "threshold_ms": 50, "threads": [{{"window_ms": {late_ms}, "ran_ms": {late_ms},
                    "polls": {polls}}}]}}"#,
            ))
        };
        let (evidence, verdict) = of(100, 10_000);
        let mut incident = Incident::new(1, "w", 100, evidence, verdict);
        assert_eq!(incident.verdict.class(), Class::Overload);
        let (evidence, verdict) = of(200, 0);
        incident.update(200, evidence, verdict);
        assert_eq!(
            incident.verdict.class(),
            Class::Overload,
            "the thread may have been at the end of its polls"
        );
        let (evidence, verdict) = of(400, 0);
        assert_eq!(verdict.class(), Class::Unknown);
        incident.update(400, evidence, verdict);
        assert_eq!(incident.verdict.class(), Class::Unknown);
    }

    #[test]
    fn the_newest_are_kept_and_an_incident_is_known_once() {
        let (evidence, verdict) = recorded(r#"{"late_ms": 60}"#);
        let incident = |id, is_ongoing| {
            let incident = Incident::new(id, "w", 50, evidence.clone(), verdict.clone());
            Arc::new(Incident { is_ongoing, ..incident })
        };
        let incidents = Incidents::new(2);
        for id in 1..=4 {
            incidents.update(incident(id, true));
            incidents.update(incident(id, true));
            if id < 4 {
                incidents.update(incident(id, false));
            }
        }
        let known = incidents.all();
        let known: Vec<_> = known.iter().map(|it| (it.id, it.is_ongoing)).collect();
        assert_eq!(known, [(2, false), (3, false), (4, true)]);
    }

    #[test]
    fn a_snapshot_is_the_same_after_json() {
        let (evidence, verdict) = recorded(r#"{"late_ms": 60}"#);
        let incidents = vec![Arc::new(Incident::new(1, "w", 50, evidence, verdict))];
        let snapshot = crate::Snapshot { incidents, ..crate::Snapshot::default() };
        let json = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<crate::Snapshot>(&json).unwrap(), snapshot);
    }
}

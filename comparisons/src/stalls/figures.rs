//! The figures of a run: how long clients waited, how many, and how long after the fault.

use serde::{Deserialize, Serialize};

use crate::load::Report;
use crate::load::report::{Arrivals, Timeline};

/// A client that waits longer is delayed by a fault: a turn of a busy event loop takes some 30 ms.
const DELAYED_MS: f64 = 100.0;

/// What clients saw of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figures {
    /// The longest time that a new client waited for its first echo, or that no busy connection was answered. A client
    /// without an echo counts with the observer's patience.
    pub(crate) longest_stall_ms: f64,
    /// Connections whose first echo took over 1 s, or never came.
    pub(crate) delayed: u64,
    /// Connections that failed.
    pub(crate) failed: u64,
    /// From the end of the fault until the last delayed client was answered; zero if none was delayed then. None if the
    /// last clients of the run had no answer.
    pub(crate) recovery_ms: Option<f64>,
}

impl Figures {
    /// Of the observer's report, and those of the other loads. The fault ended at `fault_ends`, in ms since 1970.
    ///
    /// # Errors
    /// What is missing in the observer's report, or which answer was wrong.
    pub(crate) fn of(
        observer: &Report,
        loads: &[Report],
        patience_ms: f64,
        fault_ends: f64,
    ) -> Result<Self, String> {
        if let Some(wrong) = [observer].into_iter().chain(loads).find_map(Report::wrong_answer) {
            return Err(wrong);
        }
        let arrivals = observer.arrivals.as_ref().ok_or("the observer is no `load arrivals`")?;
        let timeline = arrivals.timeline.as_ref().ok_or("the observer has no timeline")?;
        let bursts = || loads.iter().filter_map(|load| load.burst.as_ref());
        let of_bursts: u64 = bursts().map(|burst| burst.echoed_over_1_s + burst.never).sum();
        let errors = [observer].into_iter().chain(loads).map(|load| &load.connections.errors);
        let of_connections: u64 = errors.flat_map(|errors| errors.values()).sum();
        let Arrivals { over_1_s, never, failed, .. } = arrivals;
        Ok(Self {
            longest_stall_ms: longest_wait_ms(timeline).max(timeline.stalls.longest_ms),
            delayed: over_1_s + never + of_bursts,
            failed: failed + of_connections,
            recovery_ms: recovery_ms(timeline, patience_ms, fault_ends),
        })
    }
}

fn longest_wait_ms(timeline: &Timeline) -> f64 {
    timeline.newcomers.longest_us.iter().copied().fold(0.0, f64::max) / 1e3
}

/// See [`Figures::recovery_ms`]. It is exact to a slot of the timeline.
fn recovery_ms(timeline: &Timeline, patience_ms: f64, fault_ends: f64) -> Option<f64> {
    let slot_ms = timeline.newcomers.slot_ms;
    let waits = timeline.newcomers.longest_us.iter().map(|us| us / 1e3);
    let ends = (1..).map(|slot| timeline.began_unix_ms + f64::from(slot) * slot_ms);
    let waited: Vec<_> = ends.zip(waits).filter(|(_, wait)| *wait > 0.0).collect();
    let is_unanswered = |wait: f64| wait >= patience_ms;
    if waited.last().is_some_and(|(_, wait)| is_unanswered(*wait)) {
        return None;
    }
    let delayed = waited.iter().filter(|(_, wait)| *wait > DELAYED_MS);
    // Nobody answered those that waited in vain: there is no later moment than when they came.
    let answered = delayed.map(|(end, wait)| if is_unanswered(*wait) { *end } else { end + wait });
    Some((answered.fold(fault_ends, f64::max) - fault_ends).max(0.0))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::report::Burst;
    use crate::load::{Series, Stalls, Tally};

    const BEGAN: f64 = 10_000.0;
    const PATIENCE_MS: f64 = 5_000.0;

    /// A report of an observer: in each slot of 100 ms a client waited so many ms.
    pub(crate) fn observer(waits_ms: &[u32]) -> Report {
        let series = |longest_us| Series { slot_ms: 100.0, received: vec![1; 10], longest_us };
        let longest_us = waits_ms.iter().map(|ms| f64::from(*ms) * 1e3).collect();
        let mut report = Report::new(1.0, 1, &Tally::default());
        report.arrivals = Some(Arrivals {
            timeline: Some(Timeline {
                began_unix_ms: BEGAN,
                busy: series(vec![1.0; 10]),
                stalls: Stalls::default(),
                newcomers: series(longest_us),
            }),
            ..Arrivals::default()
        });
        report
    }

    fn figures(waits_ms: &[u32], fault_ends: f64) -> Figures {
        Figures::of(&observer(waits_ms), &[], PATIENCE_MS, fault_ends).unwrap()
    }

    #[test]
    fn recovery_is_until_the_last_delayed_client_is_answered() {
        let ends = BEGAN + 250.0;
        let recovery = |waits: &[u32]| figures(waits, ends).recovery_ms;
        assert_eq!(recovery(&[1, 2, 99, 100]), Some(0.0));
        // Answered at 200 + 150 ms; came by 300 ms and had its answer 400 ms later.
        assert_eq!(recovery(&[1, 150, 3]), Some(100.0));
        assert_eq!(recovery(&[1, 150, 400, 3]), Some(450.0));
        // One waited in vain, and those after it did not.
        assert_eq!(recovery(&[1, 2, 3, 5_000, 3, 2]), Some(150.0));
        assert_eq!(recovery(&[1, 2, 3, 5_000]), None);
        // No client came in the last slots.
        assert_eq!(recovery(&[1, 2, 5_000, 0, 0]), None);
    }

    #[test]
    fn all_loads_count() {
        let mut observer = observer(&[1, 700]);
        if let Some(arrivals) = &mut observer.arrivals {
            arrivals.over_1_s = 3;
            arrivals.failed = 2;
        }
        let mut burst = Report::new(1.0, 1, &Tally::default());
        burst.burst = Some(Burst { echoed_over_1_s: 10, never: 1, ..Burst::default() });
        burst.connections.errors.insert("connect".to_owned(), 4);
        let figures = Figures::of(&observer, &[burst], PATIENCE_MS, BEGAN).unwrap();
        assert_eq!((figures.delayed, figures.failed), (14, 6));
        assert_eq!(figures.longest_stall_ms, 700.0);
        let silent = Report::new(1.0, 1, &Tally::default());
        assert!(Figures::of(&silent, &[], PATIENCE_MS, BEGAN).is_err());
    }
}

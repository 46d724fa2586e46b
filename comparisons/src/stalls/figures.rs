//! The figures of a run: how long clients waited, how many, and how long after the fault.

use serde::{Deserialize, Serialize};

use crate::load::Report;
use crate::load::report::{Arrivals, CLIENT_CPU_PERCENT_MAX, Timeline};

/// A client that waits longer is delayed by a fault: a turn of a busy event loop takes some 30 ms.
const DELAYED_MS: f64 = 100.0;

/// What clients saw of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figures {
    /// The longest time that a new client waited for its first echo, or that no busy connection was answered. A client
    /// that waited in vain counts with the observer's patience.
    pub(crate) longest_stall_ms: f64,
    /// Connections of the observer and of all loads whose first echo took over 1 s, or never came. One that a load gave
    /// up counts as failed.
    pub(crate) delayed: u64,
    /// Connections that failed.
    pub(crate) failed: u64,
    /// Connections of the load that were accepted, answered and closed in a second; none if it has no `churn`.
    pub(crate) accepted_per_s: Option<f64>,
    /// From the end of the fault until the last delayed client was answered; zero if none was delayed then. None if the
    /// last clients of the run failed or had no answer.
    pub(crate) recovery_ms: Option<f64>,
    /// How much of their core the observer and the loads used, in per cent: the sum of what each used in its own time.
    pub(crate) client_cpu_percent: f64,
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
        let bursts = loads.iter().filter_map(|load| load.burst.as_ref());
        let of_bursts: u64 = bursts.map(|burst| burst.echoed_over_1_s + burst.never).sum();
        let all = || [observer].into_iter().chain(loads);
        let of_connections: u64 = all().map(|load| load.connections.opened_over_1_s).sum();
        let errors: u64 = all().flat_map(|load| load.connections.errors.values()).sum();
        let Arrivals { over_1_s, never, failed, .. } = arrivals;
        Ok(Self {
            longest_stall_ms: longest_wait_ms(timeline).max(timeline.stalls.longest_ms),
            delayed: over_1_s + never + of_bursts + of_connections,
            failed: failed + errors,
            accepted_per_s: loads
                .iter()
                .filter_map(|load| Some(load.churn.as_ref()?.done_per_s))
                .reduce(|a, b| a + b),
            recovery_ms: recovery_ms(timeline, patience_ms, fault_ends),
            client_cpu_percent: all().map(|load| load.client.cpu_percent).sum(),
        })
    }

    /// Whether what waited may have been the clients themselves: all of them share one core.
    pub(crate) fn is_client_busy(&self) -> bool {
        self.client_cpu_percent > CLIENT_CPU_PERCENT_MAX
    }
}

fn longest_wait_ms(timeline: &Timeline) -> f64 {
    timeline.newcomers.longest_us.iter().copied().fold(0.0, f64::max) / 1e3
}

/// See [`Figures::recovery_ms`]. It is exact to a slot of the timeline.
fn recovery_ms(timeline: &Timeline, patience_ms: f64, fault_ends: f64) -> Option<f64> {
    let Timeline { began_unix_ms, newcomers, failed, .. } = timeline;
    let ends = (1..).map(|slot| began_unix_ms + f64::from(slot) * newcomers.slot_ms);
    let slots = ends.zip(newcomers.longest_us.iter().map(|us| us / 1e3)).zip(failed);
    let mut is_answered = true;
    let mut recovered = fault_ends;
    for ((end, wait_ms), failed) in slots {
        if wait_ms == 0.0 && *failed == 0 {
            continue; // nobody came
        }
        is_answered = *failed == 0 && wait_ms < patience_ms;
        // Of those that were not answered there is no later moment than when they came.
        let moment = if is_answered { end + wait_ms } else { end };
        if !is_answered || wait_ms > DELAYED_MS {
            recovered = recovered.max(moment);
        }
    }
    is_answered.then_some(recovered - fault_ends)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::report::{Burst, Churn};
    use crate::load::{Series, Stalls, Tally};

    const BEGAN: f64 = 10_000.0;
    const PATIENCE_MS: f64 = 5_000.0;

    /// In the place of a wait.
    const FAILED: u32 = u32::MAX;

    /// A report of an observer: in each slot of 100 ms a client waited so many ms, or failed.
    pub(crate) fn observer(waits_ms: &[u32]) -> Report {
        let series = |longest_us| Series { slot_ms: 100.0, received: vec![1; 10], longest_us };
        let failed = waits_ms.iter().map(|ms| u64::from(*ms == FAILED)).collect();
        let wait = |ms: &u32| if *ms == FAILED { 0.0 } else { f64::from(*ms) * 1e3 };
        let longest_us = waits_ms.iter().map(wait).collect();
        let mut report = Report::new(1.0, 1, &Tally::default());
        report.arrivals = Some(Arrivals {
            timeline: Some(Timeline {
                began_unix_ms: BEGAN,
                busy: series(vec![1.0; 10]),
                stalls: Stalls::default(),
                newcomers: series(longest_us),
                failed,
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
        assert_eq!(recovery(&[1, 2, 3, FAILED, 2]), Some(150.0));
        assert_eq!(recovery(&[1, 2, 3, FAILED]), None);
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
        burst.client.cpu_percent = 30.0;
        observer.client.cpu_percent = 50.0;
        let mut churn = Report::new(1.0, 1, &Tally::default());
        churn.connections.opened_over_1_s = 5;
        churn.churn = Some(Churn { done_per_s: 7.5, ..Churn::default() });
        churn.client.cpu_percent = 10.0;
        if let Some(timeline) = observer.arrivals.as_mut().and_then(|it| it.timeline.as_mut()) {
            timeline.stalls.longest_ms = 800.0;
        }
        let mut figures = Figures::of(&observer, &[burst, churn], PATIENCE_MS, BEGAN).unwrap();
        assert_eq!((figures.delayed, figures.failed), (19, 6));
        assert_eq!(figures.accepted_per_s, Some(7.5));
        assert_eq!((figures.longest_stall_ms, figures.client_cpu_percent), (800.0, 90.0));
        assert!(!figures.is_client_busy());
        figures.client_cpu_percent = 91.0;
        assert!(figures.is_client_busy());
        let silent = Report::new(1.0, 1, &Tally::default());
        assert!(Figures::of(&silent, &[], PATIENCE_MS, BEGAN).is_err());
    }
}

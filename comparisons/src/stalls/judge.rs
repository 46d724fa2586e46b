//! Verdict against truth: whether what the detector said of a run is right.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::record::Incident;
use super::scheduler::is_waiting;
use super::watch::Sample;

/// The classes of the detector, as its JSON names them. A test compares them with the detector's own.
pub(crate) const CLASSES: [&str; 17] = [
    "accept_starvation",
    ACCEPT_QUEUE_OVERFLOW,
    "unsubmitted_entries",
    "self_waking_task",
    "out_of_descriptors",
    "lost_accept",
    "connection_never_closes",
    "blocked_loop",
    "back_pressure_ignored",
    "ephemeral_ports_used_up",
    "completion_queue_overflow",
    "connection_owns_worker",
    "blocked_log",
    "overload",
    "waiting_for_cpu",
    "memory_pressure",
    UNKNOWN,
];

const UNKNOWN: &str = "unknown";

const ACCEPT_QUEUE_OVERFLOW: &str = "accept_queue_overflow";

/// A verdict of the scheduler's own figures, which the lab reads, too: it is true of a stall of which they say it.
const WAITING_FOR_CPU: &str = "waiting_for_cpu";

/// What the detector has to say of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expectation<'a> {
    /// The class; none if nothing is wrong.
    pub(crate) truth: Option<&'a str>,
    /// The class of a second fault, which begins while the first lasts.
    pub(crate) then: Option<&'a str>,
    /// Classes that are true, too.
    pub(crate) also: &'a [String],
    /// Whether it has to say it: otherwise silence is right, too.
    pub(crate) is_required: bool,
    /// Whether an accept queue may have overflowed: otherwise that class is false, whatever the scenario says.
    pub(crate) may_overflow: bool,
    /// Whether nothing is wrong, and nothing is done to the server: then each incident is a false alarm.
    pub(crate) is_healthy: bool,
}

impl Expectation<'_> {
    /// The expectation of a run in which `delayed` connections waited over 1 s, and accept queues dropped
    /// `listen_overflows` clients, as the kernel counts them; none if it does not say.
    ///
    /// Whether a burst overflows an accept queue depends on its timing. If the kernel counts no overflow, none is true.
    /// It still has to be named where clients waited: then something else is wrong, with the server or with the count.
    pub(crate) fn in_run(mut self, listen_overflows: Option<u64>, delayed: u64) -> Self {
        self.may_overflow = listen_overflows != Some(0);
        if self.truth == Some(ACCEPT_QUEUE_OVERFLOW) && !self.may_overflow && delayed == 0 {
            self.truth = None;
            self.is_required = false;
        }
        self
    }
}

/// How what the detector said compares with the truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// It named the truth as what fits best while the fault lasted, or all of two truths, and nothing false. Or it was
    /// silent and had nothing to say.
    Right,
    /// It named the truth while the fault lasted, but another class that is true, too, as the one that fits best.
    Among,
    /// It named the truth, but only when the fault was over.
    Late,
    /// It named this class, which is not true.
    Wrong(String),
    /// It found a stall and no class.
    Unknown,
    /// It was silent.
    Silent,
    /// The server has no detector, or none that could be asked.
    NotAsked,
}

/// When a fault was, in ms since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FaultTimes {
    pub(crate) began: f64,
    /// When the second fault of a scenario with two began.
    pub(crate) then_began: f64,
    pub(crate) ended: f64,
}

/// Compares the incidents of a run with the truth.
///
/// Each finding of an incident counts, also one that is only possible. What is true of the fault is false before it.
pub(crate) fn judge(
    expectation: Expectation<'_>,
    incidents: &[Incident],
    times: FaultTimes,
    samples: &[Sample],
) -> Outcome {
    if let Some(class) = false_class(expectation, incidents, times, samples) {
        return Outcome::Wrong(class.to_owned());
    }
    let Expectation { truth, then, is_required, .. } = expectation;
    let first = |class: Option<&str>, seen: fn(&Incident, &str) -> Option<f64>| {
        let named = incidents.iter().filter_map(|incident| seen(incident, class?));
        named.fold(f64::INFINITY, f64::min)
    };
    let is_led = first(truth, Incident::led) <= times.ended;
    let named = first(truth, Incident::seen);
    if is_led || named.max(first(then, Incident::seen)) <= times.ended {
        return Outcome::Right;
    }
    if named <= times.ended && is_required {
        return Outcome::Among;
    }
    if named.is_finite() && is_required {
        return Outcome::Late;
    }
    if incidents.iter().any(|incident| incident.class() == UNKNOWN) {
        return Outcome::Unknown;
    }
    if is_required { Outcome::Silent } else { Outcome::Right }
}

/// The first class that was named and is not true.
fn false_class<'a>(
    expectation: Expectation<'_>,
    incidents: &'a [Incident],
    times: FaultTimes,
    samples: &[Sample],
) -> Option<&'a str> {
    let Expectation { truth, then, also, may_overflow, is_healthy, .. } = expectation;
    let is_true = |incident: &Incident, class: &str| {
        if class == ACCEPT_QUEUE_OVERFLOW && !may_overflow {
            return false;
        }
        if class == WAITING_FOR_CPU {
            let Incident { began_unix_ms, lasted_ms, .. } = *incident;
            return !is_healthy && is_waiting(samples, began_unix_ms, lasted_ms);
        }
        let began = if then == Some(class) { times.then_began } else { times.began };
        let is_early = incident.seen(class).is_some_and(|seen| seen < began);
        let is_of_fault =
            [truth, then].contains(&Some(class)) || also.iter().any(|other| other == class);
        is_of_fault && !is_early
    };
    incidents.iter().find_map(|incident| {
        let is_false = |class: &&str| *class != UNKNOWN && !is_true(incident, class);
        incident.classes().find(is_false)
    })
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => f.write_str("right"),
            Self::Among => f.write_str("among others"),
            Self::Late => f.write_str("late"),
            Self::Wrong(class) => write!(f, "wrong: {}", class.replace('_', " ")),
            Self::Unknown => f.write_str("unknown"),
            Self::Silent => f.write_str("none"),
            Self::NotAsked => f.write_str("not asked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: FaultTimes = FaultTimes { began: 500.0, then_began: 1_000.0, ended: 2_000.0 };

    /// The worker waits for a CPU until 1,100 ms and not after that. An incident of this module lasts for 100 ms.
    fn samples() -> Vec<Sample> {
        let sample = |step: u32| {
            let cpu_wait_ms = if step <= 22 { 30.0 } else { 0.0 };
            Sample { unix_ms: f64::from(step * 50), cpu_wait_ms, ..Sample::default() }
        };
        (1..80).map(sample).collect()
    }

    /// That of a server that has to stall.
    fn required<'a>(truth: &'a str, also: &'a [String]) -> Expectation<'a> {
        Expectation {
            truth: Some(truth),
            then: None,
            also,
            is_required: true,
            may_overflow: true,
            is_healthy: false,
        }
    }

    fn judged(expectation: Expectation<'_>, incidents: &[(&[&str], f64)]) -> Outcome {
        let incident = |(classes, at): &(&[&str], f64)| Incident::of(classes, *at);
        let incidents: Vec<_> = incidents.iter().map(incident).collect();
        judge(expectation, &incidents, TIMES, &samples())
    }

    fn outcome(truth: Option<&str>, is_required: bool, incidents: &[(&[&str], f64)]) -> Outcome {
        let also = ["accept_starvation".to_owned()];
        let is_healthy = truth.is_none();
        let expectation = Expectation { truth, is_required, is_healthy, ..required("", &also) };
        judged(expectation, incidents)
    }

    #[test]
    fn the_truth_has_to_be_named_while_it_lasts_and_nothing_false() {
        let truth = Some("blocked_loop");
        let wrong = || Outcome::Wrong("lost_accept".to_owned());
        for (incidents, expected) in [
            (&[][..], Outcome::Silent),
            (&[(&["blocked_loop"][..], 1_500.0)], Outcome::Right),
            (&[(&["accept_starvation", "blocked_loop"], 1_500.0)], Outcome::Among),
            (&[(&["blocked_loop", "lost_accept"], 1_500.0)], wrong()),
            (&[(&["blocked_loop"], 400.0)], Outcome::Wrong("blocked_loop".to_owned())),
            (&[(&["accept_starvation"], 1_500.0)], Outcome::Silent),
            (&[(&["blocked_loop"], 2_500.0)], Outcome::Late),
            (&[(&["unknown"], 1_500.0)], Outcome::Unknown),
            (&[(&["unknown"], 1_000.0), (&["blocked_loop"], 1_500.0)], Outcome::Right),
            (&[(&["waiting_for_cpu"], 500.0), (&["blocked_loop"], 1_500.0)], Outcome::Right),
            (&[(&["blocked_loop"], 1_500.0), (&["lost_accept"], 3_000.0)], wrong()),
        ] {
            assert_eq!(outcome(truth, true, incidents), expected, "{incidents:?}");
        }
        assert_eq!(outcome(truth, false, &[]), Outcome::Right);
        assert_eq!(outcome(truth, false, &[(&["blocked_loop"], 2_500.0)]), Outcome::Right);
    }

    #[test]
    fn of_two_faults_the_first_is_named_or_both_are() {
        let (first, then) = ("out_of_descriptors", "blocked_loop");
        let expectation = Expectation { then: Some(then), ..required(first, &[]) };
        for (incidents, expected) in [
            (&[(&[first][..], 700.0)][..], Outcome::Right),
            (&[(&[first], 700.0), (&[then], 1_500.0)], Outcome::Right),
            (&[(&[then, first], 1_500.0)], Outcome::Right),
            (&[(&[then], 1_400.0), (&[first], 1_500.0)], Outcome::Right),
            (&[(&[then], 1_500.0)], Outcome::Silent),
            (&[(&[then], 1_500.0), (&[first], 2_500.0)], Outcome::Late),
            (&[(&[first], 700.0), (&[then], 900.0)], Outcome::Wrong(then.to_owned())),
        ] {
            assert_eq!(judged(expectation, incidents), expected, "{incidents:?}");
        }
    }

    #[test]
    fn an_overflow_is_the_truth_where_the_kernel_counted_one() {
        let also = [ACCEPT_QUEUE_OVERFLOW.to_owned()];
        let expected = |truth| required(truth, &also);
        let overflow = expected(ACCEPT_QUEUE_OVERFLOW);
        for (counted, delayed) in [(None, 0), (Some(1), 0), (Some(0), 1)] {
            assert_eq!(judged(overflow.in_run(counted, delayed), &[]), Outcome::Silent);
        }
        assert_eq!(judged(overflow.in_run(Some(0), 0), &[]), Outcome::Right);
        let named = [(&[ACCEPT_QUEUE_OVERFLOW][..], 1_500.0)];
        assert_eq!(judged(overflow.in_run(Some(1), 0), &named), Outcome::Right);
        let wrong = Outcome::Wrong(ACCEPT_QUEUE_OVERFLOW.to_owned());
        for expected in [overflow, expected("accept_starvation")] {
            assert_eq!(judged(expected.in_run(Some(0), 0), &named), wrong);
        }
        assert_eq!(judged(expected("blocked_loop").in_run(Some(0), 0), &[]), Outcome::Silent);
    }

    #[test]
    fn waiting_for_a_cpu_is_true_where_the_scheduler_says_so() {
        let waiting = "waiting_for_cpu";
        let wrong = || Outcome::Wrong(waiting.to_owned());
        for truth in ["blocked_loop", waiting] {
            let outcome = |at| outcome(Some(truth), false, &[(&[waiting], at)]);
            assert_eq!((outcome(800.0), outcome(1_500.0)), (Outcome::Right, wrong()));
        }
    }

    #[test]
    fn where_nothing_is_wrong_each_incident_is_a_false_alarm() {
        assert_eq!(outcome(None, false, &[]), Outcome::Right);
        let waiting = outcome(None, false, &[(&["waiting_for_cpu"], 1_000.0)]);
        assert_eq!(waiting, Outcome::Wrong("waiting_for_cpu".to_owned()));
        assert_eq!(outcome(None, false, &[(&["unknown"], 1_000.0)]), Outcome::Unknown);
        let wrong = outcome(None, false, &[(&["blocked_loop"], 1_000.0)]);
        assert_eq!(wrong, Outcome::Wrong("blocked_loop".to_owned()));
    }

    #[test]
    fn the_classes_are_those_of_the_detector() {
        for class in CLASSES {
            let json = format!("{class:?}");
            let own: owned_io_stalls::Class = serde_json::from_str(&json).unwrap();
            assert_eq!(own.name(), class);
        }
    }
}

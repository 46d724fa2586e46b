//! Verdict against truth: whether what the detector said of a run is right.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::record::Incident;

/// The classes of the detector, as its JSON names them. A test compares them with the detector's own.
pub(crate) const CLASSES: [&str; 16] = [
    "accept_starvation",
    "accept_queue_overflow",
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
    "waiting_for_cpu",
    "memory_pressure",
    UNKNOWN,
];

const UNKNOWN: &str = "unknown";

/// A verdict of the scheduler's own figures. The lab cannot give a server a machine for itself.
const WAITING_FOR_CPU: &str = "waiting_for_cpu";

/// What the detector has to say of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expectation<'a> {
    /// The class; none if nothing is wrong.
    pub(crate) truth: Option<&'a str>,
    /// Classes that are true, too.
    pub(crate) also: &'a [String],
    /// Whether it has to say it: otherwise silence is right, too.
    pub(crate) is_required: bool,
    /// Whether nothing is wrong, and nothing is done to the server: then each incident is a false alarm.
    pub(crate) is_healthy: bool,
}

/// What is to be made of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// It named the truth as what fits best while the fault lasted, and nothing false; or it was silent and had nothing to say.
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

/// Compares the incidents of a run with the truth. `fault`: when it began and ended, in ms since 1970.
///
/// Each finding of an incident counts, also one that is only possible. What is true of the fault is false before it.
pub(crate) fn judge(
    expectation: Expectation<'_>,
    incidents: &[Incident],
    [fault_begins, fault_ends]: [f64; 2],
) -> Outcome {
    let Expectation { truth, also, is_required, is_healthy } = expectation;
    let is_true = |incident: &Incident, class: &str| {
        let is_of_fault = truth == Some(class) || also.iter().any(|it| it == class);
        let is_early = incident.seen(class).is_some_and(|seen| seen < fault_begins);
        is_of_fault && !is_early || class == WAITING_FOR_CPU && !is_healthy
    };
    let false_class = incidents.iter().find_map(|incident| {
        let is_false = |class: &&str| *class != UNKNOWN && !is_true(incident, class);
        incident.classes().find(is_false)
    });
    if let Some(class) = false_class {
        return Outcome::Wrong(class.to_owned());
    }
    let first = |seen: fn(&Incident, &str) -> Option<f64>| {
        let named = incidents.iter().filter_map(|incident| seen(incident, truth?));
        named.fold(f64::INFINITY, f64::min)
    };
    if first(Incident::led) <= fault_ends {
        return Outcome::Right;
    }
    let first = first(Incident::seen);
    if first <= fault_ends && is_required {
        return Outcome::Among;
    }
    if first.is_finite() && is_required {
        return Outcome::Late;
    }
    if incidents.iter().any(|incident| incident.class() == UNKNOWN) {
        return Outcome::Unknown;
    }
    if is_required { Outcome::Silent } else { Outcome::Right }
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

    const FAULT: [f64; 2] = [500.0, 2_000.0];

    fn outcome(truth: Option<&str>, is_required: bool, incidents: &[(&[&str], f64)]) -> Outcome {
        let also = ["accept_starvation".to_owned()];
        let expectation =
            Expectation { truth, also: &also, is_required, is_healthy: truth.is_none() };
        let incident = |(classes, at): &(&[&str], f64)| Incident::of(classes, *at);
        judge(expectation, &incidents.iter().map(incident).collect::<Vec<_>>(), FAULT)
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

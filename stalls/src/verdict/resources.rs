//! Things that run out: descriptors, ports, queue space; and connections that are never closed.

use super::accept::unread_connections;
use super::{Class, Confidence, Finding};
use crate::evidence::{Evidence, Look, ProbeOutcome};

/// With this many free descriptors, or fewer, the next burst fails.
const DESCRIPTORS_LEFT: u64 = 2;
/// How many connections must stay open over two inspections. Fewer may just be slow.
const NEVER_CLOSED_MIN: u64 = 16;

/// The descriptor table is full.
pub(super) fn out_of_descriptors(evidence: &Evidence) -> Option<Finding> {
    let last = evidence.looks.last()?;
    let (used, max) = (last.descriptors?, last.descriptors_max?);
    if used.saturating_add(DESCRIPTORS_LEFT) < max {
        return None;
    }
    Some(Finding {
        class: Class::OutOfDescriptors,
        confidence: Confidence::Certain,
        evidence: vec![format!("{used} of {max} descriptors are in use: accept fails at once with EMFILE.")],
        cure: "Raise the limit (ulimit -n), accept no more connections than it allows, and sleep after a failed accept \
               instead of trying again at once."
            .into(),
    })
}

/// No local port is left, or nearly. A probe without a port shows it. Connections in TIME_WAIT alone do not: those of a
/// server take none, and connections to several addresses share theirs.
pub(super) fn ports_used_up(evidence: &Evidence) -> Option<Finding> {
    let last = evidence.looks.last()?;
    let no_port = last.probe.as_ref().is_some_and(|probe| probe.outcome == ProbeOutcome::NoPort);
    let figures = evidence.looks.iter().rev().find_map(|look| look.time_wait.zip(look.local_ports));
    let (time_wait, ports) = figures?;
    if !no_port && time_wait.saturating_mul(10) < ports.saturating_mul(9) {
        return None;
    }
    let mut sentences = vec![format!(
        "{time_wait} connections are in TIME_WAIT, and there are {ports} local ports."
    )];
    if no_port {
        sentences.push("A probe found no free port.".into());
    }
    Some(Finding {
        class: Class::EphemeralPortsUsedUp,
        confidence: if no_port { Confidence::Certain } else { Confidence::Possible },
        evidence: sentences,
        cure: "Keep connections open for many requests, or connect from or to more addresses."
            .into(),
    })
}

/// A gauge is over its limit.
pub(super) fn back_pressure_ignored(evidence: &Evidence) -> Option<Finding> {
    let is_over = |look: &Look, name: &str| {
        look.gauges
            .iter()
            .any(|gauge| gauge.name == name && gauge.limit.is_some_and(|limit| gauge.value > limit))
    };
    let (last, earlier) = evidence.looks.split_last()?;
    let before = earlier.last()?;
    let gauge = last
        .gauges
        .iter()
        .find(|gauge| is_over(last, &gauge.name) && is_over(before, &gauge.name))?;
    let sentence = format!(
        "{} is {} and should not exceed {}, at two looks {} ms apart.",
        gauge.name,
        gauge.value,
        gauge.limit?,
        last.at_ms.saturating_sub(before.at_ms)
    );
    Some(Finding {
        class: Class::BackPressureIgnored,
        confidence: Confidence::Likely,
        evidence: [sentence].into_iter().chain(unread_connections(evidence)).collect(),
        cure: "Let the producer wait for its consumer: read no more from a connection than the other side takes."
            .into(),
    })
}

/// Connections stay open although their peers, or the program, have dropped them.
pub(super) fn connection_never_closes(evidence: &Evidence) -> Option<Finding> {
    if evidence.late_ms.is_some() {
        return None; // a stalled loop closes nothing
    }
    let look = evidence.looks.iter().rev().find(|look| look.close_wait_old.is_some())?;
    let closed_by_peers = look.close_wait_old.filter(|old| *old >= NEVER_CLOSED_MIN).map(|old| {
        format!(
            "{old} connections were closed by their peers, and this process neither closed them nor sent to them, at \
             two inspections in a row."
        )
    });
    let closed_here = look.counted.iter().filter_map(|listener| {
        let more = listener.open.checked_sub(listener.counted_max)?;
        (more >= NEVER_CLOSED_MIN).then(|| {
            format!(
                "{} connections to {} were open at two inspections in a row, and the program counted at most {} in \
                 between.",
                listener.open, listener.addr, listener.counted_max
            )
        })
    });
    let mut sentences: Vec<String> = closed_by_peers.into_iter().chain(closed_here).collect();
    if sentences.is_empty() {
        return None;
    }
    sentences.extend(unread_connections(evidence));
    Some(Finding {
        class: Class::ConnectionNeverCloses,
        confidence: Confidence::Likely,
        evidence: sentences,
        cure: "Find who keeps the connection: a pending operation that was dropped and not cancelled holds its \
               descriptor. Shut the connection down before dropping it."
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use crate::evidence::{Evidence, Look};
    use crate::verdict::{Class, Confidence, judge};

    /// A server that closes first has as many, and needs no local port.
    #[test]
    fn connections_in_time_wait_are_no_sure_sign() {
        let found = |time_wait: u64, probe: Option<&str>| {
            let (time_wait, local_ports) = (Some(time_wait), Some(1_000));
            let probe = probe.map(|outcome| {
                let probe = format!(
                    r#"{{"addr": "127.0.0.1:80", "at_ms": 0, "took_ms": 1, "limit_ms": 500,
                        "outcome": "{outcome}", "silent": 0}}"#
                );
                serde_json::from_str(&probe).unwrap()
            });
            let look = Look { time_wait, local_ports, probe, ..Look::default() };
            let verdict = judge(&Evidence { looks: vec![look], ..Evidence::default() });
            (verdict.class(), verdict.confidence())
        };
        let class = Class::EphemeralPortsUsedUp;
        assert_eq!(found(2_000, None), (class, Confidence::Possible));
        assert_eq!(found(2_000, Some("Answered")), (class, Confidence::Possible));
        assert_eq!(found(800, Some("NoPort")), (class, Confidence::Certain));
        assert_eq!(found(800, None).0, Class::Unknown);
    }
}

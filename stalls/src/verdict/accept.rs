//! Accepting: the queue that grows, the queue that is full, the connection that nobody has.

use std::net::SocketAddr;

use super::{Class, Confidence, Finding};
use crate::evidence::{Evidence, Listener, Look, ProbeOutcome};

/// How many probes in a row must get no byte.
const SILENT_PROBES: u32 = 2;
/// How long a queue must be non-empty at each look.
const STUCK_MS: u64 = 1_000;

/// Connection requests are dropped.
pub(super) fn queue_overflow(evidence: &Evidence) -> Option<Finding> {
    let (first, last) = (evidence.looks.first()?, evidence.looks.last()?);
    let dropped =
        last.listen_overflows?.checked_sub(first.listen_overflows?).filter(|count| *count > 0)?;
    // The counter is of the whole network namespace. A full queue of our own makes it ours.
    let full = evidence
        .looks
        .iter()
        .flat_map(|look| &look.listeners)
        .find(|listener| listener.queue >= listener.backlog.max(1));
    let mut sentences = vec![format!(
        "The kernel dropped {dropped} connection requests in {} ms because an accept queue was full.",
        last.at_ms.saturating_sub(first.at_ms)
    )];
    let confidence = match full {
        Some(listener) => {
            sentences.push(format!(
                "The queue of {} held {} of {}.",
                listener.addr, listener.queue, listener.backlog
            ));
            Confidence::Certain
        }
        None if last.listeners.is_empty() => return None,
        None => {
            sentences.push(
                "Which listener is not known: the counter is of the network namespace.".into(),
            );
            Confidence::Possible
        }
    };
    Some(Finding {
        class: Class::AcceptQueueOverflow,
        confidence,
        evidence: sentences,
        cure: "Accept until the queue is empty whenever the listener is readable, or keep 64 accepts pending; a larger \
               backlog (and net.core.somaxconn) only covers a short burst. A client whose request was dropped tries \
               again after 1 s."
            .into(),
    })
}

/// The queue does not get empty while the loop runs.
pub(super) fn starvation(evidence: &Evidence) -> Option<Finding> {
    let (first, last, listener) = stuck_listener(evidence)?;
    let lengths: Vec<u32> = lengths(evidence, listener.inode);
    let is_growing = lengths.first() < lengths.last();
    let is_standing = lengths.windows(2).all(|pair| pair[0] <= pair[1]);
    let is_probe_late = last.probe.as_ref().is_some_and(|probe| {
        probe.took_ms >= probe.limit_ms
            && probe.outcome != ProbeOutcome::Refused
            && probe.outcome != ProbeOutcome::Failed
    });
    // A queue that goes up and down is served.
    let confidence = match (is_probe_late, is_standing, is_growing) {
        (true, _, _) => Confidence::Certain,
        (false, true, _) => Confidence::Likely,
        (false, false, true) if listener.queue > listener.backlog / 2 => Confidence::Likely,
        _ => return None,
    };
    let mut sentences = vec![format!(
        "The accept queue of {} was never empty for {} ms: {} connections at the looks, of {}.",
        listener.addr,
        last.at_ms.saturating_sub(first.at_ms),
        lengths.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        listener.backlog,
    )];
    if is_probe_late {
        sentences
            .push(format!("A probe got no answer within {} ms.", last.probe.as_ref()?.limit_ms));
    }
    Some(Finding {
        class: Class::AcceptStarvation,
        confidence,
        evidence: sentences,
        cure: "Accept more than one connection for each iteration of the event loop: accept until the queue is empty \
               whenever the listener is readable, or keep 64 accepts pending."
            .into(),
    })
}

/// Probes were taken out of the queue and never answered. One alone may have met a busy server.
pub(super) fn lost_accept(evidence: &Evidence) -> Option<Finding> {
    if evidence.late_ms.is_some() {
        return None;
    }
    let last = evidence.looks.last()?;
    let probe = last.probe.as_ref()?;
    let is_probed = |listener: &&Listener| is_listener_of(probe.addr, listener);
    let is_ours = last.listeners.iter().any(|listener| is_probed(&listener));
    let looks = evidence.looks.iter().rev().take(2);
    let mut probed = looks.flat_map(|look| look.listeners.iter().filter(is_probed));
    if probe.outcome != ProbeOutcome::NoByte
        || probe.silent < SILENT_PROBES
        || !is_ours
        || !probed.all(|listener| listener.queue == 0)
    {
        return None;
    }
    Some(Finding {
        class: Class::LostAccept,
        confidence: Confidence::Likely,
        evidence: vec![format!(
            "{} probes in a row were connected to {} and got no byte, the last in {} ms, although its accept queue is \
             empty: they were accepted, and nobody serves them.",
            probe.silent, probe.addr, probe.took_ms
        )],
        cure: "Do not drop a pending accept (for example in a timeout or a select) on a runtime whose accept cannot be \
               cancelled: keep the future and poll it again."
            .into(),
    })
}

/// Whether a connection to `addr` comes to `listener`.
fn is_listener_of(addr: SocketAddr, listener: &Listener) -> bool {
    let [probed, listens] = [addr.ip(), listener.addr.ip()].map(|ip| ip.to_canonical());
    let is_any = listens.is_unspecified() && (listens.is_ipv6() || probed.is_ipv4());
    listener.addr.port() == addr.port() && (is_any || listens == probed)
}

/// The first and last look, and the listener whose queue was non-empty at each.
fn stuck_listener(evidence: &Evidence) -> Option<(&Look, &Look, &Listener)> {
    let (first, last) = (evidence.looks.first()?, evidence.looks.last()?);
    if last.at_ms.saturating_sub(first.at_ms) < STUCK_MS || evidence.looks.len() < 3 {
        return None;
    }
    let listener = last.listeners.iter().find(|listener| {
        let lengths = lengths(evidence, listener.inode);
        lengths.len() == evidence.looks.len() && !lengths.contains(&0)
    })?;
    Some((first, last, listener))
}

fn lengths(evidence: &Evidence, inode: u32) -> Vec<u32> {
    let of =
        |look: &Look| Some(look.listeners.iter().find(|listener| listener.inode == inode)?.queue);
    evidence.looks.iter().filter_map(of).collect()
}

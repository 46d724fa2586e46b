//! Accepting: the queue that grows, the queue that is full, the connection that nobody has.

use super::{Class, Confidence, Finding};
use crate::evidence::{Evidence, Listener, Look, ProbeOutcome};
use crate::proc::socket::{is_at, is_same};

/// How many probes in a row must get no byte. One may have met a busy server.
const SILENT_PROBES_MIN: u32 = 2;
/// How many connections must have sent a request that nobody has read. The task of one may wait for something else.
const NEVER_SERVED_MIN: u64 = 2;
/// How long a queue must be non-empty at each look, in milliseconds.
const STUCK_MS_MIN: u64 = 1_000;
/// A loop that stands still for so long accepts nobody either, in milliseconds: whatever keeps it is the cause. One
/// that serves thousands of connections in an iteration is late by less.
const STANDSTILL_MS: u64 = 400;

/// Connection requests are dropped.
///
/// A queue is full for milliseconds if its server is fast, and no look may come then. Each listener's own counter tells
/// all the same, and tells it from the listeners of other processes. The counter of the namespace alone does not.
pub(super) fn queue_overflow(evidence: &Evidence) -> Option<Finding> {
    let (first, last) = (evidence.looks.first()?, evidence.looks.last()?);
    let of_all = last.listen_overflows.zip(first.listen_overflows);
    if of_all.is_some_and(|(now, before)| now <= before) {
        return None; // what a listener dropped was no connection request that found the queue full
    }
    let is_counted = last.listeners.iter().any(|listener| listener.dropped.is_some());
    let (listener, sentence) = match is_counted {
        true => dropping_listener(evidence)?,
        false => full_listener(evidence)?,
    };
    let at_looks = match lengths(evidence, listener.inode).into_iter().max() {
        None | Some(0) => "it was empty at each look".to_owned(),
        Some(longest) => format!("at the looks it held up to {longest}"),
    };
    Some(Finding {
        class: Class::AcceptQueueOverflow,
        confidence: if of_all.is_some() { Confidence::Certain } else { Confidence::Likely },
        evidence: vec![
            sentence,
            format!("Its queue has room for {}; {at_looks}.", listener.backlog),
        ],
        cure: "Accept until the queue is empty whenever the listener is readable, or keep 64 accepts pending; a larger \
               backlog (and net.core.somaxconn) only covers a short burst. A client whose request was dropped tries \
               again after 1 s."
            .into(),
    })
}

/// The listener that dropped most since the first look that has it, and what it dropped.
fn dropping_listener(evidence: &Evidence) -> Option<(&Listener, String)> {
    let last = evidence.looks.last()?;
    let dropped = |listener: &Listener| {
        let mut looks = evidence.looks.iter();
        let (since, before) = looks.find_map(|look| {
            let before = look.listeners.iter().find(|it| it.inode == listener.inode)?;
            Some((look.at_ms, before.dropped?))
        })?;
        Some((listener.dropped?.wrapping_sub(before), since))
    };
    let counted = last.listeners.iter().filter_map(|it| Some((it, dropped(it)?)));
    let (listener, (count, since)) = counted.max_by_key(|(_, (count, _))| *count)?;
    let ms = last.at_ms.saturating_sub(since);
    let sentence = format!(
        "{} dropped {count} connection requests in {ms} ms because its accept queue was full.",
        listener.addr
    );
    (count > 0).then_some((listener, sentence))
}

/// On a kernel that does not count for each listener: one that was full, while requests were dropped.
fn full_listener(evidence: &Evidence) -> Option<(&Listener, String)> {
    let (first, last) = (evidence.looks.first()?, evidence.looks.last()?);
    let dropped = last.listen_overflows?.checked_sub(first.listen_overflows?)?;
    let mut listeners = evidence.looks.iter().flat_map(|look| &look.listeners);
    let full = listeners.find(|listener| listener.queue >= listener.backlog.max(1))?;
    let ms = last.at_ms.saturating_sub(first.at_ms);
    let sentence = format!(
        "The kernel dropped {dropped} connection requests in {ms} ms because an accept queue was full."
    );
    Some((full, sentence))
}

/// The queue does not get empty while the loop runs. While entries are not submitted, accepts are not either.
///
/// A program that is at a limit of its own accepts nobody on purpose, and its queue looks the same but for one thing:
/// clients who wait do not come again, so its length often stays the same.
pub(super) fn starvation(evidence: &Evidence) -> Option<Finding> {
    if super::ring::waiting_entries(evidence).is_some() {
        return None;
    }
    let found = stuck_listeners(evidence).filter_map(|(listener, run)| {
        let longest = run.iter().map(|(_, length)| *length).max();
        Some((starvation_of(evidence, listener, &run)?, longest))
    });
    // The surest, and of these the one with the longest queue: another listener may only be busy.
    let (finding, _) = found.max_by_key(|(finding, longest)| (finding.confidence, *longest))?;
    Some(finding)
}

/// The finding about one listener, with its [run](stuck_listeners) of looks.
fn starvation_of(evidence: &Evidence, listener: &Listener, run: &[(u64, u32)]) -> Option<Finding> {
    let (first, last) = (run.first()?, run.last()?);
    let half = listener.backlog / 2;
    let is_full =
        last.1 > half && (first.1 < last.1 || run.iter().all(|(_, length)| *length > half));
    // In a busy server, too, connections wait at most looks. But their number goes up and down within these seconds.
    let is_standing =
        run.len() == evidence.looks.len() && run.windows(2).all(|pair| pair[0].1 <= pair[1].1);
    let is_constant = last.1 < listener.backlog && run.iter().all(|it| it.1 == last.1);
    let probe = evidence.looks.last()?.probe.as_ref();
    let is_probe_late = probe.is_some_and(|probe| {
        // A probe of another listener, that met a standstill, or was long ago, tells nothing of this queue.
        let ended_ms = probe.at_ms.saturating_add(probe.took_ms);
        let in_vain_ms = ended_ms.saturating_sub(probe.at_ms.max(first.0));
        is_at(listener.addr, probe.addr)
            && in_vain_ms >= probe.limit_ms.min(STUCK_MS_MIN)
            && probe.took_ms >= probe.limit_ms
            && probe.outcome != ProbeOutcome::Refused
            && probe.outcome != ProbeOutcome::Failed
    });
    let confidence = match is_probe_late {
        true => Confidence::Certain,
        false if !is_full && !is_standing => return None,
        false if is_constant => Confidence::Possible,
        false => Confidence::Likely,
    };
    let mut sentences = vec![format!(
        "The accept queue of {} was never empty for {} ms: {} connections at the looks, of {}.",
        listener.addr,
        last.0.saturating_sub(first.0),
        run.iter().map(|(_, length)| length.to_string()).collect::<Vec<_>>().join(", "),
        listener.backlog,
    )];
    if is_probe_late {
        sentences.push(format!("A probe got no answer within {} ms.", probe?.limit_ms));
    }
    sentences.extend(unread_connections(evidence));
    Some(Finding {
        class: Class::AcceptStarvation,
        confidence,
        evidence: sentences,
        cure: "Accept more than one connection for each iteration of the event loop: accept until the queue is empty \
               whenever the listener is readable, or keep 64 accepts pending. If a limit of the program holds these \
               connections back, raise it, or tell the detector (Detector::accept_pauses)."
            .into(),
    })
}

/// Connections were accepted, and nobody serves them.
pub(super) fn lost_accept(evidence: &Evidence) -> Option<Finding> {
    if evidence.late_ms.is_some() {
        return None;
    }
    let mut sentences: Vec<String> =
        [never_served(evidence), silent_probes(evidence)].into_iter().flatten().collect();
    if sentences.is_empty() {
        return None;
    }
    sentences.extend(unread_connections(evidence));
    Some(Finding {
        class: Class::LostAccept,
        confidence: Confidence::Likely,
        evidence: sentences,
        cure: "Do not drop a pending accept (for example in a timeout or a select) on a runtime whose accept cannot be \
               cancelled: keep the future and poll it again. If a limit of the program holds these connections back, \
               accept them later."
            .into(),
    })
}

/// Clients whose requests nobody has read. While entries are not submitted, nobody reads either.
fn never_served(evidence: &Evidence) -> Option<String> {
    let count = evidence.looks.last()?.never_served.filter(|count| *count >= NEVER_SERVED_MIN)?;
    if super::ring::waiting_entries(evidence).is_some() {
        return None;
    }
    Some(format!(
        "{count} connections were accepted and have sent a request, of which no byte was read at two inspections in a \
         row; and nothing was sent to them."
    ))
}

/// Connections whose bytes nobody reads. A program may leave them unread on purpose, while it waits for something else,
/// so no class follows from that: it is a further sentence of another finding.
pub(super) fn unread_connections(evidence: &Evidence) -> Option<String> {
    let count = evidence.looks.last()?.unread_connections.filter(|count| *count > 0)?;
    Some(format!(
        "{count} connections had bytes that nobody had read, at two inspections in a row."
    ))
}

/// Probes were taken out of the queue and never answered.
fn silent_probes(evidence: &Evidence) -> Option<String> {
    let last = evidence.looks.last()?;
    let probe = last.probe.as_ref()?;
    let is_probed = |listener: &&Listener| is_at(listener.addr, probe.addr);
    let is_ours = last.listeners.iter().any(|listener| is_probed(&listener));
    // While the probe waited, the loop ran and had nobody left to accept. One that stood still answers nobody.
    let was_served = evidence.looks.iter().any(|look| {
        let waited_since = look.at_ms.checked_sub(probe.at_ms);
        waited_since.is_some_and(|ms| ms <= probe.took_ms)
            && look.heart_late_ms.is_none()
            && look.listeners.iter().filter(is_probed).all(|listener| listener.queue == 0)
    });
    // An accept in progress may have taken it before the accept loop began to wait on purpose.
    let pauses = |look: &Look| look.accept_pauses.iter().any(|addr| is_at(*addr, probe.addr));
    let looks = evidence.looks.iter().rev().take(2);
    let mut probed = looks.flat_map(|look| look.listeners.iter().filter(is_probed));
    if probe.outcome != ProbeOutcome::NoByte
        || probe.silent < SILENT_PROBES_MIN
        || !is_ours
        || !was_served
        || evidence.looks.iter().any(pauses)
        || !probed.all(|listener| listener.queue == 0)
    {
        return None;
    }
    Some(format!(
        "{} probes in a row were connected to {} and got no byte, the last in {} ms, although its accept queue is \
         empty: they were accepted, and nobody serves them.",
        probe.silent, probe.addr, probe.took_ms
    ))
}

/// The listeners whose queue was non-empty at the last looks, for long enough; and when each of these was, with its
/// length. Looks before the end of a standstill, or of a pause that the program told of, are left out.
fn stuck_listeners(evidence: &Evidence) -> impl Iterator<Item = (&Listener, Vec<(u64, u32)>)> {
    let stands = |look: &Look| look.heart_late_ms.is_some_and(|late| late >= STANDSTILL_MS);
    let pauses = |look: &Look, listener: &Listener| {
        look.accept_pauses.iter().any(|addr| is_same(*addr, listener.addr))
    };
    let run = move |listener: &Listener| {
        let looks = evidence.looks.iter().rev();
        let running = looks.take_while(|look| !stands(look) && !pauses(look, listener));
        let lengths = running.map_while(|look| {
            let then = look.listeners.iter().find(|then| then.inode == listener.inode)?;
            (then.queue > 0).then_some((look.at_ms, then.queue))
        });
        let mut run: Vec<(u64, u32)> = lengths.collect();
        run.reverse();
        run
    };
    let is_long = |run: &[(u64, u32)]| match run {
        [first, _, .., last] => last.0.saturating_sub(first.0) >= STUCK_MS_MIN,
        _ => false,
    };
    let listeners = evidence.looks.last().into_iter().flat_map(|look| &look.listeners);
    let runs = listeners.map(move |listener| (listener, run(listener)));
    runs.filter(move |(_, run)| is_long(run))
}

fn lengths(evidence: &Evidence, inode: u32) -> Vec<u32> {
    let of =
        |look: &Look| Some(look.listeners.iter().find(|listener| listener.inode == inode)?.queue);
    evidence.looks.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::ProbeResult;
    use crate::verdict::judge;

    /// Two looks at a listener whose queue is empty, and at the counters of the namespace and of the listener.
    fn looks(overflows: [u64; 2], dropped: [Option<u32>; 2]) -> Evidence {
        let listener = |dropped| Listener {
            addr: ([127, 0, 0, 1], 80).into(),
            inode: 1,
            queue: 0,
            backlog: 128,
            dropped,
        };
        let look = |number: usize| Look {
            at_ms: 500 * number as u64,
            listen_overflows: Some(overflows[number]),
            listeners: vec![listener(dropped[number])],
            ..Look::default()
        };
        Evidence { looks: vec![look(0), look(1)], ..Evidence::default() }
    }

    #[test]
    fn only_the_own_listener_counts() {
        let class = |overflows, dropped| judge(&looks(overflows, dropped)).class();
        assert_eq!(class([5, 9], [Some(2), Some(4)]), Class::AcceptQueueOverflow);
        assert_eq!(class([5, 9], [Some(u32::MAX), Some(1)]), Class::AcceptQueueOverflow);
        assert_eq!(class([5, 9], [Some(4), Some(4)]), Class::Unknown, "another process overflows");
        assert_eq!(class([5, 5], [Some(2), Some(4)]), Class::Unknown, "no queue was full");
        assert_eq!(class([5, 9], [None, Some(4)]), Class::Unknown, "since when is not known");
        assert_eq!(class([5, 9], [None, None]), Class::Unknown, "an old kernel, and no full queue");
    }

    /// A stalled heart has other causes, and what another process drops is none.
    #[test]
    fn an_overflow_elsewhere_does_not_explain_a_late_heart() {
        let mut evidence = looks([5, 9], [None, None]);
        evidence.late_ms = Some(60);
        assert_eq!(judge(&evidence).class(), Class::Unknown);
    }

    /// Looks at a queue of at most 1,024, 500 ms apart.
    fn queue(lengths: &[u32]) -> Evidence {
        let mut evidence = looks([5, 5], [Some(0), Some(0)]);
        let look = evidence.looks.remove(0);
        evidence.looks = vec![look; lengths.len()];
        for (number, (look, length)) in evidence.looks.iter_mut().zip(lengths).enumerate() {
            look.at_ms = 500 * number as u64;
            (look.listeners[0].queue, look.listeners[0].backlog) = (*length, 1_024);
        }
        evidence
    }

    /// Whether it was empty some seconds ago does not matter.
    #[test]
    fn a_queue_that_fills_starves_its_clients() {
        let class = |lengths: &[u32]| judge(&queue(lengths)).class();
        assert_eq!(class(&[0, 0, 0, 100, 400, 700]), Class::AcceptStarvation);
        assert_eq!(class(&[3, 5, 5, 7, 9, 9, 10, 11]), Class::AcceptStarvation);
        assert_eq!(class(&[0, 0, 1_025, 1_020, 1_025, 1_023]), Class::AcceptStarvation);
        assert_eq!(class(&[0, 0, 0, 3, 5, 7]), Class::Unknown, "a busy server");
        assert_eq!(class(&[3, 5, 2, 7, 9, 9, 10, 11]), Class::Unknown, "it is served");
        assert_eq!(class(&[0, 0, 0, 0, 400, 700]), Class::Unknown, "too short");
        assert_eq!(class(&[100, 400, 700, 900, 1_025, 0]), Class::Unknown, "it is over");
    }

    /// With SO_REUSEPORT each worker has a listener.
    #[test]
    fn a_busy_listener_does_not_hide_one_that_starves_its_clients() {
        let found = |first: &[u32], second: &[u32]| {
            let (mut evidence, others) = (queue(first), queue(second));
            for (look, other) in evidence.looks.iter_mut().zip(others.looks) {
                look.listeners.extend(other.listeners);
                (look.listeners[1].inode, look.listeners[1].backlog) = (99, 2_000);
            }
            let verdict = judge(&evidence);
            let sentence = verdict.findings[0].evidence.first().cloned().unwrap_or_default();
            (verdict.class(), sentence.contains("of 2000"))
        };
        let (busy, held) = ([3, 5, 2, 7, 9, 9, 10, 11], [4; 8]);
        let starving = [100, 400, 700, 900, 1_100, 1_200, 1_300, 1_400];
        assert_eq!(found(&busy, &starving), (Class::AcceptStarvation, true));
        assert_eq!(found(&held, &starving), (Class::AcceptStarvation, true));
        assert_eq!(found(&busy, &busy).0, Class::Unknown);
    }

    /// So is a server that is at its limit of connections: those who wait to be accepted do not come again.
    #[test]
    fn a_queue_that_stays_the_same_may_be_held_back_on_purpose() {
        let found = |lengths: &[u32]| {
            let verdict = judge(&queue(lengths));
            (verdict.class(), verdict.confidence())
        };
        assert_eq!(found(&[1; 8]), (Class::AcceptStarvation, Confidence::Possible));
        assert_eq!(found(&[600; 8]), (Class::AcceptStarvation, Confidence::Possible));
        assert_eq!(found(&[0, 0, 0, 600, 600, 600]).1, Confidence::Possible);
        assert_eq!(found(&[1_025; 8]), (Class::AcceptStarvation, Confidence::Likely), "it is full");
        assert_eq!(found(&[1, 1, 1, 2, 2, 2, 2, 2]).1, Confidence::Likely, "more come");
        let text = judge(&queue(&[1; 8])).to_string();
        assert!(text.contains("If a limit of the program"), "{text}");
    }

    #[test]
    fn a_pause_that_the_program_told_of_explains_its_queue() {
        let mut evidence = queue(&[3, 100, 400, 700, 900]);
        assert_eq!(judge(&evidence).class(), Class::AcceptStarvation);
        evidence.looks[1].accept_pauses = vec![([127, 0, 0, 1], 81).into()];
        assert_eq!(judge(&evidence).class(), Class::AcceptStarvation, "of another listener");
        evidence.looks[1].accept_pauses = vec![([127, 0, 0, 1], 80).into()];
        assert_eq!(judge(&evidence).class(), Class::AcceptStarvation, "it ended 1 s before");
        evidence.looks[3].accept_pauses = vec![([127, 0, 0, 1], 80).into()];
        assert_eq!(judge(&evidence).class(), Class::Unknown);
    }

    #[test]
    fn a_loop_that_stands_still_explains_its_queue() {
        let mut evidence = queue(&[0, 100, 400, 700, 900]);
        assert_eq!(judge(&evidence).class(), Class::AcceptStarvation);
        evidence.looks[2].heart_late_ms = Some(STANDSTILL_MS - 1);
        assert_eq!(judge(&evidence).class(), Class::AcceptStarvation, "an iteration is long");
        evidence.looks[3].heart_late_ms = Some(STANDSTILL_MS);
        assert_eq!(judge(&evidence).class(), Class::Unknown);
    }

    #[test]
    fn a_late_probe_makes_it_certain() {
        let mut evidence = queue(&[0, 0, 0, 3, 5, 4]);
        let probe = r#"{"addr": "127.0.0.1:80", "at_ms": 1900, "took_ms": 500, "limit_ms": 500,
            "outcome": "NoByte", "silent": 1}"#;
        let probe: ProbeResult = serde_json::from_str(probe).unwrap();
        let elsewhere = ProbeResult { addr: ([127, 0, 0, 1], 81).into(), ..probe };
        evidence.looks[5].probe = Some(elsewhere);
        assert_eq!(judge(&evidence).class(), Class::Unknown, "of another listener");
        evidence.looks[5].probe = Some(probe);
        let verdict = judge(&evidence);
        let found = (verdict.class(), verdict.confidence());
        assert_eq!(found, (Class::AcceptStarvation, Confidence::Certain));
    }

    /// The loop stood still until 4 s, and the probe before that got no answer.
    #[test]
    fn a_probe_of_before_does_not_make_it_certain() {
        let confidence = |at_ms: u64, took_ms: u64| {
            let mut evidence = queue(&[0, 0, 0, 3, 5, 4]);
            evidence.looks.iter_mut().for_each(|look| look.at_ms += 4_000);
            let probe = format!(
                r#"{{"addr": "127.0.0.1:80", "at_ms": {at_ms}, "took_ms": {took_ms}, "limit_ms": 1000,
                    "outcome": "NoByte", "silent": 1}}"#
            );
            evidence.looks[5].probe = Some(serde_json::from_str(&probe).unwrap());
            judge(&evidence).confidence()
        };
        assert_eq!(confidence(5_500, 1_000), Confidence::Certain);
        assert_eq!(confidence(3_000, 3_500), Confidence::Certain, "1 s of it was in this queue");
        assert_eq!(confidence(3_000, 3_000), Confidence::Possible, "a busy server");
        assert_eq!(confidence(1_000, 1_000), Confidence::Possible, "a busy server");
    }

    #[test]
    fn requests_that_nobody_reads_were_lost_unless_something_explains_them() {
        let mut evidence = looks([5, 5], [Some(0), Some(0)]);
        evidence.looks[1].never_served = Some(NEVER_SERVED_MIN);
        assert_eq!(judge(&evidence).class(), Class::LostAccept);
        evidence.late_ms = Some(60);
        assert!(!judge(&evidence).has(Class::LostAccept), "a stalled loop serves nobody");
        evidence.late_ms = None;
        evidence.looks[1].never_served = Some(NEVER_SERVED_MIN - 1);
        assert_eq!(judge(&evidence).class(), Class::Unknown);
    }
}

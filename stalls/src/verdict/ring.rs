//! io_uring: entries that the kernel does not get, completions that find no room.

use super::blocked::{blocked_log, blocked_loop};
use super::{Class, Confidence, Finding};
use crate::evidence::{Evidence, Ring};

/// How long nothing must have been submitted, in milliseconds from look to look.
const UNSUBMITTED_MS_MIN: u64 = 400;

/// Entries wait, and the kernel has taken none between two looks. A thread that is blocked submits none either: then
/// they are no finding.
pub(super) fn unsubmitted_entries(evidence: &Evidence) -> Option<Finding> {
    let (before, ring, apart_ms) = waiting_entries(evidence)?;
    let is_explained = |finding: Finding| finding.confidence != Confidence::Possible;
    if blocked_loop(evidence).is_some_and(is_explained) || blocked_log(evidence).is_some() {
        return None;
    }
    let operations: Vec<String> =
        ring.unsubmitted.iter().map(|(opcode, count)| format!("{count} {opcode}")).collect();
    Some(Finding {
        class: Class::UnsubmittedEntries,
        // A thread that is blocked or computes submits nothing either.
        confidence: if evidence.late_ms.is_some() { Confidence::Possible } else { Confidence::Certain },
        evidence: vec![format!(
            "Ring {} has {} entries that the kernel has not got ({}), {} of them for {apart_ms} ms or longer.",
            ring.descriptor,
            ring.unsubmitted_count(),
            operations.join(", "),
            before.unsubmitted_count(),
        )],
        cure: "The runtime submits when its thread parks, and a task that is always ready keeps it from that. Find the \
               task that yields in a loop and let it wait for something, or submit from it."
            .into(),
    })
}

/// A ring whose entries wait: how it was before, how it is, and the milliseconds between.
pub(super) fn waiting_entries(evidence: &Evidence) -> Option<(&Ring, &Ring, u64)> {
    let found = same_ring(evidence, |before, now| {
        before.unsubmitted_count() > 0
            && now.unsubmitted_count() > 0
            && before.sq_head == now.sq_head
    });
    found.filter(|(_, _, apart_ms)| *apart_ms >= UNSUBMITTED_MS_MIN)
}

/// Completions wait in the kernel because the queue has no room.
pub(super) fn completion_queue_overflow(evidence: &Evidence) -> Option<Finding> {
    let has_no_room = |ring: &Ring| ring.overflowed > 0 || ring.is_full;
    let (_, ring, apart_ms) =
        same_ring(evidence, |before, now| has_no_room(before) && has_no_room(now))?;
    let sentence = match ring.overflowed {
        0 => format!(
            "The completion queue of ring {} is full, and had no room {apart_ms} ms before.",
            ring.descriptor
        ),
        overflowed => format!(
            "Ring {} has {overflowed} completions that found no room in its queue, {apart_ms} ms after there were some \
             before.",
            ring.descriptor
        ),
    };
    Some(Finding {
        class: Class::CompletionQueueOverflow,
        confidence: if evidence.late_ms.is_some() {
            Confidence::Possible
        } else {
            Confidence::Likely
        },
        evidence: [sentence].into_iter().chain(unread_completions(evidence)).collect(),
        cure:
            "Use a larger completion queue (IORING_SETUP_CQSIZE), and read completions more often."
                .into(),
    })
}

/// The ring with most completions that its program has not read. A busy loop has some at any moment, so no class
/// follows from that: it is a further sentence of another finding.
pub(super) fn unread_completions(evidence: &Evidence) -> Option<String> {
    let ring = evidence.looks.last()?.rings.iter().max_by_key(|ring| ring.unread_count())?;
    (ring.unread_count() > 0).then(|| {
        format!(
            "Ring {} has {} completions that the program has not read, and {} operations that wait for readiness.",
            ring.descriptor,
            ring.unread_count(),
            ring.polls
        )
    })
}

/// A ring of the last look, how it was at the oldest look in a row for which `is_stuck` holds, and the time between.
fn same_ring(
    evidence: &Evidence,
    is_stuck: impl Fn(&Ring, &Ring) -> bool,
) -> Option<(&Ring, &Ring, u64)> {
    let (last, earlier) = evidence.looks.split_last()?;
    last.rings.iter().find_map(|ring| {
        // A look may not have the ring: somebody held its lock.
        let known = earlier.iter().rev().filter_map(|look| {
            let before = look.rings.iter().find(|it| it.descriptor == ring.descriptor)?;
            Some((before, last.at_ms.saturating_sub(look.at_ms)))
        });
        let stuck = known.take_while(|(before, _)| is_stuck(before, ring));
        stuck.last().map(|(before, apart_ms)| (before, ring, apart_ms))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Look;
    use crate::verdict::judge;

    /// The list of what found no room is at the end of a text that may be too long to be read.
    #[test]
    fn a_queue_that_stays_full_overflows() {
        let found = |is_full: [bool; 2]| {
            let look = |number: usize| {
                let ring = Ring { descriptor: 5, is_full: is_full[number], ..Ring::default() };
                Look { at_ms: 500 * number as u64, rings: vec![ring], ..Look::default() }
            };
            let verdict = judge(&Evidence { looks: vec![look(0), look(1)], ..Evidence::default() });
            (verdict.class(), verdict.confidence())
        };
        let overflow = Class::CompletionQueueOverflow;
        assert_eq!(found([true, true]), (overflow, Confidence::Likely));
        assert_eq!(found([false, true]).0, Class::Unknown);
        assert_eq!(found([true, false]).0, Class::Unknown);
    }
}

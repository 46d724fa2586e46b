//! Load alone: nothing is wrong, and more is to be done than fits the time.

use super::cpu::is_running;
use super::frames::{is_in_allocator, is_in_scheduler, is_in_socket_call, why_not_told};
use super::{Class, Confidence, Finding, ring};
use crate::evidence::{Evidence, Thread};

/// A stall that is shorter than this many thresholds may be load alone.
const THRESHOLDS_MAX: u64 = 4;

/// The same, if the program counts polls. A task that wakes itself is polled as often, and never lets the loop come to
/// its timers: what lasts longer is not called load.
const COUNTED_THRESHOLDS_MAX: u64 = 8;

/// Tasks that take longer in the mean, in microseconds, do not wait for each other alone: twice what the services of
/// `owned-io` may do in a poll.
const POLL_US_MAX: u64 = 100;

/// The loop polls task after task, and each takes its turn in a short time.
pub(super) fn overload(evidence: &Evidence) -> Option<Finding> {
    let thread = evidence.threads.iter().find(|thread| polls_many_tasks(evidence, thread))?;
    let (polls, ran_ms) = (thread.polls?, thread.ran_ms?);
    let polled_ms = polled_ms(evidence, thread)?;
    let mut sentences = vec![format!(
        "Thread {} ({}) ran for {ran_ms} ms of {} ms, and polled tasks {polls} times in {polled_ms} ms, each for at most \
         {} µs in the mean: no task keeps the loop, and many are ready.",
        thread.tid,
        thread.name,
        thread.window_ms,
        polled_ms.saturating_mul(1_000) / polls.max(1),
    )];
    sentences.extend(ring::unread_completions(evidence));
    Some(Finding {
        class: Class::Overload,
        confidence: Confidence::Likely,
        evidence: sentences,
        cure: "Use more worker threads, or serve fewer busy connections with each.".into(),
    })
}

/// Whether a stall may be load alone: the thread runs, the stall is short, and nothing shows that the thread stays in
/// one task. It polls many, it moves bytes, allocates, goes from task to task, or its stacks do not tell. With thousands
/// of ready connections, or new ones, one iteration of the loop takes that long, and no sample tells whether the
/// connections are different ones.
pub(super) fn may_be_load(evidence: &Evidence, thread: &Thread) -> bool {
    let may_change_task = |stack| {
        is_in_socket_call(stack) || is_in_allocator(stack) || is_in_scheduler(stack) == Some(true)
    };
    let is_told = || why_not_told(thread).is_none() && !thread.stacks.iter().any(may_change_task);
    polls_many_tasks(evidence, thread)
        || is_short(evidence) && is_running(evidence, thread) && !is_told()
}

/// Whether a stall is short enough to be overload.
pub(crate) fn may_be_overload(late_ms: u64, threshold_ms: u64) -> bool {
    late_ms < threshold_ms.saturating_mul(COUNTED_THRESHOLDS_MAX)
}

/// Whether the polls that the program counted say so, whatever the thread does at this moment.
fn polls_many_tasks(evidence: &Evidence, thread: &Thread) -> bool {
    let counted = || Some((thread.polls?, thread.ran_ms?, polled_ms(evidence, thread)?));
    let Some((polls, ran_ms, polled_ms)) = counted() else { return false };
    evidence.late_ms.is_some_and(|late_ms| may_be_overload(late_ms, evidence.threshold_ms))
        && ran_ms.saturating_mul(2) >= thread.window_ms
        && polls.saturating_mul(POLL_US_MAX) >= polled_ms.saturating_mul(1_000).max(1)
}

/// The time that the count of polls covers: none before the stall.
fn polled_ms(evidence: &Evidence, thread: &Thread) -> Option<u64> {
    Some(thread.window_ms.min(evidence.late_ms?))
}

fn is_short(evidence: &Evidence) -> bool {
    let limit_ms = evidence.threshold_ms.saturating_mul(THRESHOLDS_MAX);
    evidence.late_ms.is_some_and(|late_ms| late_ms < limit_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::judge;

    /// A thread that sends in each sample, in a task of the program.
    fn busy(late_ms: u64, window_ms: u64, polls: Option<u64>) -> Evidence {
        let stack = r#"{"by_signal": true, "is_complete": true, "frames": [
            {"address": 1, "function": "__send"}, {"address": 2, "function": "server::serve"},
            {"address": 3, "function": "tokio::runtime::task::raw::poll"}]}"#;
        let thread = format!(
            r#"{{"state": "R", "window_ms": {window_ms}, "ran_ms": {window_ms}, "waited_ms": 0,
                "system_ms": {window_ms}, "stacks": [{stack}, {stack}]}}"#
        );
        let text =
            format!(r#"{{"late_ms": {late_ms}, "threshold_ms": 50, "threads": [{thread}]}}"#);
        let mut evidence: Evidence = serde_json::from_str(&text).unwrap();
        evidence.threads[0].polls = polls;
        evidence
    }

    /// 12,000 connections that are ready take 110 to 235 ms.
    #[test]
    fn many_polls_are_overload() {
        for late_ms in [55, 110, 235, 399] {
            let polls = (late_ms - 25) * 100;
            let verdict = judge(&busy(late_ms, late_ms - 25, Some(polls)));
            let found: Vec<Class> = verdict.findings.iter().map(|finding| finding.class).collect();
            assert_eq!(found, [Class::Overload], "{late_ms}");
        }
    }

    /// The stall may be over when the thread is examined, so that its state is not known.
    #[test]
    fn polls_tell_without_a_state() {
        let mut evidence = busy(105, 80, Some(8_000));
        for state in [None, Some('S')] {
            evidence.threads[0].state = state;
            evidence.threads[0].stacks.clear();
            assert_eq!(judge(&evidence).class(), Class::Overload, "{state:?}");
        }
        (evidence.threads[0].state, evidence.threads[0].ran_ms) = (None, Some(39));
        assert_eq!(judge(&evidence).class(), Class::Unknown, "it did not run for most of the time");
    }

    #[test]
    fn few_polls_are_not() {
        for (late_ms, polls) in
            [(110, Some(2)), (110, None), (300, Some(2_000)), (400, Some(40_000))]
        {
            let verdict = judge(&busy(late_ms, late_ms - 25, polls));
            let class = if late_ms < 200 { Class::Unknown } else { Class::ConnectionOwnsWorker };
            assert_eq!(verdict.class(), class, "{late_ms} {polls:?}");
        }
    }

    /// The counters of the thread may be older than the stall. Those of polls are not.
    #[test]
    fn polls_are_those_of_the_stall() {
        for (polls, class) in [(10_000, Class::Overload), (1_000, Class::Unknown)] {
            assert_eq!(judge(&busy(110, 1_060, Some(polls))).class(), class, "{polls}");
        }
    }
}

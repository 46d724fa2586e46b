//! The thread runs, or is ready to run.

use super::frames::{culprit, is_in_scheduler, is_in_socket_call, why_not_told};
use super::load::may_be_load;
use super::{Class, Confidence, Finding};
use crate::evidence::{Evidence, Look, Thread};

/// What a thread did for this share of the time, in percent, or more is what it mostly did.
const MOSTLY_PERCENT: u64 = 50;

/// A thread that waited for a CPU for less of the stall, in percent, has another cause.
const WAITED_PERCENT_MIN: u64 = 20;

/// Whether a thread runs, and did for most of the time or much longer than the threshold.
pub(super) fn is_running(evidence: &Evidence, thread: &Thread) -> bool {
    let ran_long = thread.ran_ms.unwrap_or(0) >= evidence.threshold_ms.saturating_mul(4).max(1);
    thread.state == Some('R') && (share(thread.ran_ms, thread) >= MOSTLY_PERCENT || ran_long)
}

/// The scheduler's figures say that the thread was ready to run and got no CPU.
pub(super) fn waiting_for_cpu(evidence: &Evidence) -> Option<Finding> {
    let late_ms = evidence.late_ms?;
    let waits = |thread: &&Thread| waited_percent(thread, late_ms);
    let thread = evidence.threads.iter().max_by_key(waits)?;
    let (throttled_us, covered_ms) = difference(evidence, |look| look.throttled_us);
    let (steal_ticks, _) = difference(evidence, |look| look.steal_ticks);
    let is_throttled = (throttled_us / 1_000).saturating_mul(100)
        >= covered_ms.max(1).saturating_mul(MOSTLY_PERCENT);
    let (waited_ms, waited) = (waited_ms(thread, late_ms)?, waited_percent(thread, late_ms));
    let is_cause =
        late_ms.saturating_sub(waited_ms) < evidence.threshold_ms && waited >= WAITED_PERCENT_MIN;
    // The quota stops all threads of the cgroup, and its time is the sum over all CPUs: with 16 of them a twentieth of
    // each is most of the time.
    let is_stopped = is_throttled && waited >= WAITED_PERCENT_MIN;
    if waited < MOSTLY_PERCENT && !is_cause && !is_stopped {
        return None;
    }
    let mut sentences = vec![format!(
        "Thread {} ({}) was runnable and waited for a CPU for {} ms of {} ms, and ran for {} ms.",
        thread.tid, thread.name, thread.waited_ms?, thread.window_ms, thread.ran_ms?
    )];
    let mut cure = "Give the process more CPU: other programs use it, or this one has more busy threads than CPUs.";
    let throttled_ms = throttled_us / 1_000;
    if throttled_ms > 0 {
        sentences.push(format!(
            "The quota of its cgroup stopped its threads for {throttled_ms} ms, over all CPUs."
        ));
    }
    // Less cannot be most of what this thread waited.
    if throttled_ms.saturating_mul(2) >= waited_ms.max(1) {
        cure = "Raise the CPU quota of the cgroup (cpu.max), or use fewer threads.";
    }
    if steal_ticks > 0 {
        sentences.push(format!(
            "The hypervisor ran others for {} ms, over all CPUs.",
            steal_ticks.saturating_mul(10)
        ));
    }
    let confidence = if waited >= 80 { Confidence::Certain } else { Confidence::Likely };
    Some(Finding {
        class: Class::WaitingForCpu,
        confidence,
        evidence: sentences,
        cure: cure.into(),
    })
}

/// How long a thread waited for a CPU within the stall, at least: the window may begin up to a second before, and the
/// waits may have been then.
fn waited_ms(thread: &Thread, late_ms: u64) -> Option<u64> {
    let before_ms = thread.window_ms.saturating_sub(late_ms);
    Some(thread.waited_ms?.saturating_sub(before_ms))
}

/// That in percent of the stall, or of the part of it that the window covers.
fn waited_percent(thread: &Thread, late_ms: u64) -> u64 {
    let waited_ms = waited_ms(thread, late_ms).unwrap_or(0);
    waited_ms.saturating_mul(100) / thread.window_ms.min(late_ms).max(1)
}

/// The stacks show the scheduler at work, and the heart does not beat: the scheduler always finds a ready task.
pub(super) fn self_waking_task(evidence: &Evidence) -> Option<Finding> {
    evidence.late_ms?;
    let thread = evidence.threads.iter().find(|thread| is_running(evidence, thread))?;
    let in_scheduler = count_in_scheduler(thread);
    if in_scheduler == 0 || may_be_load(evidence, thread) || moves_bytes(thread) {
        return None;
    }
    let mut sentences = vec![format!(
        "Thread {} ({}) ran for {} ms of {} ms, and its scheduler was running in {in_scheduler} of {} samples, so it \
         goes from task to task and never comes to its timers.",
        thread.tid,
        thread.name,
        thread.ran_ms?,
        thread.window_ms,
        thread.stacks.len()
    )];
    if let Some(frame) = thread.stacks.iter().find_map(culprit) {
        sentences.push(format!("One of the tasks is in {frame}."));
    }
    Some(Finding {
        class: Class::SelfWakingTask,
        confidence: if in_scheduler * 2 > thread.stacks.len() { Confidence::Certain } else { Confidence::Likely },
        evidence: sentences,
        cure: "Find the task that wakes itself or yields in a loop, and let it wait for something or sleep.".into(),
    })
}

/// The thread moves bytes of sockets all the time.
pub(super) fn connection_owns_worker(evidence: &Evidence) -> Option<Finding> {
    evidence.late_ms?;
    let thread = evidence.threads.iter().find(|thread| is_running(evidence, thread))?;
    let in_call = count_in_socket_call(thread);
    let in_scheduler = count_in_scheduler(thread);
    if in_call == 0
        || in_scheduler > 0 && !moves_bytes(thread)
        || may_be_load(evidence, thread)
        || thread.system_ms.saturating_mul(100) < thread.window_ms.saturating_mul(15)
    {
        return None;
    }
    let within = thread
        .stacks
        .iter()
        .find_map(culprit)
        .map(|frame| format!(", within {frame}"))
        .unwrap_or_default();
    let not_told = why_not_told(thread);
    let came_back = match in_scheduler {
        _ if not_told.is_some() => String::new(),
        0 => ", and never came back to its scheduler".to_owned(),
        count => format!(", and was in its scheduler in {count} samples"),
    };
    let mut sentences = vec![format!(
        "Thread {} ({}) ran for {} ms of {} ms, {} ms of it in the kernel{came_back}; it moves bytes of a socket in \
         {in_call} of {} samples{within}.",
        thread.tid,
        thread.name,
        thread.ran_ms?,
        thread.window_ms,
        thread.system_ms,
        thread.stacks.len()
    )];
    let is_mostly = in_call * 2 >= thread.stacks.len();
    sentences.extend(not_told.map(|reason| {
        format!("{reason}, so it may also serve more sockets than it can, one after the other.")
    }));
    Some(Finding {
        class: Class::ConnectionOwnsWorker,
        confidence: if is_mostly && not_told.is_none() { Confidence::Likely } else { Confidence::Possible },
        evidence: sentences,
        cure: "Bound what one connection may do before its task yields: by bytes and messages, and not by calls."
            .into(),
    })
}

/// Whether it moves bytes of sockets in nearly all samples. Between two connections that both keep it, it comes to its
/// scheduler. A task that wakes itself and moves a few bytes each time spends more of its time there.
fn moves_bytes(thread: &Thread) -> bool {
    let samples = thread.stacks.len();
    count_in_socket_call(thread) * 2 >= samples && count_in_scheduler(thread) * 8 <= samples
}

fn count_in_socket_call(thread: &Thread) -> usize {
    thread.stacks.iter().filter(|stack| is_in_socket_call(stack)).count()
}

fn count_in_scheduler(thread: &Thread) -> usize {
    thread.stacks.iter().filter(|stack| is_in_scheduler(stack) == Some(true)).count()
}

/// The percentage of the window.
fn share(ms: Option<u64>, thread: &Thread) -> u64 {
    ms.unwrap_or(0).saturating_mul(100) / thread.window_ms.max(1)
}

/// How much a counter rose over the looks that have it, and how many milliseconds they cover.
pub(super) fn difference(
    evidence: &Evidence,
    counter: impl Fn(&Look) -> Option<u64>,
) -> (u64, u64) {
    let known = || evidence.looks.iter().filter_map(|look| Some((look.at_ms, counter(look)?)));
    let first_and_last = known().next().zip(known().last());
    first_and_last.map_or((0, 0), |((began, first), (ended, last))| {
        (last.saturating_sub(first), ended.saturating_sub(began))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::judge;

    /// A thread that receives in each sample.
    fn busy(late_ms: u64) -> Evidence {
        let stack = r#"{"by_signal": true, "is_complete": true, "frames": [
            {"address": 1, "function": "__recv"}, {"address": 2, "function": "server::serve"},
            {"address": 3, "function": "tokio::runtime::task::raw::poll"}]}"#;
        let thread = format!(
            r#"{{"state": "R", "window_ms": {late_ms}, "ran_ms": {late_ms}, "waited_ms": 0, "system_ms": {late_ms},
                "stacks": [{stack}, {stack}]}}"#
        );
        let text =
            format!(r#"{{"late_ms": {late_ms}, "threshold_ms": 100, "threads": [{thread}]}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_sample_in_the_scheduler_is_the_way_to_the_next_connection() {
        let mut evidence = busy(1_200);
        let scheduler = r#"{"by_signal": true, "is_complete": true, "frames": [
            {"address": 3, "function": "tokio::runtime::scheduler::current_thread::Context::run_task"}]}"#;
        let stacks = &mut evidence.threads[0].stacks;
        *stacks = [stacks.clone(), stacks.clone(), stacks.clone(), stacks.clone()].concat();
        stacks[3] = serde_json::from_str(scheduler).unwrap();
        assert_eq!(judge(&evidence).class(), Class::ConnectionOwnsWorker);
        evidence.threads[0].stacks[4] = evidence.threads[0].stacks[3].clone();
        assert_eq!(judge(&evidence).class(), Class::SelfWakingTask);
    }

    /// The counters before the stall may be a second old: then the waits may have been before it.
    #[test]
    fn waits_before_the_stall_do_not_explain_it() {
        let found = |window_ms: u64, waited_ms: u64| {
            let thread = format!(
                r#"{{"state": "S", "window_ms": {window_ms}, "ran_ms": 1, "waited_ms": {waited_ms},
                    "syscall": {{"number": 0, "name": "read", "first_argument": 9, "sp": 0, "pc": 0}}}}"#
            );
            let text = format!(r#"{{"late_ms": 60, "threshold_ms": 50, "threads": [{thread}]}}"#);
            let verdict = judge(&serde_json::from_str(&text).unwrap());
            (verdict.class(), verdict.has(Class::WaitingForCpu))
        };
        for waited_ms in [12, 48, 1_000] {
            assert_eq!(found(1_060, waited_ms), (Class::BlockedLoop, false), "{waited_ms}");
        }
        assert!(found(1_060, 1_050).1, "some of it was in the stall");
        assert_eq!(found(60, 48), (Class::WaitingForCpu, true));
    }

    /// The quota stopped each of 16 CPUs for a twentieth of the time.
    #[test]
    fn throttling_is_the_sum_over_all_cpus() {
        let found = |waited_ms: u64, throttled_ms: u64| {
            let mut evidence = busy(1_000);
            evidence.threads[0].waited_ms = Some(waited_ms);
            let look = |at_ms, us| Look { at_ms, throttled_us: Some(us), ..Look::default() };
            evidence.looks = vec![look(0, 7), look(4_000, 7 + throttled_ms * 1_000)];
            let found = judge(&evidence).findings;
            found.into_iter().find(|it| it.class == Class::WaitingForCpu).map(|it| it.cure)
        };
        assert_eq!(found(10, 16 * 200), None, "1 % of the stall");
        assert!(found(200, 16 * 200).unwrap().contains("quota"));
        assert!(found(600, 16 * 200).unwrap().contains("quota"));
        assert!(found(600, 1).unwrap().contains("other programs"), "it was stopped for 1 ms");
        assert_eq!(found(200, 1), None);
    }

    /// 16,000 connections that are ready take 120 ms, and no connection owns the worker.
    #[test]
    fn a_short_stall_of_a_busy_thread_may_be_load() {
        let verdict = judge(&busy(120));
        assert_eq!(verdict.class(), Class::Unknown);
        assert!(verdict.findings[0].evidence.iter().any(|it| it.contains("load")), "{verdict:?}");
        assert_eq!(judge(&busy(400)).class(), Class::ConnectionOwnsWorker);
    }

    /// 3,000 connections that were accepted in one iteration have a buffer each.
    #[test]
    fn a_short_stall_of_a_thread_that_allocates_may_be_load() {
        let found = |late_ms, function: &str| {
            let mut evidence = busy(late_ms);
            for stack in &mut evidence.threads[0].stacks {
                stack.frames[0].function = Some(function.to_owned());
            }
            judge(&evidence).class()
        };
        for function in ["calloc", "__rustc::__rdl_alloc_zeroed"] {
            assert_eq!(found(120, function), Class::Unknown, "{function}");
            assert_eq!(found(400, function), Class::BlockedLoop, "{function}");
        }
        assert_eq!(found(120, "shop::sort"), Class::BlockedLoop);
    }

    /// A loop of a runtime that the detector does not know, whose iteration takes 120 ms, is no false alarm. A stripped
    /// program has names of the C library alone.
    #[test]
    fn what_runs_is_not_known_without_a_scheduler() {
        let found = |late_ms, names: [Option<&str>; 2]| {
            let mut evidence = busy(late_ms);
            for stack in &mut evidence.threads[0].stacks {
                stack.frames.truncate(names.len()); // without the scheduler
                for (frame, name) in stack.frames.iter_mut().zip(names) {
                    frame.function = name.map(str::to_owned);
                }
            }
            let verdict = judge(&evidence);
            (verdict.class(), verdict.confidence())
        };
        for names in [[None; 2], [Some("__recv"), None], [Some("shop::sort"), Some("shop::run")]] {
            let unknown = (Class::Unknown, Confidence::Possible);
            assert_eq!(found(120, names), unknown, "{names:?}");
            let class = match names[0] {
                Some("__recv") => Class::ConnectionOwnsWorker,
                _ => Class::BlockedLoop,
            };
            assert_eq!(found(400, names), (class, Confidence::Possible), "{names:?}");
        }
    }
}

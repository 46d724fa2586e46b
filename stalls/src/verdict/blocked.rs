//! The thread is blocked, or computes for long.

use std::cmp::Reverse;

use super::cpu::{difference, is_running};
use super::frames::{
    culprit, has_function, is_in_scheduler, is_task_within, location, why_not_told,
};
use super::{Class, Confidence, Finding};
use crate::evidence::{Evidence, Thread};

/// System calls in which runtimes wait for events.
const WAITS: [&str; 4] = ["epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter"];

/// System calls in which a task waits for a lock or a peer, and some runtimes for events. Only a stack tells which.
const PARKS: [&str; 6] = ["futex", "poll", "ppoll", "select", "pselect6", "restart_syscall"];

/// What writes logs.
const LOGS: [&str; 5] =
    ["std::io::stdio", "tracing_subscriber::", "env_logger::", "log::__private_api", "slog::"];

/// From which share of the time on that some task of the machine waits for memory, a thread with page faults does, in
/// percent.
const PRESSURE_PERCENT_MIN: u64 = 10;

/// Whether a thread waits for events. That is no stall.
fn is_waiting_for_events(thread: &Thread) -> bool {
    let name = thread.syscall.as_ref().and_then(|call| call.name.as_deref());
    let in_scheduler = || thread.stacks.iter().any(|stack| is_in_scheduler(stack) == Some(true));
    // A stack without names tells nothing.
    let in_program = || thread.stacks.iter().any(|stack| culprit(stack).is_some());
    let is_wait = name.is_some_and(|name| WAITS.contains(&name));
    thread.is_parked
        || is_wait && (in_scheduler() || !in_program())
        || name == Some("ppoll") && in_scheduler()
}

/// The threads that may explain the stall: blocked, and not waiting for events.
fn blocked_threads(evidence: &Evidence) -> impl Iterator<Item = &Thread> {
    let is_blocked = |thread: &&Thread| {
        matches!(thread.state, Some('S' | 'D'))
            && thread.recently_ran_percent.is_none_or(|percent| percent < 50)
            && !is_waiting_for_events(thread)
    };
    evidence.threads.iter().filter(is_blocked)
}

/// Blocked in a write to a standard stream, or waiting for the lock of one. Of a pool, one thread may be.
pub(super) fn blocked_log(evidence: &Evidence) -> Option<Finding> {
    evidence.late_ms?;
    // Of threads that are equally sure, the first.
    blocked_threads(evidence).filter_map(blocking_log).min_by_key(|it| Reverse(it.confidence))
}

fn blocking_log(thread: &Thread) -> Option<Finding> {
    let call = thread.syscall.as_ref();
    let name = call.and_then(|call| call.name.as_deref());
    let is_write = matches!(name, Some("write" | "writev"));
    let is_standard = is_write && call.is_some_and(|call| matches!(call.first_argument, 1 | 2));
    let is_logging = thread.stacks.iter().any(|stack| is_task_within(stack, &LOGS));
    let confidence = match (is_standard, is_logging, is_write) {
        (true, ..) => Confidence::Certain,
        (false, true, true) => Confidence::Likely,
        (false, true, false) if name == Some("futex") => Confidence::Likely,
        _ => return None,
    };
    let stream = match call.map(|call| call.first_argument) {
        Some(1) if is_write => "standard output",
        Some(2) if is_write => "standard error",
        _ => "its log",
    };
    Some(Finding {
        class: Class::BlockedLog,
        confidence,
        evidence: vec![format!(
            "Thread {} ({}) is blocked on {stream}{}: whoever should read it does not.",
            thread.tid,
            thread.name,
            location(thread).map(|at| format!(", {at}")).unwrap_or_default()
        )],
        cure: "Write the log from a thread of its own through a bounded queue that drops lines (for example \
               tracing-appender's non_blocking), or let something read the pipe."
            .into(),
    })
}

/// Blocked in a page fault that reads from a disk.
pub(super) fn memory_pressure(evidence: &Evidence) -> Option<Finding> {
    evidence.late_ms?;
    let waits = |thread| Some((waits_for_memory(evidence, thread)?, thread));
    // Of threads that are equally sure, the first.
    let waiting = evidence.threads.iter().filter_map(waits);
    let (confidence, thread) = waiting.min_by_key(|(confidence, _)| Reverse(*confidence))?;
    let (pressure_us, covered_ms) = difference(evidence, |look| look.memory_pressure_us);
    let is_in_fault = is_in_fault(thread);
    let mut sentences = vec![format!(
        "Thread {} ({}) had {} page faults that read from a disk{}; tasks waited for memory for {} ms \
         of {covered_ms} ms.",
        thread.tid,
        thread.name,
        thread.major_faults,
        if is_in_fault { ", and is in a page fault now" } else { "" },
        pressure_us / 1_000,
    )];
    if confidence == Confidence::Possible {
        sentences.push(
            "It may also wait for another thread, which forks or changes the mappings of the process.".into(),
        );
    }
    Some(Finding {
        class: Class::MemoryPressure,
        confidence,
        evidence: sentences,
        cure: "Give the machine or the cgroup more memory, lock what must be fast (mlock), or use less.".into(),
    })
}

/// How sure it is that a thread waits for memory. A page fault alone does not tell: it also waits for whoever changes
/// the mappings of the process.
fn waits_for_memory(evidence: &Evidence, thread: &Thread) -> Option<Confidence> {
    if is_running(evidence, thread) {
        return None;
    }
    let (pressure_us, covered_ms) = difference(evidence, |look| look.memory_pressure_us);
    let is_pressed =
        pressure_us / 10 > covered_ms.saturating_mul(PRESSURE_PERCENT_MIN) && covered_ms > 0;
    match (is_in_fault(thread), thread.major_faults > 0, is_pressed) {
        (true, true, true) => Some(Confidence::Certain),
        (true, true, false) | (true, false, true) | (false, true, true) => Some(Confidence::Likely),
        (true, false, false) => Some(Confidence::Possible),
        (false, ..) => None,
    }
}

/// Whether a thread is blocked outside of a system call.
fn is_in_fault(thread: &Thread) -> bool {
    thread.syscall.as_ref().is_some_and(|call| call.number < 0)
}

/// A blocking call, or a long computation.
pub(super) fn blocked_loop(evidence: &Evidence) -> Option<Finding> {
    evidence.late_ms?;
    // The other classes say more of such a thread.
    let is_explained = |thread: &Thread| {
        blocking_log(thread).is_some()
            || is_in_fault(thread)
                && waits_for_memory(evidence, thread) > Some(Confidence::Possible)
    };
    let blocked = blocked_threads(evidence).filter(|thread| !is_explained(thread));
    // Of threads that are equally sure, the first.
    let found = blocked.map(blocking_call).min_by_key(|found| Reverse(found.confidence));
    found.or_else(|| computation(evidence))
}

fn blocking_call(thread: &Thread) -> Finding {
    let at = location(thread);
    let mut sentences = vec![format!(
        "Thread {} ({}) is blocked{}; it ran for {} ms of {} ms.",
        thread.tid,
        thread.name,
        at.as_ref().map(|at| format!(" {at}")).unwrap_or_default(),
        thread.ran_ms.unwrap_or(0),
        thread.window_ms
    )];
    let name = thread.syscall.as_ref().and_then(|call| call.name.as_deref());
    let may_park = name.is_some_and(|name| PARKS.contains(&name) || WAITS.contains(&name));
    let in_task = || thread.stacks.iter().any(|stack| is_in_scheduler(stack) == Some(false));
    let at_lock = || thread.stacks.iter().any(|stack| has_function(stack, "lock_contended"));
    let confidence = if may_park && !in_task() && !at_lock() {
        let why = why_not_told(thread).unwrap_or("Its stack shows the scheduler alone");
        sentences.push(format!("{why}, so it may also wait for events that do not come."));
        Confidence::Possible
    } else if thread.syscall.is_some() || in_task() {
        Confidence::Certain
    } else {
        sentences.push("Its system call is not known, so it may also wait for events.".into());
        Confidence::Possible
    };
    Finding {
        class: Class::BlockedLoop,
        confidence,
        evidence: sentences,
        cure: "Move the call to a thread for blocking work (spawn_blocking), or use its asynchronous form.".into(),
    }
}

fn computation(evidence: &Evidence) -> Option<Finding> {
    let thread = evidence.threads.iter().find(|thread| is_running(evidence, thread))?;
    let is_loop = super::cpu::self_waking_task(evidence).is_some();
    let is_socket = super::cpu::connection_owns_worker(evidence).is_some();
    if is_loop || is_socket || super::load::may_be_load(evidence, thread) {
        return None;
    }
    let not_told = why_not_told(thread);
    let mut sentences = vec![format!(
        "Thread {} ({}) {}: it ran for {} ms of {} ms{}.",
        thread.tid,
        thread.name,
        if not_told.is_some() { "runs" } else { "computes" },
        thread.ran_ms?,
        thread.window_ms,
        location(thread).map(|at| format!(", and is {at}")).unwrap_or_default()
    )];
    let mut cure = "Move the computation to a thread for blocking work (spawn_blocking), or divide it and yield \
                    between the parts."
        .to_owned();
    if let Some(reason) = not_told {
        let others = "a task may wake itself, or there is more load than it can serve";
        sentences.push(format!("{reason}, so it may compute, {others}."));
        cure.insert_str(0, "Keep the program's symbols, and Config::signal, to see what it does. ");
    }
    let in_task = thread.stacks.iter().filter(|stack| is_in_scheduler(stack) == Some(false));
    Some(Finding {
        class: Class::BlockedLoop,
        confidence: match in_task.count() {
            0 => Confidence::Possible,
            1 => Confidence::Likely,
            _ => Confidence::Certain,
        },
        evidence: sentences,
        cure,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::verdict::judge;

    /// A thread that is blocked in a system call, or in a page fault (-1), and its page faults from a disk so far.
    fn blocked_in(call: i64, major_faults: u64) -> Value {
        let name = (call == 0).then_some("read");
        let syscall = json!({"number": call, "name": name, "first_argument": 9, "sp": 0, "pc": 0});
        json!({"state": "S", "window_ms": 60, "ran_ms": 0, "waited_ms": 0, "major_faults": major_faults,
            "syscall": syscall})
    }

    /// What is found if tasks of the machine waited for memory for so long within the 4 s of the looks.
    fn found(threads: &[Value], pressure_ms: u64) -> Vec<(Class, Confidence)> {
        let look = |at_ms: u64, us: u64| json!({"at_ms": at_ms, "memory_pressure_us": us});
        let looks = json!([look(0, 5_000), look(4_000, 5_000 + pressure_ms * 1_000)]);
        let evidence =
            json!({"late_ms": 60, "threshold_ms": 50, "threads": threads, "looks": looks});
        let verdict = judge(&serde_json::from_value(evidence).unwrap());
        verdict.findings.iter().map(|finding| (finding.class, finding.confidence)).collect()
    }

    const BLOCKED: (Class, Confidence) = (Class::BlockedLoop, Confidence::Certain);

    fn memory(confidence: Confidence) -> (Class, Confidence) {
        (Class::MemoryPressure, confidence)
    }

    /// Others may be blocked in other calls.
    #[test]
    fn a_thread_of_a_pool_that_is_blocked_on_its_log() {
        let mut log = blocked_in(1, 0);
        (log["syscall"]["name"], log["syscall"]["first_argument"]) = (json!("write"), json!(2));
        let both = [(Class::BlockedLog, Confidence::Certain), BLOCKED];
        assert_eq!(found(&[log.clone(), blocked_in(0, 0)], 0), both);
        assert_eq!(found(&[blocked_in(0, 0), log], 0), both);
    }

    #[test]
    fn a_page_fault_before_does_not_explain_a_blocking_call() {
        let call = [blocked_in(0, 1)];
        assert_eq!(found(&call, 7), [BLOCKED], "others waited for memory for 7 ms of 4 s");
        assert_eq!(found(&call, 800), [BLOCKED, memory(Confidence::Likely)]);
        assert_eq!(found(&[blocked_in(0, 0)], 800), [BLOCKED]);
    }

    /// It may also wait for the lock of the mappings, which a thread that forks holds.
    #[test]
    fn a_page_fault_alone_is_no_lack_of_memory() {
        let alone = [BLOCKED, memory(Confidence::Possible)];
        assert_eq!(found(&[blocked_in(-1, 0)], 0), alone);
        assert_eq!(found(&[blocked_in(-1, 0)], 800), [memory(Confidence::Likely)]);
        assert_eq!(found(&[blocked_in(-1, 3)], 0), [memory(Confidence::Likely)]);
        assert_eq!(found(&[blocked_in(-1, 3)], 800), [memory(Confidence::Certain)]);
    }

    #[test]
    fn a_thread_that_waits_for_memory_does_not_explain_another() {
        let both = [memory(Confidence::Certain), BLOCKED];
        assert_eq!(found(&[blocked_in(-1, 3), blocked_in(0, 0)], 800), both);
        assert_eq!(found(&[blocked_in(0, 1), blocked_in(-1, 3)], 800), both);
    }
}

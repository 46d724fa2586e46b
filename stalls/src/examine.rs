//! [`Examiner`]: a thread during a stall, from its files in /proc and its stack.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use crate::evidence::{Syscall, Thread};
use crate::proc::thread::{
    Stat, is_safe_to_interrupt, parse_kernel_stack, parse_schedstat, parse_stat, parse_syscall,
};
use crate::stack::{Stack, Stacks, ThreadRef};

/// How many stacks of a running thread are taken at once, and how far apart. Equal stacks are a long computation,
/// different ones a loop.
const SAMPLES: usize = 4;
const BETWEEN_SAMPLES: Duration = Duration::from_millis(2);
/// A blocked thread whose stack has fewer frames than this without its other registers is interrupted, if it can be.
const FRAMES_ENOUGH: usize = 8;
const TICK_MS: u64 = 10; // USER_HZ is 100 wherever Rust runs on Linux

/// The counters of a thread at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Baseline {
    at: Instant,
    stat: Option<Stat>,
    schedstat: Option<(u64, u64)>,
}

impl Baseline {
    pub(crate) fn of(thread: &ThreadRef) -> Self {
        let schedstat = file(thread, "schedstat").ok().and_then(|text| parse_schedstat(&text));
        let stat = file(thread, "stat").ok().and_then(|text| parse_stat(&text));
        Self { at: Instant::now(), stat, schedstat }
    }

    /// Whether the thread sleeps, and how long it has run since it began, in nanoseconds.
    pub(crate) fn sleeping(&self) -> Option<u64> {
        let is_asleep = self.stat.as_ref().is_some_and(|stat| matches!(stat.state, 'S' | 'D'));
        self.schedstat.map(|(ran, _)| ran).filter(|_| is_asleep)
    }

    /// Whether the number of the thread has passed to another thread.
    fn is_of_another(&self, thread: &ThreadRef) -> bool {
        let start_ticks = self.stat.as_ref().map(|stat| stat.start_ticks);
        thread.start_ticks != 0 && start_ticks.is_some_and(|ticks| ticks != thread.start_ticks)
    }
}

/// Examines threads. Belongs to the thread of the watchdog.
pub(crate) struct Examiner {
    stacks: Stacks,
    signal: Option<i32>,
}

impl Examiner {
    pub(crate) fn new(signal: Option<i32>, symbols: bool) -> Self {
        Self { stacks: Stacks::new(symbols), signal }
    }

    /// Why no thread can be interrupted.
    pub(crate) fn unseen(&self) -> Option<String> {
        let error = crate::stack::signal::install(self.signal?).err()?;
        Some(format!("stacks of running threads: {error}"))
    }

    /// The state of `thread` now, and what it has done since `baseline`.
    pub(crate) fn examine(
        &mut self,
        thread: &ThreadRef,
        baseline: &Baseline,
        unseen: &mut Vec<String>,
    ) -> Thread {
        let now = Baseline::of(thread);
        let mut found = Thread { tid: thread.tid, ..Thread::default() };
        if now.is_of_another(thread) || now.stat.is_none() {
            note(unseen, format!("thread {}: it has ended, or /proc does not show it", thread.tid));
            return found;
        }
        found.window_ms = (now.at - baseline.at).as_millis() as u64;
        if let (Some(now), Some(before)) = (now.schedstat, baseline.schedstat) {
            found.ran_ms = Some(now.0.saturating_sub(before.0) / 1_000_000);
            found.waited_ms = Some(now.1.saturating_sub(before.1) / 1_000_000);
        } else {
            note(unseen, "time on a CPU: no schedstat".into());
        }
        if let Some(stat) = &now.stat {
            let before = baseline.stat.clone().unwrap_or_default();
            found.name.clone_from(&stat.name);
            found.state = Some(stat.state);
            found.system_ms = stat.system_ticks.saturating_sub(before.system_ticks) * TICK_MS;
            found.minor_faults = stat.minor_faults.saturating_sub(before.minor_faults);
            found.major_faults = stat.major_faults.saturating_sub(before.major_faults);
        }
        if found.state != Some('R') {
            match file(thread, "syscall") {
                Ok(text) => found.syscall = parse_syscall(&text),
                Err(error) => note(unseen, format!("system calls: {error}")),
            }
            let wchan = file(thread, "wchan").unwrap_or_default();
            found.wchan = Some(wchan).filter(|wchan| !wchan.is_empty() && wchan != "0");
            match file(thread, "stack") {
                Ok(text) => found.kernel_stack = parse_kernel_stack(&text),
                Err(error) => note(unseen, format!("stacks in the kernel: {error}")),
            }
        }
        found.stacks = self.take_stacks(thread, found.syscall.as_ref(), unseen);
        std::thread::sleep(BETWEEN_SAMPLES);
        let after = Baseline::of(thread);
        let window_ns = (after.at - now.at).as_nanos().max(1) as u64;
        let ran_ns = after
            .schedstat
            .zip(now.schedstat)
            .map(|(after, before)| after.0.saturating_sub(before.0));
        found.recently_ran_percent = ran_ns.map(|ran_ns| (ran_ns * 100 / window_ns).min(100));
        found
    }

    fn take_stacks(
        &mut self,
        thread: &ThreadRef,
        syscall: Option<&Syscall>,
        unseen: &mut Vec<String>,
    ) -> Vec<Stack> {
        let mut stacks = Vec::new();
        if let Some(syscall) = syscall {
            match self.stacks.of_blocked(syscall.pc, syscall.sp) {
                Ok(stack) => stacks.push(stack),
                Err(error) => note(unseen, format!("stacks of blocked threads: {error}")),
            }
            let is_enough = stacks.iter().any(|stack| stack.frames.len() >= FRAMES_ENOUGH);
            if is_enough || !syscall.name.as_deref().is_some_and(is_safe_to_interrupt) {
                return stacks;
            }
        }
        let Some(signal) = self.signal else {
            note(unseen, "stacks of running threads: no signal is configured".into());
            return stacks;
        };
        let samples = if syscall.is_some() { 1 } else { SAMPLES };
        for sample in 0..samples {
            if sample > 0 {
                std::thread::sleep(BETWEEN_SAMPLES);
            }
            match self.stacks.by_signal(signal, thread) {
                Ok(stack) => stacks.push(stack),
                Err(error) => {
                    note(unseen, format!("stack of thread {}: {error}", thread.tid));
                    break;
                }
            }
        }
        stacks
    }
}

fn file(thread: &ThreadRef, name: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/self/task/{}/{name}", thread.tid))
}

/// Adds what cannot be seen, once.
fn note(unseen: &mut Vec<String>, reason: String) {
    if !unseen.contains(&reason) {
        unseen.push(reason);
    }
}

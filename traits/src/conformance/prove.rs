//! Runs a case on its own thread, so that a hang is a failure too, and reports why it failed.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::fs;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::Panicked;

/// The time limit of a case. After it, the case counts as hung. Most cases take milliseconds. The longest
/// transfers a gibibyte in an unoptimised build on a busy machine.
pub(super) const CASE_TAKES_MAX: Duration = Duration::from_secs(if cfg!(miri) { 900 } else { 120 });

/// Runs `prove` on its own thread.
///
/// # Errors
/// The reason of the failure: what was expected and seen, then the location, then a backtrace if backtraces are
/// enabled. After a hang the thread keeps running.
pub(super) fn prove<C: Clone + Send + 'static>(
    config: &C,
    prove: impl FnOnce(&C) + Send + 'static,
) -> Result<(), String> {
    install_panic_hook();
    let (config, progress) = (config.clone(), Arc::<Progress>::default());
    let (done, outcome) = mpsc::channel();
    let watched = Arc::clone(&progress);
    let thread = thread::spawn(move || {
        if !cfg!(miri) {
            watched.lock().thread = fs::read_link("/proc/thread-self").ok();
        }
        PROGRESS.set(Some(Arc::clone(&watched)));
        let outcome = catch_unwind(AssertUnwindSafe(|| prove(&config)));
        let outcome = outcome.map_err(|payload| {
            format!("{}{}", Panicked::new(payload).message(), watched.lock().last_panic)
        });
        let _ = done.send(outcome); // fails after a hang: the receiver is gone
    });
    let Ok(outcome) = outcome.recv_timeout(CASE_TAKES_MAX) else {
        let state = progress.lock();
        let cpu = state.thread.as_deref().and_then(cpu_time);
        return Err(hang_report(&state.step, cpu));
    };
    if outcome.is_ok() {
        thread.join().map_err(|_| "the thread panicked after the case was done".to_owned())?;
    }
    outcome
}

/// The report of a hang. `cpu` is the CPU time of the thread of the case.
fn hang_report(step: &str, cpu: Option<Duration>) -> String {
    let mut report =
        format!("expected to be done in {CASE_TAKES_MAX:?}; seen: it waits for {step}");
    if let Some(cpu) = cpu {
        report += &format!(", and its thread has used {} s of CPU", cpu.as_secs());
        // A busy machine gives a loop a part of the time only. A thread that waits needs nearly none.
        if cpu > CASE_TAKES_MAX / 8 {
            report += " (a loop within a poll?)";
        }
    }
    report
}

/// The CPU time that a thread has used, if the system has procfs. `thread` is relative to `/proc`.
fn cpu_time(thread: &Path) -> Option<Duration> {
    let statistics = fs::read_to_string(Path::new("/proc").join(thread).join("schedstat")).ok()?;
    let nanos = statistics.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

/// Records what the case on this thread waits for from now on. The report of a hang names it.
pub(super) fn waits_for(step: &str) {
    PROGRESS.with_borrow(|progress| {
        if let Some(progress) = progress {
            step.clone_into(&mut progress.lock().step);
        }
    });
}

thread_local! {
    /// The progress of the case that this thread runs.
    static PROGRESS: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Progress(Mutex<State>);

#[derive(Default)]
struct State {
    step: String,
    /// The location of the last panic. Earlier panics were caught: cases panic on purpose.
    last_panic: String,
    /// The directory of the thread within procfs.
    thread: Option<PathBuf>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Suppresses the output of panics on the threads of the cases. Caught panics need no report, and [`prove`]
/// reports the last one with its cause first.
fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !record_panic(info) {
                previous(info);
            }
        }));
    });
}

/// Records the panic if this is the thread of a case. Returns whether it is.
fn record_panic(info: &PanicHookInfo<'_>) -> bool {
    let recorded = PROGRESS.try_with(|progress| {
        let progress = progress.try_borrow().ok()?;
        let mut state = progress.as_ref()?.lock();
        state.last_panic = info.location().map_or_else(String::new, |at| format!("\n  at {at}"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            state.last_panic += &format!("\n{backtrace}");
        }
        Some(())
    });
    matches!(recorded, Ok(Some(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_reports_the_cpu_time_of_its_thread() {
        let thread = fs::read_link("/proc/thread-self").unwrap();
        assert!(cpu_time(&thread).is_some(), "the CPU time of {}", thread.display());

        let expected = "expected to be done in 120s; seen: it waits for the end";
        assert_eq!(hang_report("the end", None), expected);
        let idle = format!("{expected}, and its thread has used 1 s of CPU");
        assert_eq!(hang_report("the end", Some(Duration::from_secs(1))), idle);
        let busy =
            format!("{expected}, and its thread has used 120 s of CPU (a loop within a poll?)");
        assert_eq!(hang_report("the end", Some(CASE_TAKES_MAX)), busy);
    }
}

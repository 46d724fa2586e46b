//! Runs a case on its own thread, so that a hang is a failure too, and reports why it failed.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::Panicked;

/// The time limit of a case. After it, the case counts as hung. Most cases take milliseconds. The longest
/// transfers a gibibyte in an unoptimised build on a busy machine.
pub(super) const CASE_TAKES_MAX: Duration = Duration::from_secs(120);

/// Runs `prove` on its own thread.
///
/// # Errors
/// The reason of the failure: what was expected and seen, then the location, then a backtrace if backtraces are
/// enabled. After a hang the thread keeps running.
pub(super) fn prove<C: Clone + Send + 'static>(
    config: &C,
    prove: impl FnOnce(&C) + Send + 'static,
) -> Result<(), String> {
    watch_panics();
    let (config, progress) = (config.clone(), Arc::<Progress>::default());
    let (done, outcome) = mpsc::channel();
    let watched = Arc::clone(&progress);
    let thread = thread::spawn(move || {
        PROGRESS.set(Some(Arc::clone(&watched)));
        let outcome = catch_unwind(AssertUnwindSafe(|| prove(&config)));
        let outcome = outcome.map_err(|payload| {
            format!("{}{}", Panicked::new(payload).message(), watched.lock().last_panic)
        });
        let _ = done.send(outcome); // fails after a hang: the receiver is gone
    });
    let Ok(outcome) = outcome.recv_timeout(CASE_TAKES_MAX) else {
        let step = progress.lock().step.clone();
        return Err(format!(
            "expected to be done in {CASE_TAKES_MAX:?}; seen: it waits for {step}"
        ));
    };
    if outcome.is_ok() {
        thread.join().map_err(|_| "the thread panicked after the case was done".to_owned())?;
    }
    outcome
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
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Suppresses the output of panics on the threads of the cases. Caught panics need no report, and [`prove`]
/// reports the last one with its cause first.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !keep(info) {
                usual(info);
            }
        }));
    });
}

/// Records the panic if this is the thread of a case. Returns whether it is.
fn keep(info: &PanicHookInfo<'_>) -> bool {
    let kept = PROGRESS.try_with(|progress| {
        let progress = progress.try_borrow().ok()?;
        let mut state = progress.as_ref()?.lock();
        state.last_panic = info.location().map_or_else(String::new, |at| format!("\n  at {at}"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            state.last_panic += &format!("\n{backtrace}");
        }
        Some(())
    });
    matches!(kept, Ok(Some(())))
}

//! Running a case on a thread of its own, so that a hang is a failure too, and saying why it failed.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::Panicked;

/// How long a case may take, before it counts as hung. Most take milliseconds; the longest moves a
/// gibibyte in an unoptimised build on a busy machine.
pub(super) const CASE_TAKES_MAX: Duration = Duration::from_secs(120);

/// Runs `prove` on a thread of its own.
///
/// # Errors
/// Why it failed: what was expected and seen, then where, then a backtrace if there is to be one. After a
/// hang the thread is left behind.
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
        let _ = done.send(outcome); // nobody listens any more after a hang
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

/// Says what the case on this thread waits for from now on: for the report of a hang.
pub(super) fn waits_for(step: &str) {
    PROGRESS.with_borrow(|progress| {
        if let Some(progress) = progress {
            step.clone_into(&mut progress.lock().step);
        }
    });
}

thread_local! {
    /// That of the case which this thread runs.
    static PROGRESS: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Progress(Mutex<State>);

#[derive(Default)]
struct State {
    step: String,
    /// Where the last panic was. Earlier ones were caught: cases panic on purpose.
    last_panic: String,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the panics of the cases' threads to themselves: what is caught is no news, and the last one is
/// reported with its cause in front.
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

/// Whether the panic is that of a case's thread.
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

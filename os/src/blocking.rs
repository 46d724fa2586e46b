//! Closures that may block, on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use owned_io::Panicked;

/// Runs `f` on the process's pool for blocking closures (crate `blocking`: at most 500 threads,
/// which end when idle), from now on, polled or not.
///
/// The same for all backends: the runtimes' own pools range from none to one that a panic destroys.
///
/// # Errors
/// [`Panicked`] if `f` panics.
///
/// # Cancellation
/// Dropping the future abandons the result; an `f` that has not started never does.
pub fn spawn_blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, Panicked>> + 'static {
    let running = blocking::unblock(|| catch_unwind(AssertUnwindSafe(f)));
    async { running.await.map_err(Panicked::new) }
}

//! Closures that may block, on a pool of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use owned_io::Panicked;

/// Runs `f` on the process's pool for blocking closures. It is queued at once, even if the future is never
/// polled.
///
/// The pool is that of the crate `blocking`: at most 500 threads, which end when they are idle. All backends use
/// it, because some runtimes have no pool, and a panic destroys that of others.
///
/// # Errors
/// [`Panicked`] if `f` panics.
///
/// # Cancellation
/// Dropping the future abandons the result. An `f` that has not started never starts.
pub fn spawn_blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, Panicked>> + 'static {
    let running = blocking::unblock(|| catch_unwind(AssertUnwindSafe(f)));
    async { running.await.map_err(Panicked::new) }
}

//! Closures that may block, on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use owned_io::Panicked;

/// Runs `f` on the process's pool for blocking closures (crate `blocking`: at most 500 threads,
/// which end when idle).
///
/// The same for all backends: the runtimes' own pools range from none to one that a panic destroys.
///
/// # Errors
/// [`Panicked`] if `f` panics.
///
/// # Cancellation
/// Dropping the future abandons the result; an `f` that has not started never does.
pub async fn spawn_blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Panicked> {
    blocking::unblock(|| catch_unwind(AssertUnwindSafe(f))).await.map_err(Panicked::new)
}

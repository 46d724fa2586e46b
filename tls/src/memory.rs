//! Waiting for memory of the budget.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Context;
use std::time::{Duration, Instant};

use owned_io::{Clock, MemoryAccount, MemoryWait};

use crate::TlsError;
use crate::shared::Sleep;

/// The functions of a clock, so that a connection has no type parameter for its runtime.
#[derive(Clone, Copy)]
pub(crate) struct ClockFns {
    pub(crate) now: fn() -> Instant,
    /// `Duration::ZERO` lets other tasks run.
    pub(crate) sleep: fn(Duration) -> Sleep,
}

impl ClockFns {
    pub(crate) fn of<C: Clock>() -> Self {
        Self { now: C::now, sleep: |time| Box::pin(C::sleep(time)) }
    }
}

/// Waits until `is_granted` returns true, as long as `wait` allows. It is called again when memory was
/// returned, and whenever the task is polled. `poll` is called with each poll.
///
/// # Errors
/// [`TlsError::Evicted`] if the connection is evicted. [`TlsError::OutOfMemory`] if the wait took too long.
pub(crate) async fn until_granted(
    account: &MemoryAccount,
    clock: ClockFns,
    wait: MemoryWait,
    mut is_granted: impl FnMut() -> bool,
    mut poll: impl FnMut(&Context<'_>),
) -> Result<(), TlsError> {
    while !is_granted() {
        if account.is_evicted() {
            return Err(TlsError::Evicted);
        }
        let released = wait.begin(account, (clock.now)(), clock.sleep);
        let mut released = pin!(released.ok_or(TlsError::OutOfMemory)?);
        poll_fn(|cx| {
            poll(cx);
            released.as_mut().poll(cx)
        })
        .await;
    }
    Ok(())
}

//! Waiting for memory that a connection's budget does not have yet.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Context;
use std::time::{Duration, Instant};

use owned_io::{Clock, MemoryAccount, MemoryWait};

use crate::TlsError;
use crate::shared::Sleep;

/// The functions of a clock, so that a connection need not name its runtime.
#[derive(Clone, Copy)]
pub(crate) struct ClockFns {
    pub(crate) now: fn() -> Instant,
    /// With no time, it lets all others have their turn.
    pub(crate) sleep: fn(Duration) -> Sleep,
}

impl ClockFns {
    pub(crate) fn of<C: Clock>() -> Self {
        Self { now: C::now, sleep: |time| Box::pin(C::sleep(time)) }
    }
}

/// Tries until memory is granted: again whenever some was given back, or when the task is polled for
/// another reason. `poll` is called with each poll.
///
/// # Errors
/// [`TlsError::Evicted`], and [`TlsError::OutOfMemory`] after [`MemoryWait::ROUNDS_MAX`].
pub(crate) async fn until_granted(
    account: &MemoryAccount,
    clock: ClockFns,
    mut is_granted: impl FnMut() -> bool,
    mut poll: impl FnMut(&Context<'_>),
) -> Result<(), TlsError> {
    let waited = MemoryWait::default();
    while !is_granted() {
        if account.is_evicted() {
            return Err(TlsError::Evicted);
        }
        let released = waited.begin(account, (clock.now)(), clock.sleep);
        let mut released = pin!(released.ok_or(TlsError::OutOfMemory)?);
        poll_fn(|cx| {
            poll(cx);
            released.as_mut().poll(cx)
        })
        .await;
    }
    Ok(())
}

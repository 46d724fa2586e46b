//! Waiting for memory that a connection's budget does not have yet.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use owned_io::{MemoryAccount, MemoryBudget, Runtime};

use crate::TlsError;
use crate::shared::Sleep;

/// How often a connection that waits for memory has others give some up, before it fails: half a minute.
const WAIT_ROUNDS_MAX: u32 = 60;

/// The functions of a runtime, so that a connection need not name it.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) now: fn() -> Instant,
    /// With no time, it lets all others have their turn.
    pub(crate) sleep: fn(Duration) -> Sleep,
}

impl Clock {
    pub(crate) fn of<R: Runtime>() -> Self {
        Self { now: R::now, sleep: |time| Box::pin(R::sleep(time)) }
    }
}

/// Tries until memory is granted: again whenever some was given back, or when the task is polled for
/// another reason. Has others give theirs up each time that [`MemoryBudget::ROUND`] is over. `poll` is
/// called with each poll.
///
/// # Errors
/// [`TlsError::Evicted`], and [`TlsError::OutOfMemory`] after [`WAIT_ROUNDS_MAX`].
pub(crate) async fn until_granted(
    account: &MemoryAccount,
    clock: Clock,
    mut is_granted: impl FnMut() -> bool,
    mut poll: impl FnMut(&Context<'_>),
) -> Result<(), TlsError> {
    let mut since = (clock.now)();
    let mut rounds = 0;
    if !is_granted() {
        account.budget().relieve(since);
    }
    // Each turn but the last waits, for a round at most.
    while !is_granted() {
        let now = (clock.now)();
        if now.saturating_duration_since(since) >= MemoryBudget::ROUND {
            if rounds == WAIT_ROUNDS_MAX {
                return Err(TlsError::OutOfMemory);
            }
            (since, rounds) = (now, rounds + 1);
            account.budget().relieve(now);
        }
        if account.is_evicted() {
            return Err(TlsError::Evicted);
        }
        let waited = now.saturating_duration_since(since);
        let mut sleep = (clock.sleep)(MemoryBudget::ROUND.saturating_sub(waited));
        let mut was_polled = false;
        poll_fn(|cx| {
            poll(cx);
            if std::mem::replace(&mut was_polled, true) || account.is_evicted() {
                return Poll::Ready(());
            }
            account.wake_when_released(cx.waker());
            sleep.as_mut().poll(cx)
        })
        .await;
    }
    Ok(())
}

//! Waits with a time limit.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use owned_io::{Clock, Deadline, select};

use crate::engine::{Timers, Wait};

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// It did not have to wait.
    No,
    /// It waited, and ended in time.
    Yes,
    /// It waited too long, and was ended.
    TooLong,
}

/// A lazy timer: it may fire early, and then rearms. A deadline that moves away costs nothing, so a connection with
/// many requests sets it rarely.
pub(super) struct LazySleep {
    deadline: Deadline,
    /// What `deadline` is set for.
    armed: Option<Instant>,
}

impl LazySleep {
    pub(super) fn new() -> Self {
        Self { deadline: Deadline::new(), armed: None }
    }

    /// Waits until `deadline`.
    ///
    /// # Cancellation
    /// Safe.
    async fn until<C: Clock>(&mut self, deadline: Instant) {
        loop {
            let now = C::now();
            if now >= deadline {
                return;
            }
            poll_fn(|cx| {
                if self.armed.is_none_or(|fires_at| fires_at > deadline) {
                    self.armed = Some(deadline);
                    self.deadline.set(deadline.saturating_duration_since(now), cx.waker());
                }
                self.deadline.poll_passed(cx)
            })
            .await;
            self.armed = None;
        }
    }
}

impl fmt::Debug for LazySleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazySleep").field("fires_at", &self.armed).finish_non_exhaustive()
    }
}

/// Runs `operation`. If it waits longer than `timers` allow, calls `end`, which has to end it, and waits for that: a
/// polled operation is never dropped.
///
/// After a wait, the caller tells `timers` [how it ended](Timers::handle_wait_end).
///
/// # Cancellation
/// As for the operation.
pub(super) async fn within<C: Clock, T>(
    timers: &mut Timers,
    sleep: &mut LazySleep,
    wait: Wait,
    operation: impl Future<Output = T>,
    end: impl FnOnce(),
) -> (T, Waited) {
    let mut operation = pin!(operation);
    // Most operations do not wait, and need no clock and no timer.
    if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(operation.as_mut().poll(cx))).await {
        return (output, Waited::No);
    }
    let Some(deadline) = timers.handle_wait_start(wait, C::now()) else {
        return (operation.await, Waited::Yes);
    };
    let selected = select(operation.as_mut(), sleep.until::<C>(deadline)).await;
    if let Some(output) = selected.first {
        return (output, Waited::Yes);
    }
    end();
    (operation.await, Waited::TooLong)
}

//! Waits with a time limit.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use owned_io::{Clock, select};

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

type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// A lazy timer: it may fire early, and then rearms. A deadline that moves away costs nothing, so a connection with
/// many requests creates few sleeps.
#[derive(Default)]
pub(super) struct LazySleep {
    armed: Option<(Instant, Sleep)>,
}

impl LazySleep {
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
            if self.armed.as_ref().is_none_or(|(fires_at, _)| *fires_at > deadline) {
                let sleep = C::sleep(deadline.saturating_duration_since(now));
                self.armed = Some((deadline, Box::pin(sleep)));
            }
            if let Some((_, sleep)) = &mut self.armed {
                sleep.await;
            }
            self.armed = None;
        }
    }
}

impl fmt::Debug for LazySleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deadline = self.armed.as_ref().map(|(fires_at, _)| fires_at);
        f.debug_struct("LazySleep").field("fires_at", &deadline).finish_non_exhaustive()
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

//! [`LazyTimer`]: the timer of one half of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;

use owned_io::backend::Direction;

use super::shared::{Shared, Sleep};
use crate::ProtocolError;
use crate::engine::State;

/// A lazy timer: it may fire early, and then rearms. Messages do not reset it, and nothing reads
/// the clock or polls the sleep before it fires.
pub(super) struct LazyTimer {
    direction: Direction,
    armed: Option<(Instant, Sleep)>,
    /// Whether `armed` fires no later than the next known deadline.
    is_current: bool,
    /// Whether a deadline has passed and the connection was ended.
    has_timed_out: bool,
    timer_waker: Arc<TimerWaker>,
    /// Wakes `timer_waker`.
    waker: Waker,
}

/// Wakes the task that waits with the timer, and records that the sleep has ended.
struct TimerWaker {
    waker: Waker,
    /// Whether the sleep has ended since the last call of [`has_fired`](Self::has_fired).
    has_fired: AtomicBool,
}

impl LazyTimer {
    /// Creates a timer that wakes `waker`.
    pub(super) fn new(direction: Direction, waker: Waker) -> Self {
        let timer_waker = Arc::new(TimerWaker { waker, has_fired: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&timer_waker));
        Self { direction, armed: None, is_current: false, has_timed_out: false, timer_waker, waker }
    }

    /// A deadline may have moved to an earlier time. The next poll computes it again.
    pub(super) const fn recheck(&mut self) {
        self.is_current = false;
    }

    /// There is a deadline at `due`. Returns whether the timer would fire too late for it, so that
    /// it has to be polled again.
    pub(super) fn recheck_by(&mut self, due: Instant) -> bool {
        let is_late = self.armed.as_ref().is_none_or(|(at, _)| *at > due);
        self.is_current &= !is_late;
        is_late
    }

    /// Waits for the next deadline and handles it: the engine may then have a ping or a close frame
    /// to send. The half has to be registered with the writer before.
    #[inline]
    pub(super) fn poll(&mut self, shared: &Shared) -> Poll<()> {
        // On an open connection deadlines only move away, unless `recheck` or `recheck_by` was
        // called.
        if self.is_current && !self.timer_waker.has_fired() && shared.control.state() == State::Open
        {
            return Poll::Pending;
        }
        self.poll_slow(shared)
    }

    fn poll_slow(&mut self, shared: &Shared) -> Poll<()> {
        let Shared { control, clock, .. } = shared;
        self.is_current = true;
        while !self.has_timed_out {
            let due = match self.direction {
                Direction::Read => control.poll_timeout(),
                // A half that does not read cannot tell whether the peer is alive, only whether it
                // accepts data.
                Direction::Write => control.poll_write_timeout(),
            };
            let Some(due) = due else {
                // The sleep may have ended. It would never wake anybody again.
                self.armed = None;
                // Nobody calls `recheck_by` for a half that only writes.
                self.is_current = self.direction == Direction::Read;
                break;
            };
            match &mut self.armed {
                Some((at, sleep)) if *at <= due => {
                    ready!(sleep.as_mut().poll(&mut Context::from_waker(&self.waker)));
                    (self.armed, self.is_current) = (None, false);
                    let now = (clock.now)();
                    if now < due {
                        continue;
                    }
                    let handled = match self.direction {
                        Direction::Read => control.handle_timeout(now),
                        Direction::Write => control.handle_write_timeout(now),
                    };
                    if let Err(failure @ ProtocolError::Timeout(timeout)) = handled
                        && failure.close_code().is_none()
                    {
                        self.has_timed_out = true;
                        shared.end_on_timeout(timeout);
                    }
                    return Poll::Ready(());
                }
                _ => {
                    let left = due.saturating_duration_since((clock.now)());
                    self.armed = Some((due, (clock.sleep)(left)));
                }
            }
        }
        Poll::Pending
    }
}

impl TimerWaker {
    #[inline]
    fn has_fired(&self) -> bool {
        // The load is cheap; the swap is not, and is rarely needed.
        self.has_fired.load(Ordering::Acquire) && self.has_fired.swap(false, Ordering::AcqRel)
    }
}

impl Wake for TimerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_fired.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

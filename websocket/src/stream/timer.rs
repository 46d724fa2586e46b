//! [`LazyTimer`]: a timer of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;

use owned_io::backend::Half;

use super::shared::{Shared, Sleep};
use crate::ProtocolError;
use crate::engine::State;

/// The timer of a half that waits: late, rather than set anew with every message, and not looked at
/// before it rings.
pub(super) struct LazyTimer {
    half: Half,
    armed: Option<(Instant, Sleep)>,
    /// Whether that is all there is to it, as far as is known.
    is_current: bool,
    /// Whether the last one has rung, which ended the connection.
    has_aborted: bool,
    timer_waker: Arc<TimerWaker>,
    /// Rings `timer_waker`.
    waker: Waker,
}

/// Wakes whoever waits with the alarm.
struct TimerWaker {
    waker: Waker,
    /// Whether it has rung since that was asked.
    has_fired: AtomicBool,
}

impl LazyTimer {
    /// One that wakes `waker`.
    pub(super) fn new(half: Half, waker: Waker) -> Self {
        let timer_waker = Arc::new(TimerWaker { waker, has_fired: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&timer_waker));
        Self { half, armed: None, is_current: false, has_aborted: false, timer_waker, waker }
    }

    /// Something may be due earlier than it was.
    pub(super) const fn recheck(&mut self) {
        self.is_current = false;
    }

    /// Something is due by this time: whether it has to look again.
    pub(super) fn recheck_by(&mut self, due: Instant) -> bool {
        let is_late = self.armed.as_ref().is_none_or(|(at, _)| *at > due);
        self.is_current &= !is_late;
        is_late
    }

    /// Waits until something is due, and does it: the engine may have a ping to send then, or a close
    /// frame. The half has to be registered with the writer.
    #[inline]
    pub(super) fn poll(&mut self, shared: &Shared) -> Poll<()> {
        // While a connection is open, what is due only moves away, or it is told to look again.
        if self.is_current && !self.timer_waker.has_fired() && shared.control.state() == State::Open
        {
            return Poll::Pending;
        }
        self.poll_slow(shared)
    }

    fn poll_slow(&mut self, shared: &Shared) -> Poll<()> {
        let Shared { control, clock, .. } = shared;
        self.is_current = true;
        while !self.has_aborted {
            let due = match self.half {
                Half::Read => control.poll_timeout(),
                // Who does not read cannot tell what the peer does, but whether it takes anything.
                Half::Write => control.poll_write_timeout(),
            };
            let Some(due) = due else { break };
            match &mut self.armed {
                Some((at, sleep)) if *at <= due => {
                    ready!(sleep.as_mut().poll(&mut Context::from_waker(&self.waker)));
                    (self.armed, self.is_current) = (None, false);
                    let now = (clock.now)();
                    if now < due {
                        continue;
                    }
                    let handled = match self.half {
                        Half::Read => control.handle_timeout(now),
                        Half::Write => control.handle_write_timeout(now),
                    };
                    if let Err(failure @ ProtocolError::Timeout(timeout)) = handled
                        && failure.close_code().is_none()
                    {
                        self.has_aborted = true;
                        shared.abort_on_timeout(timeout);
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
        // Looking costs nothing, where swapping would.
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

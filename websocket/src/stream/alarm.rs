//! [`Alarm`]: a timer of a connection.

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
pub(super) struct Alarm {
    half: Half,
    set: Option<(Instant, Sleep)>,
    /// Whether that is all there is to it, as far as is known.
    is_set: bool,
    /// Whether the last one has rung, which ended the connection.
    is_over: bool,
    bell: Arc<Bell>,
    /// Rings `bell`.
    waker: Waker,
}

/// Wakes whoever waits with the alarm.
struct Bell {
    waker: Waker,
    /// Whether it has rung since that was asked.
    has_rung: AtomicBool,
}

impl Alarm {
    /// One that wakes `waker`.
    pub(super) fn new(half: Half, waker: Waker) -> Self {
        let bell = Arc::new(Bell { waker, has_rung: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&bell));
        Self { half, set: None, is_set: false, is_over: false, bell, waker }
    }

    /// Something may be due earlier than it was.
    pub(super) const fn look_again(&mut self) {
        self.is_set = false;
    }

    /// Something is due by this time: whether it has to look again.
    pub(super) fn look_again_by(&mut self, due: Instant) -> bool {
        let is_late = self.set.as_ref().is_none_or(|(at, _)| *at > due);
        self.is_set &= !is_late;
        is_late
    }

    /// Waits until something is due, and does it: the engine may have a ping to send then, or a close
    /// frame. The half has to be registered with the writer.
    #[inline]
    pub(super) fn poll(&mut self, shared: &Shared) -> Poll<()> {
        // While a connection is open, what is due only moves away, or it is told to look again.
        if self.is_set && !self.bell.has_rung() && shared.control.state() == State::Open {
            return Poll::Pending;
        }
        self.poll_anew(shared)
    }

    fn poll_anew(&mut self, shared: &Shared) -> Poll<()> {
        let Shared { control, clock, .. } = shared;
        self.is_set = true;
        while !self.is_over {
            let due = match self.half {
                Half::Read => control.poll_timeout(),
                // Who does not read cannot tell what the peer does, but whether it takes anything.
                Half::Write => control.poll_write_timeout(),
            };
            let Some(due) = due else { break };
            match &mut self.set {
                Some((at, sleep)) if *at <= due => {
                    ready!(sleep.as_mut().poll(&mut Context::from_waker(&self.waker)));
                    (self.set, self.is_set) = (None, false);
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
                        self.is_over = true;
                        shared.abort_late(timeout);
                    }
                    return Poll::Ready(());
                }
                _ => {
                    let left = due.saturating_duration_since((clock.now)());
                    self.set = Some((due, (clock.sleep)(left)));
                }
            }
        }
        Poll::Pending
    }
}

impl Bell {
    #[inline]
    fn has_rung(&self) -> bool {
        // Looking costs nothing, where swapping would.
        self.has_rung.load(Ordering::Acquire) && self.has_rung.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

//! [`LazyTimer`]: the timer of one half of a connection.

use std::task::Poll;
use std::time::Instant;

use owned_io::Deadline;
use owned_io::backend::Direction;

use super::shared::Shared;
use crate::ProtocolError;
use crate::engine::State;

/// A lazy timer: it may fire early, and then rearms. Messages do not reset it, and nothing reads
/// the clock before it fires. It wakes the tasks of both halves, as far as they are registered.
pub(super) struct LazyTimer {
    direction: Direction,
    deadline: Deadline,
    /// What `deadline` is set for.
    armed: Option<Instant>,
    /// The [version](Shared::waker_version) of the waker that `deadline` has.
    waker_version: u32,
    /// Whether `armed` fires no later than the next known deadline.
    is_current: bool,
    /// Whether a deadline has passed and the connection was ended.
    has_timed_out: bool,
}

impl LazyTimer {
    pub(super) fn new(direction: Direction) -> Self {
        let deadline = Deadline::new();
        let (is_current, has_timed_out) = (false, false);
        Self { direction, deadline, armed: None, waker_version: 0, is_current, has_timed_out }
    }

    /// A deadline may have moved to an earlier time. The next poll computes it again.
    pub(super) const fn recheck(&mut self) {
        self.is_current = false;
    }

    /// There is a deadline at `due`. Returns whether the timer would fire too late for it, so that
    /// it has to be polled again.
    pub(super) fn recheck_by(&mut self, due: Instant) -> bool {
        let is_late = self.armed.is_none_or(|at| at > due);
        self.is_current &= !is_late;
        is_late
    }

    /// Waits for the next deadline and handles it: the engine may then have a ping or a close frame
    /// to send. The half has to be registered with the writer before.
    #[inline]
    pub(super) fn poll(&mut self, shared: &Shared) -> Poll<()> {
        // On an open connection deadlines only move away, unless `recheck` or `recheck_by` was
        // called.
        if self.is_current
            && self.waker_version == shared.waker_version.get()
            && !self.deadline.has_passed()
            && shared.control.state() == State::Open
        {
            return Poll::Pending;
        }
        self.poll_slow(shared)
    }

    fn poll_slow(&mut self, shared: &Shared) -> Poll<()> {
        let Shared { control, clock, waker_version, .. } = shared;
        if self.waker_version != waker_version.get() {
            self.waker_version = waker_version.get();
            self.disarm();
        }
        self.is_current = true;
        while !self.has_timed_out {
            let due = match self.direction {
                Direction::Read => control.poll_timeout(),
                // A half that does not read cannot tell whether the peer is alive, only whether it
                // accepts data.
                Direction::Write => control.poll_write_timeout(),
            };
            let Some(due) = due else {
                self.disarm();
                // Nobody calls `recheck_by` for a half that only writes.
                self.is_current = self.direction == Direction::Read;
                break;
            };
            match self.armed {
                Some(at) if at <= due => {
                    if !self.deadline.has_passed() {
                        return Poll::Pending;
                    }
                    self.disarm();
                    self.is_current = false;
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
                    self.armed = Some(due);
                    self.deadline.set(left, shared.writer.borrow().waker());
                }
            }
        }
        Poll::Pending
    }

    fn disarm(&mut self) {
        self.armed = None;
        self.deadline.clear();
    }
}

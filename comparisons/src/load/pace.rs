//! Time: one clock in nanoseconds, the schedule of an open loop, and a timer finer than epoll's.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::Failure;

pub(crate) const NS_PER_S: u64 = 1_000_000_000;

/// Shorter waits spin on the clock: sleeping would take as long.
const SPIN_NS: u64 = 20_000;

/// Nanoseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }

    pub(crate) fn now(&self) -> u64 {
        ns(self.origin.elapsed())
    }
}

/// A duration in nanoseconds; 584 years at most.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The moments of a sequence at a fixed rate, whatever happens at them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    start: u64,
    end: u64,
    per_s: u64,
    next: u64,
}

impl Schedule {
    /// `per_s` a second from `start`, none at `end` or later.
    pub(crate) fn new(start: u64, end: u64, per_s: u64) -> Self {
        Self { start, end, per_s, next: 0 }
    }

    /// The moment of number `index`. It is no sum of rounded intervals, so it does not drift.
    pub(crate) fn intended(&self, index: u64) -> u64 {
        let (seconds, rest) = (index / self.per_s, index % self.per_s);
        self.start + seconds * NS_PER_S + rest * NS_PER_S / self.per_s
    }

    /// The next moment, if there is one.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let at = self.intended(self.next);
        (at < self.end).then_some(at)
    }

    /// How many have not been taken yet.
    pub(crate) fn left(&self) -> u64 {
        let length = u128::from(self.end.saturating_sub(self.start));
        let all = (length * u128::from(self.per_s)).div_ceil(u128::from(NS_PER_S));
        u64::try_from(all).unwrap_or(u64::MAX).saturating_sub(self.next)
    }

    /// The number and the moment of the next one, if it is due.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<(u64, u64)> {
        let at = self.next_at().filter(|at| *at <= now)?;
        self.next += 1;
        Some((self.next - 1, at))
    }
}

/// Wakes an epoll at a moment: epoll itself counts in milliseconds.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    /// The moment that it is set to.
    at: Cell<u64>,
}

impl Timer {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { fd, at: Cell::new(0) })
    }

    /// How long epoll may wait. If the next moment of the schedule is near, not at all; otherwise up to `longest`, since
    /// the timer ends the wait.
    pub(crate) fn until_next(
        &self,
        schedule: &Schedule,
        now: u64,
        longest: Duration,
    ) -> Result<Duration, Failure> {
        let Some(next) = schedule.next_at() else { return Ok(longest) };
        let timeout = self.arm(now, next, longest);
        timeout.map_err(|error| Failure::new(format!("cannot set a timer: {error}")))
    }

    fn arm(&self, now: u64, at: u64, longest: Duration) -> io::Result<Duration> {
        let wait = at.saturating_sub(now);
        if wait < SPIN_NS {
            return Ok(Duration::ZERO);
        }
        if self.at.replace(at) == at {
            return Ok(longest);
        }
        let spec = |ns: u64| Timespec {
            tv_sec: i64::try_from(ns / NS_PER_S).unwrap_or(i64::MAX),
            tv_nsec: (ns % NS_PER_S) as _,
        };
        let once = Itimerspec { it_interval: spec(0), it_value: spec(wait) };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
        Ok(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_does_not_drift() {
        let schedule = Schedule::new(500, u64::MAX, 3);
        assert_eq!(schedule.intended(0), 500);
        assert_eq!(schedule.intended(1), 500 + 333_333_333);
        assert_eq!(schedule.intended(3), 500 + NS_PER_S);
        assert_eq!(schedule.intended(3_000_000_000), 500 + 1_000_000_000 * NS_PER_S);
    }

    #[test]
    fn what_is_due_comes_once_in_order_and_late_ones_keep_their_moment() {
        let mut schedule = Schedule::new(0, NS_PER_S, 4);
        assert_eq!(schedule.take_due(0), Some((0, 0)));
        assert_eq!(schedule.take_due(249_999_999), None);
        assert_eq!(schedule.take_due(600_000_000), Some((1, 250_000_000)));
        assert_eq!(schedule.take_due(600_000_000), Some((2, 500_000_000)));
        assert_eq!(schedule.take_due(600_000_000), None);
        assert_eq!(schedule.next_at(), Some(750_000_000));
    }

    #[test]
    fn as_many_are_due_as_rate_times_time() {
        for per_s in [1, 7, 500, 10_000, 1_000_003] {
            let mut schedule = Schedule::new(11, 11 + 2 * NS_PER_S, per_s);
            let mut count = 0;
            assert_eq!(schedule.left(), 2 * per_s);
            while schedule.take_due(u64::MAX).is_some() {
                count += 1;
                assert_eq!(schedule.left(), 2 * per_s - count);
            }
            assert_eq!(count, 2 * per_s);
            assert_eq!(schedule.next_at(), None);
        }
    }
}

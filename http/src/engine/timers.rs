//! [`Timers`]: deadlines, computed from the times that the engine is given.

use std::time::{Duration, Instant};

use crate::Timeouts;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The first byte of a request.
    Idle,
    /// More of a head.
    Head,
    /// More of a body.
    Body,
    /// The client to accept more of what is written.
    Write,
    /// The client to end its side after the last answer.
    Close,
}

/// The timers of a connection. Only waits count: call [`handle_wait_start`](Self::handle_wait_start) when one
/// begins, and [`handle_wait_end`](Self::handle_wait_end) when it ends. An operation that does not have to wait
/// needs no call, and no reading of the clock.
#[derive(Debug)]
pub struct Timers {
    timeouts: Timeouts,
    /// What is waited for, and since when.
    current: Option<(Wait, Instant)>,
    /// The waits for the current head.
    head_waited: Duration,
    /// The waits for the current body.
    body_waited: Duration,
    /// The bytes of the current body that ended waits.
    body_bytes: u64,
    /// The waits for the client to accept what is being written.
    write_waited: Duration,
    /// The bytes of it that ended waits.
    write_bytes: u64,
    /// The waits for the end of the client's side.
    close_waited: Duration,
}

impl Timers {
    /// The timers of a new connection.
    pub const fn new(timeouts: &Timeouts) -> Self {
        Self {
            timeouts: *timeouts,
            current: None,
            head_waited: Duration::ZERO,
            body_waited: Duration::ZERO,
            body_bytes: 0,
            write_waited: Duration::ZERO,
            write_bytes: 0,
            close_waited: Duration::ZERO,
        }
    }

    /// A wait begins. Returns when it has taken too long; `None` if that time cannot be represented.
    pub fn handle_wait_start(&mut self, wait: Wait, now: Instant) -> Option<Instant> {
        self.current = Some((wait, now));
        let Timeouts { idle, head, body, body_rate_min, write, write_rate_min, close } =
            self.timeouts;
        let left = match wait {
            Wait::Idle => idle,
            Wait::Head => head.saturating_sub(self.head_waited),
            Wait::Body => left_at_rate(body, body_rate_min, self.body_waited, self.body_bytes),
            Wait::Write => left_at_rate(write, write_rate_min, self.write_waited, self.write_bytes),
            Wait::Close => close.saturating_sub(self.close_waited),
        };
        now.checked_add(left)
    }

    /// The wait ends. `bytes` were received or accepted.
    pub fn handle_wait_end(&mut self, now: Instant, bytes: usize) {
        let Some((wait, since)) = self.current.take() else { return };
        let waited = now.saturating_duration_since(since);
        match wait {
            Wait::Head => self.head_waited += waited,
            Wait::Body => {
                self.body_waited += waited;
                self.body_bytes = self.body_bytes.saturating_add(bytes as u64);
            }
            Wait::Write => {
                self.write_waited += waited;
                self.write_bytes = self.write_bytes.saturating_add(bytes as u64);
            }
            Wait::Close => self.close_waited += waited,
            Wait::Idle => {}
        }
    }

    /// Everything that was queued is written. What is queued later has its own time.
    pub const fn handle_written(&mut self) {
        self.write_waited = Duration::ZERO;
        self.write_bytes = 0;
    }

    /// A new request may begin.
    pub const fn handle_next_request(&mut self) {
        self.head_waited = Duration::ZERO;
        self.body_waited = Duration::ZERO;
        self.body_bytes = 0;
    }
}

/// How long the next wait may take: `first` at most, and so long that `bytes` bytes have come at `rate_min` bytes per
/// second, after the first `first`.
fn left_at_rate(first: Duration, rate_min: u32, waited: Duration, bytes: u64) -> Duration {
    match bytes.checked_div(rate_min.into()) {
        Some(seconds) => {
            let all = first.saturating_add(Duration::from_secs(seconds));
            first.min(all.saturating_sub(waited))
        }
        None => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_waits_count_and_together_they_have_a_limit() {
        let now = Instant::now();
        let mut timers = Timers::new(&Timeouts::default());
        assert_eq!(timers.handle_wait_start(Wait::Idle, now), Some(now + 75 * SECOND));
        timers.handle_wait_end(now + 70 * SECOND, 1);
        let later = now + 500 * SECOND;
        assert_eq!(timers.handle_wait_start(Wait::Head, later), Some(later + 10 * SECOND));
        timers.handle_wait_end(later + 4 * SECOND, 1);
        let later = now + 600 * SECOND;
        assert_eq!(timers.handle_wait_start(Wait::Head, later), Some(later + 6 * SECOND));
        timers.handle_wait_end(later, 1);
        timers.handle_next_request();
        assert_eq!(timers.handle_wait_start(Wait::Head, later), Some(later + 10 * SECOND));
    }

    #[test]
    fn a_body_has_to_arrive_at_a_rate() {
        let mut now = Instant::now();
        let mut timers = Timers::new(&Timeouts::default());
        // A byte every ten seconds: nothing is gained by it.
        for left in [30, 20, 10] {
            let due = timers.handle_wait_start(Wait::Body, now);
            assert_eq!(due, Some(now + left * SECOND));
            now += 10 * SECOND;
            timers.handle_wait_end(now, 1);
        }
        assert_eq!(timers.handle_wait_start(Wait::Body, now), Some(now));
        timers.handle_wait_end(now, 1 << 20); // a minute and more of the least rate
        assert_eq!(timers.handle_wait_start(Wait::Body, now), Some(now + 30 * SECOND));
    }

    #[test]
    fn what_is_written_has_to_be_accepted_at_a_rate() {
        let mut now = Instant::now();
        let mut timers = Timers::new(&Timeouts::default());
        for left in [60, 40, 20, 0] {
            let due = timers.handle_wait_start(Wait::Write, now);
            assert_eq!(due, Some(now + left * SECOND));
            now += 20 * SECOND;
            timers.handle_wait_end(now, 1);
        }
        timers.handle_written();
        assert_eq!(timers.handle_wait_start(Wait::Write, now), Some(now + 60 * SECOND));
    }
}

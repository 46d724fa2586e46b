//! [`LogLimit`]: a line of log that would repeat is written at most once a second.

use std::time::{Duration, Instant};

/// A person can follow one line a second, and a client that causes it cannot fill a disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// Limits how often one kind of line is logged.
#[derive(Debug, Default)]
pub struct LogLimit {
    logged_at: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    /// Whether to log the line now. If so, returns how many lines were suppressed since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_logged_once_a_second_and_the_rest_is_counted() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let times = (0..25).map(|n| start + n * Duration::from_millis(100));
        let logged: Vec<_> = times.filter_map(|now| limit.admit(now)).collect();
        assert_eq!(logged, [0, 9, 9]);
    }
}

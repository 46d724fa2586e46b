//! [`Repeated`]: what would be said again and again is said at most once a second.

use std::time::{Duration, Instant};

/// How often: a person can follow that, and a client that causes it cannot fill a disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// Something that may happen often, and is to be logged now and then.
#[derive(Debug, Default)]
pub struct Repeated {
    said_at: Option<Instant>,
    unsaid: u64,
}

impl Repeated {
    /// Whether to say it, now that it happens once more; and how often it has happened unsaid.
    pub fn say(&mut self, now: Instant) -> Option<u64> {
        if self.said_at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            self.unsaid += 1;
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_a_second_and_the_rest_is_counted() {
        let (mut repeated, start) = (Repeated::default(), Instant::now());
        let said: Vec<_> =
            (0..25).filter_map(|n| repeated.say(start + n * Duration::from_millis(100))).collect();
        assert_eq!(said, [0, 9, 9]);
    }
}

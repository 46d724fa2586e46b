//! [`MinuteBudget`]: a limit for each minute.

use std::time::{Duration, Instant};

/// What the current minute still allows.
pub(super) struct MinuteBudget {
    per_minute: u32,
    left: u32,
    since: Instant,
    /// Reports that found nothing left, since the last one.
    pub(super) suppressed: u64,
}

impl MinuteBudget {
    pub(super) fn new(per_minute: u32) -> Self {
        Self { per_minute, left: per_minute, since: Instant::now(), suppressed: 0 }
    }

    pub(super) fn take(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(60) {
            (self.since, self.left) = (Instant::now(), self.per_minute);
        }
        let has_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_left
    }
}

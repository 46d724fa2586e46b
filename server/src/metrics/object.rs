//! [`ObjectMetrics`]: what one worker counts of objects.

use super::cells::Counter;

/// What one worker counts of objects.
#[derive(Debug, Default)]
pub struct ObjectMetrics {
    /// Requests, by what they found.
    pub requests: ObjectRequests,
    /// Fetches, by how they ended.
    pub fetches: ObjectFetches,
    /// Bytes of objects that were sent.
    pub sent_bytes: Counter,
}

/// Requests with a valid name. `docs/metrics.md` explains each.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each is in the documentation of the metrics, by its label")]
pub struct ObjectRequests {
    pub fresh: Counter,
    pub stale: Counter,
    pub joined: Counter,
    pub miss: Counter,
    pub missing: Counter,
    pub refused: Counter,
}

/// Fetches that have ended. `docs/metrics.md` explains each.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each is in the documentation of the metrics, by its label")]
pub struct ObjectFetches {
    pub complete: Counter,
    pub missing: Counter,
    pub failed: Counter,
}

impl ObjectRequests {
    /// Each with the value of its label `found`.
    pub(super) const fn all(&self) -> [(&'static str, &Counter); 6] {
        [
            ("fresh", &self.fresh),
            ("stale", &self.stale),
            ("joined", &self.joined),
            ("miss", &self.miss),
            ("missing", &self.missing),
            ("refused", &self.refused),
        ]
    }
}

impl ObjectFetches {
    /// Each with the value of its label `outcome`.
    pub(super) const fn all(&self) -> [(&'static str, &Counter); 3] {
        [("complete", &self.complete), ("missing", &self.missing), ("failed", &self.failed)]
    }
}

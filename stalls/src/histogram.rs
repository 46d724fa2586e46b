//! [`Lateness`]: a histogram that one thread records into while another reads, without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Eight buckets for each power of two: a value is at most 12.5 % off. `hdrhistogram` needs `&mut` or a lock.
const BUCKETS: usize = 280;

/// How late the heart of a worker beat, in microseconds.
#[derive(Debug)]
pub(crate) struct Lateness {
    buckets: [AtomicU64; BUCKETS],
    max_us: AtomicU64,
}

/// The figures of one heart since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LatenessSummary {
    /// How often the heart beat.
    pub beats: u64,
    /// The median lateness in microseconds. Timers are rounded up, so 1 or 2 ms are usual.
    pub p50_us: u64,
    /// The 99th percentile in microseconds.
    pub p99_us: u64,
    /// The largest in microseconds.
    pub max_us: u64,
}

impl Lateness {
    pub(crate) fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], max_us: AtomicU64::new(0) }
    }

    pub(crate) fn record(&self, late_us: u64) {
        self.buckets[bucket(late_us)].fetch_add(1, Relaxed);
        self.max_us.fetch_max(late_us, Relaxed);
    }

    pub(crate) fn summary(&self) -> LatenessSummary {
        let counts: Vec<u64> = self.buckets.iter().map(|count| count.load(Relaxed)).collect();
        let beats = counts.iter().sum();
        let max_us = self.max_us.load(Relaxed);
        let quantile = |percent: u64| {
            let mut before = 0;
            let at = counts.iter().position(|count| {
                before += count;
                beats > 0 && before * 100 >= beats * percent
            });
            at.map_or(0, upper_bound).min(max_us)
        };
        LatenessSummary { beats, p50_us: quantile(50), p99_us: quantile(99), max_us }
    }
}

fn bucket(value: u64) -> usize {
    if value < 8 {
        return value as usize;
    }
    let exponent = value.ilog2() as usize;
    let bucket = (exponent - 2) * 8 + ((value >> (exponent - 3)) & 7) as usize;
    bucket.min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let exponent = bucket / 8 + 2;
    ((bucket % 8 + 9) as u64) << (exponent - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_values() {
        for value in (0..2_000).chain([1 << 20, (1 << 36) + 12_345]) {
            assert!(value <= upper_bound(bucket(value)), "{value}");
            assert!(upper_bound(bucket(value)) <= value + value / 7 + 1, "{value}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles() {
        let lateness = Lateness::new();
        assert_eq!(lateness.summary(), LatenessSummary::default());
        for value in 1..=100 {
            lateness.record(value * 100);
        }
        let summary = lateness.summary();
        assert_eq!((summary.beats, summary.max_us), (100, 10_000));
        assert!((5_000..=5_700).contains(&summary.p50_us), "{summary:?}");
        assert!((9_900..=10_000).contains(&summary.p99_us), "{summary:?}");
    }
}

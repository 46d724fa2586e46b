//! Times by percentile.

use std::fmt;

use hdrhistogram::Histogram as Counts;
use serde::Serialize;

/// The longest time that is told apart, an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Times in nanoseconds, to three digits.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Counts<u64>,
}

/// Times in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p99_9: f64,
    #[serde(rename = "p99.99")]
    pub(crate) p99_99: f64,
    pub(crate) max: f64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        // The bounds are constants that it accepts; all of its memory is there from here on.
        let counts = Counts::new_with_bounds(1, LONGEST_NS, 3).expect("bounds are valid");
        Self { counts }
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.counts.saturating_record(ns);
    }

    /// How many were longer than a second, to three digits.
    pub(crate) fn over_1_s(&self) -> u64 {
        let within = self.counts.count_between(0, 1_000_000_000);
        self.counts.len() - within
    }

    pub(crate) fn len(&self) -> u64 {
        self.counts.len()
    }

    /// None of nothing.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile: f64| us(self.counts.value_at_quantile(quantile));
        (!self.counts.is_empty()).then(|| Percentiles {
            count: self.counts.len(),
            mean: self.counts.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: us(self.counts.max()),
        })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p90, p99, p99_9, p99_99, max, .. } = self;
        write!(f, "p50 {p50:.1}  p90 {p90:.1}  p99 {p99:.1}  ")?;
        write!(f, "p99.9 {p99_9:.1}  p99.99 {p99_99:.1}  max {max:.1} us")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_microseconds_to_three_digits() {
        let mut histogram = Histogram::new();
        assert!(histogram.percentiles().is_none());
        for us in 1..=1000 {
            histogram.record(us * 1000);
        }
        let found = histogram.percentiles().expect("some");
        assert_eq!(found.count, 1000);
        for (found, right) in [(found.p50, 500.0), (found.p99, 990.0), (found.max, 1000.0)] {
            assert!((found / right - 1.0).abs() < 0.001, "{found} for {right}");
        }
    }

    #[test]
    fn a_time_over_an_hour_is_kept_as_one() {
        let mut histogram = Histogram::new();
        for ns in [900_000_000, 1_100_000_000, u64::MAX] {
            histogram.record(ns);
        }
        assert_eq!((histogram.len(), histogram.over_1_s()), (3, 2));
    }
}

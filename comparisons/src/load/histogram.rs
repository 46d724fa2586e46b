//! Histograms of times.

use std::fmt;

use hdrhistogram::Histogram as Counts;
use serde::{Deserialize, Serialize};

/// Longer times count as this: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The points of a curve for each nine; a run of a million times has 49 points.
const POINTS_TO_A_NINE: f64 = 8.0;

/// Times in nanoseconds, to three digits.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Counts<u64>,
}

/// Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

    /// Adds the times of another.
    pub(crate) fn add(&mut self, other: &Self) {
        // All have the same bounds.
        self.counts.add(&other.counts).expect("bounds are the same");
    }

    /// How many were longer than a second, to three digits.
    pub(crate) fn over_1_s(&self) -> u64 {
        let within = self.counts.count_between(0, 1_000_000_000);
        self.counts.len() - within
    }

    pub(crate) fn len(&self) -> u64 {
        self.counts.len()
    }

    /// None without times.
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

impl Histogram {
    /// Points (share, microseconds): that share of the times was at most so long. There are a few points to each nine;
    /// the last is the longest time. None without times.
    pub(crate) fn curve(&self) -> Option<Vec<[f64; 2]>> {
        let count = self.counts.len();
        let us = |ns: u64| ns as f64 / 1e3;
        let shares = (0..).map(|point| 1.0 - 10_f64.powf(-f64::from(point) / POINTS_TO_A_NINE));
        // Up to the last share that leaves out at least one time.
        let shares = shares.take_while(|share| (1.0 - share) * count as f64 >= 1.0);
        let points = shares.map(|share| [share, us(self.counts.value_at_quantile(share))]);
        (count > 0).then(|| points.chain([[1.0, us(self.counts.max())]]).collect())
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, p50, p90, p99, p99_9, p99_99, max, .. } = self;
        write!(f, "p50 {p50:.1}  p90 {p90:.1}  p99 {p99:.1}  ")?;
        write!(f, "p99.9 {p99_9:.1}  p99.99 {p99_99:.1}  max {max:.1}  mean {mean:.1} us")
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
    fn a_curve_goes_to_the_longest_and_has_no_point_for_less_than_one() {
        let mut histogram = Histogram::new();
        assert!(histogram.curve().is_none());
        for us in 1..=1000 {
            histogram.record(us * 1000);
        }
        let curve = histogram.curve().expect("points");
        assert_eq!((curve.len(), curve[0], curve[25][0]), (26, [0.0, 1.0], 1.0));
        assert_eq!(curve[25][1], histogram.percentiles().expect("some").max);
        let at_90 = curve.iter().find(|point| (point[0] - 0.9).abs() < 1e-9).expect("a nine");
        assert!((at_90[1] / 900.0 - 1.0).abs() < 0.001, "{at_90:?}");
        assert!(curve.is_sorted_by(|a, b| a[0] < b[0] && a[1] <= b[1]), "{curve:?}");
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

//! [`Counter`], [`Gauge`] and [`Histogram`]: cells that one thread writes and any thread reads.
//!
//! A shared counter costs a locked instruction, and its cache line moves between the cores. A cell has one writer, so a
//! load and a store are enough. With two writers, counts would be lost, and nothing worse.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. For the one thread that writes.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that changes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the number.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How many values there were in each range, and their sum. Values are integers; `per_unit` of them are a unit of the
/// text.
#[derive(Debug)]
pub struct Histogram {
    /// The greatest value of each range but the last, which has no bound.
    bounds: &'static [u64],
    per_unit: f64,
    counts: Box<[Counter]>,
    sum: Counter,
}

impl Histogram {
    /// Without values. `bounds` ascend.
    pub fn new(bounds: &'static [u64], per_unit: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Self { bounds, per_unit, counts, sum: Counter::default() }
    }

    /// Adds a value. For the one thread that writes.
    pub fn record(&self, value: u64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)].add(1);
        self.sum.add(value);
    }

    /// The greatest value of each range but the last.
    pub(super) const fn bounds(&self) -> &'static [u64] {
        self.bounds
    }

    /// How many values there were in each range of `histograms`, which have the same bounds.
    pub(super) fn sum_counts(histograms: &[&Self]) -> Vec<u64> {
        let ranges = 0..histograms.first().map_or(0, |first| first.counts.len());
        let sum = |index: usize| histograms.iter().map(|one| one.counts[index].get()).sum();
        ranges.map(sum).collect()
    }

    /// Appends the sum of `histograms`, which have the same bounds, to `text` in Prometheus' text format.
    pub(super) fn write(text: &mut String, name: &str, help: &str, histograms: &[&Self]) {
        let Some(first) = histograms.first() else { return };
        let sum = |of: &dyn Fn(&Self) -> u64| histograms.iter().map(|one| of(one)).sum::<u64>();
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut count = 0;
        for (index, _) in first.counts.iter().enumerate() {
            count += sum(&|one| one.counts[index].get());
            let _ = match first.bounds.get(index) {
                Some(bound) => {
                    let bound = *bound as f64 / first.per_unit;
                    writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}")
                }
                None => writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}"),
            };
        }
        let sum = sum(&|one| one.sum.get()) as f64 / first.per_unit;
        let _ = write!(text, "{name}_sum {sum}\n{name}_count {count}\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_first_range_that_includes_it() {
        let [one, other] = [(); 2].map(|()| Histogram::new(&[10, 100, 1_000], 1_000.0));
        for value in [0, 10, 11, 100] {
            one.record(value);
        }
        other.record(1_001);
        assert_eq!(Histogram::sum_counts(&[&one, &other]), [2, 2, 0, 1]);
        assert_eq!(one.bounds(), [10, 100, 1_000]);
        let mut text = String::new();
        Histogram::write(&mut text, "n", "Some help.", &[&one, &other]);
        let expected = "# HELP n Some help.\n# TYPE n histogram\n\
            n_bucket{le=\"0.01\"} 2\nn_bucket{le=\"0.1\"} 4\nn_bucket{le=\"1\"} 4\n\
            n_bucket{le=\"+Inf\"} 5\nn_sum 1.122\nn_count 5\n\n";
        assert_eq!(text, expected);
    }
}

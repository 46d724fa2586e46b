//! Medians, ranges and confidence intervals.

use serde::Serialize;

/// The number of bootstrap resamples.
const RESAMPLES: usize = 10_000;

/// With fewer rounds there is a range but no confidence interval.
pub(crate) const ROUNDS_MIN: usize = 5;

/// The confidence of one look at the interval of pairs, in per cent. A row stops at the first look at which its interval
/// is narrow: of many looks the interval that is reported holds the median less often than each, but in at least 95 %
/// (`the_stopping_rule_keeps_95_percent` in `stopping.rs`).
const LOOK_CONFIDENCE: f64 = 0.975;

/// With fewer rounds than this there is no interval of [`LOOK_CONFIDENCE`]: the least to the largest of 7 holds the
/// median in 1 - 2 / 2^7.
pub(crate) const PAIRED_ROUNDS_MIN: usize = 7;

/// A median and an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) rounds: usize,
}

impl Summary {
    /// Whether the interval holds a figure.
    pub(crate) fn holds(&self, figure: f64) -> bool {
        self.low <= figure && figure <= self.high
    }

    /// How far the interval reaches from the median, to the farther side, in per cent of the median.
    pub(crate) fn width_percent(&self) -> f64 {
        let Self { median, low, high, .. } = self;
        (median - low).max(high - median) / median * 100.0
    }

    /// The interval is from the least to the largest. None without figures.
    pub(crate) fn range(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: median(&sorted), low, high, rounds: sorted.len() })
    }

    /// The interval is from one of the sorted figures to another, as many places from the end as it is from the
    /// beginning, which hold the median with [`LOOK_CONFIDENCE`] whatever the distribution (the binomial one of how
    /// many are below the median). With fewer than [`PAIRED_ROUNDS_MIN`] it is the range. None without figures.
    pub(crate) fn between_ranks(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let cut = ranks_cut(sorted.len());
        Self::range(&sorted[cut..sorted.len() - cut]).map(|range| Self {
            median: median(&sorted),
            rounds: sorted.len(),
            ..range
        })
    }

    /// The interval is the 95 % confidence interval of the median, by percentile bootstrap; with fewer than five
    /// figures it is the range. None without figures.
    pub(crate) fn confidence(figures: &[f64]) -> Option<Self> {
        let range = Self::range(figures)?;
        if figures.len() < ROUNDS_MIN {
            return Some(range);
        }
        // xorshift64 from a fixed seed: the same figures give the same interval.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            figures[(state % figures.len() as u64) as usize]
        };
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let mut again: Vec<f64> = figures.iter().map(|_| draw()).collect();
                again.sort_unstable_by(f64::total_cmp);
                median(&again)
            })
            .collect();
        medians.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| medians[((RESAMPLES - 1) as f64 * share).round() as usize];
        Some(Self { low: at(0.025), high: at(0.975), ..range })
    }
}

/// How many figures may be left out at either end.
fn ranks_cut(count: usize) -> usize {
    let mut cut = 0;
    // The chance that exactly `cut` are below the median.
    let mut chance = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut outside = chance;
    while 2 * (cut + 1) < count {
        chance *= (count - cut) as f64 / (cut + 1) as f64;
        outside += chance;
        if 2.0 * outside > 1.0 - LOOK_CONFIDENCE {
            break;
        }
        cut += 1;
    }
    cut
}

/// The median of sorted figures, at least one.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_figures_have_a_range() {
        assert_eq!(Summary::range(&[]), None);
        let expected = Summary { median: 2.0, low: 1.0, high: 9.0, rounds: 3 };
        assert_eq!(Summary::confidence(&[9.0, 1.0, 2.0]), Some(expected));
        assert_eq!(Summary::range(&[4.0, 1.0]).map(|s| s.median), Some(2.5));
    }

    #[test]
    fn a_width_is_that_of_the_farther_side() {
        let summary = Summary { median: 2.0, low: 1.9, high: 2.2, rounds: 8 };
        assert!((summary.width_percent() - 10.0).abs() < 1e-9);
        assert!(summary.holds(1.9) && summary.holds(2.2) && !summary.holds(1.89));
    }

    #[test]
    fn ranks_are_those_of_the_binomial_distribution() {
        let cuts = [1, 7, 9, 10, 12, 13, 21].map(ranks_cut);
        assert_eq!(cuts, [0, 0, 0, 1, 1, 2, 4]);
        let figures: Vec<f64> = (1..=12).map(f64::from).collect();
        let expected = Summary { median: 6.5, low: 2.0, high: 11.0, rounds: 12 };
        assert_eq!(Summary::between_ranks(&figures), Some(expected));
        assert_eq!(Summary::between_ranks(&[]), None);
    }

    #[test]
    fn the_interval_of_many_is_about_the_median_and_within_the_range() {
        let figures: Vec<f64> = (1..=21).map(f64::from).collect();
        let Summary { median, low, high, rounds } = Summary::confidence(&figures).unwrap();
        assert_eq!((median, rounds), (11.0, 21));
        // By the binomial distribution it runs from the 6th to the 16th of 21.
        assert!((5.0..=7.0).contains(&low) && (15.0..=17.0).contains(&high), "{low} {high}");
        let same = Summary::confidence(&[3.0; 8]).unwrap();
        assert_eq!((same.low, same.high), (3.0, 3.0));
    }
}

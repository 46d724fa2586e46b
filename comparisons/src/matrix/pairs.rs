//! Pairs: a row and its baseline, measured in turns.
//!
//! In a round all servers of a workload are alive. A row and its baseline are measured in short windows in the order
//! row, baseline, baseline, row, several times. Two windows that follow each other are a pair, and a drift that is
//! linear in time cancels. The next round starts all servers again, because two processes of one program may differ for
//! as long as they live.

use serde::{Deserialize, Serialize};

use super::results::Row;
use super::statistics::{PAIRED_ROUNDS_MIN, Summary};

/// How long the windows of a row and its baseline in a round are, in ms. Starting the programs of a round takes about as
/// long.
pub(crate) const ROUND_MS: u32 = 800;

/// A server that uses more of a core while it has nothing to do spins, in per cent.
pub(crate) const IDLE_PERCENT_MAX: f64 = 2.0;

/// How a workload is measured in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pairing {
    /// The length of a window.
    pub(crate) window_ms: u32,
    /// How long the windows of a row and its baseline in a round are, all together.
    #[serde(default = "round_ms")]
    pub(crate) round_ms: u32,
    /// A row is finished when its interval reaches at most so far to either side of the median, in per cent.
    pub(crate) width_percent: f64,
    /// A row is finished after so many [`seconds`](Pairs::seconds).
    pub(crate) row_seconds: f64,
}

/// What was measured of a row and its baseline in turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pairs {
    /// In the order in which they were measured.
    pub(crate) pairs: Vec<Pair>,
    /// How long the windows took, those of the baseline included, and the row's own start and warm-up before them (not
    /// those of its baseline). A round in which the row is void adds nothing.
    pub(crate) seconds: f64,
    /// In how many rounds the row is sound and its baseline void, so that there are no pairs.
    #[serde(default)]
    pub(crate) unpaired_rounds: usize,
    /// Why no more were measured; none while the row is not finished.
    pub(crate) stopped: Option<StopReason>,
}

/// Two windows, one right after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pair {
    /// From 1. Both servers were started for this round.
    pub(crate) round: usize,
    /// For each figure of the workload, that of the row.
    pub(crate) row: Vec<f64>,
    /// The same of its baseline.
    pub(crate) baseline: Vec<f64>,
}

/// Why a row is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StopReason {
    /// The interval of the workload's first figure is as narrow as the plan asks for.
    Narrow,
    /// The row's time is over.
    TimeOver,
    /// Too many of its rounds, or of its baseline's, were void.
    Void,
}

/// The ratio of one figure of a row to that of its baseline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PairedRatio {
    /// Each round with its ratio: the geometric mean of the middle half of its pairs.
    pub(crate) rounds: Vec<(usize, f64)>,
    /// How many pairs there are in all rounds.
    pub(crate) pairs: usize,
    /// The median of the rounds' ratios and its confidence interval.
    pub(crate) summary: Summary,
    pub(crate) stopped: Option<StopReason>,
}

impl PairedRatio {
    /// The ratio of the workload's figure number `figure`; none if the row was not measured in pairs, or has no
    /// sound pair.
    pub(crate) fn of(row: &Row, figure: usize) -> Option<Self> {
        Self::of_pairs(row.pairs.as_ref()?, figure)
    }

    /// The same of what was measured so far.
    pub(crate) fn of_pairs(measured: &Pairs, figure: usize) -> Option<Self> {
        let Pairs { pairs, stopped, .. } = measured;
        let rounds = round_ratios(pairs, figure);
        let ratios: Vec<_> = rounds.iter().map(|(_, ratio)| *ratio).collect();
        let summary = Summary::between_ranks(&ratios)?;
        Some(Self { rounds, pairs: pairs.len(), summary, stopped: *stopped })
    }

    /// Whether there are enough rounds for an interval; otherwise it is a range.
    pub(crate) fn has_interval(&self) -> bool {
        self.summary.rounds >= PAIRED_ROUNDS_MIN
    }
}

/// Of results from before it could be chosen.
const fn round_ms() -> u32 {
    ROUND_MS
}

/// The ratio of each round: the geometric mean of the middle half of its pairs. A round in which a figure was zero has
/// none.
fn round_ratios(pairs: &[Pair], figure: usize) -> Vec<(usize, f64)> {
    let of_round = |pairs: &[Pair]| {
        let log = |pair: &Pair| Some((pair.row.get(figure)? / pair.baseline.get(figure)?).ln());
        let mut logs = pairs.iter().map(log).collect::<Option<Vec<f64>>>()?;
        logs.sort_by(f64::total_cmp);
        let left_out = logs.len() / 4;
        let middle = &logs[left_out..logs.len() - left_out];
        let mean = middle.iter().sum::<f64>() / middle.len() as f64;
        // The mean may be finite although a figure was zero, if its pair is left out.
        let is_sound = logs.iter().all(|log| log.is_finite());
        is_sound.then_some((pairs.first()?.round, mean.exp()))
    };
    pairs.chunk_by(|a, b| a.round == b.round).filter_map(of_round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(round: usize, row: f64, baseline: f64) -> Pair {
        Pair { round, row: vec![row], baseline: vec![baseline] }
    }

    #[test]
    fn a_round_has_the_geometric_mean_of_the_middle_half_of_its_pairs() {
        let pairs = [1e9, 2.0, 1.0, 4.0, 0.5, 2.0, 1e-9, 8.0].map(|row| pair(1, row, 1.0));
        let [(1, ratio)] = round_ratios(&pairs, 0)[..] else { panic!("one round") };
        assert!((ratio - 2.0).abs() < 1e-9, "of 1, 2, 2 and 4: {ratio}");
        assert_eq!(round_ratios(&[&pairs[..], &[pair(1, 0.0, 1.0)]].concat(), 0), []);
    }

    #[test]
    fn a_round_without_a_ratio_is_left_out() {
        let pairs = [
            pair(1, 2.0, 1.0),
            pair(1, 1.0, 2.0),
            pair(3, 4.0, 4.0),
            pair(4, 1.0, 0.0),
            pair(5, 0.0, 1.0),
        ];
        assert_eq!(round_ratios(&pairs, 0), [(1, 1.0), (3, 1.0)]);
        assert_eq!(round_ratios(&pairs, 1), []);
    }
}

//! Rows of one program under two names (A/A): how often the matrix calls them equal.

use std::fmt::{self, Display, Formatter};

use super::overview::{Entry, Outcome, Overview};
use super::table::Verdict;

/// An interval is narrow if it reaches less far than this from its median, in per cent.
const NARROW_PERCENT: f64 = 3.0;

/// Counts of rows that are compared with the same program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SelfCheck {
    rows: usize,
    /// Those with enough rounds for an interval.
    with_interval: usize,
    /// Those whose interval holds 1.
    holding: usize,
    /// Those whose interval is narrow.
    narrow: usize,
}

impl SelfCheck {
    /// None if the run has no such rows.
    pub(crate) fn of(overview: &Overview<'_>) -> Option<Self> {
        let mut check = Self::default();
        let is_equal =
            |entry: &Entry<'_>| entry.is_same_program && entry.outcome != Outcome::Baseline;
        for (_, _, entry) in overview.entries().filter(|(_, _, entry)| is_equal(entry)) {
            check.rows += 1;
            let with_interval = entry.ratio().filter(|(_, it)| *it != Verdict::TooFewRounds);
            if let Some((ratio, _)) = with_interval {
                check.with_interval += 1;
                check.holding += usize::from(ratio.holds(1.0));
                check.narrow += usize::from(ratio.width_percent() < NARROW_PERCENT);
            }
        }
        (check.rows > 0).then_some(check)
    }
}

impl Display for SelfCheck {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { rows, with_interval, holding, narrow } = self;
        write!(
            f,
            "{holding} of {rows} intervals hold 1; {narrow} of {rows} are narrower than ±{NARROW_PERCENT} %"
        )?;
        match rows - with_interval {
            0 => Ok(()),
            without => write!(f, "; {without} have too few rounds or are void"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::Host;
    use super::super::pairs::{Pair, Pairs};
    use super::super::plan::Plan;
    use super::super::results::tests::sample;
    use super::super::results::{MeasuredWorkload, Results};
    use super::super::table;
    use super::*;

    const PLAN: &str = r#"
        name = "small"
        load = { command = "echo", connections = 1, payload = 1, seconds = 1 }
        servers = ["tokio", "tokio/again", "compio", "compio/again"]
        baseline = "tokio"
        figures = ["cpu-per-message"]"#;

    fn check(workloads: Vec<MeasuredWorkload>) -> Option<String> {
        let command = "cargo matrix".to_owned();
        let results = Results::of(command, Host::of(&[]), [0, 1], None, workloads);
        let tables: Vec<_> = results.workloads.iter().map(table::rows).collect();
        SelfCheck::of(&Overview::of(&results, &tables)).map(|check| check.to_string())
    }

    #[test]
    fn equals_are_counted() {
        let mut measured = MeasuredWorkload::of(Plan::of_one(PLAN).unwrap(), 1);
        let pairs = |ratios: &[f64]| {
            let pair = |(round, ratio): (usize, &f64)| Pair {
                round,
                row: vec![*ratio],
                baseline: vec![1.0],
            };
            let pairs = (1..).zip(ratios).map(pair).collect();
            Some(Pairs { pairs, seconds: 1.0, ..Pairs::default() })
        };
        measured.rows[1].pairs = pairs(&[0.99, 1.0, 1.01, 1.0, 1.0, 1.0, 1.0]);
        measured.rows[2].pairs = pairs(&[2.0; 7]);
        measured.rows[3].pairs = pairs(&[1.05, 1.06, 1.07, 1.1, 1.11, 1.12, 1.1]);
        for row in &mut measured.rows {
            row.rounds = (0..7).map(|_| Ok(sample())).collect();
        }
        assert_eq!(
            check(vec![measured]).unwrap(),
            "1 of 2 intervals hold 1; 1 of 2 are narrower than ±3 %"
        );
        assert_eq!(check(Vec::new()), None);
    }

    #[test]
    fn a_row_without_an_interval_does_not_hold() {
        let mut measured = MeasuredWorkload::of(Plan::of_one(PLAN).unwrap(), 1);
        for row in &mut measured.rows {
            row.rounds = vec![Err("1 < 2".to_owned())];
        }
        assert_eq!(
            check(vec![measured]).unwrap(),
            "0 of 2 intervals hold 1; 0 of 2 are narrower than ±3 %; 2 have too few rounds or are void"
        );
    }
}

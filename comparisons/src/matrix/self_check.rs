//! Rows of one program under two names: what the matrix says of equals.

use super::pairs::PairedRatio;
use super::results::{Results, Row};
use super::servers::first_of_two;
use super::statistics::Summary;

/// An interval of equals is to be narrower, to either side, in per cent.
const NARROW_PERCENT: f64 = 3.0;

/// How many intervals of equals hold 1, and how many are narrow; none if the run has no such rows.
pub(crate) fn summary(results: &Results) -> Option<String> {
    let rows = || results.workloads.iter().flat_map(|measured| &measured.rows);
    let equals: Vec<&Row> = rows().filter(|row| first_of_two(&row.server.name).is_some()).collect();
    if equals.is_empty() {
        return None;
    }
    let ratios = equals.iter().filter_map(|row| PairedRatio::of(row, 0));
    let ratios: Vec<_> = ratios.filter(PairedRatio::has_interval).collect();
    let holds_1 = |Summary { low, high, .. }: Summary| low <= 1.0 && 1.0 <= high;
    let holding = ratios.iter().filter(|ratio| holds_1(ratio.summary)).count();
    let is_narrow = |ratio: &&PairedRatio| ratio.width_percent() < NARROW_PERCENT;
    let narrow = ratios.iter().filter(is_narrow).count();
    let all = ratios.len();
    let text = format!(
        "A/A: {holding} of {all} intervals hold 1; {narrow} of {all} narrower than ±{NARROW_PERCENT} %"
    );
    let without = equals.len() - all;
    Some(if without == 0 { text } else { format!("{text}; {without} rows have no interval") })
}

#[cfg(test)]
mod tests {
    use super::super::host::Host;
    use super::super::pairs::{Pair, Pairs};
    use super::super::plan::Plan;
    use super::super::results::MeasuredWorkload;
    use super::*;

    #[test]
    fn equals_are_counted() {
        let plan = r#"
            name = "small"
            load = { command = "echo", connections = 1, payload = 1, seconds = 1 }
            servers = ["tokio", "tokio/again", "compio", "compio/again"]
            baseline = "tokio"
            figures = ["cpu-per-message"]"#;
        let mut measured = MeasuredWorkload::of(Plan::of_one(plan).unwrap(), 1);
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
        let results = |workloads| {
            Results::of("cargo matrix".to_owned(), Host::of(&[]), [0, 1], None, workloads)
        };
        assert_eq!(
            summary(&results(vec![measured])).unwrap(),
            "A/A: 1 of 2 intervals hold 1; 1 of 2 narrower than ±3 %"
        );
        assert_eq!(summary(&results(Vec::new())), None);
    }
}

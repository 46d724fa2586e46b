//! What the reports show: the figures of each row, and how they compare.

use serde_json::Value;

use super::calls::Calls;
use super::results::{Measured, Row};
use super::statistics::{ROUNDS_MIN, Summary};

/// A row of the tables of a workload.
pub(crate) struct Line<'a> {
    pub(crate) row: &'a Row,
    /// Whether others are compared with it.
    pub(crate) is_baseline: bool,
    /// One for each figure of the workload.
    pub(crate) cells: Vec<Cell>,
}

/// One figure of a row.
pub(crate) struct Cell {
    /// Of the rounds that are not void, with their numbers from 1.
    pub(crate) rounds: Vec<(usize, f64)>,
    pub(crate) range: Option<Summary>,
    pub(crate) ratio: Option<Summary>,
    /// The median of what the row is compared with.
    pub(crate) baseline: Option<f64>,
}

/// What the rounds of a row say of its ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All of the confidence interval is below 1.
    Less,
    /// All of it is above 1.
    More,
    /// It holds 1.
    Same,
    /// There are too few rounds for one.
    Unsaid,
}

/// A line for each row.
pub(crate) fn lines(measured: &Measured) -> Vec<Line<'_>> {
    let rows = &measured.rows;
    let baselines: Vec<_> = rows.iter().map(|row| baseline(measured, row)).collect();
    let lines = rows.iter().zip(&baselines).map(|(row, baseline)| {
        let figures = measured.workload.figures.iter();
        Line {
            row,
            is_baseline: baselines.iter().flatten().any(|other| other.server == row.server),
            cells: figures.map(|(_, pointer)| Cell::new(row, *baseline, pointer)).collect(),
        }
    });
    lines.collect()
}

/// What a row is compared with.
fn baseline<'a>(measured: &'a Measured, row: &Row) -> Option<&'a Row> {
    let name = measured.workload.baseline(&row.server)?;
    measured.rows.iter().find(|other| other.server.name() == name)
}

impl Cell {
    fn new(row: &Row, baseline: Option<&Row>, pointer: &str) -> Self {
        let rounds = rounds(row, pointer);
        let below = baseline.map(|baseline| self::rounds(baseline, pointer)).unwrap_or_default();
        Self {
            range: range(&rounds),
            ratio: Summary::confidence(&ratios(&rounds, &below)),
            baseline: range(&below).map(|summary| summary.median),
            rounds,
        }
    }

    /// None where there is no ratio.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let Summary { low, high, rounds, .. } = self.ratio?;
        Some(if rounds < ROUNDS_MIN {
            Verdict::Unsaid
        } else if high < 1.0 {
            Verdict::Less
        } else if low > 1.0 {
            Verdict::More
        } else {
            Verdict::Same
        })
    }
}

/// What a row took besides its figures: the medians of its rounds.
pub(crate) const COSTS: [(&str, Cost); 12] = [
    ("CPU user, ns", Cost::Pointer("/server/per_message/user_ns", 1.0)),
    ("CPU system, ns", Cost::Pointer("/server/per_message/system_ns", 1.0)),
    ("switches", Cost::Pointer("/server/per_message/switches", 1.0)),
    ("system calls", Cost::Calls(|calls| calls.all)),
    ("io_uring_enter", Cost::Calls(|calls| calls.io_uring_enter)),
    ("messages/s", Cost::Pointer("/messages/received_per_s", 1.0)),
    ("CPU, %", Cost::Pointer("/server/cpu_percent", 1.0)),
    ("peak memory, MiB", Cost::Pointer("/server/rss_peak_kib", 1.0 / 1024.0)),
    ("program, MiB", Cost::Pointer("/program_bytes", 1.0 / 1_048_576.0)),
    ("client CPU, %", Cost::Pointer("/client/cpu_percent", 1.0)),
    ("client late p99, us", Cost::Pointer("/lateness_us/p99", 1.0)),
    ("stalls, ms", Cost::Pointer("/stalls/total_ms", 1.0)),
];

/// How the pointers of figures end that count what was not served.
const UNSERVED: [&str; 2] = ["/never", "/failed"];

/// How many of [`COSTS`], the first, are of one message.
pub(crate) const COSTS_PER_MESSAGE: usize = 5;

/// Where a cost is.
pub(crate) enum Cost {
    /// In the report of `load`, in another unit.
    Pointer(&'static str, f64),
    /// Counted in a pass of its own.
    Calls(fn(&Calls) -> f64),
}

impl Cost {
    pub(crate) fn of(&self, row: &Row) -> Option<f64> {
        match self {
            Self::Pointer(pointer, unit) => {
                range(&rounds(row, pointer)).map(|range| range.median * unit)
            }
            Self::Calls(figure) => row.calls.as_ref()?.as_ref().ok().map(figure),
        }
    }
}

/// Why the system calls of some rows are not known, each reason once.
pub(crate) fn uncounted(measured: &Measured) -> Vec<&str> {
    let calls = measured.rows.iter().filter_map(|row| row.calls.as_ref());
    let mut reasons: Vec<_> =
        calls.filter_map(|it| it.as_ref().err()).map(String::as_str).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

/// What `load` warns of, each with the rows that had it in some round. Numbers are left out.
pub(crate) fn warnings(measured: &Measured) -> Vec<(String, Vec<&str>)> {
    let mut warnings: Vec<(String, Vec<&str>)> = Vec::new();
    for row in &measured.rows {
        let rounds = row.rounds.iter().flatten().filter_map(|report| report["warnings"].as_array());
        for said in rounds.flatten().filter_map(Value::as_str) {
            let words = said.split_whitespace();
            let words = words.map(|word| if word.parse::<f64>().is_ok() { "…" } else { word });
            let said = words.collect::<Vec<_>>().join(" ");
            match warnings.iter_mut().find(|(other, _)| *other == said) {
                None => warnings.push((said, vec![row.server.name()])),
                Some((_, rows)) if rows.last() == Some(&row.server.name()) => {}
                Some((_, rows)) => rows.push(row.server.name()),
            }
        }
    }
    warnings
}

/// What can be said of the first figure of a workload, in a sentence; and whether that is not all there is.
pub(crate) fn sentence(measured: &Measured, lines: &[Line<'_>]) -> String {
    let which = |verdict: Verdict| {
        let rows = lines.iter().filter_map(|line| {
            let cell = line.cells.first().filter(|cell| cell.verdict() == Some(verdict))?;
            Some(format!("{} ({:.3})", line.row.server.name(), cell.ratio?.median))
        });
        rows.collect::<Vec<_>>().join(", ")
    };
    let said = [
        ("less", Verdict::Less),
        ("more", Verdict::More),
        ("not told apart", Verdict::Same),
        ("too few rounds to say", Verdict::Unsaid),
    ];
    let said = said.map(|(words, verdict)| (words, which(verdict)));
    let said = said.iter().filter(|(_, rows)| !rows.is_empty());
    let mut said: Vec<_> = said.map(|(words, rows)| format!("{words}: {rows}")).collect();
    let is_void = |row: &&Row| !row.rounds.is_empty() && row.rounds.iter().all(Result::is_err);
    let voids: Vec<_> = lines.iter().map(|line| line.row).filter(is_void).collect();
    if !voids.is_empty() {
        let names: Vec<_> = voids.iter().map(|row| row.server.name()).collect();
        said.push(format!("void in every round: {}", names.join(", ")));
    }
    let some_void = |row: &&Row| row.rounds.iter().any(Result::is_err) && !is_void(row);
    let some: Vec<_> = lines.iter().map(|line| line.row).filter(some_void).collect();
    if !some.is_empty() {
        let voids = |row: &&Row| row.rounds.iter().filter(|round| round.is_err()).count();
        let named =
            |row: &&Row| format!("{} ({} of {})", row.server.name(), voids(row), row.rounds.len());
        said.push(format!(
            "void in some rounds: {}",
            some.iter().map(named).collect::<Vec<_>>().join(", ")
        ));
    }
    let unserved: Vec<_> = lines.iter().filter(|line| has_unserved(measured, line)).collect();
    if !unserved.is_empty() {
        let names: Vec<_> = unserved.iter().map(|line| line.row.server.name()).collect();
        said.push(format!("some were not served: {}", names.join(", ")));
    }
    let said = if said.is_empty() { "nothing to say".to_owned() } else { said.join("; ") };
    let figure = measured.workload.figures.first().map_or("", |(name, _)| name.as_str());
    format!("{figure}, against {}: {said}.", measured.workload.against.name())
}

/// Whether a row has connections that failed or were never served, by the figures that count them.
fn has_unserved(measured: &Measured, line: &Line<'_>) -> bool {
    let figures = measured.workload.figures.iter().zip(&line.cells);
    let mut counts =
        figures.filter(|((_, pointer), _)| UNSERVED.iter().any(|count| pointer.ends_with(count)));
    counts.any(|(_, cell)| cell.rounds.iter().any(|(_, count)| *count > 0.0))
}

/// The figures of the rounds that are not void.
fn rounds(row: &Row, pointer: &str) -> Vec<(usize, f64)> {
    let figure = |report: &Value| report.pointer(pointer)?.as_f64();
    let rounds = (1..).zip(&row.rounds);
    rounds.filter_map(|(round, it)| Some((round, figure(it.as_ref().ok()?)?))).collect()
}

fn range(rounds: &[(usize, f64)]) -> Option<Summary> {
    Summary::range(&rounds.iter().map(|(_, figure)| *figure).collect::<Vec<_>>())
}

/// Of each round in which both are there and the baseline is not zero.
fn ratios(above: &[(usize, f64)], below: &[(usize, f64)]) -> Vec<f64> {
    let ratio = |(round, above): &(usize, f64)| {
        let (_, below) = below.iter().find(|(same, below)| same == round && *below != 0.0)?;
        Some(above / below)
    };
    above.iter().filter_map(ratio).collect()
}

/// In how many rounds a count was zero, if it was in some but not in all.
pub(crate) fn zeros(rounds: &[(usize, f64)]) -> Option<usize> {
    let zeros = rounds.iter().filter(|(_, figure)| *figure == 0.0).count();
    (zeros > 0 && zeros < rounds.len()).then_some(zeros)
}

/// As many digits as say something.
pub(crate) fn amount(figure: f64) -> String {
    if figure.fract() == 0.0 || figure >= 100.0 {
        format!("{figure:.0}")
    } else if figure < 0.1 {
        format!("{figure:.4}")
    } else {
        format!("{figure:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let above = [(1, 2.0), (2, 3.0), (4, 5.0)];
        let below = [(1, 4.0), (3, 1.0), (4, 0.0)];
        assert_eq!(ratios(&above, &below), [0.5]);
    }

    #[test]
    fn a_verdict_needs_an_interval_that_does_not_hold_1() {
        let verdict = |low, high, rounds| {
            let ratio = Some(Summary { median: low, low, high, rounds });
            Cell { rounds: Vec::new(), range: None, ratio, baseline: None }.verdict()
        };
        assert_eq!(verdict(0.8, 0.9, 5), Some(Verdict::Less));
        assert_eq!(verdict(1.1, 1.2, 5), Some(Verdict::More));
        assert_eq!(verdict(0.8, 1.0, 5), Some(Verdict::Same));
        assert_eq!(verdict(0.8, 0.9, 4), Some(Verdict::Unsaid));
    }

    #[test]
    fn zeros_are_told_where_there_are_others() {
        assert_eq!(zeros(&[(1, 0.0), (2, 3.0), (3, 0.0)]), Some(2));
        assert_eq!(zeros(&[(1, 0.0), (2, 0.0)]), None);
        assert_eq!(zeros(&[(1, 1.0)]), None);
    }
}

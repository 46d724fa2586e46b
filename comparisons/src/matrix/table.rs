//! The content of the reports: the figures of each row and their ratios.

use super::calls::SystemCalls;
use super::figures::Figure;
use super::pairs::{PairedRatio, Pairing, StopReason};
use super::results::{MeasuredWorkload, Row, Sample};
use super::servers::Protocol;
use super::statistics::{ROUNDS_MIN, Summary};
use super::workload::service;

/// A row of the tables of a workload.
pub(crate) struct ReportRow<'a> {
    pub(crate) row: &'a Row,
    /// Whether others are compared with it.
    pub(crate) is_baseline: bool,
    /// One for each figure of the workload.
    pub(crate) cells: Vec<Cell>,
}

/// One figure of a row.
pub(crate) struct Cell {
    /// The figure in each round that is not void, with the round's number from 1.
    pub(crate) rounds: Vec<(usize, f64)>,
    pub(crate) range: Option<Summary>,
    pub(crate) ratio: Option<Summary>,
    /// What `ratio` is of, in a workload that is measured in pairs.
    pub(crate) paired: Option<PairedRatio>,
    /// The median of what the row is compared with.
    pub(crate) baseline: Option<f64>,
}

/// What the confidence interval of a ratio says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All of the interval is below 1.
    Less,
    /// All of it is above 1.
    More,
    /// It holds 1, and all of it is as near to 1 as the workload asks of equal rows.
    Equal,
    /// It holds 1, and reaches farther.
    Undecided,
    /// There are too few rounds for an interval.
    TooFewRounds,
}

impl Verdict {
    /// Whether the ratio is different from 1.
    pub(crate) const fn is_difference(self) -> bool {
        matches!(self, Self::Less | Self::More)
    }
}

/// The rows of the tables.
pub(crate) fn rows(measured: &MeasuredWorkload) -> Vec<ReportRow<'_>> {
    let rows = &measured.rows;
    let baseline =
        |row: &Row| rows.iter().find(|other| Some(&other.server.name) == row.baseline.as_ref());
    let baselines: Vec<_> = rows.iter().map(baseline).collect();
    let lines = rows.iter().zip(&baselines).map(|(row, baseline)| {
        let figures = measured.workload.figures.iter();
        ReportRow {
            row,
            is_baseline: baselines.iter().flatten().any(|other| other.server == row.server),
            cells: (0..).zip(figures).map(|it| Cell::new(row, *baseline, it)).collect(),
        }
    });
    lines.collect()
}

impl Cell {
    /// Of the figure with this number.
    fn new(row: &Row, baseline: Option<&Row>, (index, figure): (usize, &Figure)) -> Self {
        let of = |sample: &Sample| figure.of(sample);
        let rounds = rounds(row, of);
        let below = baseline.map(|baseline| self::rounds(baseline, of)).unwrap_or_default();
        let paired = PairedRatio::of(row, index);
        let ratio = match &paired {
            Some(paired) => Some(paired.summary),
            None => Summary::confidence(&ratios(&rounds, &below)),
        };
        Self {
            range: range(&rounds),
            ratio,
            paired,
            baseline: range(&below).map(|summary| summary.median),
            rounds,
        }
    }

    /// Whether there are enough rounds for a confidence interval; otherwise the ratio has a range.
    pub(crate) fn has_interval(&self) -> bool {
        let rounds = self.ratio.map_or(0, |ratio| ratio.rounds);
        self.paired.as_ref().map_or(rounds >= ROUNDS_MIN, PairedRatio::has_interval)
    }

    /// Whether the ratio has an interval, which does not hold 1.
    pub(crate) fn is_different(&self) -> bool {
        self.has_interval() && self.ratio.is_some_and(|ratio| !ratio.holds(1.0))
    }

    /// None without a ratio. The interval of equal rows is at most `equal_percent` from 1.
    pub(crate) fn verdict(&self, equal_percent: f64) -> Option<Verdict> {
        let Summary { low, high, .. } = self.ratio?;
        let farthest = (1.0 - low).max(high - 1.0);
        Some(if !self.has_interval() {
            Verdict::TooFewRounds
        } else if high < 1.0 {
            Verdict::Less
        } else if low > 1.0 {
            Verdict::More
        } else if farthest <= equal_percent / 100.0 {
            Verdict::Equal
        } else {
            Verdict::Undecided
        })
    }
}

/// Costs that every report shows: the medians of the rounds.
pub(crate) const COSTS: [(&str, Cost); 12] = [
    ("CPU user, ns", Cost::Sample(|it| Some(it.per_message()?.user_ns))),
    ("CPU system, ns", Cost::Sample(|it| Some(it.per_message()?.system_ns))),
    ("switches", Cost::Sample(|it| Some(it.per_message()?.switches))),
    ("system calls", Cost::Calls(|calls| calls.all)),
    ("io_uring_enter", Cost::Calls(|calls| calls.io_uring_enter)),
    ("messages/s", Cost::Sample(|it| Some(it.report.messages.as_ref()?.received_per_s))),
    ("CPU, %", Cost::Sample(|it| Some(it.report.server.as_ref()?.cpu_percent))),
    (
        "peak memory, MiB",
        Cost::Sample(|it| Some(it.report.server.as_ref()?.rss_peak_kib as f64 / 1024.0)),
    ),
    ("program, MiB", Cost::Sample(|it| Some(it.program_bytes? as f64 / 1_048_576.0))),
    ("client CPU, %", Cost::Sample(|it| Some(it.report.client.cpu_percent))),
    ("client late p99, us", Cost::Sample(|it| Some(it.report.lateness_us.as_ref()?.p99))),
    ("stalls, ms", Cost::Sample(|it| Some(it.report.stalls.as_ref()?.total_ms))),
];

/// How many of [`COSTS`], from the first, are per message.
pub(crate) const COSTS_PER_MESSAGE: usize = 5;

/// Where a cost comes from.
pub(crate) enum Cost {
    /// Each sample.
    Sample(fn(&Sample) -> Option<f64>),
    /// The pass that counts system calls.
    Calls(fn(&SystemCalls) -> f64),
}

impl Cost {
    pub(crate) fn of(&self, row: &Row) -> Option<f64> {
        match self {
            Self::Sample(figure) => range(&rounds(row, figure)).map(|range| range.median),
            Self::Calls(figure) => row.calls.as_ref()?.as_ref().ok().map(figure),
        }
    }
}

/// How a workload was measured, in a sentence.
pub(crate) fn method(measured: &MeasuredWorkload) -> String {
    let (done, planned) = (measured.rounds_done(), measured.rounds);
    let Some(Pairing { window_ms, width_percent, row_seconds, .. }) = measured.workload.pairing
    else {
        return if done < planned {
            format!("Rounds: {done} of {planned}.")
        } else {
            format!("Rounds: {planned}.")
        };
    };
    let pairs = measured.rows.iter().filter_map(|row| row.pairs.as_ref());
    let stopped: Vec<_> = pairs.map(|pairs| pairs.stopped).collect();
    let count = |which: Option<StopReason>| stopped.iter().filter(|it| **it == which).count();
    let rows = [
        ("narrow", count(Some(StopReason::Narrow))),
        ("out of time", count(Some(StopReason::TimeOver))),
        ("void", count(Some(StopReason::Void))),
        ("not finished", count(None)),
    ];
    let rows = rows.iter().filter(|(_, count)| *count > 0);
    let rows: Vec<_> = rows.map(|(which, count)| format!("{count} {which}")).collect();
    format!(
        "In pairs: windows of {window_ms} ms (not --seconds) in turns with the baseline, {done} rounds at the most, until the \
         interval reaches at most {width_percent} % from its median or a row took {row_seconds} s. \
         Rows: {}.",
        rows.join(", ")
    )
}

/// The path of the service over WebSocket; none if no row speaks WebSocket.
pub(crate) fn websocket_path(measured: &MeasuredWorkload) -> Option<&'static str> {
    let mut rows = measured.rows.iter();
    let speaks_it = rows.any(|row| row.server.protocol == Protocol::WebSocket);
    speaks_it.then(|| service(&measured.workload.load).path())
}

/// The reasons why system calls were not counted, each once.
pub(crate) fn uncounted(measured: &MeasuredWorkload) -> Vec<&str> {
    let calls = measured.rows.iter().filter_map(|row| row.calls.as_ref());
    let mut reasons: Vec<_> =
        calls.filter_map(|it| it.as_ref().err()).map(String::as_str).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

/// The warnings of `load`, without numbers, and those of pairs, each with the rows that had it.
pub(crate) fn warnings(measured: &MeasuredWorkload) -> Vec<(String, Vec<&str>)> {
    let mut warnings = paired_warnings(measured);
    for row in &measured.rows {
        let samples = row.rounds.iter().flatten();
        for warning in samples.flat_map(|sample| &sample.report.warnings) {
            let words = warning.split_whitespace();
            let words = words.map(|word| if word.parse::<f64>().is_ok() { "…" } else { word });
            let warning = words.collect::<Vec<_>>().join(" ");
            match warnings.iter_mut().find(|(other, _)| *other == warning) {
                None => warnings.push((warning, vec![&row.server.name])),
                Some((_, rows)) if rows.last() == Some(&&*row.server.name) => {}
                Some((_, rows)) => rows.push(&row.server.name),
            }
        }
    }
    warnings
}

/// What a reader has to know of rows that were measured in pairs.
fn paired_warnings(measured: &MeasuredWorkload) -> Vec<(String, Vec<&str>)> {
    let stopped = |row: &Row| row.pairs.as_ref().and_then(|pairs| pairs.stopped);
    let is_late = |row: &&Row| stopped(row) == Some(StopReason::TimeOver);
    let is_unpaired = |row: &&Row| row.pairs.as_ref().is_some_and(|it| it.unpaired_rounds > 0);
    let is_paused = |row: &&Row| row.paused_rounds > 0;
    let names = |which: &dyn Fn(&&Row) -> bool| -> Vec<&str> {
        measured.rows.iter().filter(which).map(|row| &*row.server.name).collect()
    };
    let all = [
        ("the time was over before the interval was narrow", names(&is_late)),
        (
            "it used a core while it had nothing to do, and was stopped while others were measured",
            names(&is_paused),
        ),
        ("its baseline is void in some rounds, which have no ratio", names(&is_unpaired)),
    ];
    let some = all.into_iter().filter(|(_, rows)| !rows.is_empty());
    some.map(|(warning, rows)| (warning.to_owned(), rows)).collect()
}

/// A summary of the first figure, naming void rows and rows with connections that were not served.
pub(crate) fn sentence(measured: &MeasuredWorkload, lines: &[ReportRow<'_>]) -> String {
    let which = |verdict: Verdict| {
        let rows = lines.iter().filter_map(|line| {
            let cell = line.cells.first()?;
            let is_of_it = cell.verdict(measured.workload.equal_percent()) == Some(verdict);
            is_of_it.then_some(())?;
            Some(format!("{} ({:.3})", line.row.server.name, cell.ratio?.median))
        });
        rows.collect::<Vec<_>>().join(", ")
    };
    let parts = [
        ("less", Verdict::Less),
        ("more", Verdict::More),
        ("equal", Verdict::Equal),
        ("undecided", Verdict::Undecided),
        ("too few rounds to say", Verdict::TooFewRounds),
    ];
    let parts = parts.map(|(words, verdict)| (words, which(verdict)));
    let parts = parts.iter().filter(|(_, rows)| !rows.is_empty());
    let mut parts: Vec<_> = parts.map(|(words, rows)| format!("{words}: {rows}")).collect();
    let is_void = |row: &&Row| !row.rounds.is_empty() && row.rounds.iter().all(Result::is_err);
    let voids: Vec<_> = lines.iter().map(|line| line.row).filter(is_void).collect();
    if !voids.is_empty() {
        let names: Vec<_> = voids.iter().map(|row| &*row.server.name).collect();
        parts.push(format!("void in every round: {}", names.join(", ")));
    }
    let some_void = |row: &&Row| row.rounds.iter().any(Result::is_err) && !is_void(row);
    let some: Vec<_> = lines.iter().map(|line| line.row).filter(some_void).collect();
    if !some.is_empty() {
        let voids = |row: &&Row| row.rounds.iter().filter(|round| round.is_err()).count();
        let named =
            |row: &&Row| format!("{} ({} of {})", row.server.name, voids(row), row.rounds.len());
        parts.push(format!(
            "void in some rounds: {}",
            some.iter().map(named).collect::<Vec<_>>().join(", ")
        ));
    }
    let unserved: Vec<_> = lines.iter().filter(|line| has_unserved(measured, line)).collect();
    if !unserved.is_empty() {
        let names: Vec<_> = unserved.iter().map(|line| &*line.row.server.name).collect();
        parts.push(format!("some were not served: {}", names.join(", ")));
    }
    let parts = if parts.is_empty() { "nothing to say".to_owned() } else { parts.join("; ") };
    let workload = &measured.workload;
    let figure = workload.figures.first().map_or("", |figure| workload.title(*figure));
    format!("{figure}, against {}: {parts}.", workload.baseline.name())
}

/// Whether a figure of the row counts connections that failed or were never served.
pub(crate) fn has_unserved(measured: &MeasuredWorkload, line: &ReportRow<'_>) -> bool {
    let figures = measured.workload.figures.iter().zip(&line.cells);
    let mut counts = figures.filter(|(figure, _)| figure.is_unserved());
    counts.any(|(_, cell)| cell.rounds.iter().any(|(_, count)| *count > 0.0))
}

/// The figure in each round that is not void.
fn rounds(row: &Row, figure: impl Fn(&Sample) -> Option<f64>) -> Vec<(usize, f64)> {
    let rounds = (1..).zip(&row.rounds);
    rounds.filter_map(|(round, it)| Some((round, figure(it.as_ref().ok()?)?))).collect()
}

fn range(rounds: &[(usize, f64)]) -> Option<Summary> {
    Summary::range(&rounds.iter().map(|(_, figure)| *figure).collect::<Vec<_>>())
}

/// The ratio in each round that has both figures, unless the baseline is zero.
fn ratios(above: &[(usize, f64)], below: &[(usize, f64)]) -> Vec<f64> {
    let ratio = |(round, above): &(usize, f64)| {
        let (_, below) = below.iter().find(|(same, below)| same == round && *below != 0.0)?;
        Some(above / below)
    };
    above.iter().filter_map(ratio).collect()
}

/// The number of rounds in which a count was zero; none if that is no round or every round.
pub(crate) fn zeros(rounds: &[(usize, f64)]) -> Option<usize> {
    let zeros = rounds.iter().filter(|(_, figure)| *figure == 0.0).count();
    (zeros > 0 && zeros < rounds.len()).then_some(zeros)
}

/// A figure with as many digits as are significant.
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
    use super::super::overview::tests::results;
    use super::super::pairs::Pairs;
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let above = [(1, 2.0), (2, 3.0), (4, 5.0)];
        let below = [(1, 4.0), (3, 1.0), (4, 0.0)];
        assert_eq!(ratios(&above, &below), [0.5]);
    }

    #[test]
    fn a_verdict_follows_the_interval() {
        let verdict = |low, high, rounds| {
            let ratio = Some(Summary { median: low, low, high, rounds });
            let cell =
                Cell { rounds: Vec::new(), range: None, ratio, paired: None, baseline: None };
            cell.verdict(2.0).unwrap()
        };
        assert_eq!(verdict(0.5, 0.99, 5), Verdict::Less);
        assert_eq!(verdict(1.01, 3.0, 5), Verdict::More);
        assert_eq!(verdict(0.99, 1.01, 5), Verdict::Equal);
        assert_eq!(verdict(0.97, 1.01, 5), Verdict::Undecided);
        // Narrow, and not near to 1 on one side.
        assert_eq!(verdict(0.995, 1.03, 5), Verdict::Undecided);
        assert_eq!(verdict(0.8, 0.9, 4), Verdict::TooFewRounds);
    }

    #[test]
    fn a_workload_says_how_it_was_measured() {
        let mut results = results(&["x"], 3);
        let measured = &mut results.workloads[0];
        assert_eq!(method(measured), "Rounds: 3.");
        measured.rounds = 5;
        assert_eq!(method(measured), "Rounds: 3 of 5.");
        let pairing =
            Pairing { window_ms: 100, round_ms: 800, width_percent: 2.0, row_seconds: 5.0 };
        measured.workload.pairing = Some(pairing);
        for (row, stopped) in [(1, None), (2, Some(StopReason::TimeOver))] {
            measured.rows[row].pairs = Some(Pairs { stopped, ..Pairs::default() });
        }
        assert!(method(measured).ends_with("took 5 s. Rows: 1 out of time, 1 not finished."));
    }

    #[test]
    fn zeros_are_counted_unless_all_are() {
        assert_eq!(zeros(&[(1, 0.0), (2, 3.0), (3, 0.0)]), Some(2));
        assert_eq!(zeros(&[(1, 0.0), (2, 0.0)]), None);
        assert_eq!(zeros(&[(1, 1.0)]), None);
    }
}

//! The first figure of each workload as a ratio, rows × workloads: the content of the heat map, of the findings and of
//! the table on the terminal.

use super::pairs::StopReason;
use super::results::{MeasuredWorkload, Results, Row};
use super::statistics::Summary;
use super::table::{ReportRow, Verdict};

/// Rows × workloads.
pub(crate) struct Overview<'a> {
    pub(crate) columns: Vec<Column<'a>>,
    /// In the order in which the workloads name them first; without rows that are only baselines.
    pub(crate) rows: Vec<OverviewRow<'a>>,
}

/// A workload.
pub(crate) struct Column<'a> {
    pub(crate) measured: &'a MeasuredWorkload,
    /// Its plan; none if the run has one plan.
    pub(crate) plan: Option<&'a str>,
    /// Its name within the plan.
    pub(crate) name: &'a str,
    /// The title of its first figure.
    pub(crate) figure: &'a str,
    pub(crate) higher_is_better: bool,
}

/// A server in all workloads.
pub(crate) struct OverviewRow<'a> {
    pub(crate) name: &'a str,
    pub(crate) runtime: &'a str,
    /// One for each column; none where the workload does not have the row, or has not measured it yet.
    pub(crate) entries: Vec<Option<Entry<'a>>>,
}

/// A row in one workload.
pub(crate) struct Entry<'a> {
    /// The row's number in the tables of the workload.
    pub(crate) line: usize,
    /// The row that it is compared with.
    pub(crate) baseline: Option<&'a str>,
    /// Whether that is the same program with the same arguments: any difference is the method's error.
    pub(crate) is_same_program: bool,
    pub(crate) outcome: Outcome<'a>,
    /// The number of its pairs and why there are no more, if it was measured in pairs.
    pub(crate) pairs: Option<(usize, Option<StopReason>)>,
    /// How many of the rounds are void, and how many there are.
    pub(crate) voids: [usize; 2],
}

/// What a row's ratio says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome<'a> {
    /// Others are compared with it.
    Baseline,
    Ratio(Summary, Verdict),
    /// All rounds are void; the reason of the first.
    Void(&'a str),
    /// The baseline is void, or its figure is zero.
    NoRatio,
}

impl<'a> Overview<'a> {
    /// `tables` are those of the workloads, in their order.
    pub(crate) fn of(results: &'a Results, tables: &'a [Vec<ReportRow<'a>>]) -> Self {
        let workloads = &results.workloads;
        let has_plans = workloads.len() > 1
            && workloads.iter().all(|measured| measured.workload.name.contains(": "));
        let columns: Vec<_> = workloads.iter().map(|it| Column::of(it, has_plans)).collect();
        let mut rows: Vec<OverviewRow<'a>> = Vec::new();
        for (column, lines) in tables.iter().enumerate() {
            for (number, line) in lines.iter().enumerate() {
                let server = &line.row.server;
                let at = rows.iter().position(|row| row.name == server.name).unwrap_or_else(|| {
                    let entries = columns.iter().map(|_| None).collect();
                    rows.push(OverviewRow {
                        name: &server.name,
                        runtime: &server.runtime,
                        entries,
                    });
                    rows.len() - 1
                });
                rows[at].entries[column] = Entry::of(&workloads[column], lines, number);
            }
        }
        // A row that is only a baseline is left out.
        if rows.iter().any(|row| !row.is_baseline(0..columns.len())) {
            rows.retain(|row| !row.is_baseline(0..columns.len()));
        }
        Self { columns, rows }
    }

    /// The columns of each plan, in a row.
    pub(crate) fn plans(&self) -> impl Iterator<Item = (Option<&'a str>, Vec<usize>)> {
        let numbers: Vec<_> = (0..self.columns.len()).collect();
        let plan = |number: &usize| self.columns[*number].plan;
        let plans: Vec<_> = numbers
            .chunk_by(|a, b| plan(a) == plan(b))
            .map(|numbers| (plan(&numbers[0]), numbers.to_vec()))
            .collect();
        plans.into_iter()
    }

    /// Every entry with its row and its column's number, column by column.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&OverviewRow<'a>, usize, &Entry<'a>)> {
        (0..self.columns.len()).flat_map(|column| {
            let of_row = move |row| {
                let row: &OverviewRow<'a> = row;
                Some((row, column, row.entries[column].as_ref()?))
            };
            self.rows.iter().filter_map(of_row)
        })
    }
}

impl OverviewRow<'_> {
    /// Whether it is only a baseline in these columns.
    pub(crate) fn is_baseline(&self, columns: impl IntoIterator<Item = usize>) -> bool {
        let mut entries = columns.into_iter().filter_map(|column| self.entries[column].as_ref());
        entries.all(|entry| entry.outcome == Outcome::Baseline)
    }
}

impl<'a> Column<'a> {
    fn of(measured: &'a MeasuredWorkload, has_plans: bool) -> Self {
        let workload = &measured.workload;
        let (plan, name) = workload.name.split_once(": ").filter(|_| has_plans).unzip();
        let first = workload.figures.first().copied();
        Self {
            measured,
            plan,
            name: name.unwrap_or(&workload.name),
            figure: first.map_or("", |figure| workload.title(figure)),
            higher_is_better: first.is_some_and(|figure| figure.is_higher_better()),
        }
    }

    /// Its figure without the unit.
    pub(crate) fn quantity(&self) -> &'a str {
        self.figure.split_once(", ").map_or(self.figure, |(quantity, _)| quantity)
    }

    /// A ratio such that more is worse, whatever the figure.
    pub(crate) fn cost(&self, ratio: f64) -> f64 {
        if self.higher_is_better { ratio.recip() } else { ratio }
    }
}

impl<'a> Entry<'a> {
    /// Of the row with this number in the tables of a workload. None if it was not measured.
    fn of(measured: &MeasuredWorkload, lines: &'a [ReportRow<'a>], number: usize) -> Option<Self> {
        let line = &lines[number];
        let Row { server, rounds, .. } = line.row;
        let cell = line.cells.first()?;
        let voids: Vec<_> = rounds.iter().filter_map(|round| round.as_ref().err()).collect();
        let is_void = voids.len() == rounds.len();
        let ratio = cell.ratio.zip(cell.verdict(measured.workload.equal_percent()));
        let outcome = match (ratio, voids.first()) {
            _ if rounds.is_empty() => return None,
            (Some((ratio, verdict)), _) => Outcome::Ratio(ratio, verdict),
            (None, Some(why)) if is_void => Outcome::Void(why),
            (None, _) if line.row.baseline.is_none() => Outcome::Baseline,
            (None, _) => Outcome::NoRatio,
        };
        let baseline = line.row.baseline.as_deref();
        let other = lines.iter().map(|it| &it.row.server).find(|it| Some(&*it.name) == baseline);
        let is_same_program =
            other.is_some_and(|it| it.run == server.run && it.build == server.build);
        let voids = [voids.len(), rounds.len()];
        let pairs = cell.paired.as_ref().map(|it| (it.pairs, it.stopped));
        Some(Self { line: number, baseline, is_same_program, outcome, pairs, voids })
    }

    /// The ratio and what its interval says.
    pub(crate) fn ratio(&self) -> Option<(Summary, Verdict)> {
        match self.outcome {
            Outcome::Ratio(ratio, verdict) => Some((ratio, verdict)),
            _ => None,
        }
    }

    /// The outcome in words.
    pub(crate) fn sentence(&self, column: &Column<'_>) -> String {
        let mut text = match self.outcome {
            Outcome::Baseline => "baseline".to_owned(),
            Outcome::NoRatio => "no ratio: the baseline is void or zero".to_owned(),
            Outcome::Void(why) => format!("void: {why}"),
            Outcome::Ratio(Summary { median, low, high, .. }, verdict) => {
                let verdict = match verdict {
                    Verdict::TooFewRounds => "too few rounds to say",
                    Verdict::Undecided => "undecided",
                    Verdict::Equal => "equal",
                    _ if column.cost(median) > 1.0 => "worse",
                    _ => "better",
                };
                let baseline = self.baseline.unwrap_or_default();
                let quantity = column.quantity();
                format!("{quantity} {median:.3} of {baseline} ({low:.3} to {high:.3}), {verdict}")
            }
        };
        if let Some((pairs, stopped)) = self.pairs {
            let why = match stopped {
                None => "not finished",
                Some(StopReason::Narrow) => "narrow enough",
                Some(StopReason::TimeOver) => "time over",
                Some(StopReason::Void) => "too many rounds of it or its baseline void",
            };
            text += &format!(", {pairs} pairs, {why}");
        }
        let [voids, rounds] = self.voids;
        if voids > 0 && voids < rounds {
            text += &format!(", {voids} of {rounds} rounds void");
        }
        text
    }
}

/// A ratio in at most four letters or so.
pub(crate) fn short(ratio: f64) -> String {
    match ratio {
        // What rounds to 10.00.
        9.995.. if ratio < 99.95 => format!("{ratio:.1}"),
        99.95.. if ratio < 9999.5 => format!("{ratio:.0}"),
        9999.5.. => ">9999".to_owned(),
        _ => format!("{ratio:.2}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::host::Host;
    use super::super::pairs::{PairedRatio, Pairing};
    use super::super::plan::Plan;
    use super::super::results::tests::sample;
    use super::super::table::Cell;
    use super::*;

    /// A run of `names`, each a workload of three rows with `rounds` rounds; the second row is void.
    pub(crate) fn results(names: &[&str], rounds: usize) -> Results {
        let workload = |name: &&str| {
            let plan = format!(
                r#"name = {name:?}
                load = {{ command = "echo", connections = 1, payload = 1, seconds = 1 }}
                servers = ["tokio", "compio", "monoio"]
                baseline = "tokio"
                figures = ["cpu-per-message"]"#
            );
            let mut workload = Plan::of_one(&plan).unwrap();
            workload.pairing = None;
            let mut measured = MeasuredWorkload::of(workload, rounds);
            for (number, row) in measured.rows.iter_mut().enumerate() {
                let round = |_| if number == 1 { Err("1 < 2".to_owned()) } else { Ok(sample()) };
                row.rounds = (0..rounds).map(round).collect();
            }
            measured
        };
        let workloads = names.iter().map(workload).collect();
        Results::of("cargo matrix".to_owned(), Host::of(&[]), [0, 1], None, workloads)
    }

    /// The tables of such a run, with `ratios` for the third row of each workload.
    pub(crate) fn tables<'a>(results: &'a Results, ratios: &[[f64; 3]]) -> Vec<Vec<ReportRow<'a>>> {
        let of = |(measured, ratio): (&'a MeasuredWorkload, &[f64; 3])| {
            let [low, median, high] = *ratio;
            let summary = Summary { median, low, high, rounds: 6 };
            let cell = |number: usize| {
                let range = (number != 1).then_some(summary);
                let ratio = (number == 2).then_some(summary);
                Cell { rounds: Vec::new(), range, ratio, paired: None, baseline: None }
            };
            let line = |(number, row)| ReportRow {
                row,
                is_baseline: number == 0,
                cells: vec![cell(number)],
            };
            measured.rows.iter().enumerate().map(line).collect()
        };
        results.workloads.iter().zip(ratios).map(of).collect()
    }

    #[test]
    fn an_entry_says_what_a_row_is() {
        let results = results(&["a: x", "a: y", "b: z"], 6);
        let tables = tables(&results, &[[0.9, 1.0, 1.2], [1.1, 1.2, 1.3], [0.99, 1.0, 1.01]]);
        let overview = Overview::of(&results, &tables);
        let plans: Vec<_> = overview.plans().collect();
        assert_eq!(plans, [(Some("a"), vec![0, 1]), (Some("b"), vec![2])]);
        let said: Vec<_> = overview
            .entries()
            .map(|(row, column, entry)| {
                format!("{} {}", row.name, entry.sentence(&overview.columns[column]))
            })
            .collect();
        let monoio = "monoio CPU ns/message";
        let expected = [
            "compio void: 1 < 2".to_owned(),
            format!("{monoio} 1.000 of tokio (0.900 to 1.200), undecided"),
            "compio void: 1 < 2".to_owned(),
            format!("{monoio} 1.200 of tokio (1.100 to 1.300), worse"),
            "compio void: 1 < 2".to_owned(),
            format!("{monoio} 1.000 of tokio (0.990 to 1.010), equal"),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn pairs_say_how_many_they_are_and_why_they_ended() {
        let mut results = results(&["x"], 8);
        let pairing =
            Pairing { window_ms: 100, round_ms: 800, width_percent: 3.0, row_seconds: 5.0 };
        results.workloads[0].workload.pairing = Some(pairing);
        let mut tables = tables(&results, &[[0.975, 1.0, 1.01]]);
        let summary = Summary { median: 1.0, low: 0.975, high: 1.01, rounds: 8 };
        let stopped = Some(StopReason::Narrow);
        tables[0][2].cells[0].paired =
            Some(PairedRatio { rounds: Vec::new(), pairs: 16, summary, stopped });
        let overview = Overview::of(&results, &tables);
        let (_, _, entry) = overview.entries().last().unwrap();
        let said = "CPU ns/message 1.000 of tokio (0.975 to 1.010), equal, 16 pairs, narrow enough";
        assert_eq!(entry.sentence(&overview.columns[0]), said);
    }

    #[test]
    fn a_row_that_was_not_measured_has_no_entry() {
        let results = results(&["x"], 0);
        let tables = tables(&results, &[[1.0; 3]]);
        let overview = Overview::of(&results, &tables);
        assert_eq!((overview.rows.len(), overview.entries().count()), (3, 0));
        assert_eq!(overview.columns[0].plan, None);
    }

    #[test]
    fn a_ratio_is_short() {
        let shown = [0.0, 0.994, 9.99, 9.999, 55.04, 123.4, 1e6].map(short);
        assert_eq!(shown, ["0.00", "0.99", "9.99", "10.0", "55.0", "123", ">9999"]);
    }
}

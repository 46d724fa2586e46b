//! Two runs side by side: how many of their ratios agree.

use std::fmt::Write;
use std::path::Path;

use super::Failure;
use super::results::{MeasuredWorkload, Results};
use super::statistics::Summary;
use super::table::{self, Cell, amount};
use super::workload::Workload;

/// Tables of the figures that are in both runs, and the number of ratios that agree.
///
/// # Errors
/// When a file cannot be read, or nothing is in both.
pub(crate) fn compare(first: &Path, second: &Path) -> Result<String, Failure> {
    let (first, second) = (Results::read_file(first)?, Results::read_file(second)?);
    let mut text = String::new();
    let agreement = write(&mut text, &first, &second).expect("a string takes everything");
    match agreement {
        Agreement { figures: 0, .. } => Err(Failure::new("no row of one is in the other")),
        Agreement { compared: 0, .. } => Ok(text),
        Agreement { compared, overlapping, rows, agreeing, without, .. } => {
            let percent = overlapping as f64 * 100.0 / compared as f64;
            let claim = "ratios have confidence intervals that overlap";
            let [a, b] = [&first, &second].map(ratios);
            let all = format!("Of all that there are, A has {a} and B has {b}.");
            text += &format!("\n{overlapping} of {compared} {claim} ({percent:.1} %). {all}\n");
            if rows > 0 {
                let percent = agreeing as f64 * 100.0 / rows as f64;
                text += &format!(
                    "\n{agreeing} of {rows} rows in pairs agree: their intervals overlap ({percent:.1} %). {without} more \
                     rows in pairs have no interval in both runs, or were measured in another way.\n"
                );
            }
            Ok(text)
        }
    }
}

/// The number of ratios in a run, with a confidence interval or without.
fn ratios(results: &Results) -> usize {
    let lines = results.workloads.iter().flat_map(table::rows);
    let ratios = lines.map(|line| line.cells.iter().filter(|cell| cell.ratio.is_some()).count());
    ratios.sum()
}

/// Counts of figures: those in both runs; those of the same load with a confidence interval in both; those of them
/// whose intervals overlap. And counts of rows that were measured in pairs in both runs: those with an interval of the
/// first figure in both; those of them whose intervals overlap; those without.
#[derive(Default)]
struct Agreement {
    figures: usize,
    compared: usize,
    overlapping: usize,
    rows: usize,
    agreeing: usize,
    without: usize,
}

fn write(
    text: &mut String,
    first: &Results,
    second: &Results,
) -> Result<Agreement, std::fmt::Error> {
    writeln!(text, "A: {}\n\nB: {}", first.host.sentence(), second.host.sentence())?;
    let mut agreement = Agreement::default();
    for a in &first.workloads {
        let same = |b: &&MeasuredWorkload| b.workload.name == a.workload.name;
        let Some(b) = second.workloads.iter().find(same) else { continue };
        writeln!(text, "\n### {}\n", a.workload.name)?;
        let [of_a, of_b] =
            [a, b].map(|it| (&it.workload.load, &it.workload.baseline, window_ms(&it.workload)));
        let is_same = of_a == of_b;
        if !is_same {
            for (run, workload) in [("A", &a.workload), ("B", &b.workload)] {
                let (load, baseline) = (workload.load_line(), workload.baseline.name());
                let pairs = match window_ms(workload) {
                    None => String::new(),
                    Some(ms) => format!(", in windows of {ms} ms"),
                };
                writeln!(text, "{run}: `load {load}`{pairs}, against {baseline}\n")?;
            }
        }
        writeln!(text, "| server | figure | A | B | B/A | ratio in A | ratio in B | |")?;
        writeln!(text, "|---|---|---|---|---|---|---|---|")?;
        let (lines_a, lines_b) = (table::rows(a), table::rows(b));
        for line in &lines_a {
            let Some(other) = lines_b.iter().find(|it| it.row.server.name == line.row.server.name)
            else {
                continue;
            };
            for (index, shown) in a.workload.figures.iter().enumerate() {
                let name = a.workload.title(*shown);
                let Some(there) = b.workload.figures.iter().position(|it| it == shown) else {
                    continue;
                };
                let (cell, other) = (&line.cells[index], &other.cells[there]);
                write!(text, "| {} | {name} |", line.row.server.name)?;
                let overlaps = figure(text, cell, other, is_same, &mut agreement)?;
                if index == 0 && cell.paired.is_some() && other.paired.is_some() {
                    agreement.rows += usize::from(overlaps.is_some());
                    agreement.agreeing += usize::from(overlaps == Some(true));
                    agreement.without += usize::from(overlaps.is_none());
                }
            }
        }
    }
    Ok(agreement)
}

/// The length of the windows of a workload that is measured in pairs.
fn window_ms(workload: &Workload) -> Option<u32> {
    workload.pairing.map(|pairing| pairing.window_ms)
}

/// Whether the intervals overlap; none if there are not two of the same load.
fn figure(
    text: &mut String,
    a: &Cell,
    b: &Cell,
    is_same: bool,
    agreement: &mut Agreement,
) -> Result<Option<bool>, std::fmt::Error> {
    agreement.figures += 1;
    let median = |cell: &Cell| cell.range.map(|range| range.median);
    let shown = |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), amount);
    write!(text, " {} | {} |", shown(median(a)), shown(median(b)))?;
    let change = median(a).zip(median(b)).filter(|(a, _)| *a != 0.0).map(|(a, b)| b / a);
    write!(text, " {} |", change.map_or_else(|| "–".to_owned(), |it| format!("{it:.3}")))?;
    for Cell { ratio, .. } in [a, b] {
        let shown = ratio
            .map(|Summary { median, low, high, .. }| format!("{median:.3} ({low:.3}–{high:.3})"));
        write!(text, " {} |", shown.unwrap_or_else(|| "–".to_owned()))?;
    }
    let enough = |cell: &Cell| cell.ratio.filter(|_| is_same && cell.has_interval());
    let Some((a, b)) = enough(a).zip(enough(b)) else {
        writeln!(text, " |")?;
        return Ok(None);
    };
    agreement.compared += 1;
    let overlaps = a.low <= b.high && b.low <= a.high;
    agreement.overlapping += usize::from(overlaps);
    writeln!(text, " {} |", if overlaps { "overlap" } else { "**apart**" })?;
    Ok(Some(overlaps))
}

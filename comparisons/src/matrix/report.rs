//! The results as Markdown.

use std::fmt::Write;

use super::results::{MeasuredWorkload, Results};
use super::statistics::Summary;
use super::table::{self, COSTS, Cell, Cost, ReportRow, amount, zeros};

/// The heading of the table of costs.
const PER_MESSAGE: &str = "What it took (medians), up to io_uring_enter for each message:";

/// Tables: a row for each server, a column for each figure and its ratio. `tables` are those of the workloads, in their
/// order.
pub(crate) fn markdown(results: &Results, tables: &[Vec<ReportRow<'_>>]) -> String {
    let mut text = format!("Measured {}.\n", results.host.sentence());
    let Results { command, server_core, load_core, no_calls, .. } = results;
    text += &format!("\n`{command}`, servers on core {server_core}, load on core {load_core}.\n");
    text += &format!("\nVersions: {}.\n", results.host.versions());
    if let Some(warning) = results.host.warning() {
        text += &format!("\n{warning}\n");
    }
    if let Some(why) = no_calls {
        text += &format!("\nSystem calls not counted: {why}.\n");
    }
    for (measured, lines) in results.workloads.iter().zip(tables) {
        workload(&mut text, measured, lines).expect("a string takes everything");
    }
    text
}

fn workload(
    text: &mut String,
    measured: &MeasuredWorkload,
    lines: &[ReportRow<'_>],
) -> std::fmt::Result {
    let workload = &measured.workload;
    writeln!(text, "\n### {}\n\n`load {}`", workload.name, workload.load_line())?;
    if let Some(path) = table::websocket_path(measured) {
        writeln!(text, "Rows that speak WebSocket add `--websocket {path}`.")?;
    }
    if let Some(files) = workload.open_files {
        writeln!(text, "The servers may open {files} files.")?;
    }
    if workload.pairing.is_some() {
        writeln!(text, "\n{}", table::method(measured))?;
    }
    writeln!(text, "\n{}", table::sentence(measured, lines))?;
    write!(text, "\n| server | rounds |")?;
    for figure in &workload.figures {
        write!(text, " {} | ratio |", workload.title(*figure))?;
    }
    write!(text, "\n|---|---|")?;
    writeln!(text, "{}", "---|---|".repeat(workload.figures.len()))?;
    for ReportRow { row, cells, .. } in lines {
        let sound = row.rounds.iter().filter(|round| round.is_ok()).count();
        write!(text, "| {} | {sound} of {} |", row.server.name, row.rounds.len())?;
        for Cell { rounds, range, ratio, .. } in cells {
            let zeros = zeros(rounds).map_or_else(String::new, |zeros| format!(", 0 in {zeros}"));
            write!(text, " {}{zeros} |", shown(*range, amount))?;
            write!(text, " {} |", shown(*ratio, |ratio| format!("{ratio:.3}")))?;
        }
        writeln!(text)?;
    }
    costs(text, measured)?;
    for (warning, rows) in table::warnings(measured) {
        writeln!(text, "\nWarned, {warning}: {}.", rows.join(", "))?;
    }
    for (server, round, why) in measured.voids() {
        writeln!(text, "\nVoid: {}, round {round}: {why}", server.name)?;
    }
    Ok(())
}

/// The costs of each row. A column that no row has is left out.
fn costs(text: &mut String, measured: &MeasuredWorkload) -> std::fmt::Result {
    let known = |cost: &Cost| measured.rows.iter().any(|row| cost.of(row).is_some());
    let columns: Vec<_> = COSTS.iter().filter(|(_, cost)| known(cost)).collect();
    if columns.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    writeln!(text, "\n{PER_MESSAGE}\n\n| server | {} |", names.join(" | "))?;
    writeln!(text, "|---|{}", "---|".repeat(columns.len()))?;
    for row in &measured.rows {
        write!(text, "| {} |", row.server.name)?;
        for (_, cost) in &columns {
            write!(text, " {} |", cost.of(row).map_or_else(|| "–".to_owned(), amount))?;
        }
        writeln!(text)?;
    }
    for reason in table::uncounted(measured) {
        writeln!(text, "\nSystem calls not counted: {reason}")?;
    }
    Ok(())
}

fn shown(summary: Option<Summary>, format: impl Fn(f64) -> String) -> String {
    let Some(Summary { median, low, high, .. }) = summary else { return "–".to_owned() };
    format!("{} ({}–{})", format(median), format(low), format(high))
}

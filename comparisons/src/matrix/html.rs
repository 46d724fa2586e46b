//! The results as one self-contained HTML file.

use std::fmt::{self, Write};

use super::axis::grouped;
use super::escape::Escaped;
use super::findings::{self, Finding};
use super::overview::Overview;
use super::page::{self, STYLE};
use super::results::{MeasuredWorkload, Results};
use super::table::{self, COSTS, COSTS_PER_MESSAGE, ReportRow};
use super::{curves, heat, plots, strips};
use crate::load::Percentiles;

const SCRIPT: &str = include_str!("heat.js");

const LEGEND: &str = "\
<p>Each dot is a round, the bar is the median of the rounds, the line goes from the least to the
largest. The dashed line is the median of what the row is compared with. A ratio is taken within each
round, from its pairs where there are some; shown are the median of these ratios and its 95&nbsp;% confidence
interval, with too few rounds for one the least and the largest. It is bold, and the sentences call it less or more,
where a confidence interval does not hold 1.</p>
<p>In the small plots a row's own line is before those of all others; dashed is what it is compared with.
Latency by percentile is the median of the rounds at each percentile. Over time it is the longest answer of
each moment, in the round in which one took longest; a stall, 25&nbsp;ms or more in which no answer came though
one was outstanding, is marked.</p>
";

/// The heat map, what was found, and one table for each figure of each workload, with a plot in each row. `tables` are
/// those of the workloads, in their order.
pub(crate) fn page(
    results: &Results,
    tables: &[Vec<ReportRow<'_>>],
    overview: &Overview<'_>,
    findings: &[Finding],
) -> String {
    let mut text = String::new();
    write_page(&mut text, results, tables, overview, findings).expect("a string takes everything");
    text
}

fn write_page(
    text: &mut String,
    results: &Results,
    tables: &[Vec<ReportRow<'_>>],
    overview: &Overview<'_>,
    findings: &[Finding],
) -> fmt::Result {
    let title = "Runtimes compared";
    page::begin(text, title, &STYLE.concat(), &results.host)?;
    if let Some(warning) = results.host.warning() {
        writeln!(text, "<p>{}</p>", Escaped(warning))?;
    }
    heat::map(text, overview)?;
    found(text, results, findings)?;
    sentences(text, results, tables)?;
    facts(text, results)?;
    let mut sweep = None;
    for (index, (measured, lines)) in results.workloads.iter().zip(tables).enumerate() {
        if sweep != measured.workload.sweep.as_deref() {
            sweep = measured.workload.sweep.as_deref();
            rates(text, results, lines, sweep, index)?;
        }
        let name = Escaped(&measured.workload.name);
        writeln!(text, "<section aria-labelledby=\"workload-{index}\">")?;
        writeln!(text, "<h2 id=\"workload-{index}\">{name}</h2>")?;
        workload(text, measured, lines, index)?;
        writeln!(text, "</section>")?;
    }
    writeln!(text, "<script>\n{SCRIPT}</script>\n</body>\n</html>")
}

fn found(text: &mut String, results: &Results, findings: &[Finding]) -> fmt::Result {
    writeln!(text, "<section>\n<h2>What was found</h2>\n<ol class=\"found\">")?;
    for Finding { workload, text: sentence } in findings {
        write!(text, "<li>")?;
        if let Some(number) = workload {
            let name = Escaped(&results.workloads[*number].workload.name);
            write!(text, "<a href=\"#workload-{number}\">{name}</a>: ")?;
        }
        writeln!(text, "{}</li>", Escaped(sentence))?;
    }
    writeln!(text, "</ol>\n<p class=\"muted\">Chosen by a rule: {}</p>", Escaped(findings::RULE))?;
    writeln!(text, "</section>")
}

/// A sentence for each workload.
fn sentences(text: &mut String, results: &Results, tables: &[Vec<ReportRow<'_>>]) -> fmt::Result {
    writeln!(text, "<details>\n<summary>A sentence for each workload</summary>\n<ul>")?;
    for (index, (measured, lines)) in results.workloads.iter().zip(tables).enumerate() {
        let name = Escaped(&measured.workload.name);
        let sentence = table::sentence(measured, lines);
        let sentence = Escaped(&sentence);
        writeln!(text, "<li><a href=\"#workload-{index}\">{name}</a><br>{sentence}</li>")?;
    }
    writeln!(text, "</ul>\n</details>")
}

/// The machine, the versions, the command, and how to read the plots.
fn facts(text: &mut String, results: &Results) -> fmt::Result {
    writeln!(text, "<details>\n<summary>Machine, versions and command</summary>\n<dl>")?;
    let Results { host, command, server_core, load_core, .. } = results;
    page::facts(text, host, command, [*server_core, *load_core])?;
    if let Some(why) = &results.no_calls {
        writeln!(text, "<dt>System calls</dt><dd>not counted: {}</dd>", Escaped(why))?;
    }
    writeln!(text, "</dl>\n</details>")?;
    writeln!(text, "<details>\n<summary>How to read the plots</summary>\n{LEGEND}</details>")
}

/// Throughput against latency, for the workloads of one sweep; `lines` are those of the first.
fn rates(
    text: &mut String,
    results: &Results,
    lines: &[ReportRow<'_>],
    sweep: Option<&str>,
    index: usize,
) -> fmt::Result {
    let Some(name) = sweep else { return Ok(()) };
    let of_it = |measured: &&MeasuredWorkload| measured.workload.sweep.as_deref() == sweep;
    let workloads: Vec<_> = results.workloads.iter().filter(of_it).collect();
    writeln!(text, "<section>\n<h2>{}</h2>", Escaped(name))?;
    writeln!(text, "<p>Latency against what was achieved, as more and more is asked for.</p>")?;
    let p50: fn(&Percentiles) -> f64 = |latency| latency.p50;
    for (which, latency) in [("p50", p50), ("p99", |latency| latency.p99)] {
        if let Some((across, curves)) = curves::rates(lines, &workloads, latency) {
            let title = format!("latency {which}, us, by messages a second");
            plots::multiples(text, &format!("r{index}-{which}"), &title, &across, &curves)?;
        }
    }
    writeln!(text, "</section>")
}

/// `number` is unique to this workload.
fn workload(
    text: &mut String,
    measured: &MeasuredWorkload,
    lines: &[ReportRow<'_>],
    number: usize,
) -> fmt::Result {
    let workload = &measured.workload;
    write!(text, "<p><code>load {}</code>", Escaped(&workload.load_line()))?;
    if let Some(path) = table::websocket_path(measured) {
        write!(text, ", with <code>--websocket {path}</code> in rows that speak WebSocket")?;
    }
    if let Some(files) = workload.open_files {
        write!(text, ". The servers may open {files} files")?;
    }
    let (method, baseline) = (table::method(measured), Escaped(workload.baseline.name()));
    writeln!(text, ". {method} Compared with {baseline}.</p>")?;
    for (index, shown) in workload.figures.iter().enumerate() {
        strips::table(text, workload.title(*shown), lines, [number, index])?;
    }
    costs(text, measured)?;
    if let Some((across, curves)) = curves::percentiles(lines) {
        let id = format!("p{number}");
        plots::multiples(text, &id, "latency by percentile, us", &across, &curves)?;
    }
    if let Some((across, curves)) = curves::series(lines) {
        let id = format!("s{number}");
        plots::multiples(text, &id, "longest answer, us, by seconds", &across, &curves)?;
    }
    for (warning, rows) in table::warnings(measured) {
        writeln!(text, "<p>Warned, {}: {}.</p>", Escaped(&warning), rows.join(", "))?;
    }
    let voids: Vec<_> = measured.voids().collect();
    if voids.is_empty() {
        return Ok(());
    }
    writeln!(text, "<p>Void:</p>\n<ul>")?;
    for (server, round, why) in voids {
        writeln!(text, "<li>{}, round {round}: {}</li>", Escaped(&server.name), Escaped(why))?;
    }
    writeln!(text, "</ul>")
}

/// The costs of each row. A column that no row has is left out.
fn costs(text: &mut String, measured: &MeasuredWorkload) -> fmt::Result {
    let columns: Vec<_> = (0..)
        .zip(&COSTS)
        .filter(|(_, (_, cost))| measured.rows.iter().any(|row| cost.of(row).is_some()))
        .collect();
    if columns.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "<div class=\"wide\" role=\"region\" aria-label=\"what it took\" tabindex=\"0\">\n<table class=\"costs\">\n<caption>what it took</caption>"
    )?;
    write!(text, "<thead><tr><th scope=\"col\">server</th>")?;
    for (index, (name, _)) in &columns {
        let each = if *index < COSTS_PER_MESSAGE { " each" } else { "" };
        write!(text, "<th scope=\"col\">{name}{each}</th>")?;
    }
    writeln!(text, "</tr></thead>\n<tbody>")?;
    for row in &measured.rows {
        write!(text, "<tr><th scope=\"row\">{}</th>", Escaped(&row.server.name))?;
        for (_, (_, cost)) in &columns {
            write!(text, "<td>{}</td>", cost.of(row).map_or_else(|| "–".to_owned(), grouped))?;
        }
        writeln!(text, "</tr>")?;
    }
    writeln!(text, "</tbody>\n</table>\n</div>")?;
    for reason in table::uncounted(measured) {
        writeln!(text, "<p>System calls not counted: {}</p>", Escaped(reason))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! The results as one self-contained HTML file.

use std::fmt::{self, Display, Formatter, Write};

use super::axis::{Axis, grouped};
use super::results::{MeasuredWorkload, Results};
use super::statistics::Summary;
use super::table::{self, COSTS, COSTS_PER_MESSAGE, Cell, ReportRow, Verdict, zeros};
use super::{curves, plots};
use crate::load::Percentiles;

const STYLE: &str = include_str!("report.css");

const LEGEND: &str = "\
<p>Each dot is a round, the bar is the median of the rounds, the line goes from the least to the
largest. The dashed line is the median of what the row is compared with. A ratio is taken within each
round; shown are the median of these ratios and its 95&nbsp;% confidence interval (bootstrap), with
fewer than five rounds the least and the largest. It is bold, and the list above calls it less or more,
where a confidence interval does not hold 1.</p>
<p>In the small plots a row's own line is before those of all others; dashed is what it is compared with.
Latency by percentile is the median of the rounds at each percentile. Over time it is the longest answer of
each moment, in the round in which one took longest; a stall, 25&nbsp;ms or more in which nothing came though
something was owed, is marked.</p>
";

/// One table for each figure of each workload, with a plot in each row.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::new();
    write_page(&mut text, results).expect("a string takes everything");
    text
}

fn write_page(text: &mut String, results: &Results) -> fmt::Result {
    let title = "Runtimes compared";
    writeln!(text, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(text, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(text, "<title>{title}, {}</title>", Escaped(&results.host.date))?;
    writeln!(text, "<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>")?;
    for (name, fact) in results.host.facts() {
        writeln!(text, "<dt>{name}</dt><dd>{}</dd>", Escaped(&fact))?;
    }
    writeln!(text, "<dt>Command</dt><dd><code>{}</code></dd>", Escaped(&results.command))?;
    let Results { server_core, load_core, .. } = results;
    writeln!(
        text,
        "<dt>Ran on</dt><dd>servers on core {server_core}, load on core {load_core}</dd>"
    )?;
    if let Some(why) = &results.no_calls {
        writeln!(text, "<dt>System calls</dt><dd>not counted: {}</dd>", Escaped(why))?;
    }
    writeln!(text, "</dl>\n<ul>")?;
    let tables: Vec<_> = results.workloads.iter().map(table::rows).collect();
    for (index, (measured, lines)) in results.workloads.iter().zip(&tables).enumerate() {
        let name = Escaped(&measured.workload.name);
        let sentence = table::sentence(measured, lines);
        let sentence = Escaped(&sentence);
        writeln!(text, "<li><a href=\"#workload-{index}\">{name}</a><br>{sentence}</li>")?;
    }
    writeln!(text, "</ul>\n{LEGEND}")?;
    let mut sweep = None;
    for (index, (measured, lines)) in results.workloads.iter().zip(&tables).enumerate() {
        if sweep != measured.workload.sweep.as_deref() {
            sweep = measured.workload.sweep.as_deref();
            rates(text, results, sweep, index)?;
        }
        let name = Escaped(&measured.workload.name);
        writeln!(text, "<section aria-labelledby=\"workload-{index}\">")?;
        writeln!(text, "<h2 id=\"workload-{index}\">{name}</h2>")?;
        workload(text, measured, lines, index)?;
        writeln!(text, "</section>")?;
    }
    writeln!(text, "</body>\n</html>")
}

/// Throughput against latency, for the workloads of one sweep.
fn rates(text: &mut String, results: &Results, sweep: Option<&str>, index: usize) -> fmt::Result {
    let Some(name) = sweep else { return Ok(()) };
    let of_it = |measured: &&MeasuredWorkload| measured.workload.sweep.as_deref() == sweep;
    let workloads: Vec<_> = results.workloads.iter().filter(of_it).collect();
    writeln!(text, "<section>\n<h2>{}</h2>", Escaped(name))?;
    writeln!(text, "<p>Latency against what was achieved, as more and more is asked for.</p>")?;
    let p50: fn(&Percentiles) -> f64 = |latency| latency.p50;
    for (which, latency) in [("p50", p50), ("p99", |latency| latency.p99)] {
        if let Some((across, curves)) = curves::rates(&workloads, latency) {
            let title = format!("latency {which}, us, by messages a second");
            plots::multiples(text, &format!("rates-{index}-{which}"), &title, &across, &curves)?;
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
    let (done, planned) = (measured.rounds_done(), measured.rounds);
    let rounds = if done < planned { format!("{done} of {planned}") } else { planned.to_string() };
    writeln!(text, ". Rounds: {rounds}. Compared with {}.</p>", Escaped(workload.baseline.name()))?;
    for (index, shown) in workload.figures.iter().enumerate() {
        figure(text, workload.title(*shown), lines, index)?;
    }
    costs(text, measured)?;
    if let Some((across, curves)) = curves::percentiles(lines) {
        let id = format!("percentiles-{number}");
        plots::multiples(text, &id, "latency by percentile, us", &across, &curves)?;
    }
    if let Some((across, curves)) = curves::series(lines) {
        let id = format!("series-{number}");
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

/// The table of the figure at `index`.
fn figure(text: &mut String, name: &str, lines: &[ReportRow<'_>], index: usize) -> fmt::Result {
    let axis = Axis::of(lines.iter().flat_map(|line| &line.cells[index].rounds).map(|it| it.1));
    let scale = if axis.logarithmic { " <span class=\"muted\">(logarithmic)</span>" } else { "" };
    writeln!(text, "<table>\n<caption>{}{scale}</caption>", Escaped(name))?;
    write!(text, "<thead><tr><th scope=\"col\">server</th><th scope=\"col\" class=\"plot\"")?;
    write!(text, " aria-label=\"plot\"><svg height=\"18\" aria-hidden=\"true\">")?;
    for (tick, label) in axis.labels() {
        let x = axis.at(tick);
        write!(text, "<text x=\"{x}\" y=\"14\" text-anchor=\"middle\">{label}</text>")?;
    }
    write!(text, "</svg></th><th scope=\"col\" class=\"median\">median</th>")?;
    write!(text, "<th scope=\"col\" class=\"range\">least–largest</th>")?;
    writeln!(text, "<th scope=\"col\" class=\"ratio\">ratio</th></tr></thead>\n<tbody>")?;
    for line in lines {
        let class = if line.is_baseline { " class=\"baseline\"" } else { "" };
        let server = Escaped(&line.row.server.name);
        write!(text, "<tr{class}><th scope=\"row\" title=\"{server}\">{server}</th>")?;
        write!(text, "<td class=\"plot\">")?;
        let cell = &line.cells[index];
        strip(text, &axis, cell, &format!("{server}, {}", Escaped(name)))?;
        let (median, range) = cell.range.map_or_else(
            || ("–".to_owned(), "–".to_owned()),
            |Summary { median, low, high, .. }| {
                (grouped(median), format!("{}–{}", grouped(low), grouped(high)))
            },
        );
        write!(text, "</td><td class=\"median\">{median}</td><td class=\"range\">{range}</td>")?;
        writeln!(text, "<td class=\"ratio\">{}</td></tr>", ratio(line, cell))?;
    }
    writeln!(text, "</tbody>\n</table>")
}

fn ratio(line: &ReportRow<'_>, cell: &Cell) -> String {
    match cell.ratio {
        None if line.is_baseline => "<span class=\"muted\">baseline</span>".to_owned(),
        None => "–".to_owned(),
        Some(Summary { median, low, high, .. }) => {
            // The column has room for so many digits.
            let digits = if high >= 10.0 { 1 } else { 3 };
            let ratio = format!("{median:.digits$} ({low:.digits$}–{high:.digits$})");
            match cell.verdict() {
                Some(Verdict::Less | Verdict::More) => format!("<strong>{ratio}</strong>"),
                _ => ratio,
            }
        }
    }
}

/// The plot of a row; `name` is HTML.
fn strip(text: &mut String, axis: &Axis, cell: &Cell, name: &str) -> fmt::Result {
    write!(text, "<svg height=\"24\" role=\"img\"><title>{name}</title><desc>")?;
    match cell.range {
        None => write!(text, "nothing was measured")?,
        Some(Summary { median, low, high, rounds }) => {
            let [median, low, high] = [median, low, high].map(grouped);
            write!(text, "median {median}, from {low} to {high}, {rounds} rounds")?;
        }
    }
    if let Some(zeros) = zeros(&cell.rounds) {
        write!(text, ", 0 in {zeros}")?;
    }
    if let Some(baseline) = cell.baseline {
        write!(text, "; compared with {}", grouped(baseline))?;
    }
    write!(text, "</desc>")?;
    let upright = |text: &mut String, class: &str, figure: f64, from: u32, to: u32| {
        let x = axis.at(figure);
        write!(text, "<line class=\"{class}\" x1=\"{x}\" x2=\"{x}\" y1=\"{from}\" y2=\"{to}\"/>")
    };
    for tick in &axis.ticks {
        upright(text, "grid", *tick, 0, 24)?;
    }
    if let Some(baseline) = cell.baseline {
        upright(text, "base", baseline, 0, 24)?;
    }
    if let Some(Summary { median, low, high, .. }) = cell.range {
        let (low, high) = (axis.at(low), axis.at(high));
        write!(text, "<line class=\"range\" x1=\"{low}\" x2=\"{high}\" y1=\"12\" y2=\"12\"/>")?;
        for (round, figure) in &cell.rounds {
            let (x, shown) = (axis.at(*figure), grouped(*figure));
            write!(text, "<circle class=\"round\" cx=\"{x}\" cy=\"12\" r=\"3\">")?;
            write!(text, "<title>round {round}: {shown}</title></circle>")?;
        }
        upright(text, "median", median, 5, 19)?;
    }
    write!(text, "</svg>")
}

/// Text, escaped for HTML.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::calls::SystemCalls;
    use super::super::host::Host;
    use super::super::plan::Plan;
    use super::super::results::{Row, Sample, tests};
    use super::*;
    use crate::load::report::{Arrivals, Messages};
    use crate::load::{ResourceUsage, Series, Stalls};

    /// A round in which a message took the server so long.
    fn round(cpu_ns: u64) -> Result<Sample, String> {
        let mut sample = tests::sample();
        let report = &mut sample.report;
        report.server = report.server.take().map(|server| {
            ResourceUsage { user_ns: cpu_ns, system_ns: 0, ..server }.over_messages(1)
        });
        report.arrivals = Some(Arrivals::default());
        Ok(sample)
    }

    fn results() -> Results {
        let plan = r#"
            name = "a <workload>"
            load = { command = "arrivals", busy = 1, payload = 1, rate = 50, seconds = 1 }
            servers = ["tokio", "compio"]
            baseline = "tokio"
            figures = ["cpu-per-message", "arrivals-never"]
            titles = { cpu-per-message = "CPU, ns" }
        "#;
        let mut measured = MeasuredWorkload::of(Plan::of_one(plan).unwrap(), 5);
        measured.rows[0].rounds = [1000, 1010, 1020, 1030, 1040].map(round).into();
        measured.rows[1].rounds = [2000, 2020, 2040, 2060].map(round).into();
        measured.rows[1].rounds.push(Err("load: 1 < 2 & \"3\"".to_owned()));
        let command = "cargo matrix plan.toml".to_owned();
        Results::of(command, Host::of(&[]), [0, 1], None, vec![measured])
    }

    /// The elements that are not closed.
    fn unclosed(page: &str) -> Vec<&str> {
        let mut open = Vec::new();
        for tag in page.split('<').skip(1).filter_map(|text| text.split('>').next()) {
            let name = tag.split([' ', '/']).next().unwrap_or_default();
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') || matches!(name, "!doctype" | "meta" | "br") => {}
                None => open.push(name),
            }
        }
        open
    }

    #[test]
    fn a_page_is_whole_and_needs_nothing_else() {
        let page = page(&results());
        assert_eq!(unclosed(&page), [""; 0]);
        for outside in ["http", "src=", "<script", "<link", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("a &lt;workload&gt;"));
        assert!(page.contains("compio, round 5: load: 1 &lt; 2 &amp; &quot;3&quot;"));
    }

    /// The same, with what `load` says of a steady load, at two rates.
    fn with_plots() -> Results {
        let mut results = results();
        let round = |rate: f64, longest: f64| {
            let mut sample = round(300).unwrap();
            let report = &mut sample.report;
            report.messages = Some(Messages { received_per_s: rate, ..Messages::default() });
            report.latency_us =
                Some(Percentiles { p50: 50.0, p99: 99.0, ..Percentiles::default() });
            report.curve = Some(vec![[0.0, 10.0], [0.9, 90.0], [0.99, 99.0], [1.0, longest]]);
            let longest_us = vec![90.0, 0.0, longest];
            report.series = Some(Series { slot_ms: 10.0, received: vec![5, 0, 5], longest_us });
            let (at_ms, lasted_ms) = (vec![10.0], vec![15.0]);
            report.stalls = Some(Stalls { at_ms, lasted_ms, ..Stalls::default() });
            report.warnings = vec![format!("the client used {rate} % of a core")];
            let server = report.server.as_mut().unwrap();
            server.rss_peak_kib = 2048;
            Ok(sample)
        };
        let measured = &mut results.workloads[0];
        measured.workload.sweep = Some("sweep".to_owned());
        measured.rows[0].rounds = vec![round(900.0, 200.0), round(1100.0, 400.0)];
        measured.rows[0].calls = Some(Ok(SystemCalls { all: 2.5, io_uring_enter: 0.5 }));
        measured.rows[1].rounds = vec![round(500.0, 250.0)];
        measured.rows[1].calls = Some(Err("may <not>".to_owned()));
        let mut faster = MeasuredWorkload::of(measured.workload.clone(), 5);
        faster.rows[0].rounds = vec![round(3000.0, 500.0)];
        faster.rows[1].rounds = vec![round(500.0, 250.0)];
        results.workloads.push(faster);
        results
    }

    #[test]
    fn a_row_has_its_own_plot_of_each_kind() {
        let page = page(&with_plots());
        assert_eq!(unclosed(&page), [""; 0]);
        // Two rows, in two workloads; and two of throughput against latency.
        assert_eq!(page.matches("<figure>").count(), 2 * 2 * 2 + 2 * 2);
        assert_eq!(page.matches("<section>\n<h2>sweep</h2>").count(), 1);
        assert!(page.contains("at most 3,000 messages a second"));
        // The median of two rounds at each percentile, and of the longest.
        assert!(page.contains("99 % within 99 us, all within 300 us"));
        // The round with the longest of all, and its stall.
        assert!(page.contains("longest 400 us, stalls: 1"));
        assert_eq!(page.matches("<rect class=\"mark\"").count(), 4);
        for id in page.split("href=\"#").skip(1).filter_map(|text| text.split('"').next()) {
            assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
        }
    }

    #[test]
    fn what_a_row_took_is_shown_as_far_as_it_is_known() {
        let page = page(&with_plots());
        let columns = [
            "CPU user, ns each",
            "CPU system, ns each",
            "switches each",
            "system calls each",
            "io_uring_enter each",
            "messages/s",
            "CPU, %",
            "peak memory, MiB",
            "program, MiB",
            "client CPU, %",
            "stalls, ms",
        ];
        let head = columns.map(|name| format!("<th scope=\"col\">{name}</th>")).concat();
        assert!(page.contains(&head), "{head}");
        for costs in [
            ["300", "0", "0", "2.50", "0.50", "1,000", "0", "2", "0.0010", "0", "0"],
            ["300", "0", "0", "–", "–", "500", "0", "2", "0.0010", "0", "0"],
        ] {
            let costs = costs.map(|cost| format!("<td>{cost}</td>")).concat();
            assert!(page.contains(&costs), "{costs}");
        }
        assert!(page.contains("System calls not counted: may &lt;not&gt;"));
        assert!(page.contains("Warned, the client used … % of a core: tokio, compio.</p>"));
    }

    #[test]
    fn what_can_be_said_comes_first() {
        let mut results = results();
        let four = "CPU, ns, against tokio: too few rounds to say: compio (2.000); \
                    void in some rounds: compio (1 of 5).";
        assert!(page(&results).contains(four));
        let Row { rounds, .. } = &mut results.workloads[0].rows[1];
        rounds[4] = round(2080);
        assert!(page(&results).contains("CPU, ns, against tokio: more: compio (2.000)."));
        let Row { rounds, .. } = &mut results.workloads[0].rows[0];
        let never = |sample: &mut Sample| sample.report.arrivals.as_mut().unwrap().never = 1;
        rounds[0].iter_mut().for_each(never);
        assert!(page(&results).contains("; some were not served: tokio."));
    }

    #[test]
    fn a_row_shows_its_rounds_and_what_it_is_compared_with() {
        let page = page(&results());
        assert!(page.contains("median 2,030, from 2,000 to 2,060, 4 rounds; compared with 1,020"));
        assert!(page.contains("round 4: 2,060"));
        assert!(page.contains("<td class=\"ratio\">2.000 (2.000–2.000)</td>"));
        assert_eq!(page.matches("<td class=\"ratio\"><span class=\"muted\">baseline").count(), 2);
        // Nine figures, each in both tables.
        assert_eq!(page.matches("<circle").count(), 18);
    }
}

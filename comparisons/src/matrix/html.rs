//! The results as one HTML file, which needs nothing else to be shown.

use std::fmt::{self, Display, Formatter, Write};

use super::plan::Against;
use super::results::{Measured, Results};
use super::statistics::Summary;
use super::table::{self, Cell, Line, amount, zeros};

const STYLE: &str = include_str!("report.css");

const LEGEND: &str = "\
<p>Each dot is a round, the bar is the median of the rounds, the line goes from the least to the
largest. The dashed line is the median of what the row is compared with. A ratio is taken within each
round; shown are the median of these ratios and its 95&nbsp;% confidence interval (bootstrap), with
fewer than five rounds the least and the largest. It is bold where that does not hold 1.</p>
";

/// More between the least and the largest figure than this, and the axis is logarithmic: on one that
/// begins at zero the least would be within the width of a dot.
const LINEAR_MAX: f64 = 50.0;

/// What an axis has room for.
const TICKS_MAX: f64 = 5.0;

/// What keeps dots at its ends within a strip, in per cent of its width.
const MARGIN: f64 = 2.0;

/// For each workload and each of its figures a table with a plot in each of its rows.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::new();
    write_page(&mut text, results).expect("a string takes everything");
    text
}

fn write_page(text: &mut String, results: &Results) -> fmt::Result {
    let title = "Runtimes compared";
    writeln!(text, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(text, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(text, "<title>{title}, {}</title>", Text(&results.host.date))?;
    writeln!(text, "<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>")?;
    for (name, fact) in results.host.facts() {
        writeln!(text, "<dt>{name}</dt><dd>{}</dd>", Text(&fact))?;
    }
    writeln!(text, "<dt>Command</dt><dd><code>{}</code></dd>", Text(&results.command))?;
    writeln!(text, "</dl>\n{LEGEND}<nav aria-label=\"Workloads\">\n<ul>")?;
    for (index, measured) in results.workloads.iter().enumerate() {
        let name = Text(&measured.workload.name);
        writeln!(text, "<li><a href=\"#workload-{index}\">{name}</a></li>")?;
    }
    writeln!(text, "</ul>\n</nav>")?;
    for (index, measured) in results.workloads.iter().enumerate() {
        writeln!(text, "<h2 id=\"workload-{index}\">{}</h2>", Text(&measured.workload.name))?;
        workload(text, measured)?;
    }
    writeln!(text, "</body>\n</html>")
}

fn workload(text: &mut String, measured: &Measured) -> fmt::Result {
    let workload = &measured.workload;
    write!(text, "<p><code>load {}</code>", Text(&workload.load))?;
    if measured.rows.iter().any(|row| row.server.speaks_websocket()) {
        let path = workload.service.path();
        write!(text, ", with <code>--websocket {path}</code> in rows that speak WebSocket")?;
    }
    if let Some(files) = workload.open_files {
        write!(text, ". The servers may open {files} files")?;
    }
    match &workload.against {
        Against::Peer => write!(text, ". Compared with the echo server written by hand")?,
        Against::Tcp => write!(text, ". Compared with the same over TCP")?,
        Against::Server(name) => write!(text, ". Compared with {}", Text(name))?,
    }
    writeln!(text, ".</p>")?;
    let lines = table::lines(measured);
    for (index, (name, _)) in workload.figures.iter().enumerate() {
        figure(text, name, &lines, index)?;
    }
    let void = measured.rows.iter().flat_map(|row| {
        let rounds = (1..).zip(&row.rounds);
        rounds.filter_map(|(round, it)| Some((&row.server, round, it.as_ref().err()?)))
    });
    for (index, (server, round, why)) in void.enumerate() {
        let begin = if index == 0 { "<p>Void:</p>\n<ul class=\"void\">\n" } else { "" };
        let (server, why) = (Text(server.name()), Text(why));
        writeln!(text, "{begin}<li>{server}, round {round}: {why}</li>")?;
    }
    let is_void = measured.rows.iter().flat_map(|row| &row.rounds).any(Result::is_err);
    writeln!(text, "{}", if is_void { "</ul>" } else { "" })
}

/// The table of the figure at `index`.
fn figure(text: &mut String, name: &str, lines: &[Line<'_>], index: usize) -> fmt::Result {
    let axis = Axis::of(lines.iter().flat_map(|line| &line.cells[index].rounds).map(|it| it.1));
    let scale = if axis.logarithmic { " <span class=\"muted\">(logarithmic)</span>" } else { "" };
    writeln!(text, "<table>\n<caption>{}{scale}</caption>", Text(name))?;
    write!(text, "<thead><tr><th scope=\"col\">server</th><th scope=\"col\" class=\"plot\">")?;
    axis.write_labels(text)?;
    write!(text, "</th><th scope=\"col\" class=\"median\">median</th>")?;
    write!(text, "<th scope=\"col\" class=\"range\">least–largest</th>")?;
    writeln!(text, "<th scope=\"col\" class=\"ratio\">ratio</th></tr></thead>\n<tbody>")?;
    for line in lines {
        let class = if line.is_baseline { " class=\"baseline\"" } else { "" };
        let server = Text(line.row.server.name());
        write!(text, "<tr{class}><th scope=\"row\" title=\"{server}\">{server}</th>")?;
        write!(text, "<td class=\"plot\">")?;
        let cell = &line.cells[index];
        strip(text, &axis, cell, &format!("{server}, {}", Text(name)))?;
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

fn ratio(line: &Line<'_>, cell: &Cell) -> String {
    match cell.ratio {
        None if line.is_baseline => "<span class=\"muted\">baseline</span>".to_owned(),
        None => "–".to_owned(),
        Some(Summary { median, low, high, .. }) => {
            let ratio = format!("{median:.3} ({low:.3}–{high:.3})");
            let holds_one = low <= 1.0 && 1.0 <= high;
            if holds_one { ratio } else { format!("<strong>{ratio}</strong>") }
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

/// Where figures stand: from zero on, or by their logarithm.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let (least, largest) = figures
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), it| (low.min(it), high.max(it)));
        if least > 0.0 && least.is_finite() && largest / least > LINEAR_MAX {
            let (low, high) = (least.log10().floor() as i32, largest.log10().ceil() as i32);
            let every = (f64::from(high - low) / TICKS_MAX).ceil().max(1.0) as usize;
            let ticks = (low..=high).step_by(every).map(|power| 10_f64.powi(power)).collect();
            let (low, high) = (10_f64.powi(low), 10_f64.powi(high));
            return Self { low, high, logarithmic: true, ticks };
        }
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let power = 10_f64.powf((largest / TICKS_MAX).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let step = steps.into_iter().find(|step| largest / step <= TICKS_MAX).unwrap_or(largest);
        let count = (largest / step).ceil() as u32;
        let ticks = (0..=count).map(|tick| f64::from(tick) * step).collect();
        Self { low: 0.0, high: f64::from(count) * step, logarithmic: false, ticks }
    }

    /// Where it stands, as SVG has it.
    fn at(&self, figure: f64) -> String {
        let share = if self.logarithmic {
            (figure / self.low).log10() / (self.high / self.low).log10()
        } else {
            figure / self.high
        };
        format!("{:.2}%", MARGIN + share * (100.0 - 2.0 * MARGIN))
    }

    fn write_labels(&self, text: &mut String) -> fmt::Result {
        write!(text, "<svg height=\"18\" role=\"presentation\">")?;
        for tick in &self.ticks {
            let (x, shown) = (self.at(*tick), grouped(*tick));
            write!(text, "<text x=\"{x}\" y=\"14\" text-anchor=\"middle\">{shown}</text>")?;
        }
        write!(text, "</svg>")
    }
}

/// An amount, with commas between thousands.
fn grouped(figure: f64) -> String {
    let amount = amount(figure);
    let whole = amount.find('.').unwrap_or(amount.len());
    let mut grouped = String::new();
    for (index, digit) in amount.char_indices() {
        if index > 0 && index < whole && (whole - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// What is shown as it is.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
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
    use serde_json::json;

    use super::*;

    fn results() -> Results {
        let round = |cpu: f64| json!({ "Ok": { "server": { "cpu_ns": cpu }, "never": 0 } });
        let rounds: Vec<_> = [1000.0, 1010.0, 1020.0, 1030.0, 1040.0].map(round).into();
        let mut twice: Vec<_> = [2000.0, 2020.0, 2040.0, 2060.0].map(round).into();
        twice.push(json!({ "Err": "load: 1 < 2 & \"3\"" }));
        serde_json::from_value(json!({
            "command": "cargo matrix plan.toml",
            "host": {
                "processor": "one", "cores": 2, "kernel": "Linux", "compiler": "rustc",
                "commit": "abc", "date": "today",
            },
            "server_core": 0,
            "load_core": 1,
            "workloads": [{
                "workload": {
                    "name": "a <workload>", "load": "echo --seconds 1", "against": "tokio",
                    "servers": ["tokio", "compio"],
                    "figures": [["CPU, ns", "/server/cpu_ns"], ["never", "/never"]],
                },
                "rounds": 5,
                "rows": [
                    { "server": "tokio", "rounds": rounds },
                    { "server": "compio", "rounds": twice },
                ],
            }],
        }))
        .unwrap()
    }

    /// Elements that are never closed, and what the others leave open.
    fn unclosed(page: &str) -> Vec<&str> {
        let mut open = Vec::new();
        for tag in page.split('<').skip(1).filter_map(|text| text.split('>').next()) {
            let name = tag.split([' ', '/']).next().unwrap_or_default();
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') || matches!(name, "!doctype" | "meta") => {}
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

    #[test]
    fn a_row_shows_its_rounds_and_what_it_is_compared_with() {
        let page = page(&results());
        assert!(page.contains("median 2,030, from 2,000 to 2,060, 4 rounds; compared with 1,020"));
        assert!(page.contains("round 4: 2,060"));
        assert!(page.contains("<strong>2.000 (2.000–2.000)</strong>"));
        assert_eq!(page.matches("<td class=\"ratio\"><span class=\"muted\">baseline").count(), 2);
        // Nine figures, each in both tables.
        assert_eq!(page.matches("<circle").count(), 18);
    }

    #[test]
    fn an_axis_has_round_ticks() {
        let linear = Axis::of([30.0, 870.0].into_iter());
        assert_eq!(linear.ticks, [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!((linear.at(0.0), linear.at(500.0)), ("2.00%".to_owned(), "50.00%".to_owned()));
        let logarithmic = Axis::of([3.0, 870.0].into_iter());
        assert_eq!(logarithmic.ticks, [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(logarithmic.at(1000.0), "98.00%");
        let wide = Axis::of([1.0, 1e9].into_iter());
        assert!(wide.ticks.len() as f64 <= TICKS_MAX);
        for nothing in [Axis::of([].into_iter()), Axis::of([0.0, 0.0].into_iter())] {
            assert_eq!((nothing.low, nothing.high), (0.0, 1.0));
        }
    }

    #[test]
    fn thousands_are_apart() {
        let shown = [7.0, 0.25, 999.0, 1000.0, 12_345_678.0].map(grouped);
        assert_eq!(shown, ["7", "0.25", "999", "1,000", "12,345,678"]);
    }
}

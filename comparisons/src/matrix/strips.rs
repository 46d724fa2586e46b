//! The tables of a workload's figures, with a plot in each row: a dot for each round, their median and their range.

use std::fmt::{self, Write};

use super::axis::{Axis, grouped};
use super::escape::Escaped;
use super::statistics::Summary;
use super::table::{Cell, ReportRow, zeros};

/// The first column shows so many letters of a name.
const NAME_LETTERS: usize = 30;

/// The table of figure number `figure` of workload number `workload`.
pub(crate) fn table(
    text: &mut String,
    name: &str,
    lines: &[ReportRow<'_>],
    [workload, figure]: [usize; 2],
) -> fmt::Result {
    let axis = Axis::of(lines.iter().flat_map(|line| &line.cells[figure].rounds).map(|it| it.1));
    let scale = if axis.logarithmic { " <span class=\"muted\">(logarithmic)</span>" } else { "" };
    writeln!(text, "<table>\n<caption>{}{scale}</caption>", Escaped(name))?;
    write!(text, "<thead><tr><th scope=\"col\">server</th><th scope=\"col\" class=\"plot\"")?;
    write!(text, " aria-label=\"plot\"><svg height=\"18\" aria-hidden=\"true\">")?;
    // The ticks of all rows, drawn once.
    write!(text, "<defs><path id=\"g{workload}-{figure}\" class=\"grid\" d=\"")?;
    for tick in &axis.ticks {
        write!(text, "M{} 0v24", axis.thousandth(*tick))?;
    }
    write!(text, "\"/></defs>")?;
    for (tick, label) in axis.labels() {
        let x = axis.at(tick);
        write!(text, "<text x=\"{x}\" y=\"14\" text-anchor=\"middle\">{label}</text>")?;
    }
    write!(text, "</svg></th><th scope=\"col\" class=\"median\">median</th>")?;
    write!(text, "<th scope=\"col\" class=\"range\">least–largest</th>")?;
    writeln!(text, "<th scope=\"col\" class=\"ratio\">ratio</th></tr></thead>\n<tbody>")?;
    for (number, line) in lines.iter().enumerate() {
        write!(text, "<tr")?;
        if figure == 0 {
            // The heat map links to it.
            write!(text, " id=\"w{workload}-{number}\"")?;
        }
        if line.is_baseline {
            write!(text, " class=\"baseline\"")?;
        }
        let server = &line.row.server.name;
        write!(text, "><th scope=\"row\"")?;
        if server.chars().count() > NAME_LETTERS {
            write!(text, " title=\"{}\"", Escaped(server))?;
        }
        write!(text, ">{}</th><td class=\"plot\">", Escaped(server))?;
        let cell = &line.cells[figure];
        strip(text, &axis, cell, &format!("g{workload}-{figure}"))?;
        let (median, range) = cell.range.map_or_else(
            || ("–".to_owned(), "–".to_owned()),
            |Summary { median, low, high, .. }| {
                (grouped(median), format!("{}–{}", grouped(low), grouped(high)))
            },
        );
        write!(text, "</td><td>{median}</td><td>{range}</td>")?;
        writeln!(text, "<td>{}</td></tr>", ratio(line, cell))?;
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
            if cell.is_different() { format!("<strong>{ratio}</strong>") } else { ratio }
        }
    }
}

/// The plot of a row, with the ticks that have the id `grid`. Median and range are in the row's other columns.
fn strip(text: &mut String, axis: &Axis, cell: &Cell, grid: &str) -> fmt::Result {
    write!(text, "<svg viewBox=\"0 0 1000 24\" preserveAspectRatio=\"none\"")?;
    write!(text, " role=\"img\"><title>{} rounds", cell.rounds.len())?;
    if let Some(zeros) = zeros(&cell.rounds) {
        write!(text, ", 0 in {zeros}")?;
    }
    if let Some(baseline) = cell.baseline {
        write!(text, "; compared with {}", grouped(baseline))?;
    }
    write!(text, "</title><use href=\"#{grid}\"/>")?;
    if let Some(baseline) = cell.baseline {
        write!(text, "<path class=\"base\" d=\"M{} 0v24\"/>", axis.thousandth(baseline))?;
    }
    if let Some(Summary { median, low, high, .. }) = cell.range {
        let [median, low, high] = [median, low, high].map(|figure| axis.thousandth(figure));
        write!(text, "<path class=\"range\" d=\"M{low} 12H{high}\"/>")?;
        write!(text, "<path class=\"round\" d=\"{}\"/>", dots(axis, cell))?;
        write!(text, "<path class=\"median\" d=\"M{median} 5v14\"/>")?;
    }
    write!(text, "</svg>")
}

/// A dot for each round: closed lines without a length, whose ends are round. Dots on one another are drawn once.
fn dots(axis: &Axis, cell: &Cell) -> String {
    let mut positions: Vec<_> = cell.rounds.iter().map(|(_, it)| axis.thousandth(*it)).collect();
    positions.sort_unstable();
    positions.dedup();
    let mut text = String::new();
    let mut from = None;
    for position in positions {
        match from {
            None => text += &format!("M{position} 12z"),
            Some(from) => text += &format!("m{} 0z", position - from),
        }
        from = Some(position);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_dots_from_the_least_to_the_largest() {
        let rounds = vec![(1, 100.0), (2, 50.0), (3, 99.99), (5, 0.0)];
        let axis = Axis::of(rounds.iter().map(|it| it.1));
        let cell = Cell { rounds, range: None, ratio: None, paired: None, baseline: None };
        assert_eq!(dots(&axis, &cell), "M20 12zm480 0zm480 0z");
    }
}

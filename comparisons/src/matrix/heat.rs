//! The heat map: rows × workloads, each cell a link to its table.

use std::fmt::{self, Write};

use super::escape::Escaped;
use super::overview::{Column, Entry, Outcome, Overview, short};
use super::statistics::Summary;
use super::table::Verdict;

/// The classes of differences, by how far the cost is from 1 to either side: the least of each class but the first.
const STEPS: [f64; 3] = [1.05, 1.2, 2.0];

/// The controls, which work with the script only.
const CONTROLS: &str = "\
<form class=\"controls\" hidden>
<label>Rows <input type=\"search\" name=\"rows\" placeholder=\"part of a name\"></label>
<label>Workloads <input type=\"search\" name=\"workloads\" placeholder=\"part of a name\"></label>
<label>Runtime <select name=\"runtime\"><option value=\"\">all</option></select></label>
<label>Plan <select name=\"plan\"><option value=\"\">all</option></select></label>
<label>Sort by <select name=\"sort\"><option value=\"\">the plans' order</option><option value=\"name\">name</option>\
</select></label>
<label><input type=\"checkbox\" name=\"decided\"> only better, worse or equal</label>
<output aria-live=\"polite\"></output>
</form>
";

const LEGEND: &str = "\
<p class=\"key\"><span class=\"b4\">2×</span><span class=\"b3\">20 %</span><span class=\"b2\">5 %</span>\
<span class=\"b1\">better</span><span class=\"eq\">equal</span><span class=\"w1\">worse</span>\
<span class=\"w2\">5 %</span><span class=\"w3\">20 %</span><span class=\"w4\">2×</span>\
<span class=\"no\">undecided</span><span class=\"void\">void</span>\
<span class=\"base\">· baseline</span></p>
<details><summary>How to read it</summary>
<p>A cell is the ratio of the workload's first figure to the row's baseline: 1.10 is 10 % more. Blue is better and \
orange worse: more is worse, but for the figures marked ↑. A row is <em>better</em> or <em>worse</em> when the confidence \
interval of the ratio does not hold 1. Two rows are <em>equal</em> when it holds 1 and reaches at most as far from 1 as \
the plan wants it to be narrow, which is 2 % to either side if the plan does not say. All else is <em>undecided</em>. In \
the map the arrow keys go from cell to cell.</p>
</details>
";

/// The heat map with its controls.
pub(crate) fn map(text: &mut String, overview: &Overview<'_>) -> fmt::Result {
    writeln!(text, "<section class=\"map\" aria-label=\"all ratios\">\n{CONTROLS}{LEGEND}")?;
    writeln!(text, "<div class=\"heat\" role=\"region\" aria-label=\"heat map\" tabindex=\"0\">")?;
    writeln!(text, "<table>\n<caption>Ratio to the row's baseline</caption>\n<thead>")?;
    head(text, overview)?;
    writeln!(text, "</thead>\n<tbody>")?;
    for (number, row) in overview.rows.iter().enumerate() {
        let (name, runtime) = (Escaped(row.name), Escaped(row.runtime));
        write!(text, "<tr data-runtime=\"{runtime}\" style=\"--r:{}\">", number + 1)?;
        write!(text, "<th scope=\"row\">{name}</th>")?;
        for (number, (column, entry)) in overview.columns.iter().zip(&row.entries).enumerate() {
            cell(text, row.name, (number, column), entry.as_ref())?;
        }
        writeln!(text, "</tr>")?;
    }
    writeln!(text, "</tbody>\n</table>\n</div>")?;
    // What a cell says in full, shown by the script for the cell with the pointer or the focus.
    writeln!(text, "<p class=\"readout\" aria-hidden=\"true\"></p>\n</section>")
}

/// A row of plans, if there are several, and a row of workloads.
fn head(text: &mut String, overview: &Overview<'_>) -> fmt::Result {
    if overview.columns.iter().any(|column| column.plan.is_some()) {
        write!(text, "<tr class=\"plans\"><td></td>")?;
        for (plan, columns) in overview.plans() {
            let (plan, span) = (Escaped(plan.unwrap_or_default()), columns.len());
            write!(text, "<th scope=\"colgroup\" colspan=\"{span}\"><span>{plan}</span></th>")?;
        }
        writeln!(text, "</tr>")?;
    }
    write!(text, "<tr class=\"workloads\"><th scope=\"col\">server</th>")?;
    for (number, column) in overview.columns.iter().enumerate() {
        let (name, figure) = (Escaped(column.name), Escaped(column.figure));
        let up = if column.higher_is_better { " ↑" } else { "" };
        let plan = Escaped(column.plan.unwrap_or_default());
        write!(text, "<th scope=\"col\" data-plan=\"{plan}\" style=\"--w:{number}\">")?;
        write!(text, "<a href=\"#workload-{number}\">{name}")?;
        write!(text, "<small>{figure}{up}</small></a></th>")?;
    }
    writeln!(text, "</tr>")
}

fn cell(
    text: &mut String,
    row: &str,
    (number, column): (usize, &Column<'_>),
    entry: Option<&Entry<'_>>,
) -> fmt::Result {
    let Some(entry) = entry else { return write!(text, "<td></td>") };
    let class = class(column, entry);
    let part = if (1..entry.voids[1]).contains(&entry.voids[0]) { " part" } else { "" };
    let server = Escaped(row);
    write!(text, "<td class=\"{class}{part}\" style=\"--w:{number}\"")?;
    if let Some((ratio, _)) = entry.ratio() {
        write!(text, " data-c=\"{:.4}\"", column.cost(ratio.median))?;
    }
    let sentence = entry.sentence(column);
    write!(text, "><a href=\"#w{number}-{}\" data-r=\"{server}\"", entry.line)?;
    write!(text, " aria-label=\"{server}, ")?;
    write!(text, "{}: {}\">", Escaped(&column.measured.workload.name), Escaped(&sentence))?;
    match entry.outcome {
        Outcome::Baseline => write!(text, "·")?,
        Outcome::NoRatio => write!(text, "–")?,
        Outcome::Void(_) => write!(text, "void")?,
        Outcome::Ratio(Summary { median, low, high, .. }, _) => {
            let [median, low, high] = [median, low, high].map(short);
            write!(text, "{median}<small> {low}–{high}</small>")?;
        }
    }
    write!(text, "</a></td>")
}

/// How a cell looks: `b` better, `w` worse, by how much.
fn class(column: &Column<'_>, entry: &Entry<'_>) -> String {
    let (ratio, verdict) = match entry.outcome {
        Outcome::Baseline => return "base".to_owned(),
        Outcome::Void(_) => return "void".to_owned(),
        Outcome::NoRatio => return "no".to_owned(),
        Outcome::Ratio(ratio, verdict) => (ratio, verdict),
    };
    let cost = column.cost(ratio.median);
    match verdict {
        Verdict::Undecided | Verdict::TooFewRounds => "no".to_owned(),
        Verdict::Equal => "eq".to_owned(),
        Verdict::Less | Verdict::More => {
            let far = cost.max(cost.recip());
            let step = 1 + STEPS.iter().filter(|step| far >= **step).count();
            let side = if cost > 1.0 { 'w' } else { 'b' };
            format!("{side}{step}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::overview::tests::{results, tables};
    use super::*;

    fn shown(names: &[&str], ratios: &[[f64; 3]]) -> String {
        let results = results(names, 6);
        let tables = tables(&results, ratios);
        let mut text = String::new();
        map(&mut text, &Overview::of(&results, &tables)).unwrap();
        text
    }

    #[test]
    fn a_cell_says_what_it_shows_and_links_to_its_table() {
        let map = shown(&["a <b> & \"c\""], &[[1.1, 1.25, 1.3]]);
        let cell = "<td class=\"w3\" style=\"--w:0\" data-c=\"1.2500\">\
            <a href=\"#w0-2\" data-r=\"monoio\" aria-label=\"monoio, a &lt;b&gt; &amp; &quot;c&quot;: \
            CPU ns/message 1.250 of tokio (1.100 to 1.300), worse\">\
            1.25<small> 1.10–1.30</small></a></td>";
        assert!(map.contains(cell), "{map}");
        let void =
            "aria-label=\"compio, a &lt;b&gt; &amp; &quot;c&quot;: void: 1 &lt; 2\">void</a>";
        assert!(map.contains(void), "{map}");
        let row = "<tr data-runtime=\"compio\" style=\"--r:1\"><th scope=\"row\">compio</th>\
            <td class=\"void\"";
        assert!(map.contains(row), "{map}");
        assert!(map.contains("<caption>"));
    }

    #[test]
    fn each_verdict_has_its_own_class() {
        let names = ["a: 1", "a: 2", "b: 3", "b: 4", "b: 5", "c: 6"];
        let ratios = [
            [0.9, 1.0, 1.1],
            [0.99, 1.0, 1.01],
            [1.01, 1.02, 1.03],
            [0.94, 0.95, 0.96],
            [0.1, 0.5, 0.6],
            [3.0, 4.0, 5.0],
        ];
        let map = shown(&names, &ratios);
        let classes =
            map.split("<td class=\"").skip(1).filter(|cell| cell.contains("data-r=\"monoio\""));
        let classes: Vec<_> = classes.filter_map(|cell| cell.split('"').next()).collect();
        assert_eq!(classes, ["no", "eq", "w1", "b2", "b4", "w4"]);
        let plans = "<th scope=\"colgroup\" colspan=\"3\"><span>b</span></th>";
        assert!(map.contains(plans), "{map}");
    }
}

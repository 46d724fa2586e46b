//! The report on the terminal: a table of all ratios, and what was found.

use std::fmt::Write;
use std::io;

use rustix::termios;

use super::findings::Finding;
use super::overview::{Entry, Outcome, Overview, OverviewRow, short};
use super::table::Verdict;

const MARKS: &str = "Ratios to each row's baseline. No mark: different from 1. = equal. ? undecided. ↑ more is better.";

/// The width without a terminal, in columns.
const WIDTH: usize = 80;

/// At the least there is room for so much, however narrow the terminal.
const WIDTH_MIN: usize = 40;

/// The width of a ratio with its mark and the space before it.
const ENTRY_WIDTH: usize = 7;

/// A longer name is cut.
const NAME_MAX: usize = 32;

/// The width of the terminal that standard output is, in columns.
pub(crate) fn width() -> usize {
    let size = termios::tcgetwinsize(io::stdout()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0).unwrap_or(WIDTH)
}

/// One table for each plan, with as many columns as fit into `width`, and the findings.
pub(crate) fn text(overview: &Overview<'_>, findings: &[Finding], width: usize) -> String {
    let width = width.max(WIDTH_MIN);
    let mut text = String::new();
    for (plan, columns) in overview.plans() {
        let rows: Vec<_> =
            overview.rows.iter().filter(|row| !row.is_baseline(columns.iter().copied())).collect();
        let longest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let name_width = longest.min(NAME_MAX).min(width - ENTRY_WIDTH);
        let fitting = ((width - name_width) / ENTRY_WIDTH).max(1);
        for columns in columns.chunks(fitting) {
            block(&mut text, overview, plan, columns, &rows, [name_width, width])
                .expect("a string takes everything");
        }
    }
    wrap(&mut text, "", MARKS, width);
    text.push('\n');
    for (number, Finding { workload, text: sentence }) in (1..).zip(findings) {
        let name = workload.map(|number| &*overview.columns[number].measured.workload.name);
        let name = name.map_or_else(String::new, |name| format!("{name}: "));
        wrap(&mut text, &format!("{number:2}. "), &format!("{name}{sentence}"), width);
    }
    text
}

/// A table with letters for its workloads, and what they stand for.
fn block(
    text: &mut String,
    overview: &Overview<'_>,
    plan: Option<&str>,
    columns: &[usize],
    rows: &[&OverviewRow<'_>],
    [name_width, width]: [usize; 2],
) -> std::fmt::Result {
    let letters = || (0..).map(letter);
    for (letter, column) in letters().zip(columns) {
        let column = &overview.columns[*column];
        let up = if column.higher_is_better { " ↑" } else { "" };
        let baseline = column.measured.workload.baseline.name();
        let name = format!("{} ({}{up}, against {baseline})", column.name, column.figure);
        wrap(text, &format!("{letter}  "), &name, width);
    }
    write!(text, "{}", cut(plan.unwrap_or_default(), name_width))?;
    for (letter, _) in letters().zip(columns) {
        // Above the last digit.
        write!(text, "{letter:>width$} ", width = ENTRY_WIDTH - 1)?;
    }
    trim_line(text);
    for row in rows {
        write!(text, "{}", cut(row.name, name_width))?;
        for column in columns {
            let entry = row.entries[*column].as_ref().map_or_else(|| " ".to_owned(), shown);
            write!(text, "{entry:>ENTRY_WIDTH$}")?;
        }
        trim_line(text);
    }
    writeln!(text)
}

/// A ratio and its mark.
fn shown(entry: &Entry<'_>) -> String {
    match entry.outcome {
        Outcome::Baseline => "base ".to_owned(),
        Outcome::NoRatio => "– ".to_owned(),
        Outcome::Void(_) => "void ".to_owned(),
        Outcome::Ratio(ratio, verdict) => {
            let mark = match verdict {
                Verdict::Less | Verdict::More => ' ',
                Verdict::Equal => '=',
                Verdict::Undecided | Verdict::TooFewRounds => '?',
            };
            format!("{}{mark}", short(ratio.median))
        }
    }
}

/// a, b, …, z, aa, ab, …
fn letter(number: usize) -> String {
    let last = char::from(b'a' + (number % 26) as u8);
    match number / 26 {
        0 => last.to_string(),
        more => letter(more - 1) + &last.to_string(),
    }
}

/// A name in exactly `width` columns.
fn cut(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return format!("{name:width$}");
    }
    let kept: String = name.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Ends the line without spaces at its end.
fn trim_line(text: &mut String) {
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

/// A paragraph in lines of at most `width`; all but the first are as far in as `lead`.
fn wrap(text: &mut String, lead: &str, paragraph: &str, width: usize) {
    let indent = lead.chars().count();
    let mut line = lead.to_owned();
    let mut used = indent;
    for word in paragraph.split_whitespace() {
        let letters = word.chars().count();
        if used > indent && used + 1 + letters > width {
            text.push_str(&line);
            text.push('\n');
            (line, used) = (" ".repeat(indent), indent);
        }
        if used > indent {
            line.push(' ');
            used += 1;
        }
        line += word;
        used += letters;
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::findings::findings;
    use super::super::overview::tests::{results, tables};
    use super::*;

    #[test]
    fn a_plan_is_a_table_and_its_legend() {
        let results = results(&["a: first load", "a: second load", "b: other"], 6);
        let tables = tables(&results, &[[0.9, 1.0, 1.1], [1.1, 1.25, 1.3], [0.99, 1.0, 1.01]]);
        let overview = Overview::of(&results, &tables);
        let text = text(&overview, &findings(&overview, &tables), 60);
        let expected = "\
a  first load (CPU ns/message, against tokio)
b  second load (CPU ns/message, against tokio)
a          a      b
compio  void   void
monoio  1.00?  1.25

a  other (CPU ns/message, against tokio)
b          a
compio  void
monoio  1.00=

Ratios to each row's baseline. No mark: different from 1. =
equal. ? undecided. ↑ more is better.

 1. 3 ratios: 1 different from 1, 1 equal, 1 undecided.
 2. a: first load: void in every round: compio; and 2 rows
    in other workloads.
 3. a: second load: CPU ns/message of monoio is 1.25 times
    that of tokio (1.10 to 1.30): worse.
";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let names: Vec<_> = (0..30).map(|it| format!("p: a workload with number {it}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let mut results = results(&names, 6);
        for measured in &mut results.workloads {
            measured.rows[1].server.name = "a-server-with-a-very-long-name/and-options".to_owned();
        }
        let tables = tables(&results, &[[1.0, 2.0, 3.0]; 30]);
        let overview = Overview::of(&results, &tables);
        let found = findings(&overview, &tables);
        for width in [60, 80, 132] {
            let text = text(&overview, &found, width);
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(width), "{longest:?}\n{text}");
        }
    }

    #[test]
    fn letters_go_on_after_z() {
        assert_eq!([0, 25, 26, 51, 52].map(letter), ["a", "z", "aa", "az", "ba"]);
    }
}

//! The results on the terminal: a line for each cell, and what was right.

use std::fmt::Write;

use super::judge::Outcome;
use super::plan::{Program, Scenario};
use super::record::Incident;
use super::results::{Cell, Results, Run};

/// A scenario's name is cut here, so that a line fits into 80 columns.
const NAME_MAX: usize = 26;

/// A line for each cell, and the summary.
pub(crate) fn text(results: &Results) -> String {
    let mut text = format!(
        "{:NAME_MAX$} {:11} {:5} {:>8} {:>6} {:>8}  verdict\n",
        "scenario", "runtime", "", "longest", "> 1 s", "recovery"
    );
    for cell in &results.cells {
        line(&mut text, results.scenario(cell), cell).expect("a string takes everything");
    }
    text.push('\n');
    for sentence in results.summary() {
        text += &sentence;
        text.push('\n');
    }
    text
}

/// A cell in words.
pub(crate) fn name(scenario: &Scenario, runtime: &str, program: Program) -> String {
    format!("{}, {runtime}, {}", scenario.name, program.name())
}

/// The longest stall over a cell's runs, the most delayed connections and the longest recovery.
pub(crate) fn worst(cell: &Cell) -> Option<(f64, u64, Option<f64>)> {
    let runs = || cell.done().map(|run| &run.figures);
    let longest = runs().map(|it| it.longest_stall_ms).reduce(f64::max)?;
    let delayed = runs().map(|it| it.delayed).max()?;
    let recoveries: Option<Vec<f64>> = runs().map(|it| it.recovery_ms).collect();
    Some((longest, delayed, recoveries.map(|all| all.into_iter().fold(0.0, f64::max))))
}

/// A time, in ms up to a second, in three digits or so.
pub(crate) fn time(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1e3) }
}

/// How often each verdict was given, or the verdict itself if there is one run.
pub(crate) fn verdicts(scenario: &Scenario, cell: &Cell) -> String {
    let outcomes: Vec<&Outcome> =
        cell.runs.iter().filter_map(|run| Some(&run.as_ref().ok()?.outcome)).collect();
    let mut distinct: Vec<&Outcome> = Vec::new();
    for outcome in &outcomes {
        if !distinct.contains(outcome) {
            distinct.push(outcome);
        }
    }
    let counted = |outcome: &&Outcome| match cell.runs.len() {
        1 => shown(outcome, scenario, cell.shown()),
        runs => format!("{} {outcome}", of(cell.count(outcome), runs)),
    };
    let mut words: Vec<String> = distinct.iter().map(counted).collect();
    let voids = cell.runs.len() - outcomes.len();
    if voids > 0 {
        words.push(format!("{} void", of(voids, cell.runs.len())));
    }
    words.join(", ")
}

/// A right verdict with the class that it named: silence can be right, too.
fn shown(outcome: &Outcome, scenario: &Scenario, run: Option<&Run>) -> String {
    if *outcome != Outcome::Right {
        return outcome.to_string();
    }
    let incidents = run.map_or(&[][..], |run| &run.incidents);
    let truth = scenario.class.as_deref();
    let truth = truth.filter(|class| incidents.iter().any(|it| it.seen(class).is_some()));
    let class = truth.or_else(|| incidents.first().map(Incident::class)).unwrap_or("none");
    format!("right: {}", class.replace('_', " "))
}

fn of(count: usize, all: usize) -> String {
    format!("{count}/{all}")
}

fn line(text: &mut String, scenario: &Scenario, cell: &Cell) -> std::fmt::Result {
    let name: String = scenario.name.chars().take(NAME_MAX).collect();
    write!(text, "{name:NAME_MAX$} {:11} {:5} ", cell.runtime, cell.program.name())?;
    match worst(cell) {
        Some((longest, delayed, recovery)) => {
            let recovery = recovery.map_or_else(|| "never".to_owned(), time);
            write!(text, "{:>8} {delayed:>6} {recovery:>8}", time(longest))?;
        }
        None => write!(text, "{:>8} {:>6} {:>8}", "–", "–", "–")?,
    }
    writeln!(text, "  {}{}", verdicts(scenario, cell), client(cell))
}

/// A mark for runs that may have measured their clients.
pub(crate) fn client(cell: &Cell) -> String {
    match cell.client_busy_count() {
        0 => String::new(),
        busy => format!("; client busy in {}", of(busy, cell.runs.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stalls::results::tests::results;

    #[test]
    fn each_cell_has_a_line() {
        let text = text(&results());
        for line in [
            "a <blocked> loop           tokio       naive   800 ms      0   700 ms  1/2 right, 1/2 void",
            "a <blocked> loop           monoio      naive   800 ms      0   700 ms  1/2 wrong: lost accept, 1/2 void",
            "healthy                    tokio       ours      2 ms      0     0 ms  1/2 right, 1/2 void",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(text.ends_with("Void: 8 runs.\n"), "{text}");
    }

    #[test]
    fn a_busy_client_is_marked() {
        let mut results = results();
        if let Ok(run) = &mut results.cells[1].runs[0] {
            run.figures.client_cpu_percent = 95.0;
        }
        let text = text(&results);
        assert_eq!(text.matches("right, 1/2 void; client busy in 1/2\n").count(), 1, "{text}");
    }

    #[test]
    fn one_run_says_what_was_named() {
        let mut results = results();
        for cell in &mut results.cells {
            cell.runs.truncate(1);
        }
        let cells = results.cells.iter().take(3);
        let verdicts: Vec<_> = cells.map(|cell| verdicts(results.scenario(cell), cell)).collect();
        assert_eq!(verdicts, ["right: blocked loop", "right: none", "wrong: lost accept"]);
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!([0.4, 999.0, 12_340.0].map(time), ["0 ms", "999 ms", "12.3 s"]);
    }
}

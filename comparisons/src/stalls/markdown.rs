//! The results as a table in Markdown, for a record.

use std::fmt::Write;

use super::results::Results;
use super::terminal;
use crate::matrix::axis::grouped;

/// The command, what was right, and a row for each cell. A figure is the worst of its runs. Where a server waited for a
/// CPU though nothing was done to it, the machine had other work.
pub(crate) fn text(results: &Results) -> String {
    let mut text = format!("`{}`, {}:\n\n", results.command, results.host.date);
    for sentence in results.summary() {
        text += &format!("- {sentence}\n");
    }
    text += "\n| scenario | runtime | server | runs | longest wait | waits over 1 s | recovery | accepts a second |";
    text += " server waits for a CPU | verdict |\n";
    text += "|---|---|---|--:|--:|--:|--:|--:|--:|---|\n";
    for cell in &results.cells {
        let scenario = results.scenario(cell);
        let (name, program) = (&scenario.name, cell.program.name());
        write!(text, "| {name} | {} | {program} | {} | ", cell.runtime, cell.runs.len())
            .expect("a string takes everything");
        text += &match terminal::worst(cell) {
            Some((longest, delayed, recovery)) => {
                let recovery = recovery.map_or_else(|| "never".to_owned(), terminal::time);
                format!("{} | {delayed} | {recovery}", terminal::time(longest))
            }
            None => "– | – | –".to_owned(),
        };
        let waited = cell.done().map(|run| run.cpu_wait_percent).reduce(f64::max);
        let waited = waited.map_or_else(|| "–".to_owned(), |most| format!("{most:.0} %"));
        let accepted = cell.done().filter_map(|run| run.figures.accepted_per_s).reduce(f64::min);
        let accepted = accepted.map_or_else(|| "–".to_owned(), |least| grouped(least.round()));
        let verdicts = terminal::verdicts(scenario, cell) + &terminal::client(cell);
        text += &format!(" | {accepted} | {waited} | {verdicts} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stalls::results::tests::results;

    #[test]
    fn each_cell_has_a_row() {
        let mut results = results();
        if let Ok(run) = &mut results.cells[0].runs[0] {
            run.figures.accepted_per_s = Some(1_499.6);
        }
        let text = text(&results);
        for row in [
            "| a <blocked> loop | tokio | naive | 2 | 800 ms | 0 | 700 ms | 1,500 | 12 % | 1/2 right, 1/2 void |",
            "| healthy | monoio | ours | 2 | 2 ms | 0 | 0 ms | – | 12 % | 1/2 right, 1/2 void |",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with('|')).count(), 2 + 8);
        assert!(text.starts_with("`cargo stalls`, ") && text.contains("\n- Void: 8 runs.\n"));
    }
}

//! The progress of a run, on one line.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use super::results::{MeasuredWorkload, Position, Results};

/// When the run began, and the estimate of its length in seconds.
pub(crate) struct Progress {
    began: Instant,
    seconds: f64,
}

impl Progress {
    pub(crate) fn of(results: &Results) -> Self {
        Self { began: Instant::now(), seconds: seconds_left(results) }
    }

    /// Shows what is measured now.
    pub(crate) fn show(&self, results: &Results, workload: usize, next: Position) {
        let measured = &results.workloads[workload];
        let row = &measured.rows[next.row].server.name;
        let left = self.left(self.began.elapsed().as_secs_f64(), seconds_left(results));
        let (round, rounds) = (next.round + 1, measured.rounds);
        let name = &measured.workload.name;
        line(&format!("{left} left; {name}: round {round} of {rounds}, {row}"));
    }

    /// Shows which round of pairs is measured now.
    pub(crate) fn show_pairs(
        &self,
        results: &Results,
        measured: &MeasuredWorkload,
        round: usize,
        rows: usize,
    ) {
        let left = self.left(self.began.elapsed().as_secs_f64(), seconds_left(results));
        let name = &measured.workload.name;
        line(&format!("about {left} left; {name}: round {round} of pairs, {rows} rows"));
    }

    /// The time left in minutes and seconds: the estimate, scaled by its error so far.
    fn left(&self, elapsed: f64, estimate: f64) -> String {
        let done = self.seconds - estimate;
        let left = if done > 0.0 { elapsed / done * estimate } else { estimate };
        let left = left.round() as u64;
        format!("{}:{:02}", left / 60, left % 60)
    }
}

/// Shows whose system calls are counted now.
pub(crate) fn calls(workload: &str, row: &str) {
    line(&format!("{workload}: system calls, {row}"));
}

/// Prints why a round is void, below the line that names the round.
pub(crate) fn void(why: &str) {
    end();
    eprintln!("  void: {why}");
}

/// Ends the line.
pub(crate) fn end() {
    if io::stderr().is_terminal() {
        eprintln!();
    }
}

/// On a terminal, replaces the line before and is cut off at the edge.
fn line(text: &str) {
    let mut stderr = io::stderr().lock();
    // Whoever started this may not read it.
    let _ = if stderr.is_terminal() {
        write!(stderr, "\r\x1b[2K\x1b[?7l{text}\x1b[?7h")
    } else {
        writeln!(stderr, "{text}")
    };
}

fn seconds_left(results: &Results) -> f64 {
    let counting = |measured: &MeasuredWorkload| {
        // Rows are counted after all rounds.
        let is_measured = measured.next().is_none() && measured.unfinished().is_empty();
        let left = if is_measured { measured.uncounted().len() } else { measured.rows.len() };
        let load = measured.workload.load_for_counting().filter(|_| results.no_calls.is_none());
        load.map_or(0.0, |load| left as f64 * load.run_seconds())
    };
    results.workloads.iter().map(|it| it.seconds_left() + counting(it)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_the_estimate_until_it_is_measured() {
        let progress = Progress { began: Instant::now(), seconds: 100.0 };
        assert_eq!(progress.left(0.0, 100.0), "1:40");
        assert_eq!(progress.left(30.0, 80.0), "2:00");
        assert_eq!(progress.left(100.0, 0.0), "0:00");
    }
}

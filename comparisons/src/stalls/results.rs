//! The results of a run of the lab, and their file.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Failure;
use super::figures::Figures;
use super::judge::Outcome;
use super::plan::{Program, Scenario};
use super::record::Incident;
use super::watch::Sample;
use crate::load::report::{CLIENT_CPU_PERCENT_MAX, Timeline};
use crate::matrix::host::Host;
use crate::matrix::results;

/// The format of the file.
const FORMAT: u32 = 3;

/// A run recovers within so long, for the summary.
pub(crate) const RECOVERY_MS_MAX: f64 = 1_000.0;

/// A client of our server waits at most so long, for the summary.
pub(crate) const OUR_STALL_MS_MAX: f64 = 100.0;

/// The order of the runtimes in reports, whichever a run begins with. Others come after them.
const RUNTIMES: [&str; 6] = ["tokio", "tokio-multi", "tokio-uring", "compio", "monoio", "glommio"];

/// So many right runs of a cell keep their details, some tens of KB each.
const DETAILED_MAX: usize = 3;

/// All that was run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    format: u32,
    /// The command line.
    pub(crate) command: String,
    pub(crate) host: Host,
    pub(crate) server_core: usize,
    pub(crate) load_core: usize,
    pub(crate) scenarios: Vec<Scenario>,
    /// Each scenario on each of its runtimes, naive and ours.
    pub(crate) cells: Vec<Cell>,
}

/// A scenario on a runtime with one of the two servers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cell {
    /// Its number in `scenarios`.
    pub(crate) scenario: usize,
    pub(crate) runtime: String,
    pub(crate) program: Program,
    /// Each run, or why there was none.
    pub(crate) runs: Vec<Result<Run, String>>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// When the server listened, in ms since 1970, as all times here.
    pub(crate) listening_unix_ms: f64,
    /// When the fault began and ended.
    pub(crate) fault_unix_ms: [f64; 2],
    pub(crate) figures: Figures,
    /// For how much of the run its worker was ready to run and had no CPU, in per cent.
    pub(crate) cpu_wait_percent: f64,
    /// How many clients the accept queues of its network namespace dropped; none if the kernel did not say.
    #[serde(default)]
    pub(crate) listen_overflows: Option<u64>,
    pub(crate) outcome: Outcome,
    pub(crate) incidents: Vec<Incident>,
    /// None if it was as right as [`DETAILED_MAX`] other runs.
    pub(crate) details: Option<Details>,
}

/// What a timeline shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Details {
    pub(crate) clients: Timeline,
    /// How late the heart of the server was: when, and ms. Empty if the server does not say.
    pub(crate) late_ms: Vec<[f64; 2]>,
    /// Whether the server says only what it calls a stall.
    #[serde(default)]
    pub(crate) has_stalls_alone: bool,
    pub(crate) samples: Vec<Sample>,
}

impl Results {
    /// Those of a run that begins.
    pub(crate) fn of(
        command: String,
        host: Host,
        [server_core, load_core]: [usize; 2],
        scenarios: Vec<Scenario>,
        programs: &[Program],
    ) -> Self {
        let mut cells = Vec::new();
        for (number, scenario) in scenarios.iter().enumerate() {
            for runtime in &scenario.runtimes {
                for &program in programs.iter().filter(|program| scenario.runs_with(**program)) {
                    let runtime = runtime.clone();
                    cells.push(Cell { scenario: number, runtime, program, runs: Vec::new() });
                }
            }
        }
        Self { format: FORMAT, command, host, server_core, load_core, scenarios, cells }
    }

    /// The distinct runtimes, as [`RUNTIMES`] orders them.
    pub(crate) fn runtimes(&self) -> Vec<&str> {
        let mut runtimes: Vec<&str> = self.cells.iter().map(|cell| &*cell.runtime).collect();
        let place = |name: &str| RUNTIMES.iter().position(|it| *it == name);
        runtimes.sort_by_key(|name| (place(name).unwrap_or(RUNTIMES.len()), *name));
        runtimes.dedup();
        runtimes
    }

    pub(crate) fn scenario(&self, cell: &Cell) -> &Scenario {
        &self.scenarios[cell.scenario]
    }

    /// Writes `results.json` into a folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), Failure> {
        let json = serde_json::to_vec(self)
            .map_err(|error| Failure::new(format!("cannot write the results: {error}")))?;
        results::write(&folder.join("results.json"), &json)
    }

    /// What was right, a sentence for each subject. Empty if nothing was run.
    pub(crate) fn summary(&self) -> Vec<String> {
        let must = |cell: &Cell, run: &Run| {
            let expectation = self.scenario(cell).expectation(cell.program, &cell.runtime);
            expectation.in_run(run.listen_overflows, run.figures.delayed).is_required
        };
        let is_healthy = |cell: &Cell| self.scenario(cell).class.is_none();
        let mut sentences = Vec::new();
        if let Some(counted) = right(&self.runs(must)) {
            sentences.push(format!(
                "Naive servers that stall: the verdict was right, and came while the stall lasted, in {counted} runs."
            ));
        }
        if let Some(counted) = right(&self.runs(|cell, run| !must(cell, run) && !is_healthy(cell)))
        {
            sentences
                .push(format!("Servers that need not stall: no false verdict in {counted} runs."));
        }
        if let Some(counted) = right(&self.runs(|cell, _| is_healthy(cell))) {
            sentences.push(format!("Healthy servers: no verdict in {counted} runs."));
        }
        sentences.extend(self.our_waits());
        sentences.extend(self.our_recovery());
        let all = self.cells.iter().flat_map(|cell| &cell.runs);
        let failed = all.filter(|run| run.is_err()).count();
        if failed > 0 {
            sentences.push(format!("Void: {failed} runs."));
        }
        sentences
    }

    /// How long clients of our server waited where nothing but the server and its load made them wait.
    fn our_waits(&self) -> Option<String> {
        let is_own = |cell: &Cell, _: &Run| {
            cell.program == Program::Ours && !self.scenario(cell).environment
        };
        let own = self.runs(is_own);
        let is_short = |run: &&Run| run.figures.longest_stall_ms <= OUR_STALL_MS_MAX;
        let (short, long): (Vec<&Run>, Vec<&Run>) = own.iter().copied().partition(is_short);
        let busy = long.iter().filter(|run| run.figures.is_client_busy()).count();
        let but = match busy {
            0 => String::new(),
            busy => format!(
                " In {busy} of the other {} the clients used over {CLIENT_CPU_PERCENT_MAX} % of their core: they may \
                 have waited for themselves.",
                long.len()
            ),
        };
        (!own.is_empty()).then(|| {
            format!(
                "This project's server: no client waited over {OUR_STALL_MS_MAX} ms in {} of {} runs in which nothing \
                 but the server and its load made clients wait.{but}",
                short.len(),
                own.len(),
            )
        })
    }

    fn our_recovery(&self) -> Option<String> {
        let ours = self.runs(|cell, _| cell.program == Program::Ours);
        let recovers =
            |run: &&&Run| run.figures.recovery_ms.is_some_and(|ms| ms <= RECOVERY_MS_MAX);
        let recovered = ours.iter().filter(recovers).count();
        (!ours.is_empty()).then(|| {
            format!(
                "This project's server: recovered within 1 s in {recovered} of {} runs.",
                ours.len()
            )
        })
    }

    /// Some of the runs, without void ones.
    fn runs(&self, is_meant: impl Fn(&Cell, &Run) -> bool) -> Vec<&Run> {
        let mut meant = Vec::new();
        for cell in &self.cells {
            meant.extend(cell.done().filter(|run| is_meant(cell, run)));
        }
        meant
    }
}

/// How many runs were right of those whose server could be asked; none if there are none.
fn right(runs: &[&Run]) -> Option<String> {
    let asked = runs.iter().filter(|run| run.outcome != Outcome::NotAsked);
    let right = asked.clone().filter(|run| run.outcome == Outcome::Right).count();
    let asked = asked.count();
    (asked > 0).then(|| format!("{right} of {asked}"))
}

impl Run {
    fn is_right(&self) -> bool {
        matches!(self.outcome, Outcome::Right | Outcome::NotAsked)
    }
}

impl Cell {
    /// Adds a run, or why it is void.
    pub(crate) fn add(&mut self, mut run: Result<Run, String>) {
        let is_detailed = |run: &&Result<Run, String>| {
            run.as_ref().is_ok_and(|run| run.is_right() && run.details.is_some())
        };
        let detailed = self.runs.iter().filter(is_detailed).count();
        if let Ok(run) = run.as_mut()
            && run.is_right()
            && detailed >= DETAILED_MAX
        {
            run.details = None;
        }
        self.runs.push(run);
    }

    /// Its runs, without void ones.
    pub(crate) fn done(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter_map(|run| run.as_ref().ok())
    }

    /// The run that reports show: the first whose verdict is not right, else the one with the longest stall of those
    /// with details. None if all are void.
    pub(crate) fn shown(&self) -> Option<&Run> {
        let detailed = || self.done().filter(|run| run.details.is_some());
        let longest =
            |a: &&Run, b: &&Run| a.figures.longest_stall_ms.total_cmp(&b.figures.longest_stall_ms);
        detailed().find(|run| !run.is_right()).or_else(|| detailed().max_by(longest))
    }

    /// How many runs may have measured their clients.
    pub(crate) fn client_busy_count(&self) -> usize {
        self.done().filter(|run| run.figures.is_client_busy()).count()
    }

    /// How many runs have this outcome.
    pub(crate) fn count(&self, outcome: &Outcome) -> usize {
        self.done().filter(|run| run.outcome == *outcome).count()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::matrix::servers::Servers;
    use crate::stalls::figures::tests::observer;
    use crate::stalls::judge::{self, FaultTimes};

    pub(crate) const PLAN: &str = r#"
        after-ms = 1000
        lasts-ms = 1000
        rest-ms = 1000
        observer = { busy = 1, payload = 1, rate = 10 }
        runtimes = ["tokio", "monoio"]
        quick = ["tokio"]
        [[scenario]]
        name = "a <blocked> loop"
        about = "It blocks."
        class = "blocked_loop"
        fault = "block"
        stalls = ["tokio", "monoio"]
        [[scenario]]
        name = "healthy"
        about = "Nothing is wrong."
    "#;

    /// A run of which the detector said `classes`.
    pub(crate) fn run(cell: &Cell, scenario: &Scenario, waits_ms: &[u32], classes: &[&str]) -> Run {
        let report = observer(waits_ms);
        let fault_unix_ms = [10_100.0, 10_300.0];
        let incidents: Vec<_> =
            classes.iter().map(|class| Incident::of(&[class], 10_200.0)).collect();
        let expectation = scenario.expectation(cell.program, &cell.runtime);
        let [began, ended] = fault_unix_ms;
        let times = FaultTimes { began, then_began: began, ended };
        Run {
            listening_unix_ms: 10_000.0,
            fault_unix_ms,
            figures: Figures::of(&report, &[], 5_000.0, fault_unix_ms[1]).unwrap(),
            cpu_wait_percent: 12.5,
            listen_overflows: Some(0),
            outcome: judge::judge(expectation, &incidents, times, &[]),
            incidents,
            details: Some(Details {
                clients: report.arrivals.unwrap().timeline.unwrap(),
                late_ms: vec![[10_050.0, 1.0], [10_200.0, 150.0]],
                has_stalls_alone: false,
                samples: vec![
                    Sample {
                        unix_ms: 10_100.0,
                        queue: 3,
                        descriptors: 20,
                        cpu_wait_ms: 1.0
                    };
                    2
                ],
            }),
        }
    }

    /// Of both scenarios: naive servers stall for 800 ms, and one is told wrong.
    pub(crate) fn results() -> Results {
        let scenarios = Scenario::parse_all(PLAN, &Servers::read().unwrap()).unwrap();
        let mut results =
            Results::of("cargo stalls".to_owned(), Host::of(&[]), [0, 1], scenarios, Program::ALL);
        let scenarios = &results.scenarios;
        for cell in &mut results.cells {
            let scenario = &scenarios[cell.scenario];
            let has_fault = scenario.class.is_some() && cell.program == Program::Naive;
            let class = if cell.runtime == "tokio" { "blocked_loop" } else { "lost_accept" };
            let (waits, classes): (&[u32], &[&str]) =
                if has_fault { (&[1, 800, 600, 1], &[class]) } else { (&[1, 2, 1], &[]) };
            let run = run(cell, scenario, waits, classes);
            cell.runs = vec![Ok(run), Err("it did not start".to_owned())];
        }
        results
    }

    #[test]
    fn a_cell_is_a_scenario_on_a_runtime_with_a_server() {
        let results = results();
        let cells = results.cells.iter().map(|it| (it.scenario, &*it.runtime, it.program.name()));
        let expected = [
            (0, "tokio", "naive"),
            (0, "tokio", "ours"),
            (0, "monoio", "naive"),
            (0, "monoio", "ours"),
            (1, "tokio", "naive"),
            (1, "tokio", "ours"),
            (1, "monoio", "naive"),
            (1, "monoio", "ours"),
        ];
        assert!(cells.eq(expected));
        let mut results = results;
        results.cells.reverse();
        assert_eq!(results.runtimes(), ["tokio", "monoio"]);
        let json = serde_json::to_string(&results).unwrap();
        let read: Results = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
    }

    #[test]
    fn a_run_that_is_not_right_keeps_its_details() {
        let mut results = results();
        let cell = &mut results.cells[0];
        let Ok(right) = cell.runs[0].clone() else { panic!() };
        let wrong = Run { outcome: Outcome::Silent, ..right.clone() };
        for run in [&right, &right, &right, &right, &wrong, &right] {
            cell.add(Ok(run.clone()));
        }
        let details = cell.runs.iter().filter_map(|run| Some(run.as_ref().ok()?.details.is_some()));
        let details: Vec<_> = details.collect();
        assert_eq!(details, [true, true, true, false, false, true, false]);
        assert_eq!(cell.shown(), Some(&wrong));
    }

    #[test]
    fn the_summary_counts_what_was_right() {
        let summary = results().summary().join("\n");
        let expected = "\
            Naive servers that stall: the verdict was right, and came while the stall lasted, in 1 of 2 runs.\n\
            Servers that need not stall: no false verdict in 2 of 2 runs.\n\
            Healthy servers: no verdict in 4 of 4 runs.\n\
            This project's server: no client waited over 100 ms in 4 of 4 runs in which nothing but the server and its \
            load made clients wait.\n\
            This project's server: recovered within 1 s in 4 of 4 runs.\n\
            Void: 8 runs.";
        assert_eq!(summary, expected);
    }

    #[test]
    fn a_run_in_which_no_queue_overflowed_need_not_stall() {
        let mut results = results();
        results.scenarios[0].class = Some("accept_queue_overflow".to_owned());
        let run = |results: &mut Results, overflows| {
            let Ok(run) = &mut results.cells[0].runs[0] else { panic!() };
            run.listen_overflows = Some(overflows);
            run.outcome = Outcome::Right;
            results.summary().join("\n")
        };
        let stalls = "Naive servers that stall: ";
        assert!(run(&mut results, 9).contains(stalls) && !run(&mut results, 0).contains(stalls));
    }

    #[test]
    fn the_summary_says_where_clients_may_have_waited_for_themselves() {
        let mut results = results();
        let ours = results.cells.iter_mut().filter(|cell| cell.program == Program::Ours);
        for (cell, cpu_percent) in ours.zip([95.0, 60.0]) {
            let Ok(run) = &mut cell.runs[0] else { panic!() };
            run.figures.longest_stall_ms = 500.0;
            run.figures.client_cpu_percent = cpu_percent;
        }
        let summary = results.summary().join("\n");
        assert!(
            summary.contains("waited over 100 ms in 2 of 4 runs in which nothing but"),
            "{summary}"
        );
        let expected = "wait. In 1 of the other 2 the clients used over 90 % of";
        assert!(summary.contains(expected), "{summary}");
        // Where all servers' clients have to wait, ours is not judged by their waits.
        results.scenarios[0].environment = true;
        let summary = results.summary().join("\n");
        assert!(summary.contains("waited over 100 ms in 2 of 2 runs"), "{summary}");
    }
}

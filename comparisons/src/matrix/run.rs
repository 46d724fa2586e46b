//! A run, from its options to its report.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::{env, fs};

use clap::Args;

use super::host::Host;
use super::plan::{Filter, Plan};
use super::results::{self, MeasuredWorkload, Results};
use super::servers::Server;
use super::workload::Workload;
use super::{Failure, compare, html, measure, program, report};
use crate::load::NonZeroSeconds;

const OVERVIEW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plans/overview.toml");

/// How long `--quick` may take, in seconds: five minutes, less a margin for the error of the estimate.
const QUICK_SECONDS: f64 = 280.0;

/// How long `--quick` measures at a time, at most.
const QUICK_WINDOW: NonZeroSeconds = NonZeroSeconds::of::<1>();

/// How many rounds `--quick` does at most: with these a ratio has a confidence interval.
const QUICK_ROUNDS: usize = 5;

/// The options of a run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure, in one run; without any the runtimes at a glance (comparisons/plans/overview.toml).
    #[arg(value_name = "PLAN.toml", default_value = OVERVIEW, hide_default_value = true)]
    plans: Vec<PathBuf>,
    /// Go on with a run that was interrupted, of which this is the folder: only what is missing is
    /// measured.
    #[arg(long, value_name = "FOLDER", exclusive = true)]
    resume: Option<PathBuf>,
    #[command(flatten)]
    filter: Filter,
    /// How often to measure each row, instead of what the plan says.
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,
    /// How many seconds to measure each time, instead of what the plan says.
    #[arg(long, value_name = "S")]
    seconds: Option<NonZeroSeconds>,
    /// A first answer: measure for a second each time, and as many rounds, up to five, as are done
    /// within five minutes.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
    /// The core for the servers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    server_core: usize,
    /// The core for the load.
    #[arg(long, value_name = "N", default_value_t = 1)]
    load_core: usize,
}

impl Options {
    /// Builds, measures, prints the report, and returns the folder of the results.
    ///
    /// # Errors
    /// When there is no such plan, something cannot be built, the results cannot be written, or
    /// SIGINT or SIGTERM came: what was measured until then is kept. A server that does not start, or
    /// answers wrongly, makes its row void.
    pub fn run(&self) -> Result<PathBuf, Failure> {
        let (folder, mut results) = match &self.resume {
            Some(folder) => (folder.clone(), resumed(folder)?),
            None => self.begun()?,
        };
        let whole = measure::rounds(&mut results, &folder);
        results.save(&folder)?;
        let markdown = report::markdown(&results);
        results::write(&folder.join("report.md"), markdown.as_bytes())?;
        results::write(&folder.join("report.html"), html::page(&results).as_bytes())?;
        // The reader may have closed the pipe.
        let _ = write!(io::stdout(), "{markdown}");
        whole.map(|()| folder)
    }

    /// Applies the options to a plan: which rows, how long and how often.
    fn chosen(&self, mut plan: Plan) -> Result<Vec<MeasuredWorkload>, Failure> {
        plan.narrow(&self.filter)?;
        for workload in &mut plan.workloads {
            let at_most = self.quick.then_some(QUICK_WINDOW);
            workload.change_seconds(|planned| {
                let asked = self.seconds.unwrap_or(planned);
                at_most.filter(|at_most| at_most.get() < asked.get()).unwrap_or(asked)
            });
        }
        let once = |workload: &Workload| workload.rows.len() as f64 * workload.load.run_seconds();
        let once: f64 = plan.workloads.iter().map(once).sum();
        let fitting = ((QUICK_SECONDS / once) as usize).clamp(1, QUICK_ROUNDS);
        let at_most = if self.quick { fitting } else { usize::MAX };
        let measured = plan.workloads.into_iter().map(|workload| {
            let rounds = self.rounds.map_or(workload.rounds, NonZeroUsize::get).min(at_most);
            MeasuredWorkload::of(workload, rounds)
        });
        Ok(measured.collect())
    }

    /// A new run and its folder.
    fn begun(&self) -> Result<(PathBuf, Results), Failure> {
        let workloads = self.chosen(Plan::read(&self.plans)?)?;
        if workloads.is_empty() {
            return Err(Failure::new("nothing of the plan is left to be measured"));
        }
        build(&workloads)?;
        let results = Results::of(
            command(env::args().skip(1)),
            Host::of(&servers(&workloads)),
            [self.server_core, self.load_core],
            self.quick.then(|| "--quick leaves them out".to_owned()),
            workloads,
        );
        let folder = program::programs()?.with_file_name("matrix").join(&results.host.date);
        create(&folder)?;
        results.save(&folder)?;
        Ok((folder, results))
    }
}

/// The results of two runs.
#[derive(Args, Clone, Debug)]
pub struct Compare {
    /// The results.json of one, which may be compressed (.gz).
    #[arg(value_name = "A.json")]
    first: PathBuf,
    /// That of the other.
    #[arg(value_name = "B.json")]
    second: PathBuf,
}

impl Compare {
    /// Prints both runs side by side.
    ///
    /// # Errors
    /// When a file cannot be read, or nothing is in both.
    pub fn run(&self) -> Result<(), Failure> {
        let text = compare::compare(&self.first, &self.second)?;
        // The reader may have closed the pipe.
        let _ = write!(io::stdout(), "{text}");
        Ok(())
    }
}

/// An interrupted run, if this machine and commit can continue it.
fn resumed(folder: &Path) -> Result<Results, Failure> {
    let results = Results::read(folder)?;
    if !results.is_complete() {
        let here = Host::of(&servers(&results.workloads));
        if !results.host.is_same(&here) {
            let (there, here) = (results.host.sentence(), here.sentence());
            let why = "one run is of one commit on one machine";
            return Err(Failure::new(format!("{why}: it was {there}; this is {here}")));
        }
        build(&results.workloads)?;
    }
    Ok(results)
}

fn build(workloads: &[MeasuredWorkload]) -> Result<(), Failure> {
    program::build(&servers(workloads))
}

fn servers(workloads: &[MeasuredWorkload]) -> Vec<&Server> {
    workloads.iter().flat_map(|measured| &measured.rows).map(|row| &row.server).collect()
}

/// The command line as a shell takes it, if it has no quotes in it.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let quoted = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
    arguments.map(quoted).fold("cargo matrix".to_owned(), |all, word| all + " " + &word)
}

/// Creates the folder of a run, which must not exist.
fn create(folder: &Path) -> Result<(), Failure> {
    folder
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::create_dir(folder))
        .map_err(|error| Failure::new(format!("cannot create {}: {error}", folder.display())))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn chosen(arguments: &str) -> Result<Vec<MeasuredWorkload>, Failure> {
        let arguments = ["matrix"].into_iter().chain(arguments.split_whitespace());
        let Options { plans, .. } = &Arguments::parse_from(arguments.clone()).options;
        Arguments::parse_from(arguments).options.chosen(Plan::read(plans).unwrap())
    }

    #[test]
    fn a_first_answer_takes_under_five_minutes() {
        let quick = chosen("--quick").unwrap();
        let seconds: f64 = quick.iter().map(MeasuredWorkload::seconds_left).sum();
        assert!(seconds <= QUICK_SECONDS, "{seconds}");
        for measured in quick {
            assert_eq!(measured.rounds, QUICK_ROUNDS);
            let load = measured.workload.load_line() + " ";
            assert!(load.contains("--seconds 1 "), "{load}");
        }
    }

    #[test]
    fn some_of_a_plan_may_be_measured() {
        let some =
            chosen("--runtime compio --runtime monoio --workload echo --workload idle --seconds 7");
        let some = some.unwrap();
        assert_eq!(some.len(), 3);
        for measured in some {
            let rows = measured.rows.iter().map(|row| &row.server.name);
            assert!(rows.eq(["tokio/websocket", "compio/websocket", "monoio/websocket"]));
            assert!(measured.workload.load_line().contains("--seconds 7"));
            assert_eq!(measured.rounds, 10);
        }
        let one = chosen("--only uring/web").unwrap();
        let rows = one.iter().flat_map(|measured| measured.rows.iter().map(|row| &row.server.name));
        assert!(rows.eq(["tokio/websocket", "tokio-uring/websocket"].repeat(one.len())));
        for (unknown, named) in [
            ("--runtime tokoi", "runtime \"tokoi\""),
            ("--only tungstenite", "row \"tungstenite\""),
            ("--workload nothing", "workload \"nothing\""),
        ] {
            assert!(chosen(unknown).unwrap_err().to_string().contains(named));
        }
    }

    #[test]
    fn a_command_can_be_given_again() {
        let words = ["plan.toml", "--workload", "200 B"].map(str::to_owned);
        assert_eq!(command(words.into_iter()), "cargo matrix plan.toml --workload '200 B'");
    }

    #[test]
    fn a_run_that_goes_on_is_told_nothing_else() {
        assert!(Arguments::try_parse_from(["matrix", "--resume", "folder"]).is_ok());
        assert!(Arguments::try_parse_from(["matrix", "--resume", "folder", "--quick"]).is_err());
        assert!(Arguments::try_parse_from(["matrix", "--rounds", "3", "--quick"]).is_err());
    }
}

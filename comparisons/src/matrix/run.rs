//! A run, from its options to its report.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::{env, fs};

use clap::Args;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::host::Host;
use super::overview::Overview;
use super::pairs::ROUND_MS;
use super::plan::{Filter, Plan};
use super::results::{self, MeasuredWorkload, Results};
use super::servers::Server;
use super::workload::Workload;
use super::{Failure, compare, findings, html, measure, program, report, table, terminal};
use crate::load::NonZeroSeconds;

const OVERVIEW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plans/overview.toml");

/// The folder of the plans.
const PLANS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plans");

/// The plans of a full run. Not among them: `faults`, which `comparisons/faults` runs; `limit-long`, an hour of waiting;
/// `cores`, which needs 18 of them; `streaming`, an hour by itself, which writes to the disk; `fanout`, `detector`, `hops`,
/// `caches` and `yardstick`; `itself`, whose rows a full run has by its self-check; `allocators`, which needs theirs; `jvm`,
/// which needs Java; `objects`, which needs nginx; and `overview`, `websocket` and `bridges`, which ask the questions of the
/// others at more sizes.
const FULL_RUN: [&str; 14] = [
    "layer",
    "floor",
    "tls",
    "deflate",
    "engines",
    "batches",
    "large",
    "peers",
    "ceiling",
    "churn",
    "accepting",
    "arrivals",
    "limit",
    "saturation",
];

/// How long `--quick` may take, in seconds: five minutes, less a margin for the error of the estimate.
const QUICK_SECONDS: f64 = 280.0;

/// How long `--quick` measures at a time, at most.
const QUICK_WINDOW: NonZeroSeconds = NonZeroSeconds::of::<1>();

/// How long the windows of a row and its baseline in a round are with `--quick`, in ms: half as long as otherwise.
const QUICK_ROUND_MS: u32 = ROUND_MS / 2;

/// The least share of their time that rows in pairs have with `--quick`: enough for the rounds that an interval needs.
const QUICK_SHARE_MIN: f64 = 0.43;

/// How many rounds `--quick` does at most: with these a ratio has a confidence interval.
const QUICK_ROUNDS: usize = 5;

/// The options of a run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The plans to measure in one run; by default the runtimes at a glance (comparisons/plans/overview.toml).
    #[arg(value_name = "PLAN.toml", default_value = OVERVIEW, hide_default_value = true)]
    plans: Vec<PathBuf>,
    /// Resume the interrupted run in this folder: only what is missing is measured.
    #[arg(long, value_name = "FOLDER", exclusive = true)]
    resume: Option<PathBuf>,
    /// A full run: all plans except those that repeat others at more sizes, with --self-check.
    #[arg(long, conflicts_with = "plans")]
    all: bool,
    /// Add a row to each workload that is measured in pairs: one of its rows once more, compared with itself.
    #[arg(long)]
    self_check: bool,
    #[command(flatten)]
    filter: Filter,
    /// How often to measure each row that is not measured in pairs, instead of what the plan says.
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,
    /// How many seconds to measure each time, where that is not in pairs, instead of what the plan says.
    #[arg(long, value_name = "S")]
    seconds: Option<NonZeroSeconds>,
    /// How many seconds a row may take that is measured in pairs, instead of what the plan says.
    #[arg(long, value_name = "S")]
    row_seconds: Option<NonZeroSeconds>,
    /// A first answer: rows in pairs have less time; all else is measured for a second each time, in as many rounds, up
    /// to five, as an estimate has room for in five minutes.
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "row_seconds"])]
    quick: bool,
    /// The core for the servers; the first of them for a server that runs on several.
    #[arg(long, value_name = "N", default_value_t = 0)]
    server_core: usize,
    /// The core for the load.
    #[arg(long, value_name = "N", default_value_t = 1)]
    load_core: usize,
}

impl Options {
    /// Builds, measures, writes the reports beside the results, and prints what they begin with.
    ///
    /// # Errors
    /// When there is no such plan, something cannot be built, the results cannot be written, or
    /// SIGHUP, SIGINT or SIGTERM came: what was measured until then is kept. A server that does not start, or
    /// answers wrongly, makes its row void.
    pub fn run(&self) -> Result<(), Failure> {
        let (folder, mut results) = match &self.resume {
            Some(folder) => (folder.clone(), resumed(folder)?),
            None => self.begun()?,
        };
        let whole = measure::rounds(&mut results, &folder);
        results.save(&folder)?;
        write_reports(&results, &folder)?;
        whole
    }

    /// The files of the plans.
    fn plans(&self) -> Vec<PathBuf> {
        if !self.all {
            return self.plans.clone();
        }
        FULL_RUN.iter().map(|name| Path::new(PLANS).join(name).with_extension("toml")).collect()
    }

    /// Applies the options to a plan: which rows, how long and how often.
    fn chosen(&self, mut plan: Plan) -> Result<Vec<MeasuredWorkload>, Failure> {
        plan.narrow(&self.filter)?;
        if self.all || self.self_check {
            plan.check_itself();
        }
        for workload in &mut plan.workloads {
            let at_most = self.quick.then_some(QUICK_WINDOW);
            workload.change_seconds(|planned| {
                let asked = self.seconds.unwrap_or(planned);
                at_most.filter(|at_most| at_most.get() < asked.get()).unwrap_or(asked)
            });
            if let (Some(pairing), Some(seconds)) = (&mut workload.pairing, self.row_seconds) {
                pairing.row_seconds = seconds.get().as_secs_f64();
            }
        }
        let rounds = |workload: &Workload| match self.rounds {
            Some(rounds) => rounds.get(),
            None if self.quick => workload.rounds.min(QUICK_ROUNDS),
            None => workload.rounds,
        };
        let measured = |workload: Workload| {
            let rounds = rounds(&workload);
            MeasuredWorkload::of(workload, rounds)
        };
        let mut measured: Vec<_> = plan.workloads.into_iter().map(measured).collect();
        if self.quick {
            fit(&mut measured, QUICK_SECONDS);
            let seconds: f64 = measured.iter().map(MeasuredWorkload::seconds_left).sum();
            if seconds > QUICK_SECONDS {
                eprintln!("--quick: this takes about {:.0} minutes", seconds / 60.0);
            }
        }
        Ok(measured)
    }

    /// Refuses a server on several cores that this machine does not have, or that it would share with the load.
    fn check_cores(&self, server: &Server) -> Result<(), Failure> {
        if server.cores.get() == 1 {
            return Ok(());
        }
        let (first, end) = (self.server_core, self.server_core.saturating_add(server.cores.get()));
        let allowed = sched_getaffinity(None)
            .map_err(|error| Failure::new(format!("cannot count the cores: {error}")))?;
        let is_there = |core: usize| core < CpuSet::MAX_CPU && allowed.is_set(core);
        let why = if (first..end).contains(&self.load_core) {
            "the load would run on one of them"
        } else if !(first..end).all(is_there) {
            "this machine does not have all of them"
        } else {
            return Ok(());
        };
        Err(Failure::new(format!(
            "{} runs on cores {first} to {}, and {why}: choose others by --server-core and --load-core, or fewer rows by \
             --only",
            server.name,
            end - 1
        )))
    }

    /// A new run and its folder.
    fn begun(&self) -> Result<(PathBuf, Results), Failure> {
        let workloads = self.chosen(Plan::read(&self.plans())?)?;
        if workloads.is_empty() {
            return Err(Failure::new("nothing of the plan is left to be measured"));
        }
        for server in servers(&workloads) {
            self.check_cores(server)?;
        }
        build(&workloads)?;
        let host = Host::of(&servers(&workloads));
        if let Some(warning) = host.warning() {
            eprintln!("matrix: {warning}");
        }
        let results = Results::of(
            command_line("cargo matrix", env::args().skip(1)),
            host,
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

/// Shortens a run until an estimate of its length is at most `seconds`: first rows in pairs have less time, then there
/// are fewer rounds of the others.
fn fit(workloads: &mut [MeasuredWorkload], seconds: f64) {
    let all = |workloads: &[MeasuredWorkload]| -> f64 {
        workloads.iter().map(MeasuredWorkload::seconds_left).sum()
    };
    let is_paired = |it: &&mut MeasuredWorkload| it.workload.pairing.is_some();
    let paired: f64 = workloads.iter_mut().filter(is_paired).map(|it| it.seconds_left()).sum();
    let rest = seconds - (all(workloads) - paired);
    let share = (rest / paired.max(1.0)).clamp(QUICK_SHARE_MIN, 1.0);
    for measured in workloads.iter_mut() {
        if let Some(pairing) = &mut measured.workload.pairing {
            pairing.row_seconds *= share;
            pairing.round_ms = QUICK_ROUND_MS;
        }
    }
    while all(workloads) > seconds {
        let rounds = |it: &&mut MeasuredWorkload| it.rounds > 1;
        let Some(most) = workloads.iter_mut().filter(rounds).max_by_key(|it| it.rounds) else {
            return;
        };
        most.rounds -= 1;
    }
}

/// The reports of a run that was measured before.
#[derive(Args, Clone, Debug)]
pub struct Report {
    /// Its results.json, which may be compressed (.gz).
    #[arg(value_name = "RESULTS.json")]
    results: PathBuf,
    /// Where report.html and report.md are written; without it, beside the results.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

impl Report {
    /// Writes the reports, and prints what they begin with.
    ///
    /// # Errors
    /// When the file cannot be read, or the reports cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let results = Results::read_file(&self.results)?;
        let beside = self.results.parent().unwrap_or_else(|| Path::new(""));
        write_reports(&results, self.to.as_deref().unwrap_or(beside))
    }
}

/// Writes `report.md` and `report.html`, and prints the ratios, what was found, and where the report is.
fn write_reports(results: &Results, folder: &Path) -> Result<(), Failure> {
    let tables: Vec<_> = results.workloads.iter().map(table::rows).collect();
    let overview = Overview::of(results, &tables);
    let findings = findings::findings(&overview, &tables);
    let path = folder.join("report.html");
    let markdown = report::markdown(results, &tables);
    results::write(&folder.join("report.md"), markdown.as_bytes())?;
    let page = html::page(results, &tables, &overview, &findings);
    results::write(&path, page.as_bytes())?;
    let text = terminal::text(&overview, &findings, terminal::width());
    // The reader may have closed the pipe.
    let _ = write!(io::stdout(), "{text}\nReport: {}\n", path.display());
    Ok(())
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
pub(crate) fn command_line(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let quoted = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
    arguments.map(quoted).fold(program.to_owned(), |all, word| all + " " + &word)
}

/// Creates the folder of a run, which must not exist.
pub(crate) fn create(folder: &Path) -> Result<(), Failure> {
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
            if measured.workload.pairing.is_some() {
                continue;
            }
            assert!(measured.rounds > 1, "{}", measured.workload.name);
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
            let ring = ["compio/ring-default/websocket", "monoio/ring-default/websocket"];
            let rows_of = ["tokio/websocket", "compio/websocket", "monoio/websocket"];
            assert!(rows.eq(rows_of.into_iter().chain(ring)));
            assert!(measured.workload.load_line().contains("--seconds 7"));
            let is_paired = measured.workload.pairing.is_some();
            assert_eq!(measured.rounds, if is_paired { 0 } else { 5 });
        }
        let one = chosen("--only tokio-uring/web").unwrap();
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
    fn rows_in_pairs_may_have_more_time() {
        let longer = chosen("--row-seconds 30").unwrap();
        let pairings: Vec<_> = longer.iter().filter_map(|it| it.workload.pairing).collect();
        assert_eq!(pairings.len(), 3);
        assert!(pairings.iter().all(|pairing| pairing.row_seconds > 29.9));
    }

    #[test]
    fn a_full_run_checks_itself_and_is_estimated_under_three_hours() {
        let options = Arguments::parse_from(["matrix", "--all"]).options;
        let all = options.chosen(Plan::read(&options.plans()).unwrap()).unwrap();
        for measured in &all {
            let mut rows = measured.rows.iter().map(|row| &row.server.name);
            let is_checked = rows.any(|name| name.ends_with("/again"));
            assert_eq!(
                is_checked,
                measured.workload.pairing.is_some(),
                "{}",
                measured.workload.name
            );
        }
        let seconds: f64 = all.iter().map(MeasuredWorkload::seconds_left).sum();
        println!(
            "{} rows, about {:.0} minutes",
            all.iter().map(|it| it.rows.len()).sum::<usize>(),
            seconds / 60.0
        );
        assert!(seconds < 3.0 * 3600.0, "{seconds}");
    }

    #[test]
    fn a_command_is_quoted_for_the_shell() {
        let words = ["plan.toml", "--workload", "200 B"].map(str::to_owned);
        assert_eq!(
            command_line("cargo matrix", words.into_iter()),
            "cargo matrix plan.toml --workload '200 B'"
        );
    }

    #[test]
    fn resume_takes_no_other_option() {
        assert!(Arguments::try_parse_from(["matrix", "--resume", "folder"]).is_ok());
        assert!(Arguments::try_parse_from(["matrix", "--resume", "folder", "--quick"]).is_err());
        assert!(Arguments::try_parse_from(["matrix", "--rounds", "3", "--quick"]).is_err());
    }
}

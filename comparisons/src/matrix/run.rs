//! The rounds.

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use clap::Args;
use serde_json::Value;

use super::host::Host;
use super::interrupt::Interrupt;
use super::plan::{Plan, Workload};
use super::program::{self, Running, Server};
use super::progress::{self, Progress};
use super::results::{Measured, Results};
use super::{Failure, report};

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure.
    #[arg(value_name = "PLAN.toml", required_unless_present = "resume")]
    plan: Option<PathBuf>,
    /// Go on with a run that was interrupted, of which this is the folder: only what is missing is
    /// measured.
    #[arg(long, value_name = "FOLDER", exclusive = true)]
    resume: Option<PathBuf>,
    /// Only workloads with this in their name; can be given several times.
    #[arg(long, value_name = "TEXT")]
    workload: Vec<String>,
    /// Only rows of this runtime, and what they are compared with; can be given several times.
    #[arg(long, value_name = "NAME")]
    runtime: Vec<String>,
    /// How often to measure each row, instead of what the plan says.
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,
    /// The core for the servers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    server_core: usize,
    /// The core for the load.
    #[arg(long, value_name = "N", default_value_t = 1)]
    load_core: usize,
}

impl Options {
    /// Builds, measures, and prints the report; says where it is.
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
        let whole = measure(&mut results, &folder);
        progress::end();
        results.report(&folder)?;
        // Whoever started this may not read it.
        let _ = write!(io::stdout(), "{}", report::markdown(&results));
        whole.map(|()| folder)
    }

    /// A run of which nothing is measured, and its folder.
    fn begun(&self) -> Result<(PathBuf, Results), Failure> {
        let plan = self.plan.as_ref().expect("clap asks for it");
        let mut plan = Plan::read(plan)?;
        plan.narrow(&self.workload, &self.runtime);
        let (rounds, all) = (self.rounds, plan.rounds);
        let workloads = plan.workloads.into_iter().map(|workload| {
            let rounds = rounds.or(workload.rounds).unwrap_or(all).get();
            Measured::of(workload, rounds)
        });
        let arguments: Vec<_> = env::args().skip(1).collect();
        let results = Results {
            command: format!("cargo matrix {}", arguments.join(" ")),
            host: Host::here(),
            server_core: self.server_core,
            load_core: self.load_core,
            workloads: workloads.collect(),
        };
        if results.next().is_none() {
            return Err(Failure::new("nothing of the plan is left to be measured"));
        }
        build(&results)?;
        let folder = program::programs()?.with_file_name("matrix").join(&results.host.date);
        create(&folder)?;
        Ok((folder, results))
    }
}

/// A run that was interrupted, if this can go on with it.
fn resumed(folder: &Path) -> Result<Results, Failure> {
    let results = Results::read(folder)?;
    if results.next().is_some() {
        let here = Host::here();
        if !results.host.is_same(&here) {
            let (there, here) = (results.host.sentence(), here.sentence());
            let why = "one run is of one commit on one machine";
            return Err(Failure::new(format!("{why}: it was {there}; this is {here}")));
        }
        build(&results)?;
    }
    Ok(results)
}

fn build(results: &Results) -> Result<(), Failure> {
    let servers = results.workloads.iter().map(|measured| &measured.workload);
    program::build(&servers.flat_map(Workload::rows).collect::<Vec<_>>())
}

/// All that is missing. Each round is on disk when the next begins.
fn measure(results: &mut Results, folder: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::new(format!("cannot wait for signals: {error}"));
    let interrupt = Interrupt::listen().map_err(cannot)?;
    let progress = Progress::of(results);
    while let Some(next) = results.next() {
        progress.show(results, next);
        let Measured { workload, rows, .. } = &results.workloads[next.workload];
        let one = One { workload, server: &rows[next.row].server, results, folder };
        let one = one.measure(&interrupt);
        if interrupt.came().map_err(cannot)? {
            let folder = folder.display();
            return Err(Failure::new(format!("interrupted; to go on: --resume {folder}")));
        }
        if let Err(why) = &one {
            progress::void(&why.to_string());
        }
        let row = &mut results.workloads[next.workload].rows[next.row];
        row.rounds.push(one.map_err(|why| why.to_string()));
        results.save(folder)?;
        if results.next().is_none_or(|then| then.workload != next.workload) {
            results.report(folder)?;
        }
    }
    Ok(())
}

/// One server, one load.
struct One<'a> {
    workload: &'a Workload,
    server: &'a Server,
    results: &'a Results,
    folder: &'a Path,
}

impl One<'_> {
    /// What `load` reports, with `startup_ms` added.
    fn measure(&self, interrupt: &Interrupt) -> Result<Value, Failure> {
        let Self { workload, server, results, folder } = *self;
        let running =
            Running::start(server, workload.service, results.server_core, workload.open_files)?;
        let json = folder.join("load.json");
        let words = workload.load_for(server);
        let cannot = |error: io::Error| Failure::new(format!("cannot run load: {error}"));
        let mut load = Command::new(program::programs()?.join("load"))
            .args(words.first())
            .arg(running.addr.to_string())
            .args(words.iter().skip(1))
            .args(["--core", &results.load_core.to_string()])
            .args(["--server-pid", &running.pid().to_string()])
            .arg("--json")
            .arg(&json)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        // What it complains of is a few lines, which the pipe holds (64 KiB).
        if !interrupt.wait(&mut load).map_err(cannot)?.success() {
            let mut complaint = String::new();
            let stderr = load.stderr.take().expect("it is piped");
            let _ = stderr.take(64 << 10).read_to_string(&mut complaint);
            return Err(Failure::new(complaint.trim()));
        }
        let unreadable = |error: io::Error| Failure::new(format!("no report of load: {error}"));
        let text = fs::read(&json).map_err(unreadable)?;
        let _ = fs::remove_file(&json);
        let mut value: Value = serde_json::from_slice(&text).map_err(|e| unreadable(e.into()))?;
        value["startup_ms"] = (running.startup.as_secs_f64() * 1e3).into();
        // In arrivals and bursts it is a result how many are not served; elsewhere all have to be.
        if value["arrivals"].is_null() && value["burst"].is_null() {
            let errors = &value["connections"]["errors"];
            if errors.as_object().is_some_and(|errors| !errors.is_empty()) {
                return Err(Failure::new(format!("connections failed: {errors}")));
            }
        }
        for (name, pointer) in &workload.figures {
            if !value.pointer(pointer).is_some_and(Value::is_number) {
                return Err(Failure::new(format!("nothing was measured that gives {name:?}")));
            }
        }
        Ok(value)
    }
}

/// One for each run: it must not be there.
fn create(folder: &Path) -> Result<(), Failure> {
    folder
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::create_dir(folder))
        .map_err(|error| Failure::new(format!("cannot create {}: {error}", folder.display())))
}

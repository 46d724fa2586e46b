//! The rounds.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::host::Host;
use super::plan::{Plan, Workload};
use super::program::{self, Running, Server};
use super::{Failure, report};

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure.
    #[arg(value_name = "PLAN.toml")]
    plan: PathBuf,
    /// Only workloads with this in their name.
    #[arg(long, value_name = "TEXT")]
    workload: Option<String>,
    /// Only rows of this runtime, and what they are compared with.
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
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

/// All that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) host: Host,
    pub(crate) workloads: Vec<Measured>,
}

/// What was measured of one workload.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    #[serde(skip)]
    pub(crate) workload: Workload,
    name: String,
    pub(crate) rows: Vec<Row>,
}

/// One server: for each round what `load` reported, or why that is void.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) server: Server,
    pub(crate) rounds: Vec<Result<Value, String>>,
}

impl Options {
    /// Builds, measures, and prints the report; says where it is.
    ///
    /// # Errors
    /// When there is no such plan, something cannot be built, or the results cannot be written. A
    /// server that does not start, or answers wrongly, makes its row void.
    pub fn run(&self) -> Result<PathBuf, Failure> {
        let mut plan = Plan::read(&self.plan)?;
        plan.narrow(self.workload.as_deref(), self.runtime.as_deref());
        let servers: Vec<_> = plan.workloads.iter().flat_map(Workload::rows).collect();
        if servers.is_empty() {
            return Err(Failure::new("nothing of the plan is left to be measured"));
        }
        program::build(&servers)?;
        let host = Host::here();
        let programs = program::programs()?;
        let folder = programs.with_file_name("matrix").join(&host.date);
        create(&folder)?;
        let mut results = Results { host, workloads: Vec::new() };
        for workload in plan.workloads {
            let rounds = self.rounds.or(workload.rounds).unwrap_or(plan.rounds).get();
            let rows = workload.rows().into_iter().map(|server| Row { server, rounds: Vec::new() });
            let (name, rows) = (workload.name.clone(), rows.collect());
            results.workloads.push(Measured { workload, name, rows });
            self.measure(&mut results, rounds, &folder)?;
        }
        // Whoever started this may not read it.
        let _ = write!(io::stdout(), "{}", report::markdown(&results));
        Ok(folder)
    }

    /// The rounds of the last workload; what was measured is on disk after each of them.
    fn measure(&self, results: &mut Results, rounds: usize, folder: &Path) -> Result<(), Failure> {
        let began = Instant::now();
        for round in 0..rounds {
            let measured = results.workloads.last_mut().expect("just pushed");
            let Measured { workload, rows, name } = measured;
            let count = rows.len();
            for turn in 0..count {
                // Back and forth, so that no row always comes after the same other one.
                let index = if round % 2 == 0 { turn } else { count - 1 - turn };
                let row = &mut rows[index];
                let done = round * count + turn;
                let left = began
                    .elapsed()
                    .div_f64(done.max(1) as f64)
                    .mul_f64((rounds * count - done) as f64);
                let left = if done == 0 { Duration::ZERO } else { left };
                eprintln!(
                    "{name}: round {} of {rounds}, {}; {} s left",
                    round + 1,
                    row.server.name(),
                    left.as_secs()
                );
                let one = self.one(workload, &row.server, folder);
                if let Err(why) = &one {
                    eprintln!("  void: {why}");
                }
                row.rounds.push(one.map_err(|why| why.to_string()));
            }
            write(&folder.join("results.json"), &json(results)?)?;
            write(&folder.join("report.md"), report::markdown(results).as_bytes())?;
        }
        Ok(())
    }

    /// One server, one load: what `load` reports, with `startup_ms` added.
    fn one(&self, workload: &Workload, server: &Server, folder: &Path) -> Result<Value, Failure> {
        let running =
            Running::start(server, workload.service, self.server_core, workload.open_files)?;
        let json = folder.join("load.json");
        let words = workload.load_for(server);
        let load = Command::new(program::programs()?.join("load"))
            .args(words.first())
            .arg(running.addr.to_string())
            .args(words.iter().skip(1))
            .args(["--core", &self.load_core.to_string()])
            .args(["--server-pid", &running.pid().to_string()])
            .arg("--json")
            .arg(&json)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Failure::new(format!("cannot start load: {error}")))?;
        if !load.status.success() {
            return Err(Failure::new(String::from_utf8_lossy(&load.stderr).trim().to_owned()));
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

fn json(results: &Results) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec_pretty(results).map_err(|error| Failure::new(error.to_string()))
}

/// One for each run: it must not be there.
fn create(folder: &Path) -> Result<(), Failure> {
    folder
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::create_dir(folder))
        .map_err(|error| Failure::new(format!("cannot create {}: {error}", folder.display())))
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(file, bytes)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))
}

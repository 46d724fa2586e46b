//! The rounds.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Failure;
use super::interrupt::Interrupt;
use super::plan::Workload;
use super::program::{self, Running, Server};
use super::progress::{self, Progress};
use super::results::{Measured, Results};

/// All that are missing. What was measured is on disk when the next measurement begins.
///
/// # Errors
/// When the results cannot be written, or SIGINT or SIGTERM came.
pub(crate) fn rounds(results: &mut Results, folder: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::new(format!("cannot wait for signals: {error}"));
    let interrupt = Interrupt::listen().map_err(cannot)?;
    let progress = Progress::of(results);
    while let Some(next) = results.next() {
        progress.show(results, next);
        let Measured { workload, rows, .. } = &results.workloads[next.workload];
        let one = One { workload, server: &rows[next.row].server, results, folder };
        let one = one.measure(&interrupt);
        if interrupt.came().map_err(cannot)? {
            progress::end();
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
    progress::end();
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

//! The rounds.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Failure;
use super::calls::{Calls, Counting};
use super::certificate::Certificate;
use super::interrupt::Interrupt;
use super::plan::Workload;
use super::program::{self, Running, Server};
use super::progress::{self, Progress};
use super::results::{Measured, Results, Row};

/// What a crash may cost. In a run of hours all that was measured is tens of megabytes, which to write
/// after each measurement would take as long as that.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// All that are missing. What was measured is on disk soon after, but for the last of it when this
/// returns.
///
/// # Errors
/// When the results cannot be written, or SIGINT or SIGTERM came.
pub(crate) fn rounds(results: &mut Results, folder: &Path) -> Result<(), Failure> {
    let interrupt = Interrupt::listen().map_err(no_signals)?;
    let certificate = Certificate::create(folder)?;
    let progress = Progress::of(results);
    let mut saved = Instant::now();
    while let Some(next) = results.next() {
        progress.show(results, next);
        let Measured { workload, rows, .. } = &results.workloads[next.workload];
        let server = &rows[next.row].server;
        let one = One { workload, server, results, certificate: &certificate, folder };
        let one = one.measure(&interrupt);
        if interrupt.came().map_err(no_signals)? {
            return Err(interrupted(folder));
        }
        if let Err(why) = &one {
            progress::void(&why.to_string());
        }
        let row = &mut results.workloads[next.workload].rows[next.row];
        row.rounds.push(one.map_err(|why| why.to_string()));
        if results.next().is_none_or(|then| then.workload != next.workload) {
            count_calls(results, next.workload, &certificate, folder, &interrupt)?;
            results.report(folder)?;
        } else if saved.elapsed() < SAVE_EVERY {
            continue;
        }
        results.save(folder)?;
        saved = Instant::now();
    }
    progress::end();
    Ok(())
}

/// The system calls of each row that can be measured at all, once its rounds are done. It is no error
/// when they cannot be counted.
fn count_calls(
    results: &mut Results,
    index: usize,
    certificate: &Certificate,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let shorter = results.workloads[index].workload.for_counting().filter(|_| results.calls);
    let Some(shorter) = shorter else { return Ok(()) };
    for row in 0..results.workloads[index].rows.len() {
        let Measured { workload, rows, .. } = &results.workloads[index];
        if rows[row].calls.is_some() || rows[row].rounds.iter().all(Result::is_err) {
            continue;
        }
        let server = &rows[row].server;
        progress::calls(&workload.name, server.name());
        let one = One { workload: &shorter, server, results, certificate, folder };
        let counted = one.count(interrupt);
        if interrupt.came().map_err(no_signals)? {
            return Err(interrupted(folder));
        }
        let is_known = |row: &Row| matches!(row.calls, Some(Ok(_)));
        let before = results.workloads.iter().flat_map(|measured| &measured.rows).any(is_known);
        // Where the first cannot be counted it is not permitted, and none can.
        results.calls = counted.is_ok() || before;
        results.workloads[index].rows[row].calls = Some(counted.map_err(|why| why.to_string()));
        if !results.calls {
            return Ok(());
        }
    }
    Ok(())
}

fn interrupted(folder: &Path) -> Failure {
    progress::end();
    Failure::new(format!("interrupted; to go on: --resume {}", folder.display()))
}

fn no_signals(error: io::Error) -> Failure {
    Failure::new(format!("cannot wait for signals: {error}"))
}

/// One server, one load.
struct One<'a> {
    workload: &'a Workload,
    server: &'a Server,
    results: &'a Results,
    certificate: &'a Certificate,
    folder: &'a Path,
}

impl One<'_> {
    /// What `load` reports, with `startup_ms` and `program_bytes` added.
    fn measure(&self, interrupt: &Interrupt) -> Result<Value, Failure> {
        let running = self.start()?;
        let mut value = self.load(&running, interrupt, None)?;
        value["startup_ms"] = (running.startup.as_secs_f64() * 1e3).into();
        value["program_bytes"] = self.server.program_bytes().into();
        Ok(value)
    }

    fn count(&self, interrupt: &Interrupt) -> Result<Calls, Failure> {
        let running = self.start()?;
        let counting = Counting::start(running.pid(), self.folder)?;
        let loaded = self.load(&running, interrupt, Some(&counting));
        let messages =
            loaded.as_ref().ok().and_then(|value| value["messages"]["received"].as_f64());
        // What perf says comes first: without it `load` fails for want of an answer.
        let calls = counting.finish(messages.unwrap_or(f64::NAN));
        match (calls, loaded) {
            (Err(why), Err(_)) | (Ok(_), Err(why)) | (Err(why), Ok(_)) => Err(why),
            (Ok(calls), Ok(_)) => Ok(calls),
        }
    }

    fn start(&self) -> Result<Running, Failure> {
        let Self { workload, server, results, certificate, .. } = *self;
        let Workload { service, open_files, .. } = *workload;
        Running::start(server, service, certificate, results.server_core, open_files)
    }

    fn load(
        &self,
        running: &Running,
        interrupt: &Interrupt,
        counting: Option<&Counting>,
    ) -> Result<Value, Failure> {
        let Self { workload, server, results, certificate, folder } = *self;
        let json = folder.join("load.json");
        let words = workload.load_for(server);
        let cannot = |error: io::Error| Failure::new(format!("cannot run load: {error}"));
        let mut load = Command::new(program::programs()?.join("load"))
            .args(words.first())
            .arg(running.addr.to_string())
            .args(words.iter().skip(1))
            .args(server.speaks_tls().then(|| certificate.for_load()).iter().flatten())
            .args(["--core", &results.load_core.to_string()])
            .args(["--server-pid", &running.pid().to_string()])
            .args(counting.map(|counting| format!("--perf={}", counting.fifos())))
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
        let value: Value = serde_json::from_slice(&text).map_err(|e| unreadable(e.into()))?;
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

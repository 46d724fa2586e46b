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
use super::program::{self, Place, Running, SERVER_SAID, Server};
use super::progress::{self, Progress};
use super::results::{Measured, Results};
use super::workload::Workload;

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
    for index in 0..results.workloads.len() {
        while let Some(next) = results.workloads[index].next() {
            progress.show(results, index, next);
            let Measured { workload, rows, .. } = &results.workloads[index];
            let server = &rows[next.row].server;
            let one = One { workload, server, results, certificate: &certificate, folder };
            let one = one.measure(&interrupt);
            if interrupt.came().map_err(no_signals)? {
                return Err(interrupted(folder));
            }
            if let Err(why) = &one {
                progress::void(&why.to_string());
            }
            let row = &mut results.workloads[index].rows[next.row];
            row.rounds.push(one.map_err(|why| why.to_string()));
            if saved.elapsed() >= SAVE_EVERY {
                results.save(folder)?;
                saved = Instant::now();
            }
        }
        count_calls(results, index, &certificate, folder, &interrupt)?;
    }
    progress::end();
    let _ = fs::remove_file(folder.join(SERVER_SAID));
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
    let is_counted = results.no_calls.is_none();
    let shorter = results.workloads[index].workload.for_counting().filter(|_| is_counted);
    let Some(shorter) = shorter else { return Ok(()) };
    for row in results.workloads[index].uncounted() {
        let Measured { workload, rows, .. } = &results.workloads[index];
        let server = &rows[row].server;
        progress::calls(&workload.name, server.name());
        let one = One { workload: &shorter, server, results, certificate, folder };
        let counted = one.count(interrupt);
        if interrupt.came().map_err(no_signals)? {
            return Err(interrupted(folder));
        }
        let counted = match counted {
            Ok(calls) => Ok(calls),
            Err(Uncounted::Row(why)) => Err(why.to_string()),
            // It has nothing to count when its server dies either.
            Err(Uncounted::Perf(why)) if results.has_calls() => Err(why.to_string()),
            Err(Uncounted::Perf(why)) => {
                // What it refuses at first, for want of permission say, it refuses always.
                results.no_calls = Some(why.to_string());
                return Ok(());
            }
        };
        results.workloads[index].rows[row].calls = Some(counted);
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

/// Why system calls are not known.
enum Uncounted {
    /// As perf says.
    Perf(Failure),
    /// The row could not be measured, this once.
    Row(Failure),
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
        let running = self.start(interrupt)?;
        let mut value = self.load(&running, interrupt, None)?;
        value["startup_ms"] = (running.startup.as_secs_f64() * 1e3).into();
        value["program_bytes"] = self.server.program_bytes().into();
        Ok(value)
    }

    fn count(&self, interrupt: &Interrupt) -> Result<Calls, Uncounted> {
        let running = self.start(interrupt).map_err(Uncounted::Row)?;
        let counting = Counting::start(running.pid(), self.folder).map_err(Uncounted::Perf)?;
        let loaded = self.load(&running, interrupt, Some(&counting));
        let messages =
            loaded.as_ref().ok().and_then(|value| value["messages"]["received"].as_f64());
        // What perf says comes first: without it `load` fails for want of an answer.
        let calls = counting.finish(messages.unwrap_or(f64::NAN));
        match (calls, loaded) {
            (Err(why), _) => Err(Uncounted::Perf(why)),
            (Ok(_), Err(why)) => Err(Uncounted::Row(why)),
            (Ok(calls), Ok(_)) => Ok(calls),
        }
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Running, Failure> {
        let Self { workload, server, results, certificate, folder } = *self;
        let Workload { service, open_files, .. } = *workload;
        let place = Place { core: results.server_core, folder };
        Running::start(server, service, certificate, place, open_files, interrupt)
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
        let ended = interrupt.wait(&mut load).map_err(cannot)?;
        if !ended.success() {
            let mut complaint = String::new();
            let stderr = load.stderr.take().expect("it is piped");
            let _ = stderr.take(64 << 10).read_to_string(&mut complaint);
            return Err(match complaint.trim() {
                "" => Failure::new(format!("load: {ended}")),
                complaint => Failure::new(complaint),
            });
        }
        let unreadable = |error: io::Error| Failure::new(format!("no report of load: {error}"));
        let text = fs::read(&json).map_err(unreadable)?;
        let _ = fs::remove_file(&json);
        let value: Value = serde_json::from_slice(&text).map_err(|e| unreadable(e.into()))?;
        // In a burst it is a result how many are not served; elsewhere all have to be. Of arrivals these are
        // the busy ones: what becomes of those that arrive is told apart.
        if value["burst"].is_null() {
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

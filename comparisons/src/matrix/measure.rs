//! Measures the rounds of a run, and counts system calls.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::Failure;
use super::alternate::{Round, RowRound};
use super::calls::{PerfStat, SystemCalls};
use super::credentials::Credentials;
use super::interrupt::Interrupt;
use super::load_process::{self, Measurement};
use super::objects_folder::ObjectsFolder;
use super::pairs::Pairing;
use super::program::{Running, SERVER_STDERR};
use super::progress::{self, Progress};
use super::results::{MeasuredWorkload, Results, Sample};
use crate::load::Report;

/// A crash loses at most this much. The results of a run of hours are tens of megabytes: writing them after each
/// measurement would take as long as the measurement.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// Measures all missing rounds. Results are saved every [`SAVE_EVERY`]; the caller saves the last of them.
///
/// # Errors
/// When the results cannot be written, or SIGHUP, SIGINT or SIGTERM came.
pub(crate) fn rounds(results: &mut Results, folder: &Path) -> Result<(), Failure> {
    let interrupt = Interrupt::listen().map_err(no_signals)?;
    let credentials = Credentials::create(folder)?;
    let objects = results.workloads.iter().filter_map(|it| it.workload.load.object_bytes());
    let _objects = ObjectsFolder::create(folder, objects)?;
    let progress = Progress::of(results);
    let mut saved = Instant::now();
    for index in 0..results.workloads.len() {
        while let Some(round) = pairs(results, index, &credentials, folder, &interrupt, &progress) {
            if interrupt.is_pending().map_err(no_signals)? {
                return Err(interrupted(folder));
            }
            let (round, pairing) = round;
            for (row, of_row) in results.workloads[index].rows.iter().zip(&round) {
                if let Some(why) = of_row.as_ref().and_then(RowRound::void) {
                    progress::void(&format!("{}: {why}", row.server.name));
                }
            }
            results.workloads[index].add_round(round, pairing);
            if saved.elapsed() >= SAVE_EVERY {
                results.save(folder)?;
                saved = Instant::now();
            }
        }
        while let Some(next) = results.workloads[index].next() {
            progress.show(results, index, next);
            let MeasuredWorkload { workload, rows, .. } = &results.workloads[index];
            let server = &rows[next.row].server;
            let load = &workload.load;
            let credentials = &credentials;
            let measurement = Measurement { workload, load, server, results, credentials, folder };
            let sample = measurement.take(&interrupt);
            if interrupt.is_pending().map_err(no_signals)? {
                return Err(interrupted(folder));
            }
            if let Err(why) = &sample {
                progress::void(&why.to_string());
            }
            let row = &mut results.workloads[index].rows[next.row];
            row.rounds.push(sample.map_err(|why| why.to_string()));
            if saved.elapsed() >= SAVE_EVERY {
                results.save(folder)?;
                saved = Instant::now();
            }
        }
        count_calls(results, index, &credentials, folder, &interrupt)?;
    }
    progress::end();
    let _ = fs::remove_file(folder.join(SERVER_STDERR));
    Ok(())
}

/// A round of pairs; none if no row needs one.
fn pairs(
    results: &Results,
    index: usize,
    credentials: &Credentials,
    folder: &Path,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Option<(Vec<Option<RowRound>>, Pairing)> {
    let measured = &results.workloads[index];
    let pairing = measured.workload.pairing?;
    let rows = measured.unfinished();
    let first = rows.first()?;
    progress.show_pairs(results, measured, measured.rows[*first].rounds.len() + 1, rows.len());
    let round = Round { results, measured, pairing, credentials, folder, interrupt }.measure();
    Some((round, pairing))
}

/// Counts the system calls of each row that has a sound round. That they cannot be counted is no error.
fn count_calls(
    results: &mut Results,
    index: usize,
    credentials: &Credentials,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let is_counted = results.no_calls.is_none();
    let load = results.workloads[index].workload.load_for_counting().filter(|_| is_counted);
    let Some(load) = load else { return Ok(()) };
    for row in results.workloads[index].uncounted() {
        let MeasuredWorkload { workload, rows, .. } = &results.workloads[index];
        let server = &rows[row].server;
        progress::calls(&workload.name, &server.name);
        let load = &load;
        let measurement = Measurement { workload, load, server, results, credentials, folder };
        let counted = measurement.count(interrupt);
        if interrupt.is_pending().map_err(no_signals)? {
            return Err(interrupted(folder));
        }
        let counted = match counted {
            Ok(calls) => Ok(calls),
            Err(Uncounted::Row(why)) => Err(why.to_string()),
            // It worked for another row: here the server may have died.
            Err(Uncounted::Perf(why)) if results.has_calls() => Err(why.to_string()),
            Err(Uncounted::Perf(why)) => {
                // A refusal at the first row, such as for permission, holds for all.
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

/// Why system calls were not counted.
enum Uncounted {
    /// perf failed.
    Perf(Failure),
    /// The row could not be measured this time.
    Row(Failure),
}

impl Measurement<'_> {
    /// Starts the server, and runs the load on it once.
    fn take(&self, interrupt: &Interrupt) -> Result<Sample, Failure> {
        let running = self.start(interrupt)?;
        let sample = Sample {
            report: self.load(&running, interrupt, None)?,
            startup_ms: running.startup.as_secs_f64() * 1e3,
            program_bytes: self.server.program_bytes(),
        };
        sample.check(&self.workload.figures).map_err(Failure::new)?;
        Ok(sample)
    }

    /// Counts the system calls of the server while the load runs.
    fn count(&self, interrupt: &Interrupt) -> Result<SystemCalls, Uncounted> {
        let running = self.start(interrupt).map_err(Uncounted::Row)?;
        let perf_stat = PerfStat::start(running.pid(), self.folder).map_err(Uncounted::Perf)?;
        let loaded = self.load(&running, interrupt, Some(&perf_stat));
        let messages = loaded.as_ref().ok().and_then(|report| report.messages.as_ref());
        let messages = messages.map_or(f64::NAN, |messages| messages.received as f64);
        // perf's error comes first: without perf, `load` fails because perf does not answer.
        let calls = perf_stat.finish(messages);
        match (calls, loaded) {
            (Err(why), _) => Err(Uncounted::Perf(why)),
            (Ok(_), Err(why)) => Err(Uncounted::Row(why)),
            (Ok(calls), Ok(_)) => Ok(calls),
        }
    }

    /// Runs the load to its end.
    fn load(
        &self,
        running: &Running,
        interrupt: &Interrupt,
        perf_stat: Option<&PerfStat>,
    ) -> Result<Report, Failure> {
        let time = Duration::from_secs_f64(self.load.longest_seconds());
        let json = self.folder.join("load.json");
        let cannot = |error: io::Error| Failure::new(format!("cannot run load: {error}"));
        let mut load = self
            .command(running)?
            .args(perf_stat.map(|perf_stat| format!("--perf={}", perf_stat.fifos())))
            .arg("--json")
            .arg(&json)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(cannot)?;
        // Its error messages are a few lines; the pipe holds 64 KiB.
        let ended = interrupt.wait(&mut load, time).map_err(cannot)?;
        if !ended.success() {
            return Err(load_process::failure(&mut load, &ended.to_string()));
        }
        let unreadable = |error: io::Error| Failure::new(format!("no report of load: {error}"));
        let text = fs::read(&json).map_err(unreadable)?;
        let _ = fs::remove_file(&json);
        serde_json::from_slice(&text).map_err(|error| unreadable(error.into()))
    }
}

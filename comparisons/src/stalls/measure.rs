//! One run: a server, its load, the fault, and what both sides say of it.

use std::fs::{self, File};
use std::io::{self, PipeReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Failure;
use super::figures::Figures;
use super::judge::{Expectation, FaultTimes, Outcome, judge};
use super::network::Namespace;
use super::plan::{BEFORE_END, Program, Scenario};
use super::record::{Record, late_hearts, only_in_log};
use super::results::{Details, Run};
use super::scheduler::wait_percent;
use super::stress::{DeafClients, Neighbours};
use super::watch::{Seen, Watch, unix_ms};
use crate::load::{Load, Report};
use crate::matrix::credentials::Credentials;
use crate::matrix::interrupt::Interrupt;
use crate::matrix::program::{Placement, Running, SERVER_STDERR, limited, programs};
use crate::matrix::servers::Servers;

/// The file in the folder of a run that holds what the last naive server recorded.
pub(crate) const EVENTS: &str = "events.jsonl";

/// At most this much is read of a file of events: a run of ten minutes has some MiB.
const EVENTS_BYTES_MAX: u64 = 256 << 20;

/// At most this much is read of a server's log.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// What all runs share.
pub(crate) struct Lab<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) credentials: &'a Credentials,
    pub(crate) folder: &'a Path,
    pub(crate) server_core: usize,
    pub(crate) load_core: usize,
    pub(crate) interrupt: &'a Interrupt,
}

/// A running `load`, with the file of its report. Dropping this ends it.
struct RunningLoad {
    process: Child,
    report: PathBuf,
    longest: Duration,
}

/// A running server, and what goes with it.
struct Started {
    running: Running,
    /// Its standard error, if nobody is to read it for now.
    log: Option<PipeReader>,
    events: PathBuf,
    since: Instant,
    since_unix_ms: f64,
}

/// What clients saw of a server.
struct Driven {
    /// The observer's.
    report: Report,
    loads: Vec<Report>,
    loads_ended_unix_ms: f64,
    /// Reads the server's log, if nobody did before.
    drained: Option<JoinHandle<()>>,
}

impl Lab<'_> {
    /// Runs a scenario once.
    ///
    /// # Errors
    /// What did not start or did not end, which answer was wrong, or a signal that came.
    pub(crate) fn run(
        &self,
        scenario: &Scenario,
        program: Program,
        runtime: &str,
    ) -> Result<Run, Failure> {
        let network =
            scenario.network.map(|it| Namespace::create(it, self.interrupt)).transpose()?;
        let network = network.as_ref();
        let mut started = self.start(scenario, program, runtime, network)?;
        let addr = started.running.addr;
        // The same address outside of the namespace is another server's, or nobody's.
        let admin = started.running.addrs.get(1).copied().filter(|_| network.is_none());
        let watch = Watch::start(started.running.pid(), addr, admin, self.load_core)
            .map_err(|error| Failure::new(format!("cannot watch the server: {error}")))?;

        let observer = scenario.observer().map_err(Failure::new)?;
        let Driven { report, loads, loads_ended_unix_ms, drained } =
            self.drive(scenario, &observer, &mut started, network)?;
        let mut seen = watch.finish();
        let is_healthy = scenario.class.is_none();
        if program == Program::Ours && (is_healthy || network.is_some()) {
            let again = if is_healthy { &*scenario.loads } else { &[] };
            let log = self.end(again, &mut started, network)?;
            let known = seen.incidents.get_or_insert_default();
            known.extend(only_in_log(&log, known));
        }
        let record = Self::record(&started.events, program)?;
        let fault_unix_ms = fault_unix_ms(scenario, &record, &started, loads_ended_unix_ms);
        drop(started.running);
        if let Some(drained) = drained {
            let _ = drained.join();
        }

        if program == Program::Naive {
            seen.incidents = Some(record.incidents);
        }
        let (late_ms, has_stalls_alone) = match (program, &seen.incidents) {
            (Program::Ours, Some(incidents)) => (late_hearts(incidents), true),
            _ => (record.late, false),
        };
        let patience_ms = observer.patience_seconds() * 1e3;
        let figures = Figures::of(&report, &loads, patience_ms, fault_unix_ms[1]);
        let figures = figures.map_err(Failure::new)?;
        let expectation = scenario.expectation(program, runtime);
        let expectation = expectation.in_run(seen.listen_overflows, figures.delayed);
        Ok(Run {
            listening_unix_ms: started.since_unix_ms,
            fault_unix_ms,
            figures,
            cpu_wait_percent: wait_percent(&seen.samples),
            listen_overflows: seen.listen_overflows,
            outcome: outcome(scenario, expectation, &seen, fault_unix_ms),
            incidents: seen.incidents.unwrap_or_default(),
            details: Some(Details {
                clients: report
                    .arrivals
                    .and_then(|arrivals| arrivals.timeline)
                    .ok_or_else(|| Failure::new("the observer has no timeline"))?,
                late_ms,
                has_stalls_alone,
                samples: seen.samples,
            }),
        })
    }

    /// Lets clients come, before the fault, during it and after it.
    fn drive(
        &self,
        scenario: &Scenario,
        observer: &Load,
        started: &mut Started,
        network: Option<&Namespace>,
    ) -> Result<Driven, Failure> {
        let observing = self.load(observer, "observer", started, network)?;
        let after = Duration::from_millis(scenario.after_ms.into());
        let until = after + Duration::from_millis(scenario.lasts_ms.into());
        self.pause_until(started, after)?;
        let loads = (0..).zip(&scenario.loads);
        let loads: Result<Vec<_>, _> = loads
            .map(|(number, load)| self.load(load, &format!("load-{number}"), started, network))
            .collect();
        let deaf = scenario.deaf.map(|deaf| DeafClients::start(started.running.addr, deaf));
        let neighbours = Neighbours::start(scenario.neighbours, self.server_core)?;
        self.pause_until(started, until)?;
        drop((deaf, neighbours));
        let drained = started.log.take().map(drain);

        let loads = loads?.into_iter().map(|load| self.report(load));
        let loads = loads.collect::<Result<Vec<_>, _>>()?;
        let loads_ended_unix_ms = unix_ms();
        let report = self.report(observing)?;
        Ok(Driven { report, loads, loads_ended_unix_ms, drained })
    }

    fn start(
        &self,
        scenario: &Scenario,
        program: Program,
        runtime: &str,
        network: Option<&Namespace>,
    ) -> Result<Started, Failure> {
        let server = scenario.server(program, runtime, self.servers).map_err(Failure::new)?;
        let events = self.folder.join(EVENTS);
        // Those of the run before.
        let _ = fs::remove_file(&events);
        let mut words = network.map_or_else(Vec::new, |network| network.entered().to_vec());
        words.extend(scenario.open_files.into_iter().flat_map(limited));
        let mut command = prefixed(&words, &server.program()?);
        let args = server.args(self.credentials, self.folder, self.folder);
        command.args(args).stdin(Stdio::null());
        if program == Program::Naive {
            command.arg("--events").arg(&events);
        }
        let lines = match program {
            Program::Naive => 1,
            Program::Ours => 2,
        };
        let place = Placement { core: self.server_core, cores: 1, folder: self.folder };
        let name = format!("{}, {}", server.name, scenario.name);
        let (running, log) = if scenario.unread_log {
            let cannot = |why: String| Failure::new(format!("cannot start {name}: {why}"));
            let (log, stderr) = io::pipe().map_err(|error| cannot(error.to_string()))?;
            command.stderr(stderr);
            let cores = self.server_core..self.server_core + 1;
            let running = Running::spawn_logging(command, lines, cores, self.interrupt);
            (running.map_err(cannot)?, Some(log))
        } else {
            (Running::spawn(command, &name, lines, place, self.interrupt)?, None)
        };
        Ok(Started { running, log, events, since: Instant::now(), since_unix_ms: unix_ms() })
    }

    fn load(
        &self,
        load: &Load,
        name: &str,
        started: &Started,
        network: Option<&Namespace>,
    ) -> Result<RunningLoad, Failure> {
        let report = self.folder.join(format!("{name}.json"));
        let _ = fs::remove_file(&report);
        let words = network.map_or_else(Vec::new, |network| network.entered().to_vec());
        let process = prefixed(&words, &programs()?.join("load"))
            .arg(load.name())
            .arg(started.running.addr.to_string())
            .args(load.args())
            .args(["--core", &self.load_core.to_string()])
            .arg("--json")
            .arg(&report)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::new(format!("cannot run load: {error}")))?;
        let longest = Duration::from_secs_f64(load.longest_seconds());
        Ok(RunningLoad { process, report, longest })
    }

    /// Runs loads again, tells the server to end, and waits until it has. Returns its log.
    fn end(
        &self,
        loads: &[Load],
        started: &mut Started,
        network: Option<&Namespace>,
    ) -> Result<String, Failure> {
        let loads = (0..).zip(loads);
        let loads: Result<Vec<_>, _> = loads
            .map(|(number, load)| self.load(load, &format!("last-{number}"), started, network))
            .collect();
        let loads = loads?;
        if !loads.is_empty() {
            self.pause(BEFORE_END)?;
        }
        started.running.end();
        drop(loads); // their connections have ended, which they would report as errors
        let log = self.folder.join(SERVER_STDERR);
        let mut bytes = Vec::new();
        File::open(&log)
            .and_then(|file| file.take(LOG_BYTES_MAX).read_to_end(&mut bytes))
            .map_err(|error| Failure::new(format!("{}: {error}", log.display())))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits for the end of a load, and reads its report.
    fn report(&self, mut load: RunningLoad) -> Result<Report, Failure> {
        let ended = self
            .interrupt
            .wait(&mut load.process, load.longest)
            .map_err(|error| Failure::new(format!("load: {error}")))?;
        // 2 is a wrong answer, of which the report says more.
        if !matches!(ended.code(), Some(0 | 2)) {
            return Err(crate::matrix::load_process::failure(
                &mut load.process,
                &ended.to_string(),
            ));
        }
        let text = fs::read(&load.report);
        let report = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        report.map_err(|error| Failure::new(format!("no report of load: {error}")))
    }

    /// Waits until a server has listened for so long.
    fn pause_until(&self, started: &Started, since: Duration) -> Result<(), Failure> {
        self.pause(since.saturating_sub(started.since.elapsed()))
    }

    fn pause(&self, time: Duration) -> Result<(), Failure> {
        match self.interrupt.pause(time) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::new("interrupted")),
            Err(error) => Err(Failure::new(format!("cannot wait: {error}"))),
        }
    }

    fn record(events: &Path, program: Program) -> Result<Record, Failure> {
        if program == Program::Ours {
            return Ok(Record::default());
        }
        let unreadable = |why: String| Failure::new(format!("{}: {why}", events.display()));
        let mut text = String::new();
        File::open(events)
            .and_then(|file| file.take(EVENTS_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| unreadable(error.to_string()))?;
        Record::parse(&text).map_err(unreadable)
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.report);
    }
}

/// When the fault began and ended.
fn fault_unix_ms(
    scenario: &Scenario,
    record: &Record,
    started: &Started,
    loads_ended_unix_ms: f64,
) -> [f64; 2] {
    let began = started.since_unix_ms + f64::from(scenario.after_ms);
    let ends = began + f64::from(scenario.lasts_ms);
    if scenario.fault.is_none() && !scenario.loads.is_empty() {
        // The load is the fault, and lasts as long.
        return [began, ends.max(loads_ended_unix_ms)];
    }
    // The server may be too late to record its fault.
    [
        record.fault_began.map_or(began, |recorded| recorded.min(began)),
        record.fault_ended.map_or(ends, |recorded| recorded.min(ends)),
    ]
}

/// Compares what the detector said with the truth.
fn outcome(
    scenario: &Scenario,
    expectation: Expectation<'_>,
    seen: &Seen,
    [began, ended]: [f64; 2],
) -> Outcome {
    let times = FaultTimes { began, then_began: began + scenario.then_ms(), ended };
    match &seen.incidents {
        Some(incidents) => judge(expectation, incidents, times, &seen.samples),
        None if seen.is_mute => Outcome::Silent,
        None => Outcome::NotAsked,
    }
}

/// A program, after the words that it is run with.
fn prefixed(words: &[String], program: &Path) -> Command {
    match words {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// Reads a log to its end, which is that of the server.
fn drain(mut log: PipeReader) -> JoinHandle<()> {
    thread::spawn(move || {
        let _ = io::copy(&mut log, &mut io::sink());
    })
}

//! A running `load`: its command line, and the one that measures windows on command.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::Failure;
use super::certificate::Certificate;
use super::interrupt::Interrupt;
use super::program::{self, Running};
use super::servers::{Protocol, Server};
use super::workload::Workload;
use crate::load::{Line, Load, Report};

/// How long a window may take longer than its time: outstanding answers come until `load` has no more patience.
const ANSWER: Duration = Duration::from_secs(60);

/// At most this much is read of what `load` complains.
const COMPLAINT_BYTES_MAX: u64 = 64 << 10;

/// The command line of `load`, but for how it reports.
///
/// # Errors
/// When the folder of the programs is unknown.
pub(crate) fn command(
    workload: &Workload,
    load: &Load,
    server: &Server,
    running: &Running,
    certificate: &Certificate,
    core: usize,
) -> Result<Command, Failure> {
    let mut command = Command::new(program::programs()?.join("load"));
    command.arg(load.name()).arg(running.addr.to_string()).args(load.args());
    command.args(workload.args_for(server));
    if server.protocol == Protocol::Tls {
        command.arg("--tls").arg(certificate.chain());
    }
    command.args(["--core", &core.to_string()]);
    command.args(["--server-pid", &running.pid().to_string()]);
    command.stderr(Stdio::piped());
    Ok(command)
}

/// What `load` complained about, or how it ended.
pub(crate) fn complaint(load: &mut Child, ended: &str) -> Failure {
    let mut complaint = String::new();
    if let Some(stderr) = load.stderr.take() {
        let _ = stderr.take(COMPLAINT_BYTES_MAX).read_to_string(&mut complaint);
    }
    match complaint.trim() {
        "" => Failure::new(format!("load: {ended}")),
        complaint => Failure::new(complaint),
    }
}

/// A `load` that keeps its connections and measures when it is told to. Dropping this ends it.
pub(crate) struct WindowLoad {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl WindowLoad {
    /// Starts it. It opens its connections at once.
    pub(crate) fn start(mut command: Command) -> Result<Self, Failure> {
        let cannot = |error: io::Error| Failure::new(format!("cannot run load: {error}"));
        command.arg("--windows").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(cannot)?;
        let stdin = process.stdin.take().expect("it is piped");
        let stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        Ok(Self { process, stdin, stdout })
    }

    /// Runs a closed loop for a time; its report, and the CPU that the server used before it, in per cent.
    ///
    /// # Errors
    /// What went wrong in `load`; wrong answers are in the report.
    pub(crate) fn window(&mut self, ms: u32, interrupt: &Interrupt) -> Result<Line, Failure> {
        self.ask(&format!("window {ms}"), ms, interrupt)
    }

    /// The same, without a report.
    pub(crate) fn warm_up(&mut self, ms: u32, interrupt: &Interrupt) -> Result<Line, Failure> {
        self.ask(&format!("warm-up {ms}"), ms, interrupt)
    }

    /// Ends it. The report is of all windows together.
    pub(crate) fn end(mut self, interrupt: &Interrupt) -> Result<Report, Failure> {
        self.ask("end", 0, interrupt)
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        line: &str,
        ms: u32,
        interrupt: &Interrupt,
    ) -> Result<T, Failure> {
        // If it has ended, reading finds that.
        let _ = self.stdin.write_all(format!("{line}\n").as_bytes());
        let time = Duration::from_millis(ms.into()) + ANSWER;
        let is_readable = interrupt.wait_readable(self.stdout.get_ref(), time);
        let mut answer = String::new();
        match is_readable {
            // It writes whole lines.
            Ok(true) => drop(self.stdout.read_line(&mut answer)),
            Ok(false) => return Err(Failure::new(format!("load did not answer {line:?}"))),
            Err(error) => return Err(Failure::new(format!("cannot wait for load: {error}"))),
        }
        if answer.is_empty() {
            let ended =
                self.process.wait().map_or_else(|error| error.to_string(), |it| it.to_string());
            return Err(complaint(&mut self.process, &ended));
        }
        serde_json::from_str(&answer)
            .map_err(|error| Failure::new(format!("no answer of load to {line:?}: {error}")))
    }
}

impl Drop for WindowLoad {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

//! A server with its `load`: how both are started, and the `load` that measures windows on command.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::Failure;
use super::credentials::Credentials;
use super::interrupt::Interrupt;
use super::program::{self, Placement, Running};
use super::results::Results;
use super::servers::{Protocol, Server};
use super::workload::Workload;
use crate::load::{Load, Report, WindowAnswer};

/// How long a window may take longer than its time: outstanding answers come until `load` has no more patience.
const ANSWER: Duration = Duration::from_secs(60);

/// At most this much is read of an answer: a report has a few KiB.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// At most this much is read of the stderr of `load`.
const STDERR_BYTES_MAX: u64 = 64 << 10;

/// One load on one server.
pub(crate) struct Measurement<'a> {
    pub(crate) workload: &'a Workload,
    /// The workload's load, or the same for a shorter time.
    pub(crate) load: &'a Load,
    pub(crate) server: &'a Server,
    pub(crate) results: &'a Results,
    pub(crate) credentials: &'a Credentials,
    /// The folder of the run.
    pub(crate) folder: &'a Path,
}

impl Measurement<'_> {
    /// Starts the server.
    pub(crate) fn start(&self, interrupt: &Interrupt) -> Result<Running, Failure> {
        let Self { workload, server, results, credentials, folder, .. } = *self;
        let place = Placement { core: results.server_core, cores: server.cores.get(), folder };
        Running::start(server, credentials, place, workload.open_files, interrupt)
    }

    /// The command line of `load` for the running server, but for how it reports.
    ///
    /// # Errors
    /// When the folder of the programs is unknown.
    pub(crate) fn command(&self, running: &Running) -> Result<Command, Failure> {
        let Self { workload, load, server, results, credentials, .. } = *self;
        let mut command = Command::new(program::programs()?.join("load"));
        command.arg(load.name()).arg(running.addr.to_string()).args(load.args());
        command.args(workload.args_for(server));
        if server.protocol == Protocol::Tls {
            command.arg("--tls").arg(credentials.chain());
        }
        if server.has_password() {
            command.arg("--iggy-password-file").arg(credentials.password());
        }
        command.args(["--core", &results.load_core.to_string()]);
        command.args(["--server-pid", &running.pid().to_string()]);
        command.stderr(Stdio::piped());
        Ok(command)
    }
}

/// What `load` wrote to stderr, or how it ended.
pub(crate) fn failure(load: &mut Child, ended: &str) -> Failure {
    let mut text = String::new();
    if let Some(stderr) = load.stderr.take() {
        let _ = stderr.take(STDERR_BYTES_MAX).read_to_string(&mut text);
    }
    match text.trim() {
        "" => Failure::new(format!("load: {ended}")),
        text => Failure::new(text),
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
    pub(crate) fn window(
        &mut self,
        ms: u32,
        interrupt: &Interrupt,
    ) -> Result<WindowAnswer, Failure> {
        self.ask(&format!("window {ms}"), ms, interrupt)
    }

    /// The same, without a report.
    pub(crate) fn warm_up(
        &mut self,
        ms: u32,
        interrupt: &Interrupt,
    ) -> Result<WindowAnswer, Failure> {
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
        let until = Instant::now() + Duration::from_millis(ms.into()) + ANSWER;
        let answer = match self.read_line(until, interrupt) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(Failure::new(format!("load did not answer {line:?}"))),
            Err(error) => return Err(Failure::new(format!("cannot wait for load: {error}"))),
        };
        if answer.is_empty() {
            // Its end of stdout is closed: it has ended, or never will by itself.
            let _ = self.process.kill();
            let ended =
                self.process.wait().map_or_else(|error| error.to_string(), |it| it.to_string());
            return Err(failure(&mut self.process, &ended));
        }
        serde_json::from_slice(&answer)
            .map_err(|error| Failure::new(format!("no answer of load to {line:?}: {error}")))
    }

    /// Reads up to the end of a line or of the stream. None when that does not come in time, or after a signal.
    fn read_line(&mut self, until: Instant, interrupt: &Interrupt) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        while line.len() <= ANSWER_BYTES_MAX {
            if self.stdout.buffer().is_empty() {
                let left = until.saturating_duration_since(Instant::now());
                if !interrupt.wait_readable(self.stdout.get_ref(), left)? {
                    return Ok(None);
                }
            }
            let part = self.stdout.fill_buf()?;
            let end = part.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let (bytes, is_over) = (end.unwrap_or(part.len()), end.is_some() || part.is_empty());
            line.extend_from_slice(&part[..bytes]);
            self.stdout.consume(bytes);
            if is_over {
                return Ok(Some(line));
            }
        }
        Err(io::Error::other("its answer has no end"))
    }
}

impl Drop for WindowLoad {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shell script in the place of `load` makes of a line.
    fn asked(script: &str) -> (Option<String>, Duration) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stderr(Stdio::piped());
        let mut load = WindowLoad::start(command).unwrap();
        let interrupt = Interrupt::never();
        let began = Instant::now();
        let answer = load.ask::<u32>("window 1", 1, &interrupt);
        (answer.err().map(|why| why.to_string()), began.elapsed())
    }

    #[test]
    fn an_answer_in_pieces_is_one() {
        assert_eq!(asked("read line; printf 1; sleep 0.1; printf '2\\n'").0, None);
    }

    #[test]
    fn a_load_that_does_not_end_is_killed() {
        let (why, took) = asked("echo wrong >&2; exec sleep 300 1>&- 2>&-");
        assert_eq!(why.as_deref(), Some("wrong"));
        assert!(took < ANSWER, "{took:?}");
    }

    #[test]
    fn the_wait_for_the_rest_of_a_line_is_bounded() {
        let mut command = Command::new("sh");
        command.args(["-c", "printf 1; exec sleep 300"]).stderr(Stdio::piped());
        let mut load = WindowLoad::start(command).unwrap();
        let interrupt = Interrupt::never();
        let until = Instant::now() + Duration::from_millis(300);
        assert_eq!(load.read_line(until, &interrupt).unwrap(), None);
    }
}

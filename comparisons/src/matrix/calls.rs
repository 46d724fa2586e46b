//! Counts a server's system calls with `perf stat`. This is a pass of its own, because counting slows down all
//! system calls of the machine.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::Failure;

/// The events: every system call, and io_uring's.
const ALL: &str = "raw_syscalls:sys_enter";
const IO_URING_ENTER: &str = "syscalls:sys_enter_io_uring_enter";

/// System calls of a server for each message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SystemCalls {
    pub(crate) all: f64,
    pub(crate) io_uring_enter: f64,
}

/// A running `perf stat`, which counts while `load` tells it to.
pub(crate) struct PerfStat {
    perf: Child,
    control: PathBuf,
    ack: PathBuf,
    out: PathBuf,
}

impl PerfStat {
    /// Attaches to all threads of a process. Its FIFOs and its output are files in `folder`.
    pub(crate) fn start(pid: u32, folder: &Path) -> Result<Self, Failure> {
        let [control, ack, out] =
            ["perf-control", "perf-ack", "perf-out"].map(|name| folder.join(name));
        let cannot = |error: io::Error| Failure::new(format!("cannot run perf: {error}"));
        for fifo in [&control, &ack] {
            // A run that was killed may have left one.
            let _ = fs::remove_file(fifo);
            mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .map_err(|error| cannot(error.into()))?;
        }
        let perf = Command::new("perf")
            .args(["stat", "--field-separator", ",", "--delay", "-1", "--event", ALL])
            .args(["--event", IO_URING_ENTER, "--pid", &pid.to_string(), "--control"])
            .arg(format!("fifo:{},{}", control.display(), ack.display()))
            .arg("--output")
            .arg(&out)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        Ok(Self { perf, control, ack, out })
    }

    /// The value of `load`'s `--perf`.
    pub(crate) fn fifos(&self) -> String {
        format!("{},{}", self.control.display(), self.ack.display())
    }

    /// Ends the count and divides it by the number of messages.
    ///
    /// # Errors
    /// The reason that perf gives, such as missing permission.
    pub(crate) fn finish(mut self, messages: f64) -> Result<SystemCalls, Failure> {
        let pid = Pid::from_raw(self.perf.id().cast_signed());
        // Without permission it has already ended.
        let _ = pid.map(|pid| kill_process(pid, Signal::INT));
        let mut complaint = String::new();
        if let Some(stderr) = self.perf.stderr.take() {
            let _ = stderr.take(64 << 10).read_to_string(&mut complaint);
        }
        let _ = self.perf.wait();
        let output = fs::read_to_string(&self.out).unwrap_or_default();
        for file in [&self.control, &self.ack, &self.out] {
            let _ = fs::remove_file(file);
        }
        let counts = count(&output, ALL).zip(count(&output, IO_URING_ENTER));
        let Some((all, io_uring_enter)) = counts else {
            return Err(Failure::new(format!("perf: {}", refusal(&complaint))));
        };
        Ok(SystemCalls { all: all / messages, io_uring_enter: io_uring_enter / messages })
    }
}

/// The count of a line `COUNT,,EVENT,…`; none if perf did not count the event.
fn count(output: &str, event: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.split(',').nth(2) == Some(event))?;
    line.split(',').next()?.parse().ok()
}

/// The line of perf's messages that gives the reason why it does not count.
fn refusal(complaint: &str) -> &str {
    let mut errors = complaint.lines().filter_map(|line| line.strip_prefix("Error:"));
    // "Events disabled" is no reason.
    let mut lines = complaint.lines().filter(|line| !line.starts_with("Events "));
    let why = errors.find(|line| !line.trim().is_empty());
    why.or_else(|| lines.find(|line| !line.trim().is_empty())).unwrap_or("it counts nothing").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_perf_is_one_line() {
        let output = "event syntax error: 'raw_syscalls:sys_enter'\n  \\___ can't access trace events\n\n\
                    Error:\tNo permissions to read /sys/kernel/tracing\nHint:\tTry\n";
        assert_eq!(refusal(output), "No permissions to read /sys/kernel/tracing");
        assert_eq!(refusal("Events disabled\n\n  no such process\n"), "no such process");
        assert_eq!(refusal("Events disabled\n"), "it counts nothing");
    }

    #[test]
    fn counts_are_found_by_their_event() {
        let output = "# started on Sat\n\n1234,,raw_syscalls:sys_enter,99,100.00,,\n\
                    <not counted>,,syscalls:sys_enter_io_uring_enter,0,0.00,,\n";
        assert_eq!(count(output, ALL), Some(1234.0));
        assert_eq!(count(output, IO_URING_ENTER), None);
    }
}

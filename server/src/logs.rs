//! Logs: written to stderr by a thread of its own, so that no worker waits for the reader of stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use owned_io_server::config::{Level, Log};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};

/// How many lines may be queued, of some hundred bytes each. Lines beyond that are dropped, and counted.
const LINES_MAX: usize = 4096;

/// How long the last lines may take to be written. The process then ends even if nobody reads stderr.
const LAST_LINES_TIME_MAX: Duration = Duration::from_secs(1);

/// Logging that was started. Dropping it waits for queued lines to be written, but not for long.
pub(crate) struct Logs(Option<WorkerGuard>);

/// Starts to write logs.
pub(crate) fn start(log: Log, level: Level) -> Logs {
    let dropped = Arc::new(OnceLock::new());
    let (inner, dropped_lines) = (io::stderr(), Arc::clone(&dropped));
    let stderr = CountingWriter {
        inner,
        log,
        dropped: dropped_lines,
        failed: 0,
        reported: 0,
        is_cut: false,
    };
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX);
    let (queue, guard) = queue.thread_name("logs").finish(stderr);
    let _ = dropped.set(queue.error_counter());
    let logs = tracing_subscriber::fmt()
        .with_writer(queue)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(level_of(level))
        .log_internal_errors(false) // would use `eprintln!`, which panics if stderr fails
        .with_target(false);
    match log {
        Log::Text => logs.init(),
        Log::Json => logs.json().init(),
    }
    Logs(Some(guard))
}

impl Drop for Logs {
    fn drop(&mut self) {
        // If the queue is full, the guard prints that to stdout, which may block as well.
        let guard = self.0.take();
        run_in_time(move || drop(guard));
    }
}

/// Prints to stderr why the server ends, or does not start.
pub(crate) fn print_error(why: &str) {
    let line = format!("owned-io-server: {why}\n");
    run_in_time(move || {
        // `eprintln!` would panic if nobody reads stderr.
        let _ = io::stderr().write_all(line.as_bytes());
    });
}

/// Runs `f`, which may block for ever, on a thread, and waits for it for [`LAST_LINES_TIME_MAX`] at most.
fn run_in_time(f: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let doing = thread::Builder::new().spawn(move || {
        f();
        let _ = done.send(());
    });
    if doing.is_ok() {
        let _ = is_done.recv_timeout(LAST_LINES_TIME_MAX);
    }
}

const fn level_of(level: Level) -> tracing::Level {
    match level {
        Level::Error => tracing::Level::ERROR,
        Level::Warn => tracing::Level::WARN,
        Level::Info => tracing::Level::INFO,
        Level::Debug => tracing::Level::DEBUG,
        Level::Trace => tracing::Level::TRACE,
    }
}

/// Writes lines. A line that cannot be written is dropped, because the disk is full for example. Behind a line that
/// is written it reports how many lines before it were dropped.
struct CountingWriter<W> {
    inner: W,
    log: Log,
    /// The lines that did not fit the queue.
    dropped: Arc<OnceLock<ErrorCounter>>,
    /// The lines that could not be written.
    failed: usize,
    /// How many of both were reported.
    reported: usize,
    /// Whether the last line was written in part, and needs an end.
    is_cut: bool,
}

impl<W: Write> CountingWriter<W> {
    fn report(&mut self, lines: usize) -> io::Result<()> {
        let mut line = match self.log {
            Log::Text => format!("WARN lines of the log were dropped lines={lines}"),
            Log::Json => format!(
                r#"{{"level":"WARN","fields":{{"message":"lines of the log were dropped","lines":{lines}}}}}"#
            ),
        };
        line.push('\n');
        self.write_line(line.as_bytes())
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_cut {
            self.inner.write_all(b"\n")?;
            self.is_cut = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.inner.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    rest = &rest[n..];
                    self.is_cut = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<W: Write> Write for CountingWriter<W> {
    /// `line` is a whole line: the queue passes one at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.write_line(line).is_err() {
            self.failed += 1;
            return Ok(line.len());
        }
        let dropped = self.dropped.get().map_or(0, ErrorCounter::dropped_lines) + self.failed;
        if dropped > self.reported && self.report(dropped - self.reported).is_ok() {
            self.reported = dropped;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes while there is room.
    struct Disk {
        room: usize,
        written: String,
    }

    impl Write for Disk {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let n = line.len().min(self.room);
            if n == 0 {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            self.room -= n;
            self.written += str::from_utf8(&line[..n]).unwrap();
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let inner = Disk { room: 10, written: String::new() };
        let mut log = CountingWriter {
            inner,
            log: Log::Text,
            dropped: Arc::default(),
            failed: 0,
            reported: 0,
            is_cut: false,
        };
        for line in ["first\n", "second\n", "third\n"] {
            assert_eq!(log.write(line.as_bytes()).unwrap(), line.len());
        }
        log.inner.room = 1000;
        for line in ["fourth\n", "fifth\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        let report = "WARN lines of the log were dropped lines=2\n";
        assert_eq!(log.inner.written, format!("first\nseco\nfourth\n{report}fifth\n"));
    }
}

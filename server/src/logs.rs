//! Logs: to stderr, by a thread of their own, so that nobody waits for whoever reads them.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use owned_io_server::config::{Level, Log};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};

/// Lines that may wait to be written, of some hundred bytes each: what comes when these are not taken is
/// dropped, and counted.
const LINES_MAX: usize = 4096;

/// How long the last lines may take, and the last words: whoever waits for the end need not wait for who
/// reads stderr.
const LAST_WORDS_TAKE_MAX: Duration = Duration::from_secs(1);

/// Logs that are written; when it is dropped, those that wait have a last chance.
pub(crate) struct Logs(Option<WorkerGuard>);

/// Writes logs from now on.
pub(crate) fn start(log: Log, level: Level) -> Logs {
    let dropped = Arc::new(OnceLock::new());
    let stderr = Counting { inner: io::stderr(), log, dropped: Arc::clone(&dropped), said: 0 };
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX);
    let (queue, guard) = queue.thread_name("logs").finish(stderr);
    let _ = dropped.set(queue.error_counter());
    let logs = tracing_subscriber::fmt()
        .with_writer(queue)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(level_of(level))
        .log_internal_errors(false) // to stderr as well, by a macro that panics when that fails
        .with_target(false);
    match log {
        Log::Text => logs.init(),
        Log::Json => logs.json().init(),
    }
    Logs(Some(guard))
}

impl Drop for Logs {
    fn drop(&mut self) {
        // When even the end cannot be queued, the guard says so on stdout, which nobody may read either.
        let guard = self.0.take();
        in_time(move || drop(guard));
    }
}

/// Says why the server ends, or does not begin.
pub(crate) fn last_words(why: &str) {
    let line = format!("owned-io-server: {why}\n");
    in_time(move || {
        // Whoever started the server may not read it; `eprintln!` would panic of that.
        let _ = io::stderr().write_all(line.as_bytes());
    });
}

/// Does what may never end, and waits for it, but not for long.
fn in_time(f: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let doing = thread::Builder::new().spawn(move || {
        f();
        let _ = done.send(());
    });
    if doing.is_ok() {
        let _ = is_done.recv_timeout(LAST_WORDS_TAKE_MAX);
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

/// Says behind a line how many before it were dropped.
struct Counting<W> {
    inner: W,
    log: Log,
    dropped: Arc<OnceLock<ErrorCounter>>,
    said: usize,
}

impl<W: Write> Write for Counting<W> {
    /// Called with a line each time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.inner.write_all(line)?;
        let dropped = self.dropped.get().map_or(0, ErrorCounter::dropped_lines);
        if dropped > self.said {
            let lines = dropped - self.said;
            self.said = dropped;
            match self.log {
                Log::Text => {
                    writeln!(self.inner, "WARN lines of the log were dropped lines={lines}")
                }
                Log::Json => writeln!(
                    self.inner,
                    r#"{{"level":"WARN","fields":{{"message":"lines of the log were dropped","lines":{lines}}}}}"#
                ),
            }?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

//! What the program does at signals. Handling a signal never blocks, so later signals are always handled.

use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};
use std::{io, thread};

use owned_io_server::drain::DrainSignal;
use owned_io_server::log_limit::LogLimit;
use owned_io_server::tls::Tls;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tracing::{info, warn};

/// The signals that [`handle`] handles.
const HANDLED: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Makes a write beyond the limit on the size of files (`ulimit -f`) fail. Otherwise SIGXFSZ would end the process as
/// soon as its log has grown to that size.
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    // Any handler will do; nothing reads the flag.
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Handles signals on a thread of its own. The first SIGTERM or SIGINT gives notice, and starts the drain after
/// `notice`; the second ends the process at once. SIGHUP reads the certificates again, if there are any.
pub(crate) fn handle(drain: DrainSignal, notice: Duration, tls: Option<Tls>) -> io::Result<()> {
    let mut signals = Signals::new(HANDLED)?;
    owned_io_os::unblock_signals(&HANDLED)?; // whatever the parent had blocked
    let certificates = tls.map(reloader).transpose()?;
    let mut hangup_log = LogLimit::default();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            match (signal, &certificates) {
                // If a request is queued already, it will read the files as they are by then.
                (SIGHUP, Some(certificates)) => drop(certificates.try_send(())),
                (SIGHUP, None) => {
                    if let Some(suppressed) = hangup_log.admit(Instant::now()) {
                        info!(suppressed, "SIGHUP is ignored: there are no certificates");
                    }
                }
                _ if drain.has_begun() => std::process::exit(128 + signal),
                _ => begin_drain(&drain, notice),
            }
        }
    })?;
    Ok(())
}

fn begin_drain(drain: &DrainSignal, notice: Duration) {
    drain.notice.stop();
    if notice.is_zero() {
        return drain.stop.stop();
    }
    info!(seconds = notice.as_secs(), "about to drain: /health answers 503");
    let stop = drain.stop.clone();
    let waiting = thread::Builder::new().name("notice".to_owned()).spawn(move || {
        thread::sleep(notice);
        stop.stop();
    });
    if waiting.is_err() {
        drain.stop.stop();
    }
}

/// The least time between two readings of the certificates, each of which is logged.
const RELOAD_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Starts a thread that reads the certificates again when it is sent a message. Messages that come during a reading,
/// or within [`RELOAD_INTERVAL_MIN`] of it, are answered by one more reading. It has a thread of its own,
/// because a read may block for ever: the disk of the file may be gone.
fn reloader(tls: Tls) -> io::Result<SyncSender<()>> {
    let (sender, requests) = mpsc::sync_channel(1);
    thread::Builder::new().name("certificates".to_owned()).spawn(move || {
        for () in requests {
            match tls.reload() {
                Ok(()) => info!("certificates were read again"),
                Err(why) => warn!(why, "certificates stay as they are"),
            }
            thread::sleep(RELOAD_INTERVAL_MIN);
        }
    })?;
    Ok(sender)
}

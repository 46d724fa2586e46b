//! What the program does at signals, none of which waits for anything.

use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;
use std::{io, thread};

use owned_io_server::drain::DrainSignal;
use owned_io_server::tls::Tls;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

/// The first SIGTERM or SIGINT gives notice, and drains when that is over; the second ends at once. SIGHUP
/// has the certificates read anew, where there are any.
pub(crate) fn handle(drain: DrainSignal, notice: Duration, tls: Option<Tls>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let certificates = tls.map(reloader).transpose()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            match (signal, &certificates) {
                (SIGHUP, Some(certificates)) => {
                    // One that waits will read what is there by then.
                    if certificates.try_send(()).is_err() {
                        warn!("certificates are being read already");
                    }
                }
                (SIGHUP, None) => info!("there is nothing to be read anew"),
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
    info!(seconds = notice.as_secs(), "about to end: /health says so");
    let stop = drain.stop.clone();
    let waiting = thread::Builder::new().name("notice".to_owned()).spawn(move || {
        thread::sleep(notice);
        stop.stop();
    });
    if waiting.is_err() {
        drain.stop.stop();
    }
}

/// Reads the certificates anew whenever it is sent something, on a thread of its own: a file may be one
/// that has to be waited for, on a disk that is gone, say.
fn reloader(tls: Tls) -> io::Result<SyncSender<()>> {
    let (sender, asked) = mpsc::sync_channel(1);
    thread::Builder::new().name("certificates".to_owned()).spawn(move || {
        for () in asked {
            match tls.reload() {
                Ok(()) => info!("certificates are read anew"),
                Err(why) => warn!(why, "certificates stay as they are"),
            }
        }
    })?;
    Ok(sender)
}

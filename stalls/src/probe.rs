//! The accept prober: a thread that connects now and then, as a client would.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::config::Probe;
use crate::detector::Shared;
use crate::evidence::{ProbeOutcome, ProbeResult};
use crate::stack::signal;

/// Where the prober leaves its last result. It is locked for a copy alone.
pub(crate) type LastProbe = Arc<Mutex<Option<ProbeResult>>>;

/// Probes until it is told to stop.
pub(crate) fn run(probe: &Probe, shared: &Shared) {
    let Shared { config, epoch, last_probe: last, stop, .. } = shared;
    // With its own descriptors, a probe needs none of the program.
    let _ = signal::isolate_this_thread(config.own_descriptors);
    let mut silent = 0_u32;
    while !stop.wait(probe.interval) {
        let began = Instant::now();
        let outcome = once(probe);
        silent = if outcome == ProbeOutcome::NoByte { silent.saturating_add(1) } else { 0 };
        let result = ProbeResult {
            addr: probe.addr,
            at_ms: (began - *epoch).as_millis() as u64,
            took_ms: began.elapsed().as_millis() as u64,
            limit_ms: probe.limit.as_millis() as u64,
            outcome,
            silent,
        };
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }
}

fn once(probe: &Probe) -> ProbeOutcome {
    let limit = Some(probe.limit); // at least 1 ms, see `Config::clamped`
    let mut stream = match TcpStream::connect_timeout(&probe.addr, probe.limit) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                ErrorKind::TimedOut | ErrorKind::WouldBlock => ProbeOutcome::NoConnection,
                ErrorKind::ConnectionRefused => ProbeOutcome::Refused,
                ErrorKind::AddrNotAvailable => ProbeOutcome::NoPort,
                _ => ProbeOutcome::Failed,
            };
        }
    };
    if !probe.first_byte {
        return ProbeOutcome::Answered;
    }
    let limits = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
    match limits.and_then(|()| stream.write_all(&probe.send)).and_then(|()| stream.read(&mut [0])) {
        Ok(_) => ProbeOutcome::Answered, // a byte, or the end: someone has accepted it
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            ProbeOutcome::NoByte
        }
        Err(error) if error.kind() == ErrorKind::ConnectionReset => ProbeOutcome::Answered,
        Err(_) => ProbeOutcome::Failed,
    }
}

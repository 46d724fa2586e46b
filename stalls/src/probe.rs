//! The accept prober: a thread that connects now and then, as a client would.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Probe;
use crate::detector::Shared;
use crate::evidence::{ProbeOutcome, ProbeResult};
use crate::proc::socket::is_at;
use crate::stack::signal;

/// Where the prober leaves its last result. It is locked for a copy alone.
pub(crate) type LastProbe = Arc<Mutex<Option<ProbeResult>>>;

/// How often the prober asks whether there is a probe, until there was one.
const NO_INTERVAL: Duration = Duration::from_millis(100);

/// How much of an answer is read. A connection that is closed with bytes unread is reset, and the service would count a
/// failure.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Probes until the detector ends. For some time there may be nothing to probe.
pub(crate) fn run(shared: &Shared) {
    // With its own descriptors, a probe needs none of the program.
    let _ = signal::isolate_this_thread(shared.config.own_descriptors);
    let mut interval = NO_INTERVAL;
    loop {
        interval = lock(&shared.probe).as_ref().map_or(interval, |probe| probe.interval);
        if shared.stop.wait(interval) {
            return;
        }
        let current = lock(&shared.probe).clone();
        let Some(probe) = current else { continue };
        if accepts_nobody(probe.addr, shared) {
            *lock(&shared.last_probe) = None; // what it showed may be over
            continue;
        }
        let began = Instant::now();
        let outcome = once(&probe);
        let result = ProbeResult {
            addr: probe.addr,
            at_ms: (began - shared.epoch).as_millis() as u64,
            took_ms: began.elapsed().as_millis() as u64,
            limit_ms: probe.limit.as_millis() as u64,
            outcome,
            silent: 0, // `keep` knows
        };
        keep(result, shared);
    }
}

/// Replaces what is probed. The last result was of another probe.
pub(crate) fn replace(probe: Option<Probe>, shared: &Shared) {
    let mut current = lock(&shared.probe);
    *current = probe;
    *lock(&shared.last_probe) = None;
}

/// Keeps a result, unless its probe was replaced meanwhile.
fn keep(mut result: ProbeResult, shared: &Shared) {
    let current = lock(&shared.probe); // first, as in `replace`
    if current.as_ref().is_none_or(|probe| probe.addr != result.addr) {
        return;
    }
    let mut last = lock(&shared.last_probe);
    let silent_before = last.as_ref().map_or(0, |last| last.silent);
    if result.outcome == ProbeOutcome::NoByte {
        result.silent = silent_before.saturating_add(1);
    }
    *last = Some(result);
}

/// Whether an accept loop of the listener waits on purpose.
fn accepts_nobody(addr: SocketAddr, shared: &Shared) -> bool {
    let pauses = shared.accept_pauses.map(|pauses| (pauses.addr, pauses.gauge.load()));
    pauses.into_iter().any(|(listener, loops)| loops > 0 && is_at(listener, addr))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn once(probe: &Probe) -> ProbeOutcome {
    let limit = Some(probe.limit); // at least 1 ms, see `Probe::clamped`
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
    let mut answer = [0; ANSWER_BYTES_MAX];
    let sent = limits.and_then(|()| stream.write_all(&probe.send));
    match sent.and_then(|()| stream.read(&mut answer)) {
        Ok(_) => ProbeOutcome::Answered, // a byte, or the end: someone has accepted it
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            ProbeOutcome::NoByte
        }
        Err(error) if error.kind() == ErrorKind::ConnectionReset => ProbeOutcome::Answered,
        Err(_) => ProbeOutcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::{Config, Detector};

    /// A listener that does not wait in accept, and a probe of it ten times in a second.
    fn listener() -> (TcpListener, Probe) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut probe = Probe::new(listener.local_addr().unwrap(), *b"probe");
        (probe.interval, probe.limit) = (Duration::from_millis(100), Duration::from_millis(200));
        (listener, probe)
    }

    fn wait_for(what: &str, is_there: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(30);
        while !is_there() {
            assert!(Instant::now() < until, "{what} does not come");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its probes would fill the accept queue.
    #[test]
    fn a_listener_that_accepts_nobody_on_purpose_is_not_probed() {
        let (listener, probe) = listener();
        let detector = Detector::start(Config::default()).unwrap();
        let paused = detector.accept_pauses(probe.addr).count();
        detector.set_probe(Some(probe)).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(listener.accept().is_err() && detector.snapshot().probe.is_none());
        drop(paused);
        wait_for("a probe", || listener.accept().is_ok());
        wait_for("its result", || detector.snapshot().probe.is_some());
        let _paused = detector.accept_pauses(listener.local_addr().unwrap()).count();
        wait_for("the end of the result", || detector.snapshot().probe.is_none());
    }

    #[test]
    fn what_is_probed_is_replaced_while_the_detector_runs() {
        let [(first, first_probe), (second, second_probe)] = [listener(), listener()];
        let config = Config { probe: Some(first_probe), ..Config::default() };
        let detector = Detector::start(config).unwrap();
        // Nobody answers.
        wait_for("silence", || detector.snapshot().probe.is_some_and(|probe| probe.silent > 1));
        detector.set_probe(Some(second_probe)).unwrap();
        assert_eq!(detector.snapshot().probe, None, "it was of the first");
        let addr = second.local_addr().unwrap();
        let is_second = || detector.snapshot().probe.is_some_and(|probe| probe.addr == addr);
        wait_for("the second", is_second);
        assert!(first.accept().is_ok() && second.accept().is_ok());
        detector.set_probe(None).unwrap();
        assert_eq!(detector.snapshot().probe, None);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(detector.snapshot().probe, None);
    }
}

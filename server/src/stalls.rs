//! [`Stalls`]: the detector of stalls, as the server embeds it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use owned_io::{Runtime, coop};
use owned_io_stalls::{Config, Detector, Gauge, Probe};
use tracing::warn;

use crate::config::{Listener, Service};
use crate::context::Resources;
use crate::iggy::workers::Hub;
use crate::service::stalls::Answers;

/// How many stalls that are over are kept. One takes some 100 KB.
const INCIDENTS_MAX: usize = 16;

/// How many lines of log the stalls may have in a minute. Further ones are counted, and the next line has the number.
const REPORTS_PER_MINUTE: u32 = 12;

/// How much of the program's symbols is read while a worker stalls: the names of functions fit (3 MB in a release build,
/// 34 MB in an unoptimised one with all runtimes), and the lines of small programs. It is held for a minute, next to what
/// clients can make the server hold.
const SYMBOL_BYTES_MAX: usize = 48 << 20;

/// What a probe sends. The answer is short, and the same for everybody.
const PROBE: &[u8] =
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nUser-Agent: owned-io-stalls\r\n\r\n";

/// How long a probe may take. A worker that serves thousands of busy connections answers within some 100 ms, and a
/// client whose connection request was dropped tries again after 1 s.
const PROBE_TIME_MAX: Duration = Duration::from_secs(2);

/// Whether workers are watched for stalls, and by what. Clones are the same.
///
/// The default watches nothing. Nor does any before [`start`](Self::start): it has no threads, so a simulation repeats.
#[derive(Clone, Default)]
pub struct Stalls {
    time_min: Option<Duration>,
    probe_interval: Option<Duration>,
    detector: Option<Detector>,
    answers: Arc<Answers>,
}

/// The queues of a server, as evidence of a stall.
#[derive(Debug)]
pub(crate) struct Queues {
    /// The bytes of the common part of the budget that the connections of all workers hold.
    bytes: Gauge,
    /// Messages that wait for the applications of all workers.
    application: Gauge,
    /// Commands of Iggy's clients that wait for the worker with the streams, if there are streams.
    hops: Option<(Gauge, Arc<Hub>)>,
    /// Batches that wait for the log on disk, if there is one.
    appends: Option<Gauge>,
}

/// A server that is probed. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Probed(Detector);

impl Drop for Probed {
    fn drop(&mut self) {
        let _ = self.0.set_probe(None); // nothing is started, so nothing fails
    }
}

/// A worker's part of a gauge that all workers share. Gauges by worker would be most of an incident's bytes, and the
/// detector has room for 64.
struct Share {
    gauge: Gauge,
    value: u64,
}

impl Share {
    fn of(gauge: &Gauge) -> Self {
        Self { gauge: gauge.clone(), value: 0 }
    }

    fn set(&mut self, value: u64) {
        self.gauge.add(value.wrapping_sub(self.value)); // a gauge wraps around, too
        self.value = value;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Stalls {
    /// Watches once it is started. A worker that does not get to its tasks for `time_min`, and 50 ms, has stalled.
    pub fn new(time_min: Duration) -> Self {
        Self { time_min: Some(time_min), ..Self::default() }
    }

    /// Probes the server once in `interval`, too. None, the default: never.
    #[must_use]
    pub fn with_probe(self, interval: Option<Duration>) -> Self {
        Self { probe_interval: interval, ..self }
    }

    /// How late a worker must be for a stall. None: nothing is to be watched.
    pub fn time_min(&self) -> Option<Duration> {
        self.time_min
    }

    /// Starts threads that watch. The default has nothing to start.
    ///
    /// # Errors
    /// The threads cannot be started. Then nothing is watched.
    pub fn start(&mut self) -> io::Result<()> {
        let Some(time_min) = self.time_min else { return Ok(()) };
        let mut config = Config::default();
        config.threshold = time_min;
        config.incidents_max = INCIDENTS_MAX;
        config.reports_per_minute = REPORTS_PER_MINUTE;
        config.symbol_bytes_max = SYMBOL_BYTES_MAX;
        self.detector = Some(Detector::start(config)?);
        Ok(())
    }

    /// Registers the queues of a server: `hub` if there are streams, `has_log` if they are on disk. None if nothing is
    /// watched.
    ///
    /// No gauge has a limit, which would make it a fault that a queue is long: each queue is bounded, and whoever finds
    /// it full waits.
    pub(crate) fn queues(&self, hub: Option<&Arc<Hub>>, has_log: bool) -> Option<Queues> {
        let gauge = |name| Some(self.detector.as_ref()?.gauge(name, None));
        let commands = "commands that wait for the worker with the streams";
        Some(Queues {
            bytes: gauge("bytes held by connections")?,
            application: gauge("messages that wait for an application")?,
            hops: hub.and_then(|hub| Some((gauge(commands)?, Arc::clone(hub)))),
            appends: has_log.then(|| gauge("batches that wait for the log")).flatten(),
        })
    }

    /// Probes one of the `listeners`, if there is one whose clients are not disturbed, until the returned guard is
    /// dropped. `has_address_limit`: an address has a limit of connections.
    pub(crate) fn probe(&self, listeners: &[Listener], has_address_limit: bool) -> Option<Probed> {
        let (detector, interval) = (self.detector.as_ref()?, self.probe_interval?);
        let addr = probed_addr(listeners, has_address_limit)?;
        let mut local = addr;
        local.set_port(0);
        // From an address that the machine does not have, a connect fails as if no local port were left.
        UdpSocket::bind(local).ok()?;
        let mut probe = Probe::new(addr, PROBE);
        (probe.interval, probe.limit) = (interval, PROBE_TIME_MAX);
        if let Err(error) = detector.set_probe(Some(probe)) {
            warn!(%error, "the server is not probed");
        }
        Some(Probed(detector.clone()))
    }

    /// Watches the calling worker until it ends. The lengths of its queues become evidence.
    pub(crate) fn watch_worker<R: Runtime>(
        &self,
        id: usize,
        queues: Option<&Queues>,
        resources: &Resources,
    ) {
        let (Some(detector), Some(queues)) = (&self.detector, queues) else { return };
        let heart = detector.watch_current_thread(&id.to_string());
        heart.set_poll_counter(coop::poll_counter());
        let (budget, application) = (resources.budget.clone(), Rc::clone(&resources.application));
        let (mut bytes, mut messages) = (Share::of(&queues.bytes), Share::of(&queues.application));
        let hops = queues.hops.clone();
        drop(R::spawn(async move {
            loop {
                heart.beat();
                bytes.set(budget.common_bytes_held() as u64);
                messages.set(application.queue_len() as u64);
                // By each worker: when the one with the streams stalls, the queue grows.
                if let Some((commands, hub)) = &hops {
                    commands.set(hub.waiting() as u64);
                }
                // A timer of the runtime would cost each wait for I/O, see `Ticker`.
                heart.tick().await;
            }
        }));
    }

    /// The gauge of the connections to a listener, which all workers share. The detector compares it with the sockets
    /// that are open. None if nothing is watched.
    pub(crate) fn connections(&self, listener: SocketAddr) -> Option<Gauge> {
        self.detector.as_ref().map(|detector| detector.connections(listener))
    }

    /// The gauge of the accept loops of a listener that wait for a permit, which all workers share. The detector does not
    /// call that a fault. None if nothing is watched.
    pub(crate) fn accept_pauses(&self, listener: SocketAddr) -> Option<Gauge> {
        self.detector.as_ref().map(|detector| detector.accept_pauses(listener))
    }

    /// The answers of `/stalls`, which all workers share.
    pub(crate) fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// The detector. None if nothing is watched.
    pub const fn detector(&self) -> Option<&Detector> {
        self.detector.as_ref()
    }
}

impl Queues {
    /// The gauge of the batches that wait for the log on disk. None if there is no log.
    pub(crate) const fn appends(&self) -> Option<&Gauge> {
        self.appends.as_ref()
    }
}

/// The address at which a probe disturbs nobody: of admins, whose connections have a limit of their own, or else of
/// clients over plain HTTP, unless an address has a limit. A probe would then take a connection of the local clients, or
/// of a local proxy, and one of these could be reset. Over TLS a probe would be a failed handshake. The other services
/// count what they receive.
fn probed_addr(listeners: &[Listener], has_address_limit: bool) -> Option<SocketAddr> {
    let of = |service| {
        listeners.iter().find(|listener| listener.service == service && !listener.is_over_tls)
    };
    let of_clients = || of(Service::Http).filter(|_| !has_address_limit);
    let mut addr = of(Service::Admin).or_else(of_clients)?.addr;
    if addr.ip().is_unspecified() {
        addr.set_ip(match addr.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Some(addr)
}

impl fmt::Debug for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stalls")
            .field("time_min", &self.time_min)
            .field("probe_interval", &self.probe_interval)
            .field("is_watching", &self.detector.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is started by a configuration alone.
    #[test]
    fn nothing_is_watched_before_it_is_started() {
        assert!(Stalls::new(Duration::from_millis(100)).detector().is_none());
        let mut off = Stalls::default();
        off.start().unwrap();
        assert!(off.detector().is_none());
        assert!(off.queues(None, true).is_none());
    }

    #[test]
    fn a_probe_disturbs_nobody() {
        let listener = |service, addr: &str| {
            let (addr, is_over_tls) = (addr.parse().unwrap(), false);
            Listener { service, addr, is_over_tls }
        };
        let echo = listener(Service::Echo, "127.0.0.1:7");
        let [http, http_v6] = ["0.0.0.0:80", "[::]:80"].map(|addr| listener(Service::Http, addr));
        let https = Listener { is_over_tls: true, ..http };
        let admin = listener(Service::Admin, "192.0.2.1:81");
        let probed = |listeners: &[Listener], has_address_limit| {
            probed_addr(listeners, has_address_limit).map(|addr| addr.to_string())
        };
        for has_address_limit in [false, true] {
            let of_admin = probed(&[echo, http, admin], has_address_limit);
            assert_eq!(of_admin.as_deref(), Some("192.0.2.1:81"));
            assert_eq!(probed(&[echo, https], has_address_limit), None);
        }
        assert_eq!(probed(&[https, http], false).as_deref(), Some("127.0.0.1:80"));
        assert_eq!(probed(&[http_v6], false).as_deref(), Some("[::1]:80"));
        assert_eq!(probed(&[http], true), None, "a local client may need the last connection");
    }
}

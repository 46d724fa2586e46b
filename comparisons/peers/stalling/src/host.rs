//! [`Host`]: what the servers of all runtimes share: the detector, the record, and when the fault is.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use owned_io_stalls::{Config, Detector, Gauge, Heart, Pool, Probe};

use crate::fault::Fault;
use crate::record::Recorder;
use crate::{Args, Switch};

/// More bytes are not to wait for a connection's client, all connections together.
const QUEUED_BYTES_MAX: u64 = 1 << 20;

/// How often the detector connects as a client would, and how long that may take: a scenario lasts seconds.
///
/// No multiple of the interval is just above 1 s, when loopback uses a port in TIME_WAIT again (tcp_tw_reuse, ip-sysctl).
/// With 250 ms each probe takes the port of the fourth before it, and so finds one where all other clients find none.
const PROBE_INTERVAL: Duration = Duration::from_millis(230);
const PROBE_LIMIT: Duration = Duration::from_millis(500);

/// How often the detector inspects connections. It has to see the fault twice.
const CONNECTIONS_INTERVAL: Duration = Duration::from_secs(2);

/// What the server of each runtime is given.
pub(crate) struct Host {
    pub(crate) args: Args,
    pub(crate) recorder: Recorder,
    /// The bytes that wait to be sent, with [`Fault::IgnoreBackPressure`].
    pub(crate) queued: Gauge,
    /// The connections that the server has.
    pub(crate) connections: Gauge,
    /// None with `--detector off`.
    detector: Option<Detector>,
    listening_since: Instant,
}

impl Host {
    /// Starts the detector and the record of a server that listens at `addr`, and prints that it does.
    ///
    /// # Errors
    /// A thread could not be started, or the file of events could not be created.
    pub(crate) fn start(args: Args, addr: SocketAddr) -> io::Result<Arc<Self>> {
        let mut config = Config::default();
        let mut probe = Probe::new(addr, *b"probe");
        probe.interval = PROBE_INTERVAL;
        probe.limit = PROBE_LIMIT;
        config.probe = Some(probe);
        // Nobody is told the names if nothing is recorded.
        if args.events.is_none() {
            config.symbol_bytes_max = 0;
        }
        config.connections_interval = CONNECTIONS_INTERVAL;
        let detector = Detector::start(config)?;
        let recorder = Recorder::start(args.events.as_deref(), detector.clone())?;
        let queued = detector.gauge("queued bytes", Some(QUEUED_BYTES_MAX));
        let connections = detector.connections(addr);
        let detector = (args.detector == Switch::On).then_some(detector);
        peers_common::print_listening(addr);
        let listening_since = Instant::now();
        Ok(Arc::new(Self { args, recorder, queued, connections, detector, listening_since }))
    }

    /// Watches the threads of a runtime that has several, unless there is no detector.
    pub(crate) fn watch_pool(&self) -> Option<Pool> {
        Some(self.detector.as_ref()?.watch_pool("pool"))
    }

    /// Whether it is `fault` that the server has, and its time has come and is not over.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.args.fault == fault
            && self.until_fault().is_zero()
            && !self.until_fault_ends().is_zero()
    }

    /// The time until the fault begins; zero from then on.
    pub(crate) fn until_fault(&self) -> Duration {
        Duration::from_millis(self.args.after_ms).saturating_sub(self.listening_since.elapsed())
    }

    /// The time until the fault is over; zero from then on.
    pub(crate) fn until_fault_ends(&self) -> Duration {
        let end = Duration::from_millis(self.args.after_ms.saturating_add(self.args.lasts_ms));
        end.saturating_sub(self.listening_since.elapsed())
    }
}

/// A task that beats the heart of this thread's event loop; without a detector it ends at once.
pub(crate) async fn heartbeat<S: Future>(host: Arc<Host>, sleep: impl Fn(Duration) -> S) {
    let Some(detector) = &host.detector else { return };
    let heart = detector.watch_current_thread("worker 0");
    beat(&host, &heart, sleep).await;
}

/// Beats a heart for as long as its runtime runs.
pub(crate) async fn beat<S: Future>(host: &Host, heart: &Heart, sleep: impl Fn(Duration) -> S) {
    loop {
        heart.beat();
        host.recorder.beat(heart.interval());
        sleep(heart.interval()).await;
    }
}

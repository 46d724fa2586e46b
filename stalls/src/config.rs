//! [`Config`]: what the detector watches for, and what it may do.

use std::net::SocketAddr;
use std::time::Duration;

/// What the detector watches for, and what it may do. The default suits a server.
///
/// A value out of the range that is named with it counts as the nearest value within.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// How often each heart beats, from 1 ms to 1 h. Default 50 ms: 20 wakes a second of an idle event loop. Each stall
    /// that is longer than the interval and the threshold together is found; a shorter one by chance.
    pub interval: Duration,
    /// How late a heartbeat must be to count as a stall, from 1 ms to 1 h. Default 50 ms: an event loop that serves
    /// thousands of ready connections takes 30 ms for one iteration, and that is no fault.
    pub threshold: Duration,
    /// How often the detector looks at what does not stop a heartbeat: accept queues, rings, descriptors. From
    /// 50 ms to 1 h. Default 500 ms.
    pub look_interval: Duration,
    /// How often connections are inspected one by one, from 1 s to 1 h: some milliseconds with thousands of them. What
    /// is the same at two inspections may be a [connection that never closes](crate::Class::ConnectionNeverCloses).
    /// Default 10 s.
    pub connections_interval: Duration,
    /// The signal that copies the stack of a running thread, or `None` to interrupt no thread. The default is `SIGURG`:
    /// nothing happens if it arrives where nobody handles it, and debuggers pass it on. `SIGUSR1`, `SIGUSR2` and the
    /// real-time signals (`SIGRTMIN` to `SIGRTMAX`) can be used, too. Any other, and a signal that somebody handles, is
    /// not used, and [`Snapshot::unseen`](crate::Snapshot::unseen) says so.
    pub signal: Option<i32>,
    /// Whether the watchdog and the probe have a table of descriptors of their own, by `close_range` (Linux 5.9). Default
    /// true. If false, nothing is seen once the program has no descriptor left, and what the detector opens is among the
    /// program's. For a sandbox that ends the process for that call.
    pub own_descriptors: bool,
    /// Whether sockets are asked for over netlink (`sock_diag`). Default true. If false, listeners and connections are not
    /// seen. For a sandbox that ends the process for such a socket.
    pub netlink: bool,
    /// How many bytes of the program's symbols and debug information the watchdog may read to name stacks. In memory
    /// they take about twice as much. Default 64 MiB; with 0 frames have no names. The watchdog reads them when it
    /// names a stack, and drops them when it has named none for a minute. Names of functions are read first. Lines and
    /// inlined functions are absent if they do not fit.
    pub symbol_bytes_max: usize,
    /// How many incidents [`snapshot`](crate::Detector::snapshot) keeps of those that are over, at most 1,024.
    /// Default 32. One takes tens of KB, and some MB if 16 threads of a pool have 16 stacks each.
    pub incidents_max: usize,
    /// How many reports are written in a minute. Default 30. Further ones are counted, and the next names the number.
    /// The end of a stall that was reported is not counted, and always written. Metrics count each stall.
    pub reports_per_minute: u32,
    /// A connection from outside the loop, now and then. Default none.
    /// [`Detector::set_probe`](crate::Detector::set_probe) replaces it.
    pub probe: Option<Probe>,
}

const HOUR: Duration = Duration::from_secs(3_600);

impl Config {
    /// Brings each value into its range.
    pub(crate) fn clamped(mut self) -> Self {
        let milliseconds = Duration::from_millis;
        self.interval = self.interval.clamp(milliseconds(1), HOUR);
        self.threshold = self.threshold.clamp(milliseconds(1), HOUR);
        self.look_interval = self.look_interval.clamp(milliseconds(50), HOUR);
        self.connections_interval = self.connections_interval.clamp(milliseconds(1_000), HOUR);
        self.incidents_max = self.incidents_max.min(1_024);
        self.probe = self.probe.map(Probe::clamped);
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(50),
            threshold: Duration::from_millis(50),
            look_interval: Duration::from_millis(500),
            connections_interval: Duration::from_secs(10),
            signal: Some(libc::SIGURG),
            own_descriptors: true,
            netlink: true,
            symbol_bytes_max: 64 << 20,
            incidents_max: 32,
            reports_per_minute: 30,
            probe: None,
        }
    }
}

/// A probe of a listener: a thread connects now and then, as a client would.
///
/// The service sees these connections and serves them like any other. While an accept loop of the listener
/// [waits on purpose](crate::Detector::accept_pauses), none is made: it would wait among the clients, and its connection
/// would take room in the accept queue after it has given up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Probe {
    /// The address to connect to.
    pub addr: SocketAddr,
    /// The bytes to send after connecting, for example a request. Default none.
    pub send: Vec<u8>,
    /// Whether to wait for a first byte (or the end of the connection). If false, only the connect is timed, and
    /// the kernel completes that without the program. Default true.
    pub first_byte: bool,
    /// How long to wait between probes, from 100 ms to 1 h. Each takes a local port, which loopback may use again after
    /// 1 s in TIME_WAIT: at an interval of just over 1 s, or of a divisor of that, each probe could take the port of one
    /// before, and none would find that no port is left for others. Default 1.3 s.
    pub interval: Duration,
    /// How long a healthy server may take, from 1 ms to 1 h. Default 1 s.
    pub limit: Duration,
}

impl Probe {
    /// A probe of `addr` that sends `request` and waits for the first byte of the answer.
    pub fn new(addr: SocketAddr, request: impl Into<Vec<u8>>) -> Self {
        Self {
            addr,
            send: request.into(),
            first_byte: true,
            interval: Duration::from_millis(1_300),
            limit: Duration::from_secs(1),
        }
    }

    /// Brings each value into its range.
    pub(crate) fn clamped(mut self) -> Self {
        self.interval = self.interval.clamp(Duration::from_millis(100), HOUR);
        self.limit = self.limit.clamp(Duration::from_millis(1), HOUR);
        self
    }
}

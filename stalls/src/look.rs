//! [`Looker`]: what can be seen without the stalled thread.

mod connections;
mod descriptors;
mod files;
mod listeners;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::detector::Shared;
use crate::evidence::Look;
use crate::gauge::{CountedListener, Gauge};
use crate::probe::LastProbe;
use crate::proc::{OpenFile, net, socket};
use crate::registry::Registry;
use crate::sockets::{FAMILIES, SocketDiag};
use connections::Connections;
use files::Files;

/// Figures of the machine are read at each such look, and while a heart is late. Two are among the looks that are
/// evidence.
const MACHINE_LOOKS: u32 = 4;
/// How often descriptors are inspected one by one, which takes some milliseconds with thousands of them. The interval
/// doubles from the first value to the second, since a program opens its listeners soon after the detector starts.
const INSPECT_INTERVAL: Duration = Duration::from_millis(500);
const INSPECT_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// How often they are inspected at most while a heart is late: each stall has a look, and many short ones may follow each
/// other when there is least time for it.
const INSPECT_INTERVAL_URGENT: Duration = Duration::from_secs(1);

/// Takes looks. Belongs to the thread of the watchdog.
pub(crate) struct Looker {
    epoch: Instant,
    gauges: Registry<Gauge>,
    counted_listeners: Registry<CountedListener>,
    accept_pauses: Registry<CountedListener>,
    last_probe: LastProbe,
    files: Files,
    diag: SocketDiag,
    buf: Vec<u8>,
    /// Looks until the figures of the machine are read.
    until_machine: u32,
    inspect_interval: Duration,
    inspected: Option<Instant>,
    /// The number of descriptors at the last look.
    descriptors: Option<u64>,
    connections_interval: Duration,
    connections_inspected: Option<Instant>,
    /// What the last inspection found. It is in every look until the next one.
    connections: Connections,
    own_inodes: HashSet<u32>,
    /// The families of this process's listeners, and their addresses: at most [`listeners::LISTENERS_MAX`].
    families: Vec<i32>,
    listening_at: Vec<SocketAddr>,
    /// `fdinfo` of each ring.
    rings: HashMap<u32, OpenFile>,
    /// Whether connections were inspected since the start, or since they were forgotten: then there is something to
    /// compare the next inspection with.
    is_comparing: bool,
    /// Connections at the last inspection that were closed by their peers alone.
    close_wait: HashSet<u32>,
    /// Those that had bytes to read.
    unread: HashSet<u32>,
    /// Those that came to a listener of this process.
    accepted: HashSet<u32>,
    /// The most connections that the program had at a look since the last inspection, for each listener that it counts.
    counted_max: HashMap<SocketAddr, u64>,
    /// What cannot be seen, and why: each reason once. Whoever has read it takes it away.
    pub(crate) unseen: Vec<String>,
    /// What was more than is looked at, and is among what cannot be seen.
    left_out: Vec<&'static str>,
}

impl Looker {
    pub(crate) fn new(shared: &Shared) -> Self {
        let mut looker = Self {
            epoch: shared.epoch,
            gauges: shared.gauges.clone(),
            counted_listeners: shared.counted_listeners.clone(),
            accept_pauses: shared.accept_pauses.clone(),
            last_probe: Arc::clone(&shared.last_probe),
            files: Files::new(),
            diag: SocketDiag::new(shared.config.netlink),
            buf: Vec::new(),
            until_machine: 0,
            inspect_interval: INSPECT_INTERVAL,
            inspected: None,
            descriptors: None,
            connections_interval: shared.config.connections_interval,
            connections_inspected: None,
            connections: Connections::default(),
            own_inodes: HashSet::new(),
            families: Vec::new(),
            listening_at: Vec::new(),
            rings: HashMap::new(),
            is_comparing: false,
            close_wait: HashSet::new(),
            unread: HashSet::new(),
            accepted: HashSet::new(),
            counted_max: HashMap::new(),
            unseen: Vec::new(),
            left_out: Vec::new(),
        };
        for (path, what) in [
            ("/proc/self/fd", "descriptors"),
            ("/proc/self/net/netstat", "overflow counters"),
            ("/proc/pressure/memory", "memory pressure"),
        ] {
            if let Err(error) = fs::metadata(path) {
                looker.unseen.push(format!("{what}: {path}: {error}"));
            }
        }
        if let Err(error) = looker.diag.sockets(&FAMILIES, &[socket::LISTEN], None) {
            looker.unseen.push(format!("accept queues: sock_diag: {error}"));
        }
        looker
    }

    /// One look. `is_urgent`: a heart is late, and everything but connections is looked at; descriptors are if that was a
    /// second ago.
    pub(crate) fn look(&mut self, is_urgent: bool) -> Look {
        let probe = self.last_probe.try_lock().ok().and_then(|probe| probe.clone());
        let netstat = self.files.netstat.read(&mut self.buf);
        let mut look = Look {
            at_ms: self.epoch.elapsed().as_millis() as u64,
            listen_overflows: net::parse_netstat(&netstat, "TcpExt", "ListenOverflows"),
            descriptors_max: Some(
                rustix::process::getrlimit(rustix::process::Resource::Nofile)
                    .current
                    .unwrap_or(u64::MAX),
            ),
            gauges: self.gauges.map(Gauge::reading),
            probe,
            ..Look::default()
        };
        if is_urgent || self.until_machine == 0 {
            self.look_at_machine(&mut look);
        }
        self.until_machine = self.until_machine.checked_sub(1).unwrap_or(MACHINE_LOOKS - 1);
        let is_over =
            |last: Option<Instant>, interval| last.is_none_or(|last| last.elapsed() >= interval);
        let are_connections_due = is_over(self.connections_inspected, self.connections_interval);
        let is_due = is_over(self.inspected, self.inspect_interval);
        let is_urgent_due = is_urgent && is_over(self.inspected, INSPECT_INTERVAL_URGENT);
        if is_due && self.inspected.is_some() {
            self.inspect_interval = (self.inspect_interval * 2).min(INSPECT_INTERVAL_MAX);
        }
        let is_inspecting = is_due || is_urgent_due || are_connections_due;
        if is_inspecting {
            self.inspect_descriptors();
            self.inspected = Some(Instant::now());
        }
        self.look_at_descriptors(&mut look, is_inspecting);
        self.look_at_listeners(&mut look, is_inspecting);
        self.count_connections();
        if are_connections_due {
            self.inspect_connections();
            self.connections_inspected = Some(Instant::now());
        }
        let Connections { close_wait, close_wait_old, unread, never_served, counted } =
            self.connections.clone();
        (look.close_wait, look.close_wait_old) = (close_wait, close_wait_old);
        (look.unread_connections, look.never_served) = (unread, never_served);
        look.counted = counted;
        self.look_at_rings(&mut look);
        let paused = self.accept_pauses.map(|pauses| (pauses.addr, pauses.gauge.load()));
        let is_paused = |(addr, loops): (SocketAddr, u64)| (loops > 0).then_some(addr);
        look.accept_pauses = paused.into_iter().filter_map(is_paused).collect();
        look
    }

    /// Notes that there is more of something than is looked at, once.
    fn note_left_out(&mut self, what: &'static str, max: usize) {
        if !self.left_out.contains(&what) {
            self.left_out.push(what);
            self.unseen.push(format!("{what}: more than {max}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::fork::Process;

    /// Many short stalls follow each other when there is least time for it.
    #[test]
    fn descriptors_are_inspected_once_in_a_second_of_urgent_looks() {
        let mut looker = looker();
        looker.connections_inspected = Some(Instant::now());
        looker.inspect_interval = HOUR;
        looker.look(true);
        let inspected = looker.inspected;
        assert!(inspected.is_some());
        (0..3).for_each(|_| drop(looker.look(true)));
        assert_eq!(looker.inspected, inspected);
        looker.inspected = Instant::now().checked_sub(INSPECT_INTERVAL_URGENT);
        let before = looker.inspected;
        looker.look(false);
        assert_eq!(looker.inspected, before);
        looker.look(true);
        assert_ne!(looker.inspected, before);
    }

    #[test]
    fn accept_loops_that_wait_on_purpose() {
        let mut looker = looker();
        let addr = ([127, 0, 0, 1], 80).into();
        let gauge = Gauge::new("pauses", None);
        let pauses = CountedListener { addr, gauge: gauge.clone() };
        assert!(looker.accept_pauses.add(pauses, 1));
        assert!(looker.look(false).accept_pauses.is_empty());
        let loops = [gauge.count(), gauge.count()];
        assert_eq!(looker.look(false).accept_pauses, [addr]);
        drop(loops);
        assert!(looker.look(false).accept_pauses.is_empty());
    }

    pub(super) fn looker() -> Looker {
        let config = Config { connections_interval: HOUR, ..Config::default() };
        Looker::new(&Shared::new(config, Process::current().unwrap()))
    }

    const HOUR: Duration = Duration::from_secs(3_600);
}

//! [`Looker`]: what can be seen without the stalled thread.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::detector::Shared;
use crate::evidence::{CountedConnections, GaugeValue, Listener, Look};
use crate::gauge::{CountedListener, Gauge};
use crate::probe::LastProbe;
use crate::proc::{self, OpenFile, machine, net, ring, socket};
use crate::registry::Registry;
use crate::sockets::{DATAGRAMS_MAX, FAMILIES, SocketDiag};

/// More descriptors are not inspected one by one. Listeners and rings are opened early and have low numbers.
const INSPECTED_MAX: usize = 4_096;
/// Descriptors are counted up to this number.
const COUNTED_MAX: usize = 65_536;
/// Before Linux 6.2 each is an entry that has to be read: more are counted only as often as they are inspected.
const COUNTED_ALWAYS_MAX: u64 = 1_024;
const LISTENERS_MAX: usize = 64;
const RINGS_MAX: usize = 64;
/// The kernel shows a ring's state only if nobody holds its lock, as a busy event loop often does. So many times in a
/// look it is asked again, for all rings together.
const RING_RETRIES: u32 = 8;
const RING_PAUSE: Duration = Duration::from_micros(200);
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
    /// The families of this process's listeners, and their addresses: at most [`LISTENERS_MAX`].
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

/// Figures of an inspection of connections, as in [`Look`].
#[derive(Default, Clone)]
struct Connections {
    close_wait: Option<u64>,
    close_wait_old: Option<u64>,
    unread: Option<u64>,
    never_served: Option<u64>,
    counted: Vec<CountedConnections>,
}

/// Files that stay open.
struct Files {
    netstat: OpenFile,
    sockstat: OpenFile,
    local_ports: OpenFile,
    memory_pressure: OpenFile,
    stat: OpenFile,
    cpu_stat: Option<OpenFile>,
}

impl Files {
    fn new() -> Self {
        Self {
            netstat: OpenFile::new("/proc/self/net/netstat"),
            sockstat: OpenFile::new("/proc/self/net/sockstat"),
            local_ports: OpenFile::new("/proc/sys/net/ipv4/ip_local_port_range"),
            memory_pressure: OpenFile::new("/proc/pressure/memory"),
            stat: OpenFile::new("/proc/stat"),
            cpu_stat: cpu_stat_path().map(OpenFile::new),
        }
    }
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
            gauges: self.gauges.map(|gauge| GaugeValue {
                name: gauge.name.to_string(),
                value: gauge.load(),
                limit: gauge.limit,
            }),
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
        self.descriptors = match size_of_table() {
            None if may_count(self.descriptors, is_inspecting) => count_descriptors(),
            None => self.descriptors,
            size => size,
        };
        look.descriptors = self.descriptors;
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

    fn look_at_rings(&mut self, look: &mut Look) {
        let mut retries = RING_RETRIES;
        for (descriptor, file) in &mut self.rings {
            let mut state = ring::parse(*descriptor, &file.read(&mut self.buf));
            while state.is_none() && retries > 0 {
                retries -= 1;
                std::thread::sleep(RING_PAUSE);
                state = ring::parse(*descriptor, &file.read(&mut self.buf));
            }
            look.rings.extend(state);
        }
        look.rings.sort_by_key(|ring| ring.descriptor);
    }

    /// Figures that change slowly, or explain why a heart is late. `/proc/stat` is long on a machine with many CPUs.
    fn look_at_machine(&mut self, look: &mut Look) {
        let (files, buf) = (&mut self.files, &mut self.buf);
        look.time_wait = net::parse_time_wait(&files.sockstat.read(buf));
        look.local_ports = net::parse_local_ports(&files.local_ports.read(buf));
        look.memory_pressure_us = machine::parse_pressure(&files.memory_pressure.read(buf));
        look.steal_ticks = machine::parse_steal(&files.stat.read(buf));
        let cpu_stat = files.cpu_stat.as_mut();
        look.throttled_us = cpu_stat.and_then(|file| machine::parse_throttled(&file.read(buf)));
    }

    /// Finds the sockets and rings of this process.
    fn inspect_descriptors(&mut self) {
        self.own_inodes.clear();
        let mut rings = HashMap::new();
        let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        for (number, entry) in entries.enumerate() {
            if number == INSPECTED_MAX {
                self.note_left_out("listeners and rings among the descriptors", INSPECTED_MAX);
                break;
            }
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy();
            if let Some(inode) =
                target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'))
            {
                self.own_inodes.extend(inode.parse::<u32>());
            } else if target == "anon_inode:[io_uring]"
                && let Ok(descriptor) = entry.file_name().to_string_lossy().parse()
            {
                if rings.len() == RINGS_MAX {
                    self.note_left_out("rings", RINGS_MAX);
                    continue;
                }
                let known = self.rings.remove(&descriptor);
                let file = || OpenFile::new(format!("/proc/self/fdinfo/{descriptor}"));
                rings.insert(descriptor, known.unwrap_or_else(file));
            }
        }
        self.rings = rings;
    }

    /// `is_new`: descriptors were inspected, so there may be listeners of a family that had none before.
    fn look_at_listeners(&mut self, look: &mut Look, is_new: bool) {
        let families = if is_new { &FAMILIES[..] } else { &self.families };
        let extension = Some(socket::SOCKET_MEMORY);
        let sockets = self.diag.sockets(families, &[socket::LISTEN], extension).unwrap_or_default();
        let own = |socket: &&socket::Socket| self.own_inodes.contains(&socket.inode);
        let listening_at = &mut self.listening_at;
        listening_at.clear();
        for socket in sockets.iter().filter(own) {
            // Each worker may have a listener at the same address.
            if listening_at.len() < LISTENERS_MAX && !listening_at.contains(&socket.local) {
                listening_at.push(socket.local);
            }
        }
        look.listeners = sockets
            .iter()
            .filter(own)
            .take(LISTENERS_MAX)
            .map(|socket| Listener {
                addr: socket.local,
                inode: socket.inode,
                queue: socket.receive_queue,
                backlog: socket.send_queue,
                dropped: socket.dropped,
            })
            .collect();
        if sockets.iter().filter(own).count() > LISTENERS_MAX {
            self.note_left_out("listeners", LISTENERS_MAX);
        }
        if self.diag.has_left_out {
            self.note_left_out("sockets of the network namespace, in datagrams", DATAGRAMS_MAX);
        }
        if is_new {
            let has = |family: &i32| {
                look.listeners.iter().any(|it| it.addr.is_ipv6() == (*family == libc::AF_INET6))
            };
            self.families = FAMILIES.into_iter().filter(has).collect();
        }
    }

    /// Keeps the most that the program has counted since the last inspection. What closes just before the next one is
    /// among them.
    fn count_connections(&mut self) {
        let counted_max = &mut self.counted_max;
        self.counted_listeners.map(|listener| {
            if let Some(most) = counted_max.get_mut(&listener.addr) {
                *most = listener.gauge.load().max(*most);
            }
        });
    }

    /// Connections that are the same at two inspections.
    fn inspect_connections(&mut self) {
        let states = [socket::ESTABLISHED, socket::CLOSE_WAIT];
        let Ok(connections) = self.diag.sockets(&FAMILIES, &states, None) else { return };
        let mut close_wait = HashSet::new();
        let mut unread = HashSet::new();
        let mut accepted = HashMap::new();
        for connection in
            connections.iter().filter(|socket| self.own_inodes.contains(&socket.inode))
        {
            if let Some(listener) = listener_of(connection, &self.listening_at) {
                accepted.insert(connection.inode, listener);
            }
            if is_closed_by_peer_alone(connection) {
                close_wait.insert(connection.inode);
            } else if connection.state == socket::ESTABLISHED && connection.receive_queue > 0 {
                unread.insert(connection.inode);
            }
        }
        let unread_old: HashSet<u32> = unread.intersection(&self.unread).copied().collect();
        let waiting = unread_old.iter().filter(|inode| accepted.contains_key(*inode)).copied();
        let never_served = self.never_served(&waiting.collect());
        let known_before = |inode: &u32| {
            let is_served = never_served.as_ref().is_some_and(|waiting| !waiting.contains(inode));
            self.accepted.contains(inode) && is_served
        };
        let old: Vec<SocketAddr> = accepted
            .iter()
            .filter(|(inode, _)| known_before(inode))
            .map(|(_, listener)| *listener)
            .collect();
        let counted = self.counted_max.iter().map(|(listener, most)| CountedConnections {
            addr: *listener,
            open: old.iter().filter(|at| socket::is_same(*listener, **at)).count() as u64,
            counted_max: *most,
        });
        let is_comparing = std::mem::replace(&mut self.is_comparing, true);
        let compared = |count: usize| is_comparing.then_some(count as u64);
        self.connections = Connections {
            close_wait: Some(close_wait.len() as u64),
            close_wait_old: compared(close_wait.intersection(&self.close_wait).count()),
            unread: compared(unread_old.len()),
            never_served: never_served.as_ref().and_then(|waiting| compared(waiting.len())),
            counted: counted.collect(),
        };
        self.accepted = accepted.into_keys().collect();
        (self.close_wait, self.unread) = (close_wait, unread);
        let now = self.counted_listeners.map(|listener| (listener.addr, listener.gauge.load()));
        self.counted_max = now.into_iter().collect();
    }

    /// Which of the connections `unread` were never served. The kernel is asked only if there may be some: it needs the
    /// lock of each connection to answer. `None`: it does not answer.
    fn never_served(&mut self, unread: &HashSet<u32>) -> Option<HashSet<u32>> {
        if unread.is_empty() {
            return Some(HashSet::new());
        }
        let extension = Some(socket::TCP_INFO);
        let connections = self.diag.sockets(&FAMILIES, &[socket::ESTABLISHED], extension).ok()?;
        let is_one = |connection: &&socket::Socket| {
            unread.contains(&connection.inode) && is_never_served(connection)
        };
        Some(connections.iter().filter(is_one).map(|connection| connection.inode).collect())
    }

    /// Forgets what was seen of connections: a stalled event loop neither reads nor closes any.
    pub(crate) fn forget_connections(&mut self) {
        self.connections = Connections::default();
        self.is_comparing = false;
        self.close_wait.clear();
        self.unread.clear();
        self.accepted.clear();
        self.counted_max.clear();
    }
}

/// The address of the listener that a connection came to. The kernel prefers one with the very address to one at all
/// addresses.
fn listener_of(connection: &socket::Socket, listening_at: &[SocketAddr]) -> Option<SocketAddr> {
    let is_meant = |addr: &&SocketAddr| {
        addr.is_ipv4() == connection.local.is_ipv4() && socket::is_at(**addr, connection.local)
    };
    let is_exact = |addr: &&SocketAddr| !addr.ip().to_canonical().is_unspecified();
    listening_at.iter().filter(is_meant).max_by_key(is_exact).copied()
}

/// Whether the peer has sent, and this process has neither read a byte of the connection nor sent one.
fn is_never_served(socket: &socket::Socket) -> bool {
    let is_untouched = |(received, acked): (u64, u64)| {
        received == u64::from(socket.receive_queue) && acked == 0 && socket.send_queue == 0
    };
    socket.received_and_acked.is_some_and(is_untouched)
}

/// Whether the peer has closed, and this process neither closes nor sends. A client that has only closed its side for
/// writing, and reads slowly, is served: bytes for it wait in the send queue.
fn is_closed_by_peer_alone(socket: &socket::Socket) -> bool {
    socket.state == socket::CLOSE_WAIT && socket.send_queue == 0
}

/// The number of descriptors: since Linux 6.2 it is the size of their directory.
fn size_of_table() -> Option<u64> {
    Some(fs::metadata("/proc/self/fd").ok()?.len()).filter(|size| *size > 0)
}

/// Whether descriptors are counted one by one now, if their number was `known` before.
fn may_count(known: Option<u64>, is_inspecting: bool) -> bool {
    is_inspecting || known.is_none_or(|known| known <= COUNTED_ALWAYS_MAX)
}

fn count_descriptors() -> Option<u64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.take(COUNTED_MAX).count() as u64)
}

/// The file with the throttled time of this process's cgroup.
fn cpu_stat_path() -> Option<String> {
    let text = proc::read("/proc/self/cgroup").ok()?;
    let path = machine::parse_cgroup(&text, "cpu")?;
    ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
        .iter()
        .map(|root| format!("{root}{}/cpu.stat", path.trim_end_matches('/')))
        .find(|path| fs::metadata(path).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::fork::Process;

    fn socket(state: u8, send_queue: u32) -> socket::Socket {
        socket::Socket {
            state,
            local: ([127, 0, 0, 1], 80).into(),
            receive_queue: 1,
            send_queue,
            inode: 1,
            dropped: None,
            received_and_acked: None,
        }
    }

    #[test]
    fn a_half_closed_connection_that_is_served_is_not_counted() {
        assert!(is_closed_by_peer_alone(&socket(socket::CLOSE_WAIT, 0)));
        assert!(!is_closed_by_peer_alone(&socket(socket::CLOSE_WAIT, 1)));
        assert!(!is_closed_by_peer_alone(&socket(socket::ESTABLISHED, 0)));
    }

    #[test]
    fn a_connection_of_which_a_byte_was_read_or_sent_is_served() {
        let counted = |received_and_acked, send_queue| socket::Socket {
            received_and_acked,
            ..socket(socket::ESTABLISHED, send_queue)
        };
        assert!(is_never_served(&counted(Some((1, 0)), 0)));
        assert!(!is_never_served(&counted(Some((2, 0)), 0)), "a byte was read");
        assert!(!is_never_served(&counted(Some((1, 1)), 0)), "a byte was sent");
        assert!(!is_never_served(&counted(Some((1, 0)), 1)), "a byte is on its way");
        assert!(!is_never_served(&counted(None, 0)), "the kernel does not say");
    }

    /// Otherwise what was found would be over before the next inspection.
    #[test]
    fn each_look_has_the_last_inspection_of_connections() {
        let mut looker = looker();
        looker.look(false);
        looker.connections = Connections {
            close_wait: Some(20),
            close_wait_old: Some(19),
            unread: Some(2),
            never_served: Some(1),
            counted: Vec::new(),
        };
        let found = |look: Look| {
            [look.close_wait, look.close_wait_old, look.unread_connections, look.never_served]
        };
        for _ in 0..20 {
            assert_eq!(found(looker.look(false)), [20, 19, 2, 1].map(Some));
        }
        looker.forget_connections();
        assert_eq!(found(looker.look(false)), [None; 4]);
    }

    /// Nothing is known to be over before there is something to compare with.
    #[test]
    fn the_first_inspection_compares_nothing() {
        let mut looker = looker();
        let inspect = |looker: &mut Looker| {
            looker.connections_inspected = None;
            let look = looker.look(false);
            [look.close_wait_old, look.unread_connections, look.never_served].map(|it| it.is_some())
        };
        assert_eq!(inspect(&mut looker), [false; 3]);
        assert_eq!(inspect(&mut looker), [true; 3]);
        looker.forget_connections();
        assert_eq!(inspect(&mut looker), [false; 3]);
    }

    #[test]
    fn a_connection_has_one_listener() {
        let [any, any_v6, one] = ["0.0.0.0:80", "[::]:80", "127.0.0.1:80"]
            .map(|addr| addr.parse::<SocketAddr>().unwrap());
        let of = |local: &str, listening_at: &[SocketAddr]| {
            let mut connection = socket(socket::ESTABLISHED, 0);
            connection.local = local.parse().unwrap();
            listener_of(&connection, listening_at)
        };
        assert_eq!(of("127.0.0.1:80", &[any, any_v6]), Some(any));
        assert_eq!(of("127.0.0.1:80", &[any_v6, one, any]), Some(one));
        assert_eq!(of("127.0.0.2:80", &[any_v6, one, any]), Some(any));
        assert_eq!(of("[::ffff:127.0.0.1]:80", &[any, one, any_v6]), Some(any_v6));
        assert_eq!(of("127.0.0.1:80", &[any_v6]), None, "its connections have IPv6 addresses");
        assert_eq!(of("127.0.0.1:81", &[any, any_v6, one]), None);
    }

    /// What closes shortly before an inspection was counted at a look before.
    #[test]
    fn the_most_that_the_program_counted_since_the_last_inspection() {
        let mut looker = looker();
        let inspect = |looker: &mut Looker| {
            looker.connections_inspected = None;
            let counted = looker.look(false).counted;
            counted.first().map(|listener| listener.counted_max)
        };
        assert_eq!(inspect(&mut looker), None);
        let gauge = Gauge::new("connections", None);
        let listener = CountedListener { addr: ([127, 0, 0, 1], 80).into(), gauge: gauge.clone() };
        assert!(looker.counted_listeners.add(listener, 1));
        gauge.set(5);
        assert_eq!(inspect(&mut looker), None, "it did not count all the time");
        gauge.set(7);
        looker.look(false);
        gauge.set(1);
        assert_eq!(inspect(&mut looker), Some(7));
        assert_eq!(inspect(&mut looker), Some(1));
        looker.forget_connections();
        assert_eq!(inspect(&mut looker), None);
    }

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

    /// Before Linux 6.2 it takes as many entries of a directory.
    #[test]
    fn thousands_of_descriptors_are_counted_as_often_as_they_are_inspected() {
        assert!(may_count(None, false) && may_count(Some(COUNTED_ALWAYS_MAX), false));
        assert!(!may_count(Some(COUNTED_ALWAYS_MAX + 1), false));
        assert!(may_count(Some(COUNTED_ALWAYS_MAX + 1), true));
        assert!(looker().look(false).descriptors.is_some_and(|count| count > 0));
        assert!(count_descriptors().is_some_and(|count| count > 0));
    }

    /// A server with two listeners for each of 40 cores has 80.
    #[test]
    fn more_listeners_than_are_looked_at_are_told_once() {
        let mut looker = looker();
        looker.unseen.clear();
        let listen = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _listeners: Vec<_> = (0..=LISTENERS_MAX).map(listen).collect();
        assert_eq!(looker.look(false).listeners.len(), LISTENERS_MAX);
        looker.look(false);
        assert_eq!(looker.unseen, ["listeners: more than 64"]);
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

    fn looker() -> Looker {
        let config = Config { connections_interval: HOUR, ..Config::default() };
        Looker::new(&Shared::new(config, Process::current().unwrap()))
    }

    const HOUR: Duration = Duration::from_secs(3_600);
}

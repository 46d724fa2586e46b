//! [`Looker`]: what can be seen without the stalled thread.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::evidence::{GaugeValue, Listener, Look, Ring};
use crate::gauge::Gauge;
use crate::probe::LastProbe;
use crate::proc::{self, machine, net, ring, socket};
use crate::sockets::sockets;

/// Descriptors that are inspected one by one. Listeners and rings are opened early and have low numbers.
const INSPECTED_MAX: usize = 4_096;
/// Descriptors are counted up to this number.
const COUNTED_MAX: usize = 65_536;
const LISTENERS_MAX: usize = 64;
const RINGS_MAX: usize = 64;
/// How often descriptors and connections are inspected one by one. It takes some milliseconds.
const INSPECT_INTERVAL: Duration = Duration::from_secs(5);

/// Takes looks. Belongs to the thread of the watchdog.
pub(crate) struct Looker {
    epoch: Instant,
    gauges: crate::registry::Registry<Gauge>,
    last_probe: LastProbe,
    cpu_stat: Option<String>,
    inspected: Option<Instant>,
    own_inodes: HashSet<u32>,
    rings: Vec<u32>,
    close_wait: HashSet<u32>,
    unread: HashSet<u32>,
    /// What cannot be seen, and why. Filled once.
    pub(crate) unseen: Vec<String>,
}

impl Looker {
    pub(crate) fn new(
        epoch: Instant,
        gauges: crate::registry::Registry<Gauge>,
        last_probe: LastProbe,
    ) -> Self {
        let mut looker = Self {
            epoch,
            gauges,
            last_probe,
            cpu_stat: cpu_stat_path(),
            inspected: None,
            own_inodes: HashSet::new(),
            rings: Vec::new(),
            close_wait: HashSet::new(),
            unread: HashSet::new(),
            unseen: Vec::new(),
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
        if let Err(error) = sockets(&[socket::LISTEN]) {
            looker.unseen.push(format!("accept queues: sock_diag: {error}"));
        }
        looker
    }

    /// One look. `is_urgent`: descriptors are inspected even if that was done a moment ago.
    pub(crate) fn look(&mut self, is_urgent: bool) -> Look {
        let text = |path: &str| proc::read(path).unwrap_or_default();
        let netstat = text("/proc/self/net/netstat");
        let probe = self.last_probe.try_lock().ok().and_then(|probe| probe.clone());
        let mut look = Look {
            at_ms: self.epoch.elapsed().as_millis() as u64,
            listen_overflows: net::parse_netstat(&netstat, "TcpExt", "ListenOverflows"),
            descriptors_max: machine::parse_open_files_limit(&text("/proc/self/limits")),
            time_wait: net::parse_time_wait(&text("/proc/self/net/sockstat")),
            local_ports: net::parse_local_ports(&text("/proc/sys/net/ipv4/ip_local_port_range")),
            gauges: self.gauges.map(|gauge| GaugeValue {
                name: gauge.name.to_string(),
                value: gauge.load(),
                limit: gauge.limit,
            }),
            probe,
            memory_pressure_us: machine::parse_pressure(&text("/proc/pressure/memory")),
            cpu_pressure_us: machine::parse_pressure(&text("/proc/pressure/cpu")),
            steal_ticks: machine::parse_steal(&text("/proc/stat")),
            throttled_us: self
                .cpu_stat
                .as_deref()
                .and_then(|path| machine::parse_throttled(&text(path))),
            ..Look::default()
        };
        let is_due = self.inspected.is_none_or(|last| last.elapsed() >= INSPECT_INTERVAL);
        look.descriptors = self.count_descriptors();
        if is_due || is_urgent {
            self.inspect_descriptors();
        }
        if is_due {
            self.inspect_connections(&mut look);
            self.inspected = Some(Instant::now());
        }
        self.look_at_listeners(&mut look);
        look.rings = self.rings.iter().filter_map(|&descriptor| read_ring(descriptor)).collect();
        look
    }

    fn count_descriptors(&self) -> Option<u64> {
        // Since Linux 6.2 the size of the directory is the number of descriptors.
        let size = fs::metadata("/proc/self/fd").ok()?.len();
        if size > 0 {
            return Some(size);
        }
        Some(fs::read_dir("/proc/self/fd").ok()?.take(COUNTED_MAX).count() as u64)
    }

    /// Finds the sockets and rings of this process.
    fn inspect_descriptors(&mut self) {
        self.own_inodes.clear();
        self.rings.clear();
        for entry in
            fs::read_dir("/proc/self/fd").into_iter().flatten().take(INSPECTED_MAX).flatten()
        {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy();
            if let Some(inode) =
                target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'))
            {
                self.own_inodes.extend(inode.parse::<u32>());
            } else if target == "anon_inode:[io_uring]" && self.rings.len() < RINGS_MAX {
                self.rings.extend(entry.file_name().to_string_lossy().parse::<u32>());
            }
        }
    }

    fn look_at_listeners(&self, look: &mut Look) {
        let own = |socket: &socket::Socket| self.own_inodes.contains(&socket.inode);
        let listeners = sockets(&[socket::LISTEN])
            .unwrap_or_default()
            .into_iter()
            .filter(own)
            .take(LISTENERS_MAX);
        look.listeners = listeners
            .map(|socket| Listener {
                addr: socket.local,
                inode: socket.inode,
                queue: socket.receive_queue,
                backlog: socket.send_queue,
            })
            .collect();
    }

    /// Connections that are the same at two looks, 5 s apart.
    fn inspect_connections(&mut self, look: &mut Look) {
        let Ok(connections) = sockets(&[socket::ESTABLISHED, socket::CLOSE_WAIT]) else { return };
        let mut close_wait = HashSet::new();
        let mut unread = HashSet::new();
        for connection in
            connections.iter().filter(|socket| self.own_inodes.contains(&socket.inode))
        {
            if connection.state == socket::CLOSE_WAIT {
                close_wait.insert(connection.inode);
            } else if connection.receive_queue > 0 {
                unread.insert(connection.inode);
            }
        }
        look.close_wait = Some(close_wait.len() as u64);
        look.close_wait_old = Some(close_wait.intersection(&self.close_wait).count() as u64);
        look.unread_connections = Some(unread.intersection(&self.unread).count() as u64);
        (self.close_wait, self.unread) = (close_wait, unread);
    }
}

fn read_ring(descriptor: u32) -> Option<Ring> {
    ring::parse(descriptor, &proc::read(format!("/proc/self/fdinfo/{descriptor}")).ok()?)
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

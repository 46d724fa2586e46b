//! Files of the kernel that stay open, and the figures of the machine.

use std::fs;

use super::Looker;
use crate::evidence::Look;
use crate::proc::{self, OpenFile, machine, net};

/// Files that stay open.
pub(super) struct Files {
    pub(super) netstat: OpenFile,
    sockstat: OpenFile,
    local_ports: OpenFile,
    memory_pressure: OpenFile,
    stat: OpenFile,
    cpu_stat: Option<OpenFile>,
}

impl Files {
    pub(super) fn new() -> Self {
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
    /// Figures that change slowly, or explain why a heart is late. `/proc/stat` is long on a machine with many CPUs.
    pub(super) fn look_at_machine(&mut self, look: &mut Look) {
        let (files, buf) = (&mut self.files, &mut self.buf);
        look.time_wait = net::parse_time_wait(&files.sockstat.read(buf));
        look.local_ports = net::parse_local_ports(&files.local_ports.read(buf));
        look.memory_pressure_us = machine::parse_pressure(&files.memory_pressure.read(buf));
        look.steal_ticks = machine::parse_steal(&files.stat.read(buf));
        let cpu_stat = files.cpu_stat.as_mut();
        look.throttled_us = cpu_stat.and_then(|file| machine::parse_throttled(&file.read(buf)));
    }
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

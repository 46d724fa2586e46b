//! Files of the kernel that stay open, and the figures of the machine.

use std::fs;
use std::path::Path;

use super::Looker;
use crate::evidence::Look;
use crate::proc::{self, OpenFile, machine, net};

/// At most so many cgroups have their quotas looked at: that of the process, and those around it. Most programs are some
/// five deep.
const CGROUPS_MAX: usize = 16;

/// Files that stay open.
pub(super) struct Files {
    pub(super) netstat: OpenFile,
    sockstat: OpenFile,
    local_ports: OpenFile,
    memory_pressure: OpenFile,
    stat: OpenFile,
    cpu_stats: Vec<OpenFile>,
}

impl Files {
    pub(super) fn new() -> Self {
        Self {
            netstat: OpenFile::new("/proc/self/net/netstat"),
            sockstat: OpenFile::new("/proc/self/net/sockstat"),
            local_ports: OpenFile::new("/proc/sys/net/ipv4/ip_local_port_range"),
            memory_pressure: OpenFile::new(memory_pressure_path()),
            stat: OpenFile::new("/proc/stat"),
            cpu_stats: cpu_stat_paths().into_iter().map(OpenFile::new).collect(),
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
        let stats = files.cpu_stats.iter_mut();
        let throttled = stats.filter_map(|file| machine::parse_throttled(&file.read(buf)));
        // Each counts what its own quota stopped.
        look.throttled_us = throttled.reduce(u64::saturating_add);
    }
}

/// The memory pressure of this process's cgroup, which has a limit of its own in a container, or that of the machine.
fn memory_pressure_path() -> String {
    let own = || {
        let text = proc::read("/proc/self/cgroup").ok()?;
        let cgroup = machine::parse_cgroup(&text, "memory")?.trim_end_matches('/');
        let path = format!("/sys/fs/cgroup{cgroup}/memory.pressure");
        fs::metadata(&path).is_ok().then_some(path)
    };
    own().unwrap_or_else(|| "/proc/pressure/memory".to_owned())
}

/// The files with the throttled times of this process's cgroup and of those around it.
fn cpu_stat_paths() -> Vec<String> {
    let Ok(text) = proc::read("/proc/self/cgroup") else { return Vec::new() };
    let Some(own) = machine::parse_cgroup(&text, "cpu") else { return Vec::new() };
    let exists = |path: &String| fs::metadata(path).is_ok();
    let below = |root: &&str| {
        let cgroups = Path::new(own).ancestors().take(CGROUPS_MAX);
        let paths = cgroups.map(|cgroup| format!("{root}{}/cpu.stat", cgroup.display()));
        paths.filter(exists).collect::<Vec<_>>()
    };
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];
    roots.iter().map(below).find(|paths| !paths.is_empty()).unwrap_or_default()
}

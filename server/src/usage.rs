//! [`Meter`]: what this process and its machine use, as Iggy's clients are told.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_lock::Mutex;
use owned_io_os::{proc_field, spawn_blocking};
use rustix::fs::statvfs;
use rustix::time::{ClockId, clock_gettime};

/// How long what was measured is told again. It bounds the work that clients can cause, and the time over which the use
/// of processors is averaged.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// What is used. What is not known is 0 or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// The name of the machine.
    pub hostname: String,
    /// The version of its kernel.
    pub kernel_version: String,
    /// The processor time of this process since the answer before, in percent of the time that has passed: 200 are two
    /// processors.
    pub cpu_percent: f32,
    /// The resident memory of this process, in bytes.
    pub memory_bytes: u64,
    /// The memory of the machine, in bytes.
    pub machine_memory_bytes: u64,
    /// The part of it that processes can still get.
    pub machine_memory_available_bytes: u64,
    /// What this process has read from disks, in bytes. Reads from the page cache do not count.
    pub read_bytes: u64,
    /// What it has written for disks, in bytes.
    pub written_bytes: u64,
    /// The size of the file system with the data, in bytes.
    pub disk_bytes: u64,
    /// The part of it that is free for this process.
    pub disk_free_bytes: u64,
}

/// Measures [`Usage`]. The default measures nothing, so a simulation repeats.
#[derive(Debug, Default)]
pub struct Meter(Option<Process>);

#[derive(Debug)]
struct Process {
    /// The directory of the data.
    dir: Option<PathBuf>,
    /// Locked while it is measured: once, however many ask.
    last: Mutex<Measured>,
}

#[derive(Debug)]
struct Measured {
    at: Instant,
    cpu_time: Duration,
    usage: Option<Usage>,
}

impl Meter {
    /// Of this process, and of the file system with its data, if it has some.
    pub fn of_process(dir: Option<PathBuf>) -> Self {
        let last = Measured { at: Instant::now(), cpu_time: cpu_time(), usage: None };
        Self(Some(Process { dir, last: Mutex::new(last) }))
    }

    /// What is used, as it was within the last second. It is read by another thread: the directory may be on a disk that
    /// hangs.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn usage(&self) -> Usage {
        let Some(Process { dir, last }) = &self.0 else { return Usage::default() };
        let mut last = last.lock().await;
        if let Some(usage) = &last.usage
            && last.at.elapsed() < INTERVAL_MIN
        {
            return usage.clone();
        }
        let dir = dir.clone();
        let read = spawn_blocking(move || Usage::read(dir.as_deref())).await;
        let (at, cpu_time) = (Instant::now(), cpu_time());
        let time = at.saturating_duration_since(last.at);
        let used = cpu_time.saturating_sub(last.cpu_time);
        let cpu_percent = match time.is_zero() {
            true => 0.0,
            false => 100.0 * used.as_secs_f32() / time.as_secs_f32(),
        };
        let usage = Usage { cpu_percent, ..read.unwrap_or_default() };
        *last = Measured { at, cpu_time, usage: Some(usage.clone()) };
        usage
    }
}

impl Usage {
    /// Without the use of processors.
    fn read(dir: Option<&Path>) -> Self {
        // An error: the file is not there, and the figure is not known.
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let line = |path: &str| text(path).trim_end().to_owned();
        let field = |text: &str, name: &str| proc_field(text, name).unwrap_or_default();
        let (status, io) = (text("/proc/self/status"), text("/proc/self/io"));
        let meminfo = text("/proc/meminfo");
        let disk = dir.and_then(|dir| statvfs(dir).ok());
        let (disk_bytes, disk_free_bytes) = disk.map_or((0, 0), |disk| {
            let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
            (bytes(disk.f_blocks), bytes(disk.f_bavail))
        });
        Self {
            hostname: line("/proc/sys/kernel/hostname"),
            kernel_version: line("/proc/sys/kernel/osrelease"),
            cpu_percent: 0.0,
            memory_bytes: field(&status, "VmRSS"),
            machine_memory_bytes: field(&meminfo, "MemTotal"),
            machine_memory_available_bytes: field(&meminfo, "MemAvailable"),
            read_bytes: field(&io, "read_bytes"),
            written_bytes: field(&io, "write_bytes"),
            disk_bytes,
            disk_free_bytes,
        }
    }
}

/// The processor time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use owned_io_sim::block_on;

    use super::*;

    #[test]
    fn a_default_meter_measures_nothing() {
        assert_eq!(block_on(async { Meter::default().usage().await }), Usage::default());
    }
}

//! The CPU time, memory and context switches of a process, from its processor clock and `/proc`: of the server and of
//! `load` itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;
use std::{fs, io};

use nix::time::ClockId;
use nix::unistd::Pid;
use rustix::param::clock_ticks_per_second;
use serde::{Deserialize, Serialize};

use super::Failure;
use super::pace::ns;

/// What a process had used up to one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsageSnapshot {
    user_ticks: u64,
    system_ticks: u64,
    /// Time on a core of all threads, also of those that have ended. The kernel adds the time of a thread when the thread
    /// goes to sleep; of another process, that of a running thread at ticks only.
    on_cpu: Duration,
    /// By thread. Threads that have ended are missing here, but not in the times.
    tasks: BTreeMap<OsString, Task>,
    rss_kib: u64,
    rss_peak_kib: u64,
}

/// What a thread had used.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    /// Whether it ran or was ready to.
    is_running: bool,
    voluntary: u64,
    involuntary: u64,
}

/// What a process used between two moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResourceUsage {
    /// User time; in whole ticks.
    pub(crate) user_ns: u64,
    /// System time; in whole ticks.
    pub(crate) system_ns: u64,
    /// The length of a tick.
    pub(crate) tick_ns: u64,
    /// Time on a core from the process's clock, finer than the two above. None in results of a version that took it from
    /// schedstat, where threads ended.
    pub(crate) on_cpu_ns: Option<u64>,
    /// In per cent of one core, over the window.
    pub(crate) cpu_percent: f64,
    pub(crate) switches_voluntary: u64,
    pub(crate) switches_involuntary: u64,
    pub(crate) threads: usize,
    /// Threads that were there before and not after. Their switches are lost.
    pub(crate) threads_ended: usize,
    pub(crate) rss_kib_before: u64,
    pub(crate) rss_kib: u64,
    pub(crate) rss_peak_kib: u64,
    /// The server's, for each message of the window; none without messages.
    pub(crate) per_message: Option<PerMessage>,
}

/// The same, for each message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PerMessage {
    pub(crate) cpu_ns: f64,
    pub(crate) user_ns: f64,
    pub(crate) system_ns: f64,
    /// One tick, for each message: the resolution of the two above.
    pub(crate) tick_ns: f64,
    pub(crate) switches: f64,
}

impl UsageSnapshot {
    /// A snapshot of another process.
    pub(crate) fn of(pid: u32) -> Result<Self, Failure> {
        Self::read(pid).map_err(|error| {
            Failure::new(format!("cannot read what process {pid} uses (--server-pid): {error}"))
        })
    }

    /// A snapshot of this process; all zero without `/proc`.
    pub(crate) fn own() -> Self {
        Self::read(std::process::id()).unwrap_or_default()
    }

    /// Whether no thread ran. The time on a core is then exact.
    pub(crate) fn is_asleep(&self) -> bool {
        !self.tasks.values().any(|task| task.is_running)
    }

    pub(crate) fn rss_bytes(&self) -> u64 {
        self.rss_kib * 1024
    }

    fn read(pid: u32) -> io::Result<Self> {
        let process = format!("/proc/{pid}");
        let (user_ticks, system_ticks) = ticks(&fs::read_to_string(format!("{process}/stat"))?)
            .ok_or_else(|| io::Error::other("its stat is not as expected"))?;
        let status = fs::read_to_string(format!("{process}/status"))?;
        let mut usage = Self {
            user_ticks,
            system_ticks,
            rss_kib: field(&status, "VmRSS:").unwrap_or(0),
            rss_peak_kib: field(&status, "VmHWM:").unwrap_or(0),
            ..Self::default()
        };
        for task in fs::read_dir(format!("{process}/task"))? {
            let task = task?.path();
            // A thread may end at any moment.
            let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
            let used = Task {
                is_running: status.lines().any(|line| line.starts_with("State:\tR")),
                voluntary: field(&status, "voluntary_ctxt_switches:").unwrap_or(0),
                involuntary: field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0),
            };
            usage.tasks.insert(task.file_name().unwrap_or_default().to_owned(), used);
        }
        // After the states: if no thread ran, this is exact.
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid.cast_signed()))?;
        usage.on_cpu = clock.now()?.into();
        Ok(usage)
    }

    /// What was used since `before`, in `window_ns`.
    pub(crate) fn since(&self, before: &Self, window_ns: u64) -> ResourceUsage {
        let tick_ns = 1_000_000_000 / clock_ticks_per_second();
        let user_ns = self.user_ticks.saturating_sub(before.user_ticks) * tick_ns;
        let system_ns = self.system_ticks.saturating_sub(before.system_ticks) * tick_ns;
        let threads_ended =
            before.tasks.keys().filter(|task| !self.tasks.contains_key(*task)).count();
        let mut sum = Task::default();
        for (name, task) in &self.tasks {
            let before = before.tasks.get(name).copied().unwrap_or_default();
            sum.voluntary += task.voluntary.saturating_sub(before.voluntary);
            sum.involuntary += task.involuntary.saturating_sub(before.involuntary);
        }
        let cpu_ns = ns(self.on_cpu.saturating_sub(before.on_cpu));
        ResourceUsage {
            user_ns,
            system_ns,
            tick_ns,
            on_cpu_ns: Some(cpu_ns),
            cpu_percent: 100.0 * cpu_ns as f64 / window_ns.max(1) as f64,
            switches_voluntary: sum.voluntary,
            switches_involuntary: sum.involuntary,
            threads: self.tasks.len(),
            threads_ended,
            rss_kib_before: before.rss_kib,
            rss_kib: self.rss_kib,
            rss_peak_kib: self.rss_peak_kib,
            per_message: None,
        }
    }
}

impl ResourceUsage {
    /// The total CPU time.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.on_cpu_ns.unwrap_or(self.user_ns + self.system_ns)
    }

    /// Adds what was used in a later window. Both windows together are `window_ns`.
    pub(crate) fn add(&mut self, later: &Self, window_ns: u64) {
        self.user_ns += later.user_ns;
        self.system_ns += later.system_ns;
        self.on_cpu_ns = self.on_cpu_ns.zip(later.on_cpu_ns).map(|(a, b)| a + b);
        self.switches_voluntary += later.switches_voluntary;
        self.switches_involuntary += later.switches_involuntary;
        self.threads = later.threads;
        self.threads_ended += later.threads_ended;
        self.rss_kib = later.rss_kib;
        self.rss_peak_kib = self.rss_peak_kib.max(later.rss_peak_kib);
        self.cpu_percent = 100.0 * self.cpu_ns() as f64 / window_ns.max(1) as f64;
    }

    /// Sets `per_message`.
    pub(crate) fn over_messages(self, messages: u64) -> Self {
        let each = |total: u64| total as f64 / messages as f64;
        let per_message = (messages > 0).then(|| PerMessage {
            cpu_ns: each(self.cpu_ns()),
            user_ns: each(self.user_ns),
            system_ns: each(self.system_ns),
            tick_ns: each(self.tick_ns),
            switches: each(self.switches_voluntary + self.switches_involuntary),
        });
        Self { per_message, ..self }
    }
}

/// User and system time in `/proc/PID/stat`: fields 14 and 15, counted behind the name, which may
/// hold spaces and brackets.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "12 (a ) b) S 1 2 3 4 5 6 7 8 9 10 71 82 13 14 15";
        assert_eq!(ticks(stat), Some((71, 82)));
        assert_eq!(ticks("12 (a"), None);
    }

    #[test]
    fn fields_are_whole_names() {
        let status =
            "VmHWM:\t  20 kB\nnonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t5\n";
        assert_eq!(field(status, "VmHWM:"), Some(20));
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(5));
        assert_eq!(field(status, "VmRSS:"), None);
    }

    #[test]
    fn a_process_uses_something() {
        let before = UsageSnapshot::own();
        let mut sum = 1_u64;
        for i in 0..50_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_mul(i | 1));
        }
        let after = UsageSnapshot::own();
        assert!(after.rss_kib > 0 && !after.tasks.is_empty());
        let used = after.since(&before, 1_000_000_000);
        assert!(used.cpu_ns() > 0 && !after.is_asleep());
        assert!(UsageSnapshot::of(u32::MAX).is_err());
    }

    #[test]
    fn figures_per_message() {
        let before = usage(0, 5, &[("1", 10)]);
        let after = usage(3, 1005, &[("1", 14), ("2", 4)]);
        let used = after.since(&before, 2_000);
        assert_eq!(used.cpu_percent, 50.0);
        let each = used.clone().over_messages(4).per_message.expect("some");
        assert_eq!((each.cpu_ns, each.switches), (250.0, 2.0));
        assert_eq!(each.user_ns, 3.0 * each.tick_ns);
        assert!(used.over_messages(0).per_message.is_none());
    }

    #[test]
    fn threads_that_end_leave_their_time() {
        let before = usage(0, 1_000_005, &[("1", 10), ("2", 4)]);
        let after = usage(3, 1_000_905, &[("1", 14)]);
        let used = after.since(&before, 1_000_000_000);
        assert_eq!((used.on_cpu_ns, used.threads_ended), (Some(900), 1));
        assert_eq!(used.switches_voluntary, 4);
        assert_eq!(used.over_messages(1).per_message.expect("some").cpu_ns, 900.0);
    }

    #[test]
    fn a_thread_that_ends_is_in_the_time_of_its_process() {
        let before = UsageSnapshot::own();
        let spins = || {
            let began = cpu_time();
            while cpu_time() - began < Duration::from_millis(20) {}
        };
        std::thread::spawn(spins).join().expect("it ends");
        let used = UsageSnapshot::own().since(&before, 1_000_000_000);
        assert!(used.cpu_ns() >= 20_000_000, "{used:?}");
    }

    #[test]
    fn a_process_that_waits_is_asleep() {
        let mut waits = Command::new("sleep").arg("60").spawn().expect("it starts");
        let began = Instant::now();
        let mut was_asleep = false;
        while !was_asleep && began.elapsed() < Duration::from_secs(10) {
            was_asleep = UsageSnapshot::of(waits.id()).is_ok_and(|usage| usage.is_asleep());
        }
        waits.kill().and_then(|()| waits.wait()).expect("it ends");
        assert!(was_asleep);
    }

    /// The processor time of this thread.
    fn cpu_time() -> Duration {
        ClockId::CLOCK_THREAD_CPUTIME_ID.now().expect("a clock").into()
    }

    fn usage(user_ticks: u64, on_cpu_ns: u64, tasks: &[(&str, u64)]) -> UsageSnapshot {
        let tasks = tasks.iter().map(|&(name, voluntary)| {
            let task = Task { is_running: false, voluntary, involuntary: 0 };
            (OsString::from(name), task)
        });
        let (on_cpu, tasks) = (Duration::from_nanos(on_cpu_ns), tasks.collect());
        UsageSnapshot { user_ticks, on_cpu, tasks, ..UsageSnapshot::default() }
    }
}

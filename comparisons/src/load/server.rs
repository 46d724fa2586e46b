//! What a process uses, from `/proc`: the server's and our own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::{fs, io};

use rustix::param::clock_ticks_per_second;
use serde::{Deserialize, Serialize};

use super::Failure;

/// What a process had used up to one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsageSnapshot {
    user_ticks: u64,
    system_ticks: u64,
    /// By thread. Threads that have ended are missing here, but not in the ticks.
    tasks: BTreeMap<OsString, Task>,
    rss_kib: u64,
    rss_peak_kib: u64,
}

/// What a thread had used.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    /// Time on a core; none where the kernel does not count it.
    on_cpu_ns: Option<u64>,
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
    /// Time on a core from schedstat, finer than the two above. None where it is not counted, or where threads ended,
    /// whose time is lost.
    pub(crate) on_cpu_ns: Option<u64>,
    /// In per cent of one core, over the window.
    pub(crate) cpu_percent: f64,
    pub(crate) switches_voluntary: u64,
    pub(crate) switches_involuntary: u64,
    pub(crate) threads: usize,
    /// Threads that were there before and not after.
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
        Self::read(&format!("/proc/{pid}")).map_err(|error| {
            Failure::new(format!("cannot read what process {pid} uses (--server-pid): {error}"))
        })
    }

    /// A snapshot of this process; all zero without `/proc`.
    pub(crate) fn own() -> Self {
        Self::read("/proc/self").unwrap_or_default()
    }

    pub(crate) fn rss_bytes(&self) -> u64 {
        self.rss_kib * 1024
    }

    fn read(process: &str) -> io::Result<Self> {
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
            let on_cpu = fs::read_to_string(task.join("schedstat")).ok();
            let used = Task {
                on_cpu_ns: on_cpu.and_then(|text| text.split(' ').next()?.parse().ok()),
                voluntary: field(&status, "voluntary_ctxt_switches:").unwrap_or(0),
                involuntary: field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0),
            };
            usage.tasks.insert(task.file_name().unwrap_or_default().to_owned(), used);
        }
        Ok(usage)
    }

    /// What was used since `before`, in `window_ns`.
    pub(crate) fn since(&self, before: &Self, window_ns: u64) -> ResourceUsage {
        let tick_ns = 1_000_000_000 / clock_ticks_per_second();
        let user_ns = self.user_ticks.saturating_sub(before.user_ticks) * tick_ns;
        let system_ns = self.system_ticks.saturating_sub(before.system_ticks) * tick_ns;
        let threads_ended =
            before.tasks.keys().filter(|task| !self.tasks.contains_key(*task)).count();
        let mut sum = Task { on_cpu_ns: (threads_ended == 0).then_some(0), ..Task::default() };
        for (name, task) in &self.tasks {
            let new = Task { on_cpu_ns: Some(0), ..Task::default() };
            let before = before.tasks.get(name).unwrap_or(&new);
            let on_cpu = task.on_cpu_ns.zip(before.on_cpu_ns).map(|(a, b)| a.saturating_sub(b));
            sum.on_cpu_ns = sum.on_cpu_ns.zip(on_cpu).map(|(sum, task)| sum + task);
            sum.voluntary += task.voluntary.saturating_sub(before.voluntary);
            sum.involuntary += task.involuntary.saturating_sub(before.involuntary);
        }
        let on_cpu_ns = sum.on_cpu_ns.filter(|_| !self.tasks.is_empty());
        let cpu_ns = on_cpu_ns.unwrap_or(user_ns + system_ns);
        ResourceUsage {
            user_ns,
            system_ns,
            tick_ns,
            on_cpu_ns,
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
        assert!(used.on_cpu_ns.unwrap_or(used.user_ns) > 0);
        assert!(UsageSnapshot::of(u32::MAX).is_err());
    }

    #[test]
    fn figures_per_message() {
        let before = usage(0, &[("1", 5, 10)]);
        let after = usage(3, &[("1", 905, 14), ("2", 100, 4)]);
        let used = after.since(&before, 2_000);
        assert_eq!(used.cpu_percent, 50.0);
        let each = used.clone().over_messages(4).per_message.expect("some");
        assert_eq!((each.cpu_ns, each.switches), (250.0, 2.0));
        assert_eq!(each.user_ns, 3.0 * each.tick_ns);
        assert!(used.over_messages(0).per_message.is_none());
    }

    #[test]
    fn threads_that_end_leave_the_ticks() {
        let before = usage(0, &[("1", 5, 10), ("2", 1_000_000, 4)]);
        let after = usage(3, &[("1", 905, 14)]);
        let used = after.since(&before, 1_000_000_000);
        assert_eq!((used.on_cpu_ns, used.threads_ended), (None, 1));
        assert_eq!(used.switches_voluntary, 4);
        let cpu_ns = (3 * used.tick_ns) as f64;
        assert_eq!(used.over_messages(1).per_message.expect("some").cpu_ns, cpu_ns);
    }

    fn usage(user_ticks: u64, tasks: &[(&str, u64, u64)]) -> UsageSnapshot {
        let tasks = tasks.iter().map(|&(name, on_cpu_ns, voluntary)| {
            let task = Task { on_cpu_ns: Some(on_cpu_ns), voluntary, involuntary: 0 };
            (OsString::from(name), task)
        });
        UsageSnapshot { user_ticks, tasks: tasks.collect(), ..UsageSnapshot::default() }
    }
}

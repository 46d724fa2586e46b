//! How long a server's worker waits for a CPU, by the scheduler's own figures (`schedstat` of its thread).

use std::collections::HashMap;
use std::fs;

use super::watch::Sample;

/// A stall is one of waiting for a CPU if a worker waited for at least this share of its time. It is the least share
/// from which the detector may name that class. The threads of a server that share a core take less from each other.
const SHARE_MIN: f64 = 0.2;

/// A wait counts when it is over, and a sample comes up to 50 ms later.
const LATER_MS: f64 = 50.0;

/// The threads of the detector, which need not be asked: they compute while the worker stalls.
const DETECTOR: &str = "stalls";

/// What one thread did until the last sample, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: u64,
    waited: u64,
}

/// Watches the threads of a process.
#[derive(Debug)]
pub(super) struct Threads {
    pid: u32,
    /// By their numbers; none for one of the detector.
    known: HashMap<String, Option<Times>>,
}

impl Threads {
    pub(super) fn of(pid: u32) -> Self {
        Self { pid, known: HashMap::new() }
    }

    /// For how many ms a worker was ready to run and had no CPU, since the last call: of several the longest.
    pub(super) fn waited_ms(&mut self) -> f64 {
        let Ok(folder) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return 0.0 };
        let mut waited = Vec::new();
        for thread in folder.flatten() {
            let tid = thread.file_name().to_string_lossy().into_owned();
            let read = |file: &str| fs::read_to_string(thread.path().join(file));
            let known = self.known.entry(tid).or_insert_with(|| {
                let is_detector = read("comm").is_ok_and(|name| name.starts_with(DETECTOR));
                (!is_detector).then(Times::default)
            });
            let Some(before) = known else { continue };
            let Some(now) = read("schedstat").ok().as_deref().and_then(times) else { continue };
            waited.push((now.ran, now.waited.saturating_sub(before.waited)));
            *before = now;
        }
        // A worker is what computes: others, such as timers, use far less.
        let most = waited.iter().map(|(ran, _)| *ran).max().unwrap_or(0);
        let workers = waited.iter().filter(|(ran, _)| *ran >= most / 2);
        workers.map(|(_, waited)| *waited as f64 / 1e6).fold(0.0, f64::max)
    }
}

/// The first two of the three numbers of a `schedstat`.
fn times(schedstat: &str) -> Option<Times> {
    let mut numbers = schedstat.split_whitespace().map(str::parse);
    Some(Times { ran: numbers.next()?.ok()?, waited: numbers.next()?.ok()? })
}

/// Whether a stall of so many ms may be called one of waiting for a CPU.
pub(super) fn is_waiting(samples: &[Sample], began_unix_ms: f64, lasted_ms: f64) -> bool {
    let ends = began_unix_ms + lasted_ms + LATER_MS;
    let during = samples.iter().filter(|sample| sample.unix_ms > began_unix_ms);
    let mut waited = 0.0;
    for sample in during {
        waited += sample.cpu_wait_ms;
        if sample.unix_ms >= ends {
            break;
        }
    }
    waited >= SHARE_MIN * lasted_ms
}

/// For how much of the time between the first sample and the last a worker waited for a CPU, in per cent.
pub(super) fn wait_percent(samples: &[Sample]) -> f64 {
    let [first, after @ ..] = samples else { return 0.0 };
    let waited: f64 = after.iter().map(|sample| sample.cpu_wait_ms).sum();
    after.last().map_or(0.0, |last| waited * 100.0 / (last.unix_ms - first.unix_ms).max(1.0))
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn a_thread_that_runs_waits_for_no_longer_than_it_lives() {
        assert_eq!(
            times("51156464 25990598 157\n"),
            Some(Times { ran: 51_156_464, waited: 25_990_598 })
        );
        assert_eq!((times(""), times("1 x")), (None, None));
        let mut threads = Threads::of(process::id());
        threads.waited_ms();
        assert!(threads.known.len() > 1);
        assert!(threads.known.values().any(|times| times.is_some_and(|times| times.ran > 0)));
        // 0 is no process.
        assert_eq!(Threads::of(0).waited_ms(), 0.0);
    }

    #[test]
    fn the_worker_has_to_wait_for_a_fifth_of_a_stall() {
        let sample = |unix_ms, cpu_wait_ms| Sample { unix_ms, cpu_wait_ms, ..Sample::default() };
        let samples = [
            (1_000.0, 90.0),
            (1_050.0, 10.0),
            (1_200.0, 10.0),
            (1_249.0, 0.0),
            (1_260.0, 5.0),
            (1_300.0, 99.0),
        ]
        .map(|(at, waited)| sample(at, waited));
        // The samples after 1,000 ms, up to the first from 1,250 ms on.
        assert!(is_waiting(&samples, 1_000.0, 100.0));
        assert!(!is_waiting(&samples, 1_000.0, 101.0));
        assert!(!is_waiting(&samples, 1_250.0, 600.0));
        assert!(!is_waiting(&[], 1_000.0, 100.0));
        // The first has what was before it.
        assert_eq!(wait_percent(&samples[..3]), 10.0);
        assert_eq!((wait_percent(&samples[..1]), wait_percent(&[])), (0.0, 0.0));
    }
}

//! A process with 2,000 threads: a stall is found and examined within a bound of time and memory.

mod common;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::{End, has_function, wait_for};
use owned_io_stalls::{Class, Config, Detector};

const THREADS: usize = 2_000;
/// As [`Config::incidents_max`], and what may last: at most one incident for each watched thread and heart.
const INCIDENTS_MAX: usize = 32 + 1_024 + 2;
/// How long a stall may take to be found, on a machine that is busy with other tests.
const FOUND_MAX: Duration = Duration::from_secs(8);
/// How much more memory the process may have afterwards, in KiB.
const GROWTH_KIB_MAX: u64 = 100 << 10;

/// What the threads do.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Park,
    Block,
    End,
}

struct Phases {
    now: Mutex<Phase>,
    changed: Condvar,
}

impl Phases {
    fn set(&self, phase: Phase) {
        *self.now.lock().unwrap() = phase;
        self.changed.notify_all();
    }

    fn wait_while(&self, phase: Phase) {
        drop(self.changed.wait_while(self.now.lock().unwrap(), |now| *now == phase).unwrap());
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

#[inline(never)]
fn sleeps(end: &End) {
    while !end.is_set() {
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn a_stall_among_2_000_threads() {
    let began = Instant::now();
    let detector = Detector::start(Config::default()).unwrap();
    let phases = Arc::new(Phases { now: Mutex::new(Phase::Park), changed: Condvar::new() });
    let pool = detector.watch_pool("pool");
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (pool, phases) = (pool.clone(), Arc::clone(&phases));
            let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
                pool.thread_started();
                pool.thread_parked();
                phases.wait_while(Phase::Park);
                pool.thread_unparked();
                phases.wait_while(Phase::Block); // as if in a blocking call
                pool.thread_stopped();
            });
            thread.unwrap()
        })
        .collect();
    let before_kib = resident_kib();
    let end = End::default();
    let stall = |name: &'static str| {
        let (began, ended, watched) = (Instant::now(), end.clone(), detector.clone());
        let worker = std::thread::spawn(move || {
            let _heart = watched.watch_current_thread(name);
            sleeps(&ended);
        });
        let incident =
            wait_for(&detector, name, |it| it.worker == name && it.verdict.has(Class::BlockedLoop));
        assert!(began.elapsed() < FOUND_MAX, "{:?}", began.elapsed());
        assert!(has_function(&incident, "sleeps"), "{incident:#?}");
        worker
    };
    let first = stall("among parked threads");

    // The heart of the pool does not beat. A part of its threads is examined, and the incident says so.
    let heart = pool.heart();
    let incident = wait_for(&detector, "many", |it| it.worker == "pool");
    assert_eq!(incident.evidence.threads.len(), 16);
    assert!(incident.evidence.unseen.contains(&"1008 of 1024 threads".to_owned()), "{incident:?}");
    drop(heart);

    phases.set(Phase::Block);
    wait_for(&detector, "one-of-many", |it| it.worker.starts_with("pool "));
    let second = stall("among blocked threads");
    assert!(detector.incidents().len() <= INCIDENTS_MAX);
    let grown_kib = resident_kib().saturating_sub(before_kib);
    assert!(grown_kib < GROWTH_KIB_MAX, "{grown_kib} KiB");
    for reason in ["threads: more than 1024", "single threads of pools: 120 were examined"] {
        while !detector.snapshot().unseen.iter().any(|it| it.starts_with(reason)) {
            assert!(began.elapsed() < common::LIMIT, "{reason}: {:#?}", detector.snapshot().unseen);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    end.set();
    phases.set(Phase::End);
    for thread in threads.into_iter().chain([first, second]) {
        thread.join().unwrap();
    }
    println!("{grown_kib} KiB more");
}

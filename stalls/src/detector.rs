//! [`Detector`]: starts the watchdog and registers what it watches.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::{Config, Probe};
use crate::evidence::{GaugeValue, ProbeResult};
use crate::fork::Process;
use crate::gauge::{CountedListener, Gauge};
use crate::heart::{Heart, HeartState};
use crate::histogram::LatenessSummary;
use crate::incident::{Incident, Incidents};
use crate::pool::{Pool, PoolThread};
use crate::probe::{self, LastProbe};
use crate::registry::Registry;
use crate::stack::ThreadRef;
use crate::stack::signal::BlockedSignals;
use crate::stop::Stop;
use crate::{report, ticks, watchdog};

/// More hearts are not watched.
const HEARTS_MAX: usize = 1_024;
/// More gauges are not read.
const GAUGES_MAX: usize = 64;
/// The connections of more listeners are not compared, and the pauses of more are not known.
const COUNTED_LISTENERS_MAX: usize = 64;
/// What cannot be seen is listed up to this number.
const UNSEEN_MAX: usize = 32;
/// How long dropping the detector waits for its threads. One may be in a subscriber that blocks.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// Watches event loops from a thread of its own. Clones are the same detector; it ends with the last of them.
///
/// It starts three threads, and a fourth for a [`Probe`]. Dropping it waits for them, at most 1 s. In a
/// child after a fork it is inert, and a child may start its own. See the [crate] for a whole program.
#[derive(Debug, Clone)]
pub struct Detector {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
}

/// What the detector knows at one moment. It serializes to JSON, for example for a page of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Each heart that beats.
    pub workers: Vec<WorkerSnapshot>,
    /// The last incidents, the oldest first, and those that last.
    #[serde(with = "crate::incident::shared")]
    pub incidents: Vec<Arc<Incident>>,
    /// What the detector cannot see here, and why.
    pub unseen: Vec<String>,
    /// What the program registered: its [gauges](Detector::gauge), and the counts of its
    /// [connections](Detector::connections).
    #[serde(default)]
    pub gauges: Vec<GaugeValue>,
    /// The last probe. None: there was none yet, or its listener accepts nobody [on purpose](Detector::accept_pauses).
    #[serde(default)]
    pub probe: Option<ProbeResult>,
}

/// A heart, and how late it beats.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerSnapshot {
    /// The name that it was registered with.
    pub name: String,
    /// How late it beats.
    pub lateness: LatenessSummary,
}

impl Detector {
    /// Starts the watchdog.
    ///
    /// # Errors
    /// A thread could not be started, or forks would not be noticed. Whatever else is missing (a file of /proc, the
    /// signal) is listed in [`Snapshot::unseen`].
    pub fn start(config: Config) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config.clamped(), Process::current()?));
        let threads = Threads {
            shared: Arc::clone(&shared),
            handles: Mutex::default(),
            has_prober: AtomicBool::new(false),
        };
        let (sender, receiver) = sync_channel(report::WAITING_MAX);
        // The new threads inherit that from their first instruction on.
        let _blocked = BlockedSignals::new();
        threads.spawn("stalls-report", move |shared| report::run(&receiver, &shared))?;
        threads.spawn("stalls", move |shared| watchdog::run(&shared, &sender))?;
        threads.spawn("stalls-ticks", move |shared| ticks::run(&shared))?;
        let detector = Self { shared, threads: Arc::new(threads) };
        detector.set_probe(detector.shared.config.probe.clone())?;
        Ok(detector)
    }

    /// Watches the event loop of the calling thread. A task on it beats the heart.
    ///
    /// Call it on the thread itself. At most 1,024 hearts are watched.
    pub fn watch_current_thread(&self, name: &str) -> Heart {
        self.shared.add_heart(name, Some(ThreadRef::current()))
    }

    /// Watches a runtime of several threads, for example tokio's.
    pub fn watch_pool(&self, name: &str) -> Pool {
        Pool::new(name, Arc::clone(&self.shared))
    }

    /// A figure of the program that belongs to the evidence, at most 64. If it exceeds `limit` for long, that is a
    /// stall of its own: [`BackPressureIgnored`](crate::Class::BackPressureIgnored).
    pub fn gauge(&self, name: &str, limit: Option<u64>) -> Gauge {
        let gauge = Gauge::new(name, limit);
        if self.shared.process.is_current() && !self.shared.gauges.add(gauge.clone(), GAUGES_MAX) {
            self.shared.note(format!("gauges: more than {GAUGES_MAX}"));
        }
        gauge
    }

    /// The gauge in which the program counts its connections that came to `listener`, the address of a listener of this
    /// process: each from its accept to its close, for example by [`Gauge::count`]. Call it before the first accept.
    /// All calls for an address return the same gauge, so that workers with the same address count together. At most
    /// 64 addresses; each takes one of the 64 gauges, for as long as the detector lives.
    ///
    /// If at least 16 connections more are open at two [inspections](Config::connections_interval) in a row, something
    /// keeps their descriptors: [`ConnectionNeverCloses`](crate::Class::ConnectionNeverCloses). A read that was dropped
    /// on tokio-uring does, and while its peer is silent nothing else shows it. Connections that come and go meanwhile
    /// hide as many, and so do descriptors beyond the first 4,096.
    pub fn connections(&self, listener: SocketAddr) -> Gauge {
        let new = || {
            let gauge = self.gauge(&format!("connections of {listener}"), None);
            CountedListener { addr: listener, gauge }
        };
        self.gauge_of(&self.shared.counted_listeners, listener, new, "connections")
    }

    /// The gauge in which the program counts its accept loops at `listener`, the address of a listener of this process,
    /// that wait on purpose: because a limit on connections is reached, for example. Hold a [`Gauge::count`] for as long
    /// as the loop waits. All calls for an address return the same gauge. At most 64 addresses.
    ///
    /// Clients then wait in the accept queue, and that is no [`AcceptStarvation`](crate::Class::AcceptStarvation). Nor is
    /// the listener [probed](crate::Probe) meanwhile.
    pub fn accept_pauses(&self, listener: SocketAddr) -> Gauge {
        let new = || CountedListener { addr: listener, gauge: Gauge::new("accept pauses", None) };
        self.gauge_of(&self.shared.accept_pauses, listener, new, "accept pauses")
    }

    /// The gauge of `listener` among those that are `known`, or a `new` one.
    fn gauge_of(
        &self,
        known: &Registry<CountedListener>,
        listener: SocketAddr,
        new: impl FnOnce() -> CountedListener,
        what: &str,
    ) -> Gauge {
        if !self.shared.process.is_current() {
            return new().gauge;
        }
        match known.get_or_add(|known| known.addr == listener, new, COUNTED_LISTENERS_MAX) {
            Some(known) => known.gauge,
            None => {
                self.shared.note(format!("{what}: more than {COUNTED_LISTENERS_MAX} listeners"));
                Gauge::new(what, None)
            }
        }
    }

    /// Replaces the probe of [`Config::probe`], for example when a listener has its address. `None` ends it. The first
    /// connection comes after the [interval](crate::Probe::interval), or after that of the probe before.
    ///
    /// # Errors
    /// The thread that probes could not be started.
    pub fn set_probe(&self, probe: Option<Probe>) -> io::Result<()> {
        if !self.shared.process.is_current() {
            return Ok(());
        }
        let is_needed = probe.is_some();
        probe::replace(probe.map(Probe::clamped), &self.shared);
        if is_needed { self.threads.start_prober() } else { Ok(()) }
    }

    /// The workers, the last incidents and those that last, what the program registered, and what cannot be seen.
    pub fn snapshot(&self) -> Snapshot {
        if !self.shared.process.is_current() {
            return Snapshot::default();
        }
        Snapshot {
            workers: self.shared.workers(),
            incidents: self.incidents(),
            unseen: self.shared.unseen.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            gauges: self.shared.gauges.map(Gauge::reading),
            probe: self.shared.last_probe.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// The last incidents that are over, the oldest first, and then those that last.
    pub fn incidents(&self) -> Vec<Arc<Incident>> {
        if !self.shared.process.is_current() {
            return Vec::new();
        }
        self.shared.incidents.all()
    }
}

/// What the detector, its hearts and its threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// The process that the threads run in. In a child of it, locks may be held for ever.
    pub(crate) process: Process,
    pub(crate) epoch: Instant,
    pub(crate) hearts: Registry<Arc<HeartState>>,
    pub(crate) pool_threads: Registry<Arc<PoolThread>>,
    pub(crate) gauges: Registry<Gauge>,
    pub(crate) counted_listeners: Registry<CountedListener>,
    pub(crate) accept_pauses: Registry<CountedListener>,
    /// What is probed now.
    pub(crate) probe: Mutex<Option<Probe>>,
    pub(crate) last_probe: LastProbe,
    pub(crate) incidents: Incidents,
    pub(crate) stop: Stop,
    unseen: Mutex<Vec<String>>,
    /// The next check of the watchdog panics.
    #[cfg(test)]
    pub(crate) panics: AtomicBool,
}

impl Shared {
    pub(crate) fn new(config: Config, process: Process) -> Self {
        Self {
            process,
            incidents: Incidents::new(config.incidents_max),
            config,
            epoch: Instant::now(),
            hearts: Registry::default(),
            pool_threads: Registry::default(),
            gauges: Registry::default(),
            counted_listeners: Registry::default(),
            accept_pauses: Registry::default(),
            probe: Mutex::default(),
            last_probe: LastProbe::default(),
            stop: Stop::default(),
            unseen: Mutex::default(),
            #[cfg(test)]
            panics: AtomicBool::new(false),
        }
    }

    pub(crate) fn add_heart(&self, name: &str, thread: Option<ThreadRef>) -> Heart {
        let Config { interval, threshold, .. } = self.config;
        let state = Arc::new(HeartState::new(name.into(), self.epoch, interval, threshold, thread));
        if self.process.is_current() && !self.hearts.add(Arc::clone(&state), HEARTS_MAX) {
            self.note(format!("hearts: more than {HEARTS_MAX}"));
        }
        Heart { state }
    }

    /// Adds what cannot be seen, once.
    pub(crate) fn note(&self, reason: String) {
        let mut unseen = self.unseen.lock().unwrap_or_else(PoisonError::into_inner);
        if unseen.len() < UNSEEN_MAX && !unseen.contains(&reason) {
            unseen.push(reason);
        }
    }

    pub(crate) fn workers(&self) -> Vec<WorkerSnapshot> {
        let is_there = |heart: &&Arc<HeartState>| !heart.is_gone.load(Acquire);
        let hearts = self.hearts.all();
        let snapshot = |heart: &Arc<HeartState>| WorkerSnapshot {
            name: heart.name.clone(),
            lateness: heart.lateness.summary(),
        };
        hearts.iter().filter(is_there).map(snapshot).collect()
    }
}

/// The threads of the detector. They end with it.
#[derive(Debug)]
struct Threads {
    shared: Arc<Shared>,
    handles: Mutex<Vec<JoinHandle<()>>>,
    has_prober: AtomicBool,
}

impl Threads {
    fn spawn(&self, name: &str, run: impl FnOnce(Arc<Shared>) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let handle = std::thread::Builder::new().name(name.into()).spawn(move || run(shared))?;
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    /// Starts the thread that probes, unless it runs.
    fn start_prober(&self) -> io::Result<()> {
        if self.has_prober.swap(true, AcqRel) {
            return Ok(());
        }
        let _blocked = BlockedSignals::new();
        let started = self.spawn("stalls-probe", |shared| probe::run(&shared));
        self.has_prober.store(started.is_ok(), Release);
        started
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let handles = self.handles.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !self.shared.process.is_current() {
            // The threads are not in this process.
            return handles.drain(..).for_each(std::mem::forget);
        }
        self.shared.stop.set();
        let until = Instant::now() + STOP_LIMIT;
        while handles.iter().any(|handle| !handle.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The watchdog panics, and then finds a stall.
    #[test]
    fn a_panic_of_the_watchdog_does_not_end_it() {
        let detector = Detector::start(Config::default()).unwrap();
        let before = detector.watch_current_thread("before");
        wait_for("the stall before", || !detector.incidents().is_empty());
        detector.shared.panics.store(true, Release);
        wait_for("its end", || !detector.incidents()[0].is_ongoing);
        drop(before);
        let heart = detector.watch_current_thread("silent");
        wait_for("the stall after", || detector.incidents().iter().any(|it| it.worker == "silent"));
        assert!(detector.snapshot().unseen.iter().any(|reason| reason.contains("panicked")));
        drop(heart);
    }

    /// A panic that repeats ends the watchdog, and the program goes on.
    #[test]
    fn the_watchdog_ends_after_ten_panics() {
        let detector = Detector::start(Config::default()).unwrap();
        let heart = detector.watch_current_thread("silent");
        let has_ended = || {
            detector.shared.panics.store(true, Release);
            let unseen = detector.snapshot().unseen;
            unseen.iter().any(|it| it == "everything: the watchdog panicked 10 times and has ended")
        };
        wait_for("its end", has_ended);
        heart.beat();
        assert!(detector.incidents().iter().all(|it| !it.is_ongoing));
        assert_eq!(
            detector.snapshot().workers[0].lateness.beats,
            1,
            "hearts are counted as before"
        );
        let began = Instant::now();
        drop((heart, detector));
        assert!(began.elapsed() < STOP_LIMIT, "the other threads end, too");
    }

    /// A runtime that leaks its tasks never drops the heart.
    #[test]
    fn a_heart_whose_thread_has_ended_is_watched_no_more() {
        let detector = Detector::start(Config::default()).unwrap();
        let leak = |stall: Duration| {
            let watched = detector.clone();
            let leaks = move || {
                let heart = watched.watch_current_thread("leaked");
                heart.beat();
                std::thread::sleep(stall);
                std::mem::forget(heart);
            };
            std::thread::spawn(leaks).join().unwrap();
            wait_for("the end of its watch", || detector.snapshot().workers.is_empty());
        };
        leak(Duration::ZERO);
        leak(Duration::from_millis(300));
        wait_for("the end of its stall", || detector.incidents().iter().all(|it| !it.is_ongoing));
    }

    fn wait_for(what: &str, is_there: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(30);
        while !is_there() {
            assert!(Instant::now() < until, "{what} does not come");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// No thread of the detector takes a signal of the program, and the caller does as before.
    #[test]
    fn threads_of_the_detector_take_no_signals() {
        let signals = [libc::SIGTERM, libc::SIGCHLD, libc::SIGURG, libc::SIGSEGV];
        let blocked = |task: &std::path::Path| {
            let status = crate::proc::read(task.join("status")).unwrap_or_default();
            signals.map(|signal| crate::proc::thread::parse_blocks_signal(&status, signal))
        };
        let this = std::path::Path::new("/proc/thread-self");
        let before = blocked(this);
        let detector = Detector::start(Config::default()).unwrap();
        assert_eq!(blocked(this), before);
        let masks_of = |wanted: &str| {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let tasks = tasks.map(|task| task.unwrap().path());
            let is_meant = |task: &std::path::PathBuf| {
                crate::proc::read(task.join("comm")).is_ok_and(|name| name.trim() == wanted)
            };
            // One of another test may end now: then it has no mask.
            let masks = tasks.filter(is_meant).map(|task| blocked(&task));
            masks.filter(|mask| mask[0].is_some()).collect::<Vec<_>>()
        };
        for name in ["stalls", "stalls-report"] {
            // A thread gives itself its name a moment after it began.
            wait_for(name, || !masks_of(name).is_empty());
            let expected = [Some(true), Some(true), Some(true), Some(false)];
            assert!(masks_of(name).iter().all(|mask| *mask == expected), "{name}");
        }
        drop(detector);
    }

    /// Values out of range neither panic nor spin.
    #[test]
    fn odd_durations() {
        for (duration, interval) in [
            (Duration::ZERO, Duration::from_millis(1)),
            (Duration::MAX, Duration::from_secs(3_600)),
        ] {
            let mut probe = Probe::new(([127, 0, 0, 1], 1).into(), "");
            (probe.interval, probe.limit) = (duration, duration);
            let config = Config {
                interval: duration,
                threshold: duration,
                look_interval: duration,
                incidents_max: usize::MAX,
                probe: Some(probe),
                ..Config::default()
            };
            let detector = Detector::start(config).unwrap();
            let heart = detector.watch_current_thread("odd");
            assert_eq!(heart.interval(), interval);
            std::thread::sleep(Duration::from_millis(50));
            heart.beat();
            std::thread::sleep(Duration::from_millis(300));
            let unseen = detector.snapshot().unseen;
            assert!(!unseen.iter().any(|reason| reason.contains("panicked")), "{unseen:?}");
        }
    }

    /// A heart may go at any time, also within a check of the watchdog. Then its stall ends.
    #[test]
    fn no_stall_outlives_its_heart() {
        let config = Config { look_interval: Duration::ZERO, ..Config::default() };
        let detector = Detector::start(config).unwrap();
        for _ in 0..3 {
            let heart = detector.watch_current_thread("silent");
            wait_for("the stall", || detector.incidents().iter().any(|it| it.is_ongoing));
            drop(heart);
            wait_for("its end", || !detector.incidents().iter().any(|it| it.is_ongoing));
        }
    }
}

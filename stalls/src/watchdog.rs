//! The watchdog: looks at the hearts, examines what stalls, and says what it is.
//!
//! `hearts` and `threads` examine what is late, `process` judges what does not stop a heart, `ongoing` reports what lasts
//! and what has ended, within the `budget` of a minute.

mod budget;
mod hearts;
mod ongoing;
mod process;
mod threads;

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::detector::Shared;
use crate::evidence::{Evidence, Look};
use crate::examine::{Baseline, Examiner};
use crate::heart::HeartState;
use crate::incident::Incident;
use crate::look::Looker;
use crate::pool::PoolThread;
use crate::report::Message;
use crate::stack::signal;
use crate::verdict::Class;
use budget::MinuteBudget;
use hearts::HeartBaseline;
use ongoing::OngoingStall;
use threads::Active;

/// How many looks are evidence. At the default of 500 ms they cover 4 s.
const LOOKS: usize = 8;
/// How many times in a minute stalled workers are examined, and how many times threads of pools: each takes a look, some
/// milliseconds of the watchdog and up to 4 signals, and workers under great load may stall a little all the time.
const EXAMINATIONS_MAX: u32 = 120;
/// The pause after the first panic of the watchdog. Each is twice as long as the one before, up to the longest, so
/// that a panic that repeats costs little.
const AFTER_PANIC: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 500 });
const AFTER_PANIC_MAX: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 60_000 });
/// After so many panics the watchdog stays ended.
const PANICS_MAX: u32 = 10;

/// Runs until the detector is dropped.
pub(crate) fn run(shared: &Arc<Shared>, reports: &SyncSender<Message>) {
    if let Err(error) = signal::isolate_this_thread(shared.config.own_descriptors) {
        shared.note(format!("anything, once no descriptor is left: close_range: {error}"));
    }
    let mut pause = AFTER_PANIC;
    for _ in 0..PANICS_MAX {
        if catch_unwind(AssertUnwindSafe(|| Watchdog::new(shared, reports).run())).is_ok() {
            return;
        }
        shared.note("the watchdog panicked".into());
        close_open_incidents(shared, reports);
        if shared.stop.wait(pause) {
            return;
        }
        pause = (pause * 2).min(AFTER_PANIC_MAX);
    }
    shared.note(format!("everything: the watchdog panicked {PANICS_MAX} times and has ended"));
}

/// Ends the incidents of a watchdog that panicked. The next one begins new ones for what still lasts.
fn close_open_incidents(shared: &Shared, reports: &SyncSender<Message>) {
    let left = shared.incidents.all().into_iter().filter(|incident| incident.is_ongoing);
    for incident in left {
        let incident = Arc::new(Incident { is_ongoing: false, ..Incident::clone(&incident) });
        shared.incidents.update(Arc::clone(&incident));
        let _ = reports.try_send(Message { incident, event: Some(0) });
    }
}

/// The subject of an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    /// A heart, by its number.
    Heart(u64),
    /// A thread of a pool, by its number here: the system's may pass to another thread.
    Thread(u64),
    /// The process, in one way.
    Process(Class),
}

struct Watchdog<'a> {
    shared: &'a Arc<Shared>,
    reports: &'a SyncSender<Message>,
    looker: Looker,
    examiner: Examiner,
    looks: VecDeque<Look>,
    last_look: Option<Instant>,
    /// After the process stood still, hearts are checked from this moment on.
    hearts_from: Option<Instant>,
    /// Counters of each heart's thread from before it was late by the threshold.
    baselines: HashMap<u64, HeartBaseline>,
    /// Counters of the threads of pools, from before a heart of their pool was late by the threshold.
    pool_baselines: HashMap<u64, Baseline>,
    /// The beat of each pool's heart before the silence in which they were taken.
    pool_silences: HashMap<u64, u64>,
    /// The threads of pools that are not parked.
    active: HashMap<u64, Active>,
    open: HashMap<Subject, OngoingStall>,
    /// Buffers of [`check`](Self::check), so that it allocates nothing while all is well. They are empty otherwise:
    /// what has gone must not stay here.
    hearts: Vec<Arc<HeartState>>,
    pool_threads: Vec<Arc<PoolThread>>,
    /// Ends that the reporter has not taken.
    ends: VecDeque<Message>,
    ids: u64,
    budget: MinuteBudget,
    examinations: MinuteBudget,
    thread_examinations: MinuteBudget,
}

impl<'a> Watchdog<'a> {
    fn new(shared: &'a Arc<Shared>, reports: &'a SyncSender<Message>) -> Self {
        let mut looker = Looker::new(shared);
        let examiner = Examiner::new(shared.config.signal, shared.config.symbol_bytes_max);
        for reason in looker.unseen.drain(..).chain(examiner.unseen()) {
            shared.note(reason);
        }
        Self {
            shared,
            reports,
            looker,
            examiner,
            looks: VecDeque::new(),
            last_look: None,
            hearts_from: None,
            baselines: HashMap::new(),
            pool_baselines: HashMap::new(),
            pool_silences: HashMap::new(),
            active: HashMap::new(),
            open: HashMap::new(),
            hearts: Vec::new(),
            pool_threads: Vec::new(),
            ends: VecDeque::new(),
            ids: shared.incidents.all().iter().map(|incident| incident.id).max().unwrap_or(0),
            budget: MinuteBudget::new(shared.config.reports_per_minute),
            examinations: MinuteBudget::new(EXAMINATIONS_MAX),
            thread_examinations: MinuteBudget::new(EXAMINATIONS_MAX),
        }
    }

    fn run(&mut self) {
        // How long a heart may need for its next beat.
        let grace = self.shared.config.interval + self.shared.config.threshold;
        loop {
            let pause = self.pause();
            let planned = Instant::now() + pause;
            if self.shared.stop.wait(pause) {
                return self.close_all();
            }
            #[cfg(test)]
            assert!(!self.shared.panics.swap(false, AcqRel), "asked for by a test");
            // If this thread was late itself, the machine or the process stood still. The hearts then have time for
            // one more beat. No such time follows another at once: hearts are also checked on a machine that is
            // always late.
            let now = Instant::now();
            let is_late = now.saturating_duration_since(planned) > self.shared.config.threshold / 2;
            if is_late && self.hearts_from.is_none_or(|from| now >= from + grace) {
                self.hearts_from = Some(now + grace);
            }
            self.check(self.hearts_from.is_none_or(|from| now >= from));
        }
    }

    /// How long to sleep: no heart is late before.
    fn pause(&self) -> Duration {
        let config = &self.shared.config;
        let shortest = config.interval.min(config.threshold).max(Duration::from_millis(1)) / 2;
        if self.open.keys().any(|subject| !matches!(subject, Subject::Process(_))) {
            return shortest;
        }
        let mut pause = (config.interval + config.threshold).min(config.look_interval);
        if self.active.values().any(|thread| !thread.is_excused()) {
            pause /= 2; // a thread of a pool sleeps or works, and it takes two checks to tell
        }
        let pause = self.shared.hearts.min_of(pause, |heart| {
            let known = match heart.thread {
                Some(_) => self.baselines.get(&heart.id).and_then(|known| known.silent_since),
                None => self.pool_silences.get(&heart.id).copied(),
            };
            let has_baseline = known == Some(heart.last_beat());
            heart.until_late(if has_baseline { config.threshold } else { config.threshold / 2 })
        });
        pause.max(shortest)
    }

    fn check(&mut self, are_hearts_checked: bool) {
        let is_look_due =
            self.last_look.is_none_or(|last| last.elapsed() >= self.shared.config.look_interval);
        if is_look_due {
            self.look(false);
        }
        let mut hearts = std::mem::take(&mut self.hearts);
        self.shared.hearts.copy_to(&mut hearts);
        for heart in hearts.drain(..) {
            if are_hearts_checked {
                self.check_heart(&heart);
                continue;
            }
            // Without a baseline from now, waits from long before would have to be taken for those of the next stall.
            let late = heart.late().map_or(Duration::ZERO, |(_, late)| late);
            if late < self.shared.config.threshold {
                self.take_baseline(&heart, late);
            }
        }
        self.hearts = hearts;
        if are_hearts_checked {
            let mut threads = std::mem::take(&mut self.pool_threads);
            self.shared.pool_threads.copy_to(&mut threads);
            threads.drain(..).for_each(|thread| self.check_thread(&thread));
            self.pool_threads = threads;
        }
        if is_look_due {
            self.check_process();
            self.shared.hearts.retain(|heart| !heart.is_gone.load(Acquire));
            self.shared.pool_threads.retain(|thread| !thread.is_gone.load(Acquire));
            self.forget_removed();
            self.examiner.drop_unused_symbols();
            self.send_again();
        }
    }

    /// Ends the stalls of hearts and threads that are watched no more. One may have gone since it was checked.
    fn forget_removed(&mut self) {
        let hearts: HashSet<u64> = self.shared.hearts.map(|heart| heart.id).into_iter().collect();
        let threads: HashSet<u64> =
            self.shared.pool_threads.map(|thread| thread.id).into_iter().collect();
        self.baselines.retain(|heart, _| hearts.contains(heart));
        self.pool_silences.retain(|heart, _| hearts.contains(heart));
        self.pool_baselines.retain(|thread, _| threads.contains(thread));
        self.active.retain(|thread, _| threads.contains(thread));
        let is_gone = |subject: &&Subject| match subject {
            Subject::Heart(heart) => !hearts.contains(heart),
            Subject::Thread(thread) => !threads.contains(thread),
            Subject::Process(_) => false,
        };
        let gone: Vec<Subject> = self.open.keys().filter(is_gone).copied().collect();
        for subject in gone {
            self.close(subject, None);
        }
    }

    fn look(&mut self, is_urgent: bool) {
        self.last_look = Some(Instant::now());
        if self.looks.len() == LOOKS {
            self.looks.pop_front();
        }
        let mut look = self.looker.look(is_urgent);
        self.looker.unseen.drain(..).for_each(|reason| self.shared.note(reason));
        let late = self.shared.hearts.map(|heart| heart.late().map(|(_, late)| late));
        let latest = late.into_iter().flatten().max();
        let latest = latest.filter(|late| *late >= self.shared.config.threshold);
        look.heart_late_ms = latest.map(|late| late.as_millis() as u64);
        self.looks.push_back(look);
    }

    /// `may_look`: each stall has a fresh look, as long as stalls are examined. Hearts that are late at the same time share
    /// one.
    fn evidence(&mut self, late: Option<Duration>, may_look: bool) -> Evidence {
        if may_look
            && self.last_look.is_none_or(|last| last.elapsed() > self.shared.config.interval)
        {
            self.look(true);
        }
        Evidence {
            late_ms: late.map(|late| late.as_millis() as u64),
            threshold_ms: self.shared.config.threshold.as_millis() as u64,
            looks: self.looks.iter().cloned().collect(),
            ..Evidence::default()
        }
    }
}

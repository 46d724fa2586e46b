//! The watchdog: looks at the hearts, examines what stalls, and says what it is.

mod budget;
mod process;
mod threads;

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use crate::detector::Shared;
use crate::evidence::{Evidence, Look};
use crate::examine::{Baseline, Examiner, has_ended};
use crate::heart::HeartState;
use crate::incident::Incident;
use crate::look::Looker;
use crate::pool::PoolThread;
use crate::report::Message;
use crate::stack::{ThreadRef, signal};
use crate::verdict::{Class, judge};
use budget::MinuteBudget;
use threads::Active;

/// How often a thread's counters are read while its heart beats in time.
const BASELINE_INTERVAL: Duration = Duration::from_secs(1);
/// How many looks are evidence. At the default of 500 ms they cover 4 s.
const LOOKS: usize = 8;
/// How many times in a minute stalled workers are examined, and how many times threads of pools: each takes a look, some
/// milliseconds of the watchdog and up to 4 signals, and workers under great load may stall a little all the time.
const EXAMINATIONS_MAX: u32 = 120;
/// How many stacks of a thread are kept over the reports of one stall.
const STACKS_MAX: usize = 16;
/// How many ends of stalls wait for a reporter that has fallen behind. Each takes about 1 KB. Further ones are counted and
/// lost.
const ENDS_MAX: usize = 1_024;
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

/// A stall that lasts.
struct OngoingStall {
    incident: Incident,
    next_report_ms: u64,
    /// The heart's count of late beats when the stall began. When the count rises, the stall is over.
    late_beats: u64,
    absent_looks: u32,
    /// When the failed probe began that was there when the looks last showed it.
    failed_probe_ms: Option<u64>,
    began: Instant,
    /// Whether a report of it was written: then its end is, too.
    is_reported: bool,
}

/// Counters of a heart's thread. They are taken in each silence that may become a stall, and now and then.
struct HeartBaseline {
    baseline: Baseline,
    taken: Instant,
    /// The beat before the silence in which it was taken. `None`: the heart was not late.
    silent_since: Option<u64>,
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

    fn check_heart(&mut self, heart: &Arc<HeartState>) {
        let key = heart.id;
        let subject = Subject::Heart(key);
        let last_beat = heart.last_beat();
        let (late_beats, last_late) = heart.late_beats();
        if self.open.get(&subject).is_some_and(|open| open.late_beats != late_beats) {
            self.close(subject, Some(last_late)); // the heart has beaten since, and knows how late
        }
        let late = heart.late().map_or(Duration::ZERO, |(_, late)| late);
        let is_late = late >= self.shared.config.threshold;
        if is_late && heart.thread.as_ref().is_some_and(has_ended) {
            // Its runtime has leaked the task that beats it, so it is never dropped.
            heart.is_gone.store(true, Release);
        }
        if heart.is_gone.load(Acquire) {
            self.close(subject, None);
            self.baselines.remove(&key);
            return;
        }
        if !is_late {
            // The beat may be stored, and not yet counted as late.
            let (late_beats_now, last_late) = heart.late_beats();
            self.close(subject, (late_beats_now != late_beats).then_some(last_late));
            return self.take_baseline(heart, late);
        }
        if !self.is_report_due(subject, late) {
            return;
        }
        let is_stopped = |thread: &ThreadRef| Baseline::of(thread).is_stopped();
        if heart.thread.as_ref().is_some_and(is_stopped) {
            return; // by a debugger, for example
        }
        let may_examine = self.examinations.take();
        let mut evidence = self.evidence(Some(late), may_examine);
        let is_over = || heart.last_beat() != last_beat;
        match &heart.thread {
            _ if !may_examine => {
                evidence
                    .unseen
                    .push(format!("threads: {EXAMINATIONS_MAX} examined in this minute"));
            }
            Some(thread) => {
                let known = self.baselines.get(&key).map(|known| &known.baseline);
                let known = known.or(heart.first.as_ref());
                let baseline = known.cloned().unwrap_or_else(|| Baseline::of(thread));
                evidence.threads.push(self.examiner.examine(
                    thread,
                    &baseline,
                    &is_over,
                    &mut evidence.unseen,
                ));
            }
            None => self.examine_pool(&heart.name, &is_over, &mut evidence),
        }
        self.report(subject, &heart.name, late, late_beats, evidence);
    }

    /// Counters from before a stall, to compare with: once in a silence that may become one, and once in
    /// [`BASELINE_INTERVAL`] in case the next silence is over the threshold when it is first seen.
    fn take_baseline(&mut self, heart: &HeartState, late: Duration) {
        let Some(thread) = &heart.thread else { return self.take_pool_baselines(heart, late) };
        let last_beat = heart.last_beat();
        let silent_since = (late >= self.shared.config.threshold / 2).then_some(last_beat);
        let is_needed = self.baselines.get(&heart.id).is_none_or(|known| {
            silent_since.is_some() && known.silent_since != silent_since
                || known.silent_since != Some(last_beat)
                    && known.taken.elapsed() >= BASELINE_INTERVAL
        });
        if is_needed {
            let (baseline, taken) = (Baseline::of(thread), Instant::now());
            self.baselines.insert(heart.id, HeartBaseline { baseline, taken, silent_since });
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

    /// Whether it is time to examine a stall: when it begins, and whenever it has doubled.
    fn is_report_due(&self, subject: Subject, lasted: Duration) -> bool {
        self.open.get(&subject).is_none_or(|open| lasted.as_millis() as u64 >= open.next_report_ms)
    }

    fn report(
        &mut self,
        subject: Subject,
        worker: &str,
        lasted: Duration,
        late_beats: u64,
        mut evidence: Evidence,
    ) {
        let lasted_ms = lasted.as_millis() as u64;
        let now = Instant::now();
        let known = self.open.remove(&subject);
        if let Some(known) = &known {
            keep_stacks(&known.incident.evidence, &mut evidence);
        }
        let mut verdict = judge(&evidence);
        if let Subject::Process(class) = subject {
            verdict.findings.retain(|finding| finding.class == class);
        }
        let mut open = known.unwrap_or_else(|| {
            self.ids += 1;
            let incident =
                Incident::new(self.ids, worker, lasted_ms, evidence.clone(), verdict.clone());
            let began = now.checked_sub(lasted).unwrap_or(now);
            let is_reported = false;
            OngoingStall {
                incident,
                next_report_ms: 0,
                late_beats,
                absent_looks: 0,
                failed_probe_ms: None,
                began,
                is_reported,
            }
        });
        open.incident.reports += u32::from(open.next_report_ms > 0);
        open.incident.update(lasted_ms, evidence, verdict);
        open.next_report_ms = (lasted_ms * 2).max(self.shared.config.threshold.as_millis() as u64);
        open.is_reported |= self.publish(&open.incident, false);
        self.open.insert(subject, open);
    }

    /// Ends a stall. `lasted`: its length, if that is known exactly.
    fn close(&mut self, subject: Subject, lasted: Option<Duration>) {
        let Some(mut open) = self.open.remove(&subject) else { return };
        let lasted = lasted.unwrap_or_else(|| open.began.elapsed());
        open.incident.lasted_ms = lasted.as_millis() as u64;
        open.incident.is_ongoing = false;
        self.publish(&open.incident, open.is_reported);
    }

    fn close_all(&mut self) {
        let known: Vec<Subject> = self.open.keys().copied().collect();
        for subject in known {
            self.close(subject, None);
        }
        self.send_again();
    }

    /// Keeps an incident, and sends it to the reporter: as an event if the budget has something left, or in any case if
    /// `is_free`. Whether it is an event.
    fn publish(&mut self, incident: &Incident, is_free: bool) -> bool {
        let incident = Arc::new(incident.clone());
        self.shared.incidents.update(Arc::clone(&incident));
        let is_event = is_free || self.budget.take();
        let event = is_event.then_some(self.budget.suppressed);
        let is_reported = self.send(Message { incident, event }) && is_event;
        self.budget.suppressed = if is_reported { 0 } else { self.budget.suppressed + 1 };
        is_reported
    }

    /// Whether the reporter has the message, or will have it. If it has fallen behind, because a subscriber blocks, an
    /// end waits here: a stall that was reported must not last for ever in the log and in metrics.
    fn send(&mut self, message: Message) -> bool {
        self.send_again(); // an end that waits comes before the next beginning
        match self.reports.try_send(message) {
            Ok(()) => true,
            Err(TrySendError::Full(Message { incident, event }))
                if !incident.is_ongoing && self.ends.len() < ENDS_MAX =>
            {
                let evidence = Evidence::default(); // an end says nothing of it
                let incident = Arc::new(Incident { evidence, ..Incident::clone(&incident) });
                self.ends.push_back(Message { incident, event });
                true
            }
            Err(_) => false,
        }
    }

    /// Sends the ends that wait, as far as the reporter takes them.
    fn send_again(&mut self) {
        while let Some(message) = self.ends.pop_front() {
            if let Err(TrySendError::Full(message)) = self.reports.try_send(message) {
                return self.ends.push_front(message);
            }
        }
    }
}

/// Puts the stacks of earlier reports before the new ones: together they say more.
fn keep_stacks(earlier: &Evidence, evidence: &mut Evidence) {
    for thread in &mut evidence.threads {
        let Some(before) = earlier.threads.iter().find(|before| before.tid == thread.tid) else {
            continue;
        };
        // Stacks of another state do not explain this one.
        if before.state == thread.state {
            let room = STACKS_MAX.saturating_sub(thread.stacks.len());
            let kept = &before.stacks[before.stacks.len().saturating_sub(room)..];
            thread.stacks.splice(0..0, kept.iter().cloned());
        }
    }
}

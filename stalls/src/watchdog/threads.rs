//! Threads of a pool: each may stall by itself, while the others work.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use super::{EXAMINATIONS_MAX, Subject, Watchdog};
use crate::evidence::{Evidence, Thread};
use crate::examine::Baseline;
use crate::heart::HeartState;
use crate::pool::PoolThread;

/// How many threads of a pool are examined at once. Each takes some milliseconds.
const EXAMINED_MAX: usize = 16;

/// How long a thread that may sleep is left alone. It may become a worker again without having parked.
const EXCUSED: Duration = Duration::from_secs(5);

/// A thread of a pool that is not parked.
pub(super) struct Active {
    /// When it last unparked. That identifies the activity.
    since: u64,
    /// What its counters were when they last changed. `None`: they have not been read in this activity.
    resting: Option<Resting>,
    /// When its stack said that it may sleep.
    excused: Option<Instant>,
}

impl Active {
    /// Whether it is left alone for now.
    pub(super) fn is_excused(&self) -> bool {
        self.excused.is_some_and(|excused| excused.elapsed() < EXCUSED)
    }
}

/// A thread that sleeps and has not run since.
#[derive(Clone)]
struct Resting {
    ran_ns: u64,
    since: Instant,
    baseline: Baseline,
}

impl Watchdog<'_> {
    /// Checks a thread of a pool. It stalls if it is not parked, and has slept for the threshold without running.
    pub(super) fn check_thread(&mut self, thread: &Arc<PoolThread>) {
        let subject = Subject::Thread(thread.id);
        let Some(since) = thread.active_since().filter(|_| !thread.is_gone.load(Acquire)) else {
            self.active.remove(&thread.id);
            return self.close(subject, None);
        };
        let known = self.active.remove(&thread.id).filter(|known| known.since == since);
        let Some(mut active) = known else {
            self.active.insert(thread.id, Active { since, resting: None, excused: None });
            return self.close(subject, None); // most threads park soon, and nothing is read of them
        };
        if active.is_excused() {
            self.active.insert(thread.id, active);
            return;
        }
        let now = Baseline::of(&thread.thread);
        let ran_ns = now.sleeping();
        let known = active.resting.take().filter(|known| ran_ns == Some(known.ran_ns));
        if known.is_none() {
            self.close(subject, None); // it has run since
        }
        let begins = ran_ns.map(|ran_ns| Resting { ran_ns, since: Instant::now(), baseline: now });
        let resting = known.or(begins);
        self.active.insert(thread.id, Active { since, resting: resting.clone(), excused: None });
        let Some(Resting { since, baseline, .. }) = resting else { return };
        let late = since.elapsed();
        if late < self.shared.config.threshold || !self.is_report_due(subject, late) {
            return;
        }
        if !self.thread_examinations.take() {
            // Without its stack it may sleep where tokio allows it. If all threads stall, the heart of the pool does.
            return self.shared.note(format!(
                "single threads of pools: {EXAMINATIONS_MAX} were examined within a minute, and others were left out"
            ));
        }
        let mut evidence = self.evidence(Some(late), true);
        let found = self.examiner.examine(
            &thread.thread,
            &baseline,
            &|| thread.active_since() != Some(active.since),
            &mut evidence.unseen,
        );
        if may_sleep(&found) {
            let excused = Some(Instant::now());
            self.active.insert(thread.id, Active { excused, resting: None, ..active });
            return self.close(subject, None);
        }
        let worker = format!("{} {}", thread.pool, found.name);
        evidence.threads.push(found);
        self.report(subject, &worker, late, 0, evidence);
    }

    /// Counters from before a stall of a pool, to compare with: once in a silence that may become one.
    pub(super) fn take_pool_baselines(&mut self, heart: &HeartState, late: Duration) {
        let last_beat = heart.last_beat();
        if late < self.shared.config.threshold / 2
            || self.pool_silences.get(&heart.id) == Some(&last_beat)
        {
            return;
        }
        self.pool_silences.insert(heart.id, last_beat);
        for thread in self.threads_of(&heart.name).iter().take(EXAMINED_MAX) {
            self.pool_baselines.insert(thread.id, Baseline::of(&thread.thread));
        }
    }

    /// The threads of a pool: first those that are not parked.
    fn threads_of(&self, pool: &str) -> Vec<Arc<PoolThread>> {
        let mut threads = self.shared.pool_threads.all();
        threads.retain(|thread| *thread.pool == *pool && !thread.is_gone.load(Acquire));
        threads.sort_by_key(|thread| thread.active_since().is_none());
        threads
    }

    /// Examines at most [`EXAMINED_MAX`] threads of a pool: first those that are not parked.
    pub(super) fn examine_pool(
        &mut self,
        pool: &str,
        is_over: &dyn Fn() -> bool,
        evidence: &mut Evidence,
    ) {
        let threads = self.threads_of(pool);
        if threads.len() > EXAMINED_MAX {
            evidence.unseen.push(format!(
                "{} of {} threads",
                threads.len() - EXAMINED_MAX,
                threads.len()
            ));
        }
        for thread in threads.iter().take(EXAMINED_MAX) {
            let known = self.active.get(&thread.id).and_then(|active| active.resting.as_ref());
            let known = known.map(|resting| &resting.baseline);
            let baseline = known.or_else(|| self.pool_baselines.get(&thread.id)).cloned();
            let baseline = baseline.unwrap_or_else(|| Baseline::of(&thread.thread));
            let mut found =
                self.examiner.examine(&thread.thread, &baseline, is_over, &mut evidence.unseen);
            found.is_parked = thread.active_since().is_none() || may_sleep(&found);
            evidence.threads.push(found);
        }
    }
}

/// Whether a thread of a pool that sleeps does so where tokio allows it: in `block_in_place`, or as a thread for
/// blocking work. A worker becomes one in `block_in_place`, and then waits up to 10 s for more such work. No hook is
/// called then.
fn may_sleep(thread: &Thread) -> bool {
    let frames = || thread.stacks.iter().flat_map(|stack| &stack.frames);
    let has = |part: &str| {
        frames().any(|frame| frame.function.as_ref().is_some_and(|name| name.contains(part)))
    };
    has("block_in_place") || has("tokio::runtime::blocking::pool") && !has("multi_thread::worker")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;
    use crate::Config;
    use crate::detector::Shared;
    use crate::fork::Process;
    use crate::pool::Pool;

    /// Otherwise nothing would tell whether its threads ran in the stall, or waited for a CPU.
    #[test]
    fn threads_of_a_pool_are_compared_with_before_the_stall() {
        let shared = Arc::new(Shared::new(Config::default(), Process::current().unwrap()));
        let pool = Pool::new("pool", Arc::clone(&shared));
        let heart = pool.heart();
        let (started, is_started) = channel();
        let (end, is_over) = channel::<()>();
        let worker = std::thread::spawn(move || {
            pool.thread_started();
            started.send(()).unwrap();
            let _ = is_over.recv();
            pool.thread_stopped();
        });
        is_started.recv().unwrap();
        let (sender, _messages) = sync_channel(1);
        let mut watchdog = Watchdog::new(&shared, &sender);
        watchdog.take_pool_baselines(&heart.state, Duration::ZERO);
        assert!(watchdog.pool_baselines.is_empty(), "the heart is not late");
        watchdog.take_pool_baselines(&heart.state, shared.config.threshold / 2);
        std::thread::sleep(Duration::from_millis(2));
        watchdog.take_pool_baselines(&heart.state, shared.config.threshold); // the same silence
        let mut evidence = Evidence::default();
        watchdog.examine_pool("pool", &|| false, &mut evidence);
        assert!(evidence.threads[0].window_ms >= 2, "{evidence:?}");
        drop(end);
        worker.join().unwrap();
    }
}

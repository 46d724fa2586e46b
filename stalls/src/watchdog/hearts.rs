//! Hearts: each is one event loop, or a whole pool of threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use super::{EXAMINATIONS_MAX, Subject, Watchdog};
use crate::evidence::Thread;
use crate::examine::{Baseline, has_ended};
use crate::heart::HeartState;
use crate::stack::ThreadRef;

/// How often a thread's counters are read while its heart beats in time.
const BASELINE_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of a heart's thread. They are taken in each silence that may become a stall, and now and then.
pub(super) struct HeartBaseline {
    baseline: Baseline,
    /// The polls of tasks until then, if the program counts them.
    polls: Option<u64>,
    taken: Instant,
    /// The beat before the silence in which it was taken. `None`: the heart was not late.
    pub(super) silent_since: Option<u64>,
}

impl Watchdog<'_> {
    pub(super) fn check_heart(&mut self, heart: &Arc<HeartState>) {
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
                let known = self.baselines.get(&key);
                let baseline = known.map(|known| &known.baseline).or(heart.first.as_ref());
                let baseline = baseline.cloned().unwrap_or_else(|| Baseline::of(thread));
                let known = known.filter(|known| known.silent_since == Some(last_beat));
                let polls = known.and_then(|known| heart.polls()?.checked_sub(known.polls?));
                let polls = polls.or_else(|| heart.polls_since_due());
                let unseen = &mut evidence.unseen;
                let before = heart.polls();
                let found = self.examiner.examine(thread, &baseline, &is_over, unseen);
                // A thread that ran for milliseconds was in one poll all the time then: a task keeps the loop, whatever came
                // before it.
                let has_run = found.recently_ran_percent.is_some_and(|percent| percent >= 80);
                let is_one_poll = has_run && heart.polls() == before && !is_over();
                evidence.threads.push(Thread { polls: polls.filter(|_| !is_one_poll), ..found });
            }
            None => self.examine_pool(&heart.name, &is_over, &mut evidence),
        }
        self.report(subject, &heart.name, late, late_beats, evidence);
    }

    /// Counters from before a stall, to compare with: once in a silence that may become one, and once in
    /// [`BASELINE_INTERVAL`] in case the next silence is over the threshold when it is first seen.
    pub(super) fn take_baseline(&mut self, heart: &HeartState, late: Duration) {
        let Some(thread) = &heart.thread else { return self.take_pool_baselines(heart, late) };
        let last_beat = heart.last_beat();
        let silent_since = (late >= self.shared.config.threshold / 2).then_some(last_beat);
        let is_needed = self.baselines.get(&heart.id).is_none_or(|known| {
            silent_since.is_some() && known.silent_since != silent_since
                || known.silent_since != Some(last_beat)
                    && known.taken.elapsed() >= BASELINE_INTERVAL
        });
        if is_needed {
            let (baseline, polls) = (Baseline::of(thread), heart.polls());
            let taken = Instant::now();
            self.baselines.insert(heart.id, HeartBaseline { baseline, polls, taken, silent_since });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use std::sync::mpsc::{channel, sync_channel};

    use super::super::budget::MinuteBudget;
    use super::*;
    use crate::Config;
    use crate::detector::Shared;
    use crate::fork::Process;

    /// Under overload each short stall would take one.
    #[test]
    fn a_stall_that_is_not_examined_has_no_look_of_its_own() {
        let shared = Arc::new(Shared::new(Config::default(), Process::current().unwrap()));
        let heart = shared.add_heart("silent", Some(ThreadRef::current()));
        std::thread::sleep(shared.config.interval + shared.config.threshold);
        let (sender, _messages) = sync_channel(8);
        let mut watchdog = Watchdog::new(&shared, &sender);
        watchdog.examinations = MinuteBudget::new(0);
        watchdog.check_heart(&heart.state);
        assert!(watchdog.looks.is_empty());
        let incidents = shared.incidents.all();
        let unseen = &incidents[0].evidence.unseen;
        assert!(unseen.iter().any(|it| it.contains("examined in this minute")), "{unseen:?}");
    }

    /// What is seen of a thread that stalls after 100,000 polls.
    fn seen_after_polls(goes_on: bool) -> Thread {
        let shared = Arc::new(Shared::new(Config::default(), Process::current().unwrap()));
        let (polls, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (sender, receiver) = channel();
        let busy = std::thread::spawn({
            let (polls, end) = (Arc::clone(&polls), Arc::clone(&end));
            move || {
                sender.send(ThreadRef::current()).unwrap();
                while !end.load(Relaxed) {
                    polls.fetch_add(goes_on.into(), Relaxed);
                }
            }
        });
        let heart = shared.add_heart("busy", Some(receiver.recv().unwrap()));
        heart.set_poll_counter(Arc::clone(&polls));
        let (sender, _messages) = sync_channel(8);
        let mut watchdog = Watchdog::new(&shared, &sender);
        let half = shared.config.interval + shared.config.threshold / 2;
        std::thread::sleep(half);
        let late = shared.config.threshold / 2;
        watchdog.take_baseline(&heart.state, late);
        polls.fetch_add(100_000, Relaxed);
        std::thread::sleep(half);
        watchdog.check_heart(&heart.state);
        end.store(true, Relaxed);
        busy.join().unwrap();
        shared.incidents.all()[0].evidence.threads[0].clone()
    }

    #[test]
    fn polls_that_go_on_are_counted() {
        assert!(seen_after_polls(true).polls.unwrap() > 100_000);
    }

    /// One task may keep the loop after many that did not.
    #[test]
    fn polls_that_have_stopped_are_not() {
        // On a busy machine the thread may wait for a CPU.
        let has_run = |thread: &Thread| thread.recently_ran_percent >= Some(80);
        let seen = (0..50).map(|_| seen_after_polls(false)).find(has_run).expect("it ran");
        assert_eq!(seen.polls, None);
    }
}

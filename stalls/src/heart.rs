//! [`Heart`]: the heartbeat of an event loop, which the watchdog reads.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use crate::examine::Baseline;
use crate::histogram::Lateness;
use crate::registry::next_id;
use crate::stack::ThreadRef;

/// The heartbeat of one event loop. A task beats it for as long as the loop runs:
///
/// ```no_run
/// # async fn sleep(_: std::time::Duration) {}
/// # async fn of(heart: owned_io_stalls::Heart) {
/// loop {
///     heart.beat();
///     sleep(heart.interval()).await; // of the runtime
/// }
/// # }
/// ```
///
/// If the heart does not beat for its interval and the threshold, the watchdog reports a stall. Dropping the heart
/// ends the watch of its loop, and so does the end of its thread.
///
/// A busy event loop pays for a timer each time it waits. [`tick`](Self::tick) needs none.
#[derive(Debug)]
pub struct Heart {
    pub(crate) state: Arc<HeartState>,
}

impl Heart {
    /// Tells the watchdog that the event loop runs. It stores the time and counts how late it is: no lock, no
    /// allocation, no system call. About 50 ns.
    pub fn beat(&self) {
        self.state.beat();
    }

    /// Tells the watchdog where the program counts the polls of tasks of this event loop. With it, a loop that is late
    /// because thousands of tasks are ready gets the verdict [`Overload`](crate::Class::Overload). Without, no sample
    /// of its stack tells that from one task that keeps the loop busy.
    ///
    /// The first counter stays. The loop adds to it and the watchdog reads it; a relaxed load and store are enough.
    /// [`owned_io::coop::poll_counter`](https://docs.rs/owned-io) is such a counter.
    pub fn set_poll_counter(&self, polls: Arc<AtomicU64>) {
        let _ = self.state.polls.set(polls);
    }

    /// How long to sleep between two beats.
    pub fn interval(&self) -> Duration {
        self.state.interval
    }

    /// Waits until the next beat is due, instead of sleeping: a thread of the detector wakes the task. From then on the
    /// heart counts as late.
    ///
    /// Only for runtimes whose tasks can be woken from another thread: monoio needs its feature `sync`. Where that
    /// panics, the heart is watched no more, and [`Snapshot::unseen`](crate::Snapshot::unseen) says so.
    ///
    /// ```no_run
    /// # async fn of(heart: owned_io_stalls::Heart) {
    /// loop {
    ///     heart.beat();
    ///     heart.tick().await;
    /// }
    /// # }
    /// ```
    ///
    /// # Cancellation
    /// Safe. One task waits for a heart; of several, the last.
    pub async fn tick(&self) {
        let state = &*self.state;
        state.uses_ticks.store(true, Release);
        let before = state.woken_at.load(Acquire);
        poll_fn(|cx| {
            state.waker.register(cx.waker());
            match state.woken_at.load(Acquire) == before {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.state.is_gone.store(true, Release);
        // A waker may own a whole runtime. It must not be dropped by the watchdog, which would close the numbers of the
        // program's descriptors in its own table.
        drop(self.state.waker.take());
    }
}

/// What a [`Heart`] shares with the watchdog. Times are nanoseconds since `epoch`.
#[derive(Debug)]
pub(crate) struct HeartState {
    /// Unique in the process, and never used again.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) interval: Duration,
    threshold: Duration,
    epoch: Instant,
    /// The thread of the loop; none for a runtime of several threads.
    pub(crate) thread: Option<ThreadRef>,
    /// The counters of the thread when it was registered.
    pub(crate) first: Option<Baseline>,
    /// How often tasks of the loop were polled, if the program counts that.
    polls: OnceLock<Arc<AtomicU64>>,
    last_beat: AtomicU64,
    /// Whether the task waits for ticks, and does not sleep.
    pub(crate) uses_ticks: AtomicBool,
    /// When the task was last woken, and the count of polls then. 0: never.
    woken_at: AtomicU64,
    polls_when_woken: AtomicU64,
    /// The waker of the task. The heart removes it when it is dropped, so the watchdog never drops it.
    waker: AtomicWaker,
    /// The last beat that was late by the threshold: when it was due, and when it came.
    due: AtomicU64,
    came: AtomicU64,
    late_beats: AtomicU64,
    pub(crate) lateness: Lateness,
    pub(crate) is_gone: AtomicBool,
}

impl HeartState {
    pub(crate) fn new(
        name: String,
        epoch: Instant,
        interval: Duration,
        threshold: Duration,
        thread: Option<ThreadRef>,
    ) -> Self {
        Self {
            id: next_id(),
            name,
            interval,
            threshold,
            epoch,
            first: thread.as_ref().map(Baseline::of),
            thread,
            polls: OnceLock::new(),
            last_beat: AtomicU64::new(nanos(epoch.elapsed())),
            uses_ticks: AtomicBool::new(false),
            woken_at: AtomicU64::new(0),
            polls_when_woken: AtomicU64::new(0),
            waker: AtomicWaker::new(),
            due: AtomicU64::new(0),
            came: AtomicU64::new(0),
            late_beats: AtomicU64::new(0),
            lateness: Lateness::new(),
            is_gone: AtomicBool::new(false),
        }
    }

    fn beat(&self) {
        let now = nanos(self.epoch.elapsed());
        let due = self.due().unwrap_or(now);
        let late = now.saturating_sub(due);
        self.lateness.record(late / 1_000);
        let is_late = late >= nanos(self.threshold);
        if is_late {
            self.due.store(due, Relaxed);
            self.came.store(now, Relaxed);
        }
        // Before the count: whoever sees the stall ended must not find the heart still late.
        self.last_beat.store(now, Release);
        if is_late {
            self.late_beats.fetch_add(1, Release);
        }
    }

    /// Wakes the task that waits for a tick.
    ///
    /// # Errors
    /// The runtime panicked. The heart is watched no more.
    pub(crate) fn wake_task(&self) -> std::thread::Result<()> {
        // No waker: the task has not run since it was last woken, and is late since then.
        let Some(waker) = self.waker.take() else { return Ok(()) };
        self.polls_when_woken.store(self.polls().unwrap_or(0), Relaxed);
        self.woken_at.store(nanos(self.epoch.elapsed()), Release);
        let woken = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        if woken.is_err() {
            self.is_gone.store(true, Release);
        }
        woken
    }

    /// When the next beat is due. `None`: the task waits for a tick.
    fn due(&self) -> Option<u64> {
        let last_beat = self.last_beat.load(Acquire);
        if self.uses_ticks.load(Acquire) {
            return Some(self.woken_at.load(Acquire)).filter(|woken_at| *woken_at > last_beat);
        }
        Some(last_beat.saturating_add(nanos(self.interval)))
    }

    /// How late the next beat is now, and since when. `None` if it is not yet due.
    pub(crate) fn late(&self) -> Option<(Instant, Duration)> {
        let due = self.epoch.checked_add(Duration::from_nanos(self.due()?))?;
        let late = Instant::now().checked_duration_since(due)?;
        Some((due, late))
    }

    /// How long it takes at least until the heart is late by `late` if it does not beat.
    pub(crate) fn until_late(&self, late: Duration) -> Duration {
        let Some(due) = self.due() else { return self.interval + late };
        let until = Duration::from_nanos(due) + late;
        until.saturating_sub(self.epoch.elapsed())
    }

    /// How often tasks of the loop were polled, if the program counts that.
    pub(crate) fn polls(&self) -> Option<u64> {
        self.polls.get().map(|polls| polls.load(Relaxed))
    }

    /// The polls since the beat was due. `None`: the program does not count them, or the task does not wait for ticks,
    /// and nobody counted at that moment.
    pub(crate) fn polls_since_due(&self) -> Option<u64> {
        self.due().filter(|_| self.uses_ticks.load(Acquire))?;
        self.polls()?.checked_sub(self.polls_when_woken.load(Relaxed))
    }

    /// When the heart last beat. It identifies the silence since.
    pub(crate) fn last_beat(&self) -> u64 {
        self.last_beat.load(Acquire)
    }

    /// How many beats were late by the threshold, and how late the last of them was.
    pub(crate) fn late_beats(&self) -> (u64, Duration) {
        let count = self.late_beats.load(Acquire);
        let late = self.came.load(Relaxed).saturating_sub(self.due.load(Relaxed));
        (count, Duration::from_nanos(late))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_beat_is_counted_with_its_length() {
        let second = Duration::from_secs(1);
        let epoch = Instant::now() - 10 * second; // as if it had been silent
        let heart = HeartState::new("w".into(), epoch, Duration::from_millis(10), second, None);
        heart.last_beat.store(0, Relaxed);
        let (due, late) = heart.late().unwrap();
        assert_eq!(due, epoch + Duration::from_millis(10));
        assert!(late > 9 * second);
        heart.beat();
        assert_eq!(heart.late_beats().0, 1);
        assert!(heart.late_beats().1 > 9 * second);
        assert_eq!(heart.lateness.summary().beats, 1);
    }

    fn heart() -> HeartState {
        let second = Duration::from_secs(1);
        HeartState::new("w".into(), Instant::now() - second, second, second, None)
    }

    /// A heart that waits for ticks is due when its task is woken, however late that is.
    #[test]
    fn a_heart_is_late_from_its_tick_on() {
        struct Nothing;
        impl std::task::Wake for Nothing {
            fn wake(self: Arc<Self>) {}
        }
        let state = heart();
        state.uses_ticks.store(true, Relaxed);
        assert_eq!(state.late(), None);
        state.wake_task().unwrap(); // nobody waits yet
        assert_eq!(state.late(), None);
        state.waker.register(&Arc::new(Nothing).into());
        std::thread::sleep(Duration::from_millis(1)); // the clock must tick
        state.wake_task().unwrap();
        let (due, _) = state.late().unwrap();
        state.wake_task().unwrap();
        assert_eq!(state.late().unwrap().0, due, "it is due since it was first woken");
        state.beat();
        assert_eq!((state.late(), state.late_beats().0), (None, 0));
    }

    /// The watchdog may have the state for longer. It has another table of descriptors, and a waker may own some.
    #[test]
    fn a_heart_that_goes_takes_its_waker_along() {
        struct Owner;
        impl std::task::Wake for Owner {
            fn wake(self: Arc<Self>) {}
        }
        let (owner, state) = (Arc::new(Owner), Arc::new(heart()));
        let heart = Heart { state: Arc::clone(&state) };
        let waker = Arc::clone(&owner).into();
        let waiting =
            std::pin::pin!(heart.tick()).poll(&mut std::task::Context::from_waker(&waker));
        assert!(waiting.is_pending());
        drop(waker);
        assert_eq!(Arc::strong_count(&owner), 2, "the heart has it");
        drop(heart);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    /// A runtime that panics when it is woken from outside.
    #[test]
    fn a_runtime_that_cannot_be_woken() {
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("not from another thread");
            }
        }
        let state = heart();
        state.waker.register(&Arc::new(Panics).into());
        assert!(state.wake_task().is_err());
        assert!(state.is_gone.load(Relaxed));
    }
}

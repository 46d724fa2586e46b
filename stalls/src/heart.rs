//! [`Heart`]: what a worker's event loop beats, and what the watchdog reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

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
/// ends the watch of its loop.
#[derive(Debug)]
pub struct Heart {
    pub(crate) state: Arc<HeartState>,
}

impl Heart {
    /// Says that the event loop runs. It stores the time and counts how late it is: no lock, no allocation, no
    /// system call. About 50 ns.
    pub fn beat(&self) {
        self.state.beat();
    }

    /// How long to sleep between two beats.
    pub fn interval(&self) -> Duration {
        self.state.interval
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.state.is_gone.store(true, Release);
    }
}

/// What a [`Heart`] shares with the watchdog. Times are nanoseconds since `epoch`.
#[derive(Debug)]
pub(crate) struct HeartState {
    /// No other heart has it, also later.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) interval: Duration,
    threshold: Duration,
    epoch: Instant,
    /// The thread of the loop; none for a runtime of several threads.
    pub(crate) thread: Option<ThreadRef>,
    /// The counters of the thread when it was registered.
    pub(crate) first: Option<Baseline>,
    last_beat: AtomicU64,
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
            last_beat: AtomicU64::new(nanos(epoch.elapsed())),
            due: AtomicU64::new(0),
            came: AtomicU64::new(0),
            late_beats: AtomicU64::new(0),
            lateness: Lateness::new(),
            is_gone: AtomicBool::new(false),
        }
    }

    fn beat(&self) {
        let now = nanos(self.epoch.elapsed());
        let due = self.last_beat.load(Relaxed).saturating_add(nanos(self.interval));
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

    /// How late the next beat is now, and since when. `None` if it is not yet due.
    pub(crate) fn late(&self) -> Option<(Instant, Duration)> {
        let due = self.epoch + Duration::from_nanos(self.last_beat.load(Acquire)) + self.interval;
        let late = Instant::now().checked_duration_since(due)?;
        Some((due, late))
    }

    /// How long it takes until the heart is late by `late` if it does not beat.
    pub(crate) fn until_late(&self, late: Duration) -> Duration {
        let due = self.epoch + Duration::from_nanos(self.last_beat.load(Acquire)) + self.interval;
        (due + late).saturating_duration_since(Instant::now())
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
}

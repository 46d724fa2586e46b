//! What happened when within the window, in few enough numbers that every run keeps them.

use serde::{Deserialize, Serialize};

/// A plot cannot show more.
const SLOTS_MAX: u64 = 100;

/// In a shorter slot too little happens.
const SLOT_NS_MIN: u64 = 10_000_000;

/// The shortest silence that is a stall. The kernel may take a thread from its core for several milliseconds.
const STALL_NS: u64 = 25_000_000;

/// How many stalls are recorded; all are counted.
const STALLS_MAX: usize = 100;

const NS_PER_MS: f64 = 1e6;

/// Slots of equal length from the beginning of the window to its end.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: u64,
    slot_ns: u64,
    slots: Vec<Slot>,
    /// When the last answer arrived.
    last_received: u64,
    stalls: Stalls,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    received: u64,
    longest_ns: u64,
}

/// The answers in each slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Series {
    pub(crate) slot_ms: f64,
    /// The number of answers.
    pub(crate) received: Vec<u64>,
    /// The longest latency among them.
    pub(crate) longest_us: Vec<f64>,
}

/// Times of at least 25 ms without an answer though one was outstanding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stalls {
    pub(crate) count: u64,
    pub(crate) total_ms: f64,
    pub(crate) longest_ms: f64,
    /// When the first hundred began, and how long each lasted.
    pub(crate) at_ms: Vec<f64>,
    pub(crate) lasted_ms: Vec<f64>,
}

impl Recorder {
    pub(crate) fn new(start: u64, end: u64) -> Self {
        let window = end.saturating_sub(start).max(1);
        let slot_ns = window.div_ceil(SLOTS_MAX).max(SLOT_NS_MIN);
        let slots = vec![Slot::default(); window.div_ceil(slot_ns) as usize];
        Self { start, slot_ns, slots, last_received: start, stalls: Stalls::default() }
    }

    /// Records `answers` that arrived at `now`; the longest latency among them is `longest_ns`.
    pub(crate) fn record(&mut self, now: u64, answers: u64, longest_ns: u64) {
        // The oldest answer was outstanding during the silence, or at its end.
        let since = self.last_received.max(now.saturating_sub(longest_ns)).max(self.start);
        let end = self.start + self.slot_ns * self.slots.len() as u64;
        if since < end && now.saturating_sub(since) >= STALL_NS {
            self.stalls
                .add((since - self.start) as f64 / NS_PER_MS, (now - since) as f64 / NS_PER_MS);
        }
        self.last_received = now;
        self.add(now, answers, longest_ns);
    }

    /// Counts `answers` in the slot of the moment `at`, whenever they arrived. Such answers tell nothing of silences.
    pub(crate) fn add(&mut self, at: u64, answers: u64, longest_ns: u64) {
        let slot = at.checked_sub(self.start).map(|at| (at / self.slot_ns) as usize);
        if let Some(slot) = slot.and_then(|slot| self.slots.get_mut(slot)) {
            slot.received += answers;
            slot.longest_ns = slot.longest_ns.max(longest_ns);
        }
    }

    pub(crate) fn finish(self) -> (Series, Stalls) {
        let longest_us = self.slots.iter().map(|slot| slot.longest_ns as f64 / 1e3).collect();
        let received = self.slots.iter().map(|slot| slot.received).collect();
        let slot_ms = self.slot_ns as f64 / NS_PER_MS;
        (Series { slot_ms, received, longest_us }, self.stalls)
    }
}

impl Stalls {
    /// Adds those of a window that began so much later.
    pub(crate) fn append(&mut self, other: &Self, later_ms: f64) {
        let stalls = self.at_ms.len();
        for (at_ms, lasted_ms) in other.at_ms.iter().zip(&other.lasted_ms).take(STALLS_MAX - stalls)
        {
            self.at_ms.push(at_ms + later_ms);
            self.lasted_ms.push(*lasted_ms);
        }
        self.count += other.count;
        self.total_ms += other.total_ms;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
    }

    fn add(&mut self, at_ms: f64, lasted_ms: f64) {
        self.count += 1;
        self.total_ms += lasted_ms;
        self.longest_ms = self.longest_ms.max(lasted_ms);
        if self.at_ms.len() < STALLS_MAX {
            self.at_ms.push(at_ms);
            self.lasted_ms.push(lasted_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn slots_are_few_and_cover_the_window() {
        for (window_ms, slot_ms, slots) in [(300, 10.0, 30), (2000, 20.0, 100), (5, 10.0, 1)] {
            let (series, _) = Recorder::new(7, 7 + window_ms * MS).finish();
            assert_eq!((series.slot_ms, series.received.len()), (slot_ms, slots));
        }
    }

    #[test]
    fn only_silence_with_an_answer_outstanding_is_a_stall() {
        let mut recorder = Recorder::new(100 * MS, 1100 * MS);
        recorder.record(90 * MS, 1, MS); // before the window
        recorder.record(200 * MS, 2, 10 * MS); // long after, but asked for only now
        recorder.record(230 * MS, 1, 40 * MS); // 30 ms of silence
        recorder.record(300 * MS, 1, 26 * MS); // 26 of the 70
        recorder.record(1500 * MS, 1, 600 * MS); // began in the window
        recorder.record(2000 * MS, 1, 500 * MS); // did not
        let (series, stalls) = recorder.finish();
        assert_eq!((stalls.count, stalls.at_ms), (3, vec![100.0, 174.0, 800.0]));
        assert_eq!(stalls.lasted_ms, [30.0, 26.0, 600.0]);
        assert_eq!((stalls.total_ms, stalls.longest_ms), (656.0, 600.0));
        assert_eq!(series.received.iter().sum::<u64>(), 4);
        assert_eq!(series.longest_us[13], 40_000.0);
    }
}

//! [`Queue`]: what happens later, by its time, and at the same time in the order it was planned.
//!
//! A radix heap (Ahuja, Mehlhorn, Orlin, Tarjan 1990): the simulation's clock never goes back, so an
//! entry's bucket is the highest bit in which its time differs from the last one taken. When the first
//! bucket is due, its entries are spread over those below. Each move is an append to an array, in
//! order: a million timers cost no more cache misses than a thousand, and entries of one time stay in
//! the order they came in, without a number to tell it.

use crate::core::{Event, Time};

/// One for each bit in which two times may differ, and one for none.
const BUCKETS: usize = 64;

/// Entries that each bucket has room for from the start, so that a small simulation never allocates
/// again.
const WARM_ENTRIES: usize = 64;

/// Never, after 292 years: the highest bit has no bucket.
pub(crate) const TIME_MAX: Time = Time::MAX >> 1;

pub(crate) struct Queue {
    buckets: Vec<Bucket>,
    /// A bit for each bucket that is not empty.
    occupied: u64,
    /// The time of what was taken last. Invariant: nothing in here is earlier.
    last: Time,
    /// How many of the first bucket's entries were taken.
    taken: usize,
}

struct Bucket {
    entries: Vec<Entry>,
    /// The earliest of them.
    first: Time,
}

#[derive(Clone, Copy)]
struct Entry {
    at: Time,
    event: Event,
}

// Of a million timers each takes three words.
const _: () = assert!(size_of::<Entry>() == 24);

impl Queue {
    pub(crate) fn new() -> Self {
        let bucket = || Bucket { entries: Vec::with_capacity(WARM_ENTRIES), first: Time::MAX };
        let buckets = (0..BUCKETS).map(|_| bucket()).collect();
        Self { buckets, occupied: 0, last: 0, taken: 0 }
    }

    /// Plans `event`; `at` is not before what was taken last. What is to happen at [`TIME_MAX`] or later
    /// never does.
    pub(crate) fn push(&mut self, at: Time, event: Event) {
        if at < TIME_MAX {
            self.put(Entry { at, event });
        }
    }

    /// The time of what comes next.
    pub(crate) fn next_at(&self) -> Option<Time> {
        if self.occupied & 1 != 0 {
            return Some(self.last);
        }
        self.buckets.get(self.occupied.trailing_zeros() as usize).map(|bucket| bucket.first)
    }

    /// What comes next, if its time is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Event> {
        if self.occupied & 1 == 0 {
            self.spread_first(now)?;
        }
        let first = &mut self.buckets[0].entries;
        let event = first[self.taken].event;
        self.taken += 1;
        if self.taken == first.len() {
            first.clear();
            self.taken = 0;
            self.occupied &= !1;
        }
        Some(event)
    }

    /// Drops what `keep` says false to.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Event) -> bool) {
        drop(self.buckets[0].entries.drain(..self.taken));
        self.taken = 0;
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            bucket.entries.retain(|entry| keep(&entry.event));
            bucket.first = bucket.entries.iter().map(|entry| entry.at).min().unwrap_or(Time::MAX);
            if bucket.entries.is_empty() {
                self.occupied &= !(1 << index);
            }
        }
    }

    fn put(&mut self, entry: Entry) {
        debug_assert!(self.last <= entry.at && entry.at < TIME_MAX);
        let index = (u64::BITS - (entry.at ^ self.last).leading_zeros()) as usize;
        let bucket = &mut self.buckets[index];
        bucket.entries.push(entry);
        bucket.first = bucket.first.min(entry.at);
        self.occupied |= 1 << index;
    }

    /// Moves the entries of the first bucket that has any, if one of them is due, to those below it; the
    /// earliest to the very first.
    fn spread_first(&mut self, now: Time) -> Option<()> {
        let index = self.occupied.trailing_zeros() as usize;
        let bucket = self.buckets.get_mut(index).filter(|bucket| bucket.first <= now)?;
        self.last = std::mem::replace(&mut bucket.first, Time::MAX);
        let mut entries = std::mem::take(&mut bucket.entries);
        self.occupied &= !(1 << index);
        for entry in entries.drain(..) {
            self.put(entry);
        }
        self.buckets[index].entries = entries; // its memory
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dice::Dice;
    use crate::host::HostId;

    fn event(number: usize) -> Event {
        Event::PortFree { host: HostId::MAIN, port: 0, destination: number as u32 }
    }

    fn number(event: Event) -> usize {
        let Event::PortFree { destination, .. } = event else { unreachable!("none else") };
        destination as usize
    }

    /// Not kept either, so that a simulation that waits for nothing else is seen to be stuck.
    #[test]
    fn never_does_not_come() {
        let mut queue = Queue::new();
        queue.push(TIME_MAX, event(1));
        queue.push(Time::MAX, event(2));
        assert_eq!(queue.next_at(), None);
        queue.push(TIME_MAX - 1, event(3));
        assert_eq!(queue.pop_due(TIME_MAX).map(number), Some(3));
        assert!(queue.pop_due(Time::MAX).is_none());
    }

    /// As a sorted map of time and number has it.
    #[test]
    fn events_come_by_time_and_then_in_order() {
        let (seeds, events) = if cfg!(miri) { (2, 200) } else { (50, 2_000) };
        for seed in 0..seeds {
            let (mut dice, mut queue) = (Dice::new(seed), Queue::new());
            let (mut model, mut now) = (BTreeMap::new(), 0);
            for planned in 0..events {
                let span = 1 << dice.below(40);
                let at = now + dice.below(span);
                queue.push(at, event(planned));
                model.insert((at, planned), ());
                if planned % (events / 4) == 0 {
                    queue.retain(|event| !number(*event).is_multiple_of(7));
                    model.retain(|(_, planned), ()| !planned.is_multiple_of(7));
                }
                if dice.one_in(3) {
                    now = (now + dice.below(1 << 20)).max(queue.next_at().unwrap_or(now));
                    while let Some(event) = queue.pop_due(now) {
                        let ((at, expected), ()) = model.pop_first().expect("as many");
                        assert!(at <= now);
                        assert_eq!(number(event), expected);
                    }
                }
                assert_eq!(queue.next_at(), model.keys().next().map(|(at, _)| *at));
            }
        }
    }
}

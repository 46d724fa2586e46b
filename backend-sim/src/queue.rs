//! [`Queue`]: scheduled events, ordered by time, and at equal times by the order of scheduling.
//!
//! This is a radix heap (Ahuja, Mehlhorn, Orlin, Tarjan 1990). The clock of a simulation never goes back, so
//! the bucket of an entry is the highest bit in which its time differs from the time taken last. When the
//! first bucket is due, its entries are spread over the buckets below it. Each move appends to an array, in
//! order. So a million timers cost no more cache misses than a thousand, and entries of the same time keep
//! their order without a sequence number.

use crate::core::{Event, Time};

/// One bucket for each bit in which two times may differ, and one for equal times.
const BUCKETS: usize = 64;

/// The initial capacity of each bucket, in entries: a small simulation never allocates again.
const WARM_ENTRIES: usize = 64;

/// The time that never comes, after 292 years: the highest bit has no bucket.
pub(crate) const TIME_MAX: Time = Time::MAX >> 1;

pub(crate) struct Queue {
    buckets: Vec<Bucket>,
    /// One bit for each bucket, set if it is not empty.
    occupied: u64,
    /// The time of the event taken last. Invariant: no entry is earlier.
    last: Time,
    /// How many entries of the first bucket were taken.
    taken: usize,
}

struct Bucket {
    entries: Vec<Entry>,
    /// The earliest time among the entries.
    first: Time,
}

#[derive(Clone, Copy)]
struct Entry {
    at: Time,
    event: Event,
}

// A million timers take three words each.
const _: () = assert!(size_of::<Entry>() == 24);

impl Queue {
    pub(crate) fn new() -> Self {
        let bucket = || Bucket { entries: Vec::with_capacity(WARM_ENTRIES), first: Time::MAX };
        let buckets = (0..BUCKETS).map(|_| bucket()).collect();
        Self { buckets, occupied: 0, last: 0, taken: 0 }
    }

    /// Schedules `event`. `at` must not be before the event taken last. An event at [`TIME_MAX`] or later
    /// never happens.
    pub(crate) fn push(&mut self, at: Time, event: Event) {
        if at < TIME_MAX {
            self.put(Entry { at, event });
        }
    }

    /// The time of the next event.
    pub(crate) fn next_at(&self) -> Option<Time> {
        if self.occupied & 1 != 0 {
            return Some(self.last);
        }
        self.buckets.get(self.occupied.trailing_zeros() as usize).map(|bucket| bucket.first)
    }

    /// The next event, if its time is not after `now`.
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

    /// Drops the events for which `keep` returns false.
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

    /// If an entry of the first nonempty bucket is due, moves the entries of that bucket to the buckets below
    /// it. The earliest entries move to the first bucket.
    fn spread_first(&mut self, now: Time) -> Option<()> {
        let index = self.occupied.trailing_zeros() as usize;
        let bucket = self.buckets.get_mut(index).filter(|bucket| bucket.first <= now)?;
        self.last = std::mem::replace(&mut bucket.first, Time::MAX);
        let mut entries = std::mem::take(&mut bucket.entries);
        self.occupied &= !(1 << index);
        for entry in entries.drain(..) {
            self.put(entry);
        }
        self.buckets[index].entries = entries; // keep the allocation
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::HostId;
    use crate::rng::Rng;

    fn event(number: usize) -> Event {
        Event::PortFree { host: HostId::MAIN, port: 0, destination: number as u32 }
    }

    fn number(event: Event) -> usize {
        let Event::PortFree { destination, .. } = event else { unreachable!("none else") };
        destination as usize
    }

    /// Such an event is not kept, so a simulation that waits for nothing else is seen to be deadlocked.
    #[test]
    fn an_event_at_time_max_never_comes() {
        let mut queue = Queue::new();
        queue.push(TIME_MAX, event(1));
        queue.push(Time::MAX, event(2));
        assert_eq!(queue.next_at(), None);
        queue.push(TIME_MAX - 1, event(3));
        assert_eq!(queue.pop_due(TIME_MAX).map(number), Some(3));
        assert!(queue.pop_due(Time::MAX).is_none());
    }

    /// The model is a map sorted by time and sequence number.
    #[test]
    fn events_come_by_time_and_then_in_order() {
        let (seeds, events) = if cfg!(miri) { (2, 200) } else { (50, 2_000) };
        for seed in 0..seeds {
            let (mut rng, mut queue) = (Rng::new(seed), Queue::new());
            let (mut model, mut now) = (BTreeMap::new(), 0);
            for planned in 0..events {
                let span = 1 << rng.below(40);
                let at = now + rng.below(span);
                queue.push(at, event(planned));
                model.insert((at, planned), ());
                if planned % (events / 4) == 0 {
                    queue.retain(|event| !number(*event).is_multiple_of(7));
                    model.retain(|(_, planned), ()| !planned.is_multiple_of(7));
                }
                if rng.one_in(3) {
                    now = (now + rng.below(1 << 20)).max(queue.next_at().unwrap_or(now));
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

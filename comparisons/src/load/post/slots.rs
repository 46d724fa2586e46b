//! [`Slots`]: the places of connections, and when each may post.

use std::collections::VecDeque;

use super::Request;
use super::client::Client;

/// All places. A place has at most one connection, and at most one request in flight.
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Those that may post, the one that has been idle the longest first.
    free: VecDeque<usize>,
    /// How many are in flight or closing.
    busy: usize,
    /// Until when none was free.
    full_until: u64,
}

/// A place.
pub(super) struct Slot {
    pub(super) client: Option<Client>,
    pub(super) request: Request,
    pub(super) state: State,
    /// The scheduled moment of the request in flight.
    pub(super) intended: u64,
    /// When it began.
    began: u64,
    /// Before that, no other request begins.
    pub(super) rests_until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It may post. If it has a connection, that is idle.
    Free,
    InFlight,
    /// Answered. The server is to end the connection.
    Closing,
    /// It may not post yet.
    Resting,
}

impl Slots {
    pub(super) fn new(count: usize, request: &Request) -> Self {
        let slot = || Slot {
            client: None,
            request: request.clone(),
            state: State::Free,
            intended: 0,
            began: 0,
            rests_until: 0,
        };
        let slots = std::iter::repeat_with(slot).take(count).collect();
        Self { slots, free: (0..count).collect(), busy: 0, full_until: 0 }
    }

    pub(super) fn get(&mut self, index: usize) -> &mut Slot {
        &mut self.slots[index]
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// How many are in flight or closing.
    pub(super) const fn busy(&self) -> usize {
        self.busy
    }

    /// Whether none was free at this moment.
    pub(super) const fn was_full(&self, at: u64) -> bool {
        at < self.full_until
    }

    /// Takes a free one for a request.
    pub(super) fn begin(&mut self, intended: u64, now: u64) -> Option<usize> {
        let index = self.free.pop_front()?;
        let slot = &mut self.slots[index];
        (slot.state, slot.intended, slot.began) = (State::InFlight, intended, now);
        slot.rests_until = 0;
        self.busy += 1;
        Some(index)
    }

    /// Ends the request of one that is in flight or closing. It may post again once it has rested.
    pub(super) fn end(&mut self, index: usize, now: u64) {
        self.busy -= 1;
        let slot = &mut self.slots[index];
        if slot.rests_until > now {
            slot.state = State::Resting;
        } else {
            self.free(index, now);
        }
    }

    /// Lets those post again that have rested.
    pub(super) fn wake(&mut self, now: u64) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.state == State::Resting && slot.rests_until <= now {
                self.free(index, now);
            }
        }
    }

    fn free(&mut self, index: usize, now: u64) {
        self.slots[index].state = State::Free;
        if self.free.is_empty() {
            self.full_until = now;
        }
        self.free.push_back(index);
    }

    /// The next one from `index` on whose request began before `then` and has not ended.
    pub(super) fn next_late(&self, index: usize, then: u64) -> Option<(usize, State)> {
        let is_busy = |slot: &Slot| matches!(slot.state, State::InFlight | State::Closing);
        let mut rest = self.slots.iter().enumerate().skip(index);
        let late = rest.find(|(_, slot)| is_busy(slot) && slot.began < then);
        late.map(|(index, slot)| (index, slot.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        Slots::new(2, &Request { bytes: Vec::new(), body_at: 0 })
    }

    #[test]
    fn the_one_that_was_idle_the_longest_is_next() {
        let mut slots = slots();
        assert_eq!((slots.begin(5, 10), slots.begin(10, 10)), (Some(0), Some(1)));
        assert_eq!((slots.begin(10, 10), slots.busy()), (None, 2));
        slots.end(1, 20);
        assert!(slots.was_full(19) && !slots.was_full(20));
        slots.end(0, 21);
        assert!(slots.was_full(19) && !slots.was_full(20));
        assert_eq!((slots.begin(22, 22), slots.begin(22, 22)), (Some(1), Some(0)));
    }

    #[test]
    fn one_that_rests_posts_later() {
        let mut slots = slots();
        assert_eq!(slots.begin(0, 0), Some(0));
        slots.get(0).rests_until = 30;
        slots.end(0, 10);
        slots.wake(29);
        assert_eq!((slots.begin(29, 29), slots.begin(29, 29)), (Some(1), None));
        slots.wake(30);
        assert_eq!((slots.begin(30, 30), slots.busy()), (Some(0), 2));
    }

    #[test]
    fn late_ones_began_before_and_have_not_ended() {
        let mut slots = slots();
        assert_eq!(slots.next_late(0, u64::MAX), None);
        assert_eq!((slots.begin(0, 10), slots.begin(0, 20)), (Some(0), Some(1)));
        slots.get(1).state = State::Closing;
        assert_eq!(slots.next_late(0, 10), None);
        assert_eq!(slots.next_late(0, 11), Some((0, State::InFlight)));
        assert_eq!(slots.next_late(1, 20), None);
        assert_eq!(slots.next_late(1, 21), Some((1, State::Closing)));
        slots.end(0, 30);
        assert_eq!(slots.next_late(0, u64::MAX), Some((1, State::Closing)));
    }
}

//! [`Waiters`]: the accounts that wait for memory, in order of arrival.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

/// The wakers of an account: those of its two halves.
type Wakers = [Option<Waker>; 2];

/// The wakers of the accounts that wait, by ticket. A ticket is the position of an account in order of arrival.
///
/// A ticket without an entry was woken, and its account has not tried again yet. An entry without wakers is about to try
/// again, too. No waker is woken or dropped while the map is borrowed.
#[derive(Default)]
pub(super) struct Waiters {
    entries: RefCell<BTreeMap<u64, Wakers>>,
    next_ticket: Cell<u64>,
}

impl Waiters {
    pub(super) fn new_ticket(&self) -> u64 {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        ticket
    }

    /// Adds a waker of the account, in place of its oldest one. Returns whether the account had none.
    pub(super) fn register(&self, ticket: u64, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut entries = self.entries.borrow_mut();
        let is_first = !entries.contains_key(&ticket);
        let [newer, older] = entries.entry(ticket).or_default();
        let is_known = |known: &Option<Waker>| known.as_ref().is_some_and(|w| w.will_wake(&waker));
        let replaced = if is_known(newer) || is_known(older) {
            Some(waker)
        } else {
            std::mem::replace(older, newer.replace(waker))
        };
        drop(entries);
        drop(replaced);
        is_first
    }

    /// Removes one waker. Returns whether the account has another one.
    pub(super) fn cancel(&self, ticket: u64, waker: &Waker) -> bool {
        let mut entries = self.entries.borrow_mut();
        let Some(wakers) = entries.get_mut(&ticket) else { return false };
        let is_it = |known: &mut Waker| known.will_wake(waker);
        let removed = wakers.each_mut().map(|slot| slot.take_if(is_it));
        let is_another_left = wakers.iter().any(Option::is_some);
        drop(entries);
        drop(removed);
        is_another_left
    }

    /// Removes the account and wakes its wakers. Returns false if it was removed before.
    pub(super) fn wake(&self, ticket: u64) -> bool {
        let removed = self.entries.borrow_mut().remove(&ticket);
        removed.map(wake_all).is_some()
    }

    /// Wakes the first account from `ticket` on.
    pub(super) fn wake_from(&self, ticket: u64) {
        loop {
            let mut entries = self.entries.borrow_mut();
            let Some(next) = entries.range(ticket..).next().map(|(ticket, _)| *ticket) else {
                return;
            };
            let wakers = entries.remove(&next).unwrap_or_default();
            drop(entries);
            let is_any_woken = wakers.iter().any(Option::is_some);
            wake_all(wakers);
            if is_any_woken {
                return;
            }
        }
    }
}

fn wake_all(wakers: Wakers) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}

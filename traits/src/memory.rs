//! [`MemoryBudget`]: limits the memory that peers can make a worker hold.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{fmt, io};

mod evicted;
mod wait;
mod waiters;

pub use wait::{MemoryReleased, MemoryWait};
use waiters::Waiters;

/// Limits the memory that peers can make one worker hold, in bytes, and tracks which connections hold it.
///
/// Each connection has a [`MemoryAccount`], and reserves memory there before it uses it: for messages that it
/// assembles, output that the peer does not read, decompressors. Every account has an equal share that is
/// always available to it. Memory beyond the share comes from the common part, first come, first served.
///
/// When the common part is used up, reservations are refused, and the connection waits. It stops reading, so
/// its peer sees back-pressure. While any connection waits, two rules apply. No account may grow beyond its
/// fair part: seven eighths of the common part, divided by the number of accounts that hold some of it. The last
/// eighth is for newcomers. Accounts that hold much are [evicted](Self::evict_holders), idle ones first. Otherwise
/// they would block all others.
///
/// An account that needs no more than its fair part waits at most [`SMALL_WAIT_MAX`](Self::SMALL_WAIT_MAX), and as
/// long as evicted connections take to release their memory. All accounts that wait count for this fair part. The bound
/// is for one wait: an account that grows in several steps may wait for each. Exception: if many accounts that hold
/// nothing ask for more than their fair part, the first may get more, and the others wait longer.
///
/// An account that needs more than its fair part waits even if there is room for it. The wait ends once another
/// account releases memory or stops waiting, or the largest is evicted. Reason: a waiting account does not count
/// as idle. If it could take the room, a few accounts could hold all memory and never be evicted.
///
/// A clone is another handle to the same budget.
///
/// ```
/// use owned_io::MemoryBudget;
///
/// // 1 MiB, half of it in shares for 8 connections.
/// let budget = MemoryBudget::new(1 << 20).with_shares(8, 512 << 10);
/// let (first, second) = (budget.account(), budget.account());
/// let mut large = first.reservation();
/// large.resize((64 + 512) << 10)?; // its share and the whole common part
/// let mut small = second.reservation();
/// assert!(small.resize(65 << 10).is_err());
/// small.resize(64 << 10)?; // its share is always available
/// drop(large);
/// small.resize(65 << 10)?;
/// # Ok::<(), owned_io::MemoryExhausted>(())
/// ```
#[derive(Clone)]
pub struct MemoryBudget {
    shared: Rc<Shared>,
}

/// The memory that one connection holds of a [`MemoryBudget`]. A clone is another handle to the same account.
#[derive(Clone)]
pub struct MemoryAccount {
    state: Rc<Account>,
}

/// Bytes that are reserved in an account. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    account: MemoryAccount,
    bytes: usize,
}

const TOO_MUCH: &str = "reserved more than `usize::MAX` bytes";

/// [`MemoryBudget::HOLDER_IDLE_MAX`] in rounds.
const IDLE_ROUNDS: u32 =
    (MemoryBudget::HOLDER_IDLE_MAX.as_millis() / MemoryBudget::ROUND.as_millis()) as u32;

struct Shared {
    bytes_max: usize,
    /// The share of each account.
    share_bytes: usize,
    /// How many further accounts can have a share.
    shares_left: Cell<usize>,
    /// The size of the common part: all bytes that are not in shares.
    common_bytes: usize,
    /// The reserved bytes of the common part. Forced reservations can exceed its size.
    common_held: Cell<usize>,
    /// The accounts that hold more than their share. Bounded by the number of accounts.
    holders: RefCell<Vec<Rc<Account>>>,
    /// The accounts to wake when memory is released. Bounded by the number of accounts.
    waiters: Waiters,
    /// The number of waiting accounts: a reservation was refused, and none was granted since.
    waiting_count: Cell<usize>,
    /// The number of evicted accounts that still exist.
    evicted_count: Cell<usize>,
    /// The number of the current round of [`MemoryBudget::evict_holders`].
    round: Cell<u32>,
    round_began: Cell<Option<Instant>>,
    /// The number of consecutive rounds before the current one.
    rounds_in_a_row: Cell<u32>,
}

struct Account {
    budget: Rc<Shared>,
    share_bytes: usize,
    held: Cell<usize>,
    /// Its index in `holders`, if it holds more than its share.
    holder_at: Cell<usize>,
    /// The round in which its reservations changed last.
    changed_round: Cell<u32>,
    is_evicted: Cell<bool>,
    /// Its ticket in `waiters`, while it waits.
    ticket: Cell<Option<u64>>,
    /// What it may hold without a check against the budget: its share. Zero while it waits, so that no change is
    /// missed.
    unchecked_bytes: Cell<usize>,
    /// The waker of the connection. It is woken when the account is evicted.
    waker: Cell<Option<Waker>>,
}

impl MemoryBudget {
    /// How long a reservation may stay unchanged while others wait, before its account counts as idle. It
    /// is enough for a round trip across the world and a retransmission.
    pub const HOLDER_IDLE_MAX: Duration = Duration::from_secs(1);

    /// The interval at which a waiting connection calls [`evict_holders`](Self::evict_holders).
    pub const ROUND: Duration = Duration::from_millis(500);

    /// The longest wait of an account that needs no more than its fair part, if each round is called on time. A wait
    /// may begin in the middle of a round.
    pub const SMALL_WAIT_MAX: Duration =
        Self::HOLDER_IDLE_MAX.saturating_add(Self::ROUND).saturating_add(Self::ROUND);

    /// A budget of `bytes_max` bytes without shares.
    pub fn new(bytes_max: usize) -> Self {
        Self::build(bytes_max, 0, 0)
    }

    /// The same budget, with `share_bytes_sum` bytes of it divided into `accounts_max` equal shares. Each
    /// account takes a share while it exists. Once all shares are taken, further accounts have none.
    ///
    /// # Panics
    /// If the shares exceed the budget, or the budget is in use.
    #[must_use]
    pub fn with_shares(self, accounts_max: usize, share_bytes_sum: usize) -> Self {
        assert_eq!(Rc::strong_count(&self.shared), 1, "the budget is in use");
        assert!(share_bytes_sum <= self.shared.bytes_max, "the shares exceed the budget");
        Self::build(self.shared.bytes_max, accounts_max, share_bytes_sum / accounts_max.max(1))
    }

    fn build(bytes_max: usize, accounts_max: usize, share_bytes: usize) -> Self {
        let common_bytes = bytes_max - accounts_max * share_bytes;
        Self {
            shared: Rc::new(Shared {
                bytes_max,
                share_bytes,
                shares_left: Cell::new(accounts_max),
                common_bytes,
                common_held: Cell::new(0),
                holders: RefCell::default(),
                waiters: Waiters::default(),
                waiting_count: Cell::new(0),
                evicted_count: Cell::new(0),
                round: Cell::new(0),
                round_began: Cell::new(None),
                rounds_in_a_row: Cell::new(0),
            }),
        }
    }

    /// An account for a connection.
    pub fn account(&self) -> MemoryAccount {
        let Shared { share_bytes, shares_left, .. } = &*self.shared;
        let has_share = shares_left.get() > 0;
        if has_share {
            shares_left.set(shares_left.get() - 1);
        }
        self.account_with(if has_share { *share_bytes } else { 0 })
    }

    /// An account without a share, for what several connections use together. All that it holds is of the common
    /// part, and no connection loses its share to it.
    pub fn common_account(&self) -> MemoryAccount {
        self.account_with(0)
    }

    fn account_with(&self, share_bytes: usize) -> MemoryAccount {
        MemoryAccount {
            state: Rc::new(Account {
                budget: Rc::clone(&self.shared),
                share_bytes,
                held: Cell::new(0),
                holder_at: Cell::new(usize::MAX),
                changed_round: Cell::new(0),
                is_evicted: Cell::new(false),
                ticket: Cell::new(None),
                unchecked_bytes: Cell::new(share_bytes),
                waker: Cell::default(),
            }),
        }
    }

    /// The size of the budget, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.shared.bytes_max
    }

    /// The share of each account, in bytes.
    pub fn share_bytes(&self) -> usize {
        self.shared.share_bytes
    }

    /// The size of the common part, in bytes: what is not divided into shares.
    pub fn common_bytes_max(&self) -> usize {
        self.shared.common_bytes
    }

    /// The reserved bytes of the common part.
    pub fn common_bytes_held(&self) -> usize {
        self.shared.common_held.get()
    }

    /// Whether any of its accounts is [evicted](MemoryAccount::is_evicted). While none is, which is usual, a connection
    /// need not look at its own, whose memory is rarely in the CPU cache.
    #[inline]
    pub fn has_evicted(&self) -> bool {
        self.shared.evicted_count.get() > 0
    }

    /// Evicts accounts that hold more than their share. A connection calls it when it starts to wait for
    /// memory, and again after each [`ROUND`](Self::ROUND).
    ///
    /// Accounts are idle if their reservations have not changed for [`HOLDER_IDLE_MAX`](Self::HOLDER_IDLE_MAX) and they
    /// do not wait. Idle accounts are evicted first, the largest first, until a quarter of the common part will be
    /// released. Once the wait has lasted longer than that, the largest others follow, until a 32nd will be released.
    ///
    /// Both go on until each account that waits can have its fair part, and the eighth for newcomers is free.
    pub fn evict_holders(&self, now: Instant) {
        let Shared { round, round_began, holders, common_bytes, waiting_count, .. } = &*self.shared;
        // Several connections may wait. They do not shorten the round.
        let began = round_began.get();
        if began.is_some_and(|began| now < began + Self::ROUND) {
            return;
        }
        let rounds = match began {
            Some(began) if now < began + 2 * Self::ROUND => self.shared.rounds_in_a_row.get() + 1,
            _ => 0,
        };
        self.shared.rounds_in_a_row.set(rounds);
        round_began.set(Some(now));
        round.set(round.get().wrapping_add(1));
        let mut holding = holders.borrow().clone();
        holding.retain(|account| !account.is_evicted.get());
        // A waiting account does not change its reservations either, but it is not idle.
        let is_idle = |account: &Rc<Account>| {
            let rounds = round.get().wrapping_sub(account.changed_round.get());
            rounds > IDLE_ROUNDS && account.ticket.get().is_none()
        };
        holding.sort_by_cached_key(|account| (!is_idle(account), usize::MAX - account.excess()));
        let is_waiting = |account: &&Rc<Account>| account.ticket.get().is_some();
        let waiting_holders = holding.iter().filter(is_waiting).count();
        let newcomers = waiting_count.get().saturating_sub(waiting_holders);
        let fair_bytes = self.shared.fair_bytes(holding.len() + newcomers);
        let up_to_fair = |account: &Rc<Account>| fair_bytes.saturating_sub(account.excess());
        // So that each account that waits can have its fair part, and the spare part is free.
        let wanted = newcomers * fair_bytes
            + holding.iter().filter(is_waiting).map(up_to_fair).sum::<usize>()
            + self.shared.spare_bytes();
        let held = holding.iter().map(|account| account.excess()).sum::<usize>();
        let room = common_bytes.saturating_sub(held);
        let mut freed = 0;
        for account in holding {
            let is_idle = is_idle(&account);
            if !is_idle && rounds <= IDLE_ROUNDS {
                return; // too early to know which accounts are idle
            }
            let freed_min = common_bytes / if is_idle { 4 } else { 32 };
            if freed >= freed_min && room + freed >= wanted {
                return;
            }
            freed += account.excess();
            account.evict();
        }
    }
}

impl MemoryAccount {
    /// An empty reservation in this account.
    pub fn reservation(&self) -> Reservation {
        Reservation { account: self.clone(), bytes: 0 }
    }

    /// The budget it is in.
    pub fn budget(&self) -> MemoryBudget {
        MemoryBudget { shared: Rc::clone(&self.state.budget) }
    }

    /// The most that it can hold, in bytes: its share and the whole common part.
    pub fn bytes_max(&self) -> usize {
        self.state.share_bytes + self.state.budget.common_bytes
    }

    /// The reserved bytes.
    pub fn held_bytes(&self) -> usize {
        self.state.held.get()
    }

    /// The unreserved bytes of its share.
    pub fn share_bytes_left(&self) -> usize {
        self.state.share_bytes.saturating_sub(self.state.held.get())
    }

    /// Whether the account is evicted. If so, its connection must release its memory and end, because others
    /// wait for the memory.
    #[inline]
    pub fn is_evicted(&self) -> bool {
        self.state.is_evicted.get()
    }

    /// Registers `waker`, which is woken when the account is evicted. Replaces the previous one.
    pub fn wake_when_evicted(&self, waker: Waker) {
        self.state.waker.replace(Some(waker));
    }

    /// Registers `waker`, which is woken once, when memory is released. Then retry the refused reservation, and
    /// register again if it is refused. An account keeps its last two wakers, for a half that reads and one that writes.
    ///
    /// The account waits from then on, until one of its reservations grows or it is dropped. A release wakes one
    /// waiting account, in order of arrival. Each account that is granted memory, is refused again, or stops waiting
    /// wakes the next, as long as memory is left. So the work of a release does not grow with the number of accounts.
    pub fn wake_when_released(&self, waker: &Waker) {
        self.state.wait(waker);
    }

    /// Removes a waker that was registered by [`wake_when_released`](Self::wake_when_released). Returns whether the
    /// account has another one.
    fn cancel_wake(&self, waker: &Waker) -> bool {
        let ticket = self.state.ticket.get();
        ticket.is_some_and(|ticket| self.state.budget.waiters.cancel(ticket, waker))
    }
}

impl Reservation {
    /// The number of reserved bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The account it is in.
    pub const fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Changes the reservation to `bytes` bytes. A reduction always succeeds.
    ///
    /// # Errors
    /// [`MemoryExhausted`]. The reservation is unchanged.
    #[inline]
    pub fn resize(&mut self, bytes: usize) -> Result<(), MemoryExhausted> {
        let account = &self.account.state;
        let others = account.held.get() - self.bytes;
        let held = others.checked_add(bytes).ok_or_else(|| account.budget.exhausted())?;
        if held.max(account.held.get()) > account.unchecked_bytes.get() {
            account.change(held, false)?;
        }
        account.held.set(held);
        self.bytes = bytes;
        Ok(())
    }

    /// Changes the reservation to `bytes` bytes, even beyond the budget. It is for memory that is already
    /// held. Other connections then wait longer.
    ///
    /// # Panics
    /// If more than `usize::MAX` bytes would be reserved. That much memory cannot be held.
    #[inline]
    pub fn force(&mut self, bytes: usize) {
        let account = &self.account.state;
        let others = account.held.get() - self.bytes;
        let held = others.checked_add(bytes).expect(TOO_MUCH);
        if held.max(account.held.get()) > account.unchecked_bytes.get() {
            let _ = account.change(held, true);
        }
        account.held.set(held);
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.force(0);
    }
}

impl Shared {
    /// The part of the common part that stays free for newcomers while accounts wait.
    const fn spare_bytes(&self) -> usize {
        self.common_bytes / 8
    }

    const fn exhausted(&self) -> MemoryExhausted {
        MemoryExhausted { bytes_max: self.bytes_max }
    }

    /// The fair part of each of this many accounts.
    fn fair_bytes(&self, accounts: usize) -> usize {
        (self.common_bytes - self.spare_bytes()) / accounts.max(1)
    }

    fn has_room(&self) -> bool {
        self.common_held.get() < self.common_bytes
    }
}

impl Account {
    /// The bytes that it holds of the common part.
    fn excess(&self) -> usize {
        self.held.get().saturating_sub(self.share_bytes)
    }

    /// Adjusts what the account holds of the common part, for a new total of `held` bytes, and wakes those whom that
    /// helps.
    #[cold]
    fn change(self: &Rc<Self>, held: usize, is_forced: bool) -> Result<(), MemoryExhausted> {
        let Shared { common_bytes, common_held, waiters, round, .. } = &*self.budget;
        let (before, after) = (self.excess(), held.saturating_sub(self.share_bytes));
        let all_held = (common_held.get() - before).checked_add(after);
        let is_refused =
            all_held.is_none_or(|held| held > *common_bytes) || after > self.fair_bytes();
        if after > before && !is_forced && is_refused {
            return Err(self.budget.exhausted());
        }
        let held_before = self.held.get();
        common_held.set(all_held.expect(TOO_MUCH));
        self.changed_round.set(round.get());
        match (before, after) {
            (0, 1..) => self.add_to_holders(),
            (1.., 0) => self.remove_from_holders(),
            _ => {}
        }
        if held > held_before && !is_forced {
            self.stop_waiting();
        } else if held < held_before
            && let Some(ticket) = self.ticket.get()
        {
            waiters.wake(ticket); // the share may have room now
        }
        if after < before {
            waiters.wake_from(0);
        }
        Ok(())
    }

    /// The limit up to which the account may grow in the common part.
    fn fair_bytes(&self) -> usize {
        let Shared { common_bytes, holders, waiting_count, .. } = &*self.budget;
        if waiting_count.get() == usize::from(self.ticket.get().is_some()) {
            return *common_bytes; // no other account waits
        }
        let others = holders.borrow().len() - usize::from(self.excess() > 0);
        self.budget.fair_bytes(others + 1)
    }

    /// Starts or continues to wait. To continue means that the reservation was refused again.
    fn wait(&self, waker: &Waker) {
        let Shared { waiters, waiting_count, .. } = &*self.budget;
        let before = self.ticket.get();
        let ticket = before.unwrap_or_else(|| waiters.new_ticket());
        if before.is_none() {
            self.ticket.set(Some(ticket));
            self.unchecked_bytes.set(0);
            waiting_count.set(waiting_count.get() + 1);
        }
        let was_woken = waiters.register(ticket, waker) && before.is_some();
        if was_woken && self.budget.has_room() {
            waiters.wake_from(ticket + 1);
        }
    }

    fn stop_waiting(&self) {
        let Shared { waiters, waiting_count, .. } = &*self.budget;
        let Some(ticket) = self.ticket.take() else { return };
        self.unchecked_bytes.set(self.share_bytes);
        waiting_count.set(waiting_count.get() - 1);
        // Another half of the connection may wait as well. It tries again.
        let was_woken = !waiters.wake(ticket);
        if !self.budget.has_room() {
            return;
        }
        if waiting_count.get() == 1 {
            waiters.wake_from(0); // the only one that still waits may take all
        } else if was_woken {
            waiters.wake_from(ticket + 1);
        }
    }

    fn add_to_holders(self: &Rc<Self>) {
        let mut holders = self.budget.holders.borrow_mut();
        self.holder_at.set(holders.len());
        holders.push(Rc::clone(self));
    }

    fn remove_from_holders(&self) {
        let mut holders = self.budget.holders.borrow_mut();
        let removed = holders.swap_remove(self.holder_at.get());
        if let Some(moved) = holders.get(self.holder_at.get()) {
            moved.holder_at.set(self.holder_at.get());
        }
        drop(holders);
        drop(removed);
    }

    fn evict(&self) {
        if !self.is_evicted.replace(true) {
            self.budget.evicted_count.set(self.budget.evicted_count.get() + 1);
        }
        let waker = self.waker.take();
        waker.as_ref().map(Waker::wake_by_ref);
        self.waker.set(waker);
    }
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBudget")
            .field("bytes_max", &self.shared.bytes_max)
            .field("share_bytes", &self.shared.share_bytes)
            .field("common_bytes_held", &self.shared.common_held)
            .field("holders", &self.shared.holders.borrow().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAccount").field("held", &self.state.held).finish_non_exhaustive()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.stop_waiting();
        if self.is_evicted.get() {
            self.budget.evicted_count.set(self.budget.evicted_count.get() - 1);
        }
        if self.share_bytes > 0 {
            self.budget.shares_left.set(self.budget.shares_left.get() + 1);
        }
    }
}

/// The worker's memory budget is used up, and so is the connection's share. Retry when
/// [memory is released](MemoryAccount::wake_when_released).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryExhausted {
    bytes_max: usize,
}

impl MemoryExhausted {
    /// The budget, in bytes.
    pub const fn bytes_max(self) -> usize {
        self.bytes_max
    }
}

impl fmt::Display for MemoryExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker's memory budget of {} bytes is used up", self.bytes_max)
    }
}

impl Error for MemoryExhausted {}

impl From<MemoryExhausted> for io::Error {
    fn from(error: MemoryExhausted) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, error)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    const KIB: usize = 1024;

    fn holding(account: &MemoryAccount, bytes: usize) -> Reservation {
        let mut reservation = account.reservation();
        reservation.resize(bytes).unwrap();
        reservation
    }

    #[test]
    fn shares_are_always_available_and_the_rest_is_first_come_first_served() {
        let budget = MemoryBudget::new(100 * KIB).with_shares(4, 40 * KIB);
        let accounts: Vec<_> = (0..5).map(|_| budget.account()).collect();
        let all_common = holding(&accounts[0], 70 * KIB);
        assert_eq!(budget.common_bytes_held(), 60 * KIB);
        let shares: Vec<_> = accounts[1..4].iter().map(|one| holding(one, 10 * KIB)).collect();
        assert!(accounts[1].reservation().resize(1).is_err());
        assert!(accounts[4].reservation().resize(1).is_err(), "all four shares are taken");
        drop(all_common);
        let mut late = holding(&accounts[4], 60 * KIB);
        assert!(late.resize(60 * KIB + 1).is_err());
        assert_eq!(late.bytes(), 60 * KIB, "a refusal changes nothing");
        drop((shares, late, accounts));
        assert_eq!(budget.common_bytes_held(), 0);
        assert_eq!(
            holding(&budget.account(), 70 * KIB).bytes(),
            70 * KIB,
            "a dropped account returns its share"
        );
    }

    #[test]
    fn a_common_account_takes_no_share() {
        let budget = MemoryBudget::new(100 * KIB).with_shares(1, 40 * KIB);
        let common = budget.common_account();
        let held = holding(&common, 60 * KIB);
        assert!(common.reservation().resize(1).is_err());
        let connection = budget.account();
        let _share = holding(&connection, 40 * KIB);
        drop((held, common));
        assert_eq!(budget.common_bytes_held(), 0);
        assert!(
            budget.account().reservation().resize(60 * KIB + 1).is_err(),
            "a share is returned"
        );
    }

    #[test]
    fn forced_bytes_count_until_they_are_released() {
        let budget = MemoryBudget::new(10);
        let mut forced = budget.account().reservation();
        forced.force(15);
        assert!(budget.account().reservation().resize(1).is_err());
        forced.resize(9).unwrap();
        let _last = holding(&budget.account(), 1);
        assert!(budget.account().reservation().resize(1).is_err());
    }

    #[test]
    fn more_than_can_be_counted_is_refused() {
        for (budget, share) in [(100 * KIB, 10 * KIB), (usize::MAX, 10 * KIB), (usize::MAX, 0)] {
            let budget = MemoryBudget::new(budget).with_shares(1, share);
            let (account, other) = (budget.account(), budget.account());
            let (mut held, _other) = (holding(&account, 20 * KIB), holding(&other, KIB));
            for mut reservation in [account.reservation(), other.reservation()] {
                assert!(reservation.resize(usize::MAX).is_err());
                assert!(reservation.resize(usize::MAX - KIB / 2).is_err());
            }
            assert!(held.resize(usize::MAX).is_err());
            assert_eq!(budget.common_bytes_held(), 21 * KIB - share, "a refusal changes nothing");
            drop(held);
            assert_eq!(budget.common_bytes_held(), KIB);
        }
    }

    #[test]
    fn evicts_idle_holders_largest_first_or_else_the_largest() {
        const ROUND: Duration = MemoryBudget::ROUND;
        let now = Instant::now();
        let budget = MemoryBudget::new(80 * KIB);
        let (small, large, busy) = (budget.account(), budget.account(), budget.account());
        let _small = holding(&small, 10 * KIB);
        let _large = holding(&large, 20 * KIB);
        let mut busy_holds = holding(&busy, 40 * KIB);
        let mut evicted = |round: u32| {
            busy_holds.resize(40 * KIB + round as usize).unwrap();
            budget.evict_holders(now + ROUND * round);
            budget.evict_holders(now + ROUND * round + ROUND / 4); // within the same round
            [&small, &large, &busy].map(MemoryAccount::is_evicted)
        };
        assert_eq!([1, 2].map(&mut evicted), [[false; 3]; 2], "no account has been idle for long");
        assert_eq!(evicted(3), [false, true, false]);
        assert_eq!(evicted(4), [true, true, false]);
        assert_eq!(evicted(5), [true; 3], "no account is idle any more, so the largest");
    }

    #[test]
    fn one_round_evicts_enough_for_all_that_wait() {
        const ROUND: Duration = MemoryBudget::ROUND;
        let now = Instant::now();
        let budget = MemoryBudget::new(80 * KIB);
        let accounts: Vec<_> = (0..10).map(|_| budget.account()).collect();
        let mut large: Vec<_> = accounts[..4].iter().map(|one| holding(one, 20 * KIB)).collect();
        let waiting = &accounts[4..];
        waiting.iter().for_each(|one| one.wake_when_released(Waker::noop()));
        (0..4).for_each(|round| budget.evict_holders(now + ROUND * round));
        large.retain(|held| !held.account().is_evicted());
        let _granted: Vec<_> = waiting.iter().map(|one| holding(one, 7 * KIB)).collect();
    }

    #[test]
    fn an_idle_holder_of_little_does_not_shield_others() {
        let now = Instant::now();
        let budget = MemoryBudget::new(80 * KIB);
        let (tiny, large) = (budget.account(), budget.account());
        let _tiny = holding(&tiny, 1);
        let mut busy = holding(&large, 70 * KIB);
        for round in 0..4 {
            busy.resize(70 * KIB + round as usize).unwrap();
            budget.evict_holders(now + MemoryBudget::ROUND * round);
        }
        assert!(tiny.is_evicted() && large.is_evicted());
    }

    #[test]
    fn a_budget_knows_whether_an_account_is_evicted() {
        let now = Instant::now();
        let budget = MemoryBudget::new(80 * KIB);
        let accounts = [budget.account(), budget.account()];
        let held = accounts.each_ref().map(|account| holding(account, 40 * KIB));
        assert!(!budget.has_evicted());
        (0..8).for_each(|round| budget.evict_holders(now + MemoryBudget::ROUND * round));
        assert!(accounts.iter().all(MemoryAccount::is_evicted));
        let [first, second] = accounts;
        let [first_holds, second_holds] = held;
        drop((first, first_holds));
        assert!(budget.has_evicted(), "the other one still exists");
        drop((second, second_holds));
        assert!(!budget.has_evicted());
    }

    #[test]
    fn no_account_exceeds_its_fair_part_while_another_waits() {
        let budget = MemoryBudget::new(90 * KIB);
        let (holder, other, newcomer) = (budget.account(), budget.account(), budget.account());
        let mut held = holding(&holder, 50 * KIB);
        let mut others = holding(&other, 40 * KIB);
        assert!(newcomer.reservation().resize(20 * KIB).is_err());
        newcomer.wake_when_released(Waker::noop());
        held.resize(40 * KIB).unwrap();
        assert!(others.resize(46 * KIB).is_err(), "the rest is for accounts that hold less");
        others.resize(30 * KIB).unwrap();
        let _granted = holding(&newcomer, 20 * KIB);
        held.resize(40 * KIB).unwrap(); // no account waits any more
        drop(newcomer);
    }

    #[test]
    fn a_lone_waiter_may_take_all_that_is_released() {
        let budget = MemoryBudget::new(90 * KIB);
        let accounts: Vec<_> = (0..10).map(|_| budget.account()).collect();
        let _small: Vec<_> = accounts[..8].iter().map(|one| holding(one, KIB)).collect();
        let large = holding(&accounts[8], 82 * KIB);
        let mut newcomer = accounts[9].reservation();
        assert!(newcomer.resize(20 * KIB).is_err());
        accounts[9].wake_when_released(Waker::noop());
        drop(large);
        newcomer.resize(20 * KIB).unwrap();
    }

    /// Room that neither may have is there for a third, and the larger one makes way for the other.
    #[test]
    fn accounts_that_wait_for_more_than_their_part_leave_room_to_others() {
        let budget = MemoryBudget::new(90 * KIB);
        let (large, small, newcomer) = (budget.account(), budget.account(), budget.account());
        let mut large_holds = holding(&large, 40 * KIB);
        let mut small_holds = holding(&small, 20 * KIB);
        let filler = holding(&newcomer, 30 * KIB);
        let refused = |reservation: &mut Reservation| {
            let is_refused = reservation.resize(60 * KIB).is_err();
            reservation.account().wake_when_released(Waker::noop());
            is_refused
        };
        assert!(refused(&mut large_holds) && refused(&mut small_holds));
        drop(filler);
        assert!(refused(&mut large_holds), "30 KiB would do, but its part is 39 KiB");
        drop(holding(&newcomer, 26 * KIB));
        let now = Instant::now();
        (0..4).for_each(|round| budget.evict_holders(now + MemoryBudget::ROUND * round));
        assert_eq!([&large, &small].map(MemoryAccount::is_evicted), [true, false]);
        drop((large_holds, large));
        assert!(!refused(&mut small_holds), "the last one that waits may take all");
    }

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An account that waits for `bytes` bytes.
    struct Waiting {
        reservation: Reservation,
        bytes: usize,
        count: Arc<Count>,
    }

    impl Waiting {
        fn new(budget: &MemoryBudget, bytes: usize) -> Self {
            let mut it =
                Self { reservation: budget.account().reservation(), bytes, count: Arc::default() };
            assert!(!it.is_granted());
            it
        }

        fn wakes(&self) -> u32 {
            self.count.0.load(Ordering::Relaxed)
        }

        fn is_granted(&mut self) -> bool {
            let is_granted = self.reservation.resize(self.bytes).is_ok();
            if !is_granted {
                let waker = Waker::from(Arc::clone(&self.count));
                self.reservation.account().wake_when_released(&waker);
            }
            is_granted
        }
    }

    #[test]
    fn each_waiter_wakes_the_next_in_order_of_arrival() {
        let budget = MemoryBudget::new(10);
        let account = budget.account();
        let mut held = holding(&account, 10);
        let [mut large, mut small, mut middle] = [8, 2, 4].map(|n| Waiting::new(&budget, n));
        let wakes = |all: [&Waiting; 3]| all.map(Waiting::wakes);
        held.resize(4).unwrap();
        assert_eq!(wakes([&large, &small, &middle]), [1, 0, 0], "a release wakes the first");
        assert!(!large.is_granted());
        assert_eq!(wakes([&large, &small, &middle]), [1, 1, 0], "a refusal wakes the next");
        assert!(small.is_granted());
        assert_eq!(wakes([&large, &small, &middle]), [1, 1, 1], "so does a grant");
        assert!(!middle.is_granted(), "its fair part is less while another waits");
        drop(held);
        assert_eq!(wakes([&large, &small, &middle]), [2, 1, 1]);
        assert!(!large.is_granted(), "its fair part is less, too");
        assert_eq!(wakes([&large, &small, &middle]), [2, 1, 2]);
        assert!(middle.is_granted());
        assert_eq!(wakes([&large, &small, &middle]), [3, 1, 2], "the last may take all");
        drop((small, middle));
        assert!(large.is_granted());
    }

    #[test]
    fn a_waiter_that_gives_up_wakes_the_next() {
        let budget = MemoryBudget::new(10);
        let held = holding(&budget.account(), 10);
        let [first, second, mut third] = [5; 3].map(|n| Waiting::new(&budget, n));
        drop(second); // not woken yet
        drop(held);
        assert_eq!((first.wakes(), third.wakes()), (1, 0));
        drop(first);
        assert_eq!(third.wakes(), 1);
        assert!(third.is_granted());
        assert_eq!(budget.shared.waiting_count.get(), 0);
    }

    #[test]
    fn an_account_waits_until_any_of_its_reservations_grows() {
        let budget = MemoryBudget::new(20 * KIB).with_shares(2, 10 * KIB);
        let (holder, account) = (budget.account(), budget.account());
        let _held = holding(&holder, 15 * KIB);
        let mut refused = account.reservation();
        assert!(refused.resize(6 * KIB).is_err());
        account.wake_when_released(Waker::noop());
        assert_eq!(budget.shared.waiting_count.get(), 1);
        refused.resize(5 * KIB).unwrap(); // fits its share
        assert_eq!(budget.shared.waiting_count.get(), 0);
    }

    #[test]
    fn waiting_and_evicted_accounts_are_woken() {
        let count = Arc::new(Count(AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let budget = MemoryBudget::new(10);
        let (first, second) = (budget.account(), budget.account());
        let mut holds = holding(&first, 10);
        second.wake_when_released(&waker);
        holds.resize(9).unwrap();
        holds.resize(8).unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "once");
        first.wake_when_evicted(waker);
        let now = Instant::now();
        (0..4).for_each(|round| budget.evict_holders(now + MemoryBudget::ROUND * round));
        assert!(first.is_evicted());
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }
}

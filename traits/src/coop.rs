//! Cooperative scheduling: limits the work of a task before other tasks and I/O run.
//!
//! Each poll of a task has a budget of work: [`POLL_BUDGET_NANOS`]. Reads and writes of every backend
//! [`consume`] it. So do the protocols above, for frames, decompressed bytes and records. Once the budget
//! is used up, the task's next read or write first lets the runtime run other tasks and do its I/O. So no
//! peer can monopolise a worker, however fast it sends and however cheap its bytes are.
//!
//! Work is counted, not timed: each kind has a fixed [`cost`]. Counting takes one subtraction, reading a
//! clock takes a call. Counts are also repeatable, which a simulation needs.
//!
//! A service that loops without reads or writes yields explicitly:
//!
//! ```
//! use owned_io::{Clock, coop};
//!
//! async fn checksum<C: Clock>(blocks: &[[u8; 4096]]) -> u64 {
//!     let mut sum = 0;
//!     for block in blocks {
//!         sum += block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
//!         coop::consume(1_000); // the time for a block, in nanoseconds
//!         coop::yield_if_exhausted::<C>().await;
//!     }
//!     sum
//! }
//! # use owned_io_sim::Sim;
//! # owned_io_sim::block_on(async { assert_eq!(checksum::<Sim>(&[[1; 4096]; 200]).await, 819_200) });
//! ```

pub mod cost;

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::{Clock, LONE_WRITE_BYTES_MAX, TRANSFER_BYTES_MAX};

/// The work that a task may do in one poll, in nanoseconds.
///
/// 50 µs: with fifty tasks that always have work, a new client waits 2.5 ms. A yield costs a twentieth of
/// the budget. The last piece of work may exceed the budget, usually by at most 50 µs: the time of the
/// largest [transfer](crate::TRANSFER_BYTES_MAX). While no other task has work, it may be 200 µs
/// ([`LONE_WRITE_BYTES_MAX`]).
pub const POLL_BUDGET_NANOS: u32 = 50_000;

/// The work that the first polls of [`spawn_eager`](crate::Executor::spawn_eager) may do within one poll of the task
/// that calls it, in nanoseconds. Once it is used up, new tasks wait for their turn.
///
/// 320 µs: about as long as it takes to accept a [batch](crate::ACCEPT_BATCH_MAX) of clients, so accepting and these
/// polls delay other tasks alike. It is 5 µs for each client of a batch, enough to read a short request and to answer it.
pub const EAGER_BUDGET_NANOS: u32 = 320_000;

/// The cost of an eager poll besides the work of the task. So tasks that do no work are bounded too.
const EAGER_POLL_NANOS: i64 = 1_000;

thread_local! {
    /// The rest of the budget of the current poll on this thread, in nanoseconds. Negative if the last piece
    /// of work exceeded it.
    static LEFT: Cell<i64> = const { Cell::new(POLL_BUDGET_NANOS as i64) };

    /// The rest of [`EAGER_BUDGET_NANOS`] in the current poll. Negative if the last eager poll exceeded it.
    static EAGER_LEFT: Cell<i64> = const { Cell::new(EAGER_BUDGET_NANOS as i64) };

    /// The task that was polled last on this thread, and whether it was the one before that, too.
    static LAST_TASK: Cell<u64> = const { Cell::new(NO_TASK) };
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };

    /// The polls of tasks on this thread, if somebody asked for them.
    static POLLS: OnceCell<Arc<AtomicU64>> = const { OnceCell::new() };
}

/// Subtracts `nanos` nanoseconds of work from the budget of the current poll.
#[inline]
pub fn consume(nanos: u64) {
    LEFT.set(LEFT.get().wrapping_sub_unsigned(nanos));
}

/// Subtracts the [cost](cost::transfer) of a read or write of `bytes` bytes.
///
/// Backends call it after each operation that did not have to wait.
#[inline]
pub fn consume_transfer(bytes: usize) {
    consume(cost::transfer(bytes));
}

/// Whether the current poll may do more work.
#[inline]
pub fn has_budget() -> bool {
    left_nanos() > 0
}

/// The rest of the budget, in nanoseconds. Negative if the last piece of work exceeded it.
#[inline]
pub(crate) fn left_nanos() -> i64 {
    LEFT.get()
}

/// Lets other tasks and I/O run if the budget is used up. Otherwise it is ready at once.
///
/// # Cancellation
/// Safe.
#[inline]
pub async fn yield_if_exhausted<C: Clock>() {
    if !has_budget() {
        C::sleep(Duration::ZERO).await;
    }
}

/// The most bytes that a write of this poll passes to the kernel. Backends ask it when they begin a write.
///
/// It is [`TRANSFER_BYTES_MAX`], and [`LONE_WRITE_BYTES_MAX`] if the task is alone: it was also polled last, so no other
/// task ran in between. A task that was not started by [`Executor::spawn`](crate::Executor::spawn) is taken for the one
/// that was polled before it.
#[inline]
pub fn write_bytes_max() -> usize {
    if IS_ALONE.get() { LONE_WRITE_BYTES_MAX } else { TRANSFER_BYTES_MAX }
}

/// Begins a poll of the task with this id, with a new budget. Ids are unique within a thread.
#[inline]
pub(crate) fn begin_poll(task: u64) {
    IS_ALONE.set(LAST_TASK.replace(task) == task);
    refill();
}

/// Polls the new task with this id by `poll`, within the poll of another task. The new task has a budget of its own, and
/// the budget of the other one stays as it is. Returns `None`, and does not poll, once [`EAGER_BUDGET_NANOS`] is used up
/// or within another eager poll: nested ones would have no bound.
pub(crate) fn poll_eagerly<T>(task: u64, poll: impl FnOnce() -> T) -> Option<T> {
    let (left, eager_left) = (LEFT.get(), EAGER_LEFT.get());
    if eager_left <= 0 {
        return None;
    }
    begin_poll(task);
    EAGER_LEFT.set(0);
    let output = poll();
    let work = (i64::from(POLL_BUDGET_NANOS) - LEFT.get()).max(0); // a yield adds to the budget
    EAGER_LEFT.set(eager_left - work - EAGER_POLL_NANOS);
    LEFT.set(left);
    forget_last_task(); // neither task is alone
    Some(output)
}

/// The id of a main future.
pub(crate) const MAIN_TASK: u64 = 0;

/// No task has this id.
const NO_TASK: u64 = u64::MAX;

/// Forgets which task was polled last: no task is [alone](write_bytes_max) until it was polled twice in a row again.
pub(crate) fn forget_last_task() {
    LAST_TASK.set(NO_TASK);
    IS_ALONE.set(false);
}

/// Starts a new budget.
///
/// [`Executor::spawn`](crate::Executor::spawn) calls it for each poll of its tasks, and
/// [`run_main`](crate::backend::run_main) for each poll of the main future. The budget belongs to the poll
/// of the whole task, so futures that share a task share its budget.
#[inline]
pub fn refill() {
    LEFT.set(POLL_BUDGET_NANOS.into());
    EAGER_LEFT.set(EAGER_BUDGET_NANOS.into());
    // A task may be dropped while the thread ends, when the counter is gone.
    let _ = POLLS.try_with(|polls| {
        if let Some(polls) = polls.get() {
            polls.store(polls.load(Relaxed).wrapping_add(1), Relaxed); // this thread alone writes
        }
    });
}

/// The number of polls of tasks on the calling thread: of [refills](refill), from the first call on. Any thread may
/// read it.
///
/// It tells a thread that works through many ready tasks from one that a single task keeps busy. Counting costs a
/// load and a store for each poll, and nothing where nobody has asked.
pub fn poll_counter() -> Arc<AtomicU64> {
    POLLS.with(|polls| Arc::clone(polls.get_or_init(Arc::default)))
}

/// Adds a microsecond to the budget. Backends call it when an operation yields because the budget is used up.
///
/// A task that was not started by [`Executor::spawn`](crate::Executor::spawn) has no [`refill`]. This way it
/// also regains a budget, and is not taken for one that is [alone](write_bytes_max) any more.
pub fn handle_yield() {
    IS_ALONE.set(false);
    LEFT.set(LEFT.get().saturating_add(1_000));
}

/// The nanoseconds of work since the last [`refill`], with that of [eager polls](EAGER_BUDGET_NANOS). A simulator calls
/// it after a poll.
pub fn spent_nanos() -> u64 {
    let eager = i64::from(EAGER_BUDGET_NANOS).saturating_sub(EAGER_LEFT.get()).unsigned_abs();
    i64::from(POLL_BUDGET_NANOS).saturating_sub(LEFT.get()).unsigned_abs().saturating_add(eager)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up_and_refilled() {
        refill();
        consume(u64::from(POLL_BUDGET_NANOS) - 1);
        assert!(has_budget());
        consume_transfer(4_000); // exceeds the budget
        assert!(!has_budget());
        assert_eq!(spent_nanos(), u64::from(POLL_BUDGET_NANOS) - 1 + 3_000);
        (0..2).for_each(|_| handle_yield());
        assert!(!has_budget());
        handle_yield();
        assert!(has_budget(), "the yields have paid for the excess");
        refill();
        assert_eq!(spent_nanos(), 0);
    }

    #[test]
    fn a_task_that_is_polled_twice_in_a_row_may_write_more_until_it_yields() {
        begin_poll(1);
        assert_eq!(write_bytes_max(), TRANSFER_BYTES_MAX);
        begin_poll(1);
        assert_eq!(write_bytes_max(), LONE_WRITE_BYTES_MAX);
        handle_yield();
        assert_eq!(write_bytes_max(), TRANSFER_BYTES_MAX);
        begin_poll(1);
        assert_eq!(write_bytes_max(), LONE_WRITE_BYTES_MAX);
        for task in [MAIN_TASK, 1, 2, 1] {
            begin_poll(task);
            assert_eq!(write_bytes_max(), TRANSFER_BYTES_MAX, "another task was polled");
        }
    }

    #[test]
    fn eager_polls_have_a_budget_of_their_own_and_a_bound_together() {
        const WORK: u64 = 31_000;
        begin_poll(1);
        begin_poll(1);
        consume(2_000);
        let poll = || {
            assert_eq!(left_nanos(), i64::from(POLL_BUDGET_NANOS));
            assert_eq!(write_bytes_max(), TRANSFER_BYTES_MAX);
            assert!(poll_eagerly(3, || ()).is_none(), "an eager poll within an eager poll");
            consume(WORK);
        };
        let polls = (0..100).take_while(|_| poll_eagerly(2, poll).is_some()).count() as u64;
        assert_eq!(polls, u64::from(EAGER_BUDGET_NANOS) / (WORK + EAGER_POLL_NANOS as u64));
        assert_eq!(left_nanos(), i64::from(POLL_BUDGET_NANOS) - 2_000, "what the caller had left");
        assert_eq!(spent_nanos(), 2_000 + u64::from(EAGER_BUDGET_NANOS));
        assert_eq!(write_bytes_max(), TRANSFER_BYTES_MAX, "the caller is not alone any more");
        for task in [2, 1] {
            begin_poll(task);
            assert_eq!(write_bytes_max(), TRANSFER_BYTES_MAX, "both tasks were polled");
        }
        let polls = (0..1_000).take_while(|_| poll_eagerly(2, || ()).is_some()).count() as i64;
        assert_eq!(polls, i64::from(EAGER_BUDGET_NANOS) / EAGER_POLL_NANOS, "polls without work");
    }

    #[test]
    fn polls_are_counted_by_thread_once_somebody_asks() {
        refill();
        let polls = poll_counter();
        assert_eq!(polls.load(Relaxed), 0);
        (0..3).for_each(|_| refill());
        let others = std::thread::spawn(poll_counter).join().unwrap();
        assert_eq!((poll_counter().load(Relaxed), others.load(Relaxed)), (3, 0));
        assert!(Arc::ptr_eq(&polls, &poll_counter()));
    }
}

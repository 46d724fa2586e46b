//! Cooperative scheduling: how much a task does before other tasks and I/O get their turn.
//!
//! Each poll of a task has a budget of work: [`POLL_BUDGET_NANOS`]. Reads and writes of every backend
//! [`consume`] it, and so does every protocol on top for the work it does between them:
//! frames, decompressed bytes, records. Once the budget is used up, the task's next read or write
//! first lets the runtime run other tasks and do its I/O. So no peer owns a worker, however fast it
//! sends and however little its bytes cost it.
//!
//! Work is counted, not timed: each kind has a fixed [`cost`]. Counting
//! takes a subtraction where reading the clock takes a call, and a simulation repeats.
//!
//! A service that loops without reading or writing asks for itself:
//!
//! ```
//! use owned_io::{Clock, coop};
//!
//! async fn checksum<C: Clock>(blocks: &[[u8; 4096]]) -> u64 {
//!     let mut sum = 0;
//!     for block in blocks {
//!         sum += block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
//!         coop::consume(1_000); // what a block takes, in nanoseconds
//!         coop::yield_if_exhausted::<C>().await;
//!     }
//!     sum
//! }
//! # use owned_io_sim::Sim;
//! # owned_io_sim::block_on(async { assert_eq!(checksum::<Sim>(&[[1; 4096]; 200]).await, 819_200) });
//! ```

pub mod cost;

use std::cell::Cell;
use std::time::Duration;

use crate::Clock;

/// The work that a task may do in one poll, in nanoseconds.
///
/// 50 µs: fifty tasks that always have work leave a new client waiting for 2.5 ms, and a turn costs the
/// twentieth part of it. The last piece of work may overshoot, by 50 µs as a rule: a
/// [transfer](crate::TRANSFER_BYTES_MAX), say.
pub const POLL_BUDGET_NANOS: u32 = 50_000;

thread_local! {
    /// What is left of the budget of the poll that runs on this thread, in nanoseconds; negative when the
    /// last piece of work overshot.
    static LEFT: Cell<i64> = const { Cell::new(POLL_BUDGET_NANOS as i64) };
}

/// Takes `nanos` nanoseconds of work from the budget of the running poll.
#[inline]
pub fn consume(nanos: u64) {
    LEFT.set(LEFT.get().wrapping_sub_unsigned(nanos));
}

/// Takes what a read or write of `bytes` bytes [costs](cost::transfer).
///
/// For backends, after each operation that did not have to wait.
#[inline]
pub fn consume_transfer(bytes: usize) {
    consume(cost::transfer(bytes));
}

/// Whether the running poll may do more work.
#[inline]
pub fn has_budget() -> bool {
    LEFT.get() > 0
}

/// Lets other tasks and I/O have their turn if the budget is used up; otherwise is ready at once.
///
/// # Cancellation
/// Safe.
#[inline]
pub async fn yield_if_exhausted<C: Clock>() {
    if !has_budget() {
        C::sleep(Duration::ZERO).await;
    }
}

/// Begins a new budget. [`Executor::spawn`](crate::Executor::spawn) does so for each poll of its tasks, and
/// [`run_main`](crate::backend::run_main) for each of the main future: it is one of the poll, so that what
/// is polled twice in a task yields twice.
#[inline]
pub fn refill() {
    LEFT.set(POLL_BUDGET_NANOS.into());
}

/// For backends, when an operation yields because the budget is used up: gives a microsecond back, so that
/// a task that nobody began a budget for comes to have one again.
pub fn handle_yield() {
    LEFT.set(LEFT.get().saturating_add(1_000));
}

/// For a simulator, after a poll: nanoseconds of work since the last [`refill`].
pub fn spent_nanos() -> u64 {
    i64::from(POLL_BUDGET_NANOS).saturating_sub(LEFT.get()).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up_and_refilled() {
        refill();
        consume(u64::from(POLL_BUDGET_NANOS) - 1);
        assert!(has_budget());
        consume_transfer(4_000); // overshoots
        assert!(!has_budget());
        assert_eq!(spent_nanos(), u64::from(POLL_BUDGET_NANOS) - 1 + 3_000);
        (0..2).for_each(|_| handle_yield());
        assert!(!has_budget());
        handle_yield();
        assert!(has_budget(), "it has yielded for as long");
        refill();
        assert_eq!(spent_nanos(), 0);
    }
}

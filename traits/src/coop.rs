//! Cooperative scheduling: how much a task does before other tasks and I/O get their turn.
//!
//! Each poll of a task has a budget of work: [`POLL_BUDGET_NANOS`]. Reads and writes of every backend
//! [consume](consume) it, and so does every protocol on top for the work it does between them:
//! frames, decompressed bytes, records. Once the budget is used up, the task's next read or write
//! first lets the runtime run other tasks and do its I/O. So no peer owns a worker, however fast it
//! sends and however little its bytes cost it.
//!
//! Work is counted, not timed: each kind has a fixed cost, measured on a 3 GHz core of 2021. Counting
//! takes a subtraction where reading the clock takes a call, and a simulation repeats.
//!
//! A service that loops without reading or writing asks for itself:
//!
//! ```
//! use owned_io::{Runtime, coop};
//!
//! async fn checksum<R: Runtime>(blocks: &[[u8; 4096]]) -> u64 {
//!     let mut sum = 0;
//!     for block in blocks {
//!         sum += block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
//!         coop::consume(1_000); // what a block takes, in nanoseconds
//!         coop::yield_if_exhausted::<R>().await;
//!     }
//!     sum
//! }
//! # use owned_io_sim::Sim;
//! # owned_io_sim::block_on(async { assert_eq!(checksum::<Sim>(&[[1; 4096]; 200]).await, 819_200) });
//! ```

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use crate::Runtime;

/// The work that a task may do in one poll, in nanoseconds.
///
/// 50 µs: fifty tasks that always have work leave a new client waiting for 2.5 ms, and a turn costs the
/// twentieth part of it. The last piece of work may overshoot, by 100 µs as a rule: a
/// [transfer](crate::TRANSFER_BYTES_MAX), say.
pub const POLL_BUDGET_NANOS: u32 = 50_000;

thread_local! {
    static BUDGET: Budget = const {
        Budget { left: Cell::new(POLL_BUDGET_NANOS as i64), spent: Cell::new(0) }
    };
}

/// The budget of the poll that runs on this thread.
struct Budget {
    /// Nanoseconds; negative when the last piece of work overshot.
    left: Cell<i64>,
    /// Nanoseconds that earlier polls of this thread consumed.
    spent: Cell<u64>,
}

/// Takes `nanos` nanoseconds of work from the budget of the running poll.
#[inline]
pub fn consume(nanos: u64) {
    BUDGET.with(|budget| budget.left.set(budget.left.get().saturating_sub_unsigned(nanos)));
}

/// Takes what a read or write of `bytes` bytes costs: 2 µs for the system call, and a quarter of a
/// nanosecond for each byte that the kernel copies.
///
/// For backends, after each operation that did not have to wait.
#[inline]
pub fn consume_transfer(bytes: usize) {
    consume(2_000 + bytes as u64 / 4);
}

/// Whether the running poll may do more work.
#[inline]
pub fn has_budget() -> bool {
    BUDGET.with(|budget| budget.left.get() > 0)
}

/// Lets other tasks and I/O have their turn if the budget is used up; otherwise is ready at once.
///
/// # Cancellation
/// Safe.
#[inline]
pub async fn yield_if_exhausted<R: Runtime>() {
    if !has_budget() {
        R::sleep(Duration::ZERO).await;
        refill();
    }
}

/// The same future, each poll of which has a whole budget.
///
/// For backends: what [`spawn_detached`](Runtime::spawn_detached) runs. The budget is one of the poll, so
/// that a future in the task that was polled twice yields twice.
pub async fn budgeted<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        refill();
        future.as_mut().poll(cx)
    })
    .await
}

/// Begins a new budget.
#[inline]
pub fn refill() {
    BUDGET.with(|budget| {
        let left = budget.left.replace(POLL_BUDGET_NANOS.into());
        let spent = i64::from(POLL_BUDGET_NANOS).saturating_sub(left).unsigned_abs();
        budget.spent.set(budget.spent.get().saturating_add(spent));
    });
}

/// Nanoseconds of work that this thread has consumed up to the last [`refill`]: for a simulator, which
/// lets as much of its virtual time pass.
pub fn spent_nanos() -> u64 {
    BUDGET.with(|budget| budget.spent.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up_and_refilled() {
        refill();
        let before = spent_nanos();
        consume(u64::from(POLL_BUDGET_NANOS) - 1);
        assert!(has_budget());
        consume_transfer(4_000); // overshoots
        assert!(!has_budget());
        refill();
        assert!(has_budget());
        assert_eq!(spent_nanos() - before, u64::from(POLL_BUDGET_NANOS) - 1 + 3_000);
        consume(u64::MAX);
        assert!(!has_budget());
        refill();
    }
}

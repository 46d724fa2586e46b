//! [`MemoryWait`]: waits for memory that the budget has refused.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::{MemoryAccount, MemoryBudget};

/// Tracks how long a connection has waited for memory, from the first refusal to the next grant.
///
/// After a refusal, a connection waits and retries, until the reservation succeeds, the account is evicted, or
/// the wait has taken too long:
///
/// ```
/// use owned_io::{MemoryExhausted, MemoryWait, Reservation, Runtime};
///
/// async fn reserve<R: Runtime>(
///     reservation: &mut Reservation,
///     bytes: usize,
/// ) -> Result<(), MemoryExhausted> {
///     let waited = MemoryWait::default();
///     loop {
///         let refused = match reservation.resize(bytes) {
///             Ok(()) => return Ok(()),
///             Err(refused) => refused,
///         };
///         let account = reservation.account();
///         match waited.begin(account, R::now(), |time| Box::pin(R::sleep(time))) {
///             Some(released) if !account.is_evicted() => released.await,
///             _ => return Err(refused),
///         }
///     }
/// }
/// # use owned_io::{Clock, Executor, MemoryBudget};
/// # use owned_io_sim::Sim;
/// # owned_io_sim::block_on(async {
/// #     let budget = MemoryBudget::new(10);
/// #     let mut held = budget.account().reservation();
/// #     held.resize(10).unwrap();
/// #     drop(Sim::spawn(async move {
/// #         Sim::sleep(std::time::Duration::from_secs(1)).await;
/// #         drop(held);
/// #     }));
/// #     reserve::<Sim>(&mut budget.account().reservation(), 10).await.unwrap();
/// # });
/// ```
#[derive(Debug, Default)]
pub struct MemoryWait {
    /// When the current round of the wait started.
    since: Cell<Option<Instant>>,
    rounds: Cell<u32>,
    /// The account that waits.
    account: RefCell<Option<MemoryAccount>>,
}

/// Waits until memory may have been released. See [`MemoryWait::begin`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct MemoryReleased<S> {
    account: MemoryAccount,
    sleep: S,
    polled: bool,
    /// The registered waker, until the future is ready.
    waker: Option<Waker>,
}

impl MemoryWait {
    /// The longest wait, in [rounds](MemoryBudget::ROUND): half a minute, the default time limit of a
    /// WebSocket message.
    pub const ROUNDS_MAX: u32 = 60;

    /// Starts or continues the wait after a refusal. Returns `None` after [`ROUNDS_MAX`](Self::ROUNDS_MAX)
    /// rounds.
    ///
    /// The future is ready when a retry makes sense: memory was released, the account is evicted, the round is
    /// over, or the task was polled for another reason. At the start and in each round this calls
    /// [`MemoryBudget::evict_holders`].
    ///
    /// # Cancellation
    /// Safe. The elapsed time still counts.
    pub fn begin<S>(
        &self,
        account: &MemoryAccount,
        now: Instant,
        sleep: impl FnOnce(Duration) -> S,
    ) -> Option<MemoryReleased<S>> {
        let waited = self.since.get().map(|since| now.saturating_duration_since(since));
        let left = match waited {
            Some(waited) if waited < MemoryBudget::ROUND => MemoryBudget::ROUND - waited,
            _ => {
                if waited.is_some() {
                    if self.rounds.get() == Self::ROUNDS_MAX {
                        account.state.stop_waiting();
                        return None;
                    }
                    self.rounds.set(self.rounds.get() + 1);
                }
                self.since.set(Some(now));
                self.account.replace(Some(account.clone()));
                account.budget().evict_holders(now);
                MemoryBudget::ROUND
            }
        };
        Some(MemoryReleased {
            account: account.clone(),
            sleep: sleep(left),
            polled: false,
            waker: None,
        })
    }

    /// Ends the wait: the reservation was granted, or is not wanted any more. Dropping does the same.
    #[inline]
    pub fn end(&self) {
        if self.since.get().is_some() {
            self.since.set(None);
            self.rounds.set(0);
            if let Some(account) = self.account.take() {
                account.state.stop_waiting();
            }
        }
    }
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        self.end();
    }
}

impl<S: Future<Output = ()> + Unpin> Future for MemoryReleased<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if mem::replace(&mut self.polled, true) || self.account.is_evicted() {
            if let Some(waker) = self.waker.take() {
                self.account.cancel_wake(&waker);
            }
            return Poll::Ready(());
        }
        self.account.wake_when_released(cx.waker());
        let is_over = Pin::new(&mut self.sleep).poll(cx);
        if is_over.is_pending() {
            self.waker = Some(cx.waker().clone());
        }
        is_over
    }
}

impl<S> Drop for MemoryReleased<S> {
    fn drop(&mut self) {
        // Not if it was ready: then the reservation is tried again.
        if let Some(waker) = self.waker.take()
            && !self.account.cancel_wake(&waker)
        {
            self.account.state.stop_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, pending, ready};
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_wait_evicts_holders_and_ends_after_the_last_round() {
        let budget = MemoryBudget::new(10);
        let (holder, refused) = (budget.account(), budget.account());
        let mut held = holder.reservation();
        held.resize(10).unwrap();
        let (waited, began) = (MemoryWait::default(), Instant::now());
        let over = |_| -> Ready<()> { ready(()) };
        for round in 0..=MemoryWait::ROUNDS_MAX {
            let now = began + MemoryBudget::ROUND * round;
            assert!(waited.begin(&refused, now, over).is_some(), "{round}");
            assert!(waited.begin(&refused, now + MemoryBudget::ROUND / 2, over).is_some());
        }
        assert!(holder.is_evicted());
        let late = began + MemoryBudget::ROUND * (MemoryWait::ROUNDS_MAX + 1);
        assert!(waited.begin(&refused, late, over).is_none());
        waited.end();
        assert!(waited.begin(&refused, late, over).is_some());
    }

    #[test]
    fn a_wait_ends_with_the_round_or_when_it_is_polled_again() {
        let budget = MemoryBudget::new(10);
        let account = budget.account();
        let (waited, now) = (MemoryWait::default(), Instant::now());
        let mut cx = Context::from_waker(Waker::noop());
        let mut over = Box::pin(waited.begin(&account, now, |_| ready(())).unwrap());
        assert!(over.as_mut().poll(&mut cx).is_ready());
        let sleep = |_| Box::pin(pending::<()>());
        let mut waiting = Box::pin(waited.begin(&account, now, sleep).unwrap());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert!(waiting.as_mut().poll(&mut cx).is_ready(), "a second poll ends the wait");
    }

    #[test]
    fn an_account_waits_no_longer_than_its_wait() {
        let budget = MemoryBudget::new(10);
        let account = budget.account();
        let mut cx = Context::from_waker(Waker::noop());
        let count = || budget.shared.waiting_count.get();
        let sleep = |_| Box::pin(pending::<()>());
        let began = |waited: &MemoryWait| waited.begin(&account, Instant::now(), sleep).unwrap();
        let waited = MemoryWait::default();
        let mut waiting = Box::pin(began(&waited));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert_eq!(count(), 1);
        drop(waiting);
        assert_eq!(count(), 0, "dropped");
        for end in [MemoryWait::end, |_: &MemoryWait| {}] {
            let waited = MemoryWait::default();
            let mut waiting = Box::pin(began(&waited));
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            assert!(waiting.as_mut().poll(&mut cx).is_ready());
            assert_eq!(count(), 1, "until the reservation is tried again");
            end(&waited);
            drop(waited);
            assert_eq!(count(), 0);
        }
    }
}

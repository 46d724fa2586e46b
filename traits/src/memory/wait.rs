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
#[derive(Debug)]
pub struct MemoryWait {
    time_max: Duration,
    /// When the wait started.
    began: Cell<Option<Instant>>,
    /// When its current round started.
    round_began: Cell<Option<Instant>>,
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
    /// The longest wait of the default value.
    pub const TIME_MAX: Duration = Duration::from_secs(30);

    /// A wait that takes at most `time_max`. Choose the time limit of what the memory is for, such as a message.
    pub const fn new(time_max: Duration) -> Self {
        let (began, round_began) = (Cell::new(None), Cell::new(None));
        Self { time_max, began, round_began, account: RefCell::new(None) }
    }

    /// Starts or continues the wait after a refusal. Returns `None` once the wait has taken its longest time.
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
        let since =
            |at: &Cell<Option<Instant>>| at.get().map(|at| now.saturating_duration_since(at));
        let waited = since(&self.began).unwrap_or_else(|| {
            self.began.set(Some(now));
            Duration::ZERO
        });
        let left = self.time_max.saturating_sub(waited);
        if left.is_zero() {
            account.state.stop_waiting();
            return None;
        }
        let round_left = match since(&self.round_began) {
            Some(waited) if waited < MemoryBudget::ROUND => MemoryBudget::ROUND - waited,
            _ => {
                self.round_began.set(Some(now));
                self.account.replace(Some(account.clone()));
                account.budget().evict_holders(now);
                MemoryBudget::ROUND
            }
        };
        Some(MemoryReleased {
            account: account.clone(),
            sleep: sleep(left.min(round_left)),
            polled: false,
            waker: None,
        })
    }

    /// Ends the wait: the reservation was granted, or is not wanted any more. Dropping does the same.
    #[inline]
    pub fn end(&self) {
        if self.began.take().is_some() {
            self.round_began.set(None);
            if let Some(account) = self.account.take() {
                account.state.stop_waiting();
            }
        }
    }
}

/// A wait of at most [`TIME_MAX`](Self::TIME_MAX).
impl Default for MemoryWait {
    fn default() -> Self {
        Self::new(Self::TIME_MAX)
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
    use std::future::{pending, ready};
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_wait_evicts_holders_and_ends_after_its_longest_time() {
        const TIME_MAX: Duration = Duration::from_millis(2_200);
        let budget = MemoryBudget::new(10);
        let (holder, refused) = (budget.account(), budget.account());
        let mut held = holder.reservation();
        held.resize(10).unwrap();
        let (waited, began) = (MemoryWait::new(TIME_MAX), Instant::now());
        let slept = Cell::new(Duration::ZERO);
        let sleep = |time| {
            slept.set(time);
            ready(())
        };
        let mut now = began;
        while waited.begin(&refused, now, sleep).is_some() {
            assert!(waited.begin(&refused, now + slept.get() / 2, sleep).is_some());
            now += slept.get() * 2;
        }
        assert_eq!(now - began, TIME_MAX, "not even in the middle of a round");
        assert!(holder.is_evicted());
        waited.end();
        assert!(waited.begin(&refused, now, sleep).is_some());
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

//! [`MemoryAccount::abort_when_evicted`]: ends an operation of a connection whose memory others need.

use std::future::{Future, poll_fn};
use std::pin::pin;

use super::MemoryAccount;
use crate::ShutdownHandle;

impl MemoryAccount {
    /// Runs `operation`. If the account is [evicted](Self::is_evicted) while the operation waits, it
    /// [aborts](ShutdownHandle::abort) `connection`, so that the operation ends. It does not if the account holds
    /// nothing: there is nothing to release.
    ///
    /// The operation is never dropped, so its buffer always comes back.
    ///
    /// # Cancellation
    /// As for the operation.
    ///
    /// ```
    /// # use owned_io_sim::Sim;
    /// # owned_io_sim::block_on(async {
    /// use owned_io::{ByteStream, Clock, MemoryBudget, OwnedRead};
    ///
    /// let (_silent, mut stream) = owned_io_sim::pipe();
    /// let connection = stream.shutdown_handle();
    /// let budget = MemoryBudget::new(1 << 20);
    /// let account = budget.account();
    /// let mut held = account.reservation();
    /// held.resize(900 << 10)?;
    /// // Another connection waits for memory.
    /// (0..4).for_each(|round| budget.evict_holders(Sim::now() + MemoryBudget::ROUND * round));
    /// let read = stream.read(Vec::with_capacity(512));
    /// assert!(account.abort_when_evicted(&connection, read).await.0.is_err());
    /// # Ok::<(), owned_io::MemoryExhausted>(())
    /// # }).unwrap();
    /// ```
    pub async fn abort_when_evicted<T>(
        &self,
        connection: &ShutdownHandle,
        operation: impl Future<Output = T>,
    ) -> T {
        let mut operation = pin!(operation);
        poll_fn(|cx| {
            let polled = operation.as_mut().poll(cx);
            if polled.is_pending() && self.held_bytes() > 0 {
                if self.is_evicted() {
                    connection.abort();
                }
                self.wake_when_evicted(cx.waker().clone());
            }
            polled
        })
        .await
    }
}

//! [`WriteMemory`]: the memory of what is being written.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use owned_io::{Clock, MemoryAccount, MemoryReleased, MemoryWait, Reservation};

type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// The memory of what is being written, reserved in the account of the connection.
pub(crate) struct WriteMemory {
    reservation: Reservation,
    wait: MemoryWait,
    /// The current round of the wait.
    round: Option<MemoryReleased<Sleep>>,
    now: fn() -> Instant,
    sleep: fn(Duration) -> Sleep,
}

impl WriteMemory {
    pub(crate) fn new<C: Clock>(account: &MemoryAccount) -> Self {
        Self {
            reservation: account.reservation(),
            wait: MemoryWait::default(),
            round: None,
            now: C::now,
            sleep: |time| Box::pin(C::sleep(time)),
        }
    }

    /// Reserves `bytes` bytes if there is room for them now. Returns whether there was.
    pub(crate) fn try_reserve(&mut self, bytes: usize) -> bool {
        let is_reserved = self.reservation.resize(bytes).is_ok();
        if is_reserved {
            self.round = None;
            self.wait.end();
        }
        is_reserved
    }

    /// Waits until `bytes` bytes are reserved.
    ///
    /// # Errors
    /// If the wait takes too long, or the account is evicted. The next call waits anew.
    pub(crate) fn poll_reserve(
        &mut self,
        bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Some(round) = &mut self.round {
                ready!(Pin::new(round).poll(cx));
                self.round = None;
            }
            let Err(refused) = self.reservation.resize(bytes) else {
                self.wait.end();
                return Poll::Ready(Ok(()));
            };
            let account = self.reservation.account();
            match self.wait.begin(account, (self.now)(), self.sleep) {
                Some(round) if !account.is_evicted() => self.round = Some(round),
                _ => {
                    self.wait.end();
                    return Poll::Ready(Err(refused.into()));
                }
            }
        }
    }

    /// Ends a wait whose caller has given up.
    pub(crate) fn end_wait(&mut self) {
        if self.round.take().is_some() {
            self.wait.end();
        }
    }

    pub(crate) fn release(&mut self) {
        self.reservation.force(0);
    }
}

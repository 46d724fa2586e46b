//! What a connection writes: the queue, and its memory.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;

use owned_io::{BufResult, ByteStream, Clock, MemoryAccount, MemoryWait};

use super::wait::{Waited, within};
use super::{Connection, State};
use crate::Error;
use crate::engine::{Date, Wait};

impl<C: Clock, S: ByteStream> Connection<C, S> {
    pub(super) async fn write_if_full(&mut self) -> Result<(), Error> {
        match self.queue.is_full() {
            true => self.write_queue().await,
            false => Ok(()),
        }
    }

    pub(super) async fn write_queue(&mut self) -> Result<(), Error> {
        if self.queue.is_empty() {
            return Ok(());
        }
        let mut batch = self.queue.take();
        while batch.bytes_left() > 0 {
            self.is_interrupted = true;
            let (account, end) = (self.queue.reservation().account(), || self.handle.abort());
            let writing = unless_evicted(account, batch.write_some(&mut self.stream), end);
            let (BufResult(written, back), waited) =
                within::<C, _>(&mut self.timers, &mut self.sleep, Wait::Write, writing, end).await;
            self.is_interrupted = false;
            batch = back;
            if waited != Waited::No {
                self.timers.handle_wait_end(C::now(), *written.as_ref().unwrap_or(&0));
            }
            let error = match (written, waited) {
                (_, Waited::TooLong) => io::Error::from(io::ErrorKind::TimedOut),
                (Err(_), _) if account.is_evicted() => io::ErrorKind::OutOfMemory.into(),
                (Err(error), _) => error,
                (Ok(_), _) => continue,
            };
            self.state = State::Ended;
            self.queue.give(batch);
            return Err(error.into());
        }
        self.queue.give(batch);
        self.timers.handle_written();
        Ok(())
    }

    /// Makes room for `more` bytes in the queue. If there is no memory, it first writes the queue, and then waits.
    pub(super) async fn reserve(&mut self, more: usize) -> Result<(), Error> {
        let waited = MemoryWait::default();
        loop {
            let Err(exhausted) = self.queue.reserve(more) else { return Ok(()) };
            if !self.queue.is_empty() {
                self.write_queue().await?;
                continue;
            }
            let account = self.queue.reservation().account();
            match waited.begin(account, C::now(), |time| Box::pin(C::sleep(time))) {
                Some(released) if !account.is_evicted() => released.await,
                _ => {
                    self.reset();
                    return Err(Error::Memory(exhausted));
                }
            }
        }
    }

    pub(super) fn date(&self) -> Date {
        let mut date = self.date.borrow_mut();
        date.update(C::wall_clock());
        *date
    }
}

/// Runs `operation`. If it waits and `account`, which holds memory, is evicted, because others need the memory, calls
/// `end`, which has to end it.
///
/// # Cancellation
/// As for `operation`.
pub(super) async fn unless_evicted<T>(
    account: &MemoryAccount,
    operation: impl Future<Output = T>,
    end: impl Fn(),
) -> T {
    let mut operation = pin!(operation);
    poll_fn(|cx| {
        let polled = operation.as_mut().poll(cx);
        if polled.is_pending() && account.held_bytes() > 0 {
            if account.is_evicted() {
                end();
            }
            account.wake_when_evicted(cx.waker().clone());
        }
        polled
    })
    .await
}

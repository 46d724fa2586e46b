//! What a connection writes: the queue, and its memory.

use std::io;

use owned_io::{BufResult, ByteStream, Clock, MemoryWait};

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
            let writing = batch.write_some(&mut self.stream);
            let writing = account.abort_when_evicted(&self.handle, writing);
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

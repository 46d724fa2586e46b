//! [`Polled`]: a connection whose operations are polled.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use owned_io::backend::{Direction, JobSlot, StickyError, WriteDriver};
use owned_io::{
    Buffers, ByteStream, OwnedRead, OwnedWrite, OwnedWriteExt, Pool, PoolBuf, Reservation,
};

/// The most bytes that are accepted before the stream has taken them.
const WRITE_BYTES_MAX: usize = 64 * 1024;

/// A connection as two futures that execute one operation at a time. An operation goes on, whatever happens to the
/// caller that polls it.
pub(crate) struct Polled {
    /// The driver of reads. A job is one read.
    reader: WriteDriver<(), io::Result<PoolBuf>>,
    /// What was read. `None` if it is consumed.
    received: Option<PoolBuf>,
    /// How much of `received` is consumed.
    at: usize,
    writer: WriteDriver<Job, (io::Result<()>, Vec<u8>)>,
    /// Why a write has failed.
    failure: Option<StickyError>,
    /// Whether the write side is ended, or is about to be.
    is_shut: bool,
    buffers: Buffers,
    /// What is being written.
    reservation: Reservation,
}

enum Job {
    Write(Vec<u8>),
    Shutdown,
}

impl Polled {
    pub(crate) fn new(stream: impl ByteStream, buffers: &Buffers) -> Self {
        let (read, write) = stream.into_split();
        let pool = buffers.pool().clone();
        Self {
            reader: WriteDriver::new(|slot| execute_reads(read, pool, slot)),
            received: None,
            at: 0,
            writer: WriteDriver::new(|slot| execute_writes(write, slot)),
            failure: None,
            is_shut: false,
            reservation: buffers.account().reservation(),
            buffers: buffers.clone(),
        }
    }

    /// Waits for bytes, and returns those that are not [consumed](Self::consume). None at the end of the stream.
    pub(crate) fn poll_received(&mut self, cx: &Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.received.is_none() {
            if !self.reader.is_busy() {
                self.reader.start(());
            }
            let read = ready!(self.reader.poll(Direction::Read, cx));
            (self.received, self.at) = (Some(read?), 0);
        }
        Poll::Ready(Ok(self.received.as_ref().map_or(&[][..], |buf| &buf[self.at..])))
    }

    /// Marks the first `len` bytes of the last [`poll_received`](Self::poll_received) as consumed.
    pub(crate) fn consume(&mut self, len: usize) {
        self.at += len;
        if self.received.as_ref().is_some_and(|buf| self.at == buf.len()) {
            self.received = None;
        }
    }

    /// Waits until the last write is done, and begins one of the first bytes of `parts`. Returns their number.
    pub(crate) fn poll_write(
        &mut self,
        parts: &[IoSlice<'_>],
        cx: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(cx))?;
        let mut bytes = self.buffers.take();
        for part in parts {
            let len = part.len().min(WRITE_BYTES_MAX - bytes.len());
            bytes.extend_from_slice(&part[..len]);
        }
        let len = bytes.len();
        if len == 0 {
            self.buffers.give(bytes);
            return Poll::Ready(Ok(0));
        }
        self.reservation.force(bytes.capacity());
        self.writer.start(Job::Write(bytes));
        // The write begins now. The next call asks for its result, unless it is there.
        if let Poll::Ready(done) = self.writer.poll(Direction::Write, cx) {
            self.handle_done(done);
        }
        Poll::Ready(Ok(len))
    }

    /// Waits until the last write is done.
    pub(crate) fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.writer.is_busy() {
            let done = ready!(self.writer.poll(Direction::Write, cx));
            self.handle_done(done);
        }
        Poll::Ready(self.failure.map_or(Ok(()), |failure| Err(failure.into())))
    }

    /// Waits until the last write is done, and ends the write side.
    pub(crate) fn poll_shutdown(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        if !std::mem::replace(&mut self.is_shut, true) {
            self.writer.start(Job::Shutdown);
        }
        self.poll_flush(cx)
    }

    fn handle_done(&mut self, (result, bytes): (io::Result<()>, Vec<u8>)) {
        self.buffers.give(bytes);
        self.reservation.force(0);
        if let Err(error) = result {
            self.failure = Some(StickyError::from(&error));
        }
    }
}

async fn execute_reads(
    mut half: impl OwnedRead,
    pool: Pool,
    slot: JobSlot<(), io::Result<PoolBuf>>,
) -> Infallible {
    loop {
        slot.next().await;
        slot.finish(half.read_pooled(&pool).await);
    }
}

async fn execute_writes(
    mut half: impl OwnedWrite,
    slot: JobSlot<Job, (io::Result<()>, Vec<u8>)>,
) -> Infallible {
    loop {
        let done = match slot.next().await {
            Job::Write(bytes) => {
                let written = half.write_all(bytes).await;
                (written.0, written.1)
            }
            Job::Shutdown => (half.shutdown().await, Vec::new()),
        };
        slot.finish(done);
    }
}

//! [`Polled`]: a connection whose operations are polled.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use owned_io::backend::{Direction, JobSlot, StickyError, WriteDriver};
use owned_io::{
    Buffers, ByteStream, Clock, MemoryAccount, OwnedRead, OwnedWrite, OwnedWriteExt, Pool, PoolBuf,
    ShutdownHandle,
};

use crate::memory::WriteMemory;

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
    memory: WriteMemory,
    /// The most bytes of a write: [`WRITE_BYTES_MAX`], or what the account can hold if that is less.
    write_bytes_max: usize,
}

enum Job {
    Write(Vec<u8>),
    Shutdown,
}

impl Polled {
    pub(crate) fn new<C: Clock>(stream: impl ByteStream, buffers: &Buffers) -> Self {
        let handle = stream.shutdown_handle();
        let (read, write) = stream.into_split();
        let (pool, account) = (buffers.pool().clone(), buffers.account());
        Self {
            reader: WriteDriver::new(|slot| execute_reads(read, pool, slot)),
            received: None,
            at: 0,
            memory: WriteMemory::new::<C>(&account),
            write_bytes_max: WRITE_BYTES_MAX.min(account.bytes_max()).max(1),
            writer: WriteDriver::new(|slot| execute_writes(write, slot, account, handle)),
            failure: None,
            is_shut: false,
            buffers: buffers.clone(),
        }
    }

    /// Waits for bytes, and passes at most `len_max` of them to `put`. Returns their number: 0 at the end of the stream.
    /// It does not wait if `len_max` is 0.
    pub(crate) fn poll_read(
        &mut self,
        len_max: usize,
        cx: &Context<'_>,
        put: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if len_max == 0 {
            return Poll::Ready(Ok(0));
        }
        let buf = match self.received.take() {
            Some(buf) => buf,
            None => {
                if !self.reader.is_busy() {
                    self.reader.start(());
                }
                self.at = 0;
                ready!(self.reader.poll(Direction::Read, cx))?
            }
        };
        let len = len_max.min(buf.len() - self.at);
        put(&buf[self.at..][..len]);
        self.at += len;
        self.received = (self.at < buf.len()).then_some(buf);
        Poll::Ready(Ok(len))
    }

    /// The same, and drives the current write. The caller may wait for the answer to what was written without a flush,
    /// and nobody else polls the write then. It is registered even if there is no write yet: another task may begin one
    /// and end.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn poll_read_and_drive_write(
        &mut self,
        len_max: usize,
        cx: &Context<'_>,
        put: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if len_max > 0 {
            self.writer.register(Direction::Read, cx);
            if self.writer.is_busy()
                && let Poll::Ready(done) = self.writer.drive()
            {
                self.handle_done(done);
            }
        }
        self.poll_read(len_max, cx, put)
    }

    /// Waits until the last write is done and there is memory, and begins one of the first bytes of `parts`. Returns
    /// their number.
    pub(crate) fn poll_write(
        &mut self,
        parts: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(cx))?;
        if self.is_shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let all = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let len = all.min(self.write_bytes_max);
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut bytes = self.take_buffer(len);
        let mut capacity = bytes.capacity().max(self.new_capacity(len));
        if !self.memory.try_reserve(capacity) {
            // The bytes alone may have room, and nobody should wait for more than what is needed.
            capacity = len;
            self.buffers.give(bytes);
            ready!(self.memory.poll_reserve(capacity, cx))?;
            bytes = self.buffers.take_fitting(len, capacity);
        }
        bytes.reserve_exact(capacity);
        for part in parts {
            bytes.extend_from_slice(&part[..part.len().min(len - bytes.len())]);
        }
        self.writer.start(Job::Write(bytes));
        // The write begins now. The next call asks for its result, unless it is there.
        if let Poll::Ready(done) = self.writer.poll(Direction::Write, cx) {
            self.handle_done(done);
        }
        Poll::Ready(Ok(len))
    }

    /// Waits until the last write is done.
    pub(crate) fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.memory.end_wait(); // the caller does not try to write any more
        self.poll_written(cx)
    }

    /// Waits until the last write is done, and ends the write side.
    pub(crate) fn poll_shutdown(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        if !std::mem::replace(&mut self.is_shut, true) {
            self.writer.start(Job::Shutdown);
        }
        self.poll_written(cx)
    }

    fn poll_written(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.writer.is_busy() {
            let done = ready!(self.writer.poll(Direction::Write, cx));
            self.handle_done(done);
        }
        Poll::Ready(self.failure.map_or(Ok(()), |failure| Err(failure.into())))
    }

    fn handle_done(&mut self, (result, bytes): (io::Result<()>, Vec<u8>)) {
        self.buffers.give(bytes);
        self.memory.release();
        if let Err(error) = result {
            self.failure = Some(StickyError::from(&error));
        }
    }

    /// An unused buffer. Not a larger one than a write can fill, because all of it would have to be reserved.
    fn take_buffer(&self, len: usize) -> Vec<u8> {
        let bytes = self.buffers.take();
        if bytes.capacity() <= self.write_bytes_max {
            return bytes;
        }
        self.buffers.give(bytes);
        self.buffers.take_fitting(len, self.write_bytes_max)
    }

    /// The capacity of a new buffer for `len` bytes. Powers of two, so that a buffer soon fits every write.
    fn new_capacity(&self, len: usize) -> usize {
        len.next_power_of_two().min(self.write_bytes_max)
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
    account: MemoryAccount,
    handle: ShutdownHandle,
) -> Infallible {
    loop {
        let done = match slot.next().await {
            Job::Write(bytes) => {
                let writing = half.write_all(bytes);
                let written = account.abort_when_evicted(&handle, writing).await;
                match written.0 {
                    Err(_) if account.is_evicted() => {
                        (Err(io::ErrorKind::OutOfMemory.into()), written.1)
                    }
                    result => (result, written.1),
                }
            }
            Job::Shutdown => (half.shutdown().await, Vec::new()),
        };
        slot.finish(done);
    }
}

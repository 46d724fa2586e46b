//! [`MonoioFile`]: a file whose operations go through monoio's ring.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use monoio::fs::File;
use owned_io::{BufResult, IoBuf, IoBufMut, IoVec};
use owned_io_os::file::{self, Blocking, FileIo};

use crate::op::file::{Reading, Writing};

/// A file on monoio.
pub type MonoioFile = file::File<MonoioFileIo>;

/// The reads, writes and syncs of a [`MonoioFile`].
pub struct MonoioFileIo {
    /// It has a descriptor of its own, for the same open file, which monoio closes through its ring.
    file: File,
    fd: Arc<OwnedFd>,
    /// For vectored writes, which monoio has at the current position only.
    blocking: Blocking,
    /// Operations that were begun and have not completed. Dropped and forgotten ones stay counted.
    in_flight: Cell<u32>,
}

impl FileIo for MonoioFileIo {
    fn register(fd: Arc<OwnedFd>) -> io::Result<Self> {
        let file = File::from_std(fd.try_clone()?.into())?;
        let blocking = Blocking::register(Arc::clone(&fd))?;
        Ok(Self { file, fd, blocking, in_flight: Cell::new(0) })
    }

    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let reading = self.file.read_at(Reading::new(buf), offset);
        let (result, Reading { buf, .. }) = self.counted(reading).await;
        BufResult(result, buf)
    }

    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let writing = self.file.write_at(Writing::new(buf), offset);
        let (result, Writing { buf, .. }) = self.counted(writing).await;
        BufResult(result, buf)
    }

    fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        self.blocking.write_vectored_at(bufs, offset)
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> {
        self.counted(self.file.sync_data())
    }
}

impl MonoioFileIo {
    /// Waits for an operation of the ring, and counts it until it has completed.
    async fn counted<T>(&self, operation: impl Future<Output = T>) -> T {
        self.in_flight.set(self.in_flight.get() + 1);
        let output = operation.await;
        self.in_flight.set(self.in_flight.get() - 1);
        output
    }
}

impl Drop for MonoioFileIo {
    fn drop(&mut self) {
        // monoio closes its descriptor one poll of the ring later at best. Without an operation, the lock ends now.
        if self.in_flight.get() == 0 {
            file::unlock(self.fd.as_fd());
        }
    }
}

impl fmt::Debug for MonoioFileIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MonoioFileIo").field("fd", &self.fd).finish_non_exhaustive()
    }
}

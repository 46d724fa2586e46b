//! [`MonoioFile`]: a file whose operations go through monoio's ring.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use owned_io::{BufResult, IoBuf, IoBufMut, IoVec};
use owned_io_os::file::{self, Blocking, FileIo};

use crate::Monoio;
use crate::op::file::{Reading, RingFile, Writing};

/// A file on monoio.
pub type MonoioFile = file::File<MonoioFileIo>;

/// The reads, writes and syncs of a [`MonoioFile`].
#[derive(Debug)]
pub struct MonoioFileIo {
    ring: RingFile,
    /// For vectored writes, which monoio has at the current position only.
    blocking: Blocking<Monoio>,
}

impl FileIo for MonoioFileIo {
    fn register(fd: Arc<OwnedFd>) -> io::Result<Self> {
        let ring = RingFile::new(fd.try_clone()?)?;
        Ok(Self { ring, blocking: Blocking::register(fd)? })
    }

    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let (result, buf) = self.ring.for_operation().read_at(Reading::new(buf), offset).await;
        BufResult(result, buf.into_inner())
    }

    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let (result, buf) = self.ring.for_operation().write_at(Writing::new(buf), offset).await;
        BufResult(result, buf.into_inner())
    }

    fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        self.blocking.write_vectored_at(bufs, offset)
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> {
        self.ring.for_operation().sync_data()
    }
}

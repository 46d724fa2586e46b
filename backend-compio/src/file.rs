//! [`CompioFile`]: a file whose operations go through compio's ring.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use owned_io::{BufResult, IoBuf, IoBufMut, IoVec};
use owned_io_os::file::{self, FileIo};

use crate::op;

/// A file on compio.
pub type CompioFile = file::File<CompioFileIo>;

/// The reads, writes and syncs of a [`CompioFile`].
#[derive(Debug)]
pub struct CompioFileIo {
    fd: Arc<OwnedFd>,
}

impl FileIo for CompioFileIo {
    fn register(fd: Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self { fd })
    }

    fn read_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, B>> {
        op::file::read_at(&self.fd, buf, offset)
    }

    fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> impl Future<Output = BufResult<usize, B>> {
        op::file::write_at(&self.fd, buf, offset)
    }

    fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        op::file::write_vectored_at(&self.fd, bufs, offset)
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> {
        op::file::sync_data(&self.fd)
    }
}

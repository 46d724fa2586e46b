//! [`CompioSocket`]: a descriptor whose operations go through compio's ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use owned_io::{BufResult, IoBuf, IoBufMut, IoVec};
use owned_io_os::completion::{self, Completion, SharedFd};

use crate::op;
use crate::runtime::Compio;

/// A TCP connection on compio.
pub type CompioStream = completion::Stream<CompioSocket>;

/// The half of a [`CompioStream`] that reads.
pub type CompioReadHalf = completion::ReadHalf<CompioSocket>;

/// The half of a [`CompioStream`] that writes.
pub type CompioWriteHalf = completion::WriteHalf<CompioSocket>;

/// A TCP listener on compio.
pub type CompioListener = completion::Listener<CompioSocket>;

/// The socket of a [`CompioStream`] or a [`CompioListener`].
#[derive(Debug)]
pub struct CompioSocket {
    fd: SharedFd,
}

impl AsFd for CompioSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Completion for CompioSocket {
    type Clock = Compio;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: fd.into() })
    }

    fn recv<B: IoBufMut>(&self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        op::recv(&self.fd, buf)
    }

    fn send<B: IoBuf>(&self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        op::send(&self.fd, buf)
    }

    fn send_vectored<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        op::send_vectored(&self.fd, bufs)
    }

    fn readable(&self) -> impl Future<Output = io::Result<()>> {
        op::readable(&self.fd)
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> {
        op::writable(&self.fd)
    }
}

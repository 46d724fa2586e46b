//! [`TokioUringSocket`]: a descriptor whose operations go through tokio-uring's ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use owned_io::{BufResult, IoBuf, IoBufMut, IoVec};
use owned_io_os::completion::{self, Completion, SharedFd};
use tokio::io::Interest;

use crate::op::{self, MessageCell};
use crate::runtime::TokioUring;

/// A TCP connection on tokio-uring.
pub type TokioUringStream = completion::Stream<TokioUringSocket>;

/// The half of a [`TokioUringStream`] that reads.
pub type TokioUringReadHalf = completion::ReadHalf<TokioUringSocket>;

/// The half of a [`TokioUringStream`] that writes.
pub type TokioUringWriteHalf = completion::WriteHalf<TokioUringSocket>;

/// The socket of a [`TokioUringStream`].
#[derive(Debug)]
pub struct TokioUringSocket {
    fd: SharedFd,
    message: MessageCell,
}

impl AsFd for TokioUringSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Completion for TokioUringSocket {
    type Clock = TokioUring;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: fd.into(), message: MessageCell::default() })
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
        op::send_vectored(&self.fd, bufs, &self.message)
    }

    fn readable(&self) -> impl Future<Output = io::Result<()>> {
        op::readable(&self.fd)
    }

    /// Waits in epoll, where a dropped wait leaves nothing behind. Only connecting waits for this.
    async fn writable(&self) -> io::Result<()> {
        op::register(Rc::clone(&self.fd), Interest::WRITABLE)?.writable().await.map(drop)
    }
}

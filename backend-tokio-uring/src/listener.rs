//! [`TokioUringListener`]: waits for clients in epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use owned_io_os as os;
use owned_io_os::completion::CompletionSocket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::op;
use crate::socket::TokioUringSocket;

/// A TCP listener on tokio-uring.
pub type TokioUringListener = os::Listener<TokioUringListenSocket>;

/// The socket of a [`TokioUringListener`].
///
/// It waits in tokio's reactor, with which tokio-uring's ring is registered too. A dropped accept leaves nothing
/// behind there. A task that keeps the ring from being entered does not delay the listener.
#[derive(Debug)]
pub struct TokioUringListenSocket {
    fd: AsyncFd<Rc<OwnedFd>>,
}

impl AsFd for TokioUringListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

impl os::ListenSocket for TokioUringListenSocket {
    type Socket = CompletionSocket<TokioUringSocket>;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: op::register(Rc::new(fd), Interest::READABLE)? })
    }

    async fn readable(&mut self) -> io::Result<()> {
        // This clears the readiness and loses no report: only this thread polls epoll, and never while it
        // polls a task.
        let would_block = |_: &Rc<OwnedFd>| Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.fd.try_io(Interest::READABLE, would_block);
        self.fd.readable().await.map(drop)
    }
}

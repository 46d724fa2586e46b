//! [`TokioSocket`]: a descriptor registered with tokio's reactor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll};

use owned_io_os::readiness::{self, Readiness};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::runtime::Tokio;

/// A TCP connection on tokio.
pub type TokioStream = readiness::Stream<TokioSocket>;

/// The half of a [`TokioStream`] that reads.
pub type TokioReadHalf = readiness::ReadHalf<TokioSocket>;

/// The half of a [`TokioStream`] that writes.
pub type TokioWriteHalf = readiness::WriteHalf<TokioSocket>;

/// A TCP listener on tokio.
pub type TokioListener = readiness::Listener<TokioSocket>;

/// The socket of a [`TokioStream`] or a [`TokioListener`].
#[derive(Debug)]
pub struct TokioSocket {
    /// Of a listener too. tokio registers any descriptor, and its `TcpListener` does not tell whether it is
    /// ready.
    tcp: TcpStream,
}

impl AsFd for TokioSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl Readiness for TokioSocket {
    type Clock = Tokio;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { tcp: TcpStream::from_std(fd.into())? })
    }

    /// Nothing is ready once the task has used up tokio's own budget.
    #[inline]
    fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        interest: readiness::Interest,
    ) -> Poll<io::Result<()>> {
        match interest {
            readiness::Interest::Read => self.tcp.poll_read_ready(cx),
            readiness::Interest::Write => self.tcp.poll_write_ready(cx),
        }
    }

    /// Loses no report: only this thread polls epoll, and never while it polls a task.
    #[inline]
    fn clear_ready(&self, interest: readiness::Interest) {
        let interest = match interest {
            readiness::Interest::Read => Interest::READABLE,
            readiness::Interest::Write => Interest::WRITABLE,
        };
        let would_block = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.tcp.try_io(interest, would_block);
    }

    /// tokio polls the task again after it has polled epoll and run the other tasks.
    fn poll_yield(cx: &mut Context<'_>) {
        // Its first poll puts the waker behind those of the driver. That is all it does.
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    }
}

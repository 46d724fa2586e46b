//! [`TokioListener`]: drains the accept queue when epoll says that there is something in it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use owned_io::{BoundAddr, TcpListener};
use owned_io_os as os;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::stream::TokioStream;

/// A TCP listener on tokio.
#[derive(Debug)]
pub struct TokioListener {
    fd: AsyncFd<OwnedFd>,
    turn: os::listen::Turn,
}

impl TokioListener {
    pub(crate) fn new(bound: &BoundAddr) -> io::Result<Self> {
        let fd = AsyncFd::with_interest(os::listen::listen(bound)?, Interest::READABLE)?;
        Ok(Self { fd, turn: os::listen::Turn::default() })
    }
}

impl TcpListener for TokioListener {
    type Stream = TokioStream;

    async fn accept(&mut self) -> io::Result<(TokioStream, SocketAddr)> {
        if self.turn.is_over() {
            tokio::task::yield_now().await;
        }
        let accept = |fd: &OwnedFd| os::listen::try_accept(fd.as_fd());
        let accepted = self.fd.async_io(Interest::READABLE, accept).await;
        let (fd, peer) = self.turn.count(accepted)?;
        Ok((TokioStream::new(fd)?, peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        os::connect::local_addr(self.fd.as_fd())
    }
}

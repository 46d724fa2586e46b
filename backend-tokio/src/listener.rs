//! [`TokioListener`]: drains the accept queue when epoll says that there is something in it.

use std::io;
use std::net::SocketAddr;

use owned_io::backend::Turn;
use owned_io::{BoundAddr, TcpListener};
use owned_io_os as os;

use crate::stream::{self, TokioStream};

/// A TCP listener on tokio.
#[derive(Debug)]
pub struct TokioListener {
    tcp: tokio::net::TcpListener,
    turn: Turn,
}

pub(crate) fn listen(bound: &BoundAddr) -> io::Result<TokioListener> {
    let tcp = tokio::net::TcpListener::from_std(os::listen::listen(bound)?.into())?;
    Ok(TokioListener { tcp, turn: Turn::default() })
}

impl TcpListener for TokioListener {
    type Stream = TokioStream;

    async fn accept(&mut self) -> io::Result<(TokioStream, SocketAddr)> {
        if self.turn.is_over() {
            tokio::task::yield_now().await;
        }
        let accepted = self.tcp.accept().await;
        let (tcp, peer) = self.turn.count(accepted)?;
        Ok((stream::stream(tcp), peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

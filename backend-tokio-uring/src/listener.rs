//! [`TokioUringListener`]: drains the accept queue when epoll says that there is something in it.

use std::io;
use std::net::SocketAddr;

use owned_io::backend::Turn;
use owned_io::{BoundAddr, TcpListener};
use owned_io_os as os;

use crate::op;
use crate::stream::{self, TokioUringStream};

/// A TCP listener on tokio-uring.
#[derive(Debug)]
pub struct TokioUringListener {
    /// On the reactor that tokio-uring's ring is on too. A dropped accept leaves nothing behind
    /// there, and the ring may be held up without the listener being.
    tcp: tokio::net::TcpListener,
    turn: Turn,
}

pub(crate) fn listen(bound: &BoundAddr) -> io::Result<TokioUringListener> {
    let tcp = tokio::net::TcpListener::from_std(os::listen::listen(bound)?.into())?;
    Ok(TokioUringListener { tcp, turn: Turn::default() })
}

impl TcpListener for TokioUringListener {
    type Stream = TokioUringStream;

    async fn accept(&mut self) -> io::Result<(TokioUringStream, SocketAddr)> {
        if self.turn.is_over() {
            op::turn().await;
        }
        let accepted = self.tcp.accept().await;
        let accepted = accepted.and_then(|(tcp, peer)| Ok((tcp.into_std()?, peer)));
        let (tcp, peer) = self.turn.count(accepted)?;
        Ok((stream::stream(tcp.into()), peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

//! [`CompioListener`]: drains the accept queue when the ring says that there is something in it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use owned_io::backend::Turn;
use owned_io::{BoundAddr, TcpListener};
use owned_io_os as os;

use crate::op;
use crate::stream::{self, CompioStream, Socket};

/// A TCP listener on compio.
#[derive(Debug)]
pub struct CompioListener {
    /// Shut down when dropped, if a wait that was dropped, or forgotten, still has it: no client
    /// must get in then.
    socket: Socket,
    turn: Turn,
}

pub(crate) fn listen(bound: &BoundAddr) -> io::Result<CompioListener> {
    let socket = Socket::new(os::listen::listen(bound)?);
    Ok(CompioListener { socket, turn: Turn::default() })
}

impl TcpListener for CompioListener {
    type Stream = CompioStream;

    async fn accept(&mut self) -> io::Result<(CompioStream, SocketAddr)> {
        if self.turn.is_over() {
            op::turn().await;
        }
        let accepted = accept(&self.socket).await;
        let (fd, peer) = self.turn.count(accepted)?;
        Ok((stream::stream(Socket::new(fd)), peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        os::connect::local_addr(self.socket.fd.as_fd())
    }
}

async fn accept(socket: &Socket) -> io::Result<(OwnedFd, SocketAddr)> {
    // Each turn but the last waits in the ring; bounded by clients that give up in the queue.
    loop {
        match os::listen::try_accept(socket.fd.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                op::readable(&socket.fd).await?;
            }
            accepted => return accepted,
        }
    }
}

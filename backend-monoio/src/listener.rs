//! [`MonoioListener`]: drains the accept queue when the ring says that there is something in it.

use std::io;
use std::net::{Shutdown, SocketAddr};

use monoio::net::TcpListener as NativeListener;
use owned_io::backend::Turn;
use owned_io::{BoundAddr, TcpListener};
use owned_io_os as os;

use crate::op::listener_fd;
use crate::stream::{self, MonoioStream};

/// A TCP listener on monoio.
#[derive(Debug)]
pub struct MonoioListener {
    tcp: NativeListener,
    turn: Turn,
}

pub(crate) fn listen(bound: &BoundAddr) -> io::Result<MonoioListener> {
    let tcp = NativeListener::from_std(os::listen::listen(bound)?.into())?;
    Ok(MonoioListener { tcp, turn: Turn::default() })
}

impl TcpListener for MonoioListener {
    type Stream = MonoioStream;

    async fn accept(&mut self) -> io::Result<(MonoioStream, SocketAddr)> {
        if self.turn.is_over() {
            // Through the ring, even if the queue is not empty: others have their turn meanwhile.
            self.tcp.readable(true).await?;
        }
        // Each turn but the last waits in the ring; bounded by clients that give up in the queue.
        loop {
            match os::listen::try_accept(listener_fd(&self.tcp)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tcp.readable(true).await?;
                }
                accepted => {
                    let (fd, peer) = self.turn.count(accepted)?;
                    return Ok((stream::stream(fd)?, peer));
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

impl Drop for MonoioListener {
    fn drop(&mut self) {
        // A wait that was dropped, or forgotten, holds the descriptor until the kernel is done with
        // it, and monoio closes through its ring, a turn later at best. No client gets in meanwhile.
        let _ = os::shutdown(listener_fd(&self.tcp), Shutdown::Both);
    }
}

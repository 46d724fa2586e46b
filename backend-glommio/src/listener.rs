//! [`GlommioListener`]: drains the accept queue when the ring says that there is something in it.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use owned_io::backend::Turn;
use owned_io::{BoundAddr, TcpListener};
use owned_io_os as os;

use crate::op::Waited;
use crate::runtime::turn;
use crate::stream::{self, GlommioStream};

/// A TCP listener on glommio.
#[derive(Debug)]
pub struct GlommioListener {
    fd: Waited,
    turn: Turn,
}

pub(crate) fn listen(bound: &BoundAddr) -> io::Result<GlommioListener> {
    let fd = Waited::new(os::listen::listen(bound)?);
    Ok(GlommioListener { fd, turn: Turn::default() })
}

impl TcpListener for GlommioListener {
    type Stream = GlommioStream;

    async fn accept(&mut self) -> io::Result<(GlommioStream, SocketAddr)> {
        if self.turn.is_over() {
            turn().await;
        }
        let accepted = accept(&mut self.fd).await;
        let (fd, peer) = self.turn.count(accepted)?;
        Ok((stream::stream(fd), peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        os::connect::local_addr(self.fd.as_fd())
    }
}

impl Drop for GlommioListener {
    fn drop(&mut self) {
        // The ring may have a poll of it, which keeps it open until the reactor's next turn. Nobody
        // is to get in meanwhile.
        let _ = os::shutdown(self.fd.as_fd(), Shutdown::Both);
    }
}

async fn accept(listener: &mut Waited) -> io::Result<(OwnedFd, SocketAddr)> {
    // Each turn but the last waits in the ring; bounded by clients that give up in the queue.
    loop {
        match os::listen::try_accept(listener.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| listener.poll_readable(cx)).await;
            }
            accepted => return accepted,
        }
    }
}

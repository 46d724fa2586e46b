//! [`GlommioListener`]: waits for clients in the ring.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use owned_io_os as os;

use crate::op::PolledFd;
use crate::socket::GlommioSocket;

/// A TCP listener on glommio.
pub type GlommioListener = os::Listener<GlommioListenSocket>;

/// The socket of a [`GlommioListener`].
#[derive(Debug)]
pub struct GlommioListenSocket {
    fd: PolledFd,
}

impl AsFd for GlommioListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl os::ListenSocket for GlommioListenSocket {
    type Socket = GlommioSocket;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: PolledFd::new(fd) })
    }

    async fn readable(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.fd.poll_readable(cx)).await;
        Ok(())
    }
}

impl Drop for GlommioListenSocket {
    fn drop(&mut self) {
        // A poll in the ring may keep the descriptor open until the reactor runs next. The shutdown refuses
        // clients meanwhile.
        let _ = os::shutdown(self.as_fd(), Shutdown::Both);
    }
}

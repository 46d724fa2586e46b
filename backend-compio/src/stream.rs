//! [`CompioStream`]: a socket whose operations go through the ring.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::{Rc, Weak};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, Clock, ConnectOptions, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf,
    ShutdownHandle, beside,
};
use owned_io_os as os;

use crate::op;
use crate::runtime::Compio;

/// A TCP connection on compio.
pub type CompioStream = Duplex<CompioReadHalf, CompioWriteHalf>;

/// The half of a [`CompioStream`] that reads.
#[derive(Debug)]
pub struct CompioReadHalf {
    socket: Rc<Socket>,
}

/// The half of a [`CompioStream`] that writes.
#[derive(Debug)]
pub struct CompioWriteHalf {
    socket: Rc<Socket>,
}

/// What the halves and their shutdown handles share. Closed when the halves are dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Shared with the operations in the kernel.
    pub(crate) fd: Rc<OwnedFd>,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: Rc::new(fd) }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // An operation that was dropped keeps the descriptor open until it is cancelled, and one
        // that was forgotten for ever. This ends the connection all the same, and with it the
        // operation. Without one, closing does: it tells a peer whose bytes were not read so, by a
        // reset, which after a shutdown reads as a clean end.
        if Rc::strong_count(&self.fd) > 1 {
            self.shutdown(Shutdown::Both);
        }
    }
}

pub(crate) fn stream(socket: Socket) -> CompioStream {
    let socket = Rc::new(socket);
    Duplex::new(CompioReadHalf { socket: Rc::clone(&socket) }, CompioWriteHalf { socket })
}

pub(crate) async fn connect(options: ConnectOptions) -> io::Result<CompioStream> {
    let socket = Socket::new(os::connect::begin(&options)?);
    let timeout = Compio::sleep(options.timeout);
    let writable = beside(pin!(op::writable(&socket.fd)), timeout).await.pinned;
    writable.unwrap_or_else(|| Err(os::connect::timed_out(&options)))?;
    os::connect::finish(socket.fd.as_fd(), &options)?;
    Ok(stream(socket))
}

impl OwnedRead for CompioReadHalf {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        // A receive of nothing would wait for data.
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        op::recv(&self.socket.fd, buf).await
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        let fd = &self.socket.fd;
        // One operation, where waiting without a buffer takes one and a system call.
        if let Some(buf) = pool.take_to_wait() {
            return op::recv(fd, buf).await.into_result().map(|(_, buf)| buf);
        }
        // Each turn but the last was woken for nothing.
        loop {
            op::readable(fd).await?;
            match os::try_read_pooled(fd.as_fd(), pool) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

impl OwnedWrite for CompioWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        op::send(&self.socket.fd, buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        loop {
            let BufResult(result, back) = op::send_vectored(&self.socket.fd, bufs).await;
            bufs = back;
            // On a socket that does not block, SENDMSG, unlike SEND, gives up when it is woken and
            // still has to wait: because something came to be read, say (Linux 6.18).
            if !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return BufResult(result, bufs);
            }
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        os::shutdown(self.socket.fd.as_fd(), Shutdown::Write)
    }
}

impl Endpoint for CompioWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Socket> = Rc::downgrade(&self.socket);
        ShutdownHandle::new(target)
    }
}

impl TcpEndpoint for CompioWriteHalf {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        os::connect::local_addr(self.socket.fd.as_fd())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        os::connect::peer_addr(self.socket.fd.as_fd())
    }
}

impl ShutdownTarget for Socket {
    fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection is gone, and then there is nothing to shut down.
        let _ = os::shutdown(self.fd.as_fd(), how);
    }

    fn abort(&self) {
        let _ = os::abort(self.fd.as_fd());
    }
}

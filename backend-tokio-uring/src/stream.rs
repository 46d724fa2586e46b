//! [`TokioUringStream`]: a socket whose operations go through the ring.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, ConnectOptions, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf,
    ShutdownHandle,
};
use owned_io_os as os;
use tokio::net::TcpStream;

use crate::op::{self, Message};

/// A TCP connection on tokio-uring.
pub type TokioUringStream = Duplex<TokioUringReadHalf, TokioUringWriteHalf>;

/// The half of a [`TokioUringStream`] that reads.
#[derive(Debug)]
pub struct TokioUringReadHalf {
    socket: Rc<Socket>,
}

/// The half of a [`TokioUringStream`] that writes.
#[derive(Debug)]
pub struct TokioUringWriteHalf {
    socket: Rc<Socket>,
    /// For vectored writes: made by the first, used again by the next.
    message: Option<Rc<Message>>,
}

/// What the halves and their shutdown handles share. Closed when the halves are dropped.
#[derive(Debug)]
struct Socket {
    /// Shared with the operations in the kernel, and with nobody else.
    fd: Rc<OwnedFd>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // An operation that was dropped goes on in the kernel, and keeps the descriptor open. This
        // ends the connection all the same, and with it the operation. Only then: otherwise the
        // descriptor is closed now, and what was not read makes that a reset, as it should.
        if Rc::strong_count(&self.fd) > 1 {
            let _ = os::shutdown(self.fd.as_fd(), Shutdown::Both);
        }
    }
}

pub(crate) fn stream(fd: OwnedFd) -> TokioUringStream {
    let socket = Rc::new(Socket { fd: Rc::new(fd) });
    let read = TokioUringReadHalf { socket: Rc::clone(&socket) };
    Duplex::new(read, TokioUringWriteHalf { socket, message: None })
}

pub(crate) async fn connect(options: ConnectOptions) -> io::Result<TokioUringStream> {
    let fd: OwnedFd = os::connect::begin(&options)?;
    // Through epoll: a wait that is dropped leaves nothing behind.
    let tcp = TcpStream::from_std(fd.into())?;
    match tokio::time::timeout(options.timeout, tcp.writable()).await {
        Ok(writable) => writable?,
        Err(_elapsed) => return Err(os::connect::timed_out(&options)),
    }
    os::connect::finish(tcp.as_fd(), &options)?;
    Ok(stream(tcp.into_std()?.into()))
}

impl OwnedRead for TokioUringReadHalf {
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

impl OwnedWrite for TokioUringWriteHalf {
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
            let BufResult(result, back) =
                op::send_vectored(&self.socket.fd, bufs, &mut self.message).await;
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

impl Endpoint for TokioUringWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Socket> = Rc::downgrade(&self.socket);
        ShutdownHandle::new(target)
    }
}

impl TcpEndpoint for TokioUringWriteHalf {
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

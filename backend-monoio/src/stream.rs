//! [`MonoioStream`]: a socket whose operations go through monoio's ring.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};

use monoio::io::{AsyncReadRent, AsyncWriteRent, OwnedReadHalf, Splitable};
use monoio::net::TcpStream;
use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, ConnectOptions, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf,
    ShutdownHandle,
};
use owned_io_os as os;

use crate::op::{NativeWriteHalf, Reading, Shared, Writing};
use crate::runtime::SLEEP_MAX;

/// A TCP connection on monoio.
pub type MonoioStream = Duplex<MonoioReadHalf, MonoioWriteHalf>;

/// The half of a [`MonoioStream`] that reads.
#[derive(Debug)]
pub struct MonoioReadHalf {
    // Before the native half, so that the connection is shut down before it is closed.
    socket: Rc<Socket>,
    native: OwnedReadHalf<TcpStream>,
}

/// The half of a [`MonoioStream`] that writes.
#[derive(Debug)]
pub struct MonoioWriteHalf {
    socket: Rc<Socket>,
    native: NativeWriteHalf,
}

/// What the halves and their shutdown handles share. Shut down, and then closed, when the halves
/// are dropped.
#[derive(Debug)]
struct Socket {
    shared: Shared,
    /// Operations that were begun and have not completed. Those that were dropped or forgotten stay
    /// counted: the kernel may hold the descriptor for them.
    held: Cell<u32>,
}

pub(crate) fn stream(fd: OwnedFd) -> io::Result<MonoioStream> {
    let (read, write) = halves(fd)?;
    Ok(Duplex::new(read, write))
}

fn halves(fd: OwnedFd) -> io::Result<(MonoioReadHalf, MonoioWriteHalf)> {
    let (read, write) = TcpStream::from_std(fd.into())?.into_split();
    let socket = Rc::new(Socket { shared: Shared::new(&read), held: Cell::new(0) });
    let write = MonoioWriteHalf { socket: Rc::clone(&socket), native: NativeWriteHalf::new(write) };
    Ok((MonoioReadHalf { socket, native: read }, write))
}

pub(crate) async fn connect(options: ConnectOptions) -> io::Result<MonoioStream> {
    let (read, write) = halves(os::connect::begin(&options)?)?;
    let socket = &read.socket;
    match monoio::time::timeout(options.timeout.min(SLEEP_MAX), socket.writable()).await {
        Ok(writable) => writable?,
        Err(_elapsed) => return Err(os::connect::timed_out(&options)),
    }
    os::connect::finish(socket.shared.as_fd(), &options)?;
    Ok(Duplex::new(read, write))
}

impl OwnedRead for MonoioReadHalf {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        let reading = self.native.read(Reading(buf));
        let (result, Reading(buf)) = self.socket.holding(reading).await;
        BufResult(result, buf)
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        // One operation, where waiting without a buffer takes one and a system call.
        if let Some(buf) = pool.take_to_wait() {
            return self.read(buf).await.into_result().map(|(_, buf)| buf);
        }
        let socket = &self.socket;
        // Each turn but the last waits in the ring; another reader took the bytes, or there were
        // none (a checksum that was wrong).
        loop {
            socket.readable().await?;
            match os::try_read_pooled(socket.shared.as_fd(), pool) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

impl OwnedWrite for MonoioWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        let writing = self.native.write(Writing(buf));
        let (result, Writing(buf)) = self.socket.holding(writing).await;
        BufResult(result.and_then(os::check_written), buf)
    }

    /// By `sendmsg`, once the ring has said that it can be done: monoio's own vectored write is a
    /// `WRITEV`, which raises SIGPIPE where `sendmsg` is told not to.
    async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        let socket = &self.socket;
        // Each turn but the last waits in the ring.
        loop {
            if let Err(error) = socket.writable().await {
                return BufResult(Err(error), bufs);
            }
            match os::try_write_vectored(socket.shared.as_fd(), &mut bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return BufResult(result, bufs),
            }
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        os::shutdown(self.socket.shared.as_fd(), Shutdown::Write)
    }
}

impl Endpoint for MonoioWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Socket> = Rc::downgrade(&self.socket);
        ShutdownHandle::new(target)
    }
}

impl TcpEndpoint for MonoioWriteHalf {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        os::connect::local_addr(self.socket.shared.as_fd())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        os::connect::peer_addr(self.socket.shared.as_fd())
    }
}

impl ShutdownTarget for Socket {
    fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection is gone, and then there is nothing to shut down.
        let _ = os::shutdown(self.shared.as_fd(), how);
    }

    fn abort(&self) {
        let _ = os::abort(self.shared.as_fd());
    }
}

impl Socket {
    async fn readable(&self) -> io::Result<()> {
        self.holding(self.shared.readable()).await
    }

    async fn writable(&self) -> io::Result<()> {
        self.holding(self.shared.writable()).await
    }

    /// Waits for an operation of the ring, and counts it until it has completed.
    async fn holding<T>(&self, operation: impl Future<Output = T>) -> T {
        self.held.set(self.held.get() + 1);
        let output = operation.await;
        self.held.set(self.held.get() - 1);
        output
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // An operation that was dropped, or forgotten, holds the descriptor until the kernel is
        // done with it: the connection ends now, and with it the operation. Otherwise monoio closes
        // it, through its ring, a turn later at best.
        if self.held.get() > 0 {
            self.shutdown(Shutdown::Both);
        } else {
            os::end(self.shared.as_fd());
        }
    }
}

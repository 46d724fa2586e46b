//! [`Stream`]: a TCP connection and its two halves, over the [`Socket`] of a backend.

use std::fmt::Debug;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, Clock, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf, ShutdownHandle,
};

use crate::{abort, connect, shutdown, try_peek, try_write};

/// A TCP socket, and how its runtime reads and writes. Both halves of a [`Stream`] share it.
///
/// A backend implements [`Readiness`](crate::readiness::Readiness) or
/// [`Completion`](crate::completion::Completion) instead, where one of them fits. Each has few functions, and
/// this crate implements `Socket` by them.
///
/// Dropping it closes the connection, even while the kernel still works on an operation that was dropped
/// or forgotten.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait Socket: AsFd + Debug + Sized + 'static {
    /// The runtime's clock. [`sleep`](Clock::sleep) limits how long a connect takes. A listener yields by a
    /// sleep of zero.
    type Clock: Clock;

    /// Takes a non-blocking socket that is connected, or has begun to connect.
    ///
    /// # Errors
    /// The runtime's. `fd` is closed then.
    fn register(fd: OwnedFd) -> io::Result<Self>;

    /// Waits until an attempt to connect has ended, whether it succeeded or not.
    ///
    /// # Errors
    /// Those of waiting. The error of the attempt may be among them.
    ///
    /// # Cancellation
    /// Safe: the caller drops the socket.
    async fn connected(&self) -> io::Result<()>;

    /// See [`OwnedRead::read`].
    async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B>;

    /// See [`OwnedRead::read_pooled`].
    async fn read_pooled(&self, pool: &Pool) -> io::Result<PoolBuf>;

    /// See [`OwnedWrite::write`].
    async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B>;

    /// See [`OwnedWrite::write_vectored`].
    async fn write_vectored<B: IoBuf>(&self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>>;
}

/// A TCP connection.
pub type Stream<S> = Duplex<ReadHalf<S>, WriteHalf<S>>;

/// The half of a [`Stream`] that reads.
#[derive(Debug)]
pub struct ReadHalf<S> {
    shared: Rc<Shared<S>>,
}

/// The half of a [`Stream`] that writes.
#[derive(Debug)]
pub struct WriteHalf<S> {
    shared: Rc<Shared<S>>,
}

/// The socket, which both halves own and their shutdown handles refer to. Dropping the second half closes it.
#[derive(Debug)]
struct Shared<S> {
    socket: S,
}

/// The stream of a connected socket.
pub(crate) fn stream<S>(socket: S) -> Stream<S> {
    let shared = Rc::new(Shared { socket });
    Duplex::new(ReadHalf { shared: Rc::clone(&shared) }, WriteHalf { shared })
}

/// The stream of a connection that any worker has accepted: this one serves it. `fd` does not block.
///
/// # Errors
/// Those of the registration with the runtime. `fd` is closed then.
pub fn adopt<S: Socket>(fd: OwnedFd) -> io::Result<Stream<S>> {
    S::register(fd).map(stream)
}

// The futures of the socket are returned as they are. An `async` block around each would move the buffer
// once more.
impl<S: Socket> OwnedRead for ReadHalf<S> {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        self.shared.socket.read(buf)
    }

    fn read_pooled(&mut self, pool: &Pool) -> impl Future<Output = io::Result<PoolBuf>> {
        self.shared.socket.read_pooled(pool)
    }
}

impl<S: Socket> OwnedWrite for WriteHalf<S> {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        self.shared.socket.write(buf)
    }

    fn write_vectored<B: IoBuf>(
        &mut self,
        bufs: IoVec<B>,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        self.shared.socket.write_vectored(bufs)
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        try_write(self.shared.socket.as_fd(), bytes)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        shutdown(self.shared.socket.as_fd(), Shutdown::Write)
    }
}

impl<S: Socket> Endpoint for WriteHalf<S> {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Shared<S>> = Rc::downgrade(&self.shared);
        ShutdownHandle::new(target)
    }
}

impl<S: Socket> TcpEndpoint for WriteHalf<S> {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        connect::local_addr(self.shared.socket.as_fd())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        connect::peer_addr(self.shared.socket.as_fd())
    }
}

impl<S: Socket> ShutdownTarget for Shared<S> {
    fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection is gone. Then there is nothing to shut down.
        let _ = shutdown(self.socket.as_fd(), how);
    }

    fn drops_cleanly(&self) -> bool {
        // close(2) resets a connection with unread bytes (RFC 2525 section 2.17, `__tcp_close` in net/ipv4/tcp.c). The end
        // of the stream does not count, and after an error nothing is left to lose.
        !try_peek(self.socket.as_fd()).unwrap_or(false)
    }

    fn abort(&self) {
        let _ = abort(self.socket.as_fd());
    }
}

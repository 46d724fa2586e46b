//! [`ByteStream`]: a connection over any transport. [`ShutdownHandle`] ends it.

use std::net::{Shutdown, SocketAddr};
use std::rc::Weak;
use std::{fmt, io};

use crate::{BufResult, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf, TcpStream};

/// The most bytes that one read passes to the kernel, and that one write does while other tasks have work. A larger buffer is
/// used in part.
///
/// The limit keeps one operation to about 50 µs, during which the thread does nothing else. So fifty tasks that write as
/// much as they can let a client wait for less than 10 ms. A task that is alone [may write more](LONE_WRITE_BYTES_MAX).
pub const TRANSFER_BYTES_MAX: usize = 128 * 1024;

/// The most bytes that one write passes to the kernel while [no other task](crate::coop::write_bytes_max) has work.
///
/// Such a write takes about 200 µs, for which a task that becomes ready meanwhile may wait: once, because then the writer
/// is not alone. With [`TRANSFER_BYTES_MAX`] a task that sends as much as it can reaches 0.7 of this bandwidth, because
/// the receiver is woken so much more often.
pub const LONE_WRITE_BYTES_MAX: usize = 512 * 1024;

/// A connection: it reads, writes and splits into halves. A [`ShutdownHandle`] ends it from elsewhere.
///
/// Dropping it closes the connection, even while the kernel still works on a forgotten operation. Dropping both
/// halves does the same. Dropping one half does nothing.
///
/// If received bytes were not read, the peer sees a reset. If an operation was still pending, it may see the end of the
/// stream instead.
///
/// # Implementing it
///
/// ```
/// use std::io;
/// use owned_io::{BufResult, ByteStream, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool};
/// use owned_io::{PoolBuf, ShutdownHandle};
///
/// /// A stream that counts what it reads, over any other.
/// struct Counted<S> { inner: S, read: u64 }
///
/// impl<S: OwnedRead> OwnedRead for Counted<S> {
///     async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
///         let result = self.inner.read(buf).await;
///         self.read += *result.0.as_ref().unwrap_or(&0) as u64;
///         result
///     }
///     async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
///         let buf = self.inner.read_pooled(pool).await?;
///         self.read += buf.len() as u64;
///         Ok(buf)
///     }
/// }
///
/// impl<S: OwnedWrite> OwnedWrite for Counted<S> {
///     async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
///         self.inner.write(buf).await
///     }
///     async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
///         self.inner.write_vectored(bufs).await
///     }
///     async fn shutdown(&mut self) -> io::Result<()> {
///         self.inner.shutdown().await
///     }
/// }
///
/// impl<S: ByteStream> ByteStream for Counted<S> {
///     type ReadHalf = Counted<S::ReadHalf>;
///     type WriteHalf = S::WriteHalf;
///
///     fn into_split(self) -> (Self::ReadHalf, Self::WriteHalf) {
///         let (read, write) = self.inner.into_split();
///         (Counted { inner: read, read: self.read }, write)
///     }
///     fn shutdown_handle(&self) -> ShutdownHandle {
///         self.inner.shutdown_handle()
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// let (a, mut b) = owned_io_sim::pipe();
/// let _ = b.write("12345").await;
/// let (mut read, _write) = Counted { inner: a, read: 0 }.into_split();
/// let _ = read.read(Vec::with_capacity(16)).await;
/// assert!((1..=5).contains(&read.read));
/// # });
/// ```
pub trait ByteStream: OwnedRead + OwnedWrite + 'static {
    /// The read half.
    type ReadHalf: OwnedRead + 'static;
    /// The write half.
    type WriteHalf: OwnedWrite + 'static;

    /// Splits the connection into two halves, so that one task can read while another writes.
    ///
    /// The connection is closed when both are dropped. To end one direction, call
    /// [`shutdown`](OwnedWrite::shutdown) on the write half.
    fn into_split(self) -> (Self::ReadHalf, Self::WriteHalf);

    /// A handle that ends operations on this connection. It also works after the connection is split.
    ///
    /// # Implementer notes
    /// A wrapper may return the handle of the connection within. One whose [`shutdown`](OwnedWrite::shutdown) writes
    /// something, or that keeps bytes which were written to it, must return a handle of its own:
    /// [`drops_cleanly`](ShutdownHandle::drops_cleanly) of the inner one would let protocols drop it without its shutdown.
    fn shutdown_handle(&self) -> ShutdownHandle;
}

impl<T: ByteStream> ByteStream for Box<T> {
    type ReadHalf = T::ReadHalf;
    type WriteHalf = T::WriteHalf;

    fn into_split(self) -> (T::ReadHalf, T::WriteHalf) {
        (*self).into_split()
    }

    fn shutdown_handle(&self) -> ShutdownHandle {
        (**self).shutdown_handle()
    }
}

/// Ends a connection while other code reads from it or writes to it.
///
/// It is cheap to clone. It does not keep the connection open: once the stream and its halves are dropped, it
/// does nothing.
#[derive(Clone)]
pub struct ShutdownHandle {
    target: Weak<dyn ShutdownTarget>,
}

impl ShutdownHandle {
    /// For backends: a handle to the state that a stream and its halves share.
    pub const fn new(target: Weak<dyn ShutdownTarget>) -> Self {
        Self { target }
    }

    /// Shuts down one side of the connection, or both.
    ///
    /// - [`Shutdown::Read`]: a pending read returns `Ok(0)`. A later read does so too while nothing is to be
    ///   read. On Linux, bytes that the peer still sends can be read. Writes continue, pending ones included.
    /// - [`Shutdown::Write`]: the peer reads the end of the stream. A later write fails with
    ///   [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
    /// - [`Shutdown::Both`]: both of these. A pending write also ends, with that error or a short count.
    ///
    /// It never fails: a closed connection needs no shutdown. The caller must remember its own shutdown, as
    /// [`shutdown_after`](fn@crate::shutdown_after) does, because the read returns as if the peer had ended the
    /// stream.
    pub fn shutdown(&self, how: Shutdown) {
        if let Some(target) = self.target.upgrade() {
            target.shutdown(how);
        }
    }

    /// Whether dropping the connection now ends it as a shutdown of the write side would: the peer reads what was
    /// written, and then the end of the stream.
    ///
    /// It is for a protocol that ends the connection first, and saves it the shutdown. False while received bytes are
    /// unread: the drop would reset the connection, and the peer might lose what was written last. False as well over a
    /// transport that has more to send before it ends, such as TLS, and once the connection was dropped. A write that is
    /// pending is lost in any case.
    ///
    /// Bytes that arrive after the call and before the drop cause a reset as well. So drop both halves at once.
    pub fn drops_cleanly(&self) -> bool {
        self.target.upgrade().is_some_and(|target| target.drops_cleanly())
    }

    /// Resets the connection at once.
    ///
    /// Written bytes that have not reached the peer are discarded, and so are received bytes that were not
    /// read. The kernel keeps no state of the connection. The peer's next operation fails with
    /// [`ConnectionReset`](std::io::ErrorKind::ConnectionReset); a write may fail with
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe). At this end, pending and later reads and writes fail. A
    /// pending write of which the peer took a part may return its length first.
    ///
    /// Use it for a peer that reads nothing. After a [shutdown](Self::shutdown) and a drop, queued bytes stay
    /// in the kernel until the peer reads them or the kernel gives up, minutes later. Also use it when an early
    /// end must not look like a clean one.
    ///
    /// It never fails: a closed connection needs no reset.
    pub fn abort(&self) {
        if let Some(target) = self.target.upgrade() {
            target.abort();
        }
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.target.strong_count() > 0;
        f.debug_struct("ShutdownHandle").field("open", &open).finish_non_exhaustive()
    }
}

/// The state that a [`ShutdownHandle`] acts on.
///
/// # Implementing it
///
/// ```
/// use std::cell::Cell;
/// use std::net::Shutdown;
/// use std::rc::{Rc, Weak};
/// use owned_io::ShutdownHandle;
/// use owned_io::backend::ShutdownTarget;
///
/// /// The state that the halves of a stream share. In a backend it has the socket.
/// struct Shared { is_shut: Cell<bool> }
///
/// impl ShutdownTarget for Shared {
///     fn shutdown(&self, _how: Shutdown) {
///         self.is_shut.set(true);
///     }
///     fn abort(&self) {
///         self.is_shut.set(true); // with a socket: reset it
///     }
/// }
///
/// let shared = Rc::new(Shared { is_shut: Cell::new(false) });
/// let weak: Weak<Shared> = Rc::downgrade(&shared);
/// ShutdownHandle::new(weak).shutdown(Shutdown::Both);
/// assert!(shared.is_shut.get());
/// ```
pub trait ShutdownTarget: 'static {
    /// See [`ShutdownHandle::shutdown`]. Ignore errors.
    fn shutdown(&self, how: Shutdown);

    /// See [`ShutdownHandle::drops_cleanly`]. Without an implementation it is false: then protocols shut the connection
    /// down, and read to the end.
    fn drops_cleanly(&self) -> bool {
        false
    }

    /// See [`ShutdownHandle::abort`]. It must not wait for operations that hold the descriptor, as close(2)
    /// with a zero `SO_LINGER` would. Ignore errors.
    fn abort(&self);
}

/// A connection that consists of two halves. With it, a backend implements only the halves.
///
/// ```
/// use std::io;
/// use std::net::SocketAddr;
/// use owned_io::backend::{Duplex, Endpoint, TcpEndpoint};
/// use owned_io::{BufResult, IoBuf, IoVec, OwnedWrite, ShutdownHandle};
/// # use owned_io_sim::SimWriteHalf;
///
/// /// Writes to a connection, but discards the bytes while it is muted.
/// struct Muted { inner: SimWriteHalf, muted: bool }
///
/// impl OwnedWrite for Muted {
///     async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
///         if self.muted { BufResult(Ok(buf.buf_len()), buf) } else { self.inner.write(buf).await }
///     }
/// #   async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
/// #       self.inner.write_vectored(bufs).await
/// #   }
///     // ... and the rest
/// #   async fn shutdown(&mut self) -> io::Result<()> { self.inner.shutdown().await }
/// }
///
/// impl Endpoint for Muted {
///     fn shutdown_handle(&self) -> ShutdownHandle {
///         self.inner.shutdown_handle()
///     }
/// }
///
/// impl TcpEndpoint for Muted {
///     fn local_addr(&self) -> io::Result<SocketAddr> {
///         self.inner.local_addr()
///     }
///     fn peer_addr(&self) -> io::Result<SocketAddr> {
///         self.inner.peer_addr()
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// use owned_io::{ByteStream, OwnedWriteExt, TcpStream};
/// let (a, _b) = owned_io_sim::pipe();
/// let (read, inner) = a.into_split();
/// let mut stream = Duplex::new(read, Muted { inner, muted: true });
/// assert!(stream.peer_addr().is_ok()); // `TcpStream`, because of `TcpEndpoint`
/// stream.write_all("unheard").await.into_result()?;
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Duplex<R, W> {
    read: R,
    write: W,
}

impl<R, W> Duplex<R, W> {
    /// Joins two halves of one connection.
    pub const fn new(read: R, write: W) -> Self {
        Self { read, write }
    }

    /// The halves. [`into_split`](ByteStream::into_split) returns them by value.
    pub const fn get_ref(&self) -> (&R, &W) {
        (&self.read, &self.write)
    }

    /// The halves. The connection does not see the bytes that are read from them or written to them directly.
    pub const fn get_mut(&mut self) -> (&mut R, &mut W) {
        (&mut self.read, &mut self.write)
    }
}

/// The write half of a [`Duplex`] implements it, so that the `Duplex` is a [`ByteStream`]. See the example at
/// [`Duplex`].
pub trait Endpoint {
    /// See [`ByteStream::shutdown_handle`].
    fn shutdown_handle(&self) -> ShutdownHandle;
}

/// The write half of a [`Duplex`] implements it, so that the `Duplex` is a [`TcpStream`].
pub trait TcpEndpoint: Endpoint {
    /// The local address.
    ///
    /// # Errors
    /// Those of [`TcpStream::local_addr`].
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The peer's address.
    ///
    /// # Errors
    /// Those of [`TcpStream::peer_addr`].
    fn peer_addr(&self) -> io::Result<SocketAddr>;
}

impl<R: OwnedRead, W> OwnedRead for Duplex<R, W> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.read.read(buf).await
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.read.read_pooled(pool).await
    }
}

impl<R, W: OwnedWrite> OwnedWrite for Duplex<R, W> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.write.write(buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        self.write.write_vectored(bufs).await
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write.try_write(bytes)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.write.shutdown().await
    }
}

impl<R, W> ByteStream for Duplex<R, W>
where
    R: OwnedRead + 'static,
    W: OwnedWrite + Endpoint + 'static,
{
    type ReadHalf = R;
    type WriteHalf = W;

    fn into_split(self) -> (R, W) {
        (self.read, self.write)
    }

    fn shutdown_handle(&self) -> ShutdownHandle {
        self.write.shutdown_handle()
    }
}

impl<R, W> TcpStream for Duplex<R, W>
where
    R: OwnedRead + 'static,
    W: OwnedWrite + TcpEndpoint + 'static,
{
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.write.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.write.peer_addr()
    }
}

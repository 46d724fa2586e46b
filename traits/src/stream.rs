//! [`ByteStream`]: a connection, whatever carries it, and the handle that ends it.

use std::net::{Shutdown, SocketAddr};
use std::rc::Weak;
use std::{fmt, io};

use crate::{BufResult, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf, TcpStream};

/// The most bytes that one read or write passes to the kernel, so that one operation, during which the
/// thread does nothing else, takes at most some 50 µs. A larger buffer is used in part.
pub const TRANSFER_BYTES_MAX: usize = 128 * 1024;

/// A connection: reads, writes, splits into halves, and can be ended from beside.
///
/// Dropping it closes the connection, even while the kernel still works on an operation that was
/// forgotten; dropping both halves does the same, and dropping one of them does nothing.
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
    /// The half that reads.
    type ReadHalf: OwnedRead + 'static;
    /// The half that writes.
    type WriteHalf: OwnedWrite + 'static;

    /// Two halves, so that one task may read while another writes.
    ///
    /// The connection is closed when both are dropped. To end one direction, call
    /// [`shutdown`](OwnedWrite::shutdown) on the write half.
    fn into_split(self) -> (Self::ReadHalf, Self::WriteHalf);

    /// A handle that ends operations on this connection. Made before splitting, it serves both
    /// halves.
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

/// Ends a connection that somebody else is reading from or writing to.
///
/// Cheap to clone. It does not keep the connection open: once the stream and its halves are
/// dropped, it does nothing.
#[derive(Clone)]
pub struct ShutdownHandle {
    target: Weak<dyn ShutdownTarget>,
}

impl ShutdownHandle {
    /// A handle to what a backend's stream and its halves share.
    pub const fn new(target: Weak<dyn ShutdownTarget>) -> Self {
        Self { target }
    }

    /// Shuts the connection down: the given side, or both.
    ///
    /// - [`Shutdown::Read`]: a pending read returns `Ok(0)`, and so does a later one while there is
    ///   nothing to read. What the peer sends nevertheless is still read, on Linux. Writes go on,
    ///   those that wait too.
    /// - [`Shutdown::Write`]: the peer sees the end of the stream; a later write fails with
    ///   [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
    /// - [`Shutdown::Both`]: both, and a pending write ends, with that error or a short count.
    ///
    /// Never fails: a connection that is gone already needs no shutting down. As in
    /// [`shutdown_after`](crate::shutdown_after), the caller keeps in mind that it was the one who did it: a read
    /// ended this way looks like a clean end.
    pub fn shutdown(&self, how: Shutdown) {
        if let Some(target) = self.target.upgrade() {
            target.shutdown(how);
        }
    }

    /// Resets the connection, at once.
    ///
    /// What was written and has not reached the peer is thrown away, and so is what has arrived and was
    /// not read; the kernel keeps nothing of the connection. The peer's next operation fails with
    /// [`ConnectionReset`](std::io::ErrorKind::ConnectionReset), a write perhaps with
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe). At this end a pending read or write fails, and so
    /// does each later one; a write of which the peer took some may say how much first.
    ///
    /// For a peer that takes nothing: what is only [shut down](Self::shutdown) and dropped, with bytes
    /// still queued, stays in the kernel with them until the peer takes them or the kernel gives up,
    /// minutes later. And where an end that comes too early must not look like a clean one.
    ///
    /// Never fails: a connection that is gone already needs no reset.
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

/// What a [`ShutdownHandle`] acts upon.
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
/// /// What the halves of a stream share: a socket, in a backend.
/// struct Shared { is_shut: Cell<bool> }
///
/// impl ShutdownTarget for Shared {
///     fn shutdown(&self, _how: Shutdown) {
///         self.is_shut.set(true);
///     }
///     fn abort(&self) {
///         self.is_shut.set(true); // and reset, where there is a socket
///     }
/// }
///
/// let shared = Rc::new(Shared { is_shut: Cell::new(false) });
/// let weak: Weak<Shared> = Rc::downgrade(&shared);
/// ShutdownHandle::new(weak).shutdown(Shutdown::Both);
/// assert!(shared.is_shut.get());
/// ```
pub trait ShutdownTarget: 'static {
    /// See [`ShutdownHandle::shutdown`]. Errors are of no use to anybody: drop them.
    fn shutdown(&self, how: Shutdown);

    /// See [`ShutdownHandle::abort`]. It does not wait for operations that hold the descriptor: closing,
    /// with `SO_LINGER` at zero, would. Errors are of no use here either.
    fn abort(&self);
}

/// A connection made of its two halves: with it a backend implements only the halves.
///
/// ```
/// use std::io;
/// use std::net::SocketAddr;
/// use owned_io::backend::{Duplex, Endpoint, TcpEndpoint};
/// use owned_io::{BufResult, IoBuf, IoVec, OwnedWrite, ShutdownHandle};
/// # use owned_io_sim::SimWriteHalf;
///
/// /// Writes to a connection, except what it is told to keep back.
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
    /// The connection that these are the halves of.
    pub const fn new(read: R, write: W) -> Self {
        Self { read, write }
    }

    /// Its halves. [`into_split`](ByteStream::into_split) gives them away.
    pub const fn get_ref(&self) -> (&R, &W) {
        (&self.read, &self.write)
    }

    /// Its halves. What is read from one, or written to it, the connection does not see.
    pub const fn get_mut(&mut self) -> (&mut R, &mut W) {
        (&mut self.read, &mut self.write)
    }
}

/// What a [`Duplex`] asks of its write half, to be a [`ByteStream`]. An implementation is shown
/// [there](Duplex).
pub trait Endpoint {
    /// See [`ByteStream::shutdown_handle`].
    fn shutdown_handle(&self) -> ShutdownHandle;
}

/// What a [`Duplex`] asks of its write half beyond that, to be a [`TcpStream`].
pub trait TcpEndpoint: Endpoint {
    /// Our end's address.
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

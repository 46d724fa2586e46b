//! [`ByteStream`]: a connection, whatever carries it, and the handle that ends it.

use std::fmt;
use std::net::Shutdown;
use std::rc::Weak;

use crate::{OwnedRead, OwnedWrite};

/// The most bytes that one read or write passes to the kernel: `MAX_RW_COUNT` of Linux
/// (`include/linux/fs.h`: `INT_MAX`, rounded down to a page). A larger buffer is used in part.
pub const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// A connection: reads, writes, splits into halves, and can be ended from beside.
///
/// Dropping it closes the connection, even while the kernel still works on an operation that was
/// forgotten; dropping both halves does the same, and dropping one of them does nothing.
///
/// # Implementing it
///
/// ```
/// use std::io;
/// use owned_io::{BufResult, ByteStream, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, ShutdownHandle};
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
    /// - [`Shutdown::Read`]: a pending read, and every later one once the bytes that had arrived
    ///   are read, returns `Ok(0)`.
    /// - [`Shutdown::Write`]: the peer sees the end of the stream; a later write fails with
    ///   [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
    /// - [`Shutdown::Both`]: both, and a pending write ends, with that error or a short count.
    ///
    /// Never fails: a connection that is gone already needs no shutting down. As in
    /// [`timeout`](crate::timeout), the caller keeps in mind that it was the one who did it: a read
    /// ended this way looks like a clean end.
    pub fn shutdown(&self, how: Shutdown) {
        if let Some(target) = self.target.upgrade() {
            target.shutdown(how);
        }
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.target.strong_count() > 0;
        f.debug_struct("ShutdownHandle").field("open", &open).finish_non_exhaustive()
    }
}

/// What a [`ShutdownHandle`] acts upon; implemented by backends.
pub trait ShutdownTarget: 'static {
    /// See [`ShutdownHandle::shutdown`]. Errors are of no use to anybody: drop them.
    fn shutdown(&self, how: Shutdown);
}

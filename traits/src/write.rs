//! [`OwnedWrite`] and what is built on it.

use std::future::Future;
use std::io;

use crate::{BufResult, IoBuf, IoBufExt, IoVec, OwnedRead, Pool, Slice};

/// Writes bytes from buffers that it owns for as long as it needs them.
///
/// There is no flush: a write that has returned has handed its bytes to the transport. What queues
/// messages above it has a flush of its own.
///
/// # Implementing it
///
/// ```
/// use std::io;
/// use owned_io::{BufResult, IoBuf, IoBufExt, IoVec, OwnedWrite, OwnedWriteExt};
///
/// /// Keeps what it is given, up to 8 bytes, then fails as a full disk would.
/// #[derive(Default)]
/// struct Small { bytes: Vec<u8>, ended: bool }
///
/// impl Small {
///     fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
///         if self.ended {
///             return Err(io::ErrorKind::BrokenPipe.into());
///         }
///         let n = bytes.len().min(8 - self.bytes.len());
///         self.bytes.extend_from_slice(&bytes[..n]);
///         // Never `Ok(0)` for bytes that were there to be written.
///         if n == 0 && !bytes.is_empty() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
///     }
/// }
///
/// impl OwnedWrite for Small {
///     async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
///         BufResult(self.take(buf.buf_bytes()), buf)
///     }
///     async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
///         let result = self.take(bufs.as_io_slices().first().map_or(&[], |piece| piece));
///         if let Ok(n) = result {
///             bufs.advance(n); // the implementer's duty
///         }
///         BufResult(result, bufs)
///     }
///     async fn shutdown(&mut self) -> io::Result<()> {
///         self.ended = true;
///         Ok(())
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// let mut small = Small::default();
/// small.write_all("12345").await.into_result()?;
/// let BufResult(result, _) = small.write_all("6789").await;
/// assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
/// ```
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedWrite {
    /// Writes the initialised bytes of `buf`, or the first of them, and hands it back.
    ///
    /// Waits until the transport has taken at least one byte; others have their turn as they have
    /// beside [`read`](OwnedRead::read)s. `Ok(n)`: it has taken the first `n`;
    /// `n` is at least 1 and may be less than the length. The buffer comes back unchanged. An
    /// empty buffer returns `Ok(0)` at once and leaves the stream as it is.
    ///
    /// # Errors
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) after a shutdown of the write side, by whichever
    /// way; that or [`ConnectionReset`](io::ErrorKind::ConnectionReset) when the peer is gone. The
    /// buffer comes back unchanged, the OS error code is kept, and no signal is raised.
    ///
    /// # Cancellation
    /// A polled write that is dropped forfeits its buffer, and any part of it may have been, or may
    /// still be, sent: the stream is good for nothing but to be dropped.
    ///
    /// # Implementer notes
    /// Map a zero from the transport to [`WriteZero`](io::ErrorKind::WriteZero). Hand the kernel no
    /// more than [`TRANSFER_BYTES_MAX`](crate::TRANSFER_BYTES_MAX) at once.
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B>;

    /// Writes the bytes that are left in `bufs`, or the first of them, and hands it back.
    ///
    /// Like [`write`](Self::write) of the pieces put together, at most
    /// [`IOV_MAX`](crate::IOV_MAX) of them. On `Ok(n)` `bufs` is already
    /// [advanced](IoVec::advance) by `n`.
    ///
    /// # Errors
    /// Those of `write`; `bufs` comes back unchanged.
    ///
    /// # Cancellation
    /// As for `write`.
    ///
    /// # Implementer notes
    /// [`as_io_slices`](IoVec::as_io_slices) is the array for `sendmsg`; it stays where it is while
    /// the `IoVec` moves. Advance before you return.
    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>>;

    /// Ends the write side: the peer reads what was written, then the end of the stream.
    ///
    /// The read side stays open. Doing it again, or after the peer has ended its own side, is no
    /// error.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) once the connection is gone: reset, or ended from
    /// both sides.
    ///
    /// # Cancellation
    /// The stream is as it was, or shut down.
    async fn shutdown(&mut self) -> io::Result<()>;
}

impl<T: OwnedWrite + ?Sized> OwnedWrite for &mut T {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        (**self).write(buf)
    }

    fn write_vectored<B: IoBuf>(
        &mut self,
        bufs: IoVec<B>,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        (**self).write_vectored(bufs)
    }

    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> {
        (**self).shutdown()
    }
}

impl<T: OwnedWrite + ?Sized> OwnedWrite for Box<T> {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        (**self).write(buf)
    }

    fn write_vectored<B: IoBuf>(
        &mut self,
        bufs: IoVec<B>,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        (**self).write_vectored(bufs)
    }

    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> {
        (**self).shutdown()
    }
}

/// Writes made of several writes.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedWriteExt: OwnedWrite {
    /// Writes all initialised bytes of `buf` and hands it back unchanged.
    ///
    /// An empty buffer succeeds at once: nothing is asked of the stream.
    ///
    /// # Errors
    /// Those of [`write`](OwnedWrite::write), and [`WriteZero`](io::ErrorKind::WriteZero) when that
    /// takes none of the bytes that are left; how much was written before is not told.
    ///
    /// # Cancellation
    /// As for `write`, at every await.
    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        let mut left = buf.buf_slice(..);
        while left.buf_len() > 0 {
            let BufResult(result, back) = self.write(left).await;
            left = back;
            match result {
                Ok(0) => return BufResult(Err(io::ErrorKind::WriteZero.into()), left.into_inner()),
                Ok(n) => left.advance(n),
                Err(error) => return BufResult(Err(error), left.into_inner()),
            }
        }
        BufResult(Ok(()), Slice::into_inner(left))
    }

    /// Writes all that is left in `bufs` and hands it back, with nothing left. Where nothing is, it
    /// succeeds at once.
    ///
    /// # Errors
    /// Those of [`write_vectored`](OwnedWrite::write_vectored), and
    /// [`WriteZero`](io::ErrorKind::WriteZero) as for `write_all`;
    /// [`bytes_left`](IoVec::bytes_left) tells how far it came.
    ///
    /// # Cancellation
    /// As for `write_vectored`, at every await.
    async fn write_all_vectored<B: IoBuf>(
        &mut self,
        mut bufs: IoVec<B>,
    ) -> BufResult<(), IoVec<B>> {
        while bufs.bytes_left() > 0 {
            let BufResult(result, back) = self.write_vectored(bufs).await;
            bufs = back;
            match result {
                Ok(0) => return BufResult(Err(io::ErrorKind::WriteZero.into()), bufs),
                Ok(_) => {}
                Err(error) => return BufResult(Err(error), bufs),
            }
        }
        BufResult(Ok(()), bufs)
    }
}

impl<T: OwnedWrite + ?Sized> OwnedWriteExt for T {}

/// Writes to `writer` what `reader` reads, until the end of the stream, through one buffer of
/// `pool` at a time; says how many bytes that were. Does not shut the writer down.
///
/// Cut-through: what one read brings is written before the next read, so a slow writer holds the
/// reader back.
///
/// # Errors
/// Those of [`read_pooled`](OwnedRead::read_pooled) and [`write`](OwnedWrite::write). What was read
/// and could not be written is lost.
///
/// # Cancellation
/// As for `read` and `write`: both streams are good for nothing but to be dropped.
pub async fn copy(
    reader: &mut impl OwnedRead,
    writer: &mut impl OwnedWrite,
    pool: &Pool,
) -> io::Result<u64> {
    let mut total = 0;
    loop {
        let buf = reader.read_pooled(pool).await?;
        if buf.buf_len() == 0 {
            return Ok(total);
        }
        let len = buf.buf_len();
        let (n, buf) = writer.write(buf).await.into_result()?;
        // Rarely: a `write_all` of each would take 50 instructions more an echo, of 1,200 on tokio.
        if n < len {
            writer.write_all(buf.buf_slice(n..)).await.into_result()?;
        }
        total += len as u64;
    }
}

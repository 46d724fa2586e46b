//! [`OwnedWrite`], its extension [`OwnedWriteExt`], and [`copy`].

use std::future::Future;
use std::io;

use crate::{BufResult, IoBuf, IoBufExt, IoVec, OwnedRead, Pool, Slice};

/// Writes bytes from buffers that the operation owns.
///
/// There is no flush: a write returns after the transport has taken the bytes. A protocol that queues messages
/// has its own flush.
///
/// # Implementing it
///
/// ```
/// use std::io;
/// use owned_io::{BufResult, IoBuf, IoBufExt, IoVec, OwnedWrite, OwnedWriteExt, coop};
///
/// /// Stores up to 8 bytes, then fails like a full disk.
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
///         // Never return `Ok(0)` for a buffer that is not empty.
///         if n == 0 && !bytes.is_empty() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
///     }
/// }
///
/// impl OwnedWrite for Small {
///     async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
///         BufResult(self.take(buf.buf_bytes()), buf)
///     }
///     async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
///         let pieces = bufs.as_io_slices_within(coop::write_bytes_max());
///         let result = self.take(pieces.first().map_or(&[], |piece| piece));
///         if let Ok(n) = result {
///             bufs.advance(n); // the implementer has to do this
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
    /// Writes the initialised bytes of `buf`, or the first of them, and returns it.
    ///
    /// Waits until the transport has taken at least one byte. Lets other tasks run, as
    /// [`read`](OwnedRead::read) does.
    ///
    /// `Ok(n)`: the transport has taken the first `n` bytes. `n` is at least 1 and may be less than the length.
    /// The buffer comes back unchanged.
    ///
    /// An empty buffer returns `Ok(0)` at once, and the stream is unchanged.
    ///
    /// # Errors
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) after any shutdown of the write side. `BrokenPipe` or
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset) if the peer is gone. The buffer comes back
    /// unchanged, the error keeps its OS error code, and no signal is raised.
    ///
    /// # Cancellation
    /// Not safe once polled. A dropped write forfeits its buffer, and any part of the bytes may be sent, even
    /// later. Drop the stream too.
    ///
    /// # Implementer notes
    /// Map a zero from the transport to [`WriteZero`](io::ErrorKind::WriteZero). Pass at most
    /// [`coop::write_bytes_max`](crate::coop::write_bytes_max) bytes to the kernel at once.
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B>;

    /// Writes the bytes that are left in `bufs`, or the first of them, and returns it.
    ///
    /// It is like a [`write`](Self::write) of the concatenated pieces, at most [`IOV_MAX`](crate::IOV_MAX) of
    /// them. After `Ok(n)`, `bufs` is already [advanced](IoVec::advance) by `n`.
    ///
    /// # Errors
    /// Those of `write`. `bufs` comes back unchanged.
    ///
    /// # Cancellation
    /// As for `write`.
    ///
    /// # Implementer notes
    /// [`as_io_slices_within`](IoVec::as_io_slices_within) is the array for sendmsg(2). It keeps its address while the
    /// `IoVec` moves. Advance before you return.
    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>>;

    /// Writes the first of `bytes` that the transport takes at once, from where they are. It does not wait.
    ///
    /// It is for a message that goes to many streams, most of which have room: it takes no buffer, and on a runtime
    /// that completes writes later no task is woken.
    ///
    /// Do not call it after a [`write`](Self::write) of this stream was dropped. The bytes of that write may still be
    /// sent, and those of this one may go first.
    ///
    /// It counts as work of the poll, but does not let other tasks run. A caller that writes again and again looks at
    /// [`coop::has_budget`](crate::coop::has_budget) first, and uses a `write` if there is none.
    ///
    /// `Ok(n)` is as in [`write`](Self::write). So is an empty slice.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): no byte was taken. A `write` waits until one can be. The provided
    /// function always returns it, because a wrapper that changes its bytes must not pass them on as they are.
    /// Otherwise those of `write`.
    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Ends the write side: the peer reads all written bytes, then the end of the stream.
    ///
    /// The read side stays open. A repeated shutdown is no error while the peer's side is open. Neither is a first
    /// shutdown after the peer has ended its own side.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) once the connection is closed: reset, or ended by both
    /// sides.
    ///
    /// # Cancellation
    /// Safe: the stream is unchanged or shut down.
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

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (**self).try_write(bytes)
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

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (**self).try_write(bytes)
    }

    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> {
        (**self).shutdown()
    }
}

/// Operations that consist of several writes.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedWriteExt: OwnedWrite {
    /// Writes all initialised bytes of `buf` and returns it unchanged.
    ///
    /// For an empty buffer it succeeds at once, without a write.
    ///
    /// # Errors
    /// Those of [`write`](OwnedWrite::write). [`WriteZero`](io::ErrorKind::WriteZero) if a write takes no byte.
    /// The result does not include the number of bytes that were written before.
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

    /// Writes all bytes that are left in `bufs` and returns it.
    ///
    /// If no bytes are left, it succeeds at once.
    ///
    /// # Errors
    /// Those of [`write_vectored`](OwnedWrite::write_vectored), and [`WriteZero`](io::ErrorKind::WriteZero) as
    /// for `write_all`. [`bytes_left`](IoVec::bytes_left) is the number of bytes that were not written.
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

/// Copies bytes from `reader` to `writer` until the end of the stream. Returns their number.
///
/// It uses one buffer of `pool` at a time, and does not shut down the writer. The bytes of each read are written
/// before the next read, so a slow writer slows the reader down.
///
/// # Errors
/// Those of [`read_pooled`](OwnedRead::read_pooled) and [`write`](OwnedWrite::write). Bytes that were read but
/// not written are lost.
///
/// # Cancellation
/// As for `read` and `write`: drop both streams.
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
        // A short write is rare. Always calling `write_all` costs 50 instructions per echo, of 1,200 on tokio.
        if n < len {
            writer.write_all(buf.buf_slice(n..)).await.into_result()?;
        }
        total += len as u64;
    }
}

//! [`OwnedRead`] and its extension [`OwnedReadExt`].

use std::future::Future;
use std::io;

use crate::{BufResult, IoBufMut, IoBufMutExt, Pool, PoolBuf, Spare};

/// Reads bytes into buffers that the operation owns.
///
/// # Implementing it
///
/// ```
/// use std::io;
/// use owned_io::{BufResult, IoBufMut, IoBufMutExt, OwnedRead, OwnedReadExt, Pool, PoolBuf};
///
/// /// Reads the bytes of a string, then ends.
/// struct Text(&'static str);
///
/// impl OwnedRead for Text {
///     async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
///         // Without capacity, the stream and the buffer are unchanged.
///         if buf.buf_capacity() == 0 {
///             return BufResult(Ok(0), buf);
///         }
///         let n = buf.buf_fill(self.0.as_bytes()); // also sets the length
///         self.0 = &self.0[n..];
///         BufResult(Ok(n), buf)
///     }
///     // It never waits, so it may take the buffer first.
///     async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
///         self.read(pool.take()?).await.into_result().map(|(_, buf)| buf)
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// let mut text = Text("contract");
/// let ((), buf) = text.read_exact(Vec::with_capacity(64), 3).await.into_result()?;
/// assert_eq!(buf, b"con");
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedRead {
    /// Reads into `buf`, from its start, and returns it.
    ///
    /// Waits for data, the end of the stream or an error.
    ///
    /// `Ok(n)`: the first `n` bytes of the buffer are new, and its length is exactly `n`, whatever it was
    /// before. `n` may be less than the capacity. To append instead, read into
    /// [`buf.spare()`](crate::IoBufMutExt::spare).
    ///
    /// `Ok(0)`: the peer has ended the stream. Every later read returns `Ok(0)` again.
    ///
    /// A buffer without capacity returns `Ok(0)` at once. The stream is unchanged, and the result says nothing
    /// about it.
    ///
    /// A loop of reads lets other tasks run, even if no read ever has to wait.
    ///
    /// # Errors
    /// The buffer comes back with its length unchanged, and no byte was consumed. The error keeps its OS error
    /// code ([`io::Error::raw_os_error`]).
    ///
    /// # Cancellation
    /// Not safe once polled. A dropped read forfeits its buffer, which is freed when the kernel releases it.
    /// Bytes of the stream may be lost, so drop the stream too. A backend may promise more: see its
    /// documentation and its conformance tests.
    ///
    /// To wait for something else at the same time, keep the future and use [`select`](fn@crate::select). To
    /// end the read, use the stream's [`ShutdownHandle`](crate::ShutdownHandle).
    ///
    /// # Implementer notes
    /// Set the length before you return, and only on success. Request at most
    /// [`TRANSFER_BYTES_MAX`](crate::TRANSFER_BYTES_MAX) bytes from the kernel: its length fields are 32 bits
    /// wide.
    ///
    /// Limit operations that do not wait by [`coop`](crate::coop): reads, pooled reads and writes. Begin each
    /// operation by yielding while [`has_budget`](crate::coop::has_budget) is false. Then subtract its cost
    /// with [`consume_transfer`](crate::coop::consume_transfer); the transfers of `owned-io-os` do so. The
    /// budget belongs to the current poll of a task, whichever streams the task uses. Yield so that the runtime
    /// polls I/O, and call [`handle_yield`](crate::coop::handle_yield).
    ///
    /// A read that follows one that has filled its buffer should return in its first poll what has arrived, while there
    /// is budget. With a turn of the worker between two such reads, the receive window stays shut.
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B>;

    /// Reads into a buffer of `pool`. The backend takes the buffer as late as its runtime allows.
    ///
    /// Waits like [`read`](Self::read), and lets other tasks run like it. The buffer contains the bytes that
    /// were read. It is empty at the end of the stream.
    ///
    /// All waiting reads of a pool together hold at most [`idle_max`](crate::PoolConfig::idle_max) of its
    /// buffers. So 10,000 idle connections do not need 10,000 buffers.
    ///
    /// # Errors
    /// Those of `read`. [`PoolExhausted`](crate::PoolExhausted) inside a
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if data is ready and all buffers of the pool are in use:
    /// nothing was consumed, and a later read continues there.
    ///
    /// # Cancellation
    /// As for `read`. The buffer returns to the pool.
    ///
    /// # Implementer notes
    /// Wait for readiness first, and take the buffer when data is ready. If a read with a buffer is faster, use
    /// it as long as [`take_for_waiting_read`](Pool::take_for_waiting_read) returns a buffer. A stream that
    /// never waits may take the buffer first.
    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf>;
}

impl<T: OwnedRead + ?Sized> OwnedRead for &mut T {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        (**self).read(buf)
    }

    fn read_pooled(&mut self, pool: &Pool) -> impl Future<Output = io::Result<PoolBuf>> {
        (**self).read_pooled(pool)
    }
}

impl<T: OwnedRead + ?Sized> OwnedRead for Box<T> {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        (**self).read(buf)
    }

    fn read_pooled(&mut self, pool: &Pool) -> impl Future<Output = io::Result<PoolBuf>> {
        (**self).read_pooled(pool)
    }
}

/// Operations that consist of several reads.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedReadExt: OwnedRead {
    /// Reads exactly `len` bytes into `buf`, from its start.
    ///
    /// On success the buffer contains exactly these `len` bytes. If `len` is 0, it returns at once.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the stream ends first, and those of
    /// [`read`](OwnedRead::read): the buffer contains the bytes read so far.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the buffer's capacity is less than `len`: nothing was
    /// consumed.
    ///
    /// # Cancellation
    /// As for `read`, at every await.
    async fn read_exact<B: IoBufMut>(&mut self, mut buf: B, len: usize) -> BufResult<(), B> {
        if buf.buf_capacity() < len {
            let error = io::Error::new(
                io::ErrorKind::InvalidInput,
                "read_exact: the buffer's capacity is less than the bytes asked for",
            );
            return BufResult(Err(error), buf);
        }
        buf.buf_clear();
        while buf.buf_len() < len {
            let missing = len - buf.buf_len();
            let BufResult(result, spare) = self.read(buf.spare().limit(missing)).await;
            buf = Spare::into_inner(spare);
            match result {
                Ok(0) => return BufResult(Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(_) => {}
                Err(error) => return BufResult(Err(error), buf),
            }
        }
        BufResult(Ok(()), buf)
    }
}

impl<T: OwnedRead + ?Sized> OwnedReadExt for T {}

//! [`OwnedRead`] and what is built on it.

use std::future::Future;
use std::io;

use crate::{BufResult, IoBufMut, IoBufMutExt, Pool, PoolBuf, Spare};

/// Reads bytes into buffers that it owns for as long as it needs them.
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
///         // No room: the stream and the buffer stay as they are.
///         if buf.buf_capacity() == 0 {
///             return BufResult(Ok(0), buf);
///         }
///         let n = buf.buf_fill(self.0.as_bytes()); // sets the length too
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
    /// Reads into `buf`, from its start, and hands it back.
    ///
    /// Waits until data, the end of the stream or an error is there. `Ok(n)`: `n` bytes are new,
    /// from the buffer's start, and its length is exactly `n`, whatever it was before; `n` may be
    /// less than the capacity. `Ok(0)`: the peer has ended the stream, and every later read says so
    /// again. To append, read into [`buf.spare()`](crate::IoBufMutExt::spare).
    ///
    /// A buffer without capacity returns `Ok(0)` at once, leaves the stream as it is and says
    /// nothing about it.
    ///
    /// However much there is to read, other tasks have their turn: a loop of reads that never have to
    /// wait does not keep them from it.
    ///
    /// # Errors
    /// The buffer comes back with its length unchanged; no byte was consumed. The OS error code is
    /// kept ([`io::Error::raw_os_error`]).
    ///
    /// # Cancellation
    /// A polled read that is dropped forfeits its buffer (freed once the kernel has let go of it)
    /// and may lose bytes of the stream, so the stream is good for nothing but to be dropped. To
    /// wait for something else meanwhile, keep the future and use [`select`](fn@crate::select); to end
    /// it, use the stream's [`ShutdownHandle`](crate::ShutdownHandle). What a backend promises
    /// beyond this is in its documentation, and declared in its conformance tests.
    ///
    /// # Implementer notes
    /// Set the length before you return, and only on success. Ask the kernel for no more than
    /// [`TRANSFER_BYTES_MAX`](crate::TRANSFER_BYTES_MAX): its length fields are 32 bits wide.
    ///
    /// Ration what need not wait by [`coop`](crate::coop), in reads, pooled reads and writes alike: take
    /// each operation's cost from the budget with [`consume_transfer`](crate::coop::consume_transfer),
    /// which the transfers of `owned-io-os` do, and begin each operation by yielding while
    /// [`has_budget`](crate::coop::has_budget) is false. The budget is that of the running poll of a
    /// task, whichever streams the task uses. Yield in a way that has the runtime poll I/O, and call
    /// [`handle_yield`](crate::coop::handle_yield).
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B>;

    /// Reads into a buffer of `pool`, taken as late as serves the runtime best.
    ///
    /// Waits like [`read`](Self::read), and like it leaves others their turn. The buffer that comes
    /// back holds what was read; it is empty at the end of the stream. However many reads of a pool
    /// wait, they hold at most [`idle_max`](crate::PoolConfig::idle_max) of its buffers, so 10,000
    /// idle connections need no 10,000.
    ///
    /// # Errors
    /// Those of `read`, and [`PoolExhausted`](crate::PoolExhausted) (as
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded)) when there is something to read and all of
    /// the pool's buffers are in use: then nothing was consumed, and reading again later goes on
    /// where this left off.
    ///
    /// # Cancellation
    /// As for `read`; the buffer goes back to the pool.
    ///
    /// # Implementer notes
    /// Take the buffer once there is something to read: wait for readiness first. Where a read that
    /// owns its buffer is faster, use that as long as [`take_for_waiting_read`](Pool::take_for_waiting_read) gives a
    /// buffer. A stream that never waits may take the buffer first.
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

/// Reads made of several reads.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedReadExt: OwnedRead {
    /// Reads exactly `len` bytes into `buf`, from its start.
    ///
    /// Success means that the buffer's length is `len` and those are the bytes. `len` 0 returns at
    /// once.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the stream ends first, and those of
    /// [`read`](OwnedRead::read): the buffer comes back with what was read until then.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the buffer's capacity is less than `len`:
    /// nothing was consumed.
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

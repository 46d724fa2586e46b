//! [`File`]: positioned reads and writes, [`OwnedReadAt`] and [`OwnedWriteAt`], and their extensions.

use std::io;

use crate::{BufResult, IoBuf, IoBufExt, IoBufMut, IoBufMutExt, IoVec, Slice, Spare};

/// The most bytes that one read or write of a file passes to the kernel. A larger buffer is used in part.
///
/// A write of that many into the page cache takes about 300 µs, on the thread itself if the ring does it there. With
/// the [limit of connections](crate::TRANSFER_BYTES_MAX), a batch of a megabyte would take eight operations.
pub const FILE_TRANSFER_BYTES_MAX: usize = 1024 * 1024;

/// The largest offset at which a file can have a byte: offsets of the kernel are signed.
pub const FILE_OFFSET_MAX: u64 = i64::MAX as u64;

/// Reads bytes at a position of a file, into buffers that the operation owns.
///
/// The position is an argument, so several operations on one file may be pending at once. They complete in any order.
///
/// # Implementing it
///
/// ```
/// use owned_io::{BufResult, IoBufMut, IoBufMutExt, OwnedReadAt, OwnedReadAtExt};
///
/// /// A file of which every byte is the low byte of its offset.
/// struct Ramp { len: u64 }
///
/// impl OwnedReadAt for Ramp {
///     async fn read_at<B: IoBufMut>(&self, mut buf: B, offset: u64) -> BufResult<usize, B> {
///         let len = (buf.buf_capacity() as u64).min(self.len.saturating_sub(offset));
///         let bytes: Vec<u8> = (offset..offset + len).map(|at| at as u8).collect();
///         let n = buf.buf_fill(&bytes); // also sets the length
///         BufResult(Ok(n), buf)
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// let ramp = Ramp { len: 1000 };
/// let ((), buf) = ramp.read_exact_at(Vec::with_capacity(8), 3, 254).await.into_result()?;
/// assert_eq!(buf, [254, 255, 0]);
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedReadAt {
    /// Reads into `buf`, from its start, the bytes of the file from `offset` on, and returns it.
    ///
    /// Waits for the disk.
    ///
    /// `Ok(n)`: the first `n` bytes of the buffer are new, and its length is exactly `n`, whatever it was before. `n`
    /// may be less than the capacity, at the end of the file and elsewhere. To append instead, read into
    /// [`buf.spare()`](crate::IoBufMutExt::spare).
    ///
    /// `Ok(0)`: the file ends at `offset` or before. A later read sees what was written meanwhile.
    ///
    /// A buffer without capacity returns `Ok(0)` at once, and the result says nothing about the file.
    ///
    /// A read sees the bytes of every write that completed before the read began. Of a write that runs at the same
    /// time it may see a part.
    ///
    /// A loop of reads lets other tasks run.
    ///
    /// # Errors
    /// The buffer comes back with its length unchanged; the bytes after its length are unspecified. The error keeps its
    /// OS error code. `EINVAL` if `offset` is greater than [`FILE_OFFSET_MAX`].
    ///
    /// # Cancellation
    /// Safe for the file, which stays usable. A dropped read forfeits its buffer, which is freed some time after the
    /// kernel has released it.
    ///
    /// # Implementer notes
    /// Set the length before you return, and only on success. Request at most [`FILE_TRANSFER_BYTES_MAX`] bytes. Pass
    /// no offset above the maximum to the kernel: to io_uring, `u64::MAX` means the current position.
    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B>;
}

/// Operations that consist of several reads.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedReadAtExt: OwnedReadAt {
    /// Reads exactly `len` bytes from `offset` on into `buf`, from its start.
    ///
    /// On success the buffer contains exactly these `len` bytes. If `len` is 0, it returns at once.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends first, and those of
    /// [`read_at`](OwnedReadAt::read_at): the buffer contains the bytes read so far.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the buffer's capacity is less than `len`.
    ///
    /// # Cancellation
    /// As for `read_at`.
    async fn read_exact_at<B: IoBufMut>(
        &self,
        mut buf: B,
        len: usize,
        offset: u64,
    ) -> BufResult<(), B> {
        if buf.buf_capacity() < len {
            let error = io::Error::new(
                io::ErrorKind::InvalidInput,
                "read_exact_at: the buffer's capacity is less than the bytes asked for",
            );
            return BufResult(Err(error), buf);
        }
        buf.buf_clear();
        // Each round reads a byte or ends.
        while buf.buf_len() < len {
            let done = buf.buf_len();
            let spare = buf.spare().limit(len - done);
            let BufResult(result, spare) =
                self.read_at(spare, offset.saturating_add(done as u64)).await;
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

impl<T: OwnedReadAt + ?Sized> OwnedReadAtExt for T {}

/// Writes bytes at a position of a file, from buffers that the operation owns.
///
/// A write returns after the operating system has taken the bytes. They survive the end of the process then. They
/// survive the loss of power only after a [sync](File::sync_data).
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedWriteAt {
    /// Writes the initialised bytes of `buf`, or the first of them, to the file from `offset` on, and returns it.
    ///
    /// Waits for the operating system to take at least one byte.
    ///
    /// `Ok(n)`: the first `n` bytes are written. `n` is at least 1 and may be less than the length. The buffer comes
    /// back unchanged. A write past the end extends the file; a gap before `offset` reads as zeros.
    ///
    /// An empty buffer returns `Ok(0)` at once, and the file is unchanged.
    ///
    /// A loop of writes lets other tasks run.
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull) if the disk is full. `EBADF` if the file was opened for reading.
    /// `EINVAL` if `offset` is greater than [`FILE_OFFSET_MAX`]. The buffer comes back unchanged, and the error keeps
    /// its OS error code. Nothing is written: a write that fails after some bytes is a short write.
    ///
    /// # Cancellation
    /// The file stays usable. A dropped write forfeits its buffer, and any part of the bytes may be written, even
    /// later, until the operations of the file have ended. So a caller that drops a write does not know what the file
    /// contains there, and must not write the same bytes again through this file. A [lock](File::try_lock) is held
    /// until such a write has ended.
    ///
    /// # Implementer notes
    /// Map a zero from the kernel to [`WriteZero`](io::ErrorKind::WriteZero). Pass at most
    /// [`FILE_TRANSFER_BYTES_MAX`] bytes to the kernel at once.
    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B>;

    /// Writes the bytes that are left in `bufs`, or the first of them, and returns it.
    ///
    /// It is like a [`write_at`](Self::write_at) of the concatenated pieces, at most [`IOV_MAX`](crate::IOV_MAX) of
    /// them. After `Ok(n)`, `bufs` is already [advanced](IoVec::advance) by `n`.
    ///
    /// # Errors
    /// Those of `write_at`. `bufs` comes back unchanged.
    ///
    /// # Cancellation
    /// As for `write_at`.
    ///
    /// # Implementer notes
    /// [`as_io_slices_within`](IoVec::as_io_slices_within) is the array for pwritev(2). Advance before you return.
    async fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> BufResult<usize, IoVec<B>>;
}

/// Operations that consist of several writes.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait OwnedWriteAtExt: OwnedWriteAt {
    /// Writes all initialised bytes of `buf` from `offset` on and returns it unchanged.
    ///
    /// For an empty buffer it succeeds at once, without a write.
    ///
    /// # Errors
    /// Those of [`write_at`](OwnedWriteAt::write_at). [`WriteZero`](io::ErrorKind::WriteZero) if a write takes no byte.
    /// Some of the bytes may be written.
    ///
    /// # Cancellation
    /// As for `write_at`.
    async fn write_all_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<(), B> {
        let mut left = buf.buf_slice(..);
        let mut at = offset;
        // Each round writes a byte or ends.
        while left.buf_len() > 0 {
            let BufResult(result, back) = self.write_at(left, at).await;
            left = back;
            match result {
                Ok(0) => {
                    let error = io::ErrorKind::WriteZero.into();
                    return BufResult(Err(error), Slice::into_inner(left));
                }
                Ok(n) => {
                    left.advance(n);
                    at = at.saturating_add(n as u64);
                }
                Err(error) => return BufResult(Err(error), Slice::into_inner(left)),
            }
        }
        BufResult(Ok(()), Slice::into_inner(left))
    }

    /// Writes all bytes that are left in `bufs` from `offset` on.
    ///
    /// # Errors
    /// Those of [`write_all_at`](Self::write_all_at). [`bytes_left`](IoVec::bytes_left) of `bufs` says how many bytes
    /// are not written.
    ///
    /// # Cancellation
    /// As for `write_at`.
    async fn write_all_vectored_at<B: IoBuf>(
        &self,
        mut bufs: IoVec<B>,
        offset: u64,
    ) -> BufResult<(), IoVec<B>> {
        let mut at = offset;
        // Each round writes a byte or ends.
        while bufs.bytes_left() > 0 {
            let BufResult(result, back) = self.write_vectored_at(bufs, at).await;
            bufs = back;
            match result {
                Ok(0) => return BufResult(Err(io::ErrorKind::WriteZero.into()), bufs),
                Ok(n) => at = at.saturating_add(n as u64),
                Err(error) => return BufResult(Err(error), bufs),
            }
        }
        BufResult(Ok(()), bufs)
    }
}

impl<T: OwnedWriteAt + ?Sized> OwnedWriteAtExt for T {}

/// An open file.
///
/// Dropping it closes it, once its pending and dropped operations have ended. It neither syncs nor waits for that.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait File: OwnedReadAt + OwnedWriteAt + Sized + 'static {
    /// Makes the contents durable: the bytes of every write that completed before the call, and the length.
    ///
    /// They survive the loss of power when it returns. The name of a new file does so only after a
    /// [sync of its directory](crate::Files::sync_dir). Of writes that run at the same time, any part may be durable.
    ///
    /// # Errors
    /// The disk's, with its OS error code. Then it is unknown which bytes since the last successful sync are durable.
    /// The operating system may have discarded them from what it will write, although reads still return them. A
    /// second call may therefore succeed without them: **do not repeat it**. Write the bytes again, elsewhere or after
    /// opening the file anew, or give them up.
    ///
    /// # Cancellation
    /// Safe for the file. The bytes may be durable or not.
    async fn sync_data(&self) -> io::Result<()>;

    /// The length in bytes.
    ///
    /// # Errors
    /// Those of fstat(2).
    ///
    /// # Cancellation
    /// Safe.
    async fn size(&self) -> io::Result<u64>;

    /// Cuts the file to `len` bytes, or extends it to `len` by zeros.
    ///
    /// # Errors
    /// `EINVAL` if the file was opened for reading, or if `len` is greater than [`FILE_OFFSET_MAX`];
    /// [`FileTooLarge`](io::ErrorKind::FileTooLarge) if it is greater than the file system permits; the disk's.
    ///
    /// # Cancellation
    /// The file stays usable. It may be cut even later, as for a dropped [write](OwnedWriteAt::write_at).
    async fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space on the disk for the first `len` bytes. The length of the file does not change.
    ///
    /// Writes within that space do not fail because the disk is full.
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull); [`Unsupported`](io::ErrorKind::Unsupported) on a file system that
    /// cannot reserve space; `EINVAL` if `len` is greater than [`FILE_OFFSET_MAX`]; `EBADF` if the file was opened for
    /// reading.
    ///
    /// # Cancellation
    /// The file stays usable. The space may be reserved.
    async fn allocate(&self, len: u64) -> io::Result<()>;

    /// Locks the file against every other open file of the same path, in this process and in others.
    ///
    /// The lock ends when the file is closed: dropped, with its operations ended. It is advisory: it excludes other
    /// locks, not reads and writes. To lock an open file again succeeds.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if another open file has the lock. It does not wait.
    ///
    /// # Cancellation
    /// The file may be locked.
    async fn try_lock(&self) -> io::Result<()>;
}

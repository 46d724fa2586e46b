//! [`IoVec`]: many owned buffers in one write.

use std::io::IoSlice;
use std::{fmt, mem};

use crate::{IoBuf, TRANSFER_BYTES_MAX};

/// The most pieces that one vectored write passes to the kernel: `IOV_MAX` of Linux
/// (`include/uapi/linux/uio.h`, `UIO_MAXIOV`). Further operations write the rest.
pub const IOV_MAX: usize = 1024;

/// Owned buffers for one vectored write, in order, and the array of pointers for the kernel.
///
/// Both arrays are reused: an `IoVec` that is [cleared](Self::clear) and filled again does not allocate. The
/// number of buffers is unbounded. One operation writes at most [`IOV_MAX`] pieces.
///
/// ```
/// # owned_io_sim::block_on(async {
/// use owned_io::{IoVec, OwnedWriteExt};
/// let (mut a, b) = owned_io_sim::pipe();
/// # let _b = b;
/// let mut out = IoVec::new();
/// out.push(bytes::Bytes::from_static(b"header"));
/// out.push(bytes::Bytes::from_static(b"payload"));
/// let ((), mut out) = a.write_all_vectored(out).await.into_result()?;
/// out.clear();
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
pub struct IoVec<B> {
    bufs: Vec<B>,
    /// The bytes of the buffers in order, at most [`TRANSFER_BYTES_MAX`] per entry. Invariant: entries from
    /// `written` on lie within the initialised bytes of a buffer in `bufs`, and none is empty.
    pieces: Vec<RawPiece>,
    /// The number of pieces that are completely written. They are the first ones.
    written: usize,
    /// The bytes in the pieces from `written` on.
    bytes_left: usize,
}

/// `struct iovec` of POSIX. `std` guarantees that `IoSlice` has this layout on Unix.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawPiece {
    ptr: *const u8,
    len: usize,
}

const _: () = assert!(
    size_of::<RawPiece>() == size_of::<IoSlice<'_>>()
        && align_of::<RawPiece>() == align_of::<IoSlice<'_>>()
);

impl<B: IoBuf> IoVec<B> {
    /// An empty `IoVec`. It does not allocate.
    pub const fn new() -> Self {
        Self { bufs: Vec::new(), pieces: Vec::new(), written: 0, bytes_left: 0 }
    }

    /// An empty `IoVec` with capacity for `bufs` buffers.
    pub fn with_capacity(bufs: usize) -> Self {
        Self { bufs: Vec::with_capacity(bufs), pieces: Vec::with_capacity(bufs), ..Self::new() }
    }

    /// Adds `buf` at the end.
    pub fn push(&mut self, buf: B) {
        let (mut ptr, mut left) = (buf.buf_ptr(), buf.buf_len());
        self.bufs.push(buf); // first, so that no piece exists without its buffer
        self.bytes_left += left;
        while left > 0 {
            let len = left.min(TRANSFER_BYTES_MAX);
            self.pieces.push(RawPiece { ptr, len });
            ptr = ptr.wrapping_add(len);
            left -= len;
        }
    }

    /// The number of bytes that are left to write.
    pub const fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// All buffers in order, including written ones.
    pub fn bufs(&self) -> &[B] {
        &self.bufs
    }

    /// All buffers in order, including written ones.
    pub fn into_bufs(self) -> Vec<B> {
        self.bufs
    }

    /// Drops the buffers and keeps the arrays.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Removes all buffers in order, including written ones, and keeps the arrays.
    pub fn drain(&mut self) -> impl Iterator<Item = B> {
        self.pieces.clear();
        self.written = 0;
        self.bytes_left = 0;
        self.bufs.drain(..)
    }

    /// Marks the next `n` bytes as written.
    ///
    /// # Panics
    /// If fewer than `n` bytes are left.
    pub fn advance(&mut self, mut n: usize) {
        assert!(n <= self.bytes_left, "advance by {n} over {}", self.bytes_left);
        self.bytes_left -= n;
        while n > 0 {
            let piece = &mut self.pieces[self.written];
            let taken = n.min(piece.len);
            piece.ptr = piece.ptr.wrapping_add(taken);
            piece.len -= taken;
            n -= taken;
            if piece.len == 0 {
                self.written += 1;
            }
        }
    }

    /// The pieces for the next operation: the first that are left, at most [`IOV_MAX`] pieces and `bytes_max` bytes.
    ///
    /// For backends. `bytes_max` is [`coop::write_bytes_max`] for a connection, and [`FILE_TRANSFER_BYTES_MAX`] for a
    /// file. The array and the bytes keep their address while the `IoVec` moves, until it is pushed to, advanced or
    /// cleared.
    ///
    /// [`coop::write_bytes_max`]: crate::coop::write_bytes_max
    /// [`FILE_TRANSFER_BYTES_MAX`]: crate::FILE_TRANSFER_BYTES_MAX
    ///
    /// # Panics
    /// If `bytes_max` is less than [`TRANSFER_BYTES_MAX`], which a piece may have.
    pub fn as_io_slices_within(&self, bytes_max: usize) -> &[IoSlice<'_>] {
        assert!(bytes_max >= TRANSFER_BYTES_MAX, "a piece may be longer than {bytes_max} bytes");
        let left = &self.pieces[self.written..];
        let next = &left[..left.len().min(IOV_MAX)];
        let next = if self.bytes_left > bytes_max { first_within(next, bytes_max) } else { next };
        // SAFETY: `IoSlice` is guaranteed to have the layout of `iovec`, which `RawPiece` has too. By the
        // invariant each piece is within the initialised bytes of a buffer that this value owns. The borrow
        // of `self` prevents changes to the buffers.
        unsafe { mem::transmute::<&[RawPiece], &[IoSlice<'_>]>(next) }
    }
}

/// The first of `pieces` that have at most `bytes_max` bytes together.
fn first_within(pieces: &[RawPiece], bytes_max: usize) -> &[RawPiece] {
    let mut bytes = 0;
    let fits = pieces.iter().take_while(|piece| {
        bytes += piece.len;
        bytes <= bytes_max
    });
    &pieces[..fits.count()]
}

impl<B: IoBuf> Default for IoVec<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: IoBuf> Extend<B> for IoVec<B> {
    fn extend<T: IntoIterator<Item = B>>(&mut self, bufs: T) {
        for buf in bufs {
            self.push(buf);
        }
    }
}

impl<B> fmt::Debug for IoVec<B> {
    /// Prints how much is left, not the bytes: they may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("IoVec");
        debug.field("bufs", &self.bufs.len()).field("bytes_left", &self.bytes_left);
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(vec: &IoVec<Vec<u8>>) -> &[IoSlice<'_>] {
        vec.as_io_slices_within(TRANSFER_BYTES_MAX)
    }

    fn next(vec: &IoVec<Vec<u8>>) -> Vec<u8> {
        slices(vec).iter().flat_map(|piece| piece.to_vec()).collect()
    }

    #[test]
    fn advances_within_and_across_buffers_and_skips_empty_ones() {
        let mut vec = IoVec::new();
        vec.extend([b"ab".to_vec(), Vec::new(), b"cde".to_vec(), b"f".to_vec()]);
        assert_eq!((next(&vec), vec.bytes_left()), (b"abcdef".to_vec(), 6));
        vec.advance(1);
        assert_eq!(next(&vec), b"bcdef");
        vec.advance(3);
        assert_eq!(next(&vec), b"ef");
        vec.advance(2);
        assert_eq!((slices(&vec).len(), vec.bytes_left()), (0, 0));
        assert_eq!(vec.bufs().len(), 4);
        vec.clear();
        vec.push(b"again".to_vec());
        assert_eq!(next(&vec), b"again");
        vec.advance(1);
        assert!(vec.drain().eq([b"again".to_vec()]));
        vec.push(b"once more".to_vec());
        assert_eq!(next(&vec), b"once more");
    }

    /// "An `IoVec` that is cleared and filled again does not allocate": the arrays keep their address and
    /// their capacity.
    #[test]
    fn a_cleared_vec_keeps_its_arrays() {
        let mut vec = IoVec::new();
        let mut warm = None;
        for _ in 0..3 {
            vec.extend((0..100).map(|_| &b"x"[..]));
            vec.advance(100);
            let arrays = (vec.bufs.as_ptr(), vec.pieces.as_ptr());
            let room = (vec.bufs.capacity(), vec.pieces.capacity());
            assert_eq!(*warm.get_or_insert((arrays, room)), (arrays, room));
            vec.clear();
        }
    }

    #[test]
    fn one_operation_takes_iov_max_pieces() {
        let mut vec = IoVec::with_capacity(IOV_MAX + 1);
        vec.extend((0..=IOV_MAX).map(|_| vec![7]));
        assert_eq!(slices(&vec).len(), IOV_MAX);
        vec.advance(IOV_MAX);
        assert_eq!(slices(&vec).len(), 1);
    }

    #[test]
    #[should_panic(expected = "advance by 3 over 2")]
    fn advancing_past_the_end_is_refused() {
        let mut vec = IoVec::new();
        vec.push(b"ab".to_vec());
        vec.advance(3);
    }
}

//! Views of a part of a buffer: [`Slice`] and [`Spare`]. They own the buffer and return it.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use crate::{IoBuf, IoBufMut};

/// A part of the initialised bytes of a buffer, for example the bytes that are left to write.
///
/// [`IoBufExt::buf_slice`](crate::IoBufExt::buf_slice) creates it.
pub struct Slice<B> {
    buf: B,
    /// Invariant: `start <= end <= buf.buf_len()`.
    start: usize,
    end: usize,
}

impl<B: IoBuf> Slice<B> {
    pub(crate) fn new(buf: B, range: impl RangeBounds<usize>) -> Self {
        let len = buf.buf_len();
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => len,
        };
        assert!(start <= end && end <= len, "slice {start}..{end} of a buffer of {len} bytes");
        Self { buf, start, end }
    }

    /// Removes the first `n` bytes from the view.
    ///
    /// # Panics
    /// If fewer than `n` bytes are left.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.end - self.start, "advance by {n} over {}", self.end - self.start);
        self.start += n;
    }

    /// The whole buffer.
    pub fn into_inner(self) -> B {
        self.buf
    }

    /// The whole buffer, borrowed.
    pub fn get_ref(&self) -> &B {
        &self.buf
    }
}

// SAFETY: 1. By the invariant the range lies within the buffer's initialised bytes. It stays there, because
// the buffer is never borrowed mutably. 2. to 4. As for the buffer, which this value owns.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    fn buf_ptr(&self) -> *const u8 {
        self.buf.buf_ptr().wrapping_add(self.start)
    }
    fn buf_len(&self) -> usize {
        self.end - self.start
    }
}

/// The part of a buffer after its length. The view starts empty, and a read into it appends to the buffer.
///
/// [`IoBufMutExt::spare`](crate::IoBufMutExt::spare) creates it. A read also updates the length of the inner
/// buffer, so [`into_inner`](Self::into_inner) returns the complete bytes.
pub struct Spare<B> {
    buf: B,
    /// The length of the buffer when the view was created. Invariant: `start <= buf.buf_len()`.
    start: usize,
    /// The capacity of the view. Invariant: `start + capacity <= buf.buf_capacity()`.
    capacity: usize,
}

impl<B: IoBufMut> Spare<B> {
    pub(crate) fn new(buf: B) -> Self {
        let start = buf.buf_len();
        let capacity = buf.buf_capacity().saturating_sub(start);
        Self { buf, start, capacity }
    }

    /// Limits the capacity of the view to `bytes`, but not below its current length.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Self {
        self.capacity = self.capacity.min(bytes.max(self.buf_len()));
        self
    }

    /// The whole buffer: the earlier bytes, then the bytes that were read.
    pub fn into_inner(self) -> B {
        self.buf
    }

    /// The whole buffer, borrowed.
    pub fn get_ref(&self) -> &B {
        &self.buf
    }
}

// SAFETY: 1. The bytes are the buffer's initialised bytes from `start` on. 2. to 4. As for the buffer, which
// this value owns.
unsafe impl<B: IoBufMut> IoBuf for Spare<B> {
    fn buf_ptr(&self) -> *const u8 {
        // Not through `buf_bytes()`: the pointer must be valid for the bytes after the length too.
        self.buf.buf_ptr().wrapping_add(self.start)
    }
    fn buf_len(&self) -> usize {
        self.buf.buf_len() - self.start
    }
}

// SAFETY: 1. The pointer has the same offset into the buffer's memory. By the invariant, `capacity` bytes
// from there are within it. 2. As for the buffer. 3. The length is `start + n` minus `start`.
unsafe impl<B: IoBufMut> IoBufMut for Spare<B> {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        self.buf.buf_mut_ptr().wrapping_add(self.start)
    }
    fn buf_capacity(&self) -> usize {
        self.capacity
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        // SAFETY: 1. `start + len` is at most the capacity, by the caller's promise 1 and the invariant.
        // 2. The bytes before `start` were initialised when the view was created, and still are. The next
        // `len` bytes are initialised by the caller's promise 2.
        unsafe { self.buf.set_buf_len(self.start + len) }
    }
}

impl<B> fmt::Debug for Slice<B> {
    /// Prints the range, not the bytes: they may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end, .. } = self;
        f.debug_struct("Slice").field("start", start).field("end", end).finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for Spare<B> {
    /// Prints the range, not the bytes: they may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, capacity, .. } = self;
        let mut debug = f.debug_struct("Spare");
        debug.field("start", start).field("capacity", capacity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IoBufExt, IoBufMutExt};

    #[test]
    fn slice_returns_the_whole_buffer() {
        let mut slice = b"abcdef".to_vec().buf_slice(1..5);
        assert_eq!(slice.buf_bytes(), b"bcde");
        slice.advance(3);
        assert_eq!(slice.buf_bytes(), b"e");
        assert_eq!(slice.into_inner(), b"abcdef");
    }

    #[test]
    #[should_panic(expected = "slice 2..7 of a buffer of 6 bytes")]
    fn slice_past_the_length_is_refused() {
        let _ = b"abcdef".to_vec().buf_slice(2..7);
    }

    #[test]
    fn spare_appends_and_is_bounded() {
        let mut buf = Vec::with_capacity(16);
        buf.extend_from_slice(b"abc");
        let mut spare = buf.spare().limit(2);
        assert_eq!((spare.buf_len(), spare.buf_capacity()), (0, 2));
        // SAFETY: two bytes are within the capacity.
        unsafe { spare.buf_mut_ptr().copy_from_nonoverlapping(b"de".as_ptr(), 2) };
        // SAFETY: 1. and 2. The two bytes are within the capacity and were just written.
        unsafe { spare.set_buf_len(2) };
        assert_eq!(spare.buf_bytes(), b"de");
        // SAFETY: 1. and 2. The length is zero.
        unsafe { spare.set_buf_len(0) };
        assert_eq!(spare.into_inner(), b"abc");
    }

    #[test]
    fn a_boxed_buffer_is_filled_in_its_own_memory() {
        let mut buf = Vec::with_capacity(16);
        buf.extend_from_slice(b"abc");
        let mut boxed = Box::new(buf.spare());
        let at = boxed.buf_mut_ptr();
        let mut moved = boxed;
        assert_eq!(moved.buf_fill(b"de"), 2);
        assert_eq!((moved.buf_ptr(), moved.buf_bytes()), (at.cast_const(), &b"de"[..]));
        assert_eq!(moved.into_inner(), b"abcde");
    }

    #[test]
    fn nothing_prints_the_bytes() {
        let mut bufs = crate::IoVec::new();
        bufs.push(vec![77, 77]);
        let printed = [
            format!("{:?}", vec![77, 77].buf_slice(1..)),
            format!("{:?}", vec![77, 77].spare()),
            format!("{:?}", crate::BufResult(Ok(2), vec![77, 77])),
            format!("{bufs:?}"),
        ];
        assert!(printed.iter().all(|text| !text.contains("77")), "{printed:?}");
        assert_eq!(printed[0], "Slice { start: 1, end: 2, .. }");
        assert_eq!(printed[2], "BufResult(Ok(2), ..)");
    }

    #[test]
    fn a_buffer_keeps_its_address_while_it_moves() {
        fn check(buf: impl IoBuf) {
            let before = buf.buf_ptr();
            let moved = Box::new(buf);
            assert_eq!(before, moved.buf_ptr());
        }
        check(vec![1, 2, 3]);
        check(b"abc");
        check(String::from("abc"));
        check(std::rc::Rc::<[u8]>::from(&b"abc"[..]));
        check(std::sync::Arc::<[u8]>::from(&b"abc"[..]));
        check(bytes::Bytes::from_owner(vec![1, 2, 3]));
        check(bytes::BytesMut::from(&b"abc"[..]));
        check(vec![1, 2, 3].buf_slice(1..));
        check(vec![1, 2, 3].spare());
        check(Box::new(vec![1, 2, 3].buf_slice(1..)));
    }
}

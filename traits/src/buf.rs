//! Buffers that an operation may own: [`IoBuf`] for writes, [`IoBufMut`] for reads.

use std::rc::Rc;
use std::sync::Arc;

use crate::{Slice, Spare};

/// A buffer whose initialised bytes an operation may read while it owns the buffer.
///
/// Implemented for `Vec<u8>`, `String`, `&'static [u8]`, `&'static [u8; N]`, `&'static str`,
/// `Rc<[u8]>`, `Arc<[u8]>`, [`bytes::Bytes`], [`bytes::BytesMut`], [`PoolBuf`](crate::PoolBuf), for the views
/// [`Slice`] and [`Spare`], and for a `Box` of each: futures move their buffers often, and a box is one word.
/// `Box<[u8]>` is not among them: a move of the box asserts unique access to its bytes, which invalidates
/// pointers taken before. `Vec::from` converts a box without copying.
///
/// The methods have the prefix `buf_`, so that they shadow no method of the buffer type.
///
/// # Safety
///
/// Callers pass the pointer to the kernel and may move the value while the kernel still reads. The
/// implementer guarantees:
///
/// 1. [`buf_ptr`](Self::buf_ptr) points to [`buf_len`](Self::buf_len) initialised bytes.
/// 2. The bytes keep their address and stay initialised until the value is dropped or borrowed
///    mutably, **however often the value itself is moved**. A type that holds its bytes inline
///    (`[u8; N]`, a small-string) must not implement this trait.
/// 3. Both methods return the same answer until the value is changed through `&mut`.
/// 4. The bytes change only through this value.
///
/// # Implementing it
///
/// ```
/// use owned_io::IoBuf;
///
/// /// A message that is shared between connections.
/// struct Message(std::rc::Rc<Vec<u8>>);
///
/// // SAFETY: 1. The pointer and the length are the vector's. 2. The vector lives in the Rc's heap
/// // block, and an Rc gives no mutable access. 3. and 4. For the same reason.
/// unsafe impl IoBuf for Message {
///     fn buf_ptr(&self) -> *const u8 {
///         self.0.as_ptr()
///     }
///     fn buf_len(&self) -> usize {
///         self.0.len()
///     }
/// }
/// ```
pub unsafe trait IoBuf: Unpin + 'static {
    /// The address of the first byte. It may dangle if there are no bytes, but it is never null.
    fn buf_ptr(&self) -> *const u8;

    /// The number of initialised bytes, starting at [`buf_ptr`](Self::buf_ptr).
    fn buf_len(&self) -> usize;
}

const _: [&dyn IoBuf; 0] = []; // object-safe

/// Methods of every [`IoBuf`]. No type can override them, so unsafe code may rely on them.
///
/// ```compile_fail,E0407
/// struct Liar(Vec<u8>);
///
/// // SAFETY: pointer and length are the vector's, whose bytes are on the heap.
/// unsafe impl owned_io::IoBuf for Liar {
///     fn buf_ptr(&self) -> *const u8 {
///         self.0.as_ptr()
///     }
///     fn buf_len(&self) -> usize {
///         self.0.len()
///     }
///     fn buf_bytes(&self) -> &[u8] {
///         b"others"
///     }
/// }
/// ```
pub trait IoBufExt: IoBuf {
    /// The initialised bytes.
    fn buf_bytes(&self) -> &[u8] {
        // SAFETY: rule 1 of the trait. The borrow of `self` prevents changes to the bytes.
        unsafe { std::slice::from_raw_parts(self.buf_ptr(), self.buf_len()) }
    }

    /// A view of some of the initialised bytes. [`into_inner`](Slice::into_inner) returns the buffer.
    ///
    /// # Panics
    /// If `range` ends after [`buf_len`](IoBuf::buf_len).
    fn buf_slice(self, range: impl std::ops::RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        Slice::new(self, range)
    }
}

impl<B: IoBuf + ?Sized> IoBufExt for B {}

/// A buffer that an operation may fill while it owns it.
///
/// Implemented for `Vec<u8>`, [`PoolBuf`](crate::PoolBuf), [`Spare`], and a `Box` of each. `String` is not among them: its
/// bytes must be UTF-8 at all times. Neither is [`bytes::BytesMut`]: it provides no pointer that is valid
/// past its length.
///
/// # Safety
///
/// In addition to the rules of [`IoBuf`]:
///
/// 1. [`buf_mut_ptr`](Self::buf_mut_ptr) equals [`buf_ptr`](IoBuf::buf_ptr), and
///    [`buf_capacity`](Self::buf_capacity) bytes starting there may be written.
/// 2. That memory keeps its address and its size until the value is dropped or borrowed mutably,
///    however often the value is moved. An operation that owns the value may write initialised bytes
///    there.
/// 3. After [`set_buf_len(n)`](Self::set_buf_len), [`buf_len`](IoBuf::buf_len) is exactly `n`. The
///    length never exceeds the capacity.
///
/// # Implementing it
///
/// ```
/// use owned_io::{IoBuf, IoBufMut};
///
/// /// A page on the heap, filled from its start.
/// struct Page {
///     bytes: Vec<std::mem::MaybeUninit<u8>>,
///     filled: usize,
/// }
///
/// impl Page {
///     fn new() -> Self {
///         Self { bytes: vec![std::mem::MaybeUninit::uninit(); 4096], filled: 0 }
///     }
/// }
///
/// // SAFETY: 1. Only `set_buf_len` changes `filled`, and its caller initialised the bytes.
/// // 2. The bytes are on the heap. 3. and 4. They depend on nothing but `self`.
/// unsafe impl IoBuf for Page {
///     fn buf_ptr(&self) -> *const u8 {
///         self.bytes.as_ptr().cast()
///     }
///     fn buf_len(&self) -> usize {
///         self.filled
///     }
/// }
///
/// // SAFETY: 1. The same pointer; the vector is that long. 2. It never grows. 3. `filled` is what
/// // `buf_len` returns.
/// unsafe impl IoBufMut for Page {
///     fn buf_mut_ptr(&mut self) -> *mut u8 {
///         self.bytes.as_mut_ptr().cast()
///     }
///     fn buf_capacity(&self) -> usize {
///         self.bytes.len()
///     }
///     unsafe fn set_buf_len(&mut self, len: usize) {
///         debug_assert!(len <= self.bytes.len());
///         self.filled = len;
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// use owned_io::{IoBufExt, OwnedRead, OwnedWrite};
/// let (mut a, mut b) = owned_io_sim::pipe();
/// let _ = a.write("page").await;
/// let (n, page) = b.read(Page::new()).await.into_result()?;
/// assert_eq!(page.buf_bytes(), &b"page"[..n]);
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
pub unsafe trait IoBufMut: IoBuf {
    /// The address of the first byte of the buffer's memory.
    fn buf_mut_ptr(&mut self) -> *mut u8;

    /// The number of bytes that may be written, starting at [`buf_mut_ptr`](Self::buf_mut_ptr). It
    /// includes the initialised bytes.
    fn buf_capacity(&self) -> usize;

    /// Sets the length to exactly `len`, which may be less than the current length.
    ///
    /// # Safety
    ///
    /// 1. `len` is at most [`buf_capacity`](Self::buf_capacity).
    /// 2. The first `len` bytes are initialised.
    unsafe fn set_buf_len(&mut self, len: usize);
}

const _: [&dyn IoBufMut; 0] = []; // object-safe

/// Methods of every [`IoBufMut`]. No type can override them, so unsafe code may rely on them.
pub trait IoBufMutExt: IoBufMut {
    /// Sets the length to zero and keeps the memory.
    fn buf_clear(&mut self) {
        // SAFETY: 1. and 2. The length is zero.
        unsafe { self.set_buf_len(0) }
    }

    /// Replaces the contents by as many of `bytes` as fit. Returns their number.
    ///
    /// A stream that has its bytes in memory implements a read with it.
    fn buf_fill(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.buf_capacity());
        // SAFETY: `n` bytes may be written there. `bytes` does not overlap this buffer, because the
        // buffer is borrowed mutably.
        unsafe { self.buf_mut_ptr().copy_from_nonoverlapping(bytes.as_ptr(), n) };
        // SAFETY: 1. and 2. `n` is within the capacity, and `n` bytes were written.
        unsafe { self.set_buf_len(n) };
        n
    }

    /// A view of the memory after the length. A read into it appends.
    ///
    /// ```
    /// # owned_io_sim::block_on(async {
    /// use owned_io::{IoBufMutExt, OwnedRead, OwnedWrite, Spare};
    /// let (mut a, mut b) = owned_io_sim::pipe();
    /// let _ = a.write("def").await;
    ///
    /// let mut buf = Vec::with_capacity(6);
    /// buf.extend_from_slice(b"abc");
    /// while buf.len() < 6 {
    ///     (_, buf) = b.read(buf.spare()).await.map_buf(Spare::into_inner).into_result()?;
    /// }
    /// assert_eq!(buf, b"abcdef");
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap();
    /// ```
    fn spare(self) -> Spare<Self>
    where
        Self: Sized,
    {
        Spare::new(self)
    }
}

impl<B: IoBufMut + ?Sized> IoBufMutExt for B {}

// For all of these: 1. The pointer and the length are those of the type's initialised bytes. 2. The
// bytes are on the heap or static, and a move of the value does not move them. 3. The answers change
// through `&mut` only. 4. The types own their bytes, or share them read-only.
macro_rules! heap_bytes {
    ($($buf:ty),+ $(,)?) => {$(
        // SAFETY: rules 1 to 4: see the comment above the macro.
        unsafe impl IoBuf for $buf {
            fn buf_ptr(&self) -> *const u8 {
                self.as_ptr()
            }
            fn buf_len(&self) -> usize {
                self.len()
            }
        }
    )+};
}

heap_bytes!(
    Vec<u8>,
    String,
    &'static [u8],
    &'static str,
    Rc<[u8]>,
    Arc<[u8]>,
    bytes::Bytes,
    bytes::BytesMut,
);

// SAFETY: rules 1 to 4: see the comment above the macro.
unsafe impl<const N: usize> IoBuf for &'static [u8; N] {
    fn buf_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn buf_len(&self) -> usize {
        N
    }
}

// SAFETY: 1. The pointer is the start of the allocation, which has `capacity` bytes. 2. The allocation
// changes through `&mut` only. 3. `set_len` sets exactly that length.
unsafe impl IoBufMut for Vec<u8> {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn buf_capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        // SAFETY: the caller's promises 1 and 2 are those of `set_len`.
        unsafe { self.set_len(len) }
    }
}

// SAFETY: 1. The pointer and the length are those of the buffer in the box. 2. By its rule 2 the bytes are not
// inline, so they are not in the memory of the box, whose move asserts unique access to that memory alone.
// 3. and 4. The buffer changes through `&mut` of the box only.
unsafe impl<B: IoBuf> IoBuf for Box<B> {
    fn buf_ptr(&self) -> *const u8 {
        (**self).buf_ptr()
    }
    fn buf_len(&self) -> usize {
        (**self).buf_len()
    }
}

// SAFETY: as for the buffer in the box, to which each call goes.
unsafe impl<B: IoBufMut> IoBufMut for Box<B> {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        (**self).buf_mut_ptr()
    }
    fn buf_capacity(&self) -> usize {
        (**self).buf_capacity()
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        // SAFETY: the caller's promises 1 and 2 are those of the buffer, which has the same pointer and capacity.
        unsafe { (**self).set_buf_len(len) }
    }
}

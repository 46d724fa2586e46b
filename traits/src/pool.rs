//! [`Pool`]: read buffers of one worker.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::mem::{self, MaybeUninit};
use std::rc::Rc;
use std::{fmt, io, slice};

use crate::{IoBuf, IoBufMut};

/// Reusable buffers of one size, for the reads of one worker. Each begins at a multiple of [`Pool::ALIGN`].
///
/// A clone is another handle to the same pool. A buffer from [`take`](Self::take) returns to the pool when it
/// is dropped.
///
/// ```
/// use owned_io::{IoBufMut, Pool, PoolConfig};
///
/// let mut config = PoolConfig::default();
/// config.leased_max = 1;
/// let pool = Pool::new(config);
/// let buf = pool.take()?;
/// assert_eq!(buf.buf_capacity(), config.buf_bytes);
/// assert!(pool.take().is_err());
/// drop(buf);
/// assert!(pool.take().is_ok());
/// # Ok::<(), owned_io::PoolExhausted>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Rc<Shared>,
}

/// The limits of a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolConfig {
    /// The capacity of each buffer, in bytes. Default 16 KiB less [96](Self::SHORT_OF_PAGE_BYTES). Larger buffers save few
    /// system calls unless a peer sends many messages at once. The allocation has [`Pool::ALIGN`] - 1 bytes more.
    pub buf_bytes: usize,
    /// The most buffers in use at the same time. Default 16,384: 256 MiB per worker at the default size.
    pub leased_max: usize,
    /// The most unused buffers that are kept, and the most buffers that waiting reads hold. Default 1,024: at
    /// the default size, a worker keeps 16 MiB after a burst, or while 10,000 connections are idle.
    pub idle_max: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let buf_bytes = 16 * 1024 - Self::SHORT_OF_PAGE_BYTES;
        Self { buf_bytes, leased_max: 16 * 1024, idle_max: 1024 }
    }
}

impl PoolConfig {
    /// By how many bytes a buffer should be shorter than a multiple of the page size (4,096 bytes).
    ///
    /// - A read that fills a buffer of whole pages leaves the next bytes of the stream at the same distance, modulo 4,096,
    ///   from the start of a buffer. If that is one of the slow distances of [`Pool::ALIGN`], the reads stay slow, and
    ///   meanwhile the peer gets ahead, so that each read fills its buffer. After a read of this many bytes less the
    ///   distance is another. Where the source has no gaps, one full read in 128 is slow at most.
    /// - What a read brings is often passed on by one write. 64 KiB less this fits one segment of the loopback interface,
    ///   which has 65,483 bytes. Otherwise the rest is a segment of its own.
    ///
    /// Compared with 65,536, buffers of 65,440 bytes took 0.57 to 0.79 of the CPU for messages of 1 MB, and 0.90 to
    /// 0.91 for an echo of messages of 16 KiB (TCP on loopback, Zen 3, Linux 6.18, 2026-11-28).
    pub const SHORT_OF_PAGE_BYTES: usize = 96;
}

#[derive(Debug)]
struct Shared {
    config: PoolConfig,
    leased: Cell<usize>,
    /// Last in, first out: the most recently used buffer is in the CPU cache.
    #[expect(clippy::vec_box, reason = "the box is what a `PoolBuf` is made of")]
    idle: RefCell<Vec<Box<Buffer>>>,
}

impl Pool {
    /// The alignment of each buffer, in bytes: a cache line.
    ///
    /// Linux copies received bytes by `rep movsb`. That is slow on AMD's Zen 3, and on later ones by glibc bug 30994, if the
    /// address of the destination is 1 to 31 above that of the source, modulo 4,096: 64,000 bytes in the cache took
    /// 17 to 20 times as long. The source often begins at a page. malloc(3) begins blocks at any multiple of 16, and most of
    /// those of 128 KiB and more 16 bytes after the start of a page. A read of 16 KiB into such a block took 1.6 to 1.8
    /// times as long (Linux 6.18, 2026-11-28).
    ///
    /// A read can still be slow: into the middle of a buffer, or if its source begins elsewhere.
    /// [`PoolConfig::SHORT_OF_PAGE_BYTES`] keeps reads to the start of buffers from staying slow.
    pub const ALIGN: usize = 64;

    /// An empty pool. It allocates buffers when they are first needed.
    ///
    /// # Panics
    /// If `buf_bytes` or `leased_max` is zero.
    pub fn new(config: PoolConfig) -> Self {
        assert!(config.buf_bytes > 0, "buf_bytes is zero: nothing could be read");
        assert!(config.leased_max > 0, "leased_max is zero: no buffer could be taken");
        Self {
            shared: Rc::new(Shared {
                config,
                leased: Cell::new(0),
                idle: RefCell::new(Vec::new()),
            }),
        }
    }

    /// An empty buffer of [`buf_bytes`](PoolConfig::buf_bytes) capacity.
    ///
    /// # Errors
    /// [`PoolExhausted`] if [`leased_max`](PoolConfig::leased_max) buffers are in use, or if the bytes of another
    /// one cannot be allocated.
    #[inline]
    pub fn take(&self) -> Result<PoolBuf, PoolExhausted> {
        let Shared { config, leased, idle } = &*self.shared;
        if leased.get() == config.leased_max {
            return Err(PoolExhausted { leased_max: Some(config.leased_max) });
        }
        let reused = idle.borrow_mut().pop();
        let buffer = match reused {
            Some(buffer) => buffer,
            None => Buffer::new(config.buf_bytes)?,
        };
        leased.set(leased.get() + 1);
        Ok(PoolBuf { buffer: Some(buffer), pool: Rc::clone(&self.shared) })
    }

    /// A buffer for a read that waits.
    ///
    /// For runtimes on which a read with a buffer is faster than waiting first and [taking](Self::take) the
    /// buffer afterwards. Returns `None` if [`idle_max`](PoolConfig::idle_max) buffers or half of
    /// [`leased_max`](PoolConfig::leased_max) are in use, or if the bytes of another one cannot be allocated. The rest
    /// of the buffers is reserved for reads that have data ready.
    #[inline]
    pub fn take_for_waiting_read(&self) -> Option<PoolBuf> {
        let Shared { config, leased, .. } = &*self.shared;
        let waiting_max = config.idle_max.min(config.leased_max / 2);
        if leased.get() < waiting_max { self.take().ok() } else { None }
    }

    /// The capacity of each buffer, in bytes.
    pub fn buf_bytes(&self) -> usize {
        self.shared.config.buf_bytes
    }

    /// The number of buffers in use.
    pub fn leased(&self) -> usize {
        self.shared.leased.get()
    }
}

/// A buffer of a [`Pool`]. Dropping it returns it to the pool.
///
/// It is two words long, because a read and a write move it a dozen times. With the fields of `Buffer`
/// inline, an echo on tokio took 70 instructions more, of 1,280 (callgrind, 2026-11-27).
pub struct PoolBuf {
    /// `Some` until it is dropped.
    buffer: Option<Box<Buffer>>,
    pool: Rc<Shared>,
}

#[derive(Debug)]
struct Buffer {
    /// Only its capacity is used; its length is 0. At least the `buf_bytes` of the pool follow `start`. The allocation
    /// and `start` never change, and a buffer never leaves its pool. Miri and sanitizers do not see an access up to
    /// `ALIGN` - 1 bytes past the buffer that stays within the allocation.
    memory: Vec<u8>,
    /// Where the buffer begins in `memory`: at a multiple of [`Pool::ALIGN`].
    start: usize,
    /// The length, in bytes. That many are initialised.
    len: usize,
    /// Whether all `buf_bytes` are initialised, not only the first `len`. Once true, it stays true, because
    /// operations write initialised bytes only.
    is_initialised: bool,
}

impl Buffer {
    #[cold]
    fn new(capacity: usize) -> Result<Box<Self>, PoolExhausted> {
        let mut memory = Vec::<u8>::new();
        // A `Vec<u8>` cannot ask the allocator for an alignment.
        let reserved = memory.try_reserve_exact(capacity.saturating_add(Pool::ALIGN - 1));
        reserved.map_err(|_| PoolExhausted { leased_max: None })?;
        let addr = memory.as_ptr().addr();
        let start = addr.next_multiple_of(Pool::ALIGN) - addr;
        Ok(Box::new(Self { memory, start, len: 0, is_initialised: false }))
    }

    const fn ptr(&self) -> *const u8 {
        self.memory.as_ptr().wrapping_add(self.start)
    }

    const fn mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(self.start)
    }
}

impl PoolBuf {
    /// All of its memory up to the capacity, initialised. The length is unchanged.
    ///
    /// For backends whose runtime reads into initialised bytes. The bytes after the length are those of earlier
    /// reads. Each buffer of the pool is initialised once, not on every use.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        let capacity = self.pool.config.buf_bytes;
        let buffer = self.buffer_mut();
        let (len, ptr) = (buffer.len, buffer.mut_ptr());
        if !mem::replace(&mut buffer.is_initialised, true) {
            // SAFETY: `capacity` bytes are within the allocation (see `Buffer`). The borrow of `self` excludes
            // other accesses.
            let memory =
                unsafe { slice::from_raw_parts_mut(ptr.cast::<MaybeUninit<u8>>(), capacity) };
            memory[len..].fill(MaybeUninit::new(0));
        }
        // SAFETY: `capacity` bytes are within the allocation (see `Buffer`). They are initialised: the first call
        // initialised all of them, and since then only initialised bytes were written there (rule 2 of
        // `IoBufMut`). The borrow of `self` excludes other accesses.
        unsafe { slice::from_raw_parts_mut(ptr, capacity) }
    }

    #[inline]
    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("present until it is dropped")
    }

    #[inline]
    fn buffer_mut(&mut self) -> &mut Buffer {
        self.buffer.as_mut().expect("present until it is dropped")
    }
}

impl Drop for PoolBuf {
    #[inline]
    fn drop(&mut self) {
        let Shared { config, leased, idle } = &*self.pool;
        leased.set(leased.get() - 1);
        let mut idle = idle.borrow_mut();
        if idle.len() < config.idle_max
            && let Some(mut buffer) = self.buffer.take()
        {
            buffer.len = 0;
            idle.push(buffer);
        }
    }
}

impl std::ops::Deref for PoolBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let buffer = self.buffer();
        // SAFETY: the first `len` bytes of the buffer are initialised, as the caller of `set_buf_len` has
        // promised. The borrow of `self` excludes that they are written.
        unsafe { slice::from_raw_parts(buffer.ptr(), buffer.len) }
    }
}

impl std::ops::DerefMut for PoolBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let buffer = self.buffer_mut();
        // SAFETY: as in `deref`. The borrow of `self` excludes other accesses.
        unsafe { slice::from_raw_parts_mut(buffer.mut_ptr(), buffer.len) }
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf").field("len", &self.len()).finish_non_exhaustive()
    }
}

// SAFETY: 1. The pointer is the buffer's, whose first `len` bytes are initialised (promise 2 of `set_buf_len`).
// 2. The bytes are on the heap, and the vector never grows. 3. Only `set_buf_len` changes the length, and nothing
// the pointer. 4. The allocation has no other owner.
unsafe impl IoBuf for PoolBuf {
    fn buf_ptr(&self) -> *const u8 {
        self.buffer().ptr()
    }
    fn buf_len(&self) -> usize {
        self.buffer().len
    }
}

// SAFETY: 1. The same pointer, from which on the allocation has `buf_bytes` (see `Buffer`). 2. The vector never
// grows. 3. Exactly that length is set.
unsafe impl IoBufMut for PoolBuf {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        self.buffer_mut().mut_ptr()
    }
    fn buf_capacity(&self) -> usize {
        self.pool.config.buf_bytes
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        debug_assert!(len <= self.buf_capacity());
        self.buffer_mut().len = len;
    }
}

/// All buffers of a [`Pool`] are in use, or there is no memory for another one. Nothing was lost. Retry later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolExhausted {
    /// `None` if the allocation failed.
    leased_max: Option<usize>,
}

impl fmt::Display for PoolExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.leased_max {
            Some(leased_max) => write!(f, "all {leased_max} buffers of the pool are in use"),
            None => f.write_str("there is no memory for another buffer of the pool"),
        }
    }
}

impl Error for PoolExhausted {}

impl From<PoolExhausted> for io::Error {
    fn from(error: PoolExhausted) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoBufMutExt;

    #[test]
    fn a_reused_buffer_is_empty() {
        assert_eq!(size_of::<PoolBuf>(), 2 * size_of::<usize>());
        let pool = Pool::new(PoolConfig::default());
        let mut buf = pool.take().unwrap();
        assert_eq!(buf.buf_fill(b"left over"), 9);
        let ptr = buf.buf_ptr();
        drop(buf);
        let buf = pool.take().unwrap();
        assert_eq!((buf.buf_ptr(), buf.len(), pool.leased()), (ptr, 0, 1));
    }

    #[test]
    fn buffers_begin_at_a_cache_line() {
        for buf_bytes in [1, 64, 100, 16 * 1024] {
            let pool = Pool::new(PoolConfig { buf_bytes, leased_max: 4, idle_max: 4 });
            let mut bufs: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
            for buf in &mut bufs {
                assert_eq!(buf.buf_ptr().addr() % Pool::ALIGN, 0);
                assert_eq!(buf.memory_mut(), vec![0; buf_bytes]);
            }
        }
    }

    #[test]
    fn a_buffer_that_cannot_be_allocated_is_an_error() {
        let pool = Pool::new(PoolConfig { buf_bytes: usize::MAX, leased_max: 1, idle_max: 1 });
        let refused = pool.take().unwrap_err().to_string();
        assert_eq!(refused, "there is no memory for another buffer of the pool");
        assert_eq!(pool.leased(), 0);
    }

    #[test]
    fn memory_mut_is_initialised_up_to_the_capacity() {
        let pool = Pool::new(PoolConfig { buf_bytes: 8, leased_max: 1, idle_max: 1 });
        let mut buf = pool.take().unwrap();
        assert_eq!(buf.buf_fill(b"abc"), 3);
        assert_eq!(buf.memory_mut(), b"abc\0\0\0\0\0");
        buf.memory_mut()[4] = b'e';
        assert_eq!(&buf[..], b"abc", "the length is unchanged");
        drop(buf);
        assert_eq!(pool.take().unwrap().memory_mut(), b"abc\0e\0\0\0", "the bytes of the last use");
    }

    #[test]
    fn unused_buffers_are_kept_up_to_a_bound() {
        let pool = Pool::new(PoolConfig { buf_bytes: 8, leased_max: 4, idle_max: 2 });
        let bufs: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert_eq!(pool.take().unwrap_err().to_string(), "all 4 buffers of the pool are in use");
        drop(bufs);
        assert_eq!((pool.leased(), pool.shared.idle.borrow().len()), (0, 2));
    }

    #[test]
    fn waiting_reads_leave_buffers_for_reads_with_data() {
        let pool = Pool::new(PoolConfig { buf_bytes: 8, leased_max: 6, idle_max: 2 });
        let waiting =
            [pool.take_for_waiting_read().unwrap(), pool.take_for_waiting_read().unwrap()];
        assert!(pool.take_for_waiting_read().is_none(), "over idle_max");
        drop(waiting);
        let pool = Pool::new(PoolConfig { buf_bytes: 8, leased_max: 3, idle_max: 2 });
        let _waiting = pool.take_for_waiting_read().unwrap();
        assert!(pool.take_for_waiting_read().is_none(), "over half of leased_max");
        let _others = [pool.take().unwrap(), pool.take().unwrap()];
    }
}

//! [`Buffers`]: the memory that the connections of a worker share.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;

use crate::{IOV_MAX, IoVec, MemoryAccount, MemoryBudget, Pool};

/// The memory that the connections of one worker share.
///
/// It has three parts: the [`Pool`] for reads, buffers of any length to assemble messages in and to write
/// from, and the [`MemoryBudget`] that limits what the connections hold.
///
/// It is for authors of protocols over connections. A connection has a buffer only while the buffer
/// contains something, so an idle connection has none. The most recently used buffer is taken first, so
/// many connections touch as little of the CPU cache as a few. A clone is another handle to the same memory.
///
/// ```
/// use owned_io::{Buffers, MemoryBudget, Pool, PoolConfig};
///
/// let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20));
/// let mut buf = buffers.take();
/// buf.extend_from_slice(b"a message");
/// let mut held = buffers.account().reservation();
/// held.resize(buf.capacity())?; // while the connection has the buffer
/// buffers.give(buf);
/// held.force(0);
/// assert!(buffers.take().is_empty());
/// # Ok::<(), owned_io::MemoryExhausted>(())
/// ```
#[derive(Clone, Debug)]
pub struct Buffers {
    shared: Rc<Shared>,
    align: usize,
    /// The account of the connection, if it already has one.
    account: Option<MemoryAccount>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    budget: MemoryBudget,
    /// The most recently used buffer is last. At most [`UNUSED_MAX`] buffers and [`UNUSED_BYTES_MAX`] bytes.
    unused: RefCell<Vec<Vec<u8>>>,
    /// The sum of the capacities of `unused`.
    unused_bytes: Cell<usize>,
    /// Arrays for vectored writes: at most [`UNUSED_ARRAYS_MAX`], each for at most [`IOV_MAX`] pieces.
    #[expect(clippy::vec_box, reason = "the box is what protocols have, and writes move")]
    unused_arrays: RefCell<Vec<Box<IoVec<Bytes>>>>,
    /// At most one of each type. Bounded by the number of protocols.
    extensions: RefCell<Vec<Rc<dyn Any>>>,
}

/// Unused buffers. On a completion runtime, this many connections can write at the same time.
const UNUSED_MAX: usize = 1024;
/// Bytes of all unused buffers: as many as a pool keeps by default.
const UNUSED_BYTES_MAX: usize = 16 << 20;
/// Larger buffers go back to the allocator. Their allocation is cheap compared to the work on their bytes.
const UNUSED_BUF_BYTES_MAX: usize = 256 * 1024;
/// Unused arrays: 3 MiB in all.
const UNUSED_ARRAYS_MAX: usize = 64;
/// How many buffers [`Buffers::take_fitting`] examines. This bounds its time.
const FITTING_SCAN_MAX: usize = 64;

impl Buffers {
    /// The largest alignment that [`aligned_to`](Self::aligned_to) accepts, in bytes: a page, which direct
    /// I/O requires.
    pub const ALIGN_MAX: usize = 4096;

    /// Uses `pool` for reads. Memory beyond its buffers is reserved in `budget`, in one
    /// [account](Self::account) per connection.
    pub fn new(pool: Pool, budget: MemoryBudget) -> Self {
        Self {
            shared: Rc::new(Shared {
                pool,
                budget,
                unused: RefCell::default(),
                unused_bytes: Cell::new(0),
                unused_arrays: RefCell::default(),
                extensions: RefCell::default(),
            }),
            align: 1,
            account: None,
        }
    }

    /// The same memory, for connections that align each message which they assemble to `align` bytes.
    /// A message that is handed out in its receive buffer starts at any address.
    ///
    /// ```
    /// # use owned_io::{Buffers, MemoryBudget, Pool, PoolConfig};
    /// let budget = MemoryBudget::new(64 * 1024 * 1024);
    /// let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
    /// let for_direct_io = buffers.aligned_to(4096); // pass it to accept or connect
    /// ```
    ///
    /// # Panics
    /// If `align` is not a power of two, or greater than [`ALIGN_MAX`](Self::ALIGN_MAX).
    #[must_use]
    pub fn aligned_to(&self, align: usize) -> Self {
        let is_valid = align.is_power_of_two() && align <= Self::ALIGN_MAX;
        assert!(is_valid, "{align} is no alignment up to {}", Self::ALIGN_MAX);
        Self { align, ..self.clone() }
    }

    /// The same memory, for a connection that already has an account: its memory is reserved there. The
    /// account must belong to the same budget.
    ///
    /// With it, stacked protocols (WebSocket over TLS) share the limit of one connection. If the account is
    /// evicted, the protocols that hold memory in it end the connection.
    #[must_use]
    pub fn with_account(&self, account: &MemoryAccount) -> Self {
        Self { account: Some(account.clone()), ..self.clone() }
    }

    /// The pool that connections read into.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// The budget that limits what the connections hold.
    pub fn budget(&self) -> &MemoryBudget {
        &self.shared.budget
    }

    /// The account of a connection: the one [set before](Self::with_account), or a new one.
    pub fn account(&self) -> MemoryAccount {
        self.account.clone().unwrap_or_else(|| self.shared.budget.account())
    }

    /// The alignment of messages, in bytes. 1 unless [set](Self::aligned_to).
    pub const fn align(&self) -> usize {
        self.align
    }

    /// An empty buffer of any capacity. Reuses the most recent unused buffer if there is one.
    #[inline]
    pub fn take(&self) -> Vec<u8> {
        let mut buf = self.take_initialised();
        buf.clear();
        buf
    }

    /// A buffer that keeps the length and the bytes from its last use. A caller that overwrites the bytes
    /// saves their initialisation.
    #[inline]
    pub fn take_initialised(&self) -> Vec<u8> {
        let buf = self.shared.unused.borrow_mut().pop().unwrap_or_default();
        self.taken(buf)
    }

    /// An empty buffer, of at most `capacity_max` bytes. Of the recently used buffers it takes the smallest
    /// with `capacity` bytes, or else the largest. If there is none, the result has no capacity.
    pub fn take_fitting(&self, capacity: usize, capacity_max: usize) -> Vec<u8> {
        let mut unused = self.shared.unused.borrow_mut();
        let last = unused.iter().enumerate().rev().take(FITTING_SCAN_MAX);
        let fits = last.filter(|(_, buf)| buf.capacity() <= capacity_max);
        let best = fits.min_by_key(|(_, buf)| match buf.capacity().checked_sub(capacity) {
            Some(more) => (0, more),
            None => (1, capacity - buf.capacity()),
        });
        let Some((at, _)) = best else { return Vec::new() };
        let mut buf = self.taken(unused.swap_remove(at));
        buf.clear();
        buf
    }

    #[inline]
    fn taken(&self, buf: Vec<u8>) -> Vec<u8> {
        let bytes = &self.shared.unused_bytes;
        bytes.set(bytes.get() - buf.capacity());
        buf
    }

    /// Returns a buffer for reuse. Drops it if there are enough unused buffers, or if it is larger than
    /// 256 KiB.
    #[inline]
    pub fn give(&self, buf: Vec<u8>) {
        let Shared { unused, unused_bytes, .. } = &*self.shared;
        let (mut unused, bytes) = (unused.borrow_mut(), unused_bytes.get() + buf.capacity());
        let is_kept = bytes <= UNUSED_BYTES_MAX && unused.len() < UNUSED_MAX;
        if (1..=UNUSED_BUF_BYTES_MAX).contains(&buf.capacity()) && is_kept {
            unused.push(buf);
            unused_bytes.set(bytes);
        }
    }

    /// An empty array of pieces, for a vectored write.
    pub fn take_array(&self) -> Box<IoVec<Bytes>> {
        self.shared.unused_arrays.borrow_mut().pop().unwrap_or_default()
    }

    /// Returns an array for reuse, and the memory of its pieces that have no other owner. Such a piece is
    /// usually a received message, and its buffer serves for the next one.
    pub fn give_array(&self, mut array: Box<IoVec<Bytes>>) {
        let is_long = array.bufs().len() > IOV_MAX;
        for mut own in array.drain().filter_map(|piece| piece.try_into_mut().ok()) {
            own.clear(); // otherwise the conversion moves its bytes to the front
            self.give(own.into());
        }
        let mut unused = self.shared.unused_arrays.borrow_mut();
        if !is_long && unused.len() < UNUSED_ARRAYS_MAX {
            unused.push(array);
        }
    }

    /// The state that a protocol shares between all connections of the worker, compressors for example.
    /// There is one value of each type `T`. The first call creates it.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use owned_io::{Buffers, MemoryBudget, Pool, PoolConfig};
    ///
    /// #[derive(Default)]
    /// struct Dictionaries(Cell<u32>);
    ///
    /// let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20));
    /// buffers.extension::<Dictionaries>().0.set(5);
    /// assert_eq!(buffers.clone().extension::<Dictionaries>().0.get(), 5);
    /// ```
    pub fn extension<T: Default + 'static>(&self) -> Rc<T> {
        let mut extensions = self.shared.extensions.borrow_mut();
        let found = extensions.iter().find_map(|one| Rc::clone(one).downcast().ok());
        found.unwrap_or_else(|| {
            let new = Rc::<T>::default();
            extensions.push(Rc::clone(&new) as Rc<dyn Any>);
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolConfig;

    fn buffers() -> Buffers {
        Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(0))
    }

    #[test]
    fn a_reused_buffer_is_empty_or_keeps_its_bytes() {
        let buffers = buffers();
        buffers.give(vec![7; 100]);
        let again = buffers.take();
        assert_eq!((again.len(), again.capacity()), (0, 100));
        buffers.give(vec![7; 100]);
        assert_eq!(buffers.take_initialised(), [7; 100]);
        assert_eq!(buffers.take().capacity(), 0, "no unused buffer is left");
    }

    #[test]
    fn unused_buffers_are_bounded() {
        let buffers = buffers();
        buffers.give(Vec::with_capacity(UNUSED_BUF_BYTES_MAX + 1));
        buffers.give(Vec::new());
        assert_eq!(buffers.take().capacity(), 0);
        for _ in 0..=UNUSED_MAX {
            buffers.give(Vec::with_capacity(10));
        }
        assert_eq!(buffers.shared.unused.borrow().len(), UNUSED_MAX);
        while buffers.take().capacity() > 0 {}
        for _ in 0..=UNUSED_BYTES_MAX / UNUSED_BUF_BYTES_MAX {
            buffers.give(Vec::with_capacity(UNUSED_BUF_BYTES_MAX));
        }
        assert_eq!(buffers.shared.unused.borrow().len(), UNUSED_BYTES_MAX / UNUSED_BUF_BYTES_MAX);
    }

    #[test]
    fn takes_the_smallest_that_fits_or_else_the_largest() {
        let buffers = buffers();
        let give_all = || [100, 10, 1000, 50].map(|bytes| buffers.give(vec![7; bytes]));
        for (capacity, capacity_max, expected) in
            [(20, 2000, 50), (50, 2000, 50), (5000, 2000, 1000), (5000, 500, 100), (1, 5, 0)]
        {
            while buffers.take().capacity() > 0 {}
            give_all();
            let buf = buffers.take_fitting(capacity, capacity_max);
            assert_eq!((buf.len(), buf.capacity()), (0, expected), "{capacity}");
        }
    }

    #[test]
    fn an_array_returns_the_pieces_that_it_alone_owns() {
        let buffers = buffers();
        let shared = Bytes::from(vec![1; 30]);
        let mut array = buffers.take_array();
        array.push(Bytes::from(vec![7; 20]));
        array.push(shared.clone());
        buffers.give_array(array);
        let again = buffers.take();
        assert_eq!((again.len(), again.capacity()), (0, 20));
        assert_eq!(buffers.take().capacity(), 0, "the other piece has another owner");
        assert_eq!(shared, [1; 30][..]);
        assert!(buffers.take_array().bufs().is_empty());
    }
}

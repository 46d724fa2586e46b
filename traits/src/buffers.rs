//! [`Buffers`]: the memory that the connections of a worker share.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;

use crate::{IOV_MAX, IoVec, MemoryAccount, MemoryBudget, Pool};

/// The memory that the connections of one worker share: the [`Pool`] that they read into, buffers of any
/// length that they put messages together in and write from, and the [`MemoryBudget`] for what they hold.
///
/// It is for those who write a protocol over connections. A connection has a buffer only while there is
/// something in it, so an idle one has none. The buffer that was used last is used first, so many
/// connections work in as little of the cache as a few. Cloning gives another handle to the same memory.
///
/// ```
/// use owned_io::{Buffers, MemoryBudget, Pool, PoolConfig};
///
/// let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20));
/// let mut buf = buffers.take();
/// buf.extend_from_slice(b"a message");
/// let mut held = buffers.account().reservation();
/// held.resize(buf.capacity())?; // as long as the connection has it
/// buffers.give(buf);
/// held.force(0);
/// assert!(buffers.take().is_empty());
/// # Ok::<(), owned_io::MemoryExhausted>(())
/// ```
#[derive(Clone, Debug)]
pub struct Buffers {
    shared: Rc<Shared>,
    align: usize,
    /// That of the connection, if it has one already.
    account: Option<MemoryAccount>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    budget: MemoryBudget,
    /// The buffer that was used last is the last one. At most [`SPARE_MAX`], of [`SPARE_BYTES_MAX`] together.
    spare: RefCell<Vec<Vec<u8>>>,
    /// The sum of the capacities of `spare`.
    spare_bytes: Cell<usize>,
    /// The same for vectored writes: at most [`SPARE_ARRAYS_MAX`], each for at most [`IOV_MAX`] pieces.
    #[expect(clippy::vec_box, reason = "the box is what protocols have, and writes move")]
    spare_arrays: RefCell<Vec<Box<IoVec<Bytes>>>>,
    /// One of each type, for each protocol: a few.
    extensions: RefCell<Vec<Rc<dyn Any>>>,
}

/// On a completion runtime this many connections may write at a time, each from a buffer.
const SPARE_MAX: usize = 1024;
/// As much as a pool keeps by default.
const SPARE_BYTES_MAX: usize = 16 << 20;
/// Larger buffers are given back to the allocator: they cost little beside what was in them.
const SPARE_BUF_BYTES_MAX: usize = 256 * 1024;
/// 3 MiB of arrays.
const SPARE_ARRAYS_MAX: usize = 64;
/// How many buffers [`Buffers::take_fitting`] looks at, which bounds its time.
const FITTING_SCAN_MAX: usize = 64;

impl Buffers {
    /// The largest alignment that [`aligned_to`](Self::aligned_to) takes, in bytes: a page, as direct I/O
    /// asks for.
    pub const ALIGN_MAX: usize = 4096;

    /// Memory of `pool`, and buffers of any length. What connections hold beyond the buffers of the pool is
    /// reserved in an [account](Self::account) of `budget` for each of them.
    pub fn new(pool: Pool, budget: MemoryBudget) -> Self {
        Self {
            shared: Rc::new(Shared {
                pool,
                budget,
                spare: RefCell::default(),
                spare_bytes: Cell::new(0),
                spare_arrays: RefCell::default(),
                extensions: RefCell::default(),
            }),
            align: 1,
            account: None,
        }
    }

    /// The same memory, for connections whose messages are to begin at a multiple of `align` bytes where
    /// they are put together. One that is handed out where it was received begins anywhere.
    ///
    /// ```
    /// # use owned_io::{Buffers, MemoryBudget, Pool, PoolConfig};
    /// let budget = MemoryBudget::new(64 * 1024 * 1024);
    /// let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
    /// let for_direct_io = buffers.aligned_to(4096); // to accept or connect with
    /// ```
    ///
    /// # Panics
    /// If `align` is no power of two, or above [`ALIGN_MAX`](Self::ALIGN_MAX).
    #[must_use]
    pub fn aligned_to(&self, align: usize) -> Self {
        let is_valid = align.is_power_of_two() && align <= Self::ALIGN_MAX;
        assert!(is_valid, "{align} is no alignment up to {}", Self::ALIGN_MAX);
        Self { align, ..self.clone() }
    }

    /// The same memory, for a connection that has an account already: what it holds is reserved there. It
    /// must be an account of the same budget to be bounded by that.
    ///
    /// So a protocol and the one that it runs over can share what one connection may hold. If such an
    /// account is evicted, it is for the protocols that hold some of it to end the connection.
    #[must_use]
    pub fn with_account(&self, account: &MemoryAccount) -> Self {
        Self { account: Some(account.clone()), ..self.clone() }
    }

    /// The pool that connections read into.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// The budget for what connections hold.
    pub fn budget(&self) -> &MemoryBudget {
        &self.shared.budget
    }

    /// The account of a connection: the one that it [has](Self::with_account) already, or a new one.
    pub fn account(&self) -> MemoryAccount {
        self.account.clone().unwrap_or_else(|| self.shared.budget.account())
    }

    /// What messages are to begin at a multiple of, in bytes; 1 unless [asked for](Self::aligned_to).
    pub const fn align(&self) -> usize {
        self.align
    }

    /// An empty buffer of any capacity: one that was given back, if there is one.
    #[inline]
    pub fn take(&self) -> Vec<u8> {
        let mut buf = self.take_initialised();
        buf.clear();
        buf
    }

    /// A buffer with the length and the bytes that it was given back with, for whoever overwrites them:
    /// they need not be initialised once more.
    #[inline]
    pub fn take_initialised(&self) -> Vec<u8> {
        let buf = self.shared.spare.borrow_mut().pop().unwrap_or_default();
        self.taken(buf)
    }

    /// An empty buffer: of those used last, the shortest that has this capacity, or else the longest; of at most
    /// `capacity_max`, in bytes. If there is none, one without capacity.
    pub fn take_fitting(&self, capacity: usize, capacity_max: usize) -> Vec<u8> {
        let mut spare = self.shared.spare.borrow_mut();
        let last = spare.iter().enumerate().rev().take(FITTING_SCAN_MAX);
        let fits = last.filter(|(_, buf)| buf.capacity() <= capacity_max);
        let best = fits.min_by_key(|(_, buf)| match buf.capacity().checked_sub(capacity) {
            Some(more) => (0, more),
            None => (1, capacity - buf.capacity()),
        });
        let Some((at, _)) = best else { return Vec::new() };
        let mut buf = self.taken(spare.swap_remove(at));
        buf.clear();
        buf
    }

    #[inline]
    fn taken(&self, buf: Vec<u8>) -> Vec<u8> {
        let bytes = &self.shared.spare_bytes;
        bytes.set(bytes.get() - buf.capacity());
        buf
    }

    /// Takes a buffer back, to be taken again; it is dropped if there are enough of them, or if it is
    /// larger than 256 KiB.
    #[inline]
    pub fn give(&self, buf: Vec<u8>) {
        let Shared { spare, spare_bytes, .. } = &*self.shared;
        let (mut spare, bytes) = (spare.borrow_mut(), spare_bytes.get() + buf.capacity());
        let is_kept = bytes <= SPARE_BYTES_MAX && spare.len() < SPARE_MAX;
        if (1..=SPARE_BUF_BYTES_MAX).contains(&buf.capacity()) && is_kept {
            spare.push(buf);
            spare_bytes.set(bytes);
        }
    }

    /// An empty array of pieces, for a vectored write.
    pub fn take_array(&self) -> Box<IoVec<Bytes>> {
        self.shared.spare_arrays.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes an array back, and the memory of those of its pieces that nobody else has: such a piece is
    /// most often a message that was received, and its buffer serves for the next one.
    pub fn give_array(&self, mut array: Box<IoVec<Bytes>>) {
        let is_long = array.bufs().len() > IOV_MAX;
        for mut own in array.drain().filter_map(|piece| piece.try_into_mut().ok()) {
            own.clear(); // or it would be copied within
            self.give(own.into());
        }
        let mut spare = self.shared.spare_arrays.borrow_mut();
        if !is_long && spare.len() < SPARE_ARRAYS_MAX {
            spare.push(array);
        }
    }

    /// What a protocol keeps for all connections of the worker, compressors for example: the one `T` that
    /// there is, made when it is first asked for.
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
    fn a_buffer_is_used_again_empty_or_as_it_was_left() {
        let buffers = buffers();
        buffers.give(vec![7; 100]);
        let again = buffers.take();
        assert_eq!((again.len(), again.capacity()), (0, 100));
        buffers.give(vec![7; 100]);
        assert_eq!(buffers.take_initialised(), [7; 100]);
        assert_eq!(buffers.take().capacity(), 0, "there is none left");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let buffers = buffers();
        buffers.give(Vec::with_capacity(SPARE_BUF_BYTES_MAX + 1));
        buffers.give(Vec::new());
        assert_eq!(buffers.take().capacity(), 0);
        for _ in 0..=SPARE_MAX {
            buffers.give(Vec::with_capacity(10));
        }
        assert_eq!(buffers.shared.spare.borrow().len(), SPARE_MAX);
        while buffers.take().capacity() > 0 {}
        for _ in 0..=SPARE_BYTES_MAX / SPARE_BUF_BYTES_MAX {
            buffers.give(Vec::with_capacity(SPARE_BUF_BYTES_MAX));
        }
        assert_eq!(buffers.shared.spare.borrow().len(), SPARE_BYTES_MAX / SPARE_BUF_BYTES_MAX);
    }

    #[test]
    fn the_shortest_that_fits_or_else_the_longest() {
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
    fn an_array_gives_its_own_pieces_back() {
        let buffers = buffers();
        let shared = Bytes::from(vec![1; 30]);
        let mut array = buffers.take_array();
        array.push(Bytes::from(vec![7; 20]));
        array.push(shared.clone());
        buffers.give_array(array);
        let again = buffers.take();
        assert_eq!((again.len(), again.capacity()), (0, 20));
        assert_eq!(buffers.take().capacity(), 0, "the other is somebody else's");
        assert_eq!(shared, [1; 30][..]);
        assert!(buffers.take_array().bufs().is_empty());
    }
}

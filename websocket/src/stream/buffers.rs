//! [`Buffers`]: the memory that connections share.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use owned_io::{IOV_MAX, IoVec, MemoryAccount, MemoryBudget, Pool};

use crate::frame::{CONTROL_PAYLOAD_BYTES_MAX, Header};

/// The memory of one worker's WebSocket connections: the pool that they read into, the buffers that
/// they assemble large messages in and write from, and the budget for what they hold.
///
/// A connection has a buffer only while there is something in it, so an idle one has none. Those last
/// used are used first, so many connections work in as little of the cache as a few. Cloning gives
/// another handle to the same memory.
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
    /// Empty buffers, the last one used last: at most [`SPARE_MAX`], each of at most
    /// [`SPARE_BYTES_MAX`].
    spare: RefCell<Vec<Vec<u8>>>,
    /// The same for vectored writes: at most [`SPARE_MAX`], each for at most [`IOV_MAX`] pieces.
    #[expect(clippy::vec_box, reason = "the box is what queues have, and writes move")]
    spare_arrays: RefCell<Vec<Box<IoVec<Bytes>>>>,
    #[cfg(feature = "deflate")]
    compression: super::compression::Spare,
}

/// With [`SPARE_BYTES_MAX`], 16 MiB: as much as a pool keeps by default; of arrays, 3 MiB.
const SPARE_MAX: usize = 64;
/// Larger buffers are given back to the allocator: they cost little beside what was in them.
const SPARE_BYTES_MAX: usize = 256 * 1024;

impl Buffers {
    /// The shortest buffers of a pool that will do, in bytes: a control frame must fit.
    pub const POOL_BUF_BYTES_MIN: usize = CONTROL_PAYLOAD_BYTES_MAX + Header::BYTES_MAX;

    /// The largest alignment there is to be had: a page, as direct I/O asks for.
    pub const ALIGN_MAX: usize = 4096;

    /// Reads into buffers of `pool`. What connections hold beyond those buffers is reserved in an account of
    /// `budget` for each of them: messages that are put together, as their bytes come; the beginnings of
    /// frames; output that is queued; what compresses and decompresses.
    ///
    /// Where a reservation is refused, the connection stops reading until memory is given back. A message
    /// that could never fit fails its connection with [`Limit::Memory`](crate::Limit::Memory), and so does
    /// holding much while others wait ([`MemoryBudget::relieve`]); its peer is told
    /// [`CloseCode::TRY_AGAIN`](crate::CloseCode::TRY_AGAIN).
    ///
    /// # Panics
    /// If the pool's buffers are smaller than [`POOL_BUF_BYTES_MIN`](Self::POOL_BUF_BYTES_MIN).
    pub fn new(pool: Pool, budget: MemoryBudget) -> Self {
        let min = Self::POOL_BUF_BYTES_MIN;
        assert!(pool.buf_bytes() >= min, "no control frame fits the pool's buffers");
        Self {
            shared: Rc::new(Shared {
                pool,
                budget,
                spare: RefCell::default(),
                spare_arrays: RefCell::default(),
                #[cfg(feature = "deflate")]
                compression: Default::default(),
            }),
            align: 1,
            account: None,
        }
    }

    /// The same memory, for connections whose assembled messages are to begin at a multiple of `align`
    /// bytes. That holds for those that do not fit the pool's buffers, or come in several frames; one
    /// that is handed out where it was received begins anywhere.
    ///
    /// ```
    /// # use owned_io::{MemoryBudget, Pool, PoolConfig};
    /// # use owned_io_websocket::stream::Buffers;
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
    #[must_use]
    pub fn in_account(&self, account: &MemoryAccount) -> Self {
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

    /// The account of a connection: the one that it [has](Self::in_account), or a new one.
    pub fn account(&self) -> MemoryAccount {
        self.account.clone().unwrap_or_else(|| self.shared.budget.account())
    }

    /// An empty buffer of any capacity: one that was given back, if there is one.
    pub fn take(&self) -> Vec<u8> {
        self.shared.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// An empty buffer: the shortest that has this capacity, or else the longest; at most so long.
    pub(super) fn take_fitting(&self, capacity: usize, capacity_max: usize) -> Vec<u8> {
        let mut spare = self.shared.spare.borrow_mut();
        let fits = spare.iter().enumerate().filter(|(_, buf)| buf.capacity() <= capacity_max);
        let best = fits.min_by_key(|(_, buf)| match buf.capacity().checked_sub(capacity) {
            Some(more) => (0, more),
            None => (1, capacity - buf.capacity()),
        });
        best.map(|(at, _)| at).map_or_else(Vec::new, |at| spare.swap_remove(at))
    }

    /// Takes a buffer back, for whoever [takes](Self::take) one next.
    pub fn give(&self, mut buf: Vec<u8>) {
        let mut spare = self.shared.spare.borrow_mut();
        if (1..=SPARE_BYTES_MAX).contains(&buf.capacity()) && spare.len() < SPARE_MAX {
            buf.clear();
            spare.push(buf);
        }
    }

    /// An empty array of pieces.
    pub(super) fn take_array(&self) -> Box<IoVec<Bytes>> {
        self.shared.spare_arrays.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes an array back, and what of the pieces is nobody else's: a message that was received, as
    /// like as not, whose buffer is used again for the next one.
    pub(super) fn give_array(&self, mut array: Box<IoVec<Bytes>>) {
        let is_long = array.bufs().len() > IOV_MAX;
        for mut own in array.drain().filter_map(|piece| piece.try_into_mut().ok()) {
            own.clear(); // or it would be copied within
            self.give(own.into());
        }
        let mut spare = self.shared.spare_arrays.borrow_mut();
        if !is_long && spare.len() < SPARE_MAX {
            spare.push(array);
        }
    }

    /// What compresses and decompresses, for connections that have none of their own.
    #[cfg(feature = "deflate")]
    pub(super) fn compression(&self) -> &super::compression::Spare {
        &self.shared.compression
    }

    pub(super) const fn align(&self) -> usize {
        self.align
    }

    /// How far from the start of a buffer its first aligned byte is.
    pub(super) fn padding(&self, buf: &[u8]) -> usize {
        let at = buf.as_ptr().addr();
        at.next_multiple_of(self.align) - at
    }
}

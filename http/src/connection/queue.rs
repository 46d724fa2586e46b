//! [`Queue`]: the bytes of answers that are not yet written.

use std::{io, mem};

use bytes::Bytes;
use owned_io::{
    BufResult, Buffers, IoBuf, IoBufExt, IoVec, MemoryExhausted, OwnedWrite, Reservation, Slice,
};

/// A piece of up to this length, in bytes, is copied next to its head. A copy is cheaper than a piece of a vectored
/// write. The threshold is the one of `owned-io-websocket`.
pub(super) const COPIED_BYTES_MAX: usize = 1024;

/// The most pieces by reference before the queue is written: a quarter of what one vectored write can have.
const SHARED_MAX: usize = 256;

/// How much longer than its bound the queue may become, in bytes: by a head with few headers, and a short piece.
const EXCESS_BYTES: usize = 2 * COPIED_BYTES_MAX;

/// Heads, framing and short pieces in one buffer, and references to long pieces.
#[derive(Debug)]
pub(super) struct Queue {
    buffers: Buffers,
    /// The queue is full once `copied` is this long. Then it is to be written.
    bytes_max: usize,
    /// It is also full once the pieces have this many bytes.
    shared_bytes_max: usize,
    copied: Vec<u8>,
    /// The pieces, and how many bytes of `copied` precede each.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
    /// What `copied` has as its capacity.
    reservation: Reservation,
}

/// What one flush writes.
#[derive(Debug)]
pub(super) enum Batch {
    Copied(Slice<Vec<u8>>),
    Vectored(Box<IoVec<Bytes>>),
}

impl Queue {
    pub(super) const fn new(
        buffers: Buffers,
        reservation: Reservation,
        bytes_max: usize,
        shared_bytes_max: usize,
    ) -> Self {
        Self {
            buffers,
            bytes_max,
            shared_bytes_max,
            copied: Vec::new(),
            shared: Vec::new(),
            shared_bytes: 0,
            reservation,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.copied.is_empty() && self.shared.is_empty()
    }

    pub(super) const fn is_full(&self) -> bool {
        self.copied.len() >= self.bytes_max
            || self.shared_bytes >= self.shared_bytes_max
            || self.shared.len() >= SHARED_MAX
    }

    pub(super) const fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Makes room for `more` bytes in [`out`](Self::out).
    ///
    /// # Errors
    /// The budget has no room. The bytes are unchanged.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), MemoryExhausted> {
        if self.copied.capacity() == 0 {
            self.copied = self.buffers.take_fitting(more, self.capacity_max());
        }
        let (len, capacity) = (self.copied.len(), self.copied.capacity());
        if let Err(exhausted) = self.reservation.resize(capacity.max(len + more)) {
            if len > 0 {
                return Err(exhausted);
            }
            // A reused buffer may be longer than what is needed.
            self.buffers.give(mem::take(&mut self.copied));
            self.reservation.resize(more)?;
        }
        self.force(more);
        Ok(())
    }

    /// Makes room for `more` bytes, even beyond the budget. For the last few bytes of a connection.
    pub(super) fn force(&mut self, more: usize) {
        let (len, capacity) = (self.copied.len(), self.copied.capacity());
        if len + more > capacity {
            // Twice as long, as a vector grows by itself, but not beyond the bound, unless that much is needed.
            let doubled = self.capacity_max().min(2 * capacity);
            self.copied.reserve_exact(more.max(doubled.saturating_sub(len)));
        }
        self.reservation.force(self.copied.capacity());
    }

    const fn capacity_max(&self) -> usize {
        self.bytes_max.saturating_add(EXCESS_BYTES)
    }

    /// The end of the queue.
    pub(super) const fn out(&mut self) -> &mut Vec<u8> {
        &mut self.copied
    }

    /// Appends a piece. A short one needs [room](Self::reserve).
    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.len() <= COPIED_BYTES_MAX {
            self.copied.extend_from_slice(&piece);
        } else {
            self.shared_bytes += piece.len();
            self.shared.push((self.copied.len(), piece));
        }
    }

    /// Moves everything out.
    pub(super) fn take(&mut self) -> Batch {
        let copied = mem::take(&mut self.copied);
        if self.shared.is_empty() {
            return Batch::Copied(copied.buf_slice(..));
        }
        let copied = match copied.is_empty() {
            true => {
                self.buffers.give(copied); // a long piece without framing
                Bytes::new()
            }
            false => Bytes::from(copied),
        };
        let mut at = 0;
        let mut array = self.buffers.take_array();
        for (end, piece) in self.shared.drain(..) {
            if at < end {
                array.push(copied.slice(at..end));
                at = end;
            }
            array.push(piece);
        }
        if at < copied.len() {
            array.push(copied.slice(at..));
        }
        self.shared_bytes = 0;
        Batch::Vectored(array)
    }

    /// Takes back the memory of a batch, once it is written. The queue must be empty.
    pub(super) fn give(&mut self, batch: Batch) {
        match batch {
            Batch::Copied(copied) => self.buffers.give(copied.into_inner()),
            Batch::Vectored(array) => self.buffers.give_array(array),
        }
        self.reservation.force(self.copied.capacity());
    }
}

impl Batch {
    pub(super) fn bytes_left(&self) -> usize {
        match self {
            Self::Copied(copied) => copied.buf_len(),
            Self::Vectored(array) => array.bytes_left(),
        }
    }

    /// Writes some of it.
    pub(super) async fn write_some(self, stream: &mut impl OwnedWrite) -> BufResult<usize, Self> {
        match self {
            Self::Copied(copied) => {
                let BufResult(written, mut copied) = stream.write(copied).await;
                if let Ok(n) = written {
                    copied.advance(n);
                }
                BufResult(written.and_then(nonzero), Self::Copied(copied))
            }
            Self::Vectored(mut array) => {
                let bufs = mem::take(&mut *array);
                let BufResult(written, bufs) = stream.write_vectored(bufs).await;
                *array = bufs;
                BufResult(written.and_then(nonzero), Self::Vectored(array))
            }
        }
    }
}

/// A batch is never empty, so a write of nothing is an error of the stream.
fn nonzero(n: usize) -> io::Result<usize> {
    if n > 0 { Ok(n) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use owned_io::{MemoryBudget, Pool, PoolConfig};

    use super::*;

    #[test]
    fn a_long_buffer_for_reuse_takes_no_more_of_the_budget_than_there_is() {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1000));
        buffers.give(Vec::with_capacity(2000));
        let account = buffers.account();
        let mut queue = Queue::new(buffers, account.reservation(), 64 * 1024, 0);
        queue.reserve(500).unwrap();
        assert!((500..=1000).contains(&account.held_bytes()), "{}", account.held_bytes());
        queue.out().resize(500, b'a');
        assert!(queue.reserve(600).is_err());
        assert_eq!(queue.out().len(), 500);
    }

    /// Neither a long buffer for reuse nor the growth of its own one makes it much longer than its bound.
    #[test]
    fn a_queue_takes_little_more_memory_than_its_bound() {
        const BYTES_MAX: usize = 2048;
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20));
        buffers.give(Vec::with_capacity(200_000));
        let account = buffers.account();
        let mut queue = Queue::new(buffers.clone(), account.reservation(), BYTES_MAX, 1);
        for _ in 0..3 {
            let mut allocations = 0;
            while !queue.is_full() {
                let before = queue.out().capacity();
                queue.reserve(150).unwrap();
                allocations += usize::from(queue.out().capacity() > before);
                queue.out().extend_from_slice(&[b'a'; 150]);
            }
            assert!(account.held_bytes() <= BYTES_MAX + EXCESS_BYTES, "{}", account.held_bytes());
            assert!(allocations <= 6, "it grows in {allocations} steps");
            let batch = queue.take();
            queue.give(batch);
            assert_eq!(account.held_bytes(), 0);
        }
        assert!(buffers.take().capacity() <= BYTES_MAX + EXCESS_BYTES, "it is used again");
        assert_eq!(buffers.take().capacity(), 200_000);
    }
}

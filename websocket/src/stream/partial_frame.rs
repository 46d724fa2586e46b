//! [`PartialFrame`]: a frame of which only the beginning has arrived.

use owned_io::{MemoryAccount, Reservation};

use super::Buffers;
use super::assembly::{ReserveError, out_of_memory, reserve_memory};
use crate::engine::Receiver;
use crate::frame::Header;

/// The bytes of an incomplete frame at the end of a read. The rest of the frame is appended as it
/// arrives. Bytes behind the frame stay in the buffer that they were read into.
///
/// A connection whose peer has sent part of a frame therefore holds at most twice that part, and no
/// buffer of the pool.
pub(super) struct PartialFrame {
    bytes: Vec<u8>,
    /// The number of bytes at the front that are consumed.
    consumed_bytes: usize,
    /// The number of bytes that were appended last.
    added_bytes: usize,
    reservation: Reservation,
}

impl PartialFrame {
    pub(super) fn new(account: &MemoryAccount) -> Self {
        Self {
            bytes: Vec::new(),
            consumed_bytes: 0,
            added_bytes: 0,
            reservation: account.reservation(),
        }
    }

    /// Whether all bytes are consumed.
    pub(super) const fn is_empty(&self) -> bool {
        self.consumed_bytes >= self.bytes.len()
    }

    /// Stores `rest`, the beginning of a frame that `receiver` has looked at.
    pub(super) fn begin(
        &mut self,
        rest: &[u8],
        receiver: &Receiver,
        buffers: &Buffers,
    ) -> Result<(), ReserveError> {
        self.clear(buffers);
        self.bytes = buffers.take_fitting(rest.len().max(CAPACITY_MIN), buffers.pool().buf_bytes());
        if self.reservation.resize(self.bytes.capacity()).is_err() {
            buffers.give(std::mem::take(&mut self.bytes));
        }
        self.reserve_capacity(rest.len(), receiver.bytes_missing().max(Header::BYTES_MAX))?;
        self.bytes.extend_from_slice(rest);
        Ok(())
    }

    /// Appends what the frame lacks, as far as `fresh` has it. Returns how many bytes were
    /// appended. Some of them may belong to the next frame, see [`consume`](Self::consume).
    pub(super) fn append_missing(
        &mut self,
        fresh: &[u8],
        receiver: &Receiver,
    ) -> Result<usize, ReserveError> {
        let wanted = match receiver.bytes_missing() {
            0 => Header::BYTES_MAX.saturating_sub(self.bytes.len() - self.consumed_bytes).max(1),
            missing => missing,
        };
        self.added_bytes = wanted.min(fresh.len());
        self.reserve_capacity(self.added_bytes, wanted - self.added_bytes)?;
        self.bytes.extend_from_slice(&fresh[..self.added_bytes]);
        Ok(self.added_bytes)
    }

    /// The bytes to decode.
    pub(super) fn unconsumed(&mut self) -> &mut [u8] {
        &mut self.bytes[self.consumed_bytes..]
    }

    /// Marks the first `bytes` as consumed. `is_event`: they made an event. Removes the appended
    /// bytes that follow the event, and returns how many they are.
    pub(super) fn consume(&mut self, bytes: usize, is_event: bool) -> usize {
        self.consumed_bytes += bytes;
        let surplus = if is_event { self.bytes.len() - self.consumed_bytes } else { 0 };
        debug_assert!(surplus <= self.added_bytes);
        self.bytes.truncate(self.bytes.len() - surplus);
        surplus
    }

    /// The number of consumed bytes.
    pub(super) const fn consumed_bytes(&self) -> usize {
        self.consumed_bytes
    }

    /// All bytes, consumed ones too.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes, to hand out.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Releases the memory.
    pub(super) fn clear(&mut self, buffers: &Buffers) {
        if self.bytes.capacity() > 0 {
            buffers.give(std::mem::take(&mut self.bytes));
            self.reservation.force(0);
        }
        self.consumed_bytes = 0;
    }

    fn reserve_capacity(&mut self, needed: usize, announced: usize) -> Result<(), ReserveError> {
        let needed = self.bytes.len() + needed;
        if needed > self.reservation.bytes() {
            let needed = needed.max(CAPACITY_MIN.min(self.reservation.account().bytes_max()));
            let capacity = reserve_memory(&mut self.reservation, needed, needed, announced)?;
            if self.bytes.try_reserve_exact(capacity - self.bytes.len()).is_err() {
                let account = self.reservation.account();
                return Err(ReserveError::Fatal(out_of_memory(account, capacity)));
            }
        }
        Ok(())
    }
}

/// The smallest capacity that is allocated, in bytes. Most partial frames fit, so the buffer can be
/// reused.
const CAPACITY_MIN: usize = 256;

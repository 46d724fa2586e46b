//! [`PartialFrame`]: the beginning of a frame whose rest is still to come.

use owned_io::{MemoryAccount, Reservation};

use super::Buffers;
use super::assembly::{ReserveError, out_of_memory, reserve_memory};
use crate::engine::Receiver;
use crate::frame::Header;

/// The bytes that one read ended with in the middle of a frame. The rest of that frame is put to them as
/// it comes; what follows it stays where it was read.
///
/// So a connection whose peer has sent a part of a frame holds no more than that part and as much again,
/// and none of the pool's buffers.
pub(super) struct PartialFrame {
    bytes: Vec<u8>,
    /// How many of the first bytes are consumed.
    consumed_bytes: usize,
    /// How many bytes were put to it last.
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

    /// Whether there is nothing that is not consumed.
    pub(super) const fn is_empty(&self) -> bool {
        self.consumed_bytes >= self.bytes.len()
    }

    /// Keeps `rest`, the beginning of a frame, which the `receiver` has looked at.
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

    /// Puts to it what the frame lacks, as far as `fresh` has it; says how many bytes that are. Some of them
    /// may prove to belong to the next frame: see [`consume`](Self::consume).
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

    /// What is to be decoded.
    pub(super) fn unconsumed(&mut self) -> &mut [u8] {
        &mut self.bytes[self.consumed_bytes..]
    }

    /// Takes the first `bytes` as consumed, of which an event came if `is_event`; says how many of those
    /// that were put to it last belong to what follows: they are no longer here.
    pub(super) fn consume(&mut self, bytes: usize, is_event: bool) -> usize {
        self.consumed_bytes += bytes;
        let surplus = if is_event { self.bytes.len() - self.consumed_bytes } else { 0 };
        debug_assert!(surplus <= self.added_bytes);
        self.bytes.truncate(self.bytes.len() - surplus);
        surplus
    }

    /// How many bytes are consumed.
    pub(super) const fn consumed_bytes(&self) -> usize {
        self.consumed_bytes
    }

    /// All of its bytes, consumed ones too.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, to be handed out.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Gives up its memory.
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

/// The least room that is made, in bytes: most frames that are cut fit, so that a buffer serves again.
const CAPACITY_MIN: usize = 256;

//! [`Carry`]: the beginning of a frame whose rest is still to come.

use owned_io::{MemoryAccount, Reservation};

use super::Buffers;
use super::assembly::{NoRoom, out_of_memory, reserve_room};
use crate::engine::Receiver;
use crate::frame::Header;

/// The bytes that one read ended with in the middle of a frame. The rest of that frame is put to them as
/// it comes; what follows it stays where it was read.
///
/// So a connection whose peer has sent a part of a frame holds no more than that part and as much again,
/// and none of the pool's buffers.
pub(super) struct Carry {
    bytes: Vec<u8>,
    /// How many of the first bytes are consumed.
    at: usize,
    /// How many bytes were put to it last.
    added: usize,
    reservation: Reservation,
}

impl Carry {
    pub(super) fn new(account: &MemoryAccount) -> Self {
        Self { bytes: Vec::new(), at: 0, added: 0, reservation: account.reservation() }
    }

    /// Whether there is nothing that is not consumed.
    pub(super) const fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Keeps `rest`, the beginning of a frame, which the `receiver` has looked at.
    pub(super) fn begin(
        &mut self,
        rest: &[u8],
        receiver: &Receiver,
        buffers: &Buffers,
    ) -> Result<(), NoRoom> {
        self.clear(buffers);
        self.bytes = buffers.take_fitting(rest.len().max(CAPACITY_MIN), buffers.pool().buf_bytes());
        if self.reservation.resize(self.bytes.capacity()).is_err() {
            buffers.give(std::mem::take(&mut self.bytes));
        }
        self.make_room(rest.len(), receiver.bytes_missing().max(Header::BYTES_MAX))?;
        self.bytes.extend_from_slice(rest);
        Ok(())
    }

    /// Puts to it what the frame lacks, as far as `fresh` has it; says how many bytes that are. Some of them
    /// may prove to belong to the next frame: see [`consume`](Self::consume).
    pub(super) fn top_up(&mut self, fresh: &[u8], receiver: &Receiver) -> Result<usize, NoRoom> {
        let wanted = match receiver.bytes_missing() {
            0 => Header::BYTES_MAX.saturating_sub(self.bytes.len() - self.at).max(1),
            missing => missing,
        };
        self.added = wanted.min(fresh.len());
        self.make_room(self.added, wanted - self.added)?;
        self.bytes.extend_from_slice(&fresh[..self.added]);
        Ok(self.added)
    }

    /// What is to be decoded.
    pub(super) fn unconsumed(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..]
    }

    /// Takes the first `bytes` as consumed, of which an event came if `is_event`; says how many of those
    /// that were put to it last belong to what follows: they are no longer here.
    pub(super) fn consume(&mut self, bytes: usize, is_event: bool) -> usize {
        self.at += bytes;
        let surplus = if is_event { self.bytes.len() - self.at } else { 0 };
        debug_assert!(surplus <= self.added);
        self.bytes.truncate(self.bytes.len() - surplus);
        surplus
    }

    /// How many bytes are consumed.
    pub(super) const fn at(&self) -> usize {
        self.at
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
        self.at = 0;
    }

    fn make_room(&mut self, needed: usize, announced: usize) -> Result<(), NoRoom> {
        let needed = self.bytes.len() + needed;
        if needed > self.reservation.bytes() {
            let needed = needed.max(CAPACITY_MIN.min(self.reservation.account().bytes_max()));
            let capacity = reserve_room(&mut self.reservation, needed, needed, announced)?;
            if self.bytes.try_reserve_exact(capacity - self.bytes.len()).is_err() {
                let account = self.reservation.account();
                return Err(NoRoom::Ever(out_of_memory(account, capacity)));
            }
        }
        Ok(())
    }
}

/// The least room that is made, in bytes: most frames that are cut fit, so that a buffer serves again.
const CAPACITY_MIN: usize = 256;

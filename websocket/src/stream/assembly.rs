//! [`Assembly`]: a message that is assembled from pieces.

use std::mem;

use bytes::{Buf, Bytes};
use owned_io::coop::{self, cost};
use owned_io::{MemoryAccount, Reservation};

use super::receive_buffer::LocatedPiece;
use super::{Buffers, COPIED_BYTES_MAX};
use crate::{Limit, MessageKind, ProtocolError};

/// The pieces of a message that have arrived so far, in one buffer. It lives until the message has
/// been handed out.
pub(super) struct Assembly {
    kind: MessageKind,
    /// Whether no piece of the message was handed out before the assembly began.
    is_from_first: bool,
    /// The message begins at `start`, which is aligned as configured once there are bytes.
    bytes: Vec<u8>,
    start: usize,
    /// The number of bytes at the end that were read and not yet decoded.
    undecoded_bytes: usize,
    /// Whether a frame has ended and the message has not. Then any number of short frames may follow.
    is_fragmented: bool,
    is_whole: bool,
    is_handed_out: bool,
    /// Whether `bytes` was lent to a transport. Transports are safe code, which may have changed
    /// the bytes.
    was_lent: bool,
    /// Covers the capacity of `bytes`.
    reservation: Reservation,
    /// The longest message allowed.
    bytes_max: usize,
    buffers: Buffers,
}

/// Why no memory could be reserved for more of a message.
#[derive(Debug)]
pub(super) enum ReserveError {
    /// The budget is used up. Try again when memory was released.
    Retry,
    /// The account can never have that much, or the allocator failed.
    Fatal(ProtocolError),
}

impl Assembly {
    /// An empty assembly. `first`: the first piece of the message is to be added next.
    pub(super) fn new(
        kind: MessageKind,
        first: bool,
        bytes_max: usize,
        buffers: Buffers,
        account: &MemoryAccount,
    ) -> Self {
        Self {
            kind,
            is_from_first: first,
            bytes: Vec::new(),
            start: 0,
            undecoded_bytes: 0,
            is_fragmented: false,
            is_whole: false,
            is_handed_out: false,
            was_lent: false,
            reservation: account.reservation(),
            bytes_max,
            buffers,
        }
    }

    /// Appends a piece. `frame_bytes_left` is how much of its frame is still to arrive.
    pub(super) fn push(
        &mut self,
        payload: &[u8],
        frame_bytes_left: usize,
        last: bool,
    ) -> Result<(), ReserveError> {
        let account = self.reservation.account();
        let total = self.len() + payload.len() + frame_bytes_left;
        if total > account.bytes_max() {
            return Err(ReserveError::Fatal(out_of_memory(account, total)));
        }
        if frame_bytes_left == 0 && !last {
            self.end_frame();
        }
        if payload.len() > self.spare_capacity() || self.bytes.capacity() == 0 {
            self.grow(payload.len(), payload.len(), Some(frame_bytes_left))?;
        }
        self.bytes.extend_from_slice(payload);
        self.is_whole = last;
        Ok(())
    }

    /// Reserves capacity for `needed` more bytes, and for part of the `announced` bytes that follow
    /// them, see [`reserve_memory`]. `announced` is `None` if their number is unknown.
    pub(super) fn reserve_capacity(
        &mut self,
        needed: usize,
        announced: Option<usize>,
    ) -> Result<(), ReserveError> {
        if needed <= self.spare_capacity() {
            return Ok(());
        }
        self.grow(0, needed, announced)
    }

    /// The buffer, to append to within its [spare capacity](Self::spare_capacity). Follow it with
    /// [`mark_decoded`](Self::mark_decoded).
    #[cfg(feature = "deflate")]
    pub(super) const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Drops what was appended.
    #[cfg(feature = "deflate")]
    pub(super) fn restart(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// The number of bytes that fit behind the message so far.
    pub(super) const fn spare_capacity(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// Lends the buffer for a read that appends to it. Follow it with [`put_back`](Self::put_back).
    pub(super) fn lend(&mut self) -> Vec<u8> {
        self.was_lent = true;
        mem::take(&mut self.bytes)
    }

    /// Takes the lent buffer back. All bytes behind the first `len` are new.
    ///
    /// The length of the buffer decides, not the count that the transport returned: text that was
    /// checked must not be unmasked a second time.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>, len: usize) {
        self.undecoded_bytes = bytes.len().saturating_sub(len);
        self.bytes = bytes;
    }

    /// The bytes to decode. Follow it with [`mark_decoded`](Self::mark_decoded).
    pub(super) fn undecoded(&mut self) -> &mut [u8] {
        let start = self.bytes.len() - self.undecoded_bytes;
        &mut self.bytes[start..]
    }

    /// All bytes are decoded. `last`: they end the message.
    pub(super) const fn mark_decoded(&mut self, last: bool) {
        (self.undecoded_bytes, self.is_whole) = (0, last);
    }

    /// A frame of the message has ended, and it was not the last.
    pub(super) const fn end_frame(&mut self) {
        self.is_fragmented = true;
    }

    pub(super) const fn located(&self) -> LocatedPiece {
        LocatedPiece::assembled(self.kind, self.is_from_first, self.is_whole, self.was_lent)
    }

    /// Whether no piece of the message was handed out before the assembly began.
    pub(super) const fn is_from_first(&self) -> bool {
        self.is_from_first
    }

    pub(super) fn hand_out(&mut self) -> &mut [u8] {
        self.is_handed_out = true;
        &mut self.bytes[self.start..]
    }

    pub(super) const fn is_handed_out(&self) -> bool {
        self.is_handed_out
    }

    /// Whether moving the buffer out is worth it: sending it would not copy it, and it has little
    /// unused capacity.
    pub(super) const fn is_movable(&self) -> bool {
        self.len() > COPIED_BYTES_MAX && self.bytes.capacity() / BYTES_PER_BYTE_MAX <= self.len()
    }

    /// Moves the message out.
    pub(super) fn into_bytes(mut self) -> Bytes {
        let mut bytes = Bytes::from(mem::take(&mut self.bytes));
        bytes.advance(self.start);
        bytes
    }

    pub(super) const fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    #[cold]
    fn grow(
        &mut self,
        received: usize,
        needed: usize,
        announced: Option<usize>,
    ) -> Result<(), ReserveError> {
        let (len, padding_max) = (self.len(), self.buffers.align() - 1);
        let received = len + received;
        let needed = len.saturating_add(needed);
        // Doubles the buffer: otherwise each short frame would copy all frames before it.
        let doubled = if self.is_fragmented { self.bytes_max.min(2 * len) } else { 0 };
        let expected = announced.unwrap_or(0).max(doubled.saturating_sub(needed));
        let needed = needed.saturating_add(padding_max);
        let capacity = reserve_memory(&mut self.reservation, received, needed, expected)?;
        coop::consume(cost::frame_out(len)); // a copy, unless it grows in place
        let allocated = if len == 0 {
            self.allocate(
                capacity,
                announced.map_or(usize::MAX, |bytes| needed.saturating_add(bytes)),
            )
        } else if padding_max == 0 {
            self.bytes.try_reserve_exact(capacity - self.bytes.len()).map_err(drop)
        } else {
            self.reallocate(capacity)
        };
        let account = self.reservation.account();
        allocated.map_err(|()| ReserveError::Fatal(out_of_memory(account, capacity)))
    }

    /// Allocates the first buffer. Prefers one that was used before, if all of it can be reserved.
    fn allocate(&mut self, capacity: usize, message_bytes: usize) -> Result<(), ()> {
        self.bytes = self.buffers.take_fitting(message_bytes, usize::MAX);
        if self.reservation.resize(self.bytes.capacity().max(capacity)).is_err() {
            self.buffers.give(mem::take(&mut self.bytes));
        }
        self.bytes.try_reserve_exact(capacity).map_err(drop)?;
        self.bytes.resize(padding(&self.bytes, self.buffers.align()), 0);
        self.start = self.bytes.len();
        Ok(())
    }

    /// Moves the message to a larger buffer, in which it is aligned too.
    fn reallocate(&mut self, capacity: usize) -> Result<(), ()> {
        let mut larger = Vec::new();
        larger.try_reserve_exact(capacity).map_err(drop)?;
        larger.resize(padding(&larger, self.buffers.align()), 0);
        let start = mem::replace(&mut self.start, larger.len());
        larger.extend_from_slice(&self.bytes[start..]);
        self.bytes = larger;
        Ok(())
    }
}

/// The distance from the start of `buf` to its first aligned byte.
fn padding(buf: &[u8], align: usize) -> usize {
    let at = buf.as_ptr().addr();
    at.next_multiple_of(align) - at
}

/// Reserves memory for `needed` bytes and for part of the `announced` bytes that follow them.
/// Returns the number of bytes reserved.
///
/// The part is what the account's share allows, or four times `received`, whichever is more. So a
/// peer cannot make a connection hold much more than the peer has sent.
pub(super) fn reserve_memory(
    reservation: &mut Reservation,
    received: usize,
    needed: usize,
    announced: usize,
) -> Result<usize, ReserveError> {
    let (account, reserved) = (reservation.account(), reservation.bytes());
    if needed > account.bytes_max() {
        return Err(ReserveError::Fatal(out_of_memory(account, needed)));
    }
    let share = reserved + account.share_bytes_left();
    let generous = received.saturating_mul(BYTES_PER_BYTE_MAX).max(share).max(needed);
    let generous = generous.min(needed.saturating_add(announced));
    for bytes in [generous, needed] {
        if reservation.resize(bytes).is_ok() {
            return Ok(bytes);
        }
    }
    Err(ReserveError::Retry)
}

/// The error for a message that needs more memory than the account may have, or than the allocator
/// has.
#[cold]
pub(super) fn out_of_memory(account: &MemoryAccount, bytes: usize) -> ProtocolError {
    let max = account.bytes_max() as u64;
    ProtocolError::Limit { limit: Limit::Memory, max, got: bytes as u64 }
}

/// The largest ratio of a buffer to the message in it, for a message that is moved out. Also the
/// largest ratio of reserved to received bytes.
const BYTES_PER_BYTE_MAX: usize = 4;

impl Drop for Assembly {
    fn drop(&mut self) {
        self.buffers.give(mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use owned_io::{MemoryBudget, Pool, PoolConfig};

    use super::*;

    const BYTES_MAX: usize = 100_000;

    fn assembly(budget: &MemoryBudget) -> Assembly {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        Assembly::new(MessageKind::Binary, true, BYTES_MAX, buffers, &budget.account())
    }

    /// Adds frames of ten bytes until the message has `len` bytes. Returns how often it grew.
    fn push_bytes(assembly: &mut Assembly, len: usize) -> usize {
        let mut grown = 0;
        while assembly.len() < len {
            let before = assembly.bytes.capacity();
            assembly.push(&[7; 10], 0, false).unwrap();
            grown += usize::from(assembly.bytes.capacity() != before);
        }
        grown
    }

    #[test]
    fn short_frames_double_the_buffer_up_to_the_longest_message() {
        let mut assembly = assembly(&MemoryBudget::new(1 << 20));
        let grown = push_bytes(&mut assembly, BYTES_MAX);
        assert!(grown <= 20, "{grown} times");
        assert_eq!(assembly.bytes.capacity(), BYTES_MAX);
    }

    #[test]
    fn a_message_grows_by_what_it_needs_if_there_is_no_memory_for_more() {
        let mut assembly = assembly(&MemoryBudget::new(1500));
        push_bytes(&mut assembly, 1500);
        assert!(matches!(assembly.push(&[7], 0, true), Err(ReserveError::Fatal(_))));
    }

    /// The queue counts a lone payload by its length.
    #[test]
    fn a_message_is_moved_out_only_if_its_buffer_is_at_most_four_times_as_large() {
        let budget = MemoryBudget::new(1 << 20);
        for (len, is_movable) in [(19_999, false), (20_000, true)] {
            let mut assembly = assembly(&budget);
            assembly.buffers.give(Vec::with_capacity(80_000));
            assembly.push(&[7; 20_000][..len], 60_000, false).unwrap();
            assert_eq!((assembly.bytes.capacity(), assembly.is_movable()), (80_000, is_movable));
        }
    }

    #[test]
    fn a_copy_of_the_message_is_charged_to_the_work_budget() {
        let mut assembly = assembly(&MemoryBudget::new(1 << 20));
        assembly.push(&[7; 50_000], 0, false).unwrap();
        coop::refill();
        assembly.push(&[7], 0, false).unwrap();
        assert!(coop::spent_nanos() >= cost::frame_out(50_000));
    }
}

//! [`Assembly`]: a message that is put together.

use std::mem;

use bytes::{Buf, Bytes};
use owned_io::{MemoryAccount, Reservation};

use super::receive_buffer::LocatedPiece;
use super::{Buffers, COPIED_BYTES_MAX};
use crate::{Kind, Limit, ProtocolError};

/// The pieces of a message that have come so far, one behind the other; or the message, while it is
/// handed out.
pub(super) struct Assembly {
    kind: Kind,
    /// From `start` on, which is aligned as asked for, once there are any.
    bytes: Vec<u8>,
    start: usize,
    /// How many bytes, at the end, were read and are not yet decoded.
    undecoded_bytes: usize,
    is_whole: bool,
    is_handed_out: bool,
    /// Whether a transport had `bytes` in its hands, which is safe code and may have changed them.
    was_lent: bool,
    /// For the capacity of `bytes`.
    reservation: Reservation,
    buffers: Buffers,
}

/// Why there is no room for more of a message.
#[derive(Debug)]
pub(super) enum ReserveError {
    /// The budget is used up: it may be tried again when some was given back.
    Retry,
    /// There can never be as much, or the allocator refused.
    Fatal(ProtocolError),
}

impl Assembly {
    pub(super) fn new(kind: Kind, buffers: Buffers, account: &MemoryAccount) -> Self {
        Self {
            kind,
            bytes: Vec::new(),
            start: 0,
            undecoded_bytes: 0,
            is_whole: false,
            is_handed_out: false,
            was_lent: false,
            reservation: account.reservation(),
            buffers,
        }
    }

    /// Adds a piece, of whose frame some bytes are still to come.
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
        if payload.len() > self.spare_capacity() || self.bytes.capacity() == 0 {
            self.grow(payload.len(), payload.len(), Some(frame_bytes_left))?;
        }
        self.bytes.extend_from_slice(payload);
        self.is_whole = last;
        Ok(())
    }

    /// Makes room for `needed` more bytes, and for some of the `announced` ones that are to follow them:
    /// see [`reserve_memory`]. None: nobody knows how many follow.
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

    /// What there is, to be added to within the [room](Self::spare_capacity) there is; and then to be
    /// [settled](Self::mark_decoded).
    #[cfg(feature = "deflate")]
    pub(super) const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// How many bytes fit behind what there is.
    pub(super) const fn spare_capacity(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// For a read behind what there is, to be followed by [`put_back`](Self::put_back).
    pub(super) fn lend(&mut self) -> Vec<u8> {
        self.was_lent = true;
        mem::take(&mut self.bytes)
    }

    /// Takes it back; what is behind the first `len` bytes is new. How many that are is not asked of
    /// whoever read them: text that was checked must not be unmasked once more.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>, len: usize) {
        self.undecoded_bytes = bytes.len().saturating_sub(len);
        self.bytes = bytes;
    }

    /// What is to be decoded, to be followed by [`mark_decoded`](Self::mark_decoded).
    pub(super) fn undecoded(&mut self) -> &mut [u8] {
        let start = self.bytes.len() - self.undecoded_bytes;
        &mut self.bytes[start..]
    }

    /// That is decoded; and was the last of the message, or not.
    pub(super) const fn mark_decoded(&mut self, last: bool) {
        (self.undecoded_bytes, self.is_whole) = (0, last);
    }

    pub(super) const fn located(&self) -> LocatedPiece {
        LocatedPiece::assembled(self.kind, self.is_whole, self.was_lent)
    }

    pub(super) fn hand_out(&mut self) -> &mut [u8] {
        self.is_handed_out = true;
        &mut self.bytes[self.start..]
    }

    pub(super) const fn is_handed_out(&self) -> bool {
        self.is_handed_out
    }

    /// Whether moving it out is worth it: it is not copied anyway when it is sent, and little memory
    /// is kept in vain.
    pub(super) const fn is_movable(&self) -> bool {
        self.len() > COPIED_BYTES_MAX && self.bytes.capacity() / BYTES_PER_BYTE_MAX <= self.len()
    }

    /// The message, moved out.
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
        let needed = len.saturating_add(needed).saturating_add(padding_max);
        let capacity =
            reserve_memory(&mut self.reservation, received, needed, announced.unwrap_or(0))?;
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

    /// The first room: a buffer that was used before, if there is memory for all of it.
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

    /// Another buffer, in which the message begins at a multiple of the alignment too.
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

/// How far from the start of a buffer its first aligned byte is.
fn padding(buf: &[u8], align: usize) -> usize {
    let at = buf.as_ptr().addr();
    at.next_multiple_of(align) - at
}

/// Reserves room for `needed` bytes, of which so many were `received`, and for some of the `announced` ones
/// that are to follow them: as many as the account's share allows, and for four times as many as were
/// received. So a peer cannot make anybody hold much more than it has sent. Says for how many.
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

/// The error of a message that needs more memory than there can be, or than the allocator has.
#[cold]
pub(super) fn out_of_memory(account: &MemoryAccount, bytes: usize) -> ProtocolError {
    let max = account.bytes_max() as u64;
    ProtocolError::Limit { limit: Limit::Memory, max, got: bytes as u64 }
}

/// How many times as large as its message a buffer may be that is moved out, and how many times as much
/// room as bytes there are is made.
const BYTES_PER_BYTE_MAX: usize = 4;

impl Drop for Assembly {
    fn drop(&mut self) {
        self.buffers.give(mem::take(&mut self.bytes));
    }
}

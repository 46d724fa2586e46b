//! [`Segment`]: published messages that are sent in one write, and the memory that they take.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use owned_io::{MemoryAccount, Reservation};

use crate::frame::{Header, HeaderBytes};
use crate::{Fragment, Limit, MessageKind, ProtocolError};

/// What a segment takes beside its frames, in bytes, rounded up.
pub(super) const SEGMENT_BYTES: usize = 128;

/// Whole messages that were published one after the other, encoded as a server sends them.
pub(in crate::stream) struct Segment {
    pub(super) bytes: Bytes,
    /// The same messages, compressed where that makes them shorter.
    pub(super) compressed: Option<Bytes>,
    pub(super) messages: u64,
    /// The memory that it takes, in bytes.
    pub(super) held_bytes: usize,
    /// The number of subscribers that take it next.
    pub(super) waiting: Cell<usize>,
    pub(super) reservation: SharedReservation,
}

/// The reservation of a topic. Segments that are being written count until the write ends.
pub(super) type SharedReservation = Rc<RefCell<Reservation>>;

impl Segment {
    /// The bytes that count towards the bound of what is kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.bytes.len() + SEGMENT_BYTES
    }

    /// The frames.
    pub(in crate::stream) fn bytes(&self, is_compressed: bool) -> &Bytes {
        self.compressed.as_ref().filter(|_| is_compressed).unwrap_or(&self.bytes)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        sub(&self.reservation, self.held_bytes);
    }
}

pub(super) fn add(reservation: &SharedReservation, bytes: usize) {
    let mut reservation = reservation.borrow_mut();
    let all = reservation.bytes() + bytes;
    reservation.force(all);
}

pub(super) fn sub(reservation: &SharedReservation, bytes: usize) {
    let mut reservation = reservation.borrow_mut();
    let all = reservation.bytes() - bytes;
    reservation.force(all);
}

/// Takes the frames of `open`, and releases the memory that they do not need.
pub(super) fn freeze(reservation: &SharedReservation, open: &mut Vec<u8>) -> Bytes {
    let capacity = open.capacity();
    let mut frames = std::mem::take(open);
    frames.shrink_to_fit();
    sub(reservation, capacity - frames.len());
    frames.into()
}

pub(super) fn header(kind: MessageKind, compressed: bool, payload_bytes: usize) -> HeaderBytes {
    let (opcode, fin) = Fragment::Whole(kind).opcode();
    let payload_bytes = payload_bytes as u64;
    Header { fin, compressed, opcode, key: None, payload_bytes }.encode()
}

/// Makes room for `len` bytes in `open`.
pub(super) fn reserve(
    reservation: &SharedReservation,
    open: &mut Vec<u8>,
    len: usize,
    bytes_max: usize,
) -> Result<(), ProtocolError> {
    let capacity = open.capacity();
    if len <= capacity {
        return Ok(());
    }
    // Doubled: otherwise each message would copy all before it. The first one fits exactly, because in
    // many turns it is the only one.
    let wanted = len.max((2 * open.len()).min(bytes_max));
    let mut reservation = reservation.borrow_mut();
    let others = reservation.bytes() - capacity;
    let out_of_memory = |account: &MemoryAccount| ProtocolError::Limit {
        limit: Limit::Memory,
        max: account.bytes_max() as u64,
        got: (others + len) as u64,
    };
    if reservation.resize(others + wanted).is_err() && reservation.resize(others + len).is_err() {
        return Err(out_of_memory(reservation.account()));
    }
    let granted = reservation.bytes() - others;
    if open.try_reserve_exact(granted - open.len()).is_err() {
        reservation.force(others + capacity);
        return Err(out_of_memory(reservation.account()));
    }
    reservation.force(others + open.capacity()); // the allocator may give more
    Ok(())
}

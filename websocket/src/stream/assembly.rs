//! [`Assembly`]: a message that is put together.

use std::mem;

use bytes::{Buf, Bytes};

use super::inbox::Found;
use super::{Buffers, COPIED_BYTES_MAX};
use crate::{Error, Kind};

/// The pieces of a message that have come so far, one behind the other; or the message, while it is
/// handed out.
pub(super) struct Assembly {
    kind: Kind,
    /// From `start` on, which is aligned as asked for, once there are any.
    bytes: Vec<u8>,
    start: usize,
    /// How many bytes, at the end, were read and are not yet decoded.
    fresh_bytes: usize,
    is_whole: bool,
    is_handed_out: bool,
    promised: usize,
    buffers: Buffers,
}

impl Assembly {
    pub(super) fn new(kind: Kind, buffers: Buffers) -> Self {
        Self {
            kind,
            bytes: buffers.take(),
            start: 0,
            fresh_bytes: 0,
            is_whole: false,
            is_handed_out: false,
            promised: 0,
            buffers,
        }
    }

    /// Adds a piece, of whose frame some bytes are still to come: there is room for them then.
    pub(super) fn push(
        &mut self,
        payload: &[u8],
        frame_bytes_left: usize,
        last: bool,
    ) -> Result<(), Error> {
        let announced = payload.len() + frame_bytes_left;
        self.promise(announced)?;
        self.reserve(announced, usize::MAX);
        self.bytes.extend_from_slice(payload);
        self.is_whole = last;
        Ok(())
    }

    /// What there is, and room for more behind it: if there was none, for what is `expected` of the
    /// message, or for as much again as there is; and for no more than `bytes_max`, which is not 0. To be
    /// followed by [`promise`](Self::promise) of what was added.
    #[cfg(feature = "deflate")]
    pub(super) fn room(&mut self, expected: usize, bytes_max: usize) -> &mut Vec<u8> {
        if self.len() == 0 || self.bytes.len() == self.bytes.capacity() {
            self.reserve(expected.max(ROOM_BYTES_MIN).min(bytes_max), bytes_max);
        }
        &mut self.bytes
    }

    /// Counts so many bytes as promised, until the message is gone.
    pub(super) fn promise(&mut self, bytes: usize) -> Result<(), Error> {
        self.buffers.promise(bytes)?;
        self.promised += bytes;
        Ok(())
    }

    /// For a read behind what there is, to be followed by [`put`](Self::put).
    pub(super) fn take(&mut self) -> Vec<u8> {
        mem::take(&mut self.bytes)
    }

    /// Takes it back; what is behind the first `len` bytes is new. How many that are is not asked of
    /// whoever read them: text that was checked must not be unmasked once more.
    pub(super) fn put(&mut self, bytes: Vec<u8>, len: usize) {
        self.fresh_bytes = bytes.len().saturating_sub(len);
        self.bytes = bytes;
    }

    /// What is to be decoded, to be followed by [`settle`](Self::settle).
    pub(super) fn fresh(&mut self) -> &mut [u8] {
        let start = self.bytes.len() - self.fresh_bytes;
        &mut self.bytes[start..]
    }

    /// That is decoded; and was the last of the message, or not.
    pub(super) const fn settle(&mut self, last: bool) {
        (self.fresh_bytes, self.is_whole) = (0, last);
    }

    pub(super) const fn found(&self) -> Found {
        Found::assembled(self.kind, self.is_whole)
    }

    pub(super) fn hand_out(&mut self) -> &mut [u8] {
        self.is_handed_out = true;
        &mut self.bytes[self.start..]
    }

    pub(super) const fn is_handed_out(&self) -> bool {
        self.is_handed_out
    }

    /// Whether moving it out is worth it: it is not copied anyway when it is sent, and little memory
    /// is kept in vain, of a buffer that was used before.
    pub(super) const fn is_movable(&self) -> bool {
        self.len() > COPIED_BYTES_MAX && self.bytes.capacity() / BYTES_PER_BYTE_MAX <= self.len()
    }

    /// The message, moved out.
    pub(super) fn into_bytes(mut self) -> Bytes {
        let mut bytes = Bytes::from(mem::take(&mut self.bytes));
        bytes.advance(self.start);
        bytes
    }

    const fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Makes room for so many bytes behind what there is, and if it has to be made anew for more, but
    /// not for more than `bytes_max`.
    fn reserve(&mut self, bytes: usize, bytes_max: usize) {
        let len = self.len();
        if len == 0 {
            let start = self.buffers.padding(&self.bytes);
            if start + bytes <= self.bytes.capacity() {
                self.bytes.resize(start, 0);
                self.start = start;
                return;
            }
        } else if bytes <= self.bytes.capacity() - self.bytes.len() {
            return;
        }
        // Twice as much, or a message of many fragments would be copied with each.
        let room = (len + bytes).max(2 * len).min(len.saturating_add(bytes_max));
        let mut larger = Vec::with_capacity(room + self.buffers.align() - 1);
        larger.resize(self.buffers.padding(&larger), 0);
        let start = mem::replace(&mut self.start, larger.len());
        larger.extend_from_slice(&self.bytes[start..]);
        self.bytes = larger;
    }
}

/// What a message is decompressed into has no less room than this, if it may be as long.
#[cfg(feature = "deflate")]
const ROOM_BYTES_MIN: usize = 64;

/// How many times as large as its message a buffer may be that is moved out.
const BYTES_PER_BYTE_MAX: usize = 4;

impl Drop for Assembly {
    fn drop(&mut self) {
        self.buffers.release(self.promised);
        self.buffers.give(mem::take(&mut self.bytes));
    }
}

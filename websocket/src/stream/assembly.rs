//! [`Assembly`]: a message that is put together.

use std::mem;

use super::Buffers;
use super::inbox::Found;
use crate::{Error, Kind};

/// The pieces of a message that have come so far, one behind the other; or the message, while it is
/// handed out.
pub(super) struct Assembly {
    kind: Kind,
    bytes: Vec<u8>,
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
        self.buffers.promise(announced)?;
        self.promised += announced;
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(announced);
        } else {
            self.bytes.reserve(announced);
        }
        self.bytes.extend_from_slice(payload);
        self.is_whole = last;
        Ok(())
    }

    /// For a read behind what there is, to be followed by [`put`](Self::put).
    pub(super) fn take(&mut self) -> Vec<u8> {
        mem::take(&mut self.bytes)
    }

    /// Takes it back, with so many bytes more at its end.
    pub(super) fn put(&mut self, bytes: Vec<u8>, fresh_bytes: usize) {
        (self.bytes, self.fresh_bytes) = (bytes, fresh_bytes);
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
        &mut self.bytes
    }

    pub(super) const fn is_handed_out(&self) -> bool {
        self.is_handed_out
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.buffers.release(self.promised);
        self.buffers.give(mem::take(&mut self.bytes));
    }
}

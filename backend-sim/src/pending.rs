//! Pending operations, whose buffers "the kernel" holds: poisoned, watched, and perhaps used after the operation
//! was dropped.
//!
//! A completion runtime gives the kernel a pointer and may then move the buffer value. A buffer type that
//! breaks the rules of [`IoBuf`] (its bytes move with it, or somebody else writes to them) works by luck until
//! that happens. The simulator finds it: the memory that a read may fill holds a pattern, the bytes of a write
//! are fingerprinted, and at the end of the operation both must be unchanged and at the same address.

use std::io::IoSlice;

use owned_io::{FILE_TRANSFER_BYTES_MAX, IoBuf, IoBufExt, IoBufMut, IoBufMutExt, IoVec, Spare};

use crate::stream::StreamEnd;
use crate::trace::mix;

/// How much of each buffer is poisoned or checked, in bytes: enough to find a broken rule, and little enough
/// that a buffer of gigabytes costs nothing.
const WATCHED_BYTES: usize = 256;

/// A pattern that nobody would write.
const POISON: [u8; WATCHED_BYTES] = [0xdb; WATCHED_BYTES];

/// A read and its buffer. If it is dropped it may complete all the same.
pub(crate) struct PendingRead<'a, B: IoBufMut> {
    end: &'a StreamEnd,
    capacity: usize,
    /// The poison lies behind the length of the buffer, so the contents before it come back if the read fails.
    poisoned: Option<Spare<B>>,
    /// The address where the poison begins.
    addr: usize,
}

impl<'a, B: IoBufMut> PendingRead<'a, B> {
    pub(crate) fn new(end: &'a StreamEnd, buf: B) -> Self {
        let capacity = buf.buf_capacity();
        let mut poisoned = buf.spare();
        poisoned.buf_fill(&POISON);
        let addr = poisoned.buf_ptr().addr();
        Self { end, capacity, poisoned: Some(poisoned), addr }
    }

    /// # Panics
    /// If somebody wrote to the buffer, or its bytes have moved.
    pub(crate) fn give_back(mut self) -> B {
        let mut poisoned = self.poisoned.take().expect("there until it is given back");
        let bytes = poisoned.buf_bytes();
        assert!(
            bytes == &POISON[..bytes.len()] && bytes.as_ptr().addr() == self.addr,
            "somebody wrote to a buffer, or moved its bytes, while a read had it (see IoBuf, \
             # Safety, 2 and 4)"
        );
        poisoned.buf_clear();
        poisoned.into_inner()
    }
}

impl<B: IoBufMut> Drop for PendingRead<'_, B> {
    fn drop(&mut self) {
        if self.poisoned.is_some() {
            self.end.with(|core, socket| core.drop_read(socket, self.capacity));
        }
    }
}

/// A read without a buffer yet. If it is dropped it may complete all the same.
pub(crate) struct PendingPooledRead<'a> {
    end: &'a StreamEnd,
    capacity: Option<usize>,
}

impl<'a> PendingPooledRead<'a> {
    pub(crate) const fn new(end: &'a StreamEnd, capacity: usize) -> Self {
        Self { end, capacity: Some(capacity) }
    }

    pub(crate) fn finish(mut self) {
        self.capacity = None;
    }
}

impl Drop for PendingPooledRead<'_> {
    fn drop(&mut self) {
        if let Some(capacity) = self.capacity {
            self.end.with(|core, socket| core.drop_read(socket, capacity));
        }
    }
}

/// The buffers of a write.
pub(crate) trait Pieces {
    fn with<T>(&self, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T;
}

/// A write of one buffer.
pub(crate) struct Single<B>(pub(crate) B);

impl<B: IoBuf> Pieces for Single<B> {
    fn with<T>(&self, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        f(&[IoSlice::new(self.0.buf_bytes())])
    }
}

impl<B: IoBuf> Pieces for IoVec<B> {
    fn with<T>(&self, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        // The same at the beginning and at the end of a write: what a kernel takes of it is decided elsewhere.
        f(self.as_io_slices_within(FILE_TRANSFER_BYTES_MAX))
    }
}

/// A write and its buffers. If it is dropped it may complete all the same.
pub(crate) struct PendingWrite<'a, P: Pieces> {
    end: &'a StreamEnd,
    pieces: Option<P>,
    fingerprint: u64,
}

impl<'a, P: Pieces> PendingWrite<'a, P> {
    pub(crate) fn new(end: &'a StreamEnd, pieces: P) -> Self {
        let fingerprint = fingerprint(&pieces);
        Self { end, pieces: Some(pieces), fingerprint }
    }

    pub(crate) const fn get(&self) -> &P {
        self.pieces.as_ref().expect("there until they are given back")
    }

    /// # Panics
    /// If the bytes have changed or moved.
    pub(crate) fn give_back(mut self) -> P {
        let pieces = self.pieces.take().expect("there until they are given back");
        assert!(
            fingerprint(&pieces) == self.fingerprint,
            "somebody wrote to a buffer, or moved its bytes, while a write had it (see IoBuf, \
             # Safety, 2 and 4)"
        );
        pieces
    }
}

impl<P: Pieces> Drop for PendingWrite<'_, P> {
    fn drop(&mut self) {
        let Some(pieces) = &self.pieces else { return };
        pieces.with(|pieces| {
            let all = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
            self.end.with(|core, socket| {
                if let Some(n) = core.drop_write(socket, all) {
                    core.complete_dropped_write(socket, pieces, n);
                }
            });
        });
    }
}

/// A hash over the first bytes of each piece, its address and its length.
pub(crate) fn fingerprint(pieces: &impl Pieces) -> u64 {
    pieces.with(|pieces| {
        pieces.iter().fold(0, |hash, piece| {
            let location = mix(mix(hash, piece.as_ptr().addr() as u64), piece.len() as u64);
            piece[..piece.len().min(WATCHED_BYTES)].chunks(8).fold(location, |hash, chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                mix(hash, u64::from_le_bytes(word))
            })
        })
    })
}

//! Buffers while "the kernel" holds them: poisoned, watched, and perhaps used after their operation was
//! dropped.
//!
//! A completion runtime hands the kernel a pointer and moves the buffer elsewhere meanwhile. A buffer
//! type that breaks the rules of [`IoBuf`] (its bytes move with it, somebody else writes to them) works
//! by luck until that happens. Here it is found: what a read may fill holds a pattern meanwhile, what a
//! write sends is remembered, and when the operation ends they must be what they were, where they were.

use std::io::IoSlice;

use owned_io::{IoBuf, IoBufExt, IoBufMut, IoBufMutExt, IoVec, Spare};

use crate::stream::StreamEnd;
use crate::trace::mix;

/// How much of each buffer is poisoned, or looked at, in bytes: enough to find a rule that is broken,
/// little enough that a buffer of gigabytes costs nothing.
const WATCHED_BYTES: usize = 256;

/// What nobody would write.
const POISON: [u8; WATCHED_BYTES] = [0xdb; WATCHED_BYTES];

/// A read, and its buffer. Dropped, it may happen nevertheless.
pub(crate) struct HeldRead<'a, B: IoBufMut> {
    end: &'a StreamEnd,
    capacity: usize,
    /// What is poisoned lies after the buffer's length, so what that held comes back if the read fails.
    poisoned: Option<Spare<B>>,
    /// Where the poison begins.
    addr: usize,
}

impl<'a, B: IoBufMut> HeldRead<'a, B> {
    pub(crate) fn new(end: &'a StreamEnd, buf: B) -> Self {
        let capacity = buf.buf_capacity();
        let mut poisoned = buf.spare();
        poisoned.buf_fill(&POISON);
        let addr = poisoned.buf_ptr().addr();
        Self { end, capacity, poisoned: Some(poisoned), addr }
    }

    /// # Panics
    /// If somebody wrote to it, or it has moved its bytes.
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

impl<B: IoBufMut> Drop for HeldRead<'_, B> {
    fn drop(&mut self) {
        if self.poisoned.is_some() {
            self.end.with(|core, socket| core.drop_read(socket, self.capacity));
        }
    }
}

/// A read that has no buffer yet. Dropped, it may happen nevertheless.
pub(crate) struct PooledRead<'a> {
    end: &'a StreamEnd,
    capacity: Option<usize>,
}

impl<'a> PooledRead<'a> {
    pub(crate) const fn new(end: &'a StreamEnd, capacity: usize) -> Self {
        Self { end, capacity: Some(capacity) }
    }

    pub(crate) fn finish(mut self) {
        self.capacity = None;
    }
}

impl Drop for PooledRead<'_> {
    fn drop(&mut self) {
        if let Some(capacity) = self.capacity {
            self.end.with(|core, socket| core.drop_read(socket, capacity));
        }
    }
}

/// What a write sends.
pub(crate) trait Pieces {
    fn with<T>(&self, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T;
}

/// One buffer.
pub(crate) struct Single<B>(pub(crate) B);

impl<B: IoBuf> Pieces for Single<B> {
    fn with<T>(&self, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        f(&[IoSlice::new(self.0.buf_bytes())])
    }
}

impl<B: IoBuf> Pieces for IoVec<B> {
    fn with<T>(&self, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        f(self.as_io_slices())
    }
}

/// A write, and what it sends. Dropped, it may happen nevertheless.
pub(crate) struct HeldWrite<'a, P: Pieces> {
    end: &'a StreamEnd,
    pieces: Option<P>,
    mark: u64,
}

impl<'a, P: Pieces> HeldWrite<'a, P> {
    pub(crate) fn new(end: &'a StreamEnd, pieces: P) -> Self {
        let mark = mark(&pieces);
        Self { end, pieces: Some(pieces), mark }
    }

    pub(crate) const fn get(&self) -> &P {
        self.pieces.as_ref().expect("there until they are given back")
    }

    /// # Panics
    /// If they are not what they were.
    pub(crate) fn give_back(mut self) -> P {
        let pieces = self.pieces.take().expect("there until they are given back");
        assert!(
            mark(&pieces) == self.mark,
            "somebody wrote to a buffer, or moved its bytes, while a write had it (see IoBuf, \
             # Safety, 2 and 4)"
        );
        pieces
    }
}

impl<P: Pieces> Drop for HeldWrite<'_, P> {
    fn drop(&mut self) {
        let Some(pieces) = &self.pieces else { return };
        pieces.with(|pieces| {
            let all = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
            self.end.with(|core, socket| {
                if let Some(n) = core.drop_write(socket, all) {
                    core.write_unseen(socket, pieces, n);
                }
            });
        });
    }
}

/// Of each piece's first bytes, and of where they are and how many.
fn mark(pieces: &impl Pieces) -> u64 {
    pieces.with(|pieces| {
        pieces.iter().fold(0, |mark, piece| {
            let place = mix(mix(mark, piece.as_ptr().addr() as u64), piece.len() as u64);
            piece[..piece.len().min(WATCHED_BYTES)].chunks(8).fold(place, |mark, chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                mix(mark, u64::from_le_bytes(word))
            })
        })
    })
}

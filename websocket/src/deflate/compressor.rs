use flate2::{Compress, Compression, FlushCompress};

use super::{Deflate, TAIL, WINDOW_BITS_MAX, WINDOW_BITS_MIN};

/// Compresses messages for the wire (RFC 7692 section 7.2.1).
#[derive(Debug)]
pub(crate) struct Compressor {
    compress: Compress,
}

impl Compressor {
    /// Creates a compressor with the level of `deflate` and a window of `window_bits` bits, 9 to
    /// 15.
    pub(crate) fn new(deflate: &Deflate, window_bits: u8) -> Self {
        debug_assert!((WINDOW_BITS_MIN..=WINDOW_BITS_MAX).contains(&window_bits));
        let level = Compression::new(deflate.level.clamp(1, 9).into());
        Self { compress: Compress::new_with_window_bits(level, false, window_bits) }
    }

    /// Appends the compressed message to `out`. It may refer to earlier messages, back to the last
    /// [`forget`](Self::forget). Returns false if the compressor has failed, or there is no memory.
    /// It can compress nothing any more then: it may be within the message.
    #[must_use]
    pub(crate) fn compress(&mut self, message: &[u8], out: &mut Vec<u8>) -> bool {
        if message.is_empty() {
            let has_room = out.try_reserve(1).is_ok();
            if has_room {
                out.push(0); // the start of an empty block, as in section 7.2.3.6
            }
            return has_room;
        }
        let mut input = message;
        loop {
            if out.try_reserve((message.len() / 4).max(OUTPUT_BYTES_MIN)).is_err() {
                return false;
            }
            let read = self.compress.total_in();
            if self.compress.compress_vec(input, out, FlushCompress::Sync).is_err() {
                return false;
            }
            input = &input[(self.compress.total_in() - read) as usize..];
            // Everything is flushed if there was more room than needed.
            if input.is_empty() && out.len() < out.capacity() {
                break;
            }
        }
        let is_flushed = out.ends_with(&TAIL);
        out.truncate(out.len() - if is_flushed { TAIL.len() } else { 0 });
        is_flushed
    }

    /// Compresses a piece of a message. Takes bytes from `input` and appends to `out`, within its
    /// spare capacity of at least [`OUTPUT_BYTES_MIN`]. Returns whether the whole piece is
    /// compressed. The `last` piece completes the message.
    ///
    /// An error means what false means for [`compress`](Self::compress).
    pub(crate) fn fill(
        &mut self,
        input: &mut &[u8],
        last: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool, CompressError> {
        debug_assert!(out.capacity() - out.len() >= OUTPUT_BYTES_MIN, "there must be room");
        let flush = if last { FlushCompress::Sync } else { FlushCompress::None };
        let read = self.compress.total_in();
        self.compress.compress_vec(input, out, flush).map_err(|_| CompressError)?;
        *input = &input[(self.compress.total_in() - read) as usize..];
        let is_all = input.is_empty() && (!last || out.len() < out.capacity());
        if last && is_all {
            if !out.ends_with(&TAIL) {
                return Err(CompressError);
            }
            out.truncate(out.len() - TAIL.len());
        }
        Ok(is_all)
    }

    /// Resets the context: later messages refer to none before this. Not allowed within a message.
    pub(crate) fn forget(&mut self) {
        self.compress.reset();
    }
}

/// zlib has failed, for which there is no known reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressError;

/// With too little room, six bytes, zlib repeats a flush again and again. This is enough room.
pub(crate) const OUTPUT_BYTES_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::Decompressor;
    use super::*;
    use crate::compressed_bytes_max;

    #[test]
    fn pieces_make_one_message_whatever_room_there_is() {
        let mut random = 1_u64;
        let message: Vec<u8> = (0..100_000)
            .map(|n| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if n % 50_000 < 20_000 { (random >> 60) as u8 } else { 7 }
            })
            .collect();
        for (level, room) in [(1, 64), (1, 1000), (6, 64), (9, 40_000)] {
            let deflate = Deflate { level, ..Deflate::default() };
            let mut compressor = Compressor::new(&deflate, 15);
            let mut decompressor = Decompressor::new();
            for len in [1, 16_384, 16_385, message.len()] {
                let (mut out, mut pieces) = (Vec::new(), message[..len].chunks(16_384).peekable());
                while let Some(mut piece) = pieces.next() {
                    let last = pieces.peek().is_none();
                    out.reserve_exact(room);
                    while !compressor.fill(&mut piece, last, &mut out).unwrap() {
                        out.reserve_exact(room);
                    }
                }
                let mut inflated = Vec::new();
                while !decompressor.fill(&mut &out[..], &mut inflated, len + 1).unwrap() {}
                decompressor.finish().unwrap();
                assert!(inflated == message[..len], "{level} {room} {len}");
                assert!(out.len() <= compressed_bytes_max(len));
            }
        }
    }

    #[test]
    fn no_message_is_longer_than_the_longest() {
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let noise: Vec<u8> = (0..2_000_000)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 56) as u8 | 0xC0 // the longest literals
            })
            .collect();
        for level in [0, 1, 2, 6, 9, 200] {
            for bits in [9, 15] {
                let mut compressor =
                    Compressor::new(&Deflate { level, ..Deflate::default() }, bits);
                let longest = if level == 1 { noise.len() } else { 100_000 };
                for len in [0, 1, 2, 63, 1000, 16_384, 70_000, longest] {
                    let mut out = b"before".to_vec();
                    assert!(compressor.compress(&noise[..len], &mut out));
                    compressor.forget();
                    assert!(out.starts_with(b"before"));
                    assert!(out.len() - 6 <= compressed_bytes_max(len), "{level} {bits} {len}");
                }
            }
        }
    }
}

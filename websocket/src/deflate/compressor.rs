use flate2::{Compress, Compression, FlushCompress};

use super::{Deflate, TAIL, WINDOW_BITS_MAX, WINDOW_BITS_MIN};

/// Turns messages into what goes over the wire (RFC 7692 section 7.2.1).
#[derive(Debug)]
pub(crate) struct Compressor {
    compress: Compress,
}

impl Compressor {
    /// With the level of `deflate`, and a window of this many bits: 9 to 15.
    pub(crate) fn new(deflate: &Deflate, window_bits: u8) -> Self {
        debug_assert!((WINDOW_BITS_MIN..=WINDOW_BITS_MAX).contains(&window_bits));
        let level = Compression::new(deflate.level.clamp(1, 9).into());
        Self { compress: Compress::new_with_window_bits(level, false, window_bits) }
    }

    /// Appends a message to `out`, compressed; it may refer to those before it, back to the last
    /// [`forget`](Self::forget). False: it cannot be compressed, and nothing after it.
    #[must_use]
    pub(crate) fn compress(&mut self, message: &[u8], out: &mut Vec<u8>) -> bool {
        if message.is_empty() {
            out.push(0); // the start of a block without bytes, as in section 7.2.3.6
            return true;
        }
        let mut input = message;
        loop {
            out.reserve((message.len() / 4).max(OUTPUT_BYTES_MIN));
            let read = self.compress.total_in();
            if self.compress.compress_vec(input, out, FlushCompress::Sync).is_err() {
                return false;
            }
            input = &input[(self.compress.total_in() - read) as usize..];
            // All is flushed once there was more room than was needed.
            if input.is_empty() && out.len() < out.capacity() {
                break;
            }
        }
        let is_flushed = out.ends_with(&TAIL);
        out.truncate(out.len() - if is_flushed { TAIL.len() } else { 0 });
        is_flushed
    }

    /// Takes a piece of a message from `input` and appends what comes of it to `out`, as far as there is room:
    /// at least [`OUTPUT_BYTES_MIN`]. Whether that was all of the piece. With the `last` piece, the message is
    /// complete.
    ///
    /// An error: as when [`compress`](Self::compress) is false.
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

    /// The next message refers to none before it. Not within a message.
    pub(crate) fn forget(&mut self) {
        self.compress.reset();
    }
}

/// zlib has failed, which it has no reason to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressError;

/// zlib flushes again with less room than this (six bytes), and again.
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

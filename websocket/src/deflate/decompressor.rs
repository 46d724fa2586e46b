use flate2::{Decompress, FlushDecompress, Status};

use super::TAIL;

/// Decompresses messages from the wire (RFC 7692 section 7.2.2).
///
/// The caller controls memory: a call produces no more than it has room for.
#[derive(Debug)]
pub(crate) struct Decompressor {
    decompress: Decompress,
    /// How many deflate streams have ended within the current message.
    ends: u32,
    /// Whether nothing has followed the end of the last one.
    is_at_end: bool,
}

/// The input is not valid deflate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorruptData;

/// The most streams that one message may have. A stream may end within a message and another begin
/// (BFINAL, section 7.2.3.4). A peer exceeds this only by ending a stream every few bytes, which
/// makes work and serves nothing else.
const ENDS_MAX: u32 = 1000;

impl Decompressor {
    /// Uses the largest window. zlib-rs allocates memory for the largest window in any case.
    pub(crate) fn new() -> Self {
        Self { decompress: Decompress::new(false), ends: 0, is_at_end: false }
    }

    /// Decompresses from `input`, and appends at most `room` bytes to `out`; `room` is at least 1.
    /// Removes the bytes used from `input`. Returns whether all output of `input` was produced.
    ///
    /// Data after the end of a stream cannot refer to data before it.
    pub(crate) fn fill(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        room: usize,
    ) -> Result<bool, CorruptData> {
        debug_assert!(room > 0, "there must be room");
        let (read, written) = (self.decompress.total_in(), self.decompress.total_out());
        let before = out.len();
        out.resize(before + room, 0);
        let status = self.decompress.decompress(input, &mut out[before..], FlushDecompress::Sync);
        let produced = (self.decompress.total_out() - written) as usize;
        out.truncate(before + produced);
        let used = (self.decompress.total_in() - read) as usize;
        *input = &input[used..];
        match status {
            Err(_) => return Err(CorruptData),
            Ok(Status::StreamEnd) => {
                self.ends += 1;
                if self.ends > ENDS_MAX {
                    return Err(CorruptData);
                }
                self.decompress.reset(false);
                self.is_at_end = true;
            }
            Ok(_) if used > 0 => self.is_at_end = false,
            Ok(_) if produced == 0 && !input.is_empty() => return Err(CorruptData),
            Ok(_) => {}
        }
        Ok(input.is_empty() && produced < room)
    }

    /// Ends the message. Fails if it does not end with a complete block.
    pub(crate) fn finish(&mut self) -> Result<(), CorruptData> {
        self.ends = 0;
        if std::mem::take(&mut self.is_at_end) {
            return Ok(());
        }
        let written = self.decompress.total_out();
        let status = self.decompress.decompress(&TAIL, &mut [0; 8], FlushDecompress::Sync);
        match status {
            Ok(Status::Ok) if self.decompress.total_out() == written => Ok(()),
            _ => Err(CorruptData),
        }
    }

    /// Resets the context: the next message refers to none before it.
    pub(crate) fn forget(&mut self) {
        self.decompress.reset(false);
        (self.ends, self.is_at_end) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Compressor, Deflate};
    use super::*;

    /// Decompresses a message, `room` bytes at a time.
    fn decompress(
        decompressor: &mut Decompressor,
        parts: &[&[u8]],
        room: usize,
    ) -> Result<Vec<u8>, CorruptData> {
        let mut message = Vec::new();
        for part in parts {
            let mut input = *part;
            loop {
                let is_all = decompressor.fill(&mut input, &mut message, room)?;
                if is_all {
                    break;
                }
            }
        }
        decompressor.finish()?;
        Ok(message)
    }

    fn at_once(wire: &[u8]) -> Result<Vec<u8>, CorruptData> {
        decompress(&mut Decompressor::new(), &[wire], 1000)
    }

    #[test]
    fn the_examples_of_the_rfc() {
        let hello = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
        for wire in [
            &hello[..],                                              // 7.2.3.1
            b"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00", // 7.2.3.3: an uncompressed block
            b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00",             // 7.2.3.4: BFINAL
            b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00", // 7.2.3.5: two blocks
        ] {
            assert_eq!(at_once(wire).as_deref(), Ok(&b"Hello"[..]));
            for cut in 0..wire.len() {
                let parts = [&wire[..cut], &wire[cut..]];
                let message = decompress(&mut Decompressor::new(), &parts, 2);
                assert_eq!(message.as_deref(), Ok(&b"Hello"[..]));
            }
        }
        assert_eq!(at_once(b"\x00").as_deref(), Ok(&b""[..])); // 7.2.3.6
        // 7.2.3.2: the same message twice. The second refers to the first.
        let mut decompressor = Decompressor::new();
        for wire in [&hello[..], b"\xf2\x00\x11\x00\x00"] {
            let message = decompress(&mut decompressor, &[wire], 1000);
            assert_eq!(message.as_deref(), Ok(&b"Hello"[..]));
        }
        decompressor.forget();
        assert_eq!(
            decompress(&mut decompressor, &[b"\xf2\x00\x11\x00\x00"], 1000),
            Err(CorruptData)
        );
    }

    #[test]
    fn a_message_cut_anywhere() {
        let message: Vec<u8> = (0..2000_u32).map(|i| b'a' + (i * i % 23) as u8).collect();
        let (mut wire, mut decompressor) = (Vec::new(), Decompressor::new());
        assert!(Compressor::new(&Deflate::default(), 15).compress(&message, &mut wire));
        for cut in 0..=wire.len() {
            let parts = [&wire[..cut], b"", &wire[cut..]];
            assert_eq!(decompress(&mut decompressor, &parts, 700).as_deref(), Ok(&message[..]));
            decompressor.forget();
        }
    }

    #[test]
    fn corrupt_data_is_refused() {
        for wire in [
            &b"\x07"[..],                                    // a reserved block type
            b"\xf3\x48\xcd\xc9\xc9\x07\x00\xff\xff",         // garbage after the last block
            b"\xf2\x48\xcd\xc9\xc9\x07\x00\xff", // garbage after a block that is not the last
            b"\x00\x05\x00\xfa\xfe\x48\x65\x6c\x6c\x6f\x00", // a length that contradicts its complement
            b"\x00\x05\x00\xfa\xff\x48\x65",                 // cut off
            b"\xf2\x00\x11\x00\x00",                         // refers to data that does not exist
        ] {
            assert_eq!(at_once(wire), Err(CorruptData), "{wire:x?}");
        }
    }

    #[test]
    fn a_message_may_contain_a_bounded_number_of_stream_ends() {
        let end = b"\x03\x00"; // an empty last block
        let often = |times: u32| at_once(&end.repeat(times as usize));
        assert_eq!(often(ENDS_MAX).as_deref(), Ok(&b""[..]));
        assert_eq!(often(ENDS_MAX + 1), Err(CorruptData));
        let mut decompressor = Decompressor::new();
        for _ in 0..3 {
            let message = end.repeat(ENDS_MAX as usize);
            assert_eq!(decompress(&mut decompressor, &[&message], 10).as_deref(), Ok(&b""[..]));
        }
    }

    #[test]
    fn compressed_data_decompresses_to_the_same() {
        let text: Vec<u8> =
            (0..3000_u32).flat_map(|i| format!("{{\"n\":{}}}", i * i % 977).into_bytes()).collect();
        for (level, bits) in [1, 2, 5, 9].into_iter().flat_map(|l| [9, 11, 15].map(|b| (l, b))) {
            for takeover in [false, true] {
                let deflate = Deflate { level, ..Deflate::default() };
                let mut compressor = Compressor::new(&deflate, bits);
                let mut decompressor = Decompressor::new();
                let mut lengths = Vec::new();
                for len in [0, 1, 500, 500, 9000, 0, text.len(), 500] {
                    let (message, mut wire) = (&text[..len], Vec::new());
                    assert!(compressor.compress(message, &mut wire));
                    for room in [1, 100, 1 << 20] {
                        if takeover && room < 1 << 20 {
                            continue; // the context allows it only once
                        }
                        let out = decompress(&mut decompressor, &[&wire], room);
                        assert_eq!(out.as_deref(), Ok(message), "{level} {bits} {len}");
                        if !takeover {
                            decompressor.forget();
                        }
                    }
                    if !takeover {
                        compressor.forget();
                    }
                    lengths.push(wire.len());
                }
                // The second of two equal messages is a reference to the first, within the window.
                if bits > 9 {
                    assert_eq!(takeover, lengths[3] < lengths[2]);
                }
            }
        }
    }
}

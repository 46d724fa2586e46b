use flate2::{Decompress, FlushDecompress, Status};

use super::TAIL;

/// Turns what came over the wire into messages (RFC 7692 section 7.2.2).
///
/// Whoever calls it decides how much memory there is: it fills what room there is, and no more.
#[derive(Debug)]
pub(crate) struct Decompressor {
    decompress: Decompress,
    /// How often the stream of the message that is under way has ended.
    ends: u32,
    /// Whether nothing has come since it did.
    is_at_end: bool,
}

/// What came is no deflated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorruptData;

/// A stream may end within a message, and another begin (BFINAL, section 7.2.3.4); who does that more
/// often than this, which is to write a few bytes at a time, does it for the work that it makes.
const ENDS_MAX: u32 = 1000;

impl Decompressor {
    /// With the largest window, because zlib-rs takes the memory for that whatever it is.
    pub(crate) fn new() -> Self {
        Self { decompress: Decompress::new(false), ends: 0, is_at_end: false }
    }

    /// Appends to `out` what comes of `input`, at most `room` bytes, which are not none, and takes what it
    /// used from `input`. Whether that is all there is of it.
    ///
    /// What comes behind the end of a stream cannot refer to what was before it.
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
        let came = (self.decompress.total_out() - written) as usize;
        out.truncate(before + came);
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
            Ok(_) if came == 0 && !input.is_empty() => return Err(CorruptData),
            Ok(_) => {}
        }
        Ok(input.is_empty() && came < room)
    }

    /// The message ends: with a whole block, or it is none.
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

    /// The next message refers to none before it.
    pub(crate) fn forget(&mut self) {
        self.decompress.reset(false);
        (self.ends, self.is_at_end) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Compressor, Deflate};
    use super::*;

    /// What a message inflates to, `room` bytes at a time.
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
            b"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00", // 7.2.3.3: a block that is not compressed
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
        // 7.2.3.2: the same message twice, and the second refers to the first.
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
    fn what_is_corrupt() {
        for wire in [
            &b"\x07"[..],                                    // a reserved kind of block
            b"\xf3\x48\xcd\xc9\xc9\x07\x00\xff\xff",         // garbage behind the last block
            b"\xf2\x48\xcd\xc9\xc9\x07\x00\xff",             // and behind one that is not the last
            b"\x00\x05\x00\xfa\xfe\x48\x65\x6c\x6c\x6f\x00", // a length that is not what it says
            b"\x00\x05\x00\xfa\xff\x48\x65",                 // cut off
            b"\xf2\x00\x11\x00\x00",                         // refers to what there was not
        ] {
            assert_eq!(at_once(wire), Err(CorruptData), "{wire:x?}");
        }
    }

    #[test]
    fn a_stream_ends_within_a_message_but_not_for_ever() {
        let end = b"\x03\x00"; // a last block without bytes
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
    fn what_a_compressor_makes_comes_out_the_same() {
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
                            continue; // it can be had once
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
                // Of two that are the same the second is a reference to the first, within the window.
                if bits > 9 {
                    assert_eq!(takeover, lengths[3] < lengths[2]);
                }
            }
        }
    }
}

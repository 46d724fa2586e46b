//! Checks text: [`unmask_text`] a whole message, [`Utf8Validator`] a message in parts that are cut
//! anywhere.

use std::fmt;

use crate::frame::mask_is_ascii;

/// Unmasks `payload` behind its first `held` bytes, if there is a key. Returns it as text, or
/// `None` if it is not UTF-8.
#[inline]
#[expect(unsafe_code, reason = "checking ASCII a second time would cost half as much again")]
pub(crate) fn unmask_text(
    payload: &mut [u8],
    held: usize,
    key: Option<[u8; 4]>,
) -> Option<&mut str> {
    let (held, fresh) = payload.split_at_mut(held);
    if let Some(key) = key
        && mask_is_ascii(fresh, key)
    {
        if !held.is_empty() {
            simdutf8::basic::from_utf8(held).ok()?; // ASCII behind it cannot complete a character
        }
        // SAFETY: valid UTF-8 followed by ASCII is valid UTF-8.
        return Some(unsafe { str::from_utf8_unchecked_mut(payload) });
    }
    simdutf8::basic::from_utf8_mut(payload).ok()
}

/// An incremental validator. It keeps a character that is cut off at the end of a part.
#[derive(Clone, Copy, Default)]
pub(crate) struct Utf8Validator {
    /// The first `cut_len` bytes are the beginning of a character that the last part ended with: at
    /// most three bytes, which some byte can continue.
    cut: [u8; 4],
    cut_len: u8,
}

impl Utf8Validator {
    /// Checks the next part. Returns false at the first byte that cannot continue what came before,
    /// even if the character is not complete.
    pub(crate) fn push(&mut self, mut part: &[u8]) -> bool {
        while self.cut_len > 0 {
            let Some((&byte, rest)) = part.split_first() else { return true };
            part = rest;
            self.cut[usize::from(self.cut_len)] = byte;
            self.cut_len += 1;
            match std::str::from_utf8(&self.cut[..self.cut_len.into()]) {
                Ok(_) => self.cut_len = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = simdutf8::compat::from_utf8(part) else { return true };
        let cut = &part[error.valid_up_to()..];
        if error.error_len().is_some() {
            return false;
        }
        self.cut[..cut.len()].copy_from_slice(cut);
        self.cut_len = cut.len() as u8; // at most three
        true
    }

    /// Whether the text so far ends with a whole character.
    pub(crate) const fn is_complete(&self) -> bool {
        self.cut_len == 0
    }
}

impl fmt::Debug for Utf8Validator {
    /// Prints how many bytes are kept, not the bytes: they are part of a payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Utf8Validator").field("cut_len", &self.cut_len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters of each length at the ends of their ranges, and every kind of error.
    const SAMPLES: [&[u8]; 24] = [
        b"",
        b"plain ASCII that is longer than a word",
        "\u{80}\u{7FF}".as_bytes(),
        "\u{800}\u{D7FF}\u{E000}\u{FFFF}".as_bytes(),
        "\u{10000}\u{10FFFF}".as_bytes(),
        "κόσμε, a mixture: \u{10000}é€ and ASCII again".as_bytes(),
        b"a lone continuation \x80",
        b"\xC0\x80",         // overlong
        b"\xC1\xBF",         // overlong
        b"\xE0\x80\x80",     // overlong
        b"\xE0\x9F\xBF",     // overlong
        b"\xF0\x80\x80\x80", // overlong
        b"\xF0\x8F\xBF\xBF", // overlong
        b"\xED\xA0\x80",     // surrogate
        b"\xED\xBF\xBF",     // surrogate
        b"\xF4\x90\x80\x80", // above U+10FFFF
        b"\xF5\x80\x80\x80", // above U+10FFFF
        b"\xFF",
        b"\xC3(",
        b"\xE2\x82(",
        b"\xE2(\xA1",
        b"\xF0\x9F\x98(",
        b"cut off at the end \xF0\x9F\x98",
        b"ASCII, then more ASCII of the same kind, then a fault far behind \xF0(\x8C\xBC and on",
    ];

    /// Computes with the standard library how many bytes are accepted, and whether they are
    /// complete.
    fn expected(bytes: &[u8]) -> (usize, bool) {
        let bad_at = (1..=bytes.len()).find(|end| {
            std::str::from_utf8(&bytes[..*end]).is_err_and(|error| error.error_len().is_some())
        });
        (bad_at.unwrap_or(bytes.len()), std::str::from_utf8(bytes).is_ok())
    }

    #[test]
    fn byte_by_byte_fails_at_the_first_byte_that_cannot_go_on() {
        for sample in SAMPLES {
            let mut utf8 = Utf8Validator::default();
            let bad_at = sample.iter().position(|byte| !utf8.push(&[*byte]));
            let (accepted, complete) = expected(sample);
            assert_eq!(bad_at.map_or(sample.len(), |at| at + 1), accepted, "{sample:x?}");
            assert_eq!(bad_at.is_none() && utf8.is_complete(), complete, "{sample:x?}");
        }
    }

    #[test]
    fn a_cut_character_is_not_printed() {
        let mut utf8 = Utf8Validator::default();
        assert!(utf8.push(b"\xF0\x9F\x98"));
        assert_eq!(format!("{utf8:?}"), "Utf8Validator { cut_len: 3, .. }");
    }

    #[test]
    fn any_two_cuts_agree_with_the_whole() {
        let step = if cfg!(miri) { 6 } else { 1 };
        for sample in SAMPLES.into_iter().step_by(step) {
            for end in 0..=sample.len() {
                for middle in 0..=end {
                    let mut utf8 = Utf8Validator::default();
                    let parts = [&sample[..middle], &sample[middle..end], &sample[end..]];
                    let good = parts.iter().all(|part| utf8.push(part)) && utf8.is_complete();
                    assert_eq!(good, std::str::from_utf8(sample).is_ok(), "{parts:x?}");
                }
            }
        }
    }
}

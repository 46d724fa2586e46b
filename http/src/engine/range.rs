//! [`RangeChoice`]: the part of a representation that a request asks for (RFC 9110 section 14).

use std::ops::Range;

use super::Request;

/// What a request with `Range` is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeChoice {
    /// The whole representation, with status 200.
    Whole,
    /// This part of it, with status 206. It is not empty.
    Part(Range<u64>),
    /// Status 416: the range begins behind the end.
    Unsatisfiable,
}

impl RangeChoice {
    /// Chooses the part of a representation of `len` bytes that `request` asks for. `etag` is the strong entity tag
    /// of the representation, with its quotes, if it has one.
    ///
    /// A request for several ranges gets the whole, as does one with another unit, with a malformed range, or with a
    /// method other than GET: section 14.2 allows a server to ignore `Range`. So does a request whose `If-Range` is
    /// not `etag` (section 13.1.5): a date is never equal.
    pub fn of(request: &Request<'_>, len: u64, etag: Option<&str>) -> Self {
        if request.method() != "GET" {
            return Self::Whole;
        }
        let Some(range) = request.single("range") else { return Self::Whole };
        let is_current = match (request.header("if-range"), etag) {
            (None, _) => true,
            (Some(wanted), Some(etag)) => wanted == etag.as_bytes() && !etag.starts_with("W/"),
            (Some(_), None) => false,
        };
        if is_current { Self::parse(range, len) } else { Self::Whole }
    }

    /// Chooses the part of `len` bytes for the value of a `Range`.
    pub fn parse(range: &[u8], len: u64) -> Self {
        let Some((first, last)) = split(range) else { return Self::Whole };
        match (digits(first), digits(last)) {
            // The last bytes.
            (Some(None), Some(Some(suffix))) => match suffix.min(len) {
                0 => Self::Unsatisfiable,
                suffix => Self::Part(len - suffix..len),
            },
            (Some(Some(first)), Some(last)) if last.is_none_or(|last| first <= last) => {
                let end = last.map_or(len, |last| last.saturating_add(1).min(len));
                if first < len { Self::Part(first..end) } else { Self::Unsatisfiable }
            }
            _ => Self::Whole,
        }
    }
}

/// The texts before and behind the hyphen of a single range in bytes.
fn split(range: &[u8]) -> Option<(&[u8], &[u8])> {
    let (unit, range) = range.split_at_checked(b"bytes=".len())?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let range = range.trim_ascii();
    let hyphen = range.iter().position(|byte| *byte == b'-')?;
    Some((&range[..hyphen], &range[hyphen + 1..]))
}

/// `None` if `text` is not a number; `Some(None)` if it is empty. A number beyond 64 bits is the largest one.
fn digits(text: &[u8]) -> Option<Option<u64>> {
    if text.is_empty() {
        return Some(None);
    }
    let add = |sum: u64, byte: &u8| {
        byte.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
    };
    text.iter().try_fold(0, add).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_part_the_whole_or_none() {
        use RangeChoice::{Part, Unsatisfiable, Whole};
        for (range, len, expected) in [
            ("bytes=0-0", 10, Part(0..1)),
            ("bytes=0-", 10, Part(0..10)),
            ("bytes=3-5", 10, Part(3..6)),
            ("BYTES=3-5", 10, Part(3..6)),
            ("bytes= 3-5", 10, Part(3..6)),
            ("bytes=9-99", 10, Part(9..10)),
            ("bytes=9-99999999999999999999999", 10, Part(9..10)),
            ("bytes=-1", 10, Part(9..10)),
            ("bytes=-99", 10, Part(0..10)),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=99999999999999999999999-", 10, Unsatisfiable),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=0-", 0, Unsatisfiable),
            ("bytes=-1", 0, Unsatisfiable),
            ("bytes=5-3", 10, Whole),
            ("bytes=-", 10, Whole),
            ("bytes=", 10, Whole),
            ("bytes=a-b", 10, Whole),
            ("bytes=+1-2", 10, Whole),
            ("bytes=0-1,3-4", 10, Whole),
            ("bytes 0-1", 10, Whole),
            ("lines=0-1", 10, Whole),
            ("", 10, Whole),
        ] {
            assert_eq!(RangeChoice::parse(range.as_bytes(), len), expected, "{range} of {len}");
        }
    }
}

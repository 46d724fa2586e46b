//! [`Choice`]: which part of an object a request gets, if any (RFC 9110 sections 13 and 14).

use std::ops::Range;

use owned_io_http::{RangeChoice, Request};

use super::Head;

/// What a request for an object gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All of it.
    Whole,
    /// This part of so many bytes.
    Part(Range<u64>, u64),
    /// Status 416: the range begins behind the end of so many bytes.
    Unsatisfiable(u64),
    /// Status 304: the client has it.
    NotModified,
}

impl Choice {
    /// Chooses for an object of which `head` is known. `length` and `etag` are known once it has arrived, or if the
    /// origin has said so. Without a length a range is ignored, as section 14.2 allows.
    ///
    /// `If-Modified-Since` has to be equal to `Last-Modified`. `If-Match` and `If-Unmodified-Since` are ignored: they
    /// are for requests that change something.
    pub fn of(request: &Request<'_>, head: &Head, length: Option<u64>, etag: Option<&str>) -> Self {
        if is_not_modified(request, head, etag) {
            return Self::NotModified;
        }
        let Some(length) = length else { return Self::Whole };
        match RangeChoice::of(request, length, etag) {
            RangeChoice::Whole => Self::Whole,
            RangeChoice::Part(part) => Self::Part(part, length),
            RangeChoice::Unsatisfiable => Self::Unsatisfiable(length),
        }
    }
}

/// Section 13.2.2: a request with `If-None-Match` is not judged by its date.
fn is_not_modified(request: &Request<'_>, head: &Head, etag: Option<&str>) -> bool {
    let mut tags = request.values("if-none-match").peekable();
    if tags.peek().is_some() {
        return tags.any(|list| lists(list, etag));
    }
    let last_modified = head.headers.iter().find(|(name, _)| *name == "Last-Modified");
    match (request.single("if-modified-since"), last_modified) {
        (Some(since), Some((_, modified))) => since == modified.as_bytes(),
        _ => false,
    }
}

/// Whether a list of entity tags has `etag`, by the weak comparison, or is `*`. What is malformed ends the list.
fn lists(mut list: &[u8], etag: Option<&str>) -> bool {
    if list.trim_ascii() == b"*" {
        return true;
    }
    let Some(etag) = etag else { return false };
    // Each round takes a tag from the list.
    loop {
        let start = list.iter().position(|byte| !b" \t,".contains(byte)).unwrap_or(list.len());
        list = &list[start..];
        let tag = list.strip_prefix(b"W/").unwrap_or(list);
        let Some(opaque) = tag.strip_prefix(b"\"") else { return false };
        let Some(end) = opaque.iter().position(|byte| *byte == b'"') else { return false };
        if &tag[..end + 2] == etag.as_bytes() {
            return true;
        }
        list = &opaque[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use owned_io_http::Limits;
    use owned_io_http::engine::Decoder;

    use super::*;

    fn choose(headers: &str, length: Option<u64>, etag: Option<&str>) -> Choice {
        let request = format!("GET /object/a HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        let mut decoder = Decoder::new(&Limits::default());
        decoder.decode_head(request.as_bytes()).unwrap().unwrap();
        let modified = ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT".into());
        let head = Head { headers: vec![modified], ..Head::default() };
        Choice::of(&decoder.request(request.as_bytes()), &head, length, etag)
    }

    #[test]
    fn a_client_that_has_the_object_is_told_so() {
        let same = "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        for (headers, expected) in [
            ("", false),
            ("If-None-Match: \"1\"\r\n", true),
            ("If-None-Match: W/\"1\"\r\n", true),
            ("If-None-Match: \"0\" , W/\"x,y\",\"1\"\r\n", true),
            ("If-None-Match: \"0\"\r\nIf-None-Match: \"1\"\r\n", true),
            ("If-None-Match: *\r\n", true),
            ("If-None-Match: \"2\"\r\n", false),
            ("If-None-Match: 1\r\n", false),
            ("If-None-Match: \"1\r\n", false),
            ("If-None-Match:\r\n", false),
            (same, true),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:38 GMT\r\n", false),
            (&format!("{same}If-None-Match: \"2\"\r\n"), false),
        ] {
            let choice = choose(headers, Some(9), Some("\"1\""));
            assert_eq!(choice == Choice::NotModified, expected, "{headers}");
        }
        assert_eq!(choose("If-None-Match: \"1\"\r\n", Some(9), None), Choice::Whole);
        assert_eq!(choose("If-None-Match: *\r\n", None, None), Choice::NotModified);
    }

    #[test]
    fn a_range_needs_a_length_and_the_same_tag() {
        for (headers, length, etag, expected) in [
            ("Range: bytes=2-3\r\n", Some(9), None, Choice::Part(2..4, 9)),
            ("Range: bytes=9-\r\n", Some(9), None, Choice::Unsatisfiable(9)),
            ("Range: bytes=2-3\r\n", None, None, Choice::Whole),
            (
                "Range: bytes=2-3\r\nIf-Range: \"1\"\r\n",
                Some(9),
                Some("\"1\""),
                Choice::Part(2..4, 9),
            ),
            ("Range: bytes=2-3\r\nIf-Range: \"2\"\r\n", Some(9), Some("\"1\""), Choice::Whole),
            ("Range: bytes=2-3\r\nIf-Range: \"1\"\r\n", Some(9), None, Choice::Whole),
            (
                "Range: bytes=2-3\r\nIf-None-Match: \"1\"\r\n",
                Some(9),
                Some("\"1\""),
                Choice::NotModified,
            ),
        ] {
            assert_eq!(choose(headers, length, etag), expected, "{headers}");
        }
    }
}

//! [`HeadDecoder`]: parses the head of an origin's answer (RFC 9112). What is ambiguous is refused.
//!
//! The body is decoded by [`BodyDecoder`](owned_io_http::engine::BodyDecoder).

use std::fmt;

use httparse::{EMPTY_HEADER, Header, Response, Status};

use super::{CacheControl, Head};

/// The longest head, in bytes: some kilobytes of cookies and policies fit.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The most headers of a head, as in a request.
pub const HEADERS_MAX: usize = owned_io_http::engine::HEADERS_MAX;

/// How many interim answers (1xx) may precede the answer. We ask for none.
pub const INTERIM_MAX: u32 = 8;

/// How many headers are passed on to clients: each of [`FORWARDED`], and a few that are given twice.
pub const FORWARDED_MAX: usize = 12;

/// The bytes of all values that are passed on: a connection has memory for as many in any case.
pub const FORWARDED_BYTES_MAX: usize = 2 * 1024;

/// The longest entity tag, in bytes. Hashes in hexadecimal fit.
const ETAG_BYTES_MAX: usize = 160;

/// The headers that are passed on to clients. Others are about the connection, or about one client, as cookies are.
pub const FORWARDED: [&str; 8] = [
    "Cache-Control",
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Content-Security-Policy",
    "Content-Type",
    "Last-Modified",
    "X-Content-Type-Options",
];

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status: 200 to 999.
    pub status: u16,
    /// How the body ends.
    pub body: ResponseBody,
    /// What is said about the object.
    pub head: Head,
    /// How long it may be used.
    pub control: CacheControl,
}

/// How the body of an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// After this many bytes.
    Exact(u64),
    /// With the last chunk.
    Chunked,
    /// With the connection.
    UntilEnd,
}

/// Why an answer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// It does not begin with `HTTP/1.1` or `HTTP/1.0`, one space, and a status.
    StatusLine,
    /// A line ends with LF alone, or a CR is not followed by LF.
    LineEnd,
    /// A line is no header.
    Header,
    /// The head is longer than [`HEAD_BYTES_MAX`], or has more than [`HEADERS_MAX`] headers.
    HeadTooLong,
    /// The headers that clients get exceed [`FORWARDED_MAX`] or [`FORWARDED_BYTES_MAX`].
    ForwardedTooLong,
    /// `Content-Length` is not a decimal number, or is given twice.
    Length,
    /// There are a `Content-Length` and a `Transfer-Encoding`.
    LengthAndCoding,
    /// The transfer coding is not `chunked` alone, or the version is 1.0.
    Coding,
    /// More than [`INTERIM_MAX`] interim answers, or one that changes the protocol.
    Interim,
    /// The body is malformed.
    Body,
}

/// Decodes the head of one answer.
#[derive(Debug, Default)]
pub struct HeadDecoder {
    received: Vec<u8>,
    /// The bytes in which no further line end has to be found.
    scanned: usize,
    /// The beginning of the current line.
    line_at: usize,
    interim: u32,
}

impl HeadDecoder {
    /// A decoder for an answer of which nothing has arrived.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the next bytes that have arrived. Returns the head once it is complete, and how many of `bytes` belong to
    /// it: the rest are the body. Interim answers are ignored.
    ///
    /// # Errors
    /// The answer is refused. Do not call it again.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, ResponseError> {
        let mut rest = bytes;
        // Each round decodes a head, or all bytes.
        loop {
            let before = self.received.len();
            let taken = rest.len().min(HEAD_BYTES_MAX - before);
            self.received.extend_from_slice(&rest[..taken]);
            let Some(end) = self.find_end()? else {
                let is_full = self.received.len() >= HEAD_BYTES_MAX;
                return if is_full { Err(ResponseError::HeadTooLong) } else { Ok(None) };
            };
            let head = parse(&self.received[..end])?;
            rest = &rest[end - before..];
            self.received.clear();
            (self.scanned, self.line_at) = (0, 0);
            match head.status {
                101 => return Err(ResponseError::Interim),
                100..=199 => {
                    self.interim += 1;
                    if self.interim > INTERIM_MAX {
                        return Err(ResponseError::Interim);
                    }
                }
                _ => return Ok(Some((head, bytes.len() - rest.len()))),
            }
        }
    }

    /// Where the head ends, if it is complete.
    fn find_end(&mut self) -> Result<Option<usize>, ResponseError> {
        if self.received.first().is_some_and(|first| *first != b'H') {
            return Err(ResponseError::StatusLine); // of another protocol, perhaps without line ends
        }
        while let Some(at) = self.received[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let line_end = self.scanned + at + 1;
            let line = &self.received[self.line_at..line_end];
            let Some(content) = line.strip_suffix(b"\r\n") else {
                return Err(ResponseError::LineEnd);
            };
            if content.contains(&b'\r') {
                return Err(ResponseError::LineEnd);
            }
            (self.scanned, self.line_at) = (line_end, line_end);
            if content.is_empty() {
                return Ok(Some(line_end));
            }
        }
        self.scanned = self.received.len();
        Ok(None)
    }
}

/// Parses a head that is complete, with its empty line.
fn parse(head: &[u8]) -> Result<ResponseHead, ResponseError> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    match response.parse(head) {
        Ok(Status::Complete(bytes)) if bytes == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(ResponseError::HeadTooLong),
        Err(httparse::Error::Status | httparse::Error::Version) => {
            return Err(ResponseError::StatusLine);
        }
        _ => return Err(ResponseError::Header),
    }
    let (Some(status @ 100..), Some(version)) = (response.code, response.version) else {
        return Err(ResponseError::StatusLine);
    };
    let body = framing(response.headers, version)?;
    let mut parsed = ResponseHead {
        status,
        body,
        head: Head {
            length: match body {
                ResponseBody::Exact(bytes) => Some(bytes),
                ResponseBody::Chunked | ResponseBody::UntilEnd => None,
            },
            etag: etag(response.headers),
            ..Head::default()
        },
        control: CacheControl::default(),
    };
    let mut bytes_left = FORWARDED_BYTES_MAX;
    for Header { name, value } in &*response.headers {
        if name.eq_ignore_ascii_case("cache-control") {
            parsed.control.add(value);
        } else if name.eq_ignore_ascii_case("age") {
            parsed.head.age = decimal(value).unwrap_or(0);
        }
        let forwarded = FORWARDED.iter().find(|forwarded| name.eq_ignore_ascii_case(forwarded));
        // Clients get text.
        let (Some(name), Ok(value)) = (forwarded, std::str::from_utf8(value)) else { continue };
        bytes_left = bytes_left.checked_sub(value.len()).ok_or(ResponseError::ForwardedTooLong)?;
        if parsed.head.headers.len() == FORWARDED_MAX {
            return Err(ResponseError::ForwardedTooLong);
        }
        parsed.head.headers.push((*name, value.into()));
    }
    Ok(parsed)
}

/// How the body ends (RFC 9112 section 6.3). The request was a GET.
fn framing(headers: &[Header<'_>], version: u8) -> Result<ResponseBody, ResponseError> {
    let (mut length, mut coding) = (None, None);
    for Header { name, value } in headers {
        if name.eq_ignore_ascii_case("content-length") {
            if length.replace(*value).is_some() {
                return Err(ResponseError::Length);
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") && coding.replace(*value).is_some()
        {
            return Err(ResponseError::Coding);
        }
    }
    match (length, coding) {
        (Some(_), Some(_)) => Err(ResponseError::LengthAndCoding),
        (Some(length), None) => {
            let has_leading_zero = length.len() > 1 && length.starts_with(b"0");
            let length = decimal(length).filter(|_| !has_leading_zero);
            length.map(ResponseBody::Exact).ok_or(ResponseError::Length)
        }
        (None, Some(coding)) if version == 1 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(ResponseBody::Chunked)
        }
        (None, Some(_)) => Err(ResponseError::Coding),
        (None, None) => Ok(ResponseBody::UntilEnd),
    }
}

/// A number of digits alone that fits 64 bits.
fn decimal(text: &[u8]) -> Option<u64> {
    let add = |sum: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, add) }
}

/// The strong entity tag, if there is exactly one tag (RFC 9110 section 8.8.3).
fn etag(headers: &[Header<'_>]) -> Option<Box<str>> {
    let mut tags = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("etag"));
    let tag = std::str::from_utf8(tags.next()?.value).ok().filter(|_| tags.next().is_none())?;
    let opaque = tag.strip_prefix('"')?.strip_suffix('"')?;
    let is_valid = opaque.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    (is_valid && tag.len() <= ETAG_BYTES_MAX).then(|| tag.into())
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StatusLine => "it does not begin with a status line of HTTP/1.1 or 1.0",
            Self::LineEnd => "a line of its head does not end with CR and LF",
            Self::Header => "a line of its head is no header",
            Self::HeadTooLong => "its head is too long",
            Self::ForwardedTooLong => "its headers for clients are too long",
            Self::Length => "its length is no number, or given twice",
            Self::LengthAndCoding => "it has both a length and a transfer coding",
            Self::Coding => "its transfer coding is not chunked alone",
            Self::Interim => "it has too many interim answers, or changes the protocol",
            Self::Body => "the chunks of its body are malformed",
        })
    }
}

impl std::error::Error for ResponseError {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::object::Lifetime;

    /// The result for bytes that arrive together. It is the same if they are cut anywhere, and if they arrive one by one.
    fn decode(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, ResponseError> {
        let whole = HeadDecoder::new().decode(bytes);
        let pieces = |at: &[usize]| {
            let (mut decoder, mut from) = (HeadDecoder::new(), 0);
            for to in at.iter().copied().chain([bytes.len()]) {
                match decoder.decode(&bytes[from..to]) {
                    Ok(None) => from = to,
                    Ok(Some((head, used))) => return Ok(Some((head, from + used))),
                    Err(error) => return Err(error),
                }
            }
            Ok(None)
        };
        for cut in 0..=bytes.len() {
            assert_eq!(pieces(&[cut]), whole, "cut at {cut}: {}", bytes.escape_ascii());
        }
        let each: Vec<_> = (0..bytes.len()).collect();
        assert_eq!(pieces(&each), whole, "{}", bytes.escape_ascii());
        whole
    }

    #[test]
    fn a_head_says_how_its_body_ends() {
        for (head, status, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, ResponseBody::Exact(5)),
            ("HTTP/1.0 200 OK\r\ncontent-length:  5 \r\n\r\n", 200, ResponseBody::Exact(5)),
            ("HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", 200, ResponseBody::Exact(0)),
            ("HTTP/1.1 404\r\n\r\n", 404, ResponseBody::UntilEnd),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", 200, ResponseBody::Chunked),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n",
                200,
                ResponseBody::Exact(7),
            ),
        ] {
            let (decoded, used) = decode(format!("{head}body").as_bytes()).unwrap().unwrap();
            assert_eq!((decoded.status, decoded.body, used), (status, body, head.len()), "{head}");
        }
    }

    #[test]
    fn what_is_ambiguous_or_malformed_is_refused() {
        use ResponseError::*;
        let ok = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n");
        let many = |count| ok(&vec!["A: b"; count].join("\r\n"));
        for (answer, error) in [
            ("SSH-2.0-OpenSSH\r\n".to_owned(), StatusLine),
            ("\r\nHTTP/1.1 200 OK\r\n\r\n".to_owned(), StatusLine),
            ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), StatusLine),
            ("HTTP/1.1 2 OK\r\n\r\n".to_owned(), StatusLine),
            ("HTTP/1.1 099 OK\r\n\r\n".to_owned(), StatusLine),
            ("HTTP/1.1 200 OK\nA: b\n\n".to_owned(), LineEnd),
            ("HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n".to_owned(), LineEnd),
            (ok("A : b"), Header),
            (ok("A: b\r\n c"), Header),
            (ok("no header"), Header),
            (ok("A: \0"), Header),
            (ok("Content-Length: 5\r\nContent-Length: 5"), Length),
            (ok("Content-Length: 5, 5"), Length),
            (ok("Content-Length: 05"), Length),
            (ok("Content-Length: +5"), Length),
            (ok("Content-Length: -1"), Length),
            (ok("Content-Length:"), Length),
            (ok("Content-Length: 18446744073709551616"), Length),
            (ok("Content-Length: 5\r\nTransfer-Encoding: chunked"), LengthAndCoding),
            (ok("Transfer-Encoding: gzip, chunked"), Coding),
            (ok("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Coding),
            (ok("Transfer-Encoding: identity"), Coding),
            (ok("Transfer-Encoding:"), Coding),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), Coding),
            ("HTTP/1.1 101 Switching\r\n\r\n".to_owned(), Interim),
            ("HTTP/1.1 100 \r\n\r\n".repeat(9), Interim),
            (many(HEADERS_MAX + 1), HeadTooLong),
            (ok(&vec!["Content-Type: b"; FORWARDED_MAX + 1].join("\r\n")), ForwardedTooLong),
            (ok(&format!("Content-Type: {}", "b".repeat(2_049))), ForwardedTooLong),
        ] {
            assert_eq!(decode(answer.as_bytes()), Err(error), "{answer}");
        }
        assert!(decode(many(HEADERS_MAX).as_bytes()).unwrap().is_some());
        let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(HEAD_BYTES_MAX));
        assert_eq!(HeadDecoder::new().decode(endless.as_bytes()), Err(HeadTooLong));
        assert_eq!(HeadDecoder::new().decode(&endless.as_bytes()[..1_000]), Ok(None));
    }

    #[test]
    fn clients_get_what_is_about_the_object() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nSet-Cookie: a=b\r\nServer: x\r\n\
            ETag: \"a-1\"\r\nAge: 9\r\nCACHE-CONTROL: max-age=10\r\nContent-Language: d\u{e9}\r\n\
            Connection: close\r\nContent-Length: 1\r\n\r\n";
        let (decoded, _) = decode(answer.as_bytes()).unwrap().unwrap();
        let expected: [(&str, Box<str>); 3] = [
            ("Content-Type", "text/plain".into()),
            ("Cache-Control", "max-age=10".into()),
            ("Content-Language", "d\u{e9}".into()),
        ];
        assert_eq!(decoded.head.headers, expected);
        assert_eq!((decoded.head.length, decoded.head.age), (Some(1), 9));
        assert_eq!(decoded.head.etag.as_deref(), Some("\"a-1\""));
        let none = Lifetime { fresh: Duration::ZERO, stale: Duration::ZERO };
        let lifetime = Lifetime::of(&decoded.control, decoded.head.age, none).unwrap();
        assert_eq!(lifetime.fresh, Duration::from_secs(1));
    }

    #[test]
    fn only_one_strong_tag_is_a_tag() {
        let tag = |lines: &str| {
            let answer = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n");
            HeadDecoder::new().decode(answer.as_bytes()).unwrap().unwrap().0.head.etag
        };
        assert_eq!(tag("ETag: \"\"").as_deref(), Some("\"\""));
        for lines in [
            "A: b",
            "ETag: W/\"1\"",
            "ETag: 1",
            "ETag: \"",
            "ETag: \"a b\"",
            "ETag: \"a\"b\"",
            "ETag: \"1\"\r\nETag: \"1\"",
            &format!("ETag: \"{}\"", "a".repeat(200)),
        ] {
            assert_eq!(tag(lines), None, "{lines}");
        }
    }
}

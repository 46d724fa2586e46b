//! [`Response`], and how a head is written.

use std::ops::Range;
use std::{error, fmt};

use super::head::is_token_byte;

/// The status and the headers of an answer.
///
/// ```
/// use owned_io_http::Response;
///
/// let headers = [("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store")];
/// let response = Response::new(200).with_headers(&headers);
/// assert_eq!(response.status(), 200);
/// ```
#[derive(Clone, Debug)]
pub struct Response<'a> {
    status: u16,
    headers: &'a [(&'a str, &'a str)],
    /// The part that the body is, if it is one, and the length of the whole.
    content_range: Option<(Option<Range<u64>>, u64)>,
}

/// A header that cannot be sent. Its name is not a token; or its value has control characters, which could make it
/// look like several headers; or it is one of those that the connection writes: `Connection`, `Content-Length`,
/// `Date`, `Server`, `Transfer-Encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHeader;

impl<'a> Response<'a> {
    /// An answer with this status, without headers.
    ///
    /// # Panics
    /// If the status is not one of a final answer, 200 to 999.
    pub const fn new(status: u16) -> Self {
        assert!(status >= 200 && status <= 999, "not the status of a final answer");
        Self { status, headers: &[], content_range: None }
    }

    /// The same answer with these headers. With an `Upgrade`, the answer also has `Connection: upgrade`.
    #[must_use]
    pub fn with_headers(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { headers, ..self }
    }

    /// The answer with status 206 and `Content-Range`. The body is the part `range` of a representation of `len`
    /// bytes.
    pub const fn partial(range: Range<u64>, len: u64) -> Self {
        Self { status: 206, headers: &[], content_range: Some((Some(range), len)) }
    }

    /// The answer with status 416 and `Content-Range`: the representation has `len` bytes.
    pub const fn unsatisfiable(len: u64) -> Self {
        Self { status: 416, headers: &[], content_range: Some((None, len)) }
    }

    /// The status.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// More bytes than its head has, with `Server`.
    pub(crate) fn head_bytes_max(&self, server: Option<&str>) -> usize {
        // The status line, our own headers with their numbers and dates, and the line ends.
        const OWN_BYTES_MAX: usize = 384;
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len() + 4);
        OWN_BYTES_MAX + server.map_or(0, str::len) + headers.sum::<usize>()
    }

    /// Whether an answer with this status has no body, and no length (RFC 9110 sections 15.3.5 and 15.4.5).
    pub(super) const fn has_no_body(&self) -> bool {
        matches!(self.status, 204 | 304)
    }

    /// Whether it has an `Upgrade`.
    pub(super) fn has_upgrade(&self) -> bool {
        self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Upgrade"))
    }

    /// Appends the headers of the caller, and `Content-Range`.
    pub(super) fn encode_headers(&self, out: &mut Vec<u8>) -> Result<(), InvalidHeader> {
        for (name, value) in self.headers {
            if WRITTEN_BY_US.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
                return Err(InvalidHeader);
            }
            append_header(out, name, value.as_bytes())?;
        }
        if let Some((range, len)) = &self.content_range {
            out.extend_from_slice(b"Content-Range: bytes ");
            match range {
                Some(range) => {
                    append_decimal(out, range.start);
                    out.push(b'-');
                    append_decimal(out, range.end.saturating_sub(1));
                }
                None => out.push(b'*'),
            }
            out.push(b'/');
            append_decimal(out, *len);
            out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }
}

const WRITTEN_BY_US: [&str; 5] =
    ["Connection", "Content-Length", "Date", "Server", "Transfer-Encoding"];

pub(super) fn append_status_line(out: &mut Vec<u8>, status: u16) {
    out.extend_from_slice(b"HTTP/1.1 ");
    append_decimal(out, status.into());
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(super) fn append_header(
    out: &mut Vec<u8>,
    name: &str,
    value: &[u8],
) -> Result<(), InvalidHeader> {
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if name.is_empty() || !name.bytes().all(is_token_byte) || value.iter().any(is_control) {
        return Err(InvalidHeader);
    }
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
    Ok(())
}

pub(super) fn append_decimal(out: &mut Vec<u8>, number: u64) {
    append_number(out, number, 10);
}

pub(super) fn append_hex(out: &mut Vec<u8>, number: u64) {
    append_number(out, number, 16);
}

fn append_number(out: &mut Vec<u8>, mut number: u64, base: u64) {
    let (mut digits, mut at) = ([0; 20], 20); // 64 bits have 20 decimal digits
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(number % base) as usize];
        number /= base;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The reason phrases of common statuses. An answer may have none.
const fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}

impl fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a header that must not be sent")
    }
}

impl error::Error for InvalidHeader {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_both_bases() {
        let mut out = Vec::new();
        for number in [0, 9, 10, 255, u64::MAX] {
            append_decimal(&mut out, number);
            out.push(b' ');
            append_hex(&mut out, number);
            out.push(b' ');
        }
        let expected = "0 0 9 9 10 a 255 ff 18446744073709551615 ffffffffffffffff ";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

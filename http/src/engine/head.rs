//! [`HeadParser`]: finds the end of a head, and parses it.

use memchr::memchr;

use super::request::{BodyLength, HEADERS_MAX, HeadIndex, Part, Request};
use super::{Refusal, framing, target};
use crate::Limits;

/// Parses one head after the other.
///
/// It examines each byte once, however the bytes arrive. A refusal depends on the bytes up to the line that causes
/// it, and not on where they were cut: the request line is checked when its end arrives, line ends when they arrive,
/// and headers when all of them are there.
#[derive(Debug)]
pub(super) struct HeadParser {
    /// The bytes of the head in which no further line end has to be found.
    scanned: usize,
    /// The beginning of the current line.
    line_at: usize,
    /// The beginning of the headers, once the request line is complete.
    headers_at: usize,
    /// The complete lines, without empty ones.
    lines: usize,
    /// Whether an empty line precedes the request line.
    has_empty_line: bool,
    index: HeadIndex,
}

impl HeadParser {
    pub(super) fn new() -> Self {
        let index = HeadIndex::default();
        Self { scanned: 0, line_at: 0, headers_at: 0, lines: 0, has_empty_line: false, index }
    }

    /// Forgets the head. The next one begins at the start of the next bytes.
    pub(super) fn reset(&mut self) {
        let mut index = std::mem::take(&mut self.index);
        index.headers.clear(); // and keep its memory
        *self = Self { index, ..Self::new() };
    }

    /// Parses the head at the start of `bytes`. Returns its length, or `None` if more bytes are needed. Then
    /// the next call needs the same bytes and more.
    pub(super) fn parse(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Option<usize>, Refusal> {
        let head_bytes_max = limits.head_bytes_max.min(usize::from(u16::MAX));
        let line_bytes_max = limits.request_line_bytes_max.min(head_bytes_max);
        if bytes.first().is_some_and(|first| !is_token_byte(*first) && !b"\r\n".contains(first)) {
            return Err(Refusal::RequestLine); // a TLS client, for example: it would send no line end
        }
        loop {
            let is_request_line = self.lines == 0;
            let end_max = match is_request_line {
                true => (self.line_at + line_bytes_max).min(head_bytes_max),
                false => head_bytes_max,
            };
            let seen = &bytes[..bytes.len().min(end_max)];
            let Some(found) = memchr(b'\n', &seen[self.scanned..]) else {
                self.scanned = seen.len();
                return match (seen.len() < end_max, is_request_line) {
                    (true, _) => Ok(None),
                    (false, true) => Err(Refusal::RequestLineTooLong),
                    (false, false) => Err(Refusal::HeadTooLarge),
                };
            };
            let line_end = self.scanned + found + 1;
            let line = &bytes[self.line_at..line_end];
            let Some(content) = line.strip_suffix(b"\r\n") else { return Err(Refusal::BareLf) };
            (self.scanned, self.line_at) = (line_end, line_end);
            match (content.is_empty(), is_request_line) {
                (true, true) => {
                    if std::mem::replace(&mut self.has_empty_line, true) {
                        return Err(Refusal::EmptyLines);
                    }
                }
                (true, false) => {
                    self.parse_headers(&bytes[..line_end], limits)?;
                    return Ok(Some(line_end));
                }
                (false, true) => {
                    self.parse_request_line(line, line_end - line.len())?;
                    (self.lines, self.headers_at) = (1, line_end);
                }
                (false, false) => {
                    if self.lines > HEADERS_MAX {
                        return Err(Refusal::TooManyHeaders);
                    }
                    self.lines += 1;
                }
            }
        }
    }

    /// The head, once it is parsed.
    pub(super) const fn request<'b>(&'b self, head: &'b [u8]) -> Request<'b> {
        Request::new(head, &self.index)
    }

    /// Whether the method of the head at the start of `bytes` is HEAD, also if its request line is refused.
    pub(super) fn is_head_method(&self, bytes: &[u8]) -> bool {
        let line_at = if self.has_empty_line { 2 } else { 0 };
        bytes.get(line_at..).is_some_and(|line| line.starts_with(b"HEAD "))
    }

    pub(super) const fn body(&self) -> BodyLength {
        self.index.body
    }

    /// Parses the request line, which begins at `at`.
    fn parse_request_line(&mut self, line: &[u8], at: usize) -> Result<(), Refusal> {
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse(line);
        let (method, target) = match (parsed, request.method, request.path) {
            // Partial: the headers are missing.
            (Ok(httparse::Status::Partial), Some(method), Some(target)) => (method, target),
            (Err(httparse::Error::Version), ..) if has_version(line) => {
                return Err(Refusal::UnsupportedVersion);
            }
            _ if line[..line.len() - 2].contains(&b'\r') => return Err(Refusal::BareCr),
            _ => return Err(Refusal::RequestLine),
        };
        target::check(method, target)?;
        self.index.is_http_1_0 = request.version == Some(0);
        self.index.method = Part::new(at, method.len());
        self.index.target = Part::new(at + method.len() + 1, target.len());
        Ok(())
    }

    /// Parses the headers of `head`, which is complete.
    fn parse_headers(&mut self, head: &[u8], limits: &Limits) -> Result<(), Refusal> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let section = &head[self.headers_at..];
        let headers = match httparse::parse_headers(section, &mut headers) {
            Ok(httparse::Status::Complete((len, headers))) if len == section.len() => headers,
            _ => return Err(refusal_of_headers(section)),
        };
        let target = self.index.target.text(head);
        let framing = framing::of(target, self.index.is_http_1_0, headers, limits.body_bytes_max)?;
        (self.index.body, self.index.is_close) = (framing.body, framing.is_close);
        self.index.expects_continue = framing.expects_continue;
        let part =
            |bytes: &[u8]| Part::new(bytes.as_ptr().addr() - head.as_ptr().addr(), bytes.len());
        let parts = headers.iter().map(|header| (part(header.name.as_bytes()), part(header.value)));
        self.index.headers.clear();
        self.index.headers.extend(parts);
        Ok(())
    }
}

/// Whether `line` is three words, the last of which is a version of HTTP.
fn has_version(line: &[u8]) -> bool {
    let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
    let version = words.nth(2).and_then(|version| version.strip_prefix(b"HTTP/"));
    match (version, words.next()) {
        (Some([major, b'.', minor]), None) => major.is_ascii_digit() && minor.is_ascii_digit(),
        _ => false,
    }
}

/// Says what is wrong with headers that httparse has refused. The first line that has a defect decides.
#[cold]
fn refusal_of_headers(section: &[u8]) -> Refusal {
    let lines = section.split_inclusive(|byte| *byte == b'\n');
    let mut lines = lines.map(|line| line.strip_suffix(b"\r\n").unwrap_or(line));
    lines.find_map(defect_of_header).unwrap_or(Refusal::HeaderName)
}

fn defect_of_header(line: &[u8]) -> Option<Refusal> {
    if line.is_empty() {
        return None;
    }
    if line.contains(&b'\r') {
        return Some(Refusal::BareCr);
    }
    if line[0] == b' ' || line[0] == b'\t' {
        return Some(Refusal::Folding);
    }
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return Some(Refusal::HeaderName);
    };
    let (name, value) = line.split_at(colon);
    if name.ends_with(b" ") || name.ends_with(b"\t") {
        Some(Refusal::SpaceBeforeColon)
    } else if name.is_empty() || !name.iter().copied().all(is_token_byte) {
        Some(Refusal::HeaderName)
    } else if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        Some(Refusal::HeaderValue)
    } else {
        None
    }
}

/// Whether a token may contain `byte` (RFC 9110 section 5.6.2).
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

//! HTTP/1.1 answers (RFC 9112), independent of the server that is measured. Anything but a 200 whose body has a length
//! or is chunked is an error, and so is what no server of the matrix sends: extensions of chunks, and trailers. Other
//! statuses count where that is asked for.

use std::str::FromStr;

/// The longest head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The most digits of a chunk's length: more than the length of any body has.
const DIGITS_MAX: u8 = 8;

/// Reads a server's answers, which may be cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct HttpAnswers {
    state: State,
    /// The last complete head, and what it says. Heads repeat, except for the date: most are only compared with it.
    head: Vec<u8>,
    said: Head,
    /// The beginning of a head that is not complete.
    partial: Vec<u8>,
    is_any_status: bool,
}

/// What a complete head says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// `Retry-After` in seconds.
    pub(crate) retry_after: Option<u32>,
    /// Whether the server ends the connection behind the answer.
    pub(crate) closes: bool,
    /// What follows.
    body: State,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// So many bytes of the body, then the next head.
    Body(u64),
    /// A chunk's length, of which there are so many digits.
    Length(u64, u8),
    /// The LF after a chunk's length.
    LengthLf(u64),
    /// So many bytes of a chunk, at least one.
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    LastCr,
    LastLf,
}

impl HttpAnswers {
    /// Takes answers of any status for right ones.
    pub(crate) fn of_any_status() -> Self {
        Self { is_any_status: true, ..Self::default() }
    }

    /// What the head of the last answer says, of which a part of the body has been taken.
    pub(crate) const fn last_head(&self) -> Head {
        self.said
    }

    /// Takes the next part of a body off `got`, and whether it is the end of the body. None when there is not enough
    /// for one.
    ///
    /// # Errors
    /// What is wrong with the answer.
    pub(crate) fn next<'a>(
        &mut self,
        got: &mut &'a [u8],
    ) -> Result<Option<(&'a [u8], bool)>, &'static str> {
        loop {
            self.state = match self.state {
                State::Head => match self.take_head(got)? {
                    None => return Ok(None),
                    Some(body) => body,
                },
                State::Body(left) | State::Chunk(left) if left > 0 => {
                    if got.is_empty() {
                        return Ok(None);
                    }
                    let len = left.min(got.len() as u64);
                    let (part, rest) = got.split_at(len as usize);
                    *got = rest;
                    let (state, is_end) = self.state.after(len);
                    self.state = state;
                    return Ok(Some((part, is_end)));
                }
                // The end of a chunked body, or a body without a byte.
                State::Body(_) => {
                    let nothing: &[u8] = &[];
                    self.state = State::Head;
                    return Ok(Some((nothing, true)));
                }
                other => {
                    let Some((byte, rest)) = got.split_first() else { return Ok(None) };
                    *got = rest;
                    other.after_byte(*byte)?
                }
            };
        }
    }

    /// Whether the next byte begins an answer.
    pub(crate) fn is_between_answers(&self) -> bool {
        self.state == State::Head && self.partial.is_empty()
    }

    /// Takes a head off `got`; none when it is not complete. Returns what follows it.
    fn take_head(&mut self, got: &mut &[u8]) -> Result<Option<State>, &'static str> {
        let all = *got;
        if self.partial.is_empty()
            && !self.head.is_empty()
            && let Some(rest) = all.strip_prefix(self.head.as_slice())
        {
            *got = rest;
            return Ok(Some(self.said.body));
        }
        let before = self.partial.len();
        let room = HEAD_BYTES_MAX + 1 - before;
        self.partial.extend_from_slice(&all[..all.len().min(room)]);
        let Some(end) = head_end(&self.partial) else {
            if self.partial.len() > HEAD_BYTES_MAX {
                return Err("a head without an end");
            }
            *got = &[];
            return Ok(None);
        };
        *got = &all[end - before..];
        self.partial.truncate(end);
        std::mem::swap(&mut self.head, &mut self.partial);
        self.partial.clear();
        self.said = parse(&self.head, self.is_any_status)?;
        Ok(Some(self.said.body))
    }
}

impl State {
    /// After `len` bytes of a body or of a chunk, which has as many; and whether they end the body.
    fn after(self, len: u64) -> (Self, bool) {
        match self {
            Self::Body(left) if left == len => (Self::Head, true),
            Self::Body(left) => (Self::Body(left - len), false),
            Self::Chunk(left) if left == len => (Self::ChunkCr, false),
            Self::Chunk(left) => (Self::Chunk(left - len), false),
            other => (other, false),
        }
    }

    /// After a byte between two chunks.
    fn after_byte(self, byte: u8) -> Result<Self, &'static str> {
        match (self, byte) {
            (Self::Length(length, 1..), b'\r') => Ok(Self::LengthLf(length)),
            (Self::Length(length, digits @ 0..DIGITS_MAX), _) => {
                let digit = char::from(byte).to_digit(16);
                let digit = digit.ok_or("a chunk whose length is no number")?;
                Ok(Self::Length(length << 4 | u64::from(digit), digits + 1))
            }
            (Self::LengthLf(0), b'\n') => Ok(Self::LastCr),
            (Self::LengthLf(length), b'\n') => Ok(Self::Chunk(length)),
            (Self::ChunkCr, b'\r') => Ok(Self::ChunkLf),
            (Self::ChunkLf, b'\n') => Ok(Self::Length(0, 0)),
            (Self::LastCr, b'\r') => Ok(Self::LastLf),
            (Self::LastLf, b'\n') => Ok(Self::Body(0)),
            _ => Err("a chunked body that is malformed"),
        }
    }
}

/// The length of the head, with the empty line that ends it, if it is complete.
fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
}

/// What a complete head says.
fn parse(head: &[u8], is_any_status: bool) -> Result<Head, &'static str> {
    let head = str::from_utf8(head).map_err(|_| "a head that is not UTF-8")?;
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let status = lines.next().unwrap_or_default();
    let status = status.strip_prefix("HTTP/1.1 ").ok_or("an answer that is not HTTP/1.1")?;
    let status = status.split(' ').next().unwrap_or_default();
    if status != "200" && !is_any_status {
        return Err("an answer whose status is not 200");
    }
    let status = number(status).ok_or("an answer whose status is no number")?;
    let (mut length, mut is_chunked) = (None, false);
    let (mut retry_after, mut closes) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a header without a colon")?;
        if name.eq_ignore_ascii_case("content-length") {
            let number: u64 = number(value.trim()).ok_or("a Content-Length that is no number")?;
            if length.replace(number).is_some() {
                return Err("two lengths");
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if is_chunked || !value.trim().eq_ignore_ascii_case("chunked") {
                return Err("a Transfer-Encoding that is not chunked");
            }
            is_chunked = true;
        } else if name.eq_ignore_ascii_case("retry-after") {
            // The other form, a date, is none.
            retry_after = number(value.trim());
        } else if name.eq_ignore_ascii_case("connection") {
            closes |= value.split(',').any(|it| it.trim().eq_ignore_ascii_case("close"));
        }
    }
    let body = match (length, is_chunked) {
        (Some(length), false) => State::Body(length),
        (None, true) => State::Length(0, 0),
        (Some(_), true) => return Err("an answer with a length that is chunked"),
        (None, false) => return Err("an answer without a length that is not chunked"),
    };
    Ok(Head { status, retry_after, closes, body })
}

/// Digits alone: `parse` would accept a sign.
fn number<N: FromStr>(digits: &str) -> Option<N> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATED: &str = "HTTP/1.1 200 OK\r\nDate: Mon, 24 Nov 2025 10:00:00 GMT\r\n\
                         content-length: 3\r\n\r\none";
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
                           2\r\ntw\r\n001\r\no\r\n0\r\n\r\n";
    const EMPTY: &str = "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n";

    /// The bodies.
    fn read(pieces: &[&[u8]]) -> Result<Vec<String>, &'static str> {
        let mut answers = HttpAnswers::default();
        let (mut bodies, mut body) = (Vec::new(), Vec::new());
        for piece in pieces {
            let mut got = *piece;
            while let Some((part, is_end)) = answers.next(&mut got)? {
                body.extend_from_slice(part);
                if is_end {
                    bodies.push(String::from_utf8(std::mem::take(&mut body)).unwrap());
                }
            }
            assert!(got.is_empty());
        }
        assert!(answers.is_between_answers());
        Ok(bodies)
    }

    #[test]
    fn answers_cut_anywhere() {
        let later = DATED.replace("10:00:00", "10:00:01");
        let stream = [DATED, DATED, CHUNKED, EMPTY, CHUNKED, &later, DATED].concat();
        let bodies = ["one", "one", "two", "", "two", "one", "one"];
        let stream = stream.as_bytes();
        for cut in 0..=stream.len() {
            let (first, second) = stream.split_at(cut);
            assert_eq!(read(&[first, second]).unwrap(), bodies, "cut at {cut}");
        }
        assert_eq!(read(&stream.chunks(1).collect::<Vec<_>>()).unwrap(), bodies);
    }

    #[test]
    fn a_part_of_a_body_is_given_as_it_comes() {
        let mut answers = HttpAnswers::default();
        let (first, second) = DATED.as_bytes().split_at(DATED.len() - 1);
        let mut got = first;
        assert_eq!(answers.next(&mut got), Ok(Some((&b"on"[..], false))));
        assert_eq!(answers.next(&mut got), Ok(None));
        assert!(!answers.is_between_answers());
        got = second;
        assert_eq!(answers.next(&mut got), Ok(Some((&b"e"[..], true))));
        assert_eq!(answers.next(&mut got), Ok(None));
        assert!(answers.is_between_answers());
        got = b"H";
        assert_eq!(answers.next(&mut got), Ok(None));
        assert!(!answers.is_between_answers());
    }

    #[test]
    fn a_head_of_any_status_is_told() {
        let busy = "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nConnection: x, Close\r\n\
                    Content-Length: 0\r\n\r\n";
        let mut answers = HttpAnswers::of_any_status();
        for (text, status, retry_after, closes) in
            [(DATED, 200, None, false), (busy, 503, Some(7), true), (CHUNKED, 200, None, false)]
        {
            let mut got = text.as_bytes();
            while !answers.next(&mut got).unwrap().expect("a part").1 {}
            let head = answers.last_head();
            assert_eq!(head.status, status, "{text}");
            assert_eq!((head.retry_after, head.closes), (retry_after, closes), "{text}");
        }
        let error = answers.next(&mut &b"HTTP/1.1 +200 OK\r\n\r\n"[..]).unwrap_err();
        assert!(error.contains("no number"), "{error}");
    }

    #[test]
    fn answers_that_are_wrong() {
        let sized = |right: &str, wrong: &str| DATED.replace(right, wrong);
        let chunked = |right: &str, wrong: &str| CHUNKED.replace(right, wrong);
        let two = "length: 3\r\nContent-Length: 3";
        let both = "length: 3\r\nTransfer-Encoding: chunked";
        for (text, what) in [
            (sized("200 OK", "503 Service Unavailable"), "status is not 200"),
            (sized("200 OK", "2000"), "status is not 200"),
            (sized("HTTP/1.1", "HTTP/1.0"), "not HTTP/1.1"),
            (sized("length: 3", "length 3"), "colon"),
            (sized("length: 3", two), "two lengths"),
            (sized("length: 3", both), "with a length that is chunked"),
            (sized("length: 3", "length: three"), "no number"),
            (sized("length: 3", "length: +3"), "no number"),
            (sized("content-length", "x-length"), "without a length"),
            (chunked("Chunked", "gzip, chunked"), "not chunked"),
            (chunked("2\r\n", "2;a=b\r\n"), "no number"),
            (chunked("\r\n2\r\n", "\r\n\r\n"), "no number"),
            (chunked("001", "000000001"), "malformed"),
            (chunked("tw\r\n", "two\r\n"), "malformed"),
            (chunked("0\r\n\r\n", "0\r\nTrailer: 1\r\n\r\n"), "malformed"),
            ("x".repeat(HEAD_BYTES_MAX + 1), "without an end"),
        ] {
            let error = read(&[text.as_bytes()]).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}

use super::response::{append_decimal, append_header, append_hex, append_status_line};
use super::{BodyLength, Date, InvalidHeader, Refusal, Response};
use crate::Misuse;

/// Encodes the answers of one connection: a head, its body, and the next head.
///
/// The order of calls: [`begin`](Self::begin), [`frame`](Self::frame) before each piece of the body, and
/// [`finish`](Self::finish). Each of them appends bytes; the pieces themselves are not passed.
#[derive(Debug)]
pub struct Encoder {
    server: Option<&'static str>,
    /// What is left of the answer that has begun.
    body: Option<Body>,
}

/// What an answer depends on besides itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchange {
    /// Whether the method of the request is HEAD. Then the answer has no body, but the length that it would have.
    pub is_head_method: bool,
    /// Whether the connection ends after the answer.
    pub is_last: bool,
    /// Whether the request is HTTP/1.0. Then the answer is the last one, whatever [`is_last`](Self::is_last) says. A
    /// client of that version knows no chunks: the end of the connection ends a body of unknown length.
    pub is_http_1_0: bool,
}

#[derive(Debug)]
enum Body {
    /// None is sent, whatever the caller passes.
    Omitted,
    Exact {
        left: u64,
    },
    Chunked {
        is_first: bool,
    },
    /// The end of the connection ends it.
    UntilEnd,
}

impl Encoder {
    /// An encoder for a new connection. `server` is the value of `Server`.
    ///
    /// # Panics
    /// If `server` cannot be the value of a header.
    pub fn new(server: Option<&'static str>) -> Self {
        let is_valid = server.is_none_or(|name| !name.bytes().any(|byte| byte.is_ascii_control()));
        assert!(is_valid, "the name of the server has control characters");
        Self { server, body: None }
    }

    /// Appends the head of an answer whose body has this length. If it is the last one, it says so, and the caller ends
    /// the connection after it.
    ///
    /// # Errors
    /// A header that cannot be sent. Nothing is appended.
    ///
    /// # Panics
    /// If the last answer is not finished.
    pub fn begin(
        &mut self,
        response: &Response<'_>,
        length: BodyLength,
        exchange: Exchange,
        date: &Date,
        out: &mut Vec<u8>,
    ) -> Result<(), InvalidHeader> {
        assert!(self.body.is_none(), "the last answer is not finished");
        let start = out.len();
        append_status_line(out, response.status());
        self.append_own_headers(response, length, exchange, date, out);
        response.encode_headers(out).inspect_err(|_| out.truncate(start))?;
        out.extend_from_slice(b"\r\n");
        self.body = Some(match length {
            _ if exchange.is_head_method || response.has_no_body() => Body::Omitted,
            BodyLength::Exact(left) => Body::Exact { left },
            BodyLength::Chunked if exchange.is_http_1_0 => Body::UntilEnd,
            BodyLength::Chunked => Body::Chunked { is_first: true },
        });
        Ok(())
    }

    fn append_own_headers(
        &self,
        response: &Response<'_>,
        length: BodyLength,
        exchange: Exchange,
        date: &Date,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(date.as_bytes());
        out.extend_from_slice(b"\r\n");
        if let Some(server) = self.server {
            let appended = append_header(out, "Server", server.as_bytes());
            debug_assert_eq!(appended, Ok(()), "it was checked");
        }
        match (exchange.is_last || exchange.is_http_1_0, response.has_upgrade()) {
            (true, true) => out.extend_from_slice(b"Connection: close, upgrade\r\n"),
            (true, false) => out.extend_from_slice(b"Connection: close\r\n"),
            (false, true) => out.extend_from_slice(b"Connection: upgrade\r\n"),
            (false, false) => {}
        }
        match length {
            _ if response.has_no_body() => {}
            BodyLength::Exact(bytes) => {
                out.extend_from_slice(b"Content-Length: ");
                append_decimal(out, bytes);
                out.extend_from_slice(b"\r\n");
            }
            BodyLength::Chunked if exchange.is_http_1_0 => {}
            BodyLength::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        }
    }

    /// Appends what precedes a piece of the body, of `len` bytes. Returns whether the piece has to be sent: not in an
    /// answer to HEAD, for example.
    ///
    /// # Errors
    /// [`Misuse::NotBegun`]; [`Misuse::BodyTooLong`] if the piece exceeds the announced length. Nothing is appended.
    pub fn frame(&mut self, len: usize, out: &mut Vec<u8>) -> Result<bool, Misuse> {
        match self.body.as_mut().ok_or(Misuse::NotBegun)? {
            Body::Omitted => Ok(false),
            _ if len == 0 => Ok(false), // an empty chunk would be the end
            Body::UntilEnd => Ok(true),
            Body::Exact { left } => {
                *left = left.checked_sub(len as u64).ok_or(Misuse::BodyTooLong)?;
                Ok(true)
            }
            Body::Chunked { is_first } => {
                if !std::mem::take(is_first) {
                    out.extend_from_slice(b"\r\n");
                }
                append_hex(out, len as u64);
                out.extend_from_slice(b"\r\n");
                Ok(true)
            }
        }
    }

    /// Appends what ends the answer.
    ///
    /// # Errors
    /// [`Misuse::NotBegun`]; [`Misuse::BodyTooShort`] if bytes of the announced length are missing.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Misuse> {
        match self.body.as_ref().ok_or(Misuse::NotBegun)? {
            Body::Omitted | Body::Exact { left: 0 } | Body::UntilEnd => {}
            Body::Exact { .. } => return Err(Misuse::BodyTooShort),
            Body::Chunked { is_first: true } => out.extend_from_slice(b"0\r\n\r\n"),
            Body::Chunked { is_first: false } => out.extend_from_slice(b"\r\n0\r\n\r\n"),
        }
        self.body = None;
        Ok(())
    }

    /// Appends a whole answer that refuses a request. It is the last one.
    ///
    /// # Panics
    /// If the last answer is not finished.
    pub fn refuse(
        &mut self,
        refusal: Refusal,
        is_head_method: bool,
        date: &Date,
        out: &mut Vec<u8>,
    ) {
        let exchange = Exchange { is_head_method, is_last: true, is_http_1_0: false };
        let text = refusal.text();
        let response =
            Response::new(refusal.status()).with_headers(&[("Content-Type", "text/plain")]);
        let length = BodyLength::Exact(text.len() as u64 + 1);
        let begun = self.begin(&response, length, exchange, date, out);
        debug_assert_eq!(begun, Ok(()), "these headers can be sent");
        self.body = None;
        if !is_head_method {
            out.extend_from_slice(text.as_bytes());
            out.push(b'\n');
        }
    }

    /// Appends `100 Continue`, which asks for the body of a request that
    /// [expects](super::Request::expects_continue) it.
    pub fn encode_continue(out: &mut Vec<u8>) {
        append_status_line(out, 100);
        out.extend_from_slice(b"\r\n");
    }
}

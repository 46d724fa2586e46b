use super::body::{BodyDecoder, BodyPiece};
use super::head::HeadParser;
use super::{Refusal, Request};
use crate::Limits;

/// Decodes the requests of one connection: a head, its body, and the next head.
///
/// The order of calls: [`decode_head`](Self::decode_head) until it returns the length of a head, then
/// [`decode_body`](Self::decode_body) until [`is_body_at_end`](Self::is_body_at_end), then
/// [`next_request`](Self::next_request). After a refusal every call returns that refusal again.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    head: HeadParser,
    /// The body of the request whose head is complete.
    body: Option<BodyDecoder>,
    refusal: Option<Refusal>,
}

impl Decoder {
    /// A decoder for a new connection.
    pub fn new(limits: &Limits) -> Self {
        Self { limits: *limits, head: HeadParser::new(), body: None, refusal: None }
    }

    /// Decodes the head at the start of `bytes`. Returns its length in bytes, or `None` if more bytes are needed.
    /// Then the next call needs the same bytes and more. No byte is examined twice.
    ///
    /// # Errors
    /// The refusal of the head.
    pub fn decode_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        let parsed = self.head.parse(bytes, &self.limits);
        if let Ok(Some(_)) = parsed {
            self.body = Some(BodyDecoder::new(self.head.body(), self.limits.body_bytes_max));
        }
        parsed.inspect_err(|refusal| self.refusal = Some(*refusal))
    }

    /// The request. `head` are the bytes of its head, which may have moved since they were decoded.
    pub const fn request<'b>(&'b self, head: &'b [u8]) -> Request<'b> {
        self.head.request(head)
    }

    /// Decodes the next piece of the body at the start of `bytes`, which follow the head, or what was consumed last.
    ///
    /// # Errors
    /// The refusal of the body.
    pub fn decode_body(&mut self, bytes: &[u8]) -> Result<BodyPiece, Refusal> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        match &mut self.body {
            Some(body) => body.decode(bytes).inspect_err(|refusal| self.refusal = Some(*refusal)),
            None => Ok(BodyPiece { consumed: 0, content: 0..0 }),
        }
    }

    /// Whether the body of the request is complete, or there is no request.
    pub fn is_body_at_end(&self) -> bool {
        self.body.as_ref().is_none_or(BodyDecoder::is_at_end)
    }

    /// The bytes of the body that certainly follow. Chunks may follow them.
    pub fn body_bytes_left_min(&self) -> u64 {
        self.body.as_ref().map_or(0, BodyDecoder::bytes_left_min)
    }

    /// Whether the method of the request is HEAD. `bytes` begin with its head, which may be incomplete or refused.
    pub fn is_head_method(&self, bytes: &[u8]) -> bool {
        self.head.is_head_method(bytes)
    }

    /// Forgets the request. The next bytes begin with a head.
    ///
    /// # Panics
    /// If the body of the request is not at its end.
    pub fn next_request(&mut self) {
        assert!(self.is_body_at_end(), "the next request begins behind the body");
        self.body = None;
        self.head.reset();
    }
}

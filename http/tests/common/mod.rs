//! Helpers of the engine's tests.
#![allow(dead_code, reason = "each test program uses a part of it")]

use owned_io_http::engine::Decoder;
use owned_io_http::{BodyLength, Limits, Refusal};

/// A request that was decoded, with its whole body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) length: BodyLength,
    pub(crate) is_last: bool,
    pub(crate) is_http_1_0: bool,
    pub(crate) expects_continue: bool,
    pub(crate) body: Vec<u8>,
}

/// What bytes are decoded to: complete requests, and then a refusal, or the bytes of an incomplete request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) requests: Vec<Seen>,
    pub(crate) refusal: Option<Refusal>,
    /// Whether an incomplete request is left.
    pub(crate) is_within_request: bool,
}

/// Decodes `bytes`, which arrive `step` at a time.
pub(crate) fn decode(bytes: &[u8], step: usize, limits: &Limits) -> Outcome {
    let mut decoder = Decoder::new(limits);
    let (mut outcome, mut buf, mut current) = (Outcome::default(), Vec::new(), None);
    for chunk in bytes.chunks(step) {
        buf.extend_from_slice(chunk);
        if let Err(refusal) =
            decode_all(&mut decoder, &mut buf, &mut current, &mut outcome.requests)
        {
            assert_eq!(decoder.decode_head(&buf), Err(refusal), "it stays refused");
            assert_eq!(decoder.decode_body(&buf), Err(refusal), "it stays refused");
            outcome.refusal = Some(refusal);
            return outcome;
        }
    }
    outcome.is_within_request = current.is_some() || !buf.is_empty();
    outcome
}

fn decode_all(
    decoder: &mut Decoder,
    buf: &mut Vec<u8>,
    current: &mut Option<Seen>,
    requests: &mut Vec<Seen>,
) -> Result<(), Refusal> {
    loop {
        if current.is_none() {
            let Some(head_bytes) = decoder.decode_head(buf)? else { return Ok(()) };
            let request = decoder.request(&buf[..head_bytes]);
            let own = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
            *current = Some(Seen {
                method: request.method().to_owned(),
                target: request.target().to_owned(),
                headers: request.headers().map(own).collect(),
                length: request.body(),
                is_last: request.is_last(),
                is_http_1_0: request.is_http_1_0(),
                expects_continue: request.expects_continue(),
                body: Vec::new(),
            });
            buf.drain(..head_bytes);
        }
        while !decoder.is_body_at_end() {
            let piece = decoder.decode_body(buf)?;
            if let Some(seen) = current {
                seen.body.extend_from_slice(&buf[piece.content.clone()]);
            }
            buf.drain(..piece.consumed);
            if piece.content.is_empty() && !decoder.is_body_at_end() {
                assert!(buf.is_empty(), "all bytes are consumed if there is no content");
                return Ok(());
            }
        }
        decoder.next_request();
        requests.extend(current.take());
    }
}

/// Decodes `bytes` as a whole and in parts of several lengths. The outcome must be the same.
pub(crate) fn decode_any(bytes: &[u8], limits: &Limits) -> Outcome {
    let whole = decode(bytes, bytes.len().max(1), limits);
    for step in [1, 2, 3, 7, 64, 1000] {
        assert_eq!(decode(bytes, step, limits), whole, "in parts of {step} bytes");
    }
    whole
}

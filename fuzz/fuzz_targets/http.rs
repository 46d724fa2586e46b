//! The requests and the refusal do not depend on where the bytes are cut; every answer can be read back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use owned_io_http::engine::{Date, Decoder, Encoder, RangeChoice};
use owned_io_http::{BodyLength, Limits, Refusal};

#[derive(Debug, PartialEq)]
struct Got {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    length: BodyLength,
    body: Vec<u8>,
}

fuzz_target!(|input: &[u8]| {
    let [cut, small, wire @ ..] = input else { return };
    let mut limits = Limits::default();
    if small & 1 == 1 {
        limits.request_line_bytes_max = 64;
        limits.head_bytes_max = 256;
        limits.body_bytes_max = 64;
    }
    let whole = run(wire.len().max(1), &limits, wire);
    let cut = run(usize::from(*cut) + 1, &limits, wire);
    assert_eq!(whole, cut);
    for got in &whole.0 {
        if let BodyLength::Exact(bytes) = got.length {
            assert_eq!(got.body.len() as u64, bytes);
        }
        assert!(got.body.len() as u64 <= limits.body_bytes_max);
        for (name, value) in &got.headers {
            if name.eq_ignore_ascii_case("range")
                && let RangeChoice::Part(part) = RangeChoice::parse(value, 1000)
            {
                assert!(part.start < part.end && part.end <= 1000);
            }
        }
    }
    if let Some(refusal) = whole.1 {
        let (mut encoder, mut out) = (Encoder::new(None), Vec::new());
        encoder.refuse(refusal, false, &Date::default(), &mut out);
        assert!(out.starts_with(format!("HTTP/1.1 {} ", refusal.status()).as_bytes()));
    }
});

/// Decodes `wire`, which arrives `size` bytes at a time. Returns the complete requests, the refusal, and the number of
/// bytes that are left of an incomplete head.
fn run(size: usize, limits: &Limits, wire: &[u8]) -> (Vec<Got>, Option<Refusal>, usize) {
    let mut decoder = Decoder::new(limits);
    let (mut buf, mut got, mut current) = (Vec::new(), Vec::new(), None);
    for chunk in wire.chunks(size) {
        buf.extend_from_slice(chunk);
        if let Err(refusal) = decode(&mut decoder, &mut buf, &mut current, &mut got) {
            return (got, Some(refusal), 0);
        }
    }
    assert!(buf.len() < limits.head_bytes_max);
    let left = if current.is_some() { 0 } else { buf.len() };
    (got, None, left)
}

fn decode(
    decoder: &mut Decoder,
    buf: &mut Vec<u8>,
    current: &mut Option<Got>,
    got: &mut Vec<Got>,
) -> Result<(), Refusal> {
    loop {
        if current.is_none() {
            let Some(head_bytes) = decoder.decode_head(buf)? else { return Ok(()) };
            let request = decoder.request(&buf[..head_bytes]);
            let path = request.path();
            assert!(path.starts_with('/') && !path.contains('?'), "{path}");
            *current = Some(Got {
                method: request.method().to_owned(),
                target: request.target().to_owned(),
                headers: request.headers().map(|(name, value)| (name.to_owned(), value.to_vec())).collect(),
                length: request.body(),
                body: Vec::new(),
            });
            buf.drain(..head_bytes);
        }
        while !decoder.is_body_at_end() {
            let piece = decoder.decode_body(buf)?;
            if let Some(current) = current {
                current.body.extend_from_slice(&buf[piece.content.clone()]);
            }
            buf.drain(..piece.consumed);
            if piece.content.is_empty() && !decoder.is_body_at_end() {
                assert!(buf.is_empty());
                return Ok(());
            }
        }
        decoder.next_request();
        got.extend(current.take());
    }
}

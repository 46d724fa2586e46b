//! The answer of an origin is the same wherever its bytes are cut: its head, its body, or why it is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use owned_io_http::engine::{BodyDecoder, BodyLength};
use owned_io_server::object::response::{
    FORWARDED_BYTES_MAX, FORWARDED_MAX, HeadDecoder, ResponseBody, ResponseError, ResponseHead,
};

/// The longest body of chunks. The length of another one is known before it arrives.
const CHUNKED_BYTES_MAX: u64 = 1_000;

/// What has arrived, as far as it is decoded.
#[derive(Debug, Default, PartialEq)]
struct Got {
    head: Option<ResponseHead>,
    body: Vec<u8>,
    is_complete: bool,
}

#[derive(Debug, PartialEq)]
enum Refused {
    Head(ResponseError),
    Body(owned_io_http::Refusal),
}

fuzz_target!(|input: &[u8]| {
    let [cut, wire @ ..] = input else { return };
    let whole = decode(wire.len().max(1), wire);
    assert_eq!(decode(usize::from(*cut) + 1, wire), whole);
    let Ok(Got { head: Some(head), body, is_complete }) = whole else { return };
    assert!((200..1000).contains(&head.status));
    let forwarded = &head.head.headers;
    assert!(forwarded.len() <= FORWARDED_MAX);
    assert!(forwarded.iter().map(|(_, value)| value.len()).sum::<usize>() <= FORWARDED_BYTES_MAX);
    for (name, value) in forwarded {
        let is_text = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7F);
        assert!(value.bytes().all(is_text), "{name}: {value:?}"); // nothing that ends a line of our answers
    }
    match head.body {
        ResponseBody::Exact(bytes) => {
            assert_eq!(head.head.length, Some(bytes));
            assert_eq!(is_complete, body.len() as u64 == bytes);
        }
        ResponseBody::Chunked => assert!(body.len() as u64 <= CHUNKED_BYTES_MAX),
        ResponseBody::UntilEnd => assert!(!is_complete),
    }
});

/// Decodes `wire`, which arrives `size` bytes at a time.
fn decode(size: usize, wire: &[u8]) -> Result<Got, Refused> {
    let (mut decoder, mut got, mut body) = (HeadDecoder::new(), Got::default(), None);
    for chunk in wire.chunks(size) {
        let mut rest = chunk;
        if got.head.is_none() {
            let Some((head, used)) = decoder.decode(rest).map_err(Refused::Head)? else { continue };
            rest = &rest[used..];
            body = match head.body {
                ResponseBody::Exact(bytes) => Some(BodyLength::Exact(bytes)),
                ResponseBody::Chunked => Some(BodyLength::Chunked),
                ResponseBody::UntilEnd => None,
            }
            .map(|length| BodyDecoder::new(length, CHUNKED_BYTES_MAX));
            got.head = Some(head);
        }
        let Some(body) = &mut body else {
            got.body.extend_from_slice(rest);
            continue;
        };
        while !rest.is_empty() && !body.is_at_end() {
            let piece = body.decode(rest).map_err(Refused::Body)?;
            assert!(piece.consumed > 0, "it would be called for ever");
            got.body.extend_from_slice(&rest[piece.content]);
            rest = &rest[piece.consumed..];
        }
    }
    got.is_complete = body.is_some_and(|body| body.is_at_end());
    Ok(got)
}

//! Answers, as the engine encodes them.

use owned_io_http::engine::{Date, Encoder, Exchange};
use owned_io_http::{BodyLength, InvalidHeader, Misuse, Response};

const DATE: &str = "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";

/// An answer with a body of these pieces.
fn encode(
    response: &Response<'_>,
    length: BodyLength,
    exchange: Exchange,
    pieces: &[&str],
) -> Result<String, Misuse> {
    let (mut encoder, mut out) = (Encoder::new(Some("me")), Vec::new());
    encoder.begin(response, length, exchange, &Date::default(), &mut out).unwrap();
    for piece in pieces {
        if encoder.frame(piece.len(), &mut out)? {
            out.extend_from_slice(piece.as_bytes());
        }
    }
    encoder.finish(&mut out)?;
    assert_eq!(encoder.finish(&mut out), Err(Misuse::NotBegun));
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn answers_have_a_head_and_a_framed_body() {
    let (plain, last) = (Exchange::default(), Exchange { is_last: true, ..Exchange::default() });
    let to_head = Exchange { is_head_method: true, ..Exchange::default() };
    let old = Exchange { is_http_1_0: true, ..plain }; // it is the last one, too
    let upgrade = [("Upgrade", "websocket")];
    for (response, length, exchange, pieces, expected) in [
        (
            Response::new(200),
            BodyLength::Exact(3),
            plain,
            &["a", "", "bc"][..],
            "200 OK|Content-Length: 3||abc",
        ),
        (
            Response::new(200),
            BodyLength::Exact(0),
            last,
            &[],
            "200 OK|Connection: close|Content-Length: 0||",
        ),
        (Response::new(200), BodyLength::Exact(3), to_head, &["abc"], "200 OK|Content-Length: 3||"),
        (
            Response::new(200),
            BodyLength::Chunked,
            plain,
            &[],
            "200 OK|Transfer-Encoding: chunked||0||",
        ),
        (
            Response::new(200),
            BodyLength::Chunked,
            plain,
            &["abc", "", "0123456789012345"],
            "200 OK|Transfer-Encoding: chunked||3|abc|10|0123456789012345|0||",
        ),
        (
            Response::new(200),
            BodyLength::Chunked,
            to_head,
            &["a"],
            "200 OK|Transfer-Encoding: chunked||",
        ),
        (
            Response::new(200),
            BodyLength::Chunked,
            old,
            &["abc", "", "de"],
            "200 OK|Connection: close||abcde",
        ),
        (
            Response::new(200),
            BodyLength::Exact(3),
            old,
            &["abc"],
            "200 OK|Connection: close|Content-Length: 3||abc",
        ),
        (Response::new(204), BodyLength::Exact(0), plain, &[], "204 No Content||"),
        (Response::new(304), BodyLength::Exact(9), plain, &[], "304 Not Modified||"),
        (Response::new(299), BodyLength::Exact(0), plain, &[], "299 |Content-Length: 0||"),
        (
            Response::new(426).with_headers(&upgrade),
            BodyLength::Exact(0),
            last,
            &[],
            "426 Upgrade Required|Connection: close, upgrade|Content-Length: 0|Upgrade: websocket||",
        ),
        (
            Response::partial(2..5, 10),
            BodyLength::Exact(3),
            plain,
            &["cde"],
            "206 Partial Content|Content-Length: 3|Content-Range: bytes 2-4/10||cde",
        ),
        (
            Response::unsatisfiable(10),
            BodyLength::Exact(0),
            plain,
            &[],
            "416 Range Not Satisfiable|Content-Length: 0|Content-Range: bytes */10||",
        ),
    ] {
        let encoded = encode(&response, length, exchange, pieces).unwrap();
        let (status, rest) = encoded.split_once("\r\n").unwrap();
        let rest =
            rest.strip_prefix(DATE).and_then(|rest| rest.strip_prefix("Server: me\r\n")).unwrap();
        let readable = format!("{status}\r\n{rest}").replace("\r\n", "|");
        assert_eq!(readable, format!("HTTP/1.1 {expected}"));
    }
}

#[test]
fn a_body_of_another_length_than_announced_is_a_misuse() {
    let response = Response::new(200);
    for (pieces, misuse) in
        [(&["ab"][..], Misuse::BodyTooShort), (&["ab", "cd"], Misuse::BodyTooLong)]
    {
        let encoded = encode(&response, BodyLength::Exact(3), Exchange::default(), pieces);
        assert_eq!(encoded, Err(misuse));
    }
}

#[test]
fn a_header_that_could_split_an_answer_is_not_sent() {
    let mut encoder = Encoder::new(None);
    for header in [
        ("A", "b\r\nC: d"),
        ("A", "b\n"),
        ("A", "b\0"),
        ("A: b\r\nC", "d"),
        ("A b", "c"),
        ("", "a"),
        ("Content-Length", "1"),
        ("transfer-encoding", "chunked"),
        ("Connection", "close"),
        ("Date", "a"),
        ("Server", "a"),
    ] {
        let mut out = b"before".to_vec();
        let (headers, length) = ([("X", "y"), header], BodyLength::Exact(0));
        let response = Response::new(200).with_headers(&headers);
        let begun =
            encoder.begin(&response, length, Exchange::default(), &Date::default(), &mut out);
        assert_eq!((begun, &out[..]), (Err(InvalidHeader), &b"before"[..]), "{header:?}");
    }
}

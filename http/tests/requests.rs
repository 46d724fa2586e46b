//! Requests that are accepted, and what is decoded.

mod common;

use common::{Seen, decode_any};
use owned_io_http::engine::Decoder;
use owned_io_http::{BodyLength, Limits, RangeChoice};

/// Decodes requests that are all complete.
fn requests(bytes: &[u8]) -> Vec<Seen> {
    let outcome = decode_any(bytes, &Limits::default());
    assert_eq!((outcome.refusal, outcome.is_within_request), (None, false), "{outcome:?}");
    outcome.requests
}

fn request(bytes: &[u8]) -> Seen {
    let [request] = <[Seen; 1]>::try_from(requests(bytes)).unwrap();
    request
}

const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_head_is_decoded() {
    let request =
        request(b"GET /a?b HTTP/1.1\r\nHost: a:80\r\nA:  b c \t\r\nempty:\r\nA: \xff\r\n\r\n");
    assert_eq!((&*request.method, &*request.target), ("GET", "/a?b"));
    let headers: [(&str, &[u8]); 4] =
        [("Host", b"a:80"), ("A", b"b c"), ("empty", b""), ("A", b"\xff")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_vec()));
    assert_eq!(request.headers, headers);
    assert_eq!((request.length, request.is_last), (BodyLength::Exact(0), false));
}

#[test]
fn every_valid_form_is_accepted() {
    for bytes in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nhOST:a\r\n\r\n",
        "GET http://a/b HTTP/1.1\r\nHost: A\r\n\r\n",
        "GET HTTPS://a HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "M!#$%&'*+-.^_`|~9 / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /{|}\\^\"<>`'[] HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET http://a/b HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
    ] {
        assert_eq!(requests(bytes.as_bytes()).len(), 1, "{bytes}");
    }
}

#[test]
fn bodies_are_decoded() {
    for (bytes, body) in [
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "abc"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \t 3 \r\n\r\na\r\n", "a\r\n"),
        (&*format!("{CHUNKED}0\r\n\r\n"), ""),
        (&*format!("{CHUNKED}000\r\n\r\n"), ""),
        (&*format!("{CHUNKED}3\r\nabc\r\n0\r\n\r\n"), "abc"),
        (&*format!("{CHUNKED}1\r\na\r\n0002\r\nbc\r\n0\r\n\r\n"), "abc"),
        (
            &*format!("{CHUNKED}A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"),
            "01234567890123456789",
        ),
        (&*format!("{CHUNKED}3;a=b;c=\"d;e\"\r\nabc\r\n0;f\r\n\r\n"), "abc"),
        (&*format!("{CHUNKED}3 \t;a\r\nabc\r\n0\r\n\r\n"), "abc"),
        (&*format!("{CHUNKED}4\r\n\r\n\r\n\r\n0\r\n\r\n"), "\r\n\r\n"),
        (&*format!("{CHUNKED}3\r\nabc\r\n0\r\nA: b\r\nContent-Length: 9\r\nc:\r\n\r\n"), "abc"),
    ] {
        let request = request(bytes.as_bytes());
        assert_eq!(String::from_utf8_lossy(&request.body), body, "{bytes}");
        assert!(request.headers.iter().all(|(name, _)| name != "A"), "trailers are no headers");
    }
}

#[test]
fn requests_that_arrive_together_are_decoded_one_by_one() {
    let all = "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nHost: a\r\n\r\n\
        \r\nPOST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n\
        GET /4 HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Close\r\n\r\n";
    let requests = requests(all.as_bytes());
    let targets: Vec<_> = requests.iter().map(|request| &*request.target).collect();
    assert_eq!(targets, ["/1", "/2", "/3", "/4"]);
    let are_last: Vec<_> = requests.iter().map(|request| request.is_last).collect();
    assert_eq!(are_last, [false, false, false, true]);
}

/// RFC 9112 sections 3.2 and 9.3, RFC 9110 section 10.1.1.
#[test]
fn http_1_0_is_the_last_request_and_expects_nothing() {
    for (head, is_http_1_0) in [
        ("POST / HTTP/1.0\r\n", true),
        ("POST / HTTP/1.0\r\nConnection: keep-alive\r\n", true),
        ("POST / HTTP/1.1\r\nHost: a\r\n", false),
    ] {
        let request = request(
            format!("{head}Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc").as_bytes(),
        );
        let says = (request.is_http_1_0, request.is_last, request.expects_continue);
        assert_eq!(says, (is_http_1_0, is_http_1_0, !is_http_1_0), "{head}");
        assert_eq!((request.length, &request.body[..]), (BodyLength::Exact(3), &b"abc"[..]));
    }
}

#[test]
fn no_prefix_of_a_request_is_complete_or_refused() {
    let chunked = format!("{CHUNKED}3;x\r\nabc\r\n1\r\nd\r\n0\r\nA: b\r\n\r\n");
    for bytes in [
        "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n",
        "\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        &chunked,
    ] {
        for end in 1..bytes.len() {
            let outcome = decode_any(&bytes.as_bytes()[..end], &Limits::default());
            let all = (outcome.requests.len(), outcome.refusal, outcome.is_within_request);
            assert_eq!(all, (0, None, true), "{end} bytes of {bytes}");
        }
    }
}

/// Each limit is the longest that is accepted.
#[test]
fn what_is_as_long_as_its_limit_is_accepted() {
    let limits = Limits::default();
    let line = limits.request_line_bytes_max - "GET / HTTP/1.1\r\n".len();
    let head = limits.head_bytes_max - "GET / HTTP/1.1\r\nHost: a\r\nA: \r\n\r\n".len();
    for bytes in [
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(line)),
        format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "b".repeat(head)),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(63)),
        format!("{CHUNKED}1;{}\r\na\r\n0\r\n\r\n", "a".repeat(4095)),
        format!("{CHUNKED}0\r\nA: {}\r\n\r\n", "b".repeat(4091)),
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n{}",
            "a".repeat(1 << 20)
        ),
        format!("{CHUNKED}fffff\r\n{}\r\n1\r\na\r\n0\r\n\r\n", "a".repeat(0xf_ffff)),
    ] {
        let outcome = common::decode(bytes.as_bytes(), bytes.len(), &limits);
        let all = (outcome.requests.len(), outcome.refusal, outcome.is_within_request);
        assert_eq!(all, (1, None, false), "{}", &bytes[..60]);
    }
}

#[test]
fn a_request_says_what_it_asks_for() {
    let bytes =
        b"GET http://a?b=c HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\nX: 1\r\nx: 2, three\r\n\r\n";
    let mut decoder = Decoder::new(&Limits::default());
    let head_bytes = decoder.decode_head(bytes).unwrap().unwrap();
    assert_eq!(head_bytes, bytes.len());
    let request = decoder.request(bytes);
    assert_eq!((request.path(), request.query()), ("/", "b=c"));
    assert_eq!((request.header("x"), request.single("x")), (Some(&b"1"[..]), None));
    assert!(request.has_token("X", "THREE") && !request.has_token("X", "thre"));
    assert_eq!(RangeChoice::of(&request, 10, None), RangeChoice::Part(1..3));
    let printed = format!("{request:?}");
    assert!(
        printed.contains("Range") && !printed.contains("three") && !printed.contains("b=c"),
        "{printed}"
    );
}

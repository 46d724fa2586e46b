//! The opening handshake, RFC 6455 section 4: what is accepted, and the answer to everything else.

use owned_io_websocket::handshake::{
    HEADERS_MAX, HandshakeError, InvalidHeader, Key, Offer, Origins, Refusal, Request, Response,
    respond,
};

const HEAD_BYTES_MAX: usize = 8192;

/// The example of section 1.2, in lines.
const REQUEST: [&str; 9] = [
    "GET /chat?room=1 HTTP/1.1",
    "Host: server.example.com",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Origin: http://example.com",
    "Sec-WebSocket-Protocol: chat, superchat",
    "Sec-WebSocket-Version: 13",
    "",
];

const RESPONSE: [&str; 6] = [
    "HTTP/1.1 101 Switching Protocols",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
    "Sec-WebSocket-Protocol: chat",
    "",
];

/// Joins the lines into a head. The line that starts with `from` is replaced by `to`, or left out if `to` is empty.
fn head(lines: &[&str], from: &str, to: &str) -> Vec<u8> {
    assert!(lines.iter().any(|line| line.starts_with(from)), "{from}");
    let lines = lines.iter().map(|line| if line.starts_with(from) { to } else { line });
    let mut head: String =
        lines.filter(|line| !line.is_empty()).map(|line| format!("{line}\r\n")).collect();
    head.push_str("\r\n");
    head.into_bytes()
}

fn request(from: &str, to: &str) -> Vec<u8> {
    head(&REQUEST, from, to)
}

fn upgrade(bytes: &[u8]) -> Result<(), Refusal> {
    let (request, head_bytes) = Request::decode(bytes, HEAD_BYTES_MAX)?.expect("a whole head");
    assert_eq!(head_bytes, bytes.len());
    request.upgrade(Origins::Only(&["http://example.com"])).map(|_| ())
}

#[test]
fn the_example_of_the_rfc() {
    let mut wire = request("GET", REQUEST[0]);
    let head = wire.len();
    wire.extend_from_slice(b"\x81\x80 the first frame");
    let (request, head_bytes) = Request::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
    assert_eq!(head_bytes, head);
    assert_eq!(
        (request.method(), request.target(), request.path()),
        ("GET", "/chat?room=1", "/chat")
    );
    assert_eq!(request.header("HOST"), Some(&b"server.example.com"[..]));
    assert_eq!(request.headers().count(), 7);

    let upgrade = request.upgrade(Origins::Any).unwrap();
    assert_eq!(upgrade.protocols().collect::<Vec<_>>(), ["chat", "superchat"]);
    assert_eq!(upgrade.choose_protocol(&["other", "superchat", "chat"]), Some("superchat"));
    assert_eq!(upgrade.choose_protocol(&["Chat"]), None);
    let mut response = Vec::new();
    upgrade.accept(Some("chat"), &[], &mut response).unwrap();
    assert_eq!(response, self::head(&RESPONSE, "HTTP", RESPONSE[0]));
}

#[test]
fn a_head_cut_anywhere_needs_more_bytes() {
    let wire = request("GET", REQUEST[0]);
    for cut in 0..wire.len() {
        assert!(matches!(Request::decode(&wire[..cut], HEAD_BYTES_MAX), Ok(None)), "{cut}");
    }
    let wire = head(&RESPONSE, "HTTP", RESPONSE[0]);
    for cut in 0..wire.len() {
        assert!(matches!(Response::decode(&wire[..cut], HEAD_BYTES_MAX), Ok(None)), "{cut}");
    }
}

#[test]
fn token_lists_may_be_of_any_case_and_in_several_headers() {
    for (from, to) in [
        ("Upgrade", "upgrade: WebSocket"),
        ("Upgrade", "Upgrade: h2c , websocket"),
        ("Upgrade", "Upgrade: h2c\r\nUpgrade: websocket"),
        ("Connection", "CONNECTION: keep-alive, UPGRADE"),
        ("Connection", "Connection: keep-alive\r\nConnection: ,upgrade,"),
        ("Connection", "Connection: Upgrade\r\nContent-Length: 0"),
        ("Origin", ""), // a client that is no browser
        ("Origin", "Origin: HTTP://EXAMPLE.COM"),
        ("Sec-WebSocket-Protocol", ""),
    ] {
        assert_eq!(upgrade(&request(from, to)), Ok(()), "{to}");
    }
    let wire = request(
        "Sec-WebSocket-Protocol",
        "Sec-WebSocket-Protocol: a,b\r\nsec-websocket-protocol: c",
    );
    let (request, _) = Request::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
    let protocols = request.upgrade(Origins::Any).unwrap();
    assert_eq!(protocols.protocols().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn every_bad_request_has_its_status() {
    let key = "Sec-WebSocket-Key";
    for (from, to, refusal, status) in [
        ("GET", "POST / HTTP/1.1", Refusal::NotGet, 405),
        ("GET", "GET / HTTP/1.0", Refusal::OldHttp, 505),
        ("GET", "GET / HTTP/2.0", Refusal::Malformed, 400),
        ("GET", "GET * HTTP/1.1", Refusal::BadTarget, 400),
        ("GET", "GET server.example.com:80 HTTP/1.1", Refusal::BadTarget, 400),
        ("GET", "OPTIONS * HTTP/1.1", Refusal::NotGet, 405),
        ("GET", "CONNECT server.example.com:80 HTTP/1.1", Refusal::NotGet, 405),
        ("GET", "GET /", Refusal::Malformed, 400),
        ("GET", "\x16\x03\x01\x02", Refusal::Malformed, 400), // TLS
        ("Host", "", Refusal::NoHost, 400),
        ("Host", "Host: a\r\nHost: b", Refusal::NoHost, 400),
        ("Host", "Host : a", Refusal::Malformed, 400),
        ("Host", "Host: a\r\n folded", Refusal::Malformed, 400),
        ("Host", "Host: a\r\nContent-Length: 5", Refusal::Body, 400),
        ("Host", "Host: a\r\nTransfer-Encoding: chunked", Refusal::Body, 400),
        ("Upgrade", "", Refusal::NoUpgrade, 426),
        ("Upgrade", "Upgrade: h2c", Refusal::NoUpgrade, 426),
        ("Connection", "", Refusal::NoUpgrade, 426),
        ("Connection", "Connection: close", Refusal::NoUpgrade, 426),
        (key, "", Refusal::BadKey, 400),
        (key, "Sec-WebSocket-Key: ", Refusal::BadKey, 400),
        (key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j", Refusal::BadKey, 400), // 15 bytes
        (key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZWE=", Refusal::BadKey, 400), // 17
        (key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZ!==", Refusal::BadKey, 400),
        (
            key,
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            Refusal::BadKey,
            400,
        ),
        ("Sec-WebSocket-Version", "", Refusal::WrongVersion, 426),
        ("Sec-WebSocket-Version", "Sec-WebSocket-Version: 8", Refusal::WrongVersion, 426),
        ("Sec-WebSocket-Version", "Sec-WebSocket-Version: 13, 8", Refusal::WrongVersion, 426),
        ("Origin", "Origin: http://example.com.evil.org", Refusal::ForeignOrigin, 403),
        ("Origin", "Origin: null", Refusal::ForeignOrigin, 403),
    ] {
        assert_eq!(upgrade(&request(from, to)), Err(refusal), "{to}");
        let mut wire = Vec::new();
        refusal.encode(&mut wire);
        let (response, head_bytes) = Response::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
        assert_eq!((response.status(), refusal.status()), (status, status));
        assert_eq!(response.header("connection"), Some(&b"close"[..]));
        let length = (wire.len() - head_bytes).to_string();
        assert_eq!(response.header("content-length"), Some(length.as_bytes()));
        let version = response.header("sec-websocket-version");
        assert_eq!(version, (refusal == Refusal::WrongVersion).then_some(&b"13"[..]));
        let allowed = response.header("allow");
        assert_eq!(allowed, (status == 405).then_some(&b"GET"[..]));
    }
}

#[test]
fn the_size_of_a_head_is_limited() {
    let wire = request("Host", &format!("Host: {}", "a".repeat(500)));
    let decode = |bytes: &[u8], max| Request::decode(bytes, max).map(|decoded| decoded.is_some());
    assert_eq!(decode(&wire, wire.len()), Ok(true));
    assert_eq!(decode(&wire, wire.len() - 1), Err(Refusal::HeadTooLarge));
    assert_eq!(decode(&wire[..400], 401), Ok(false));
    assert_eq!(decode(&wire[..400], 400), Err(Refusal::HeadTooLarge));

    let many = |count| request("Origin", &vec!["Origin: a"; count].join("\r\n"));
    assert_eq!(decode(&many(HEADERS_MAX - 6), HEAD_BYTES_MAX), Ok(true));
    assert_eq!(decode(&many(HEADERS_MAX - 5), HEAD_BYTES_MAX), Err(Refusal::HeadTooLarge));

    let wire = head(&RESPONSE, "Upgrade", &format!("A: {}", "a".repeat(500)));
    let decode = |max| Response::decode(&wire, max).map(|decoded| decoded.is_some());
    assert_eq!(decode(wire.len()), Ok(true));
    assert_eq!(decode(400), Err(HandshakeError::HeadTooLarge));
}

#[test]
fn malformed_bytes_are_refused_before_the_head_ends() {
    assert_eq!(Request::decode(b"\x16\x03\x01", HEAD_BYTES_MAX).err(), Some(Refusal::Malformed));
    let malformed = Some(HandshakeError::Malformed);
    assert_eq!(Response::decode(b"SSH-2.0-", HEAD_BYTES_MAX).err(), malformed);
}

#[test]
fn a_request_can_be_rejected_with_any_status() {
    let mut wire = Vec::new();
    respond(503, &[("Retry-After", "5")], b"full", &mut wire).unwrap();
    let (response, head_bytes) = Response::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
    assert_eq!(&wire[head_bytes..], b"full");
    assert_eq!(response.header("retry-after"), Some(&b"5"[..]));
    let rejected = response.check(&Offer::default(), &Key::new([1; 16]));
    assert_eq!(rejected, Err(HandshakeError::Rejected { status: 503 }));

    wire.clear();
    respond(799, &[], b"", &mut wire).unwrap();
    assert!(wire.starts_with(b"HTTP/1.1 799 \r\n"));
}

#[test]
fn both_sides_agree_on_a_protocol() {
    for (supported, agreed) in [(&["b", "a"][..], Some("b")), (&["c"], None), (&[], None)] {
        let key = Key::new(*b"the sample nonce");
        let headers = [("Authorization", "Basic x")];
        let offer =
            Offer { protocols: &["a", "b"], path: "/p?q", headers: &headers, ..Offer::default() };
        let mut wire = Vec::new();
        offer.encode(&key, &mut wire).unwrap();
        let (request, head_bytes) = Request::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
        assert_eq!((head_bytes, request.target()), (wire.len(), "/p?q"));
        assert_eq!(request.header("authorization"), Some(&b"Basic x"[..]));
        assert!(request.is_upgrade());

        let upgrade = request.upgrade(Origins::Only(&[])).unwrap();
        let mut wire = Vec::new();
        let protocol = upgrade.choose_protocol(supported);
        upgrade.accept(protocol, &[("X-Served-By", "test")], &mut wire).unwrap();
        let (response, head_bytes) = Response::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
        assert_eq!((head_bytes, response.status()), (wire.len(), 101));
        assert_eq!(response.header("x-served-by"), Some(&b"test"[..]));
        assert_eq!(response.check(&offer, &key), Ok(agreed));
        assert_eq!(response.check(&offer, &Key::new([0; 16])), Err(HandshakeError::WrongAccept));
    }
}

#[test]
fn every_bad_response_has_its_error() {
    use HandshakeError as E;
    let key = Key::new(*b"the sample nonce");
    let offer = Offer { protocols: &["chat", "superchat"], ..Offer::default() };
    for (from, to, expected) in [
        ("HTTP", RESPONSE[0], Ok(Some("chat"))),
        ("HTTP", "HTTP/1.1 101", Ok(Some("chat"))),
        ("HTTP", "HTTP/1.1 200 OK", Err(E::Rejected { status: 200 })),
        ("HTTP", "HTTP/1.1 301 Moved", Err(E::Rejected { status: 301 })),
        ("HTTP", "HTTP/1.0 101 Switching Protocols", Err(E::Malformed)),
        ("Upgrade", "", Err(E::NoUpgrade)),
        ("Upgrade", "Upgrade: h2c", Err(E::NoUpgrade)),
        ("Upgrade", "upgrade: WEBSOCKET", Ok(Some("chat"))),
        ("Connection", "", Err(E::NoUpgrade)),
        ("Connection", "connection: keep-alive, upgrade", Ok(Some("chat"))),
        ("Sec-WebSocket-Accept", "", Err(E::WrongAccept)),
        (
            "Sec-WebSocket-Accept",
            "Sec-WebSocket-Accept: s3pplmbitxaq9kygzzhzrbk+xoo=",
            Err(E::WrongAccept),
        ),
        ("Sec-WebSocket-Protocol", "", Ok(None)),
        ("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: superchat", Ok(Some("superchat"))),
        ("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: other", Err(E::UnknownProtocol)),
        (
            "Sec-WebSocket-Protocol",
            "Sec-WebSocket-Protocol: chat, superchat",
            Err(E::UnknownProtocol),
        ),
        (
            "Sec-WebSocket-Protocol",
            "Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: chat",
            Err(E::UnknownProtocol),
        ),
        (
            "Sec-WebSocket-Protocol",
            "Sec-WebSocket-Extensions: permessage-deflate",
            Err(E::UnknownExtension),
        ),
    ] {
        let wire = head(&RESPONSE, from, to);
        let (response, _) = Response::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
        assert_eq!(response.check(&offer, &key), expected, "{to}");
    }
}

#[test]
fn headers_cannot_be_smuggled() {
    let key = Key::new([1; 16]);
    let sent = |offer: Offer<'_>| {
        let mut wire = b"before".to_vec();
        let result = offer.encode(&key, &mut wire);
        assert!(result.is_ok() || wire == b"before");
        result
    };
    let good = Offer::default();
    assert_eq!(sent(good), Ok(()));
    for bad in [
        Offer { host: "a\r\nEvil: yes", ..good },
        Offer { path: "/ HTTP/1.1\r\nEvil: yes", ..good },
        Offer { path: "no/slash", ..good },
        Offer { protocols: &["a, b"], ..good },
        Offer { protocols: &[""], ..good },
        Offer { headers: &[("Evil\r\n", "a")], ..good },
        Offer { headers: &[("", "a")], ..good },
        Offer { headers: &[("A", "a\nEvil: yes")], ..good },
        Offer { headers: &[("A", "a\0")], ..good },
    ] {
        assert_eq!(sent(bad), Err(InvalidHeader), "{bad:?}");
    }
    let wire = request("GET", REQUEST[0]);
    let (request, _) = Request::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
    let upgrade = request.upgrade(Origins::Any).unwrap();
    let mut out = Vec::new();
    assert_eq!(upgrade.accept(Some("a\r\nb"), &[], &mut out), Err(InvalidHeader));
    assert_eq!(upgrade.accept(None, &[("A", "\r\n")], &mut out), Err(InvalidHeader));
    assert_eq!(respond(404, &[("A", "\r\n")], b"", &mut out), Err(InvalidHeader));
    assert_eq!(out, b"");
}

/// RFC 9112 section 3.2.2: "a server MUST accept the absolute-form in requests".
#[test]
fn a_target_in_absolute_form_is_accepted() {
    let wire = request("GET", "GET http://server.example.com/chat?room=1 HTTP/1.1");
    let (request, _) = Request::decode(&wire, HEAD_BYTES_MAX).unwrap().unwrap();
    assert_eq!((request.path(), request.query()), ("/chat", "room=1"));
    assert_eq!(request.target(), "http://server.example.com/chat?room=1");
    assert!(upgrade(&wire).is_ok());
}

/// RFC 9112 section 3.2: 400 "to any HTTP/1.1 request message that lacks a Host header field and to any
/// request message that contains more than one". That holds with and without an upgrade.
#[test]
fn a_request_names_one_host() {
    let decoded = |head: &str| Request::decode(head.as_bytes(), HEAD_BYTES_MAX).map(|_| ());
    assert_eq!(decoded("GET / HTTP/1.1\r\n\r\n"), Err(Refusal::NoHost));
    for version in ["1.0", "1.1"] {
        let two = format!("GET / HTTP/{version}\r\nHost: a\r\nhost: a\r\n\r\n");
        assert_eq!(decoded(&two), Err(Refusal::NoHost));
    }
    assert_eq!(decoded("GET / HTTP/1.0\r\n\r\n"), Ok(()));
}

#[test]
fn a_response_is_plain_text_unless_it_says_what_it_is() {
    let types = |headers: &[(&str, &str)]| {
        let mut out = Vec::new();
        respond(200, headers, b"[]", &mut out).unwrap();
        let out = String::from_utf8(out).unwrap().to_lowercase();
        let types: Vec<_> =
            out.lines().filter_map(|line| line.strip_prefix("content-type: ")).collect();
        types.join(" and ")
    };
    assert_eq!(types(&[("Allow", "GET")]), "text/plain");
    assert_eq!(types(&[("content-type", "application/json")]), "application/json");
}

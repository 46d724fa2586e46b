//! The opening handshake of WebSocket (RFC 6455 4.1), the client's side.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::exchange::number;

/// RFC 6455 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The offer of compression without context takeover (RFC 7692 7.1).
const EXTENSION: &str = "Sec-WebSocket-Extensions: permessage-deflate; \
     server_no_context_takeover; client_no_context_takeover\r\n";

/// A longer answer without a blank line is no upgrade.
const ANSWER_BYTES_MAX: usize = 8192;

/// At most this much of a status line is reported.
const STATUS_BYTES_MAX: usize = 60;

/// The parameters of the upgrade request.
#[derive(Clone, Debug)]
pub(crate) struct Upgrade {
    host: SocketAddr,
    path: String,
    compressed: bool,
    /// The line of a header, with its end; empty if there is none.
    authorization: String,
}

/// Why there is no WebSocket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server said so: its status line.
    Refused(String),
    /// It violated RFC 6455 or 7692.
    Wrong(&'static str),
}

impl Upgrade {
    /// `compressed` offers compression without context takeover.
    pub(crate) fn new(host: SocketAddr, path: &str, compressed: bool) -> Self {
        Self { host, path: path.to_owned(), compressed, authorization: String::new() }
    }

    /// Adds a user and a password (RFC 7617), neither of which has a colon or a line end.
    pub(crate) fn with_basic_auth(self, user: &str, password: &str) -> Self {
        let credentials = STANDARD.encode(format!("{user}:{password}"));
        Self { authorization: format!("Authorization: Basic {credentials}\r\n"), ..self }
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.compressed
    }

    /// The request of one connection.
    pub(crate) fn request(&self, connection: u32) -> Vec<u8> {
        let Self { host, path, compressed, authorization } = self;
        let key = key(connection);
        let extension = if *compressed { EXTENSION } else { "" };
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{authorization}{extension}\r\n"
        )
        .into_bytes()
    }
}

/// Takes the answer to [`Upgrade::request`] off `got` and appends it to `head`. True when it is complete.
pub(crate) fn answer(
    head: &mut Vec<u8>,
    got: &mut &[u8],
    connection: u32,
    compressed: bool,
) -> Result<bool, Refusal> {
    while !head.ends_with(b"\r\n\r\n") {
        let Some((byte, rest)) = got.split_first() else { return Ok(false) };
        if head.len() == ANSWER_BYTES_MAX {
            return Err(Refusal::Wrong("an upgrade's answer without an end"));
        }
        head.push(*byte);
        *got = rest;
    }
    check(head, connection, compressed).map(|()| true)
}

fn check(head: &[u8], connection: u32, compressed: bool) -> Result<(), Refusal> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 101 ") {
        return Err(Refusal::Refused(status.chars().take(STATUS_BYTES_MAX).collect()));
    }
    let (mut upgrade, mut connected, mut accepted) = (false, false, false);
    let mut compresses = false;
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) =
            line.split_once(':').ok_or(Refusal::Wrong("a header without a colon"))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "upgrade" => upgrade = value.eq_ignore_ascii_case("websocket"),
            "connection" => {
                let mut words = value.split(',');
                connected = words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
            }
            "sec-websocket-accept" => accepted = value == accept(&key(connection)),
            "sec-websocket-extensions" if compressed => {
                let mut words = value.split(';').map(str::trim);
                compresses = words.next() == Some("permessage-deflate")
                    && words.any(|word| word == "server_no_context_takeover");
            }
            "sec-websocket-extensions" | "sec-websocket-protocol" => {
                return Err(Refusal::Wrong("an extension or a protocol that was not asked for"));
            }
            _ => {}
        }
    }
    if !upgrade || !connected {
        return Err(Refusal::Wrong("a 101 that does not upgrade to websocket"));
    }
    if compressed && !compresses {
        return Err(Refusal::Wrong("no compression, or not each message for itself"));
    }
    if accepted { Ok(()) } else { Err(Refusal::Wrong("a wrong Sec-WebSocket-Accept, or none")) }
}

/// A key that differs between connections and is the same in every run.
fn key(connection: u32) -> String {
    let halves = [number(connection, 0), number(connection, 1)];
    STANDARD.encode(halves.map(u64::to_le_bytes).as_flattened())
}

fn accept(key: &str) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(connection: u32) -> String {
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nCONNECTION: keep, Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            accept(&key(connection))
        )
    }

    #[test]
    fn the_accept_of_the_rfc() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_ne!(key(1), key(2));
    }

    #[test]
    fn a_request() {
        let upgrade = Upgrade::new("127.0.0.1:7".parse().unwrap(), "/echo", false);
        let request = String::from_utf8(upgrade.request(3)).unwrap();
        assert!(request.starts_with("GET /echo HTTP/1.1\r\nHost: 127.0.0.1:7\r\n"), "{request}");
        assert!(request.contains(&key(3)) && request.ends_with("\r\n\r\n"), "{request}");
        let admitted = upgrade.with_basic_auth("Aladdin", "open sesame").request(3);
        let admitted = String::from_utf8(admitted).unwrap();
        // The example of RFC 7617.
        let header = "\r\nAuthorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n";
        assert!(admitted.ends_with(header), "{admitted}");
    }

    #[test]
    fn an_answer_cut_anywhere_and_what_follows_is_left() {
        let text = good(3) + "rest";
        let end = text.len() - "rest".len();
        for cut in 0..=end {
            let (mut first, mut second) = text.as_bytes().split_at(cut);
            let mut head = Vec::new();
            let first = answer(&mut head, &mut first, 3, false);
            assert_eq!(first, Ok(cut == end), "cut at {cut}");
            assert_eq!(answer(&mut head, &mut second, 3, false), Ok(true), "cut at {cut}");
            assert_eq!(second, b"rest");
        }
    }

    #[test]
    fn answers_that_are_not_an_upgrade() {
        let answer =
            |text: &str, compressed| answer(&mut Vec::new(), &mut text.as_bytes(), 3, compressed);
        let check = |text: &str| answer(text, false).unwrap_err();
        let refused = check("HTTP/1.1 503 Service Unavailable\r\n\r\n");
        assert_eq!(refused, Refusal::Refused("HTTP/1.1 503 Service Unavailable".to_owned()));
        for (text, what) in [
            (good(4), "Accept"),
            (good(3).replace("keep, Upgrade", "keep"), "does not upgrade"),
            (good(3).replace("WebSocket\r", "h2c\r"), "does not upgrade"),
            (good(3).replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: x\r\n\r\n"), "not asked"),
            (good(3).replace(": keep", " keep"), "colon"),
            ("x".repeat(ANSWER_BYTES_MAX + 1), "without an end"),
        ] {
            let Refusal::Wrong(why) = check(&text) else { panic!("{text}") };
            assert!(why.contains(what), "{why}");
        }
        let extended = |extension: &str| {
            let header =
                format!("\r\nSec-WebSocket-Extensions: permessage-deflate{extension}\r\n\r\n");
            answer(&good(3).replace("\r\n\r\n", &header), true)
        };
        assert_eq!(extended("; server_no_context_takeover"), Ok(true));
        assert!(extended("").is_err() && answer(&good(3), true).is_err());
    }
}

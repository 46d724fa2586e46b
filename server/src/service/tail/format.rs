//! [`Format`]: how a message of a partition is pushed.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use iggy_binary_protocol::WireMessageView;
use owned_io::coop;
use owned_io_websocket::MessageKind;

/// The subprotocol of binary messages.
pub const BINARY_PROTOCOL: &str = "owned-io.tail.binary.v1";

/// How messages are pushed. See [the module](super#messages).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    Json,
    Binary,
}

/// A message, and how long it is when it is encoded.
pub(super) struct Pushed<'a> {
    offset: u64,
    timestamp: u64,
    payload: Payload<'a>,
    bytes: usize,
}

enum Payload<'a> {
    /// JSON.
    Text(&'a str),
    /// JSON, for what is not UTF-8.
    Base64(&'a [u8]),
    /// Binary.
    Raw(&'a [u8]),
}

/// The JSON around numbers and payload.
const OFFSET: &str = r#"{"offset":"#;
const TIMESTAMP: &str = r#","timestamp":"#;
const TEXT: &str = r#","payload":"#;
const BASE64: &str = r#","payload_base64":""#;
const TEXT_END: &str = "}";
const BASE64_END: &str = r#""}"#;

/// Offset and timestamp in binary.
const HEAD_BYTES: usize = 16;

impl Format {
    /// The subprotocol that the server chooses.
    pub(super) const fn protocol(self) -> Option<&'static str> {
        match self {
            Self::Json => None,
            Self::Binary => Some(BINARY_PROTOCOL),
        }
    }

    /// Text or binary.
    pub(super) const fn kind(self) -> MessageKind {
        match self {
            Self::Json => MessageKind::Text,
            Self::Binary => MessageKind::Binary,
        }
    }

    /// A message that is to be pushed. For JSON its payload is checked, and its length counted, in one piece.
    pub(super) fn pushed<'a>(self, message: &WireMessageView<'a>) -> Pushed<'a> {
        let (offset, timestamp) = (message.offset(), message.timestamp());
        let raw = message.payload();
        let (payload, bytes) = match self {
            Self::Binary => (Payload::Raw(raw), HEAD_BYTES + raw.len()),
            Self::Json => {
                coop::consume(raw.len() as u64 / SCANNED_PER_NANO);
                let (payload, payload_bytes) = match std::str::from_utf8(raw) {
                    Ok(text) => {
                        let bytes = TEXT.len() + json_len(text) + TEXT_END.len();
                        (Payload::Text(text), bytes)
                    }
                    Err(_) => {
                        let bytes = BASE64.len() + raw.len().div_ceil(3) * 4 + BASE64_END.len();
                        (Payload::Base64(raw), bytes)
                    }
                };
                let numbers = decimal_len(offset) + decimal_len(timestamp);
                (payload, OFFSET.len() + TIMESTAMP.len() + numbers + payload_bytes)
            }
        };
        Pushed { offset, timestamp, payload, bytes }
    }
}

impl Pushed<'_> {
    /// Its length, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends it to `out`. JSON is UTF-8.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let Self { offset, timestamp, .. } = self;
        match self.payload {
            Payload::Raw(raw) => {
                coop::consume(coop::cost::frame_out(raw.len()));
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&timestamp.to_le_bytes());
                out.extend_from_slice(raw);
            }
            Payload::Text(text) => {
                coop::consume(JSON_NANOS + self.bytes as u64 / ESCAPED_PER_NANO);
                // A `Vec` takes all that is written.
                let _ = write!(out, "{OFFSET}{offset}{TIMESTAMP}{timestamp}{TEXT}");
                let _ = serde_json::to_writer(&mut *out, text);
                out.extend_from_slice(TEXT_END.as_bytes());
            }
            Payload::Base64(raw) => {
                coop::consume(JSON_NANOS + self.bytes as u64 / ESCAPED_PER_NANO);
                let _ = write!(out, "{OFFSET}{offset}{TIMESTAMP}{timestamp}{BASE64}");
                let at = out.len();
                out.resize(at + raw.len().div_ceil(3) * 4, 0);
                let written = STANDARD.encode_slice(raw, &mut out[at..]);
                debug_assert_eq!(written, Ok(out.len() - at));
                out.extend_from_slice(BASE64_END.as_bytes());
            }
        }
        debug_assert_eq!(out.len() - start, self.bytes);
    }
}

/// The work of JSON: that for each message, in nanoseconds, and how many bytes are checked and counted in one, and
/// escaped. Not measured.
const JSON_NANOS: u64 = 200;
const SCANNED_PER_NANO: u64 = 2;
const ESCAPED_PER_NANO: u64 = 2;

/// Tells in JSON that messages were removed. The next one has the offset `to`.
pub(super) fn lost(from: u64, to: u64) -> String {
    format!(r#"{{"lost":{{"from":{from},"to":{to}}}}}"#)
}

/// The length of `text` as a JSON string with its quotes, as `serde_json` escapes it.
fn json_len(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 1,
        0..0x20 => 5, // \u00XX
        _ => 0,
    };
    2 + text.len() + text.bytes().map(escaped).sum::<usize>()
}

fn decimal_len(number: u64) -> usize {
    1 + number.checked_ilog10().unwrap_or(0) as usize
}

#[cfg(test)]
pub(super) mod tests {
    use iggy_binary_protocol::message_layout::{
        MSG_OFFSET_OFFSET, MSG_PAYLOAD_LEN_OFFSET, MSG_TIMESTAMP_OFFSET, WIRE_MESSAGE_HEADER_SIZE,
    };
    use serde_json::{Value, json};

    use super::*;

    pub(in super::super) fn stored(offset: u64, timestamp: u64, payload: &[u8]) -> Vec<u8> {
        let mut message = vec![0; WIRE_MESSAGE_HEADER_SIZE];
        let len = (payload.len() as u32).to_le_bytes();
        message[MSG_OFFSET_OFFSET..][..8].copy_from_slice(&offset.to_le_bytes());
        message[MSG_TIMESTAMP_OFFSET..][..8].copy_from_slice(&timestamp.to_le_bytes());
        message[MSG_PAYLOAD_LEN_OFFSET..][..4].copy_from_slice(&len);
        message.extend_from_slice(payload);
        message
    }

    fn encoded(format: Format, offset: u64, timestamp: u64, payload: &[u8]) -> Vec<u8> {
        let message = stored(offset, timestamp, payload);
        let pushed = format.pushed(&WireMessageView::new(&message).unwrap());
        let mut out = b"before".to_vec();
        pushed.encode(&mut out);
        assert_eq!(out.len(), 6 + pushed.bytes(), "it is as long as was said before");
        out.split_off(6)
    }

    #[test]
    fn text_is_json_and_other_bytes_are_base64() {
        let ascii: Vec<u8> = (0..128).collect();
        for (offset, timestamp) in [(0, 9), (10, 1_764_000_000_000_000), (u64::MAX, u64::MAX)] {
            for text in
                ["", "hello", "\"quoted\" \\ \u{7f}", "é日🦀", str::from_utf8(&ascii).unwrap()]
            {
                let json = encoded(Format::Json, offset, timestamp, text.as_bytes());
                let parsed: Value = serde_json::from_slice(&json).unwrap();
                let expected = json!({"offset": offset, "timestamp": timestamp, "payload": text});
                assert_eq!(parsed, expected);
            }
            for (bytes, base64) in
                [(&[255, 0][..], "/wA="), (&[255], "/w=="), (&[255, 254, 253], "//79")]
            {
                let json = encoded(Format::Json, offset, timestamp, bytes);
                let parsed: Value = serde_json::from_slice(&json).unwrap();
                let expected =
                    json!({"offset": offset, "timestamp": timestamp, "payload_base64": base64});
                assert_eq!(parsed, expected);
            }
        }
        let lost: Value = serde_json::from_str(&lost(7, 9)).unwrap();
        assert_eq!(lost, json!({"lost": {"from": 7, "to": 9}}));
    }

    /// Also that of a message which turns out to be too long.
    #[test]
    fn the_scan_of_a_message_counts() {
        for payload in [vec![1; 1_000_000], vec![255; 1_000_000]] {
            let message = stored(0, 0, &payload);
            coop::refill();
            let bytes = Format::Json.pushed(&WireMessageView::new(&message).unwrap()).bytes();
            let scanned = coop::spent_nanos();
            assert!(bytes > payload.len() && scanned >= 500_000, "{scanned} for the scan");
        }
    }

    #[test]
    fn binary_is_offset_timestamp_and_payload() {
        let binary = encoded(Format::Binary, 258, 3, b"hello");
        assert_eq!(
            binary,
            [&[2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..], b"hello"].concat()
        );
    }
}

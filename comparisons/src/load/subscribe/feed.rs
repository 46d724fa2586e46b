//! What is published, and how it is pushed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::BytesMut;
use iggy_binary_protocol::codes::SEND_MESSAGES_CODE;
use iggy_binary_protocol::message_layout::{MSG_ID_OFFSET, WIRE_MESSAGE_HEADER_SIZE};
use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
use iggy_binary_protocol::{WireIdentifier, WirePartitioning};
use serde::Deserialize;

use super::super::exchange::{Exchange, Wire};
use super::super::iggy::control::frame;
use super::super::iggy::template::Template;

/// The decimal digits of a message's number, with which its payload begins.
pub(super) const DIGITS: usize = 16;

/// How many messages are remembered as they were pushed first.
const REMEMBERED: u64 = 4096;

/// How messages are published and pushed.
#[derive(Clone, Debug)]
pub(super) enum Feed {
    /// Messages of a WebSocket: each is pushed as it is published, as text.
    Plain,
    /// Batches of one message to partition 0 of a topic, after this login; JSON with offset, timestamp and payload.
    Tail { login: Vec<u8>, topic: WireIdentifier },
}

/// The payload of a message: its number, then letters.
fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = format!("{number:0DIGITS$}").into_bytes();
    payload.extend((DIGITS..bytes).map(|index| b'a' + (index % 26) as u8));
    payload
}

/// The digits of a number below 10^16.
fn digits(mut number: u64) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// Requests to publish messages, numbered from 0.
#[derive(Debug)]
pub(super) struct Publish {
    login: Option<Vec<u8>>,
    request: Template,
    id_at: Option<usize>,
    digits_at: usize,
}

impl Publish {
    pub(super) fn new(feed: &Feed, bytes: usize) -> Self {
        let payload = payload(0, bytes);
        let wire = Wire::WebSocket;
        match feed {
            Feed::Plain => Self {
                login: None,
                request: Template::new(wire, &payload),
                id_at: None,
                digits_at: 0,
            },
            Feed::Tail { login, topic } => {
                let message =
                    RawMessage { id: 0, origin_timestamp: 0, headers: None, payload: &payload };
                let partitioning = WirePartitioning::PartitionId(0);
                let mut request = BytesMut::new();
                SendMessagesEncoder::encode(&mut request, topic, topic, &partitioning, &[message]);
                let request = frame(SEND_MESSAGES_CODE, &request);
                let message_at = request.len() - payload.len() - WIRE_MESSAGE_HEADER_SIZE;
                Self {
                    login: Some(Template::new(wire, login).bytes().to_vec()),
                    request: Template::new(wire, &request),
                    id_at: Some(message_at + MSG_ID_OFFSET),
                    digits_at: message_at + WIRE_MESSAGE_HEADER_SIZE,
                }
            }
        }
    }
}

impl Exchange for Publish {
    fn login(&self) -> Option<&[u8]> {
        self.login.as_deref()
    }

    fn request_bytes(&self) -> u64 {
        self.request.bytes().len() as u64
    }

    fn answers(&self) -> u64 {
        // Only Iggy answers.
        u64::from(self.login.is_some())
    }

    fn answer_bytes(&self) -> u64 {
        PUBLISHED.len() as u64
    }

    fn fill(&self, _connection: u32, message: u64, offset: u64, out: &mut [u8]) {
        self.request.copy(offset, out);
        if let Some(at) = self.id_at {
            self.request.put(out, offset, at, (u128::from(message) + 1).to_le_bytes());
        }
        self.request.put(out, offset, self.digits_at, digits(message));
    }

    fn matches(&self, _connection: u32, _message: u64, offset: u64, got: &[u8]) -> bool {
        *got == PUBLISHED[offset as usize..][..got.len()]
    }
}

/// Iggy's answer: the status of success, and no payload.
const PUBLISHED: [u8; 8] = [0; 8];

/// What was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The message with this number.
    Message(u64),
    /// The server says that the messages before this one were removed.
    LostUpTo(u64),
}

/// JSON of a tail.
#[derive(Deserialize)]
#[serde(untagged)]
enum Json<'a> {
    Message {
        offset: u64,
        #[serde(borrow)]
        payload: Cow<'a, str>,
    },
    Lost {
        lost: Lost,
    },
}

#[derive(Deserialize)]
struct Lost {
    to: u64,
}

/// Checks what is pushed. A message is decoded when it comes for the first time; to others it has to come as the same
/// bytes, or is decoded again.
#[derive(Debug)]
pub(super) struct Checker {
    is_json: bool,
    bytes: usize,
    /// By number, the last [`REMEMBERED`] at most.
    first: BTreeMap<u64, Vec<u8>>,
}

impl Checker {
    pub(super) const fn new(feed: &Feed, bytes: usize) -> Self {
        Self { is_json: matches!(feed, Feed::Tail { .. }), bytes, first: BTreeMap::new() }
    }

    /// What a message is. `next`: the number that is expected.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check(&mut self, next: u64, message: &[u8]) -> Result<Pushed, &'static str> {
        if self.first.get(&next).is_some_and(|first| *first == message) {
            return Ok(Pushed::Message(next));
        }
        let number = if self.is_json {
            let json: Result<Json<'_>, _> = serde_json::from_slice(message);
            match json.map_err(|_| "a message that is not the JSON of a tail")? {
                Json::Lost { lost } => return Ok(Pushed::LostUpTo(lost.to)),
                Json::Message { offset, payload } => {
                    let number = self.number(payload.as_bytes())?;
                    if offset != number {
                        return Err("a message at another offset");
                    }
                    number
                }
            }
        } else {
            self.number(message)?
        };
        self.first.insert(number, message.to_vec());
        while self.first.len() as u64 > REMEMBERED {
            self.first.pop_first();
        }
        Ok(Pushed::Message(number))
    }

    fn number(&self, got: &[u8]) -> Result<u64, &'static str> {
        let digits = got.get(..DIGITS).and_then(|digits| str::from_utf8(digits).ok());
        let number = digits.and_then(|digits| digits.parse().ok());
        let number: u64 = number.ok_or("a message without a number")?;
        if got != payload(number, self.bytes) {
            return Err("a message that was not published");
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::RequestFrame;

    use super::super::super::frames;
    use super::*;

    fn tail() -> Feed {
        Feed::Tail { login: b"me".to_vec(), topic: WireIdentifier::named("topic").unwrap() }
    }

    #[test]
    fn a_published_message_has_its_number() {
        for feed in [Feed::Plain, tail()] {
            let publish = Publish::new(&feed, 200);
            let mut request = vec![0; publish.request_bytes() as usize];
            publish.fill(0, 123, 0, &mut request);
            // A frame with a length of two bytes.
            frames::mask(&mut request[8..]);
            let message = match feed {
                Feed::Plain => &request[8..],
                Feed::Tail { .. } => {
                    let (frame, len) = RequestFrame::decode(&request[8..]).unwrap();
                    assert_eq!(len, request.len() - 8);
                    &frame.payload[frame.payload.len() - 200..]
                }
            };
            assert_eq!(message, payload(123, 200));
        }
    }

    #[test]
    fn what_is_pushed_is_checked() {
        let mut plain = Checker::new(&Feed::Plain, 20);
        let good = payload(7, 20);
        // The second time it is not decoded.
        for next in [0, 7] {
            assert_eq!(plain.check(next, &good), Ok(Pushed::Message(7)));
        }
        assert!(plain.check(7, &good[..19]).is_err() && plain.check(7, b"{}").is_err());
        let mut tail = Checker::new(&tail(), 20);
        let json = |offset: u64, payload: &[u8]| {
            let payload = str::from_utf8(payload).unwrap();
            format!("{{\"offset\":{offset},\"timestamp\":9,\"payload\":\"{payload}\"}}")
        };
        assert_eq!(tail.check(0, json(7, &good).as_bytes()), Ok(Pushed::Message(7)));
        assert_eq!(tail.check(7, json(8, &good).as_bytes()), Err("a message at another offset"));
        assert!(tail.check(7, json(7, &payload(7, 21)).as_bytes()).is_err());
        let lost = br#"{"lost":{"from":3,"to":9}}"#;
        assert_eq!(tail.check(3, lost), Ok(Pushed::LostUpTo(9)));
        assert!(tail.check(3, br#"{"lost":3}"#).is_err());
    }

    #[test]
    fn few_messages_are_remembered() {
        let mut checker = Checker::new(&Feed::Plain, 16);
        for number in 0..REMEMBERED + 10 {
            checker.check(number, &payload(number, 16)).unwrap();
        }
        assert_eq!(checker.first.len() as u64, REMEMBERED);
    }
}

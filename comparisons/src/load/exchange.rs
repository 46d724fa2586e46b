//! What is sent and what has to come back, byte by byte.
//!
//! Both are functions of connection, message and offset. A short write is resumed and an answer in pieces is
//! checked without a buffer per connection.

use super::frames::{self, FrameHeader, KEY};

/// The number of offsets in its block at which a message may begin. They are four bytes apart, so that one mask
/// fits all.
const SHIFTS: u64 = 1024;
const SHIFT_BYTES: u64 = KEY.len() as u64;

/// The length of the number that an echoed message begins with.
const NUMBER_BYTES: usize = 8;

/// The framing of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// That of the services over TCP: [`Exchange`] gives every byte.
    Tcp,
    /// A request is a masked binary frame, which [`Exchange`] gives in full; an answer is a binary
    /// message, of which [`Exchange`] knows the payload.
    WebSocket,
}

impl Wire {
    /// Masks the payloads of requests if need be.
    pub(crate) fn mask(self, payload: &mut [u8]) {
        if self == Self::WebSocket {
            frames::mask(payload);
        }
    }
}

/// A request and its answers.
pub(crate) trait Exchange {
    /// The request of a [`Login`](super::login::Login), if each connection begins with one.
    fn login(&self) -> Option<&[u8]> {
        None
    }

    /// Whether requests and answers are those of HTTP/1.1. An answer is then the body alone.
    fn is_http(&self) -> bool {
        false
    }

    /// The length of a request; zero if connecting is the request.
    fn request_bytes(&self) -> u64;

    /// How many answers it has.
    fn answers(&self) -> u64 {
        1
    }

    /// The length of each.
    fn answer_bytes(&self) -> u64;

    /// The frame header of an answer in one frame, in a WebSocket.
    fn answer_head(&self) -> FrameHeader {
        FrameHeader::of_server(self.answer_bytes())
    }

    /// Whether the server ends the connection after so many answers.
    fn ends_after(&self, _answers: u64) -> bool {
        false
    }

    /// Writes the bytes of a request from `offset` on; `out` does not reach over its end.
    fn fill(&self, connection: u32, message: u64, offset: u64, out: &mut [u8]);

    /// Whether `got` are the bytes of an answer from `offset` on; it does not reach over its end.
    fn matches(&self, connection: u32, message: u64, offset: u64, got: &[u8]) -> bool;
}

/// Every message comes back.
#[derive(Debug)]
pub(crate) struct Echo {
    payload: usize,
    head: FrameHeader,
    /// The payload of a request is a slice of this, with its number over the first bytes.
    requests: Block,
    /// The payload of an answer is a slice of this, which is the same without the mask. TCP has two blocks as well, so
    /// that it touches as much memory.
    answers: Block,
}

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    /// The mask of the number.
    mask: u64,
}

impl Echo {
    pub(crate) fn new(wire: Wire, payload: usize) -> Self {
        let len = payload + (SHIFTS * SHIFT_BYTES) as usize;
        let mut bytes = Vec::with_capacity(len + 8);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while bytes.len() < len {
            state = xorshift(state);
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes.truncate(len);
        let (mut masked, mut mask) = (bytes.clone(), [0; NUMBER_BYTES]);
        wire.mask(&mut masked);
        wire.mask(&mut mask);
        let head = match wire {
            Wire::Tcp => FrameHeader::default(),
            Wire::WebSocket => FrameHeader::of_client(payload as u64),
        };
        Self {
            payload,
            head,
            requests: Block { bytes: masked, mask: u64::from_le_bytes(mask) },
            answers: Block { bytes, mask: 0 },
        }
    }
}

impl Block {
    /// The parts of a message from `offset` on: how many bytes belong to its number, the number, and the rest.
    fn parts(
        &self,
        connection: u32,
        message: u64,
        offset: u64,
        len: usize,
    ) -> (usize, [u8; NUMBER_BYTES], &[u8]) {
        let number = number(connection, message);
        let from = offset as usize + (number % SHIFTS * SHIFT_BYTES) as usize;
        let numbered = NUMBER_BYTES.saturating_sub(offset as usize).min(len);
        let number = (number ^ self.mask).to_le_bytes();
        (numbered, number, &self.bytes[from + numbered..from + len])
    }
}

impl Exchange for Echo {
    fn request_bytes(&self) -> u64 {
        (self.head.as_slice().len() + self.payload) as u64
    }

    fn answer_bytes(&self) -> u64 {
        self.payload as u64
    }

    fn fill(&self, connection: u32, message: u64, offset: u64, out: &mut [u8]) {
        let head = rest_of(self.head.as_slice(), offset, out.len());
        let (first, out) = out.split_at_mut(head.len());
        first.copy_from_slice(head);
        let offset = offset.saturating_sub(self.head.as_slice().len() as u64);
        let (numbered, number, rest) = self.requests.parts(connection, message, offset, out.len());
        let (first, second) = out.split_at_mut(numbered);
        first.copy_from_slice(rest_of(&number, offset, numbered));
        second.copy_from_slice(rest);
    }

    fn matches(&self, connection: u32, message: u64, offset: u64, got: &[u8]) -> bool {
        let (numbered, number, rest) = self.answers.parts(connection, message, offset, got.len());
        let (first, second) = got.split_at(numbered);
        *first == *rest_of(&number, offset, numbered) && second == rest
    }
}

/// Every message is answered by its length as a `u64`. Over TCP a message is its length as a `u32` and
/// as many bytes.
#[derive(Debug)]
pub(crate) struct Sink {
    request: Vec<u8>,
    answer: [u8; 8],
}

impl Sink {
    pub(crate) fn new(wire: Wire, payload: u32) -> Self {
        let mut request = match wire {
            Wire::Tcp => payload.to_le_bytes().to_vec(),
            Wire::WebSocket => FrameHeader::of_client(payload.into()).as_slice().to_vec(),
        };
        let begin = request.len();
        request.extend((0..payload).map(|i| i as u8));
        wire.mask(&mut request[begin..]);
        Self { request, answer: u64::from(payload).to_le_bytes() }
    }
}

impl Exchange for Sink {
    fn request_bytes(&self) -> u64 {
        self.request.len() as u64
    }

    fn answer_bytes(&self) -> u64 {
        self.answer.len() as u64
    }

    fn fill(&self, _connection: u32, _message: u64, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.request[offset as usize..][..out.len()]);
    }

    fn matches(&self, _connection: u32, _message: u64, offset: u64, got: &[u8]) -> bool {
        *got == self.answer[offset as usize..][..got.len()]
    }
}

/// One request for many messages, as [`Numbered`] says; a WebSocket asks by its path and is closed after the last.
#[derive(Debug)]
pub(crate) struct Source {
    messages: u64,
    request: Vec<u8>,
    answers: Numbered,
    ends: bool,
}

impl Source {
    pub(crate) fn new(wire: Wire, messages: u32, bytes: u32, batch: u32) -> Self {
        let request = match wire {
            Wire::Tcp => [messages, bytes, batch].map(u32::to_le_bytes).concat(),
            Wire::WebSocket => Vec::new(),
        };
        let answers = Numbered::new(wire, bytes);
        Self { messages: messages.into(), request, answers, ends: wire == Wire::WebSocket }
    }
}

impl Exchange for Source {
    fn request_bytes(&self) -> u64 {
        self.request.len() as u64
    }

    fn answers(&self) -> u64 {
        self.messages
    }

    fn answer_bytes(&self) -> u64 {
        self.answers.bytes()
    }

    fn ends_after(&self, answers: u64) -> bool {
        self.ends && answers == self.messages
    }

    fn fill(&self, _connection: u32, _message: u64, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.request[offset as usize..][..out.len()]);
    }

    fn matches(&self, _connection: u32, message: u64, offset: u64, got: &[u8]) -> bool {
        self.answers.matches(message, offset, got)
    }
}

/// Requests for messages, one after the other, each for the same number of messages, as [`Numbered`] says. Over
/// WebSocket a request is a message.
#[derive(Debug)]
pub(crate) struct Fetch {
    messages: u64,
    request: Vec<u8>,
    answers: Numbered,
}

impl Fetch {
    pub(crate) fn new(wire: Wire, messages: u32, bytes: u32, batch: u32) -> Self {
        let mut fields = [messages, bytes, batch].map(u32::to_le_bytes).concat();
        wire.mask(&mut fields);
        let head = match wire {
            Wire::Tcp => FrameHeader::default(),
            Wire::WebSocket => FrameHeader::of_client(fields.len() as u64),
        };
        let request = [head.as_slice(), &fields].concat();
        Self { messages: messages.into(), request, answers: Numbered::new(wire, bytes) }
    }
}

impl Exchange for Fetch {
    fn request_bytes(&self) -> u64 {
        self.request.len() as u64
    }

    fn answers(&self) -> u64 {
        self.messages
    }

    fn answer_bytes(&self) -> u64 {
        self.answers.bytes()
    }

    fn fill(&self, _connection: u32, _message: u64, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.request[offset as usize..][..out.len()]);
    }

    fn matches(&self, _connection: u32, message: u64, offset: u64, got: &[u8]) -> bool {
        self.answers.matches(message % self.messages, offset, got)
    }
}

/// Messages of one length, of which byte `i` of the `n`th is `n + i`. Over TCP each comes after its length as a `u32`.
#[derive(Debug)]
struct Numbered {
    /// The bytes before a message.
    prefix: Vec<u8>,
    /// A message is a part of this: byte `i` is `i`.
    ramp: Vec<u8>,
}

impl Numbered {
    fn new(wire: Wire, bytes: u32) -> Self {
        let prefix = match wire {
            Wire::Tcp => bytes.to_le_bytes().to_vec(),
            Wire::WebSocket => Vec::new(),
        };
        Self { prefix, ramp: (0..u64::from(bytes) + 256).map(|i| i as u8).collect() }
    }

    /// The length of each, with its prefix.
    fn bytes(&self) -> u64 {
        (self.prefix.len() + self.ramp.len() - 256) as u64
    }

    /// Whether the `n`th has these bytes from `offset` on.
    fn matches(&self, n: u64, offset: u64, got: &[u8]) -> bool {
        let prefix = rest_of(&self.prefix, offset, got.len());
        let (first, second) = got.split_at(prefix.len());
        let begin = (offset as usize).saturating_sub(self.prefix.len());
        // An empty `Vec` is at address 1, and to compare nothing with it took glibc's memcmp 80 ns
        // (its masked loads, on an AMD EPYC, 2026-11-21).
        (prefix.is_empty() || first == prefix)
            && *second == self.ramp[(n % 256) as usize + begin..][..second.len()]
    }
}

/// The part of `bytes` from `offset` on, at most `len`.
fn rest_of(bytes: &[u8], offset: u64, len: usize) -> &[u8] {
    let rest = &bytes[bytes.len().min(offset as usize)..];
    &rest[..rest.len().min(len)]
}

/// Marsaglia's, 64 bits.
pub(crate) fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// Different for every connection and message (a bijection of both, up to 2^32 messages).
pub(crate) fn number(connection: u32, message: u64) -> u64 {
    let mixed = (u64::from(connection) << 32 ^ message).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRES: [Wire; 2] = [Wire::Tcp, Wire::WebSocket];

    /// Of a request.
    fn payload_of(wire: Wire, request: &[u8]) -> Vec<u8> {
        if wire == Wire::Tcp {
            return request.to_vec();
        }
        let key = request.windows(4).position(|bytes| bytes == KEY).expect("a key");
        let mut payload = request[key + 4..].to_vec();
        assert_eq!(*FrameHeader::of_client(payload.len() as u64).as_slice(), request[..key + 4]);
        frames::mask(&mut payload);
        payload
    }

    /// Cut at every place, the pieces are those of the whole, and each byte of each is checked.
    fn every_cut<E: Exchange>(exchange: &E, len: usize, whole: &[u8]) {
        for cut in 0..=len {
            let (first, second) = whole.split_at(cut);
            assert!(exchange.matches(3, 5, 0, first), "before {cut}");
            assert!(exchange.matches(3, 5, cut as u64, second), "after {cut}");
            if let Some(byte) = second.first() {
                let mut wrong = second.to_vec();
                wrong[0] = byte ^ 0x10;
                assert!(!exchange.matches(3, 5, cut as u64, &wrong), "wrong at {cut}");
            }
        }
    }

    fn request<E: Exchange>(exchange: &E, connection: u32, message: u64) -> Vec<u8> {
        let mut request = vec![0; exchange.request_bytes() as usize];
        exchange.fill(connection, message, 0, &mut request);
        request
    }

    #[test]
    fn an_echo_is_checked_at_every_byte_and_every_cut() {
        for (wire, payload) in WIRES.into_iter().flat_map(|w| [1, 7, 8, 9, 200].map(|p| (w, p))) {
            let echo = Echo::new(wire, payload);
            let whole = request(&echo, 3, 5);
            every_cut(&echo, payload, &payload_of(wire, &whole));
            for cut in 0..=whole.len() {
                let mut pieces = vec![0; whole.len()];
                let (first, second) = pieces.split_at_mut(cut);
                echo.fill(3, 5, 0, first);
                echo.fill(3, 5, cut as u64, second);
                assert_eq!(pieces, whole);
            }
        }
    }

    #[test]
    fn an_echo_of_another_message_or_connection_is_wrong_in_every_part() {
        let echo = Echo::new(Wire::Tcp, 200);
        for (connection, message) in [(3, 6), (3, 4), (4, 5), (5, 3)] {
            let other = request(&echo, connection, message);
            assert!(!echo.matches(3, 5, 0, &other));
            assert!(!echo.matches(3, 5, 0, &other[..8]));
            assert!(!echo.matches(3, 5, 8, &other[8..]));
        }
    }

    #[test]
    fn numbers_do_not_repeat() {
        let numbers: std::collections::BTreeSet<u64> =
            (0..100).flat_map(|c| (0..100).map(move |m| number(c, m))).collect();
        assert_eq!(numbers.len(), 100 * 100);
    }

    #[test]
    fn a_sink_answers_with_the_length() {
        for wire in WIRES {
            let sink = Sink::new(wire, 300);
            let whole = request(&sink, 0, 0);
            let payload: Vec<u8> = (0..300).map(|i| i as u8).collect();
            match wire {
                Wire::Tcp => assert_eq!(whole, [&300_u32.to_le_bytes(), &payload[..]].concat()),
                Wire::WebSocket => assert_eq!(payload_of(wire, &whole), payload),
            }
            every_cut(&sink, 8, &300_u64.to_le_bytes());
        }
    }

    #[test]
    fn a_source_is_checked_at_every_byte_and_every_cut() {
        for (wire, bytes) in WIRES.into_iter().flat_map(|wire| [0, 1, 5, 300].map(|b| (wire, b))) {
            let source = Source::new(wire, 300, bytes, 7);
            assert_eq!((source.answers(), source.ends_after(299)), (300, false));
            assert_eq!(source.ends_after(300), wire == Wire::WebSocket);
            // The first and the last messages, and those where the numbers wrap.
            for n in [0, 1, 255, 256, 299] {
                let mut whole = bytes.to_le_bytes().to_vec();
                whole.extend((0..bytes).map(|i| (n + i) as u8));
                let whole = if wire == Wire::Tcp { &whole } else { &whole[4..] };
                assert_eq!(source.answer_bytes(), whole.len() as u64);
                for cut in 0..whole.len() {
                    let (first, second) = whole.split_at(cut);
                    assert!(source.matches(0, n.into(), 0, first), "{bytes} {cut}");
                    assert!(source.matches(0, n.into(), cut as u64, second), "{bytes} {cut}");
                    let mut wrong = second.to_vec();
                    wrong[0] ^= 1;
                    assert!(!source.matches(0, n.into(), cut as u64, &wrong), "{bytes} {cut}");
                }
            }
        }
        let request = request(&Source::new(Wire::Tcp, 1, 2, 3), 0, 0);
        assert_eq!(request, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(Source::new(Wire::WebSocket, 1, 2, 3).request_bytes(), 0);
    }

    #[test]
    fn a_fetch_asks_for_one_message_and_is_checked_at_every_byte_and_every_cut() {
        for (wire, bytes) in WIRES.into_iter().flat_map(|wire| [1, 5, 300].map(|b| (wire, b))) {
            let fetch = Fetch::new(wire, 1, bytes, 1);
            let asked = payload_of(wire, &request(&fetch, 3, 5));
            assert_eq!(asked, [1, bytes, 1].map(u32::to_le_bytes).concat());
            let message: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
            let answer = match wire {
                Wire::Tcp => [&bytes.to_le_bytes()[..], &message].concat(),
                Wire::WebSocket => message,
            };
            assert_eq!(fetch.answer_bytes(), answer.len() as u64);
            every_cut(&fetch, answer.len(), &answer);
        }
    }
}

//! What is sent, and what has to come back: exact, byte by byte, without being kept anywhere.
//!
//! Both are functions of connection, message and offset, so a write that was cut short is resumed,
//! and an answer that comes in pieces is checked, without a buffer per connection.

/// Of how many places in its block a message may begin at one.
const SHIFTS: u64 = 4096;

/// The bytes at the beginning of an echoed message that number it.
const NUMBER_BYTES: usize = 8;

/// A request and its answer.
pub(crate) trait Exchange {
    /// The length of a request.
    fn request_bytes(&self) -> u64;

    /// The length of its answer.
    fn answer_bytes(&self) -> u64;

    /// Writes the bytes of a request from `offset` on; `out` does not reach over its end.
    fn fill(&self, connection: u32, message: u64, offset: u64, out: &mut [u8]);

    /// Whether `got` are the bytes of the answer from `offset` on; it does not reach over its end.
    fn matches(&self, connection: u32, message: u64, offset: u64, got: &[u8]) -> bool;
}

/// Every message comes back.
#[derive(Debug)]
pub(crate) struct Echo {
    payload: usize,
    /// A message is a part of this, with its number over the beginning.
    block: Vec<u8>,
}

impl Echo {
    pub(crate) fn new(payload: usize) -> Self {
        let len = payload + SHIFTS as usize;
        let mut block = Vec::with_capacity(len + 8);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while block.len() < len {
            state = xorshift(state);
            block.extend_from_slice(&state.to_le_bytes());
        }
        block.truncate(len);
        Self { payload, block }
    }

    /// The number over the beginning, from `offset` on, and the bytes after it.
    fn parts(
        &self,
        connection: u32,
        message: u64,
        offset: u64,
        len: usize,
    ) -> (usize, [u8; NUMBER_BYTES], &[u8]) {
        let number = number(connection, message);
        let from = offset as usize + (number % SHIFTS) as usize;
        let numbered = NUMBER_BYTES.saturating_sub(offset as usize).min(len);
        (numbered, number.to_le_bytes(), &self.block[from + numbered..from + len])
    }
}

impl Exchange for Echo {
    fn request_bytes(&self) -> u64 {
        self.payload as u64
    }

    fn answer_bytes(&self) -> u64 {
        self.payload as u64
    }

    fn fill(&self, connection: u32, message: u64, offset: u64, out: &mut [u8]) {
        let (numbered, number, rest) = self.parts(connection, message, offset, out.len());
        let (first, second) = out.split_at_mut(numbered);
        if numbered > 0 {
            first.copy_from_slice(&number[offset as usize..][..numbered]);
        }
        second.copy_from_slice(rest);
    }

    fn matches(&self, connection: u32, message: u64, offset: u64, got: &[u8]) -> bool {
        let (numbered, number, rest) = self.parts(connection, message, offset, got.len());
        let (first, second) = got.split_at(numbered);
        (numbered == 0 || *first == number[offset as usize..][..numbered]) && second == rest
    }
}

/// Every message, a `u32` and as many bytes, is answered by that number as a `u64`.
#[derive(Debug)]
pub(crate) struct Sink {
    request: Vec<u8>,
    answer: [u8; 8],
}

impl Sink {
    pub(crate) fn new(payload: u32) -> Self {
        let mut request = payload.to_le_bytes().to_vec();
        request.extend((0..payload).map(|i| i as u8));
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

/// One request for many messages; all of them together are its answer. Each is a `u32`, its
/// length, and that many bytes: byte `i` of message `n` is `n + i`.
#[derive(Debug)]
pub(crate) struct Source {
    messages: u32,
    bytes: u32,
    request: [u8; 12],
    /// A message is a part of this: byte `i` is `i`.
    ramp: Vec<u8>,
}

impl Source {
    pub(crate) fn new(messages: u32, bytes: u32, batch: u32) -> Self {
        let mut request = [0; 12];
        for (field, value) in request.chunks_exact_mut(4).zip([messages, bytes, batch]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        let ramp = (0..u64::from(bytes) + 256).map(|i| i as u8).collect();
        Self { messages, bytes, request, ramp }
    }

    /// How many messages are complete in so many bytes of the answer.
    pub(crate) fn messages_in(&self, bytes: u64) -> u64 {
        bytes / self.message_bytes()
    }

    fn message_bytes(&self) -> u64 {
        4 + u64::from(self.bytes)
    }
}

impl Exchange for Source {
    fn request_bytes(&self) -> u64 {
        self.request.len() as u64
    }

    fn answer_bytes(&self) -> u64 {
        u64::from(self.messages) * self.message_bytes()
    }

    fn fill(&self, _connection: u32, _message: u64, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.request[offset as usize..][..out.len()]);
    }

    fn matches(&self, _connection: u32, _message: u64, offset: u64, got: &[u8]) -> bool {
        let length = self.bytes.to_le_bytes();
        let mut message = offset / self.message_bytes();
        let mut offset = (offset % self.message_bytes()) as usize;
        let mut got = got;
        while !got.is_empty() {
            let prefixed = 4_usize.saturating_sub(offset).min(got.len());
            let begin = (offset + prefixed).saturating_sub(4);
            let body = (self.bytes as usize - begin).min(got.len() - prefixed);
            let content = &self.ramp[(message % 256) as usize + begin..][..body];
            if prefixed > 0 && got[..prefixed] != length[offset..][..prefixed]
                || got[prefixed..][..body] != *content
            {
                return false;
            }
            got = &got[prefixed + body..];
            message += 1;
            offset = 0;
        }
        true
    }
}

/// Marsaglia's, 64 bits.
fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// Different for every connection and message (a bijection of both, up to 2^32 messages).
fn number(connection: u32, message: u64) -> u64 {
    let mixed = (u64::from(connection) << 32 ^ message).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for payload in [1, 7, 8, 9, 200] {
            let echo = Echo::new(payload);
            let whole = request(&echo, 3, 5);
            every_cut(&echo, payload, &whole);
            for cut in 0..=payload {
                let mut pieces = vec![0; payload];
                let (first, second) = pieces.split_at_mut(cut);
                echo.fill(3, 5, 0, first);
                echo.fill(3, 5, cut as u64, second);
                assert_eq!(pieces, whole);
            }
        }
    }

    #[test]
    fn an_echo_of_another_message_or_connection_is_wrong_in_every_part() {
        let echo = Echo::new(200);
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
        let sink = Sink::new(300);
        let whole = request(&sink, 0, 0);
        assert_eq!(whole.len(), 304);
        assert_eq!(whole[..4], 300_u32.to_le_bytes());
        every_cut(&sink, 8, &300_u64.to_le_bytes());
    }

    #[test]
    fn a_source_is_checked_at_every_byte_and_every_cut() {
        for bytes in [0, 1, 5, 300] {
            let source = Source::new(300, bytes, 7);
            let mut whole = Vec::new();
            for n in 0..300_u32 {
                whole.extend(bytes.to_le_bytes());
                whole.extend((0..bytes).map(|i| (n + i) as u8));
            }
            assert_eq!(source.answer_bytes(), whole.len() as u64);
            assert_eq!(source.messages_in(whole.len() as u64 - 1), 299);
            // The first and the last messages, and those where the numbers wrap.
            let len = 4 + bytes as usize;
            for message in [0, 1, 255, 256, 299] {
                for cut in message * len..(message + 1) * len {
                    assert!(source.matches(0, 0, cut as u64, &whole[cut..]), "{bytes} {cut}");
                    assert!(source.matches(0, 0, 0, &whole[..cut]), "{bytes} {cut}");
                    let mut wrong = whole[cut..].to_vec();
                    wrong[0] ^= 1;
                    assert!(!source.matches(0, 0, cut as u64, &wrong), "{bytes} {cut}");
                }
            }
        }
        assert_eq!(Source::new(1, 2, 3).request, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    }
}

//! [`BatchEncoder`]: a batch whose payloads arrive in pieces, and not in a request of Iggy's protocol.

use std::collections::TryReserveError;

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::message_layout::{
    MSG_ORIGIN_TIMESTAMP_OFFSET, MSG_PAYLOAD_LEN_OFFSET, WIRE_MESSAGE_HEADER_SIZE,
};
use owned_io::coop;

use super::Batch;

/// Encodes messages one behind the other, as a request to send has them. The server chooses their ids. Each byte of a
/// payload is copied once.
///
/// It allocates nothing but in [`make_room`](Self::make_room).
#[derive(Debug)]
pub struct BatchEncoder {
    messages: Vec<u8>,
    count: u32,
    /// Where the message begins that is not complete.
    begun_at: Option<usize>,
    /// Of all messages, in µs since 1970.
    origin_timestamp: u64,
}

impl BatchEncoder {
    /// Without messages. `origin_timestamp`: when they were sent, in µs since 1970.
    pub const fn new(origin_timestamp: u64) -> Self {
        Self { messages: Vec::new(), count: 0, begun_at: None, origin_timestamp }
    }

    /// The number of complete messages.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Whether a message has begun and is not complete.
    pub const fn is_within_message(&self) -> bool {
        self.begun_at.is_some()
    }

    /// The bytes that are encoded when `payload_bytes` more are [pushed](Self::push).
    pub const fn bytes_with(&self, payload_bytes: usize) -> usize {
        let header = if self.is_within_message() { 0 } else { WIRE_MESSAGE_HEADER_SIZE };
        self.messages.len().saturating_add(header).saturating_add(payload_bytes)
    }

    /// The bytes that there is room for.
    pub const fn capacity(&self) -> usize {
        self.messages.capacity()
    }

    /// Makes room for `bytes` bytes in all.
    ///
    /// # Errors
    /// The allocation failed.
    pub fn make_room(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        self.messages.try_reserve_exact(bytes.saturating_sub(self.messages.len()))
    }

    /// Appends to the payload of the message, and begins one if none has begun. There must be
    /// [room](Self::bytes_with).
    pub fn push(&mut self, payload: &[u8]) {
        debug_assert!(self.bytes_with(payload.len()) <= self.capacity(), "no room was made");
        if self.begun_at.is_none() {
            let begun_at = self.messages.len();
            self.begun_at = Some(begun_at);
            self.messages.resize(begun_at + WIRE_MESSAGE_HEADER_SIZE, 0);
            let origin_timestamp = self.origin_timestamp.to_le_bytes();
            self.write(begun_at + MSG_ORIGIN_TIMESTAMP_OFFSET, &origin_timestamp);
        }
        coop::consume(payload.len() as u64 / 8);
        self.messages.extend_from_slice(payload);
    }

    /// Completes the message, if one has begun.
    ///
    /// # Panics
    /// If its payload has 4 GiB.
    pub fn end_message(&mut self) {
        let Some(begun_at) = self.begun_at.take() else { return };
        let len = self.messages.len() - begun_at - WIRE_MESSAGE_HEADER_SIZE;
        let len = u32::try_from(len).expect("the limit on messages is less than 4 GiB");
        self.write(begun_at + MSG_PAYLOAD_LEN_OFFSET, &len.to_le_bytes());
        self.count += 1;
    }

    /// The batch, of complete messages. `None`: there is none. Room that was not needed is given back if it is more
    /// than a quarter of the messages.
    pub fn finish(mut self) -> Option<Batch> {
        self.end_message();
        if self.count == 0 {
            return None;
        }
        if self.messages.capacity() - self.messages.len() > self.messages.len() / 4 {
            self.messages.shrink_to_fit();
        }
        let request = BytesMut::from(Bytes::from(self.messages)); // does not copy
        Some(Batch { request, start: 0, count: self.count })
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.messages[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
    use iggy_binary_protocol::{WireIdentifier, WirePartitioning};

    use super::*;
    use crate::iggy::storage::Position;

    const PAYLOADS: [&[u8]; 4] = [b"one", b"2", b"three", &[7; 3_000]];

    fn encoded(payloads: &[&[u8]], piece: usize) -> BatchEncoder {
        let mut encoder = BatchEncoder::new(5);
        for payload in payloads {
            for piece in payload.chunks(piece) {
                encoder.make_room(encoder.bytes_with(piece.len())).unwrap();
                encoder.push(piece);
            }
            encoder.end_message();
        }
        encoder
    }

    /// The same batch, sent by a client of Iggy.
    fn sent(payloads: &[&[u8]]) -> Batch {
        let message = |payload| RawMessage { id: 0, origin_timestamp: 5, headers: None, payload };
        let messages: Vec<_> = payloads.iter().map(|payload| message(*payload)).collect();
        let (mut request, zero) = (BytesMut::new(), WireIdentifier::numeric(0));
        let to = WirePartitioning::Balanced;
        SendMessagesEncoder::encode(&mut request, &zero, &zero, &to, &messages);
        Batch::decode(request).unwrap().1
    }

    #[test]
    fn a_batch_is_the_same_as_one_that_a_client_of_iggy_sends() {
        let at = Position { base_offset: 40, timestamp: 9 };
        for piece in [1, 2, 7, 4_000] {
            let batch = encoded(&PAYLOADS, piece).finish().unwrap();
            let expected = sent(&PAYLOADS);
            assert_eq!((batch.count(), batch.bytes()), (expected.count(), expected.bytes()));
            assert_eq!(batch.stamp(at, 3), expected.stamp(at, 3), "in pieces of {piece}");
        }
        assert!(BatchEncoder::new(5).finish().is_none());
    }

    #[test]
    fn a_batch_is_not_copied_and_takes_no_more_than_a_quarter_of_spare_room() {
        for (room, memory_max) in [(5_000, 5_000), (3_400, 3_400), (100_000, 5_000)] {
            let mut encoder = BatchEncoder::new(5);
            encoder.make_room(room).unwrap();
            encoder.push(&[7; 3_000]);
            encoder.push(&[7; 100]);
            let at = encoder.messages.as_ptr();
            let batch = encoder.finish().unwrap();
            assert!(batch.memory_bytes() <= memory_max, "{}", batch.memory_bytes());
            assert_eq!(batch.bytes(), 64 + 3_100);
            if room == 3_400 {
                assert_eq!(batch.request.as_ptr(), at);
            }
        }
    }
}

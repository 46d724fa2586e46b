//! [`Batch`]: the messages of a batch.
//!
//! All batches have the same length. A message is told from all others by its id and by the number that its payload
//! begins with; both depend on the partition and on the message's place in it. The rest of the payload depends on the
//! place in the batch.

use std::ops::Range;

use iggy_binary_protocol::message_layout::{
    MSG_ID_OFFSET, MSG_OFFSET_OFFSET, MSG_ORIGIN_TIMESTAMP_OFFSET, MSG_PAYLOAD_LEN_OFFSET,
    MSG_RESERVED_OFFSET, MSG_TIMESTAMP_OFFSET, WIRE_MESSAGE_HEADER_SIZE,
};
use iggy_binary_protocol::requests::messages::RawMessage;

use super::super::exchange::{number, xorshift};

/// The length of a message's header.
pub(super) const HEADER_BYTES: usize = WIRE_MESSAGE_HEADER_SIZE;

/// The length of the number that a payload begins with.
const NUMBER_BYTES: usize = 8;

/// The payloads of a batch, without their numbers.
#[derive(Debug)]
pub(super) struct Batch {
    payloads: Vec<u8>,
    messages: usize,
    payload_bytes: usize,
}

/// What tells a message from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// What Iggy calls the id; never zero, for which the server would choose one.
    pub(super) id: [u8; 16],
    /// The first bytes of the payload.
    pub(super) number: [u8; NUMBER_BYTES],
}

impl Identity {
    /// Of message `n` of a partition.
    pub(super) fn of(partition: u32, n: u64) -> Self {
        let id = (u128::from(partition) + 1) << 64 | u128::from(n);
        Self { id: id.to_le_bytes(), number: number(partition, n).to_le_bytes() }
    }
}

impl Batch {
    /// `payload_bytes`: at least [`NUMBER_BYTES`].
    pub(super) fn new(messages: usize, payload_bytes: usize) -> Self {
        let len = messages * payload_bytes;
        let mut payloads = Vec::with_capacity(len + 8);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while payloads.len() < len {
            state = xorshift(state);
            payloads.extend_from_slice(&state.to_le_bytes());
        }
        payloads.truncate(len);
        Self { payloads, messages, payload_bytes }
    }

    pub(super) const fn messages(&self) -> usize {
        self.messages
    }

    /// The length of all messages with their headers.
    pub(super) const fn bytes(&self) -> usize {
        self.messages * self.message_bytes()
    }

    /// The length of a message with its header.
    pub(super) const fn message_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes
    }

    /// The messages as `iggy_binary_protocol` encodes them, without their identities.
    pub(super) fn raw(&self) -> Vec<RawMessage<'_>> {
        let raw = |payload| RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
        self.payloads.chunks(self.payload_bytes).map(raw).collect()
    }

    /// The messages of which something lies between two places of the batch.
    pub(super) fn touched(&self, begin: usize, end: usize) -> Range<usize> {
        let first = begin / self.message_bytes();
        let last = end.div_ceil(self.message_bytes());
        first.min(self.messages)..last.min(self.messages)
    }

    /// Whether `got`, which begins at a place of the batch and does not reach over its end, is what was sent. The batch is
    /// in a partition, from message `first` on.
    ///
    /// Of a message are compared: id, offset, origin timestamp, both lengths, the reserved bytes and the payload. The
    /// server chooses the timestamp and computes the checksum.
    pub(super) fn matches(&self, partition: u32, first: u64, place: usize, got: &[u8]) -> bool {
        self.touched(place, place + got.len()).all(|index| {
            let at = index * self.message_bytes();
            let begin = self.begin(partition, first + index as u64);
            let payload = &self.payloads[index * self.payload_bytes..][..self.payload_bytes];
            let (ids, lengths) = (MSG_ID_OFFSET, MSG_ORIGIN_TIMESTAMP_OFFSET);
            same(got, place, at + ids, &begin[ids..MSG_TIMESTAMP_OFFSET])
                && same(got, place, at + lengths, &begin[lengths..])
                && same(got, place, at + begin.len(), &payload[NUMBER_BYTES..])
        })
    }

    /// The header and the number of message `n` of a partition, as it is stored, without checksum and timestamp.
    fn begin(&self, partition: u32, n: u64) -> [u8; HEADER_BYTES + NUMBER_BYTES] {
        let Identity { id, number } = Identity::of(partition, n);
        let mut begin = [0; HEADER_BYTES + NUMBER_BYTES];
        begin[MSG_ID_OFFSET..MSG_OFFSET_OFFSET].copy_from_slice(&id);
        begin[MSG_OFFSET_OFFSET..MSG_TIMESTAMP_OFFSET].copy_from_slice(&n.to_le_bytes());
        let payload_bytes = self.payload_bytes as u32;
        begin[MSG_PAYLOAD_LEN_OFFSET..MSG_RESERVED_OFFSET]
            .copy_from_slice(&payload_bytes.to_le_bytes());
        begin[HEADER_BYTES..].copy_from_slice(&number);
        begin
    }
}

/// Whether `got`, which begins at `place`, has these bytes at `at`, as far as it reaches.
pub(super) fn same(got: &[u8], place: usize, at: usize, expected: &[u8]) -> bool {
    let (begin, end) = (at.max(place), (at + expected.len()).min(place + got.len()));
    begin >= end || got[begin - place..end - place] == expected[begin - at..end - at]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch as it is stored, from message `first` of partition 3 on.
    fn stored(batch: &Batch, first: u64) -> Vec<u8> {
        let mut stored = Vec::new();
        for (index, payload) in batch.payloads.chunks(batch.payload_bytes).enumerate() {
            let begin = batch.begin(3, first + index as u64);
            stored.extend_from_slice(&begin);
            stored.extend_from_slice(&payload[NUMBER_BYTES..]);
        }
        stored
    }

    #[test]
    fn every_byte_but_checksum_and_timestamp_is_checked_wherever_it_is_cut() {
        for payload_bytes in [8, 9, 30] {
            let batch = Batch::new(3, payload_bytes);
            let good = stored(&batch, 40);
            assert_eq!(good.len(), batch.bytes());
            for cut in 0..=good.len() {
                let (first, second) = good.split_at(cut);
                assert!(batch.matches(3, 40, 0, first) && batch.matches(3, 40, cut, second));
                let Some(byte) = second.first() else { continue };
                let mut wrong = second.to_vec();
                wrong[0] = byte ^ 1;
                let in_message = cut % batch.message_bytes();
                let is_free = in_message < MSG_ID_OFFSET
                    || (MSG_TIMESTAMP_OFFSET..MSG_ORIGIN_TIMESTAMP_OFFSET).contains(&in_message);
                assert_eq!(batch.matches(3, 40, cut, &wrong), is_free, "byte {cut}");
            }
            for (partition, first) in [(2, 40), (3, 39), (3, 41)] {
                assert!(!batch.matches(partition, first, 0, &good));
            }
        }
    }

    #[test]
    fn identities_differ_and_no_id_is_zero() {
        let of = |partition, n| Identity::of(partition, n);
        assert_ne!(of(0, 0).id, [0; 16]);
        for other in [of(0, 1), of(1, 0), of(1, 1)] {
            assert!(other.id != of(0, 0).id && other.number != of(0, 0).number);
        }
    }
}

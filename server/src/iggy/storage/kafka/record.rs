//! Records of Kafka: a message of Iggy as a record, and back.
//!
//! | Kafka | Iggy |
//! |---|---|
//! | value | payload; a record without a value has none |
//! | offset | offset |
//! | timestamp, in ms | timestamp, in µs |
//! | header [`ID`] | id: 16 bytes, big-endian |
//! | header [`ORIGIN_TIMESTAMP`] | origin timestamp: decimal, in µs; without it there is none |
//! | header [`USER_HEADERS`] | all user headers, as Iggy encodes them; without it there are none |
//! | key, other headers | not used, and need not be UTF-8 |
//!
//! A record of another producer has no id. It gets one that is the same for each read: its partition and its offset.

use std::panic::{AssertUnwindSafe, catch_unwind};

use iggy_binary_protocol::WireMessageView;
use iggy_binary_protocol::message_layout::{
    MSG_CHECKSUM_OFFSET, MSG_ID_OFFSET, MSG_OFFSET_OFFSET, MSG_ORIGIN_TIMESTAMP_OFFSET,
    MSG_PAYLOAD_LEN_OFFSET, MSG_TIMESTAMP_OFFSET, MSG_USER_HEADERS_LEN_OFFSET,
    WIRE_MESSAGE_HEADER_SIZE,
};
use rdkafka::Message;
use rdkafka::message::{Header, Headers, OwnedHeaders};
use twox_hash::XxHash3_64;

/// The header with the id.
pub const ID: &str = "iggy-id";
/// The header with the origin timestamp.
pub const ORIGIN_TIMESTAMP: &str = "iggy-origin-timestamp";
/// The header with the user headers.
pub const USER_HEADERS: &str = "iggy-user-headers";

/// The names and lengths of all headers, and the header of the record, in bytes, or more.
const RECORD_OVERHEAD_BYTES: usize = 160;

/// The bytes that a record takes of Kafka's limit, or a few more.
pub(super) fn record_bytes(message: &WireMessageView<'_>) -> usize {
    message.payload().len() + message.user_headers().len() + RECORD_OVERHEAD_BYTES
}

/// The headers of the record of a message.
pub(super) fn headers_of(message: &WireMessageView<'_>) -> OwnedHeaders {
    let id = message.id().to_be_bytes();
    let mut headers = OwnedHeaders::new_with_capacity(3);
    headers = headers.insert(Header { key: ID, value: Some(&id) });
    if message.origin_timestamp() != 0 {
        let origin = message.origin_timestamp().to_string();
        headers = headers.insert(Header { key: ORIGIN_TIMESTAMP, value: Some(&origin) });
    }
    if !message.user_headers().is_empty() {
        let user_headers = message.user_headers();
        headers = headers.insert(Header { key: USER_HEADERS, value: Some(user_headers) });
    }
    headers
}

/// A record as a stored message.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) offset: u64,
    /// µs since 1970.
    pub(super) timestamp: u64,
    /// The message as Iggy has it.
    pub(super) bytes: Vec<u8>,
}

/// Decodes a record.
pub(super) fn decode(record: &impl Message) -> Decoded {
    let offset = u64::try_from(record.offset()).unwrap_or(0);
    let millis = record.timestamp().to_millis().unwrap_or(0);
    let timestamp = u64::try_from(millis).unwrap_or(0).saturating_mul(1_000);
    let (mut id, mut origin, mut user_headers) = (None, 0, &[][..]);
    for header in record.headers().into_iter().flat_map(readable) {
        match (header.key, header.value) {
            (ID, Some(value)) => id = value.try_into().ok().map(u128::from_be_bytes),
            (ORIGIN_TIMESTAMP, Some(value)) => {
                let text = str::from_utf8(value).ok();
                origin = text.and_then(|text| text.parse().ok()).unwrap_or(0_u64);
            }
            (USER_HEADERS, Some(value)) => user_headers = value,
            _ => {}
        }
    }
    let of_place = || u128::from(record.partition() as u32) << 64 | u128::from(offset + 1);
    let id = id.unwrap_or_else(of_place);
    let payload = record.payload().unwrap_or_default();
    let mut bytes =
        Vec::with_capacity(WIRE_MESSAGE_HEADER_SIZE + payload.len() + user_headers.len());
    bytes.resize(WIRE_MESSAGE_HEADER_SIZE, 0);
    let mut write = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    write(MSG_ID_OFFSET, &id.to_le_bytes());
    write(MSG_OFFSET_OFFSET, &offset.to_le_bytes());
    write(MSG_TIMESTAMP_OFFSET, &timestamp.to_le_bytes());
    write(MSG_ORIGIN_TIMESTAMP_OFFSET, &origin.to_le_bytes());
    write(MSG_USER_HEADERS_LEN_OFFSET, &(user_headers.len() as u32).to_le_bytes());
    write(MSG_PAYLOAD_LEN_OFFSET, &(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(user_headers);
    let checksum = XxHash3_64::oneshot(&bytes[MSG_ID_OFFSET..]).to_le_bytes();
    bytes[MSG_CHECKSUM_OFFSET..MSG_ID_OFFSET].copy_from_slice(&checksum);
    Decoded { offset, timestamp, bytes }
}

/// The headers whose keys are UTF-8, as those of this server are. The crate `rdkafka` panics at any other key, which
/// Kafka allows.
fn readable<H: Headers>(headers: &H) -> impl Iterator<Item = Header<'_, &[u8]>> {
    // It only reads, so that nothing is half done afterwards.
    let try_get = |n| catch_unwind(AssertUnwindSafe(|| headers.try_get(n))).ok().flatten();
    (0..headers.count()).filter_map(try_get)
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::{WireMessageIterator, WirePartitioning};
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    use super::*;
    use crate::iggy::messages::Batch;
    use crate::iggy::messages::tests::request;
    use crate::iggy::storage::Position;

    fn record(payload: Option<&[u8]>, headers: Option<OwnedHeaders>) -> OwnedMessage {
        let payload = payload.map(<[u8]>::to_vec);
        let timestamp = Timestamp::CreateTime(9);
        OwnedMessage::new(payload, None, "s.t".to_owned(), timestamp, 3, 40, headers)
    }

    #[test]
    fn a_message_is_the_same_after_it_was_a_record() {
        let request = request(&[b"one", b"", b"three"], &WirePartitioning::Balanced);
        let batch = Batch::decode(request).unwrap().1;
        let stored = batch.stamp(Position { base_offset: 40, timestamp: 9_000 }, 5);
        let mut count = 0;
        for (n, message) in WireMessageIterator::new(&stored, 3).map(Result::unwrap).enumerate() {
            let headers = headers_of(&message);
            let decoded = decode(&record(Some(message.payload()), Some(headers)));
            assert_eq!((decoded.offset, decoded.timestamp), (40, 9_000));
            let view = WireMessageIterator::new(&decoded.bytes, 1).next().unwrap().unwrap();
            assert_eq!(view.id(), message.id());
            assert_eq!((view.origin_timestamp(), view.payload()), (5, message.payload()));
            assert_eq!(view.user_headers(), message.user_headers());
            if n == 0 {
                assert_eq!(view.as_bytes(), message.as_bytes(), "the same offset and checksum");
            }
            count += 1;
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn a_record_of_another_producer_is_a_message() {
        let odd = OwnedHeaders::new()
            .insert(Header { key: ID, value: Some("short") })
            .insert(Header { key: ORIGIN_TIMESTAMP, value: Some("yesterday") })
            .insert(Header::<&str> { key: USER_HEADERS, value: None });
        for (payload, headers) in [(Some(&b"x"[..]), None), (None, None), (Some(b"x"), Some(odd))] {
            let decoded = decode(&record(payload, headers));
            let view = WireMessageIterator::new(&decoded.bytes, 1).next().unwrap().unwrap();
            assert_eq!(view.id(), 3 << 64 | 41);
            assert_eq!(view.payload(), payload.unwrap_or_default());
            assert_eq!((view.origin_timestamp(), view.user_headers()), (0, &[][..]));
        }
    }
}

//! [`Batch`]: the messages of one request to send, checked and stamped where they are.
//!
//! ```text
//! request   [length u32 of what follows, up to the index]
//!           [stream][topic][partitioning][count u32]
//!           [index: count × 16 bytes; bytes 4 to 8: where the message ends]
//!           [message][message]…
//! message   [checksum u64][id u128][offset u64][timestamp u64][origin timestamp u64]
//!           [length of user headers u32][length of payload u32][reserved u64]
//!           [payload][user headers]
//! ```
//!
//! The messages are stored with offset, timestamp and checksum filled in, and leave as they are stored. None is copied.
//!
//! A batch of a [`BatchEncoder`] has messages alone.

mod encoder;

use bytes::{Bytes, BytesMut};
pub use encoder::BatchEncoder;
use iggy_binary_protocol::WireDecode;
use iggy_binary_protocol::codec::read_u32_le;
use iggy_binary_protocol::message_layout::{
    MSG_CHECKSUM_OFFSET, MSG_ID_OFFSET, MSG_OFFSET_OFFSET, MSG_PAYLOAD_LEN_OFFSET,
    MSG_TIMESTAMP_OFFSET, MSG_USER_HEADERS_LEN_OFFSET, WIRE_MESSAGE_HEADER_SIZE,
    WIRE_MESSAGE_INDEX_SIZE,
};
use iggy_binary_protocol::requests::messages::SendMessagesHeader;
use owned_io::coop;
use twox_hash::XxHash3_64;

use super::Status;
use super::storage::Position;

/// The most messages of a batch. It is checked and stamped without a yield in between, so it may not have any number.
pub const MESSAGES_MAX: u32 = 65_536;

/// The work of stepping over a message, in nanoseconds: a few loads, of which one misses the cache.
const STEP_NANOS: u64 = 5;

/// The longest user headers of a message, in bytes, as Iggy's server has it.
pub const USER_HEADERS_BYTES_MAX: usize = 100_000;

/// The messages of one request to send. There is at least one.
#[derive(Debug)]
pub struct Batch {
    /// The whole request, or the messages alone. The messages begin at `start`.
    request: BytesMut,
    start: usize,
    count: u32,
}

impl Batch {
    /// Decodes and checks a request to send. Returns where to, and the messages.
    ///
    /// # Errors
    /// The request is cut, its lengths or its index contradict each other, or there are no messages or too many.
    pub fn decode(request: BytesMut) -> Result<(SendMessagesHeader, Self), Status> {
        let head_len = read_u32_le(&request, 0)? as usize;
        let head = request[4..].get(..head_len).ok_or(Status::InvalidCommand)?;
        let (head, decoded) = SendMessagesHeader::decode(head)?;
        if decoded != head_len {
            return Err(Status::InvalidFormat);
        }
        let count = head.messages_count;
        if count == 0 || count > MESSAGES_MAX {
            return Err(Status::InvalidMessagesCount);
        }
        let index_start = 4 + head_len;
        let start = index_start + count as usize * WIRE_MESSAGE_INDEX_SIZE;
        let index = request.get(index_start..start).ok_or(Status::InvalidMessagesCount)?;
        coop::consume(u64::from(count) * 10);
        check(index, &request[start..])?;
        Ok((head, Self { request, start, count }))
    }

    /// The number of messages.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The length of the messages, in bytes.
    pub fn bytes(&self) -> usize {
        self.request.len() - self.start
    }

    /// The length of the payloads, in bytes, if no message has user headers.
    pub fn payload_bytes(&self) -> usize {
        self.bytes() - self.count as usize * WIRE_MESSAGE_HEADER_SIZE
    }

    /// The bytes of memory that it takes. The messages take as many when they are stored.
    pub fn memory_bytes(&self) -> usize {
        self.request.capacity()
    }

    /// Writes offset, timestamp, and checksum into each message, and an id into those without one: `id` and the numbers
    /// behind it. Returns the messages as they are to be stored.
    #[must_use]
    pub fn stamp(mut self, at: Position, id: u128) -> Bytes {
        coop::consume(u64::from(self.count) * 30 + self.bytes() as u64 / 8);
        let mut rest = &mut self.request[self.start..];
        for n in 0..self.count {
            let len = message_len(rest).expect("checked when it was decoded");
            let message;
            (message, rest) = rest.split_at_mut(len);
            let mut write =
                |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
            write(MSG_OFFSET_OFFSET, &(at.base_offset + u64::from(n)).to_le_bytes());
            write(MSG_TIMESTAMP_OFFSET, &at.timestamp.to_le_bytes());
            if message[MSG_ID_OFFSET..MSG_OFFSET_OFFSET] == [0; 16] {
                let id = id.wrapping_add(n.into()).max(1).to_le_bytes();
                message[MSG_ID_OFFSET..MSG_OFFSET_OFFSET].copy_from_slice(&id);
            }
            let checksum = XxHash3_64::oneshot(&message[MSG_ID_OFFSET..]).to_le_bytes();
            message[MSG_CHECKSUM_OFFSET..MSG_ID_OFFSET].copy_from_slice(&checksum);
        }
        self.request.freeze().slice(self.start..)
    }
}

/// The part of stored messages that begins behind the first `skip` and has at most `take`, and how many it has. `count`:
/// how many there are.
///
/// # Errors
/// They are damaged.
pub fn part(messages: &Bytes, count: u32, skip: u32, take: u32) -> Result<(Bytes, u32), Status> {
    let taken = take.min(count.saturating_sub(skip));
    let walk = |from: usize, messages_count: u32| -> Result<usize, Status> {
        let mut at = from;
        for _ in 0..messages_count {
            at += messages.get(at..).and_then(message_len).ok_or(Status::CannotReadMessage)?;
        }
        Ok(at)
    };
    let (skipped, is_rest) = (skip.min(count), skip.saturating_add(taken) >= count);
    let steps = u64::from(skipped) + if is_rest { 0 } else { u64::from(taken) };
    coop::consume(steps * STEP_NANOS);
    let start = walk(0, skipped)?;
    let end = if is_rest { messages.len() } else { walk(start, taken)? };
    Ok((messages.slice(start..end), taken))
}

/// Checks that the messages are as long as `index` says, and nothing is behind them.
fn check(index: &[u8], messages: &[u8]) -> Result<(), Status> {
    let mut end = 0;
    for entry in index.chunks_exact(WIRE_MESSAGE_INDEX_SIZE) {
        let message = &messages[end..];
        let len = message_len(message).ok_or(Status::InvalidMessagesSize)?;
        if read_u32_le(message, MSG_USER_HEADERS_LEN_OFFSET)? as usize > USER_HEADERS_BYTES_MAX {
            return Err(Status::TooBigUserHeaders);
        }
        end += len;
        if read_u32_le(entry, 4)? as usize != end {
            return Err(Status::InvalidIndexesCount);
        }
    }
    if end == messages.len() { Ok(()) } else { Err(Status::InvalidMessagesSize) }
}

/// The length of the first message. None if it is cut.
fn message_len(messages: &[u8]) -> Option<usize> {
    let header = messages.first_chunk::<WIRE_MESSAGE_HEADER_SIZE>()?;
    let field = |at: usize| read_u32_le(header, at).ok().map(|len| len as usize);
    let len = WIRE_MESSAGE_HEADER_SIZE
        .checked_add(field(MSG_USER_HEADERS_LEN_OFFSET)?)?
        .checked_add(field(MSG_PAYLOAD_LEN_OFFSET)?)?;
    (len <= messages.len()).then_some(len)
}

#[cfg(test)]
pub(super) mod tests {
    use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
    use iggy_binary_protocol::{
        WireIdentifier, WireMessageIterator, WireMessageView, WirePartitioning,
    };

    use super::*;

    /// A request to send these payloads, the second message with user headers.
    pub(in crate::iggy) fn request(
        payloads: &[&[u8]],
        partitioning: &WirePartitioning,
    ) -> BytesMut {
        let messages: Vec<_> = payloads
            .iter()
            .enumerate()
            .map(|(n, payload)| RawMessage {
                id: if n == 2 { 77 } else { 0 },
                origin_timestamp: 5,
                headers: (n == 1).then_some(&b"headers"[..]),
                payload,
            })
            .collect();
        let mut request = BytesMut::new();
        let zero = WireIdentifier::numeric(0);
        SendMessagesEncoder::encode(&mut request, &zero, &zero, partitioning, &messages);
        request
    }

    const PAYLOADS: [&[u8]; 4] = [b"one", b"", b"three", &[7; 3_000]];

    #[test]
    fn messages_are_stamped_where_they_are() {
        let (head, batch) = Batch::decode(request(&PAYLOADS, &WirePartitioning::Balanced)).unwrap();
        assert_eq!((head.messages_count, batch.count()), (4, 4));
        let before = batch.request[batch.start..].as_ptr();
        let stored = batch.stamp(Position { base_offset: 40, timestamp: 9 }, u128::MAX);
        assert_eq!(stored.as_ptr(), before, "they were copied");
        let views: Vec<WireMessageView<'_>> =
            WireMessageIterator::new(&stored, 4).map(Result::unwrap).collect();
        for (n, (view, payload)) in views.iter().zip(PAYLOADS).enumerate() {
            assert_eq!(view.payload(), payload);
            assert_eq!((view.offset(), view.timestamp()), (40 + n as u64, 9));
            assert_eq!(view.origin_timestamp(), 5);
            assert_eq!(view.checksum(), XxHash3_64::oneshot(&view.as_bytes()[8..]));
        }
        assert_eq!(
            views.iter().map(WireMessageView::id).collect::<Vec<_>>(),
            [u128::MAX, 1, 77, 2]
        );
        assert_eq!(views[1].user_headers(), b"headers");
    }

    #[test]
    fn parts_of_a_batch_are_whole_messages() {
        let (_, batch) = Batch::decode(request(&PAYLOADS, &WirePartitioning::Balanced)).unwrap();
        let stored = batch.stamp(Position { base_offset: 0, timestamp: 1 }, 1);
        for skip in 0..6 {
            for take in 0..6 {
                let (bytes, taken) = part(&stored, 4, skip, take).unwrap();
                assert_eq!(taken, take.min(4_u32.saturating_sub(skip)));
                let mut views = WireMessageIterator::new(&bytes, taken).map(Result::unwrap);
                let offsets: Vec<_> = views.by_ref().map(|view| view.offset()).collect();
                assert_eq!(offsets, (skip..skip + taken).map(u64::from).collect::<Vec<_>>());
                let len: usize = PAYLOADS[skip.min(4) as usize..][..taken as usize]
                    .iter()
                    .map(|payload| 64 + payload.len() + if payload.is_empty() { 7 } else { 0 })
                    .sum();
                assert_eq!(bytes.len(), len);
            }
        }
        assert_eq!(part(&stored.slice(..70), 4, 2, 1), Err(Status::CannotReadMessage));
    }

    #[test]
    fn requests_that_lie_are_refused() {
        let good = request(&PAYLOADS, &WirePartitioning::Balanced);
        for len in 0..good.len() {
            assert!(Batch::decode(good[..len].into()).is_err(), "cut at {len}");
        }
        let head_len = 4 + read_u32_le(&good, 0).unwrap() as usize;
        let changed = |at: usize, bytes: &[u8]| {
            let mut request = good.clone();
            request[at..at + bytes.len()].copy_from_slice(bytes);
            Batch::decode(request).map(drop).unwrap_err()
        };
        for (count, status) in [
            (0_u32, Status::InvalidMessagesCount),
            (1, Status::InvalidMessagesSize),
            (3, Status::InvalidMessagesSize),
            (5, Status::InvalidMessagesSize),
            (60_000, Status::InvalidMessagesCount),
            (u32::MAX, Status::InvalidMessagesCount),
        ] {
            let refused = changed(head_len - 4, &count.to_le_bytes());
            assert!(refused == status || refused == Status::InvalidIndexesCount, "{refused}");
        }
        // The length of the head, an entry of the index, and the lengths of the first message.
        assert_eq!(changed(0, &u32::MAX.to_le_bytes()), Status::InvalidCommand);
        assert_eq!(changed(0, &(head_len as u32).to_le_bytes()), Status::InvalidFormat);
        assert_eq!(changed(head_len + 4, &[66]), Status::InvalidIndexesCount);
        let first = head_len + 4 * WIRE_MESSAGE_INDEX_SIZE;
        for at in [MSG_PAYLOAD_LEN_OFFSET, MSG_USER_HEADERS_LEN_OFFSET] {
            let refused = changed(first + at, &u32::MAX.to_le_bytes());
            assert_eq!(refused, Status::InvalidMessagesSize);
            assert_eq!(changed(first + at, &[9]), Status::InvalidIndexesCount);
        }
        let mut trailing = good.clone();
        trailing.extend_from_slice(b"x");
        assert_eq!(Batch::decode(trailing).unwrap_err(), Status::InvalidMessagesSize);
        let headers = vec![1; USER_HEADERS_BYTES_MAX + 1];
        let message =
            RawMessage { id: 0, origin_timestamp: 0, headers: Some(&headers), payload: b"x" };
        let (mut request, zero) = (BytesMut::new(), WireIdentifier::numeric(0));
        SendMessagesEncoder::encode(
            &mut request,
            &zero,
            &zero,
            &WirePartitioning::Balanced,
            &[message],
        );
        assert_eq!(Batch::decode(request).unwrap_err(), Status::TooBigUserHeaders);
    }
}

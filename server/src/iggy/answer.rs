//! [`Answer`]: what a request is answered, and its bytes.

use bytes::{BufMut, Bytes, BytesMut};
use iggy_binary_protocol::responses::consumer_groups::ConsumerGroupResponse;
use iggy_binary_protocol::responses::streams::{StreamResponse, TopicHeader};
use iggy_binary_protocol::responses::topics::PartitionResponse;
use iggy_binary_protocol::{STATUS_OK, WireEncode, WireName};

use super::catalogue::{Partition, Stream, Topic};
use super::storage::{Offsets, Size};
use super::{Name, Status};

/// Pieces up to this length, in bytes, are copied into one buffer. That is cheaper than a vectored write with a piece
/// for each.
const COPIED_BYTES_MAX: usize = 1024;

/// The payload of an answer, in pieces.
#[derive(Debug, Default)]
pub struct Answer {
    pieces: Vec<Bytes>,
    len: usize,
    messages: u32,
    room_needed: Option<RoomNeeded>,
}

/// What a command needs that has no room for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomNeeded {
    /// The partition that a poll is to name when it is repeated: it was the turn of this one.
    pub partition: Option<u32>,
    /// The bytes of the batch, or of the list.
    pub bytes: usize,
}

impl Answer {
    /// The answer that says no more than that all is well, or that there is nothing.
    pub fn empty() -> Self {
        Self::default()
    }

    /// An answer of one response.
    pub fn of(response: &impl WireEncode) -> Self {
        let mut answer = Self::default();
        answer.push(response.to_bytes());
        answer
    }

    /// An answer of responses one behind the other.
    pub fn list<T: WireEncode>(responses: impl IntoIterator<Item = T>) -> Self {
        let mut bytes = BytesMut::new();
        responses.into_iter().for_each(|response| response.encode(&mut bytes));
        let mut answer = Self::default();
        answer.push(bytes.freeze());
        answer
    }

    /// The answer, if it has at most `bytes_max` bytes. Otherwise the room that it needs.
    #[must_use]
    pub fn within(self, bytes_max: usize) -> Self {
        if self.len <= bytes_max {
            return self;
        }
        Self::needs(RoomNeeded { partition: None, bytes: self.len })
    }

    /// No answer: the command is to be repeated with more room.
    pub fn needs(room: RoomNeeded) -> Self {
        Self { room_needed: Some(room), ..Self::default() }
    }

    /// The room that is needed for an answer, if this is none.
    pub const fn room_needed(&self) -> Option<RoomNeeded> {
        self.room_needed
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        self.pieces.push(piece);
    }

    /// Counts messages that the payload has.
    pub const fn count_messages(&mut self, messages: u32) {
        self.messages += messages;
    }

    /// The messages of the payload, if it answers a poll.
    pub const fn messages(&self) -> u32 {
        self.messages
    }

    /// The length of the payload, in bytes.
    pub const fn bytes(&self) -> usize {
        self.len
    }

    /// The answer as it is sent: in few pieces, of which the first begins with the status and the length.
    pub fn into_pieces(self) -> Vec<Bytes> {
        let Ok(len) = u32::try_from(self.len) else { return error(Status::InvalidSizeBytes) };
        let mut copied = header(STATUS_OK, len);
        let mut out = Vec::new();
        for piece in self.pieces {
            if piece.len() <= COPIED_BYTES_MAX {
                copied.extend_from_slice(&piece);
                continue;
            }
            if !copied.is_empty() {
                out.push(copied.split().freeze());
            }
            out.push(piece);
        }
        if !copied.is_empty() {
            out.push(copied.freeze());
        }
        out
    }
}

/// The answer to a request that is refused, as it is sent.
pub fn error(status: Status) -> Vec<Bytes> {
    vec![header(status.code().get(), 0).freeze()]
}

fn header(status: u32, len: u32) -> BytesMut {
    let mut header = BytesMut::with_capacity(64);
    header.put_u32_le(status);
    header.put_u32_le(len);
    header
}

/// How many messages there are, and how long they are. Adds up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that they are in.
    pub segments: u32,
}

impl Totals {
    /// Of one log.
    pub const fn new(offsets: Offsets, size: Size) -> Self {
        let messages = offsets.next.saturating_sub(offsets.first);
        Self { messages, bytes: size.bytes, segments: size.segments }
    }
}

impl std::iter::Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, next| Self {
            messages: sum.messages + next.messages,
            bytes: sum.bytes + next.bytes,
            segments: sum.segments.saturating_add(next.segments),
        })
    }
}

/// A stream, as the protocol tells it.
pub fn stream(id: u32, stream: &Stream, totals: Totals) -> StreamResponse {
    StreamResponse {
        id,
        created_at: stream.created_at,
        topics_count: stream.topics().len() as u32,
        size_bytes: totals.bytes,
        messages_count: totals.messages,
        name: name(&stream.name),
    }
}

/// A topic, as the protocol tells it.
pub fn topic(id: u32, topic: &Topic, totals: Totals) -> TopicHeader {
    TopicHeader {
        id,
        created_at: topic.created_at,
        partitions_count: topic.partitions().len() as u32,
        message_expiry: topic.settings.message_expiry,
        compression_algorithm: topic.settings.compression_algorithm,
        max_topic_size: topic.settings.size_max,
        replication_factor: topic.settings.replication_factor,
        size_bytes: totals.bytes,
        messages_count: totals.messages,
        name: name(&topic.name),
    }
}

/// A partition, as the protocol tells it.
pub const fn partition(
    id: u32,
    partition: &Partition,
    offsets: Offsets,
    size: Size,
) -> PartitionResponse {
    let Totals { messages, bytes, segments } = Totals::new(offsets, size);
    PartitionResponse {
        id,
        created_at: partition.created_at,
        segments_count: segments,
        current_offset: offsets.next.saturating_sub(1),
        size_bytes: bytes,
        messages_count: messages,
    }
}

/// A consumer group, as the protocol tells it.
pub fn group(id: u32, group: &Name, topic: &Topic, members: usize) -> ConsumerGroupResponse {
    ConsumerGroupResponse {
        id,
        partitions_count: topic.partitions().len() as u32,
        members_count: members as u32,
        name: name(group),
    }
}

fn name(name: &Name) -> WireName {
    WireName::new(name.as_str()).expect("a name is as long as the protocol allows")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pieces_are_gathered_and_long_ones_are_not_copied() {
        let long = Bytes::from(vec![1; COPIED_BYTES_MAX + 1]);
        let short = Bytes::from_static(b"short");
        let mut answer = Answer::empty();
        for piece in [&short, &short, &long, &long, &short] {
            answer.push(piece.clone());
        }
        let pieces = answer.into_pieces();
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces[0], [&[0, 0, 0, 0, 0x11, 8, 0, 0][..], b"shortshort"].concat());
        assert_eq!((pieces[1].as_ptr(), pieces[2].as_ptr()), (long.as_ptr(), long.as_ptr()));
        assert_eq!(pieces[3], short);
        assert_eq!(Answer::empty().into_pieces(), [Bytes::from_static(&[0; 8])]);
        assert_eq!(error(Status::InvalidOffset), [Bytes::from_static(&[4, 16, 0, 0, 0, 0, 0, 0])]);
    }
}

//! [`Record`]: one change of the catalogue, and its bytes in a journal.

use std::error::Error;
use std::fmt;

use super::{Consumer, GroupId, LogId, TopicId, TopicSettings};
use crate::iggy::Name;

/// One change of a [`Catalogue`](super::Catalogue).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the catalogue's methods and types")]
pub enum Record {
    StreamCreated {
        stream: u32,
        created_at: u64,
        name: Name,
    },
    StreamRenamed {
        stream: u32,
        name: Name,
    },
    StreamDeleted {
        stream: u32,
    },
    /// The logs of the partitions are `log` and the numbers behind it.
    TopicCreated {
        at: TopicId,
        created_at: u64,
        settings: TopicSettings,
        log: LogId,
        partitions: u32,
        name: Name,
    },
    TopicUpdated {
        at: TopicId,
        settings: TopicSettings,
        name: Name,
    },
    TopicDeleted {
        at: TopicId,
    },
    /// The stored offsets of the topic are gone.
    TopicPurged {
        at: TopicId,
    },
    /// Their logs are `log` and the numbers behind it.
    PartitionsAdded {
        at: TopicId,
        created_at: u64,
        log: LogId,
        count: u32,
    },
    PartitionsRemoved {
        at: TopicId,
        count: u32,
    },
    GroupCreated {
        at: GroupId,
        name: Name,
    },
    GroupDeleted {
        at: GroupId,
    },
    OffsetStored {
        at: TopicId,
        partition: u32,
        consumer: Consumer,
        offset: u64,
    },
    OffsetDeleted {
        at: TopicId,
        partition: u32,
        consumer: Consumer,
    },
    /// In snapshots: numbers up to these have been used, in the whole catalogue.
    NextStream {
        stream: u32,
        log: LogId,
    },
    /// In snapshots: topics up to this one have been used in the stream.
    NextTopic {
        at: TopicId,
    },
    /// In snapshots: groups up to this one have been used in the topic.
    NextGroup {
        at: GroupId,
    },
}

/// Why bytes are no record, or a record does not fit the catalogue. The journal is damaged, or a newer server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// It ends too early.
    Truncated,
    /// There are bytes behind its end.
    Trailing,
    /// It has a kind that this server does not know.
    UnknownKind(u8),
    /// It has a name that is no [`Name`].
    BadName,
    /// It does not fit the records before it: what it is about is missing, or is there already.
    OutOfOrder,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("a record ends too early"),
            Self::Trailing => f.write_str("a record has bytes behind its end"),
            Self::UnknownKind(kind) => {
                write!(f, "there is no record of kind {kind}: a newer server may have written it")
            }
            Self::BadName => f.write_str("a record has a name that is not allowed"),
            Self::OutOfOrder => f.write_str("a record does not fit those before it"),
        }
    }
}

impl Error for RecordError {}

impl Record {
    /// Appends its bytes to `out`: the kind, and its fields in the order of their declaration, little-endian. A name
    /// is the last field, and as long as the rest.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::StreamCreated { stream, created_at, name } => {
                Writer(out).u8(1).u32(*stream).u64(*created_at).name(name);
            }
            Self::StreamRenamed { stream, name } => Writer(out).u8(2).u32(*stream).name(name),
            Self::StreamDeleted { stream } => drop(Writer(out).u8(3).u32(*stream)),
            Self::TopicCreated { at, created_at, settings, log, partitions, name } => {
                let out = Writer(out).u8(4).topic(*at).u64(*created_at).settings(*settings);
                out.u64(log.0).u32(*partitions).name(name);
            }
            Self::TopicUpdated { at, settings, name } => {
                Writer(out).u8(5).topic(*at).settings(*settings).name(name);
            }
            Self::TopicDeleted { at } => drop(Writer(out).u8(6).topic(*at)),
            Self::TopicPurged { at } => drop(Writer(out).u8(7).topic(*at)),
            Self::PartitionsAdded { at, created_at, log, count } => {
                Writer(out).u8(8).topic(*at).u64(*created_at).u64(log.0).u32(*count);
            }
            Self::PartitionsRemoved { at, count } => drop(Writer(out).u8(9).topic(*at).u32(*count)),
            Self::GroupCreated { at, name } => Writer(out).u8(10).group(*at).name(name),
            Self::GroupDeleted { at } => drop(Writer(out).u8(11).group(*at)),
            Self::OffsetStored { at, partition, consumer, offset } => {
                Writer(out).u8(12).topic(*at).u32(*partition).consumer(*consumer).u64(*offset);
            }
            Self::OffsetDeleted { at, partition, consumer } => {
                Writer(out).u8(13).topic(*at).u32(*partition).consumer(*consumer);
            }
            Self::NextStream { stream, log } => drop(Writer(out).u8(14).u32(*stream).u64(log.0)),
            Self::NextTopic { at } => drop(Writer(out).u8(15).topic(*at)),
            Self::NextGroup { at } => drop(Writer(out).u8(16).group(*at)),
        }
    }

    /// Its bytes, for a journal.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// The record that `bytes` are.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader(bytes);
        let record = match from.u8()? {
            1 => Self::StreamCreated {
                stream: from.u32()?,
                created_at: from.u64()?,
                name: from.name()?,
            },
            2 => Self::StreamRenamed { stream: from.u32()?, name: from.name()? },
            3 => Self::StreamDeleted { stream: from.u32()? },
            4 => Self::TopicCreated {
                at: from.topic()?,
                created_at: from.u64()?,
                settings: from.settings()?,
                log: LogId(from.u64()?),
                partitions: from.u32()?,
                name: from.name()?,
            },
            5 => Self::TopicUpdated {
                at: from.topic()?,
                settings: from.settings()?,
                name: from.name()?,
            },
            6 => Self::TopicDeleted { at: from.topic()? },
            7 => Self::TopicPurged { at: from.topic()? },
            8 => Self::PartitionsAdded {
                at: from.topic()?,
                created_at: from.u64()?,
                log: LogId(from.u64()?),
                count: from.u32()?,
            },
            9 => Self::PartitionsRemoved { at: from.topic()?, count: from.u32()? },
            10 => Self::GroupCreated { at: from.group()?, name: from.name()? },
            11 => Self::GroupDeleted { at: from.group()? },
            12 => Self::OffsetStored {
                at: from.topic()?,
                partition: from.u32()?,
                consumer: from.consumer()?,
                offset: from.u64()?,
            },
            13 => Self::OffsetDeleted {
                at: from.topic()?,
                partition: from.u32()?,
                consumer: from.consumer()?,
            },
            14 => Self::NextStream { stream: from.u32()?, log: LogId(from.u64()?) },
            15 => Self::NextTopic { at: from.topic()? },
            16 => Self::NextGroup { at: from.group()? },
            kind => return Err(RecordError::UnknownKind(kind)),
        };
        if from.0.is_empty() { Ok(record) } else { Err(RecordError::Trailing) }
    }
}

/// Appends fields.
struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn bytes(self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(self, number: u8) -> Self {
        self.bytes(&[number])
    }

    fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u64(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn topic(self, TopicId { stream, topic }: TopicId) -> Self {
        self.u32(stream).u32(topic)
    }

    fn group(self, GroupId { at, group }: GroupId) -> Self {
        self.topic(at).u32(group)
    }

    fn consumer(self, consumer: Consumer) -> Self {
        match consumer {
            Consumer::Single(number) => self.u8(1).u32(number),
            Consumer::Group(number) => self.u8(2).u32(number),
        }
    }

    fn settings(self, settings: TopicSettings) -> Self {
        let TopicSettings { compression_algorithm, message_expiry, size_max, replication_factor } =
            settings;
        self.u8(compression_algorithm).u64(message_expiry).u64(size_max).u8(replication_factor)
    }

    fn name(self, name: &Name) {
        let _ = self.bytes(name.as_str().as_bytes());
    }
}

/// Takes fields from the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(RecordError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, RecordError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn topic(&mut self) -> Result<TopicId, RecordError> {
        Ok(TopicId { stream: self.u32()?, topic: self.u32()? })
    }

    fn group(&mut self) -> Result<GroupId, RecordError> {
        Ok(GroupId { at: self.topic()?, group: self.u32()? })
    }

    fn consumer(&mut self) -> Result<Consumer, RecordError> {
        match self.u8()? {
            1 => Ok(Consumer::Single(self.u32()?)),
            2 => Ok(Consumer::Group(self.u32()?)),
            kind => Err(RecordError::UnknownKind(kind)),
        }
    }

    fn settings(&mut self) -> Result<TopicSettings, RecordError> {
        Ok(TopicSettings {
            compression_algorithm: self.u8()?,
            message_expiry: self.u64()?,
            size_max: self.u64()?,
            replication_factor: self.u8()?,
        })
    }

    fn name(&mut self) -> Result<Name, RecordError> {
        let name = std::str::from_utf8(std::mem::take(&mut self.0)).ok();
        name.and_then(Name::new).ok_or(RecordError::BadName)
    }
}

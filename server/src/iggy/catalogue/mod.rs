//! [`Catalogue`]: which streams, topics, partitions and consumer groups there are, and the offsets that consumers have
//! stored.
//!
//! A pure state machine. A method that asks for a change checks it and returns a [`Record`], and changes nothing;
//! [`apply`](Catalogue::apply) makes the change. So a journal can store each record before it counts, and replaying
//! the records gives the same state. [`to_bytes`](Catalogue::to_bytes) is a shorter list of records for the same state.
//!
//! # Numbers
//! Streams are numbered from 0, topics in their stream too, and consumer groups in their topic. A number is never used
//! again. Partitions of a topic are 0, 1, 2, …; only the last ones can be removed, so their numbers are used again. A
//! [`LogId`] tells such partitions apart, because it is never used again.
//!
//! A catalogue that is [numbered by name](Catalogue::numbered_by_name) is of topics that several servers share. The number
//! of a stream or a topic is made of its name, so that it is the same on each server, and after a restart.
//!
//! # Limits
//! | of | at most | why |
//! |---|---|---|
//! | a name | [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX) bytes | its length field |
//! | streams | [`STREAMS_MAX`] | all are listed in one answer, of at most 300 KB |
//! | topics of a stream | [`TOPICS_PER_STREAM_MAX`] | the same |
//! | topics in all | [`TOPICS_MAX`] | memory: at most 1 KB each |
//! | partitions of a topic | [`PARTITIONS_PER_TOPIC_MAX`] | as Iggy's server |
//! | partitions in all | [`PARTITIONS_MAX`] | memory, and open files |
//! | consumer groups of a topic | [`GROUPS_PER_TOPIC_MAX`] | all are listed in one answer |
//! | consumer groups in all | [`GROUPS_MAX`] | memory: at most 500 bytes each |
//! | stored offsets in all | [`OFFSETS_MAX`] | memory: about 40 bytes each |

mod apply;
mod lookup;
mod record;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use iggy_binary_protocol::WireIdentifier;
pub use record::{Record, RecordError};
use twox_hash::XxHash32;

use super::{Name, Status};

// These limits bound the memory of the catalogue, its snapshots, and the answers that list it: to about 25 MB with the longest
// names, by the sizes of the parts. That is not measured. A partition on disk also takes descriptors.

/// The most streams.
pub const STREAMS_MAX: usize = 1_024;
/// The most topics of a stream.
pub const TOPICS_PER_STREAM_MAX: usize = 1_024;
/// The most topics of all streams.
pub const TOPICS_MAX: usize = 16_384;
/// The most partitions of a topic.
pub const PARTITIONS_PER_TOPIC_MAX: usize = 1_000;
/// The most partitions of all topics.
pub const PARTITIONS_MAX: usize = 16_384;
/// The most consumer groups of a topic.
pub const GROUPS_PER_TOPIC_MAX: usize = 256;
/// The most consumer groups of all topics.
pub const GROUPS_MAX: usize = 16_384;
/// The most stored offsets, of all consumers in all partitions.
pub const OFFSETS_MAX: usize = 262_144;

/// The streams, and all that is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    streams: BTreeMap<u32, Stream>,
    names: BTreeMap<Name, u32>,
    /// The number of the next stream.
    next_stream: u32,
    /// The next [`LogId`].
    next_log: u64,
    counts: Counts,
    is_numbered_by_name: bool,
}

/// How many there are of what can be many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Topics of all streams.
    pub topics: usize,
    /// Partitions of all topics.
    pub partitions: usize,
    /// Consumer groups of all topics.
    pub groups: usize,
    /// Stored offsets of all consumers.
    pub offsets: usize,
}

/// A stream: a set of topics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stream {
    /// Its name.
    pub name: Name,
    /// When it was created, in µs since 1970.
    pub created_at: u64,
    topics: BTreeMap<u32, Topic>,
    names: BTreeMap<Name, u32>,
    next_topic: u32,
}

/// A topic: partitions, and consumer groups.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topic {
    /// Its name.
    pub name: Name,
    /// When it was created, in µs since 1970.
    pub created_at: u64,
    /// What its creator chose.
    pub settings: TopicSettings,
    partitions: Vec<Partition>,
    groups: BTreeMap<u32, Name>,
    names: BTreeMap<Name, u32>,
    next_group: u32,
}

/// What the creator of a topic chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    /// 1: none, 2: gzip. Clients compress; the server stores what they send.
    pub compression_algorithm: u8,
    /// How long messages are kept, in µs. 0: as the server likes. `u64::MAX`: for ever.
    pub message_expiry: u64,
    /// How many bytes are kept. 0: as the server likes. `u64::MAX`: any number.
    pub size_max: u64,
    /// How many servers have it. There is one.
    pub replication_factor: u8,
}

/// A partition: a log of messages, and the offsets that consumers have stored in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partition {
    /// Its log.
    pub log: LogId,
    /// When it was created, in µs since 1970.
    pub created_at: u64,
    offsets: BTreeMap<Consumer, u64>,
}

/// The log of a partition. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// Who stores an offset in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consumer {
    /// A consumer of its own: its number, or the xxHash32 of its name, as Iggy's server has it.
    Single(u32),
    /// A consumer group, by its number.
    Group(u32),
}

/// Where a topic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId {
    /// The stream.
    pub stream: u32,
    /// The topic in it.
    pub topic: u32,
}

/// Where a consumer group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The topic.
    pub at: TopicId,
    /// The group of this topic.
    pub group: u32,
}

impl Catalogue {
    /// An empty catalogue whose streams and topics get the xxHash32 of their name for a number, without the highest bit.
    /// If another one has that number, the next free one follows: for one in two million pairs of names. Then it depends
    /// on who was there first, and clients of several servers have to use the name.
    pub fn numbered_by_name() -> Self {
        Self { is_numbered_by_name: true, ..Self::default() }
    }

    /// Asks for a new stream. `now` is in µs since 1970, here and below.
    ///
    /// # Errors
    /// A bad name, a name that is taken, too many streams.
    pub fn create_stream(&self, name: &str, now: u64) -> Result<Record, Status> {
        let name = self.free_stream_name(name)?;
        if self.streams.len() >= STREAMS_MAX || self.next_stream == u32::MAX {
            return Err(Status::CannotCreateStream);
        }
        let stream = match self.is_numbered_by_name {
            true => free_number(&name, |number| self.streams.contains_key(&number)),
            false => self.next_stream,
        };
        Ok(Record::StreamCreated { stream, created_at: now, name })
    }

    /// Asks to rename a stream.
    ///
    /// # Errors
    /// No such stream, a bad name, a name that is taken.
    pub fn rename_stream(&self, stream: &WireIdentifier, name: &str) -> Result<Record, Status> {
        let (stream, renamed) = self.stream(stream)?;
        let name = match renamed.name.as_str() == name {
            true => renamed.name.clone(),
            false => self.free_stream_name(name)?,
        };
        Ok(Record::StreamRenamed { stream, name })
    }

    /// Asks to delete a stream with all that is in it.
    ///
    /// # Errors
    /// No such stream.
    pub fn delete_stream(&self, stream: &WireIdentifier) -> Result<Record, Status> {
        Ok(Record::StreamDeleted { stream: self.stream(stream)?.0 })
    }

    /// Asks for a new topic with `partitions` partitions.
    ///
    /// # Errors
    /// No such stream, a bad name, a name that is taken, too many topics or partitions.
    pub fn create_topic(
        &self,
        stream: &WireIdentifier,
        name: &str,
        settings: TopicSettings,
        partitions: u32,
        now: u64,
    ) -> Result<Record, Status> {
        let (stream, parent) = self.stream(stream)?;
        let name = parent.free_topic_name(name)?;
        let is_full = parent.topics.len() >= TOPICS_PER_STREAM_MAX;
        if is_full || self.counts.topics >= TOPICS_MAX || parent.next_topic == u32::MAX {
            return Err(Status::CannotCreateTopic);
        }
        self.check_partitions(0, partitions)?;
        let topic = match self.is_numbered_by_name {
            true => free_number(&name, |number| parent.topics.contains_key(&number)),
            false => parent.next_topic,
        };
        Ok(Record::TopicCreated {
            at: TopicId { stream, topic },
            created_at: now,
            settings,
            log: LogId(self.next_log),
            partitions,
            name,
        })
    }

    /// Asks to change the name and the settings of a topic.
    ///
    /// # Errors
    /// No such stream or topic, a bad name, a name that is taken.
    pub fn update_topic(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
        name: &str,
        settings: TopicSettings,
    ) -> Result<Record, Status> {
        let (at, updated) = self.topic(stream, topic)?;
        let name = match updated.name.as_str() == name {
            true => updated.name.clone(),
            false => self.streams[&at.stream].free_topic_name(name)?,
        };
        Ok(Record::TopicUpdated { at, settings, name })
    }

    /// Asks to delete a topic with all that is in it.
    ///
    /// # Errors
    /// No such stream or topic.
    pub fn delete_topic(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<Record, Status> {
        Ok(Record::TopicDeleted { at: self.topic(stream, topic)?.0 })
    }

    /// Asks to forget the offsets that were stored in a topic, because its messages are purged.
    ///
    /// # Errors
    /// No such stream or topic.
    pub fn purge_topic(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<Record, Status> {
        Ok(Record::TopicPurged { at: self.topic(stream, topic)?.0 })
    }

    /// Asks to forget the offsets that were stored in all topics of a stream: a record for each topic.
    ///
    /// # Errors
    /// No such stream.
    pub fn purge_stream(&self, stream: &WireIdentifier) -> Result<Vec<Record>, Status> {
        let (stream, purged) = self.stream(stream)?;
        let topics = purged.topics.keys();
        Ok(topics.map(|&topic| Record::TopicPurged { at: TopicId { stream, topic } }).collect())
    }

    /// Asks for `count` more partitions of a topic.
    ///
    /// # Errors
    /// No such stream or topic, no partitions asked for, too many partitions.
    pub fn add_partitions(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
        count: u32,
        now: u64,
    ) -> Result<Record, Status> {
        let (at, topic) = self.topic(stream, topic)?;
        if count == 0 {
            return Err(Status::InvalidPartitionsCount);
        }
        self.check_partitions(topic.partitions.len(), count)?;
        Ok(Record::PartitionsAdded { at, created_at: now, log: LogId(self.next_log), count })
    }

    /// Asks to remove the last `count` partitions of a topic.
    ///
    /// # Errors
    /// No such stream or topic, no partitions asked for, more than there are.
    pub fn remove_partitions(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
        count: u32,
    ) -> Result<Record, Status> {
        let (at, topic) = self.topic(stream, topic)?;
        if count == 0 || count as usize > topic.partitions.len() {
            return Err(Status::InvalidPartitionsCount);
        }
        Ok(Record::PartitionsRemoved { at, count })
    }

    /// Asks for a new consumer group.
    ///
    /// # Errors
    /// No such stream or topic, a bad name, a name that is taken, too many groups.
    pub fn create_group(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
        name: &str,
    ) -> Result<Record, Status> {
        let (at, topic) = self.topic(stream, topic)?;
        let name = Name::new(name).ok_or(Status::InvalidConsumerGroupName)?;
        if topic.names.contains_key(&name) {
            return Err(Status::ConsumerGroupNameAlreadyExists);
        }
        let is_full = topic.groups.len() >= GROUPS_PER_TOPIC_MAX;
        if is_full || self.counts.groups >= GROUPS_MAX || topic.next_group == u32::MAX {
            return Err(Status::CannotCreateConsumerGroup);
        }
        Ok(Record::GroupCreated { at: GroupId { at, group: topic.next_group }, name })
    }

    /// Asks to delete a consumer group and its offsets.
    ///
    /// # Errors
    /// No such stream, topic or group.
    pub fn delete_group(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
        group: &WireIdentifier,
    ) -> Result<Record, Status> {
        Ok(Record::GroupDeleted { at: self.group(stream, topic, group)?.0 })
    }

    /// Asks to store an offset. Whether there is a message at the offset is for the caller to check.
    ///
    /// # Errors
    /// No such stream, topic, partition or group, too many offsets.
    pub fn store_offset(
        &self,
        at: TopicId,
        partition: u32,
        consumer: Consumer,
        offset: u64,
    ) -> Result<Record, Status> {
        let topic = self.topic_at(at)?;
        let stored = topic.partition(partition)?.offset(consumer);
        if !topic.can_store(consumer) {
            return Err(Status::ConsumerGroupIdNotFound);
        }
        if stored.is_none() && self.counts.offsets >= OFFSETS_MAX {
            return Err(Status::CannotStoreConsumerOffset);
        }
        Ok(Record::OffsetStored { at, partition, consumer, offset })
    }

    /// Asks to forget a stored offset.
    ///
    /// # Errors
    /// No such stream, topic or partition, no stored offset.
    pub fn delete_offset(
        &self,
        at: TopicId,
        partition: u32,
        consumer: Consumer,
    ) -> Result<Record, Status> {
        let stored = self.partition(at, partition)?.offset(consumer);
        stored.ok_or(Status::ConsumerOffsetNotFound)?;
        Ok(Record::OffsetDeleted { at, partition, consumer })
    }

    fn free_stream_name(&self, name: &str) -> Result<Name, Status> {
        let name = Name::new(name).ok_or(Status::InvalidStreamName)?;
        match self.names.contains_key(&name) {
            true => Err(Status::StreamNameAlreadyExists),
            false => Ok(name),
        }
    }

    /// Whether a topic with `present` partitions may have `more`.
    fn check_partitions(&self, present: usize, more: u32) -> Result<(), Status> {
        let of_topic = present.saturating_add(more as usize);
        let of_all = self.counts.partitions.saturating_add(more as usize);
        match of_topic > PARTITIONS_PER_TOPIC_MAX || of_all > PARTITIONS_MAX {
            true => Err(Status::TooManyPartitions),
            false => Ok(()),
        }
    }
}

/// The number of a name, or the next one that is not taken. There are at most 1,024 of either.
fn free_number(name: &Name, is_taken: impl Fn(u32) -> bool) -> u32 {
    let first = XxHash32::oneshot(0, name.as_str().as_bytes()) & HIGHEST_NUMBER;
    let numbers = (first..=HIGHEST_NUMBER).chain(0..first);
    numbers.into_iter().find(|&number| !is_taken(number)).unwrap_or(first)
}

/// The highest number that is made of a name.
const HIGHEST_NUMBER: u32 = u32::MAX >> 1;

impl Stream {
    fn free_topic_name(&self, name: &str) -> Result<Name, Status> {
        let name = Name::new(name).ok_or(Status::InvalidTopicName)?;
        match self.names.contains_key(&name) {
            true => Err(Status::TopicNameAlreadyExists),
            false => Ok(name),
        }
    }
}

//! Finding streams, topics, partitions and consumer groups, by number or by name.

use iggy_binary_protocol::WireIdentifier;

use super::{Catalogue, Consumer, Counts, GroupId, LogId, Partition, Stream, Topic, TopicId};
use crate::iggy::{Name, Status};

impl Catalogue {
    /// All streams by their numbers.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = (u32, &Stream)> {
        self.streams.iter().map(|(&stream, found)| (stream, found))
    }

    /// How many there are of everything but streams.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// A stream.
    ///
    /// # Errors
    /// There is none.
    pub fn stream(&self, stream: &WireIdentifier) -> Result<(u32, &Stream), Status> {
        let number = number_of(stream, |name| self.names.get(name));
        let found = number.and_then(|number| Some((number, self.streams.get(&number)?)));
        found.ok_or(Status::StreamIdNotFound)
    }

    /// A topic.
    ///
    /// # Errors
    /// There is no such stream or topic.
    pub fn topic(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<(TopicId, &Topic), Status> {
        let (stream, parent) = self.stream(stream)?;
        let (topic, found) = parent.topic(topic)?;
        Ok((TopicId { stream, topic }, found))
    }

    /// A consumer group and its name.
    ///
    /// # Errors
    /// There is no such stream, topic or group.
    pub fn group(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
        group: &WireIdentifier,
    ) -> Result<(GroupId, &Name), Status> {
        let (at, topic) = self.topic(stream, topic)?;
        let (group, name) = topic.group(group)?;
        Ok((GroupId { at, group }, name))
    }

    /// The topic at a place that was found before.
    ///
    /// # Errors
    /// It is gone.
    pub fn topic_at(&self, at: TopicId) -> Result<&Topic, Status> {
        let stream = self.streams.get(&at.stream).ok_or(Status::StreamIdNotFound)?;
        stream.topics.get(&at.topic).ok_or(Status::TopicIdNotFound)
    }

    /// A partition.
    ///
    /// # Errors
    /// There is no such stream, topic or partition.
    pub fn partition(&self, at: TopicId, partition: u32) -> Result<&Partition, Status> {
        self.topic_at(at)?.partition(partition)
    }

    /// All logs.
    pub fn logs(&self) -> impl Iterator<Item = LogId> {
        self.streams.values().flat_map(Stream::logs)
    }

    /// The number of the next log. Those of all logs that there are, or were, are less.
    pub const fn next_log(&self) -> LogId {
        LogId(self.next_log)
    }
}

impl Stream {
    /// All topics by their numbers.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = (u32, &Topic)> {
        self.topics.iter().map(|(&topic, found)| (topic, found))
    }

    /// A topic.
    ///
    /// # Errors
    /// There is none.
    pub fn topic(&self, topic: &WireIdentifier) -> Result<(u32, &Topic), Status> {
        let number = number_of(topic, |name| self.names.get(name));
        let found = number.and_then(|number| Some((number, self.topics.get(&number)?)));
        found.ok_or(Status::TopicIdNotFound)
    }

    /// The logs of all topics.
    pub fn logs(&self) -> impl Iterator<Item = LogId> {
        self.topics.values().flat_map(Topic::logs)
    }
}

impl Topic {
    /// All partitions in order.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// A partition.
    ///
    /// # Errors
    /// There is none.
    pub fn partition(&self, partition: u32) -> Result<&Partition, Status> {
        self.partitions.get(partition as usize).ok_or(Status::PartitionNotFound)
    }

    /// All consumer groups: numbers and names.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (u32, &Name)> {
        self.groups.iter().map(|(&group, name)| (group, name))
    }

    /// A consumer group and its name.
    ///
    /// # Errors
    /// There is none.
    pub fn group(&self, group: &WireIdentifier) -> Result<(u32, &Name), Status> {
        let number = number_of(group, |name| self.names.get(name));
        let found = number.and_then(|number| Some((number, self.groups.get(&number)?)));
        found.ok_or(Status::ConsumerGroupIdNotFound)
    }

    /// Whether a consumer can store offsets here: not if it is a group that there is not.
    pub(super) fn can_store(&self, consumer: Consumer) -> bool {
        match consumer {
            Consumer::Single(_) => true,
            Consumer::Group(group) => self.groups.contains_key(&group),
        }
    }

    /// The logs of all partitions.
    pub fn logs(&self) -> impl Iterator<Item = LogId> {
        self.partitions.iter().map(|partition| partition.log)
    }
}

impl Partition {
    /// The offset that a consumer has stored.
    pub fn offset(&self, consumer: Consumer) -> Option<u64> {
        self.offsets.get(&consumer).copied()
    }
}

fn number_of<'a>(
    identifier: &WireIdentifier,
    by_name: impl FnOnce(&str) -> Option<&'a u32>,
) -> Option<u32> {
    match identifier {
        WireIdentifier::Numeric(number) => Some(*number),
        WireIdentifier::String(name) => by_name(name).copied(),
    }
}

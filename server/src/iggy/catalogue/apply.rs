//! Making the change that a record says.

use std::collections::BTreeMap;

use owned_io::coop;

use super::{
    Catalogue, Consumer, GroupId, LogId, Partition, Record, RecordError, Stream, Topic, TopicId,
};
use crate::iggy::Name;

/// The work of removing a stored offset, in nanoseconds. Not measured.
const OFFSET_NANOS: u64 = 20;

impl Catalogue {
    /// Makes the change that `record` says.
    ///
    /// # Errors
    /// [`OutOfOrder`](RecordError::OutOfOrder): it does not fit. Never for a record that this catalogue has returned,
    /// if it is applied before others are asked for. The catalogue is unchanged.
    pub fn apply(&mut self, record: &Record) -> Result<(), RecordError> {
        self.try_apply(record).ok_or(RecordError::OutOfOrder)
    }

    /// Makes the change that a record of a journal or a snapshot says. Like [`apply`](Self::apply), but an offset is
    /// skipped if its partition or its consumer group was removed meanwhile: the two records may be in either order.
    ///
    /// # Errors
    /// As for [`apply`](Self::apply).
    pub fn replay(&mut self, record: &Record) -> Result<(), RecordError> {
        match (self.apply(record), record) {
            (Err(_), Record::OffsetStored { .. } | Record::OffsetDeleted { .. }) => Ok(()),
            (applied, _) => applied,
        }
    }

    /// Sets stored offsets that are not below the end of their log back to the last message, or removes them if there is
    /// none. `end` is the offset after the last message of a log. Returns the logs with such offsets, and how many each
    /// had.
    pub fn clamp_offsets(&mut self, end: impl Fn(LogId) -> u64) -> Vec<(LogId, usize)> {
        let (mut clamped, mut removed) = (Vec::new(), 0);
        let topics = self.streams.values_mut().flat_map(|stream| stream.topics.values_mut());
        for partition in topics.flat_map(|topic| &mut topic.partitions) {
            let end = end(partition.log);
            let mut count = 0;
            if end == 0 {
                count = partition.offsets.len();
                partition.offsets.clear();
                removed += count;
            }
            for offset in partition.offsets.values_mut().filter(|offset| **offset >= end) {
                *offset = end - 1;
                count += 1;
            }
            if count > 0 {
                clamped.push((partition.log, count));
            }
        }
        self.counts.offsets -= removed;
        clamped
    }

    /// Removes the offsets that were stored for the messages that `record` removes. It need not be applied.
    pub fn forget_offsets(&mut self, record: &Record) {
        let mut removed = 0;
        let mut forget = |partitions: &mut [Partition]| {
            for partition in partitions {
                removed += partition.offsets.len();
                partition.offsets.clear();
            }
        };
        match record {
            Record::TopicPurged { at } | Record::TopicDeleted { at } => {
                self.topic_mut(*at).into_iter().for_each(|topic| forget(&mut topic.partitions));
            }
            Record::StreamDeleted { stream } => {
                let topics = self.streams.get_mut(stream).into_iter();
                let topics = topics.flat_map(|stream| stream.topics.values_mut());
                topics.for_each(|topic| forget(&mut topic.partitions));
            }
            Record::PartitionsRemoved { at, count } => {
                let partitions = self.topic_mut(*at).map(|topic| &mut topic.partitions[..]);
                let partitions = partitions.unwrap_or_default();
                let left = partitions.len().saturating_sub(*count as usize);
                forget(&mut partitions[left..]);
            }
            _ => {}
        }
        coop::consume(removed as u64 * OFFSET_NANOS);
        self.counts.offsets -= removed;
    }

    /// None if the record does not fit.
    fn try_apply(&mut self, record: &Record) -> Option<()> {
        match record {
            Record::StreamCreated { stream, created_at, name } => {
                let is_free = match self.is_numbered_by_name {
                    true => !self.streams.contains_key(stream),
                    false => *stream >= self.next_stream,
                };
                let next = stream.checked_add(1).filter(|_| is_free)?;
                insert_name(&mut self.names, name, *stream)?;
                self.next_stream = self.next_stream.max(next);
                self.streams.insert(*stream, Stream::new(name.clone(), *created_at));
            }
            Record::StreamRenamed { stream, name } => {
                let renamed = self.streams.get_mut(stream)?;
                rename(&mut self.names, &mut renamed.name, name, *stream)?;
            }
            Record::StreamDeleted { stream } => {
                let deleted = self.streams.remove(stream)?;
                self.names.remove(&deleted.name);
                deleted.topics.values().for_each(|topic| self.discount(topic));
            }
            Record::TopicCreated { at, created_at, settings, log, partitions, name } => {
                self.end_of_logs(0, *log, *partitions)?;
                let stream = self.streams.get_mut(&at.stream)?;
                let is_free = match self.is_numbered_by_name {
                    true => !stream.topics.contains_key(&at.topic),
                    false => at.topic >= stream.next_topic,
                };
                let next = at.topic.checked_add(1).filter(|_| is_free)?;
                insert_name(&mut stream.names, name, at.topic)?;
                stream.next_topic = stream.next_topic.max(next);
                let topic = Topic {
                    name: name.clone(),
                    created_at: *created_at,
                    settings: *settings,
                    partitions: Vec::new(),
                    groups: BTreeMap::new(),
                    names: BTreeMap::new(),
                    next_group: 0,
                };
                stream.topics.insert(at.topic, topic);
                self.counts.topics += 1;
                self.add(*at, *created_at, *log, *partitions)?;
            }
            Record::TopicUpdated { at, settings, name } => {
                let Stream { topics, names, .. } = self.streams.get_mut(&at.stream)?;
                let topic = topics.get_mut(&at.topic)?;
                rename(names, &mut topic.name, name, at.topic)?;
                topic.settings = *settings;
            }
            Record::TopicDeleted { at } => {
                let stream = self.streams.get_mut(&at.stream)?;
                let deleted = stream.topics.remove(&at.topic)?;
                stream.names.remove(&deleted.name);
                self.discount(&deleted);
            }
            Record::TopicPurged { at } => {
                self.topic_mut(*at)?;
                self.forget_offsets(record);
            }
            Record::PartitionsAdded { at, created_at, log, count } => {
                self.add(*at, *created_at, *log, *count)?;
            }
            Record::PartitionsRemoved { at, count } => self.remove(*at, *count)?,
            Record::GroupCreated { at, name } => {
                let topic = self.topic_mut(at.at)?;
                let next = at.group.checked_add(1).filter(|_| at.group >= topic.next_group)?;
                insert_name(&mut topic.names, name, at.group)?;
                topic.next_group = next;
                topic.groups.insert(at.group, name.clone());
                self.counts.groups += 1;
            }
            Record::GroupDeleted { at } => self.delete(*at)?,
            Record::OffsetStored { at, partition, consumer, offset } => {
                let topic = self.topic_mut(*at).filter(|topic| topic.can_store(*consumer))?;
                let partition = topic.partitions.get_mut(*partition as usize)?;
                let is_new = partition.offsets.insert(*consumer, *offset).is_none();
                self.counts.offsets += usize::from(is_new);
            }
            Record::OffsetDeleted { at, partition, consumer } => {
                self.partition_mut(*at, *partition)?.offsets.remove(consumer)?;
                self.counts.offsets -= 1;
            }
            Record::NextStream { stream, log } => {
                self.next_stream = self.next_stream.max(*stream);
                self.next_log = self.next_log.max(log.0);
            }
            Record::NextTopic { at } => {
                let stream = self.streams.get_mut(&at.stream)?;
                stream.next_topic = stream.next_topic.max(at.topic);
            }
            Record::NextGroup { at } => {
                let topic = self.topic_mut(at.at)?;
                topic.next_group = topic.next_group.max(at.group);
            }
        }
        Some(())
    }

    fn add(&mut self, at: TopicId, created_at: u64, first: LogId, count: u32) -> Option<()> {
        let present = self.topic_mut(at)?.partitions.len();
        let end = self.end_of_logs(present, first, count)?;
        let new = |log| Partition { log: LogId(log), created_at, offsets: BTreeMap::new() };
        self.topic_mut(at)?.partitions.extend((first.0..end).map(new));
        self.counts.partitions += count as usize;
        self.next_log = self.next_log.max(end);
        Some(())
    }

    /// The log behind `count` logs from `first` on. None if there are not as many, or if a topic with `present`
    /// partitions may not have that many more: damaged records must not fill the memory.
    fn end_of_logs(&self, present: usize, first: LogId, count: u32) -> Option<u64> {
        self.check_partitions(present, count).ok()?;
        first.0.checked_add(count.into())
    }

    fn remove(&mut self, at: TopicId, count: u32) -> Option<()> {
        let partitions = &mut self.topic_mut(at)?.partitions;
        let left = partitions.len().checked_sub(count as usize)?;
        let stored: usize = partitions.drain(left..).map(|removed| removed.offsets.len()).sum();
        self.counts.partitions -= count as usize;
        self.counts.offsets -= stored;
        Some(())
    }

    fn delete(&mut self, GroupId { at, group }: GroupId) -> Option<()> {
        let topic = self.topic_mut(at)?;
        let name = topic.groups.remove(&group)?;
        topic.names.remove(&name);
        let of_group = Consumer::Group(group);
        let removed = topic.partitions.iter_mut();
        let removed = removed.filter_map(|partition| partition.offsets.remove(&of_group)).count();
        self.counts.groups -= 1;
        self.counts.offsets -= removed;
        Some(())
    }

    /// Subtracts a topic that is gone.
    fn discount(&mut self, topic: &Topic) {
        let stored = topic.partitions.iter().map(|partition| partition.offsets.len());
        self.counts.topics -= 1;
        self.counts.partitions -= topic.partitions.len();
        self.counts.groups -= topic.groups.len();
        self.counts.offsets -= stored.sum::<usize>();
    }

    fn topic_mut(&mut self, at: TopicId) -> Option<&mut Topic> {
        self.streams.get_mut(&at.stream)?.topics.get_mut(&at.topic)
    }

    fn partition_mut(&mut self, at: TopicId, partition: u32) -> Option<&mut Partition> {
        self.topic_mut(at)?.partitions.get_mut(partition as usize)
    }
}

impl Stream {
    fn new(name: Name, created_at: u64) -> Self {
        let (topics, names) = (BTreeMap::new(), BTreeMap::new());
        Self { name, created_at, topics, names, next_topic: 0 }
    }
}

/// None if the name is taken.
fn insert_name(names: &mut BTreeMap<Name, u32>, name: &Name, number: u32) -> Option<()> {
    if names.contains_key(name) {
        return None;
    }
    names.insert(name.clone(), number);
    Some(())
}

/// None if another one has the name.
fn rename(
    names: &mut BTreeMap<Name, u32>,
    present: &mut Name,
    name: &Name,
    number: u32,
) -> Option<()> {
    if names.get(name).is_some_and(|&taken_by| taken_by != number) {
        return None;
    }
    names.remove(present);
    names.insert(name.clone(), number);
    *present = name.clone();
    Some(())
}

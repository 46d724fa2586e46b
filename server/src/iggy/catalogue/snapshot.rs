//! The shortest list of records that gives the same catalogue.

use owned_io::coop;

use super::{Catalogue, GroupId, LogId, Partition, Record, RecordError, Topic, TopicId};

/// The work of a record, in nanoseconds. Not measured.
const RECORD_NANOS: u64 = 40;

impl Catalogue {
    /// Records that give this catalogue, applied to an empty one: what there is, and no history. As bytes: each record
    /// behind its length, a `u32`, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut bytes, mut records) = (Vec::new(), 0);
        self.snapshot(&mut |record| {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 4]);
            record.encode(&mut bytes);
            let len = (bytes.len() - start - 4) as u32;
            bytes[start..start + 4].copy_from_slice(&len.to_le_bytes());
            records += 1;
        });
        coop::consume(records * RECORD_NANOS);
        bytes
    }

    fn snapshot(&self, add: &mut impl FnMut(Record)) {
        for (&stream, found) in &self.streams {
            let (created_at, name) = (found.created_at, found.name.clone());
            add(Record::StreamCreated { stream, created_at, name });
            for (&topic, found) in &found.topics {
                found.snapshot(TopicId { stream, topic }, add);
            }
            add(Record::NextTopic { at: TopicId { stream, topic: found.next_topic } });
        }
        add(Record::NextStream { stream: self.next_stream, log: LogId(self.next_log) });
    }

    /// The catalogue that was [written](Self::to_bytes) as `bytes`. Offsets of consumer groups that there are not are
    /// skipped: versions until November 2026 could store them.
    ///
    /// # Errors
    /// They are none.
    pub fn from_bytes(mut bytes: &[u8]) -> Result<Self, RecordError> {
        let mut catalogue = Self::default();
        while !bytes.is_empty() {
            let (len, rest) = bytes.split_first_chunk().ok_or(RecordError::Truncated)?;
            let len = u32::from_le_bytes(*len) as usize;
            let (record, rest) = rest.split_at_checked(len).ok_or(RecordError::Truncated)?;
            catalogue.replay(&Record::decode(record)?)?;
            bytes = rest;
        }
        Ok(catalogue)
    }
}

impl Topic {
    fn snapshot(&self, at: TopicId, add: &mut impl FnMut(Record)) {
        add(Record::TopicCreated {
            at,
            created_at: self.created_at,
            settings: self.settings,
            log: LogId(0),
            partitions: 0,
            name: self.name.clone(),
        });
        for run in self.partitions.chunk_by(Partition::is_followed_by) {
            let Partition { log, created_at, .. } = run[0];
            let count = run.len() as u32;
            add(Record::PartitionsAdded { at, created_at, log, count });
        }
        for (&group, name) in &self.groups {
            add(Record::GroupCreated { at: GroupId { at, group }, name: name.clone() });
        }
        add(Record::NextGroup { at: GroupId { at, group: self.next_group } });
        for (partition, found) in (0..).zip(&self.partitions) {
            for (&consumer, &offset) in &found.offsets {
                add(Record::OffsetStored { at, partition, consumer, offset });
            }
        }
    }
}

impl Partition {
    /// Whether a record for this partition can be for the next one too.
    fn is_followed_by(&self, next: &Self) -> bool {
        self.log.0 + 1 == next.log.0 && self.created_at == next.created_at
    }
}

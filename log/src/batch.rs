//! What a partition is asked, and what it answers.

use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;

/// The offset and the time that a batch gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The offset of the first message.
    pub base_offset: u64,
    /// Microseconds since 1970, by the wall clock of the runtime, but never less than that of the batch before.
    pub timestamp: u64,
}

/// An acknowledged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first message.
    pub base_offset: u64,
    /// The number of messages.
    pub count: u32,
    /// Microseconds since 1970.
    pub timestamp: u64,
}

/// A stored batch.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// The offset of the first message.
    pub base_offset: u64,
    /// The number of messages.
    pub count: u32,
    /// Microseconds since 1970.
    pub timestamp: u64,
    /// The bytes as they were appended. They share memory with other batches of the same read.
    pub bytes: Bytes,
}

impl Batch {
    /// The offset after the last message.
    pub fn next_offset(&self) -> u64 {
        self.base_offset + u64::from(self.count)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base_offset, count, timestamp, bytes } = self;
        write!(f, "Batch({count} at {base_offset}, {timestamp} µs, {} bytes)", bytes.len())
    }
}

/// Where a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the batch with this offset; at the first, if the offset is lower.
    Offset(u64),
    /// At the first batch with this timestamp or a later one, in microseconds since 1970.
    Timestamp(u64),
}

/// The offsets of the acknowledged messages. They are equal if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// The first that is stored.
    pub first: u64,
    /// The one after the last.
    pub next: u64,
}

/// How large a partition is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The bytes of its segments.
    pub bytes: u64,
    /// The number of its segments: at least one.
    pub segments: u32,
}

/// What [`Partition::trim`](crate::Partition::trim) has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// The number of segments.
    pub segments: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The first offset that is left.
    pub first: u64,
}

/// What [`Partition::open`](crate::Partition::open) has found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// The offsets of the stored messages.
    pub offsets: Offsets,
    /// The bytes of the torn tail that was cut. They were not acknowledged by [`SyncPolicy::Batch`].
    ///
    /// [`SyncPolicy::Batch`]: crate::SyncPolicy::Batch
    pub cut_bytes: u64,
    /// The file that they were cut from. `None` if there were none.
    pub cut_file: Option<PathBuf>,
    /// A valid mark said where the partition ended when it was closed. The last segment was not read. A segment that was
    /// too short for a mark is read, although it was closed.
    pub was_closed: bool,
}

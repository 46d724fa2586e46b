//! [`Storage`]: where messages and the records of the catalogue are kept.
//!
//! The types are those of a durable log; [`MemoryStorage`] keeps everything in memory, within a limit, and loses it at
//! the end. Futures are boxed, because the storage is chosen at run time: one allocation for a batch, none for a message.

mod memory;

use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
pub use memory::MemoryStorage;

use super::Status;
use super::catalogue::LogId;
use super::messages::Batch;

/// A future of this worker.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Where the logs of partitions are kept, and the journal of the catalogue.
pub trait Storage {
    /// Opens a log, or creates it.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&self, log: LogId) -> LocalFuture<'_, Result<Rc<dyn MessageLog>, Status>>;

    /// Removes a log and its messages. Appends that wait may fail.
    ///
    /// # Errors
    /// It could not be removed. The log is not used again.
    fn remove(&self, log: LogId) -> LocalFuture<'_, Result<(), Status>>;

    /// Appends a record to the journal of the catalogue. Durable when it returns, as far as the storage is. Records
    /// keep the order of the calls.
    ///
    /// # Errors
    /// The record is not stored.
    fn record(&self, record: Vec<u8>) -> LocalFuture<'_, Result<(), Status>>;
}

/// The messages of a partition, in order. Offsets count from 0, without a gap.
pub trait MessageLog {
    /// Appends messages, and waits until they are durable, as far as the log is. Messages without an id get `id` and
    /// the numbers behind it.
    ///
    /// # Errors
    /// There is no room, or they could not be stored.
    ///
    /// # Cancellation
    /// The messages may be appended all the same.
    fn append(&self, batch: Batch, id: u128) -> LocalFuture<'_, Result<Appended, Status>>;

    /// Batches from `from` on, at most `bytes_max` bytes, but at least one batch if there is one. The first one may
    /// begin before the offset that is wanted. An offset before the first one is the first.
    ///
    /// # Errors
    /// They could not be read.
    ///
    /// # Cancellation
    /// Safe.
    fn read(
        &self,
        from: ReadFrom,
        bytes_max: usize,
    ) -> LocalFuture<'_, Result<Vec<StoredBatch>, Status>>;

    /// The offsets that can be read.
    fn offsets(&self) -> Offsets;

    /// What it takes.
    fn size(&self) -> Size;

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// It could not be made durable.
    fn flush(&self) -> LocalFuture<'_, Result<(), Status>>;

    /// Removes all messages. The next offset is 0 again.
    ///
    /// # Errors
    /// They could not be removed.
    fn purge(&self) -> LocalFuture<'_, Result<(), Status>>;
}

/// Where a batch is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The offset of its first message.
    pub base_offset: u64,
    /// When, in µs since 1970. Never less than the batch before.
    pub timestamp: u64,
}

/// A batch that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first message.
    pub base_offset: u64,
    /// The number of its messages.
    pub count: u32,
    /// When, in µs since 1970.
    pub timestamp: u64,
}

/// Where to begin to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At this offset.
    Offset(u64),
    /// At the first batch with this timestamp or a later one, in µs since 1970.
    Timestamp(u64),
}

/// A batch as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBatch {
    /// The offset of its first message.
    pub base_offset: u64,
    /// The number of its messages.
    pub count: u32,
    /// When it was appended, in µs since 1970.
    pub timestamp: u64,
    /// The messages.
    pub bytes: Bytes,
}

/// The offsets that can be read: `first` up to but not `next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// The offset of the first message.
    pub first: u64,
    /// The offset of the next message that is appended.
    pub next: u64,
}

/// What a log takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The bytes of all messages.
    pub bytes: u64,
    /// The number of its files.
    pub segments: u32,
}

//! [`Storage`]: where messages and the records of the catalogue are kept.
//!
//! [`MemoryStorage`] keeps everything in memory, within a limit, and loses it at the end. [`DurableStorage`] keeps it in
//! a directory, by `owned-io-log`. With feature `kafka`, `KafkaStorage` keeps it in Kafka. Futures are boxed, because the storage is chosen at run time: one allocation for a
//! batch, none for a message.

mod durable;
#[cfg(feature = "kafka")]
pub mod kafka;
mod memory;

use std::future::{pending, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
pub use durable::{DurableStorage, OPEN_FILES_MAX};
pub use memory::MemoryStorage;
use owned_io::coop;
pub use owned_io_log::{
    Appended, Offsets, Position, READ_BATCHES_MAX as BATCHES_MAX, ReadFrom, Retention, Size,
};

use super::Status;
use super::catalogue::{Catalogue, LogId, Record};
use super::messages::Batch;

/// Whether the log of the catalogue takes no more records until the server is started again, because a write or a sync
/// has failed. Clones are the same, and any thread may ask.
#[derive(Clone, Debug, Default)]
pub struct CatalogueFailure(Arc<AtomicBool>);

impl CatalogueFailure {
    /// Whether it has happened. It is noticed by the first command that it refuses.
    pub fn has_happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn happens(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A future of this worker.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Where the logs of partitions are kept, and the journal of the catalogue.
pub trait Storage {
    /// Opens logs, or creates them. Returns them in order.
    ///
    /// # Errors
    /// One cannot be opened. Those that were not open before are removed.
    /// [`TooManyPartitions`](Status::TooManyPartitions): there are no descriptors for them.
    fn open<'a>(
        &'a self,
        logs: &'a [LogId],
    ) -> LocalFuture<'a, Result<Vec<Rc<dyn MessageLog>>, Status>>;

    /// Removes logs and their messages. Appends that wait may fail.
    ///
    /// # Errors
    /// One could not be removed. None of them is used again.
    fn remove<'a>(&'a self, logs: &'a [LogId]) -> LocalFuture<'a, Result<(), Status>>;

    /// Appends a record to the journal of the catalogue. It is as durable as messages are. Records keep the order of
    /// the first polls.
    ///
    /// # Errors
    /// [`TopicFull`](Status::TopicFull): there is no room, and the record is not stored. Else it may be stored or not, and
    /// no further one is.
    fn record(&self, record: Vec<u8>) -> LocalFuture<'_, Result<(), Status>>;

    /// Waits until all records are on the disk, if there is one.
    ///
    /// # Errors
    /// They may be stored or not, and no further record is.
    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }

    /// Whether a [snapshot](Self::snapshot) would make the journal shorter by much.
    fn is_snapshot_due(&self) -> bool {
        false
    }

    /// Replaces the records of the journal by `state`: the whole catalogue as it is when the future is first polled,
    /// with all records that [`record`](Self::record) was called for.
    ///
    /// # Errors
    /// The records stay.
    ///
    /// # Cancellation
    /// After the first poll, the snapshot is made all the same.
    fn snapshot(&self, _state: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }

    /// The topics, if others change them too.
    fn shared(&self) -> Option<&dyn SharedTopics> {
        None
    }

    /// Makes everything durable and closes all logs, and then the journal. What is asked of them afterwards is refused as
    /// [`Disconnected`](Status::Disconnected), and so are operations that have not reached their log yet.
    ///
    /// # Errors
    /// Something may not be durable.
    fn close(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }
}

/// How often topics are looked for that others have made or removed: new ones are usually used within seconds.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The topics of a storage that several servers share.
pub trait SharedTopics {
    /// All topics as they are now.
    ///
    /// # Errors
    /// They could not be read.
    fn list(&self) -> LocalFuture<'_, Result<Vec<SharedTopic>, Status>>;

    /// Makes the change that `record` says, which `catalogue` has not applied yet.
    ///
    /// # Errors
    /// It is not made, or may be.
    fn change(&self, catalogue: &Catalogue, record: &Record)
    -> LocalFuture<'_, Result<(), Status>>;

    /// Notes which partitions the logs are that `record` creates. It is called before they are opened, also if others
    /// have made the change.
    fn name_logs(&self, catalogue: &Catalogue, record: &Record);
}

/// A topic that several servers share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedTopic {
    /// The name of its stream.
    pub stream: String,
    /// Its name.
    pub topic: String,
    /// The number of its partitions.
    pub partitions: u32,
}

/// The messages of a partition, in order. Offsets count from 0, without a gap, unless others write to it too.
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

    /// Batches from `from` on, at most `bytes_max` bytes and [`BATCHES_MAX`]. A log that has the first batch in memory returns it however long
    /// it is. The first one may begin before the offset that is wanted. An offset before the first one is the first.
    /// Batches behind the first `count` messages from `from` on may be left out.
    ///
    /// # Errors
    /// There is no room for the first batch, or it could not be read.
    ///
    /// # Cancellation
    /// Safe.
    fn read(
        &self,
        from: ReadFrom,
        count: u32,
        bytes_max: usize,
    ) -> LocalFuture<'_, Result<Vec<StoredBatch>, ReadError>>;

    /// The offsets that can be read. If others write to the log too: as of the last [refresh](Self::refresh), or later.
    fn offsets(&self) -> Offsets;

    /// Learns what others have written.
    ///
    /// # Errors
    /// That is not known.
    fn refresh(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }

    /// How often others have replaced the log by another one of the same name, as far as that is noticed. What was read
    /// before is gone, and offsets have begun again.
    fn restarts(&self) -> u64 {
        0
    }

    /// Waits until others may have written a message at or behind offset `from`. Who appends by this server wakes those
    /// who wait itself.
    ///
    /// # Cancellation
    /// Safe.
    fn wait(&self, _from: u64) -> LocalFuture<'_, ()> {
        Box::pin(pending())
    }

    /// What it takes.
    fn size(&self) -> Size;

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// It could not be made durable.
    fn flush(&self) -> LocalFuture<'_, Result<(), Status>>;

    /// Removes the oldest messages, as far as `retention` says and the log can. Returns how many bytes were removed.
    ///
    /// # Errors
    /// Some may be removed.
    fn trim(&self, _retention: Retention) -> LocalFuture<'_, Result<u64, Status>> {
        Box::pin(ready(Ok(0)))
    }

    /// Frees the memory of a log that is [removed](Storage::remove). Other tasks run meanwhile. The last handle would free
    /// it in one piece.
    fn free(&self) -> LocalFuture<'_, ()> {
        Box::pin(ready(()))
    }

    /// Removes all messages. The next offset is 0 again.
    ///
    /// # Errors
    /// They could not be removed.
    fn purge(&self) -> LocalFuture<'_, Result<(), Status>>;
}

/// A copy of `bytes`, which holds nothing besides, or the same if there is no memory for one.
pub(super) fn copied(bytes: Bytes) -> Bytes {
    let mut copy = Vec::new();
    if copy.try_reserve_exact(bytes.len()).is_err() {
        return bytes;
    }
    coop::consume(bytes.len() as u64 / 8);
    copy.extend_from_slice(&bytes);
    copy.into()
}

/// How many messages of a batch that begins at `base_offset` come before `from`, or more.
pub(super) fn skipped(from: ReadFrom, base_offset: u64) -> u32 {
    let skipped = match from {
        ReadFrom::Offset(offset) => offset.saturating_sub(base_offset),
        ReadFrom::Timestamp(_) => 0,
    };
    u32::try_from(skipped).unwrap_or(u32::MAX)
}

/// Why no batch is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The first one has as many bytes.
    TooLong(usize),
    /// It could not be read.
    Failed(Status),
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

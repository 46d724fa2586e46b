//! [`DurableStorage`]: messages and the catalogue in a directory.
//!
//! ```text
//! DIR/catalogue/         the journal of the catalogue: the first to be locked
//! DIR/partitions/LOG/    the messages of a partition, by the number of its `LogId`
//! ```
//!
//! The directory of a partition is there before the record that creates it, and is removed after the record that deletes
//! it. So a crash leaves directories that nobody needs, and [`open`](DurableStorage::open) removes them. It refuses a
//! catalogue whose partitions are missing, and partitions without a catalogue.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuardArc};
use bytes::Bytes;
use owned_io::{Files, Runtime};
use owned_io_log::{Error, ErrorKind, Journal, Partition, PartitionConfig, Replay};
use tracing::{info, warn};

use super::{
    Appended, LocalFuture, MessageLog, Offsets, ReadFrom, Retention, Size, Storage, StoredBatch,
};
use crate::iggy::Status;
use crate::iggy::catalogue::{Catalogue, LogId, Record, RecordError};
use crate::iggy::messages::Batch;
use crate::log_limit::LogLimit;

/// Keeps messages in [`Partition`]s, and the catalogue in a [`Journal`].
#[derive(Debug)]
pub struct DurableStorage<R: Files> {
    dir: PathBuf,
    config: PartitionConfig,
    journal: Journal<R>,
    /// The length of the last snapshot, in bytes.
    snapshot_bytes: Cell<u64>,
    logs: RefCell<BTreeMap<LogId, DurableLog<R>>>,
    /// The bytes of recent messages that further logs may keep in memory.
    cache_bytes_left: Cell<usize>,
    /// Permits for batches in memory that are longer than what was reserved for a poll.
    long_batches: Arc<Semaphore>,
    failures: Failures,
}

/// How many batches are read, or being sent, that are longer than what was reserved for their poll. Further polls of such
/// batches wait. All logs together: 128 MiB with the default of `--message-bytes-max`.
const LONG_BATCHES_MAX: usize = 8;

/// How many partitions are opened or closed at once. Each may wait for the disk several times.
const PARTITIONS_AT_ONCE: usize = 32;

/// A snapshot of the catalogue is made when the records since the last one have as many bytes, or as many as that one if
/// it is longer: so it is written a second time at most for each byte of the records.
const SNAPSHOT_BYTES_MIN: u64 = 1 << 20;

/// The most bytes of recent messages that a log keeps in memory.
const LOG_CACHE_BYTES_MAX: usize = 4 << 20;

/// A log gets at most this part of what is left for messages in memory, so that something is left for later ones.
const CACHE_PART: usize = 16;

impl<R: Runtime + Files> DurableStorage<R> {
    /// Opens the storage in `dir`, or creates it. Returns the catalogue that it has, too. `config` is for the logs of
    /// partitions, which keep at most `cache_bytes_max` bytes of recent messages in memory, all together.
    ///
    /// A stored offset that is beyond the end of its log, because a loss of power has taken the messages, is set back
    /// to the last message.
    ///
    /// # Errors
    /// A sentence that names the file or directory: it is open elsewhere, damaged, of a newer version, or cannot be
    /// read or written.
    pub async fn open(
        dir: &Path,
        config: PartitionConfig,
        cache_bytes_max: usize,
    ) -> io::Result<(Self, Catalogue)> {
        let journal_dir = dir.join("catalogue");
        let mut journal_config = PartitionConfig::default();
        (journal_config.sync, journal_config.cache_bytes_max) = (config.sync, 0);
        let (journal, replay) =
            Journal::<R>::open(&journal_dir, journal_config).await.map_err(explained)?;
        let snapshot_bytes = replay.snapshot.as_ref().map_or(0, |state| state.len() as u64);
        let is_new = replay.snapshot.is_none() && replay.records.is_empty();
        let mut catalogue = restore(&replay).map_err(|error| damaged(&journal_dir, error))?;
        let storage = Self {
            dir: dir.to_owned(),
            config,
            journal,
            snapshot_bytes: Cell::new(snapshot_bytes),
            logs: RefCell::default(),
            cache_bytes_left: Cell::new(cache_bytes_max),
            long_batches: Arc::new(Semaphore::new(LONG_BATCHES_MAX)),
            failures: Failures::default(),
        };
        storage.compare_with_directory(&catalogue, is_new).await?;
        storage.open_partitions(&catalogue).await?;
        let end =
            |log| storage.logs.borrow().get(&log).map_or(0, |log| log.partition.offsets().next);
        if catalogue.clamp_offsets(end) > 0 {
            // Else they would be there again after the next start, when the log may be longer.
            let state = catalogue.to_bytes();
            storage.journal.snapshot(state.into()).await.map_err(explained)?;
        }
        Ok((storage, catalogue))
    }

    /// Removes partitions that the catalogue does not have, and fails if it has others than there are.
    async fn compare_with_directory(&self, catalogue: &Catalogue, is_new: bool) -> io::Result<()> {
        let partitions_dir = self.dir.join("partitions");
        let entries = match R::list_dir(&partitions_dir).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            result => result.map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot list {}: {error}", partitions_dir.display()),
                )
            })?,
        };
        let numbers = entries.iter().filter_map(|entry| entry.name.to_str()?.parse().ok());
        let present: BTreeSet<_> = numbers.map(LogId).collect();
        let expected: BTreeSet<_> = catalogue.logs().collect();
        if is_new && !present.is_empty() {
            return Err(damaged(
                &partitions_dir,
                "it has partitions, and there is no catalogue of them",
            ));
        }
        if let Some(&missing) = expected.difference(&present).next() {
            return Err(damaged(
                &self.partition_dir(missing),
                "the catalogue has this partition, and it is missing",
            ));
        }
        for &unused in present.difference(&expected) {
            owned_io_log::remove::<R>(self.partition_dir(unused)).await.map_err(explained)?;
        }
        Ok(())
    }

    async fn open_partitions(&self, catalogue: &Catalogue) -> io::Result<()> {
        let logs: Vec<_> = catalogue.logs().collect();
        let mut cut_bytes = 0;
        for some in logs.chunks(PARTITIONS_AT_ONCE) {
            let opening: Vec<_> = some
                .iter()
                .map(|&log| {
                    let (dir, config) = (self.partition_dir(log), self.config_of_next());
                    (log, config, R::spawn(Partition::<R>::open(dir, config)))
                })
                .collect();
            for (log, config, opened) in opening {
                let opened = opened.await.map_err(io::Error::from)?;
                let (partition, recovered) = opened.map_err(explained)?;
                cut_bytes += recovered.cut_bytes;
                self.insert(log, partition, config);
            }
        }
        info!(partitions = logs.len(), cut_bytes, "opened the log");
        Ok(())
    }

    /// The settings of the next log that is opened. What it may keep in memory is taken from what is left.
    fn config_of_next(&self) -> PartitionConfig {
        let left = self.cache_bytes_left.get();
        let mut config = self.config;
        config.cache_bytes_max = (left / CACHE_PART).min(LOG_CACHE_BYTES_MAX);
        self.cache_bytes_left.set(left - config.cache_bytes_max);
        config
    }

    fn insert(&self, log: LogId, partition: Partition<R>, config: PartitionConfig) {
        let (long_batches, failures) = (Arc::clone(&self.long_batches), self.failures.clone());
        let cache_bytes = config.cache_bytes_max;
        let opened = DurableLog { partition, cache_bytes, long_batches, failures };
        self.logs.borrow_mut().insert(log, opened);
    }

    fn partition_dir(&self, log: LogId) -> PathBuf {
        self.dir.join("partitions").join(log.0.to_string())
    }

    async fn open_log(&self, log: LogId) -> Result<Rc<dyn MessageLog>, Status> {
        if let Some(open) = self.logs.borrow().get(&log) {
            return Ok(Rc::new(open.clone()));
        }
        let config = self.config_of_next();
        match Partition::<R>::open(self.partition_dir(log), config).await {
            Ok((partition, _)) => self.insert(log, partition, config),
            Err(error) => {
                self.cache_bytes_left.set(self.cache_bytes_left.get() + config.cache_bytes_max);
                return Err(self.failures.status::<R>(&error, Status::Error));
            }
        }
        let opened = self.logs.borrow().get(&log).cloned();
        opened.map(|log| Rc::new(log) as Rc<dyn MessageLog>).ok_or(Status::Error)
    }

    async fn remove_log(&self, log: LogId) -> Result<(), Status> {
        let removed = self.logs.borrow_mut().remove(&log);
        if let Some(DurableLog { partition, cache_bytes, .. }) = removed {
            self.cache_bytes_left.set(self.cache_bytes_left.get() + cache_bytes);
            let _ = partition.close().await; // an error: what it has is removed anyway
        }
        let mut attempts = REMOVE_ATTEMPTS;
        loop {
            match owned_io_log::remove::<R>(self.partition_dir(log)).await {
                // A poll that runs has the directory open.
                Err(error) if error.kind() == ErrorKind::Locked && attempts > 1 => {
                    attempts -= 1;
                    R::sleep(REMOVE_PAUSE).await;
                }
                removed => {
                    return removed
                        .map_err(|error| self.failures.status::<R>(&error, Status::Error));
                }
            }
        }
    }

    async fn close_all(&self) -> Result<(), Status> {
        let partitions: Vec<_> =
            self.logs.borrow().values().map(|log| log.partition.clone()).collect();
        let mut closed = Ok(());
        for some in partitions.chunks(PARTITIONS_AT_ONCE) {
            let closing: Vec<_> =
                some.iter().map(|partition| R::spawn(partition.clone().close())).collect();
            for task in closing {
                let ended = task.await.map_err(|_| Status::Error)?;
                if let Err(status) = self.checked(ended, Status::Error) {
                    closed = Err(status);
                }
            }
        }
        // After the partitions: no offset is durable before the messages that it counts.
        let flushed = self.checked(self.journal.flush().await, Status::Error);
        closed.and(flushed)
    }

    fn checked<T>(&self, result: Result<T, Error>, otherwise: Status) -> Result<T, Status> {
        result.map_err(|error| self.failures.status::<R>(&error, otherwise))
    }
}

/// How often a directory is tried to be removed, and the pause between two attempts: a second together. A read of the
/// log takes less, or the start after this one removes the directory.
const REMOVE_ATTEMPTS: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

impl<R: Runtime + Files> Storage for DurableStorage<R> {
    fn open(&self, log: LogId) -> LocalFuture<'_, Result<Rc<dyn MessageLog>, Status>> {
        Box::pin(self.open_log(log))
    }

    fn remove(&self, log: LogId) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(self.remove_log(log))
    }

    fn record(&self, record: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async { self.checked(self.journal.append(record.into()).await, Status::Error) })
    }

    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async { self.checked(self.journal.flush().await, Status::Error) })
    }

    fn is_snapshot_due(&self) -> bool {
        let bytes_max = self.snapshot_bytes.get().max(SNAPSHOT_BYTES_MIN);
        self.journal.bytes_since_snapshot() > bytes_max
    }

    fn snapshot(&self, state: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async {
            self.snapshot_bytes.set(state.len() as u64);
            self.checked(self.journal.snapshot(state.into()).await, Status::Error)
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(self.close_all())
    }
}

/// The log of a partition. A clone is another handle to it.
#[derive(Debug)]
struct DurableLog<R: Files> {
    partition: Partition<R>,
    /// Its part of the memory for recent messages.
    cache_bytes: usize,
    long_batches: Arc<Semaphore>,
    failures: Failures,
}

impl<R: Runtime + Files> DurableLog<R> {
    fn checked<T>(&self, result: Result<T, Error>, otherwise: Status) -> Result<T, Status> {
        result.map_err(|error| self.failures.status::<R>(&error, otherwise))
    }

    /// About as many bytes as `count` messages have, by the average of all that there are.
    fn bytes_of(&self, count: u32) -> usize {
        let Offsets { first, next } = self.partition.offsets();
        let average = self.partition.size().bytes / (next - first).max(1);
        let bytes = average.saturating_mul(count.into());
        let bytes = bytes.saturating_add(bytes / 8).saturating_add(READ_BYTES_SPARE);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    async fn find(
        &self,
        mut from: ReadFrom,
        mut count: u32,
        bytes_max: usize,
    ) -> Result<Vec<StoredBatch>, Status> {
        let mut left = bytes_max;
        let mut found = Vec::new();
        // Each round reads a batch, or ends.
        loop {
            let read = self.partition.read_within(from, left.min(self.bytes_of(count)), left).await;
            let read = match read {
                Err(error) if error.kind() == ErrorKind::TooLarge && found.is_empty() => {
                    return self.find_long(from).await;
                }
                Err(error) if error.kind() == ErrorKind::TooLarge => return Ok(found),
                read => self.checked(read, Status::CannotReadMessage)?,
            };
            let Some(last) = read.last() else { return Ok(found) };
            let next = last.next_offset();
            for batch in read {
                let skipped = match from {
                    ReadFrom::Offset(offset) => offset.saturating_sub(batch.base_offset),
                    ReadFrom::Timestamp(_) => 0,
                };
                let skipped = u32::try_from(skipped).unwrap_or(u32::MAX);
                count = count.saturating_sub(batch.count.saturating_sub(skipped));
                if batch.bytes.len() > left && !found.is_empty() {
                    return Ok(found);
                }
                left = left.saturating_sub(batch.bytes.len());
                found.push(stored(batch));
            }
            if count == 0 || left == 0 {
                return Ok(found);
            }
            from = ReadFrom::Offset(next);
        }
    }

    /// Reads one batch that the caller has no memory for.
    async fn find_long(&self, from: ReadFrom) -> Result<Vec<StoredBatch>, Status> {
        let permit = self.long_batches.acquire_arc().await;
        let read = self.partition.read(from, 0).await;
        let mut found = self.checked(read, Status::CannotReadMessage)?.into_iter().map(stored);
        let Some(mut batch) = found.next() else { return Ok(Vec::new()) };
        batch.bytes = Bytes::from_owner(LongBatch { bytes: batch.bytes, _permit: permit });
        Ok(vec![batch])
    }
}

/// The bytes of a batch, and the permit to have them in memory.
struct LongBatch {
    bytes: Bytes,
    _permit: SemaphoreGuardArc,
}

impl AsRef<[u8]> for LongBatch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn stored(batch: owned_io_log::Batch) -> StoredBatch {
    let owned_io_log::Batch { base_offset, count, timestamp, bytes, .. } = batch;
    StoredBatch { base_offset, count, timestamp, bytes }
}

/// The least that is read at once, in bytes.
const READ_BYTES_SPARE: u64 = 16 * 1024;

impl<R: Runtime + Files> MessageLog for DurableLog<R> {
    fn append(&self, batch: Batch, id: u128) -> LocalFuture<'_, Result<Appended, Status>> {
        let count = batch.count();
        Box::pin(async move {
            let appended = self.partition.append(count, |at| [batch.stamp(at, id)]).await;
            self.checked(appended, Status::CannotAppendMessage)
        })
    }

    fn read(
        &self,
        from: ReadFrom,
        count: u32,
        bytes_max: usize,
    ) -> LocalFuture<'_, Result<Vec<StoredBatch>, Status>> {
        Box::pin(self.find(from, count, bytes_max))
    }

    fn offsets(&self) -> Offsets {
        self.partition.offsets()
    }

    fn size(&self) -> Size {
        self.partition.size()
    }

    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async { self.checked(self.partition.flush().await, Status::CannotAppendMessage) })
    }

    fn purge(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async { self.checked(self.partition.purge().await, Status::Error) })
    }

    fn trim(&self, retention: Retention) -> LocalFuture<'_, Result<u64, Status>> {
        Box::pin(async move {
            let trimmed = self.checked(self.partition.trim(retention).await, Status::Error)?;
            Ok(trimmed.bytes)
        })
    }
}

impl<R: Files> Clone for DurableLog<R> {
    fn clone(&self) -> Self {
        Self {
            partition: self.partition.clone(),
            cache_bytes: self.cache_bytes,
            long_batches: Arc::clone(&self.long_batches),
            failures: self.failures.clone(),
        }
    }
}

/// Tells clients and the operator of operations that have failed. Clones share the limit of lines of log.
#[derive(Clone, Debug, Default)]
struct Failures(Rc<RefCell<LogLimit>>);

impl Failures {
    /// The status for the client whose operation has failed. Logs the cause.
    fn status<R: Runtime>(&self, error: &Error, status: Status) -> Status {
        let status = match error.kind() {
            ErrorKind::Closed => return Status::PartitionNotFound, // it was deleted meanwhile
            ErrorKind::TooLarge => return Status::InvalidSizeBytes,
            ErrorKind::NoSpace => Status::TopicFull,
            _ => status,
        };
        if let Some(suppressed) = self.0.borrow_mut().admit(R::now()) {
            warn!(%status, suppressed, "{}", with_cause(error));
        }
        status
    }
}

fn restore(replay: &Replay) -> Result<Catalogue, RecordError> {
    let mut catalogue = Catalogue::from_bytes(replay.snapshot.as_deref().unwrap_or_default())?;
    for record in &replay.records {
        catalogue.replay(&Record::decode(record)?)?;
    }
    Ok(catalogue)
}

fn damaged(path: &Path, why: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

/// An error in one sentence, with its cause.
fn explained(error: Error) -> io::Error {
    let sentence = with_cause(&error);
    io::Error::new(io::Error::from(error).kind(), sentence)
}

fn with_cause(error: &Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

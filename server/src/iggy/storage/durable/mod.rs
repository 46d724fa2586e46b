//! [`DurableStorage`]: messages and the catalogue in a directory.
//!
//! ```text
//! DIR/catalogue/         the journal of the catalogue: the first to be locked
//! DIR/partitions/LOG/    the messages of a partition, by the number of its `LogId`
//! ```
//!
//! What has another name there is ignored. A file or a link with the name of a partition is refused.
//!
//! The directory of a partition is there before the record that creates it, and is removed after the record that deletes
//! it. So a crash leaves directories that nobody needs, and [`open`](DurableStorage::open) removes them. It refuses a
//! catalogue whose partitions are missing, and partitions without a catalogue.

mod directory;
mod log;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use directory::first_few;
use log::{DurableLog, Failures, is_out_of_descriptors, with_cause};
use owned_io::{Files, Runtime};
use owned_io_log::{
    Error, ErrorKind, Journal, Observer, Partition, PartitionConfig, Recovered, Replay,
};
use owned_io_stalls::Gauge;
use tracing::{info, warn};

use super::{CatalogueFailure, LocalFuture, MessageLog, Storage};
use crate::iggy::Status;
use crate::iggy::catalogue::{Catalogue, LogId, PARTITIONS_MAX, Record, RecordError};
use crate::iggy::join::{PARTITIONS_AT_ONCE, join_all};

/// Keeps messages in [`Partition`]s, and the catalogue in a [`Journal`].
#[derive(Debug)]
pub struct DurableStorage<R: Files> {
    dir: PathBuf,
    config: PartitionConfig,
    journal: Journal<R>,
    /// The length of the last snapshot that was begun, in bytes.
    snapshot_bytes: Cell<u64>,
    /// How many bytes the records since the last snapshot had when another one was begun that has failed, or is not
    /// finished. 0: there is none.
    unfinished_at: Cell<u64>,
    logs: RefCell<BTreeMap<LogId, DurableLog<R>>>,
    /// The bytes of recent messages that further logs may keep in memory.
    cache_bytes_left: Cell<usize>,
    /// The files that further logs may keep open beyond [`LOG_FILES`].
    open_segments_left: Cell<usize>,
    /// The indexes of closed files that further logs may keep.
    closed_indexes_left: Cell<usize>,
    failures: Failures,
    /// Who is told when the journal fails.
    failure: OnceCell<CatalogueFailure>,
    observer: RefCell<Option<Rc<dyn Observer>>>,
    /// Counts the appends of all logs that have begun and not ended.
    appends: Rc<OnceCell<Gauge>>,
}

/// A snapshot of the catalogue is made when the records since the last one have as many bytes, or as many as that one if
/// it is longer: so it is written a second time at most for each byte of the records. If it fails, the next one is made
/// after as many bytes again.
const SNAPSHOT_BYTES_MIN: u64 = 1 << 20;

/// The most bytes of recent messages that a log keeps in memory.
const LOG_CACHE_BYTES_MAX: usize = 4 << 20;

/// A log gets at most this part of what is left for messages in memory, so that something is left for later ones. The
/// same holds for open files, and for indexes.
const CACHE_PART: usize = 16;

/// The open files of each log: its lock, the segment that is written to, and one that is read.
const LOG_FILES: usize = 3;

/// The most segments that all logs keep open besides, for consumers that read old messages of the same log.
const OPEN_SEGMENTS_MAX: usize = 4096;

/// The most of them that a log keeps open.
const LOG_OPEN_SEGMENTS_MAX: usize = 15;

/// The most segments whose index all logs keep in memory although their files are closed, of at most 12 KiB each: 48 MiB.
/// A poll that opens a segment without an index reads the headers of all its batches.
const CLOSED_INDEXES_MAX: usize = 4096;

/// The most of them that a log keeps. So four consumers can read old messages of one log, each in another segment, and
/// no poll reads these headers again.
const LOG_CLOSED_INDEXES_MAX: usize = 3;

/// The most files that a storage keeps open, with as many partitions as there may be. Polls in progress, changes and
/// snapshots have some more for a moment.
pub const OPEN_FILES_MAX: usize = LOG_FILES * (PARTITIONS_MAX + 1) + OPEN_SEGMENTS_MAX;

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
        journal_config.open_segments_max = 1;
        let open = async || Journal::<R>::open(&journal_dir, journal_config).await;
        let (journal, replay) = once_unlocked::<R, _>(open).await.map_err(explained)?;
        let snapshot_bytes = replay.snapshot.as_ref().map_or(0, |state| state.len() as u64);
        let is_new = replay.snapshot.is_none() && replay.records.is_empty();
        let mut catalogue = restore(&replay).map_err(|error| damaged(&journal_dir, error))?;
        let storage = Self {
            dir: dir.to_owned(),
            config,
            journal,
            snapshot_bytes: Cell::new(snapshot_bytes),
            unfinished_at: Cell::new(0),
            logs: RefCell::default(),
            cache_bytes_left: Cell::new(cache_bytes_max),
            open_segments_left: Cell::new(OPEN_SEGMENTS_MAX),
            closed_indexes_left: Cell::new(CLOSED_INDEXES_MAX),
            failures: Failures::default(),
            failure: OnceCell::new(),
            observer: RefCell::default(),
            appends: Rc::default(),
        };
        storage.compare_with_directory(&catalogue, is_new).await?;
        let logs: Vec<_> = catalogue.logs().collect();
        let opened = storage.open_partitions(&logs).await.map_err(explained)?;
        let was_closed = opened.iter().filter(|recovered| recovered.was_closed).count();
        let cut: Vec<_> =
            opened.into_iter().chain([replay.recovered]).filter_map(cut_tail).collect();
        info!(partitions = logs.len(), was_closed, "opened the log");
        if !cut.is_empty() {
            let bytes: u64 = cut.iter().map(|(_, bytes)| bytes).sum();
            let files = cut.iter().map(|(file, bytes)| format!("{}: {bytes}", file.display()));
            let files = first_few(files);
            warn!(bytes, %files, "cut torn ends of files: they were not synced");
        }
        let end =
            |log| storage.logs.borrow().get(&log).map_or(0, |log| log.partition.offsets().next);
        let set_back = catalogue.clamp_offsets(end);
        if !set_back.is_empty() {
            let offsets: usize = set_back.iter().map(|(_, offsets)| offsets).sum();
            let partitions = set_back.iter().map(|&(log, offsets)| {
                format!("{}: {offsets}", storage.partition_dir(log).display())
            });
            let partitions = first_few(partitions);
            warn!(
                offsets,
                %partitions,
                "stored offsets were beyond the end of their partitions: messages are lost"
            );
            // Else they would be there again after the next start, when the log may be longer.
            let state = catalogue.to_bytes();
            storage.journal.snapshot(state.into()).await.map_err(explained)?;
        }
        Ok((storage, catalogue))
    }

    /// Lets `observer` learn of the writes and syncs of all logs from now on.
    pub fn observe(&self, observer: Rc<dyn Observer>) {
        self.journal.observe(Rc::clone(&observer));
        for log in self.logs.borrow().values() {
            log.partition.observe(Rc::clone(&observer));
        }
        self.observer.replace(Some(observer));
    }

    /// Counts in `gauge` the batches that wait to be acknowledged by a log, from now on. Only the first gauge counts.
    pub fn count_appends(&self, gauge: Gauge) {
        let _ = self.appends.set(gauge);
    }

    /// Tells `failure` when a command finds that the journal of the catalogue has failed. Only the first one is told.
    pub fn report_failure(&self, failure: CatalogueFailure) {
        let _ = self.failure.set(failure);
    }

    /// Opens partitions, none of which is open. Returns what was found, in their order.
    async fn open_partitions(&self, logs: &[LogId]) -> Result<Vec<Recovered>, Error> {
        let mut all = Vec::with_capacity(logs.len());
        for some in logs.chunks(PARTITIONS_AT_ONCE) {
            let opened = join_all(some.iter().map(async |&log| {
                let config = self.config_of_next();
                let open = async || Partition::<R>::open(self.partition_dir(log), config).await;
                match once_unlocked::<R, _>(open).await {
                    Ok((partition, recovered)) => {
                        self.insert(log, partition, config);
                        Ok(recovered)
                    }
                    Err(error) => {
                        self.give_back(&config);
                        Err(error)
                    }
                }
            }));
            for opened in opened.await {
                all.push(opened?);
            }
        }
        Ok(all)
    }

    /// The settings of the next log that is opened. What it may keep in memory and open is taken from what is left.
    fn config_of_next(&self) -> PartitionConfig {
        let take = |left: &Cell<usize>, most: usize| {
            let taken = (left.get() / CACHE_PART).min(most);
            left.set(left.get() - taken);
            taken
        };
        let mut config = self.config;
        config.cache_bytes_max = take(&self.cache_bytes_left, LOG_CACHE_BYTES_MAX);
        config.open_segments_max = 1 + take(&self.open_segments_left, LOG_OPEN_SEGMENTS_MAX);
        config.indexes_max =
            config.open_segments_max + take(&self.closed_indexes_left, LOG_CLOSED_INDEXES_MAX);
        config
    }

    /// Gives back what [`config_of_next`](Self::config_of_next) has taken.
    fn give_back(&self, config: &PartitionConfig) {
        let give = |left: &Cell<usize>, count: usize| left.set(left.get() + count);
        give(&self.cache_bytes_left, config.cache_bytes_max);
        give(&self.open_segments_left, config.open_segments_max - 1);
        give(&self.closed_indexes_left, config.indexes_max - config.open_segments_max);
    }

    fn insert(&self, log: LogId, partition: Partition<R>, config: PartitionConfig) {
        if let Some(observer) = &*self.observer.borrow() {
            partition.observe(Rc::clone(observer));
        }
        let (failures, appends) = (self.failures.clone(), Rc::clone(&self.appends));
        let opened = DurableLog { partition, config, failures, appends };
        self.logs.borrow_mut().insert(log, opened);
    }

    fn partition_dir(&self, log: LogId) -> PathBuf {
        self.dir.join("partitions").join(log.0.to_string())
    }

    async fn open_logs(&self, logs: &[LogId]) -> Result<Vec<Rc<dyn MessageLog>>, Status> {
        let is_new = |log: &&LogId| !self.logs.borrow().contains_key(log);
        let new: Vec<_> = logs.iter().filter(is_new).copied().collect();
        if let Err(error) = self.open_partitions(&new).await {
            let status = match is_out_of_descriptors(&error) {
                true => Status::TooManyPartitions,
                false => Status::Error,
            };
            let status = self.failures.status::<R>(&error, status);
            // Otherwise they would keep descriptors and space, and no record has them.
            let _ = self.remove_logs(&new).await; // an error was logged, and the next start removes them
            return Err(status);
        }
        let open = self.logs.borrow();
        let opened = logs.iter().map(|log| open.get(log).cloned().ok_or(Status::Error));
        opened.map(|log| log.map(|log| Rc::new(log) as Rc<dyn MessageLog>)).collect()
    }

    async fn remove_logs(&self, logs: &[LogId]) -> Result<(), Status> {
        let mut removed = Ok(());
        for some in logs.chunks(PARTITIONS_AT_ONCE) {
            let removing = join_all(some.iter().map(async |log| {
                let open = self.logs.borrow_mut().remove(log);
                if let Some(DurableLog { partition, config, .. }) = open {
                    self.give_back(&config);
                    let _ = partition.close().await; // an error: what it has is removed anyway
                }
                let dir = self.partition_dir(*log);
                let remove = async || owned_io_log::remove::<R>(&dir).await;
                self.checked(once_unlocked::<R, _>(remove).await, Status::Error)
            }));
            removed = removing.await.into_iter().fold(removed, Result::and);
        }
        removed
    }

    async fn close_all(&self) -> Result<(), Status> {
        self.failures.set_closing();
        let partitions: Vec<_> =
            self.logs.borrow().values().map(|log| log.partition.clone()).collect();
        let mut closed = Ok(());
        for some in partitions.chunks(PARTITIONS_AT_ONCE) {
            let closing = join_all(some.iter().map(async |partition| {
                self.checked(partition.clone().close().await, Status::Error)
            }));
            closed = closing.await.into_iter().fold(closed, Result::and);
        }
        // After the partitions: no offset is durable before the messages that it counts.
        closed.and(self.checked(self.journal.close().await, Status::Error))
    }

    /// The result of an operation of the journal.
    fn journaled<T>(&self, result: Result<T, Error>) -> Result<T, Status> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Failed)
            && let Some(failure) = self.failure.get()
        {
            failure.happens();
        }
        self.checked(result, Status::Error)
    }

    fn checked<T>(&self, result: Result<T, Error>, otherwise: Status) -> Result<T, Status> {
        result.map_err(|error| self.failures.status::<R>(&error, otherwise))
    }
}

/// Repeats `operation` while a lock of the directory is held, for a second at most.
///
/// A process that was killed holds its locks until the kernel has ended what it had in flight. With io_uring that is some
/// milliseconds after its end (Linux 6.18). A read of a log that is to be removed holds one, too.
async fn once_unlocked<R: Runtime, T>(
    operation: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut attempts = LOCK_ATTEMPTS;
    loop {
        match operation().await {
            Err(error) if error.kind() == ErrorKind::Locked && attempts > 1 => {
                attempts -= 1;
                R::sleep(LOCK_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// How often, and the pause between two attempts: a second together.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

impl<R: Runtime + Files> Storage for DurableStorage<R> {
    fn open<'a>(
        &'a self,
        logs: &'a [LogId],
    ) -> LocalFuture<'a, Result<Vec<Rc<dyn MessageLog>>, Status>> {
        Box::pin(self.open_logs(logs))
    }

    fn remove<'a>(&'a self, logs: &'a [LogId]) -> LocalFuture<'a, Result<(), Status>> {
        Box::pin(self.remove_logs(logs))
    }

    fn record(&self, record: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async { self.journaled(self.journal.append(record.into()).await) })
    }

    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async { self.journaled(self.journal.flush().await) })
    }

    fn is_snapshot_due(&self) -> bool {
        let bytes_max = self.snapshot_bytes.get().max(SNAPSHOT_BYTES_MIN);
        let bytes = self.journal.bytes_since_snapshot();
        bytes.saturating_sub(self.unfinished_at.get()) > bytes_max
    }

    fn snapshot(&self, state: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async {
            self.snapshot_bytes.set(state.len() as u64);
            self.unfinished_at.set(self.journal.bytes_since_snapshot());
            let made = self.journaled(self.journal.snapshot(state.into()).await);
            if made.is_ok() {
                self.unfinished_at.set(0);
            }
            made
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(self.close_all())
    }
}

fn restore(replay: &Replay) -> Result<Catalogue, RecordError> {
    let mut catalogue = Catalogue::from_bytes(replay.snapshot.as_deref().unwrap_or_default())?;
    for record in &replay.records {
        catalogue.replay(&Record::decode(record)?)?;
    }
    Ok(catalogue)
}

/// The file that recovery has cut, and by how many bytes.
fn cut_tail(recovered: Recovered) -> Option<(PathBuf, u64)> {
    recovered.cut_file.map(|file| (file, recovered.cut_bytes))
}

fn damaged(path: &Path, why: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

/// An error in one sentence, with its cause.
fn explained(error: Error) -> io::Error {
    let sentence = with_cause(&error);
    io::Error::new(io::Error::from(error).kind(), sentence)
}

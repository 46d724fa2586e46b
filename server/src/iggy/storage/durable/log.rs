//! [`DurableLog`]: the log of one partition, as commands use it.

use std::cell::RefCell;
use std::error::Error as _;
use std::rc::Rc;
use std::sync::Arc;

use async_lock::{Semaphore, SemaphoreGuardArc};
use bytes::Bytes;
use owned_io::{Files, Runtime};
use owned_io_log::{Error, ErrorKind, Partition};
use tracing::warn;

use super::super::{
    Appended, LocalFuture, MessageLog, Offsets, ReadFrom, Retention, Size, StoredBatch,
};
use crate::iggy::Status;
use crate::iggy::messages::Batch;
use crate::log_limit::LogLimit;

/// How many batches are read, or being sent, that are longer than what was reserved for their poll. Further polls of such
/// batches wait. All logs together: 128 MiB with the default of `--message-bytes-max`.
pub(super) const LONG_BATCHES_MAX: usize = 8;

/// The log of a partition. A clone is another handle to it.
#[derive(Debug)]
pub(super) struct DurableLog<R: Files> {
    pub(super) partition: Partition<R>,
    /// Its part of the memory for recent messages.
    pub(super) cache_bytes: usize,
    pub(super) long_batches: Arc<Semaphore>,
    pub(super) failures: Failures,
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
pub(super) struct Failures(Rc<RefCell<LogLimit>>);

impl Failures {
    /// The status for the client whose operation has failed. Logs the cause.
    pub(super) fn status<R: Runtime>(&self, error: &Error, status: Status) -> Status {
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

/// An error in one sentence, with its cause.
pub(super) fn with_cause(error: &Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

//! [`DurableLog`]: the log of one partition, as commands use it.

use std::cell::{Cell, OnceCell, RefCell};
use std::error::Error as _;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use owned_io::{Files, Runtime};
use owned_io_log::{Error, ErrorKind, Partition, PartitionConfig};
use owned_io_stalls::Gauge;
use tracing::warn;

use super::super::{
    Appended, BATCHES_MAX, LocalFuture, MessageLog, Offsets, Position, ReadError, ReadFrom,
    Retention, Size, StoredBatch, copied, skipped,
};
use crate::iggy::Status;
use crate::iggy::messages::Batch;
use crate::log_limit::LogLimit;

/// The log of a partition. A clone is another handle to it.
#[derive(Debug)]
pub(super) struct DurableLog<R: Files> {
    pub(super) partition: Partition<R>,
    /// With its part of the memory for recent messages, and of the open files.
    pub(super) config: PartitionConfig,
    pub(super) failures: Failures,
    /// Counts the appends of all logs that have begun and not ended.
    pub(super) appends: Rc<OnceCell<Gauge>>,
}

impl<R: Runtime + Files> DurableLog<R> {
    fn checked<T>(&self, result: Result<T, Error>, otherwise: Status) -> Result<T, Status> {
        result.map_err(|error| self.failures.status::<R>(&error, otherwise))
    }

    /// About as many bytes as `count` messages have, by the average of all that there are.
    fn bytes_of(&self, count: u32) -> usize {
        let Offsets { first, next } = self.partition.offsets();
        let average = self.partition.size().bytes / (next - first).max(1);
        with_spare(average.saturating_mul(count.into()))
    }

    /// About as many bytes as the batches have that can follow those that were found. Before the first, a batch is taken
    /// for a message.
    fn bytes_of_batches(&self, found: &[StoredBatch]) -> usize {
        let left = BATCHES_MAX.saturating_sub(found.len());
        if found.is_empty() {
            return self.bytes_of(left as u32);
        }
        let bytes: usize = found.iter().map(|batch| batch.bytes.len()).sum();
        with_spare((bytes / found.len()).saturating_mul(left) as u64)
    }

    async fn find(
        &self,
        mut from: ReadFrom,
        mut count: u32,
        bytes_max: usize,
    ) -> Result<Vec<StoredBatch>, ReadError> {
        let mut left = bytes_max;
        let mut found = Vec::new();
        // Each round reads a batch, or ends.
        loop {
            let wanted = left.min(self.bytes_of(count)).min(self.bytes_of_batches(&found));
            let read = self.partition.read_within(from, wanted, left).await;
            let read = match (read, found.is_empty()) {
                (Ok(read), _) => read,
                (Err(_), false) => return Ok(found), // the next poll comes to it
                (Err(error), true) => match error.batch_bytes() {
                    Some(bytes) => return Err(ReadError::TooLong(bytes)),
                    None => {
                        let status = self.failures.status::<R>(&error, Status::CannotReadMessage);
                        return Err(ReadError::Failed(status));
                    }
                },
            };
            let Some(last) = read.last() else { return Ok(found) };
            let next = last.next_offset();
            for batch in read {
                let wanted = batch.count.saturating_sub(skipped(from, batch.base_offset));
                count = count.saturating_sub(wanted);
                if batch.bytes.len() > left && !found.is_empty() {
                    return Ok(found);
                }
                left = left.saturating_sub(batch.bytes.len());
                found.push(stored(batch));
                if found.len() == BATCHES_MAX {
                    return Ok(found);
                }
            }
            if count == 0 || left == 0 {
                return Ok(found);
            }
            from = ReadFrom::Offset(next);
        }
    }
}

fn with_spare(bytes: u64) -> usize {
    let bytes = bytes.saturating_add(bytes / 8).saturating_add(READ_BYTES_SPARE);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn stored(batch: owned_io_log::Batch) -> StoredBatch {
    let owned_io_log::Batch { base_offset, count, timestamp, bytes, .. } = batch;
    StoredBatch { base_offset, count, timestamp, bytes }
}

/// The messages of a batch as they are stored. They are copied out of a buffer that is more than a quarter larger, as a
/// WebSocket may deliver them: the log keeps the whole buffer in memory, and counts the messages.
fn stamped(batch: Batch, at: Position, id: u128) -> Bytes {
    let buffer_bytes = batch.memory_bytes();
    let messages = batch.stamp(at, id);
    let spare = buffer_bytes.saturating_sub(messages.len());
    if messages.len() < COPIED_BYTES_MIN || spare <= messages.len() / 4 {
        return messages;
    }
    copied(messages)
}

/// The log copies smaller batches itself, in bytes: see
/// [`cache_bytes_max`](owned_io_log::PartitionConfig::cache_bytes_max).
const COPIED_BYTES_MIN: usize = 16 * 1024;

/// What is read besides, because batches differ, in bytes.
const READ_BYTES_SPARE: u64 = 16 * 1024;

impl<R: Runtime + Files> MessageLog for DurableLog<R> {
    fn append(&self, batch: Batch, id: u128) -> LocalFuture<'_, Result<Appended, Status>> {
        let count = batch.count();
        Box::pin(async move {
            let _counted = self.appends.get().map(Gauge::count);
            let appended = self.partition.append(count, |at| [stamped(batch, at, id)]).await;
            self.checked(appended, Status::CannotAppendMessage)
        })
    }

    fn read(
        &self,
        from: ReadFrom,
        count: u32,
        bytes_max: usize,
    ) -> LocalFuture<'_, Result<Vec<StoredBatch>, ReadError>> {
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
            config: self.config,
            failures: self.failures.clone(),
            appends: Rc::clone(&self.appends),
        }
    }
}

/// Tells clients and the operator of operations that have failed. Clones are handles to the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures(Rc<FailureState>);

#[derive(Debug, Default)]
struct FailureState {
    limit: RefCell<LogLimit>,
    /// Whether logs are closed because the storage is, and not because their partitions were deleted.
    is_closing: Cell<bool>,
}

impl Failures {
    /// The storage is being closed.
    pub(super) fn set_closing(&self) {
        self.0.is_closing.set(true);
    }

    /// The status for the client whose operation has failed. Logs the cause.
    pub(super) fn status<R: Runtime>(&self, error: &Error, status: Status) -> Status {
        let status = match error.kind() {
            ErrorKind::Closed if self.0.is_closing.get() => return Status::Disconnected,
            ErrorKind::Closed => return Status::PartitionNotFound, // it was deleted meanwhile
            ErrorKind::TooLarge => return Status::InvalidSizeBytes,
            ErrorKind::NoSpace => Status::TopicFull,
            _ => status,
        };
        if let Some(suppressed) = self.0.limit.borrow_mut().admit(R::now()) {
            warn!(%status, suppressed, "{}", with_cause(error));
        }
        status
    }
}

/// An error in one sentence, with its cause, and the limit that can be raised.
pub(super) fn with_cause(error: &Error) -> String {
    match error.source() {
        Some(cause) if is_out_of_descriptors(error) => {
            format!("{error}: {cause}; `ulimit -n` is too low for the partitions of --data")
        }
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Whether the process, or the machine, has as many open files as it may have.
pub(super) fn is_out_of_descriptors(error: &Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    matches!(cause.and_then(io::Error::raw_os_error), Some(ENFILE | EMFILE))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use iggy_binary_protocol::WirePartitioning;

    use super::*;
    use crate::iggy::messages::tests::request;

    /// A WebSocket may deliver a request in a buffer of twice or four times its length.
    #[test]
    fn a_batch_is_copied_out_of_a_much_larger_buffer() {
        for (payload_len, times, is_copied) in
            [(100_000, 1, false), (100_000, 2, true), (100_000, 4, true), (1_000, 4, false)]
        {
            let payload = vec![7; payload_len];
            let request = request(&[&payload[..]], &WirePartitioning::Balanced);
            let mut buffer = BytesMut::with_capacity(times * request.len());
            buffer.extend_from_slice(&request);
            let end = buffer.as_ptr_range().end;
            let batch = Batch::decode(buffer).unwrap().1;
            let messages = stamped(batch, Position { base_offset: 0, timestamp: 1 }, 1);
            assert_eq!(messages.as_ptr_range().end != end, is_copied, "{payload_len} x {times}");
            let len = messages.len();
            assert_eq!(messages[len - payload_len..], payload);
            if len >= COPIED_BYTES_MIN {
                let held = messages.try_into_mut().expect("nobody else has it").capacity();
                assert!(held <= len + len / 4, "{held} bytes are held for {len}");
            }
        }
    }
}

//! Reads that wait for messages, for [tails](crate::service::tail).

use std::pin::pin;

use iggy_binary_protocol::WireIdentifier;
use owned_io::{coop, select};

use super::super::storage::{Offsets, ReadError, ReadFrom, StoredBatch};
use super::logs::EpochOver;
use super::{Broker, Epoch};
use crate::iggy::Status;

/// A partition, as a client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailPlace {
    /// Its stream.
    pub stream: WireIdentifier,
    /// Its topic.
    pub topic: WireIdentifier,
    /// Its number in the topic.
    pub partition: u32,
}

/// A partition that was found.
#[derive(Clone, Copy, Debug)]
pub struct TailStart {
    /// What is read until the partition is purged or deleted.
    pub epoch: Epoch,
    /// The offsets that can be read now.
    pub offsets: Offsets,
}

/// What was read.
#[derive(Debug)]
pub struct Tailed {
    /// Batches in order. There is at least one. The first may begin before the offset that was asked for, and begins
    /// after it if older messages were removed.
    pub batches: Vec<StoredBatch>,
    /// Offsets before this one have lost their messages if they have none. Those behind it may never have had any, as
    /// in Kafka.
    pub lost_until: u64,
    /// The offset behind the last message of the partition.
    pub end: u64,
}

/// Why nothing is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailError {
    /// The partition, its topic or its stream was deleted.
    Deleted,
    /// All messages were removed, or others have replaced the topic. Offsets begin at 0 again.
    Purged,
    /// The first batch has this many bytes, more than were allowed.
    TooLong(usize),
    /// The messages could not be read.
    Unreadable,
    /// The worker with the broker has ended.
    Ended,
}

impl Broker {
    /// Finds a partition. If its messages are being removed, waits until they are.
    ///
    /// # Errors
    /// There is no such stream, topic or partition.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn find_tail(&self, place: &TailPlace) -> Result<TailStart, Status> {
        self.refresh_for(&place.stream, &place.topic).await?;
        let log = {
            let catalogue = self.catalogue.borrow();
            let (_, topic) = catalogue.topic(&place.stream, &place.topic)?;
            self.logs.get(topic.partition(place.partition)?.log)?
        };
        log.refresh().await?;
        if let Some(start) = self.try_find_tail(place)? {
            return Ok(start);
        }
        let _guard = self.changing.lock().await;
        self.try_find_tail(place)?.ok_or(Status::Error)
    }

    /// `None`: its messages are being removed.
    fn try_find_tail(&self, place: &TailPlace) -> Result<Option<TailStart>, Status> {
        let catalogue = self.catalogue.borrow();
        let (_, topic) = catalogue.topic(&place.stream, &place.topic)?;
        let id = topic.partition(place.partition)?.log;
        let offsets = self.logs.get(id)?.offsets();
        Ok(self.logs.epoch(id).map(|epoch| TailStart { epoch, offsets }))
    }

    /// Waits until there are messages from offset `from` on, and reads some of them: at most `bytes_max` bytes. A first
    /// batch that is in memory is returned however long it is.
    ///
    /// # Errors
    /// The epoch is over, also if it ends during the wait; or the first batch is too long or could not be read.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn tail(
        &self,
        epoch: Epoch,
        from: u64,
        bytes_max: usize,
    ) -> Result<Tailed, TailError> {
        // Each round waits for a change, or returns.
        loop {
            let (log, changed) = self.logs.current(epoch)?;
            if from >= log.offsets().next {
                // Who waits is a connection, or one task of a worker for all its connections: that bounds how many do.
                let _ = select(pin!(changed.listen()), pin!(log.wait(from))).await;
                continue;
            }
            let read = log.read(ReadFrom::Offset(from), u32::MAX, bytes_max).await;
            self.logs.current(epoch)?; // what was read is of this epoch
            let batches = read?;
            if batches.is_empty() && self.has_shared_topics() {
                // Others have offsets without messages, as at the end of a transaction.
                let _ = select(pin!(changed.listen()), pin!(log.wait(from))).await;
                continue;
            }
            if batches.is_empty() {
                return Err(TailError::Unreadable);
            }
            coop::consume(coop::cost::source_message(0) * batches.len() as u64);
            let Offsets { first, next } = log.offsets();
            let lost_until = if self.has_shared_topics() { first } else { u64::MAX };
            return Ok(Tailed { batches, lost_until, end: next });
        }
    }
}

impl From<EpochOver> for TailError {
    fn from(over: EpochOver) -> Self {
        match over {
            EpochOver::Deleted => Self::Deleted,
            EpochOver::Purged => Self::Purged,
        }
    }
}

impl From<ReadError> for TailError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::TooLong(bytes) => Self::TooLong(bytes),
            ReadError::Failed(Status::PartitionNotFound) => Self::Deleted,
            ReadError::Failed(_) => Self::Unreadable,
        }
    }
}

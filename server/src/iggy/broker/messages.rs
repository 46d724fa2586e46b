//! Commands about messages, and about offsets that consumers store.

use std::rc::Rc;

use iggy_binary_protocol::requests::consumer_offsets::{
    DeleteConsumerOffsetRequest, GetConsumerOffsetRequest, StoreConsumerOffsetRequest,
};
use iggy_binary_protocol::requests::messages::{
    FlushUnsavedBufferRequest, PollMessagesRequest, SendMessagesHeader,
};
use iggy_binary_protocol::responses::consumer_offsets::ConsumerOffsetResponse;
use iggy_binary_protocol::responses::messages::PollMessagesResponseHeader;
use iggy_binary_protocol::{
    WireConsumer, WireEncode, WireIdentifier, WirePartitioning, WirePollingStrategy,
};
use owned_io::coop;
use twox_hash::XxHash32;

use super::super::answer::{Answer, RoomNeeded};
use super::super::catalogue::{Consumer, GroupId, LogId, TopicId};
use super::super::messages::{Batch, part};
use super::super::storage::{
    Appended, MessageLog, Offsets, ReadError, ReadFrom, StoredBatch, copied, skipped,
};
use super::{Broker, COMMAND_NANOS};
use crate::iggy::Status;

/// The kind of a [`WireConsumer`] that is a consumer group.
const KIND_GROUP: u8 = 2;

/// Where the messages of a batch are: in one partition, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedAt {
    /// The number of the partition in its topic.
    pub partition: u32,
    /// The offset of the first message.
    pub base_offset: u64,
    /// The number of messages.
    pub count: u32,
}

impl Broker {
    /// Appends messages, and waits until they are durable. Returns where they are.
    ///
    /// # Errors
    /// There is no such stream, topic or partition, there is no room, or they could not be stored.
    /// [`Disconnected`](Status::Disconnected): the broker [closes](Self::close).
    ///
    /// # Cancellation
    /// They may be appended all the same.
    pub async fn append(
        &self,
        to: &SendMessagesHeader,
        batch: Batch,
    ) -> Result<AppendedAt, Status> {
        if self.is_closing.get() {
            return Err(Status::Disconnected);
        }
        coop::consume(COMMAND_NANOS);
        self.send(to, batch).await
    }

    pub(super) async fn send(
        &self,
        to: &SendMessagesHeader,
        batch: Batch,
    ) -> Result<AppendedAt, Status> {
        self.refresh_for(&to.stream_id, &to.topic_id).await?;
        let (partition, id, log) = self.partition_for(to)?;
        let Appended { base_offset, count, .. } =
            log.append(batch, (self.environment.random)()).await?;
        self.logs.notify_appended(id);
        Ok(AppendedAt { partition, base_offset, count })
    }

    fn partition_for(
        &self,
        to: &SendMessagesHeader,
    ) -> Result<(u32, LogId, Rc<dyn MessageLog>), Status> {
        let catalogue = self.catalogue.borrow();
        let (at, topic) = catalogue.topic(&to.stream_id, &to.topic_id)?;
        let partitions = topic.partitions().len() as u32;
        if partitions == 0 {
            return Err(Status::NoPartitions);
        }
        let partition = match &to.partitioning {
            WirePartitioning::PartitionId(partition) => *partition,
            WirePartitioning::MessagesKey(key) => XxHash32::oneshot(0, key) % partitions,
            WirePartitioning::Balanced => {
                let mut next_balanced = self.next_balanced.borrow_mut();
                let next = next_balanced.entry(at).or_default();
                let partition = *next % partitions;
                *next = (partition + 1) % partitions;
                partition
            }
        };
        let log = topic.partition(partition)?.log;
        Ok((partition, log, self.logs.get(log)?))
    }

    /// Reads messages, and stores the offset of the last one if that was asked for.
    pub(super) async fn poll(
        &self,
        client: u32,
        poll: &PollMessagesRequest,
        bytes_max: usize,
    ) -> Result<Answer, Status> {
        self.refresh_for(&poll.stream_id, &poll.topic_id).await?;
        let (at, _) = self.topic(&poll.stream_id, &poll.topic_id)?;
        let resolved = self.resolve(at, &poll.consumer, client, poll.partition_id, true)?;
        let Some((consumer, partition)) = resolved else {
            return Ok(polled(0, Offsets::default(), &[]));
        };
        let (log, stored, epoch) = {
            let catalogue = self.catalogue.borrow();
            let partition = catalogue.partition(at, partition)?;
            let log = self.logs.get(partition.log)?;
            (log, partition.offset(consumer), self.logs.epoch(partition.log))
        };
        log.refresh().await?;
        let offsets = log.offsets();
        let Some(from) = start(&poll.strategy, poll.count, offsets, stored) else {
            return Ok(polled(partition, offsets, &[]));
        };
        let read = log.read(from, poll.count, bytes_max).await;
        let found = match read.and_then(|found| select(found, from, poll.count, bytes_max)) {
            Ok(found) => found,
            Err(ReadError::TooLong(bytes)) => {
                return Ok(Answer::needs(RoomNeeded { partition: Some(partition), bytes }));
            }
            Err(ReadError::Failed(status)) => return Err(status),
        };
        // Messages that came meanwhile are there too.
        let offsets = log.offsets();
        if let Some(last) = found.last()
            && poll.auto_commit
        {
            // The messages were purged meanwhile, or the partition is another one: the offset would hide those that come
            // instead.
            let Some(epoch) = epoch.filter(|read| self.epoch(at, partition) == Some(*read)) else {
                return Ok(polled(partition, Offsets::default(), &[]));
            };
            let offset = last.base_offset + u64::from(last.count) - 1;
            self.record_offset(epoch, at, partition, consumer, offset).await?;
        }
        Ok(polled(partition, offsets, &found))
    }

    /// Makes messages durable.
    pub(super) async fn flush(&self, flush: &FlushUnsavedBufferRequest) -> Result<Answer, Status> {
        let (at, _) = self.topic(&flush.stream_id, &flush.topic_id)?;
        let log = self.catalogue.borrow().partition(at, flush.partition_id)?.log;
        let log = self.logs.get(log)?;
        log.flush().await?;
        Ok(Answer::empty())
    }

    /// Stores an offset.
    pub(super) async fn store_offset(
        &self,
        client: u32,
        request: &StoreConsumerOffsetRequest,
    ) -> Result<Answer, Status> {
        let StoreConsumerOffsetRequest { consumer, partition_id, offset, .. } = request;
        let (at, _) = self.topic(&request.stream_id, &request.topic_id)?;
        let resolved = self.resolve(at, consumer, client, *partition_id, false)?;
        let (consumer, partition) = resolved.ok_or(Status::NotResolvedConsumer)?;
        let log = self.catalogue.borrow().partition(at, partition)?.log;
        let stored_in = self.logs.get(log)?;
        if *offset >= stored_in.offsets().next {
            stored_in.refresh().await?;
        }
        if *offset >= stored_in.offsets().next {
            return Err(Status::InvalidOffset);
        }
        // Messages that are being purged count no more.
        let epoch = self.logs.epoch(log).ok_or(Status::InvalidOffset)?;
        self.record_offset(epoch, at, partition, consumer, *offset).await?;
        Ok(Answer::empty())
    }

    /// Forgets an offset.
    pub(super) async fn delete_offset(
        &self,
        client: u32,
        request: &DeleteConsumerOffsetRequest,
    ) -> Result<Answer, Status> {
        let DeleteConsumerOffsetRequest { consumer, partition_id, .. } = request;
        let (at, _) = self.topic(&request.stream_id, &request.topic_id)?;
        let resolved = self.resolve(at, consumer, client, *partition_id, false)?;
        let (consumer, partition) = resolved.ok_or(Status::NotResolvedConsumer)?;
        let epoch = self.epoch(at, partition).ok_or(Status::ConsumerOffsetNotFound)?;
        self.forget_offset(epoch, at, partition, consumer).await?;
        Ok(Answer::empty())
    }

    /// The stored offset of a consumer. Nothing if there is none. Anybody may ask for a group's.
    pub(super) fn get_offset(&self, request: &GetConsumerOffsetRequest) -> Answer {
        self.find_offset(request).map_or_else(|_| Answer::empty(), |found| Answer::of(&found))
    }

    fn find_offset(
        &self,
        request: &GetConsumerOffsetRequest,
    ) -> Result<ConsumerOffsetResponse, Status> {
        let catalogue = self.catalogue.borrow();
        let (_, topic) = catalogue.topic(&request.stream_id, &request.topic_id)?;
        let consumer = match request.consumer.kind {
            KIND_GROUP => Consumer::Group(topic.group(&request.consumer.id)?.0),
            _ => single(&request.consumer.id),
        };
        let partition_id = request.partition_id.unwrap_or(0);
        let partition = topic.partition(partition_id)?;
        let stored_offset = partition.offset(consumer).ok_or(Status::ConsumerOffsetNotFound)?;
        let current_offset = self.logs.get(partition.log)?.offsets().next.saturating_sub(1);
        Ok(ConsumerOffsetResponse { partition_id, current_offset, stored_offset })
    }

    fn topic(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<(TopicId, usize), Status> {
        let catalogue = self.catalogue.borrow();
        let (at, topic) = catalogue.topic(stream, topic)?;
        Ok((at, topic.partitions().len()))
    }

    /// Who stores offsets, and the partition: the named one, the first one, or the one of the member whose turn it is.
    /// None: another member of the group has the partition, or the member has none.
    fn resolve(
        &self,
        at: TopicId,
        consumer: &WireConsumer,
        client: u32,
        partition: Option<u32>,
        advance: bool,
    ) -> Result<Option<(Consumer, u32)>, Status> {
        if consumer.kind != KIND_GROUP {
            return Ok(Some((single(&consumer.id), partition.unwrap_or(0))));
        }
        self.update_members();
        let group = self.catalogue.borrow().topic_at(at)?.group(&consumer.id)?.0;
        let mut members = self.members.borrow_mut();
        let partition = members.partition(GroupId { at, group }, client, partition, advance)?;
        Ok(partition.map(|partition| (Consumer::Group(group), partition)))
    }
}

/// A consumer of its own.
fn single(id: &WireIdentifier) -> Consumer {
    Consumer::Single(match id {
        WireIdentifier::Numeric(number) => *number,
        WireIdentifier::String(name) => XxHash32::oneshot(0, name.as_bytes()),
    })
}

/// Where a poll begins to read. None: there is nothing there yet.
fn start(
    strategy: &WirePollingStrategy,
    count: u32,
    offsets: Offsets,
    stored: Option<u64>,
) -> Option<ReadFrom> {
    const OFFSET: WirePollingStrategy = WirePollingStrategy::offset(0);
    const TIMESTAMP: WirePollingStrategy = WirePollingStrategy::timestamp(0);
    const FIRST: WirePollingStrategy = WirePollingStrategy::first();
    const LAST: WirePollingStrategy = WirePollingStrategy::last();
    let Offsets { first, next } = offsets;
    let offset = match strategy.kind {
        kind if kind == OFFSET.kind => strategy.value,
        kind if kind == TIMESTAMP.kind => {
            return (count > 0).then_some(ReadFrom::Timestamp(strategy.value));
        }
        kind if kind == FIRST.kind => first,
        kind if kind == LAST.kind => next.saturating_sub(count.into()),
        _ => stored.map_or(first, |offset| offset.saturating_add(1)),
    };
    (count > 0 && offset < next).then_some(ReadFrom::Offset(offset.max(first)))
}

/// At most `count` messages of the batches, without those before `from`. If they are less than half of the batches,
/// they are copied, so that the rest is not held with them.
///
/// # Errors
/// They have more than `bytes_max` bytes, or are damaged. A log has returned more if it had them in memory: the answer
/// holds that memory, or a copy, for as long as the client likes.
fn select(
    found: Vec<StoredBatch>,
    from: ReadFrom,
    count: u32,
    bytes_max: usize,
) -> Result<Vec<StoredBatch>, ReadError> {
    let mut left = count;
    let mut selected = Vec::with_capacity(found.len());
    let bytes_of =
        |batches: &[StoredBatch]| -> usize { batches.iter().map(|batch| batch.bytes.len()).sum() };
    let found_bytes = bytes_of(&found);
    for batch in found {
        if left == 0 {
            break;
        }
        let skip = skipped(from, batch.base_offset);
        if skip >= batch.count {
            continue;
        }
        let part = part(&batch.bytes, batch.count, skip, left);
        let (bytes, taken) = part.map_err(ReadError::Failed)?;
        left -= taken;
        coop::consume(coop::cost::source_message(0));
        let base_offset = batch.base_offset + u64::from(skip);
        selected.push(StoredBatch { base_offset, count: taken, bytes, ..batch });
    }
    let bytes = bytes_of(&selected);
    // A part of a batch holds all of it.
    let is_copied = bytes < found_bytes / 2;
    let held_bytes = if is_copied { bytes } else { found_bytes };
    if held_bytes > bytes_max {
        return Err(ReadError::TooLong(held_bytes));
    }
    if is_copied {
        for batch in &mut selected {
            batch.bytes = copied(std::mem::take(&mut batch.bytes));
        }
    }
    Ok(selected)
}

/// The answer to a poll.
fn polled(partition_id: u32, offsets: Offsets, found: &[StoredBatch]) -> Answer {
    let mut answer = Answer::empty();
    let head = PollMessagesResponseHeader {
        partition_id,
        current_offset: offsets.next.saturating_sub(1),
        messages_count: found.iter().map(|batch| batch.count).sum(),
    };
    answer.push(head.to_bytes());
    answer.count_messages(head.messages_count);
    found.iter().for_each(|batch| answer.push(batch.bytes.clone()));
    answer
}

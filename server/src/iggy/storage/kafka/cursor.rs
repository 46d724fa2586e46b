//! [`Cursor`]: where a partition is read, and who waits for its messages.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use owned_io::Sender;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::Offset;

use super::super::{ReadError, StoredBatch};
use super::client::KafkaLogger;
use super::jobs::is_missing;
use super::reader::WakeFlag;
use super::record::{Decoded, decode};
use crate::iggy::Status;

/// How long a read may take. Longer than a broker takes that is well.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a read waits that is told of the end before it has a message: it may have been the end of a while ago.
/// Several times as long as a fetch waits for messages.
const END_TIME: Duration = Duration::from_millis(200);

/// The most messages below the requested offset that a call of [`Cursor::advance`] skips, so that other partitions get
/// their turn. Estimated, not measured: a millisecond of small messages.
const SKIPPED_MAX: u32 = 1_000;

/// A partition.
pub(super) type Place = (Arc<str>, i32);

/// Tells a partition from another one of the same place, as there is after a topic was deleted and created.
pub(super) type Generation = u64;

/// What is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) generation: Generation,
    /// The first offset.
    pub(super) from: u64,
    /// There are messages up to this offset. A read ends there.
    pub(super) until: u64,
    /// The most messages.
    pub(super) count: u32,
    /// The most bytes.
    pub(super) bytes_max: usize,
}

/// What a read gives.
pub(super) type Read = Result<Vec<StoredBatch>, ReadError>;

/// Where an answer goes.
pub(super) struct Answer<T> {
    pub(super) sender: Sender<T>,
    /// Nobody waits any more when it is gone.
    pub(super) waiter: Weak<()>,
}

impl<T> Answer<T> {
    pub(super) fn is_wanted(&self) -> bool {
        self.waiter.strong_count() > 0
    }

    pub(super) fn send(self, value: T) {
        let _ = self.sender.try_send(value); // nobody may wait any more
    }
}

/// A partition that is assigned.
pub(super) struct Cursor {
    /// What was fetched is of this one.
    pub(super) generation: Generation,
    /// `None`: the partition could not be assigned.
    pub(super) queue: Option<PartitionQueue<KafkaLogger>>,
    /// The offset behind the last message that was taken.
    pub(super) position: u64,
    /// The next message, which did not fit, or which somebody waits for.
    pub(super) stash: Option<Decoded>,
    /// Set when a message arrives below the requested offset: the offset after it. librdkafka restarts at the first
    /// message if the requested offset is out of range, as in a re-created topic. The next waiter gets this value.
    pub(super) behind_earlier: Option<u64>,
    /// Whether librdkafka has told of the end since the last message. It does so once for each end, which may be to
    /// somebody who waits, or to an earlier read.
    pub(super) is_at_end: bool,
    pub(super) reads: VecDeque<PendingRead>,
    pub(super) waits: Vec<(u64, Answer<u64>)>,
    pub(super) used_at: Instant,
}

pub(super) struct PendingRead {
    wanted: Wanted,
    answer: Answer<Read>,
    pub(super) deadline: Instant,
    is_started: bool,
    /// Whether it has found the end of the partition, and waits a little for more.
    has_ended: bool,
    found: Found,
}

/// The messages of a read so far.
#[derive(Default)]
struct Found {
    batches: Vec<(StoredBatch, BytesMut)>,
    count: u32,
    bytes: usize,
}

/// What a queue has.
enum Next {
    Message(Decoded),
    End,
    Nothing,
    Failed(KafkaError),
}

impl Cursor {
    /// A partition that was assigned at this offset.
    pub(super) fn new(
        generation: Generation,
        queue: PartitionQueue<KafkaLogger>,
        position: u64,
    ) -> Self {
        Self {
            generation,
            queue: Some(queue),
            position,
            stash: None,
            behind_earlier: None,
            is_at_end: false,
            reads: VecDeque::new(),
            waits: Vec::new(),
            used_at: Instant::now(),
        }
    }

    /// Forgets what was fetched. The partition is assigned again.
    pub(super) fn restart(&mut self) {
        (self.queue, self.stash, self.behind_earlier) = (None, None, None);
        self.is_at_end = false;
        self.reads.iter_mut().for_each(PendingRead::restart);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.waits.is_empty()
    }

    /// Reads as far as there are messages and somebody wants them.
    pub(super) fn advance(
        &mut self,
        place: &Place,
        consumer: &Arc<BaseConsumer<KafkaLogger>>,
        wake: &Arc<WakeFlag>,
    ) {
        self.waits.retain(|(_, answer)| answer.is_wanted());
        // Each round ends a read, or nothing is to be done.
        while let Some(mut read) = self.reads.pop_front() {
            let began_at = read.wanted.from;
            let is_elsewhere = self.queue.is_none() || self.position != began_at;
            if !read.is_started
                && read.answer.is_wanted()
                && is_elsewhere
                && let Err(error) = self.seek(place, began_at, consumer, wake)
            {
                consumer.context().warn(format_args!("cannot read {}: {error}", place.0));
                read.answer.send(Err(ReadError::Failed(Status::CannotReadMessage)));
                continue;
            }
            read.is_started = true;
            match self.fill(&mut read, consumer, wake) {
                Some(result) => read.answer.send(result),
                None => {
                    self.reads.push_front(read);
                    return;
                }
            }
        }
        self.answer_waits(place, consumer, wake);
    }

    /// Takes messages for a read. `None`: it goes on when the thread is woken.
    fn fill(
        &mut self,
        read: &mut PendingRead,
        consumer: &BaseConsumer<KafkaLogger>,
        wake: &WakeFlag,
    ) -> Option<Read> {
        if !read.answer.is_wanted() {
            return Some(Ok(Vec::new()));
        }
        let Wanted { from, until, count, bytes_max, .. } = read.wanted;
        let mut skipped = 0;
        // Each round takes a message, or ends.
        loop {
            if read.found.count >= count || self.position >= until && read.found.count > 0 {
                return Some(Ok(std::mem::take(&mut read.found).finish()));
            }
            match self.next() {
                // Or it was fetched before the partition was assigned anew.
                Next::Message(message) if message.offset < from => {
                    self.behind_earlier = Some(message.offset + 1);
                    skipped += 1;
                    if Instant::now() >= read.deadline {
                        return Some(read.expire());
                    }
                    if skipped == SKIPPED_MAX {
                        wake.wake(); // the queue may not call back: it is not empty
                        return None;
                    }
                }
                Next::Message(message) => {
                    let bytes = read.found.bytes + message.bytes.len();
                    if bytes > bytes_max {
                        let needed = message.bytes.len();
                        self.stash = Some(message);
                        return Some(match read.found.count {
                            0 => Err(ReadError::TooLong(needed)),
                            _ => Ok(std::mem::take(&mut read.found).finish()),
                        });
                    }
                    self.position = message.offset + 1;
                    read.found.push(message);
                }
                Next::End => {} // noted
                Next::Nothing if self.is_at_end && read.found.count > 0 => {
                    return Some(Ok(std::mem::take(&mut read.found).finish()));
                }
                Next::Nothing if self.is_at_end && !read.has_ended => {
                    read.has_ended = true;
                    read.deadline = read.deadline.min(Instant::now() + END_TIME);
                }
                Next::Nothing if Instant::now() >= read.deadline => return Some(read.expire()),
                Next::Nothing => return None,
                // The catalogue has the topic. The consumer learns within a second that it was created again.
                Next::Failed(error) if is_missing(&error) => {}
                Next::Failed(error) => {
                    consumer.context().warn(format_args!("cannot read: {error}"));
                    return Some(Err(ReadError::Failed(Status::CannotReadMessage)));
                }
            }
        }
    }

    /// Answers who waits for messages that are there.
    fn answer_waits(
        &mut self,
        place: &Place,
        consumer: &Arc<BaseConsumer<KafkaLogger>>,
        wake: &Arc<WakeFlag>,
    ) {
        // Each round answers some, takes a message, or ends.
        while let Some(first) = self.waits.iter().map(|(from, _)| *from).min() {
            let is_before = self.queue.is_none() || self.position < first;
            if is_before && self.seek(place, first, consumer, wake).is_err() {
                self.waits.clear(); // they ask again
                return;
            }
            if let Some(earlier) = self.behind_earlier.take() {
                self.waits.drain(..).for_each(|(_, answer)| answer.send(earlier));
                return;
            }
            if self.stash.is_none() && self.position <= first {
                match self.next() {
                    Next::Message(message) if message.offset < self.position => {
                        self.behind_earlier = Some(message.offset + 1);
                        continue;
                    }
                    Next::Message(message) => self.stash = Some(message),
                    Next::End => continue,
                    Next::Nothing | Next::Failed(_) => return,
                }
            }
            let there = self.stash.as_ref().map_or(self.position, |stashed| stashed.offset + 1);
            let mut waiting = Vec::new();
            for (from, answer) in self.waits.drain(..) {
                match from < there {
                    true => answer.send(there),
                    false => waiting.push((from, answer)),
                }
            }
            self.waits = waiting;
        }
    }

    fn next(&mut self) -> Next {
        if let Some(stashed) = self.stash.take() {
            return Next::Message(stashed);
        }
        let next = match self.queue.as_ref().and_then(|queue| queue.poll(Duration::ZERO)) {
            Some(Ok(message)) => Next::Message(decode(&message)),
            Some(Err(KafkaError::PartitionEOF(_))) => Next::End,
            Some(Err(error)) => Next::Failed(error),
            None => Next::Nothing,
        };
        match next {
            Next::Message(_) => self.is_at_end = false,
            Next::End => self.is_at_end = true,
            Next::Nothing | Next::Failed(_) => {}
        }
        next
    }

    fn seek(
        &mut self,
        place: &Place,
        from: u64,
        consumer: &Arc<BaseConsumer<KafkaLogger>>,
        wake: &Arc<WakeFlag>,
    ) -> KafkaResult<()> {
        let has_it = self.stash.as_ref().is_some_and(|stashed| stashed.offset == from);
        if has_it && self.queue.is_some() {
            self.position = from;
            return Ok(());
        }
        (self.stash, self.behind_earlier) = (None, None);
        self.is_at_end = false;
        if self.queue.is_some() {
            unassign(consumer, place);
        }
        self.queue = None; // before there is a new one: dropping it takes the callback from the queue, which is the same
        self.position = 0;
        self.queue = Some(assign(consumer, place, from, wake)?);
        self.position = from;
        Ok(())
    }
}

impl PendingRead {
    pub(super) fn new(wanted: Wanted, answer: Answer<Read>) -> Self {
        let deadline = Instant::now() + READ_TIME_MAX;
        let found = Found::default();
        Self { wanted, answer, deadline, is_started: false, has_ended: false, found }
    }

    /// Begins anew.
    pub(super) fn restart(&mut self) {
        (self.is_started, self.has_ended, self.found) = (false, false, Found::default());
    }

    /// The result at the deadline. No messages are an error, unless the end was found.
    fn expire(&mut self) -> Read {
        match self.found.count == 0 && !self.has_ended {
            true => Err(ReadError::Failed(Status::CannotReadMessage)),
            false => Ok(std::mem::take(&mut self.found).finish()),
        }
    }
}

impl Found {
    fn push(&mut self, message: Decoded) {
        self.count += 1;
        self.bytes += message.bytes.len();
        let Decoded { offset, timestamp, bytes } = message;
        if let Some((batch, all)) = self.batches.last_mut()
            && batch.base_offset + u64::from(batch.count) == offset
        {
            batch.count += 1;
            all.extend_from_slice(&bytes);
            return;
        }
        let batch =
            StoredBatch { base_offset: offset, count: 1, timestamp, bytes: bytes::Bytes::new() };
        self.batches.push((batch, BytesMut::from(&bytes[..])));
    }

    fn finish(self) -> Vec<StoredBatch> {
        let finish =
            |(batch, all): (StoredBatch, BytesMut)| StoredBatch { bytes: all.freeze(), ..batch };
        self.batches.into_iter().map(finish).collect()
    }
}

/// Begins to fetch a partition. The queue has its messages alone.
pub(super) fn assign(
    consumer: &Arc<BaseConsumer<KafkaLogger>>,
    (topic, partition): &Place,
    from: u64,
    wake: &Arc<WakeFlag>,
) -> KafkaResult<PartitionQueue<KafkaLogger>> {
    let mut assigned = TopicPartitionList::with_capacity(1);
    let offset = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
    assigned.add_partition_offset(topic, *partition, offset)?;
    // Before it is assigned: afterwards its messages could come to the common queue.
    let queue = consumer.split_partition_queue(topic, *partition);
    let mut queue = queue.ok_or(KafkaError::NoMessageReceived)?;
    let wake = Arc::clone(wake);
    queue.set_nonempty_callback(move || wake.wake());
    consumer.incremental_assign(&assigned)?;
    Ok(queue)
}

pub(super) fn unassign(consumer: &BaseConsumer<KafkaLogger>, (topic, partition): &Place) {
    let mut unassigned = TopicPartitionList::with_capacity(1);
    unassigned.add_partition(topic, *partition);
    if let Err(error) = consumer.incremental_unassign(&unassigned) {
        consumer.context().warn(format_args!("cannot stop reading {topic}: {error}"));
    }
}

#[cfg(test)]
mod tests;

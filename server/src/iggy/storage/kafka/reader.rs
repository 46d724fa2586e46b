//! [`Reader`]: reads messages from Kafka, on a thread of its own, for all partitions.
//!
//! A partition that is read has a cursor: librdkafka is assigned the partition at an offset, fetches messages ahead into
//! a queue of bounded length, and stops when it is full. A read that goes on where the last one ended takes them from
//! there. One at another offset assigns the partition anew. The thread sleeps until there is a read, or a queue that was
//! empty has messages.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use owned_io::{Clock, Sender, channel};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::Offset;
use tracing::warn;

use super::super::{ReadError, StoredBatch};
use super::client::{ConsumerHandle, KafkaLogger};
use super::record::{Decoded, decode};
use crate::iggy::Status;

/// How long a read may take. Longer than a broker takes that is well.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a read waits that is told of the end before it has a message: it may have been the end of a while ago.
/// Several times as long as a fetch waits for messages.
const END_TIME: Duration = Duration::from_millis(200);

/// The most partitions that are read at once, each with up to 1.5 MB of messages that were fetched ahead. A partition
/// that is read longest ago gives way.
const CURSORS_MAX: usize = 64;

/// The most reads that wait for the thread: about one for each client that polls. Further ones are refused.
const REQUESTS_MAX: usize = 1_024;

/// A partition that nobody has read for as long is not fetched any more.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

/// How often the thread looks for reads that nobody waits for any more, if there is nothing else to do.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A partition.
pub(super) type Place = (Arc<str>, i32);

/// Reads for the tasks of a worker. The thread ends when it is dropped.
pub(super) struct Reader {
    requests: SyncSender<Request>,
    wake: Arc<WakeFlag>,
}

/// What is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The first offset.
    pub(super) from: u64,
    /// There are messages up to this offset. A read ends there.
    pub(super) until: u64,
    /// The most messages.
    pub(super) count: u32,
    /// The most bytes.
    pub(super) bytes_max: usize,
}

type Read = Result<Vec<StoredBatch>, ReadError>;

enum Request {
    Read {
        place: Place,
        wanted: Wanted,
        answer: Answer<Read>,
    },
    Wait {
        place: Place,
        from: u64,
        answer: Answer<u64>,
    },
    /// A queue has messages.
    Wake,
}

/// Where an answer goes.
struct Answer<T> {
    sender: Sender<T>,
    /// Nobody waits any more when it is gone.
    waiter: Weak<()>,
}

impl<T> Answer<T> {
    fn is_wanted(&self) -> bool {
        self.waiter.strong_count() > 0
    }

    fn send(self, value: T) {
        let _ = self.sender.try_send(value); // nobody may wait any more
    }
}

impl Reader {
    pub(super) fn start(handle: Arc<ConsumerHandle>) -> io::Result<Self> {
        let (requests, receiver) = sync_channel(REQUESTS_MAX);
        let (is_set, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let wake = Arc::new(WakeFlag { requests: requests.clone(), is_set, has_ended });
        let (cursors, wake_of_thread) = (HashMap::new(), Arc::clone(&wake));
        let (generation, consumer) = handle.current();
        let mut thread =
            ReaderThread { handle, generation, consumer, wake: wake_of_thread, cursors };
        let run = move || thread.run(&receiver);
        thread::Builder::new().name("kafka-reader".to_owned()).spawn(run)?;
        Ok(Self { requests, wake })
    }

    /// Reads messages. None, if there are none although there should be: Kafka has offsets without messages.
    ///
    /// # Cancellation
    /// Safe.
    pub(super) async fn read<C: Clock>(&self, place: Place, wanted: Wanted) -> Read {
        let failed = ReadError::Failed(Status::CannotReadMessage);
        let request = |answer| Request::Read { place, wanted, answer };
        self.ask::<C, _>(request).await.unwrap_or(Err(failed))
    }

    /// Waits until there is a message at or behind `from`, and returns the offset behind it. `None`: too many partitions
    /// are being read.
    ///
    /// # Cancellation
    /// Safe.
    pub(super) async fn wait<C: Clock>(&self, place: Place, from: u64) -> Option<u64> {
        self.ask::<C, _>(|answer| Request::Wait { place, from, answer }).await
    }

    async fn ask<C: Clock, T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Option<T> {
        let (sender, mut answered) = channel(NonZeroUsize::MIN);
        let waiter = Arc::new(());
        let answer = Answer { sender, waiter: Arc::downgrade(&waiter) };
        self.requests.try_send(request(answer)).ok()?;
        answered.receive::<C>().await
    }
}

impl Drop for Reader {
    /// Ends the thread. Its queues hold senders, so it does not see that this one is gone.
    fn drop(&mut self) {
        self.wake.has_ended.store(true, Ordering::Release);
        self.wake.wake();
    }
}

/// Wakes the thread, at most once until it has woken up: librdkafka calls it, and may not block.
struct WakeFlag {
    requests: SyncSender<Request>,
    is_set: AtomicBool,
    /// Whether the reader was dropped.
    has_ended: AtomicBool,
}

impl WakeFlag {
    fn wake(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            let _ = self.requests.try_send(Request::Wake); // a full queue: it is awake
        }
    }
}

struct ReaderThread {
    handle: Arc<ConsumerHandle>,
    /// Of the consumer, in the handle.
    generation: u64,
    consumer: Arc<BaseConsumer<KafkaLogger>>,
    wake: Arc<WakeFlag>,
    cursors: HashMap<Place, Cursor>,
}

/// A partition that is assigned.
struct Cursor {
    /// `None`: the partition could not be assigned.
    queue: Option<PartitionQueue<KafkaLogger>>,
    /// The offset behind the last message that was taken.
    position: u64,
    /// The next message, which did not fit, or which somebody waits for.
    stash: Option<Decoded>,
    reads: VecDeque<PendingRead>,
    waits: Vec<(u64, Answer<u64>)>,
    used_at: Instant,
}

struct PendingRead {
    wanted: Wanted,
    answer: Answer<Read>,
    deadline: Instant,
    is_started: bool,
    /// Whether librdkafka has told of the end of the partition.
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

impl ReaderThread {
    fn run(&mut self, requests: &Receiver<Request>) {
        // Each round handles what is there, or waits.
        loop {
            match requests.recv_timeout(self.next_timeout()) {
                Ok(request) => self.handle(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for request in requests.try_iter().take(REQUESTS_MAX) {
                self.handle(request);
            }
            if self.wake.has_ended.load(Ordering::Acquire) {
                return;
            }
            self.take_new_consumer();
            for (place, cursor) in &mut self.cursors {
                cursor.advance(place, &self.consumer, &self.wake);
            }
            self.end_idle();
            // Errors of the client, which its context logs.
            while self.consumer.poll(Duration::ZERO).is_some() {}
        }
    }

    /// Assigns everything again if the consumer was replaced.
    fn take_new_consumer(&mut self) {
        let (generation, consumer) = self.handle.current();
        if generation == self.generation {
            return;
        }
        for cursor in self.cursors.values_mut() {
            cursor.queue = None;
            cursor.stash = None;
            cursor.reads.iter_mut().for_each(PendingRead::restart);
        }
        (self.generation, self.consumer) = (generation, consumer);
    }

    fn end_idle(&mut self) {
        let now = Instant::now();
        self.cursors.retain(|place, cursor| {
            if !cursor.is_idle() {
                cursor.used_at = now;
            }
            let is_kept = now.saturating_duration_since(cursor.used_at) < IDLE_TIME_MAX;
            if !is_kept {
                cursor.queue = None;
                unassign(&self.consumer, place);
            }
            is_kept
        });
    }

    /// Until the next deadline.
    fn next_timeout(&self) -> Duration {
        let reads = self.cursors.values().filter_map(|cursor| cursor.reads.front());
        let next = reads.map(|read| read.deadline).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        left.unwrap_or(SWEEP_INTERVAL).min(SWEEP_INTERVAL)
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Wake => self.wake.is_set.store(false, Ordering::Release),
            Request::Read { place, wanted, answer } => match self.cursor(&place, wanted.from) {
                Ok(cursor) => cursor.reads.push_back(PendingRead {
                    wanted,
                    answer,
                    deadline: Instant::now() + READ_TIME_MAX,
                    is_started: false,
                    has_ended: false,
                    found: Found::default(),
                }),
                Err(()) => answer.send(Err(ReadError::Failed(Status::CannotReadMessage))),
            },
            // Without a cursor the answer is dropped.
            Request::Wait { place, from, answer } => {
                if let Ok(cursor) = self.cursor(&place, from) {
                    cursor.waits.push((from, answer));
                }
            }
        }
    }

    /// The cursor of a partition. A new one begins at `from`.
    fn cursor(&mut self, place: &Place, from: u64) -> Result<&mut Cursor, ()> {
        if !self.cursors.contains_key(place) {
            if self.cursors.len() >= CURSORS_MAX {
                let idle = self.cursors.iter().filter(|(_, cursor)| cursor.is_idle());
                let oldest = idle.min_by_key(|(_, cursor)| cursor.used_at).map(|(place, _)| place);
                let oldest = oldest.cloned().ok_or(())?;
                self.cursors.remove(&oldest);
                unassign(&self.consumer, &oldest);
            }
            let queue = assign(&self.consumer, place, from, &self.wake);
            let queue = queue.map_err(|error| warn!("Kafka: cannot read {}: {error}", place.0))?;
            let (reads, waits) = (VecDeque::new(), Vec::new());
            let queue = Some(queue);
            let cursor = Cursor {
                queue,
                position: from,
                stash: None,
                reads,
                waits,
                used_at: Instant::now(),
            };
            self.cursors.insert(place.clone(), cursor);
        }
        let cursor = self.cursors.get_mut(place).ok_or(())?;
        cursor.used_at = Instant::now();
        Ok(cursor)
    }
}

impl Cursor {
    fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.waits.is_empty()
    }

    /// Reads as far as there are messages and somebody wants them.
    fn advance(
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
                warn!("Kafka: cannot read {}: {error}", place.0);
                read.answer.send(Err(ReadError::Failed(Status::CannotReadMessage)));
                continue;
            }
            read.is_started = true;
            match self.fill(&mut read) {
                Some(result) => read.answer.send(result),
                None => {
                    self.reads.push_front(read);
                    return;
                }
            }
        }
        self.answer_waits(place, consumer, wake);
    }

    /// Takes messages for a read. `None`: it goes on when there are more.
    fn fill(&mut self, read: &mut PendingRead) -> Option<Read> {
        if !read.answer.is_wanted() {
            return Some(Ok(Vec::new()));
        }
        let Wanted { from, until, count, bytes_max } = read.wanted;
        // Each round takes a message, or ends.
        loop {
            if read.found.count >= count || self.position >= until && read.found.count > 0 {
                return Some(Ok(std::mem::take(&mut read.found).finish()));
            }
            match self.next() {
                // What was fetched before the partition was assigned anew.
                Next::Message(message) if message.offset < from => {}
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
                Next::End if read.found.count > 0 => {
                    return Some(Ok(std::mem::take(&mut read.found).finish()));
                }
                Next::End => {
                    read.has_ended = true;
                    read.deadline = read.deadline.min(Instant::now() + END_TIME);
                }
                Next::Nothing if Instant::now() >= read.deadline => {
                    return Some(match read.found.count == 0 && !read.has_ended {
                        true => Err(ReadError::Failed(Status::CannotReadMessage)),
                        false => Ok(std::mem::take(&mut read.found).finish()),
                    });
                }
                Next::Nothing => return None,
                Next::Failed(error) => {
                    warn!("Kafka: cannot read: {error}");
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
            if self.stash.is_none() && self.position <= first {
                match self.next() {
                    Next::Message(message) if message.offset < self.position => continue,
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
        match self.queue.as_ref().and_then(|queue| queue.poll(Duration::ZERO)) {
            Some(Ok(message)) => Next::Message(decode(&message)),
            Some(Err(KafkaError::PartitionEOF(_))) => Next::End,
            Some(Err(error)) => Next::Failed(error),
            None => Next::Nothing,
        }
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
        self.stash = None;
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
    /// Begins anew.
    fn restart(&mut self) {
        (self.is_started, self.has_ended, self.found) = (false, false, Found::default());
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
fn assign(
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

fn unassign(consumer: &BaseConsumer<KafkaLogger>, (topic, partition): &Place) {
    let mut unassigned = TopicPartitionList::with_capacity(1);
    unassigned.add_partition(topic, *partition);
    if let Err(error) = consumer.incremental_unassign(&unassigned) {
        warn!("Kafka: cannot stop reading {topic}: {error}");
    }
}

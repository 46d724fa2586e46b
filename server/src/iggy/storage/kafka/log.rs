//! [`KafkaLog`]: a partition of Kafka, as commands use it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::{Duration, Instant};

use owned_io::Runtime;

use super::super::{
    Appended, LocalFuture, MessageLog, Offsets, Position, ReadError, ReadFrom, Size, StoredBatch,
};
use super::Clients;
use super::cursor::{Generation, Place, Wanted};
use super::producer::NotAppended;
use crate::iggy::Status;
use crate::iggy::messages::Batch;

/// How old the offsets may be that a command is told: messages of another server are seen that much later by polls.
const OFFSETS_AGE_MAX: Duration = Duration::from_millis(20);

/// How long somebody waits who cannot be told of messages, because too many partitions are being read.
const WAIT_INTERVAL: Duration = Duration::from_millis(500);

/// The most queries for the offsets in a row. Another one follows if the partition was re-created during the query.
const OFFSET_QUERIES_MAX: u32 = 3;

/// A partition of Kafka.
pub(super) struct KafkaLog<R> {
    clients: Rc<Clients>,
    place: Place,
    /// As this server knows them.
    offsets: Cell<Offsets>,
    asked_at: Cell<Option<Instant>>,
    /// When a question for the offsets failed last.
    failed_at: Cell<Option<Instant>>,
    /// The highest end that this server has seen, from its appends and waits, since the last offset query began.
    learned_end: Cell<u64>,
    /// The highest end that the brokers have told, or up to which messages were read. What this server has appended does
    /// not count: readers do not get it before an open transaction ends, and the brokers tell an end before that.
    read_end: Cell<u64>,
    generation: Cell<Generation>,
    /// How often the partition was another one.
    restarts: Cell<u64>,
    /// Held while a batch is passed to the producer.
    order: async_lock::Mutex<()>,
    /// Held while the brokers are asked for the offsets.
    asking: async_lock::Mutex<()>,
    runtime: PhantomData<fn() -> R>,
}

impl<R: Runtime> KafkaLog<R> {
    pub(super) fn new(clients: Rc<Clients>, place: Place) -> Self {
        let generation = Cell::new(clients.next_generation());
        Self {
            clients,
            place,
            read_end: Cell::new(0),
            generation,
            restarts: Cell::new(0),
            offsets: Cell::default(),
            asked_at: Cell::new(None),
            failed_at: Cell::new(None),
            learned_end: Cell::new(0),
            order: async_lock::Mutex::new(()),
            asking: async_lock::Mutex::new(()),
            runtime: PhantomData,
        }
    }

    async fn append_batch(&self, batch: Batch, id: u128) -> Result<Appended, Status> {
        let count = batch.count();
        // Kafka gives offset and timestamp. The id is needed now.
        let messages = batch.stamp(Position { base_offset: 0, timestamp: 0 }, id);
        let (topic, partition) = &self.place;
        let producer = &self.clients.producer;
        let place = (&**topic, *partition);
        let (read_end, generation) = (self.read_end.get(), self.generation.get());
        let append = || producer.append::<R>(place, &self.order, &messages, count);
        let mut appended = append().await;
        // The catalogue learns each second of partitions that others have added, and the producer every five minutes.
        if appended.as_ref().is_err_and(NotAppended::is_unknown)
            && self.clients.questions.inform_producer::<R>(topic).await.is_ok()
        {
            appended = append().await;
        }
        let appended = appended.map_err(|error| error.status)?;
        let end = appended.base_offset + u64::from(count);
        if self.generation.get() != generation {
            self.asked_at.set(None); // the offset may be of the previous partition
        } else if !self.notice_restart(read_end, end) {
            self.extend(end);
        }
        Ok(appended)
    }

    /// Detects a re-created partition: its `end` is below `read_end`, which was read before the question. Records the
    /// restart and returns true. A lower end also means lost messages, which are handled in the same way.
    fn notice_restart(&self, read_end: u64, end: u64) -> bool {
        // Somebody may have noted it meanwhile.
        if end >= read_end || self.read_end.get() < read_end {
            return false;
        }
        self.read_end.set(end);
        self.offsets.set(Offsets { first: 0, next: end });
        self.learned_end.set(end);
        self.asked_at.set(None);
        self.generation.set(self.clients.next_generation());
        self.restarts.set(self.restarts.get() + 1);
        true
    }

    fn extend(&self, next: u64) {
        let offsets = self.offsets.get();
        self.offsets.set(Offsets { next: offsets.next.max(next), ..offsets });
        self.learned_end.set(self.learned_end.get().max(next));
    }

    /// Asks the brokers for the offsets if what is known is old.
    async fn ask_offsets(&self) -> Result<(), Status> {
        let is_recent = || {
            let asked_at = self.asked_at.get();
            asked_at.is_some_and(|at| R::now().saturating_duration_since(at) < OFFSETS_AGE_MAX)
        };
        if is_recent() {
            return Ok(());
        }
        let waits_since = R::now();
        let _asking = self.asking.lock().await;
        if is_recent() {
            return Ok(());
        }
        // A failure is the answer for all who waited: if each asked again, the last one would wait for all others.
        if self.failed_at.get().is_some_and(|at| at >= waits_since) {
            return Err(Status::CannotReadMessage);
        }
        for _ in 0..OFFSET_QUERIES_MAX {
            let (now, read_end) = (R::now(), self.read_end.get());
            let generation = self.generation.get();
            self.learned_end.set(0);
            let (topic, partition) = &self.place;
            let asked = self.clients.questions.offsets::<R>(topic, *partition).await;
            // Whether the partition is there, the catalogue says, and follows Kafka each second.
            let Ok((first, end)) = asked else { break };
            if self.generation.get() != generation {
                continue; // the offsets may be of the previous partition
            }
            let next = if self.notice_restart(read_end, end) {
                end
            } else {
                self.read_end.set(self.read_end.get().max(end));
                end.max(self.learned_end.get()) // the answer may be older than that
            };
            self.offsets.set(Offsets { first, next });
            self.asked_at.set(Some(now));
            return Ok(());
        }
        self.failed_at.set(Some(R::now()));
        Err(Status::CannotReadMessage)
    }

    async fn find(
        &self,
        from: ReadFrom,
        count: u32,
        bytes_max: usize,
    ) -> Result<Vec<StoredBatch>, ReadError> {
        let Offsets { first, next } = self.offsets.get();
        let from = match from {
            ReadFrom::Offset(offset) => offset.max(first),
            ReadFrom::Timestamp(micros) => {
                let millis = i64::try_from(micros.div_ceil(1_000)).unwrap_or(i64::MAX);
                let (topic, partition) = &self.place;
                let found = self.clients.questions.offset_at::<R>(topic, *partition, millis).await;
                match found.map_err(|_| ReadError::Failed(Status::CannotReadMessage))? {
                    Some(offset) => offset,
                    None => return Ok(Vec::new()),
                }
            }
        };
        let (until, generation) = (next.max(from + 1), self.generation.get());
        let wanted = Wanted { generation, from, until, count, bytes_max };
        let found = self.clients.reader.read::<R>(self.place.clone(), wanted).await?;
        if let Some(last) = found.last()
            && self.generation.get() == generation
        {
            let end = last.base_offset + u64::from(last.count);
            self.read_end.set(self.read_end.get().max(end));
        }
        Ok(found)
    }

    async fn wait_for(&self, from: u64) {
        let (place, generation) = (self.place.clone(), self.generation.get());
        let waited = self.clients.reader.wait::<R>(place, generation, from).await;
        if waited.is_some() && self.generation.get() != generation {
            return; // the message may be of the previous partition
        }
        match waited {
            Some(next) if next <= from => {
                self.asked_at.set(None);
                let _ = self.ask_offsets().await; // an error: the caller comes again
            }
            Some(next) => self.extend(next),
            None => {
                R::sleep(WAIT_INTERVAL).await;
                let _ = self.ask_offsets().await; // an error: the caller comes again
            }
        }
    }
}

impl<R: Runtime> MessageLog for KafkaLog<R> {
    fn append(&self, batch: Batch, id: u128) -> LocalFuture<'_, Result<Appended, Status>> {
        Box::pin(self.append_batch(batch, id))
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
        self.offsets.get()
    }

    fn refresh(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(self.ask_offsets())
    }

    fn restarts(&self) -> u64 {
        self.restarts.get()
    }

    fn wait(&self, from: u64) -> LocalFuture<'_, ()> {
        Box::pin(self.wait_for(from))
    }

    /// Kafka does not say.
    fn size(&self) -> Size {
        Size { bytes: 0, segments: 1 }
    }

    /// What is acknowledged is as durable as the topic's settings in Kafka say.
    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn purge(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(std::future::ready(Err(Status::FeatureUnavailable)))
    }
}

#[cfg(test)]
mod tests;

//! [`KafkaStorage`]: messages in Kafka, which several servers share.
//!
//! # Streams, topics, partitions
//! A topic of a stream is a topic of Kafka, named by the rule of [`names`], with the same partitions. All topics of Kafka
//! that are named so are there, whoever made them. A topic is created and deleted in Kafka when a client of Iggy creates
//! or deletes it, and partitions are added there. What others do is found within [`REFRESH_INTERVAL`], and when a client
//! names what is not known.
//!
//! A stream is there if it has a topic. One without a topic is known to the server alone that created it. The numbers of
//! streams and topics are made of their names, so that all servers have the same ones: see
//! [`Catalogue::numbered_by_name`](crate::iggy::catalogue::Catalogue::numbered_by_name). Retention and the number of
//! replicas are settings of the topic in Kafka. What its creator asks for is passed on.
//!
//! Others may delete a topic and create it again between two looks. That is noticed if a partition ends before what was read
//! of the old one. Its tails end then, as after a purge, and its stored offsets are forgotten.
//!
//! # Messages
//! A message is a record: see [`record`]. Its offset is Kafka's. Offsets may have gaps, where Kafka has removed records or
//! notes the end of a transaction. The messages of a batch are appended in order. Those of another server may come
//! in between.
//!
//! # Threads
//! The producer has a thread for reports of delivery, which is that of the `rdkafka` crate. One thread reads, another one
//! asks the brokers, a third one changes topics, and librdkafka has some for each client and broker. They send their results
//! to the tasks of the worker by channels. No call of the worker blocks.
//!
//! A client of librdkafka that has lost sight of all brokers is replaced, because it may never find them again. If it is
//! the producer, messages that wait in the old one are refused first: they could come behind later ones. A request that is
//! in a socket by then cannot be recalled. Its messages are refused too, as "may be there", and if a broker gets them all the
//! same, they can come behind later ones.
//!
//! # What is refused
//! Kafka cannot rename a topic, nor remove single partitions: [`FeatureUnavailable`](Status::FeatureUnavailable). The same
//! holds for purges.
//!
//! # What stays in the server
//! Consumer groups, and stored offsets, are in the memory of one server, and are lost when it ends.
//!
//! # Failures
//! | what | status | stored |
//! |---|---|---|
//! | no room among the messages that wait for Kafka, for [`ROOM_TIME_MAX`] | `TaskTimeout` | nothing |
//! | the producer has failed, less than a second after the last one | `TaskTimeout` | nothing |
//! | a message longer than 1 MB | `InvalidSizeBytes` | nothing |
//! | the topic or the partition is missing | `TopicIdNotFound`, `PartitionNotFound` | nothing |
//! | librdkafka has taken the first messages of a batch, and not the others | `CannotAppendMessage` | perhaps |
//! | no acknowledgement in [`message_time_max`](KafkaConfig::message_time_max) | `CannotAppendMessage` | perhaps |
//! | no answer to a question, or to a change | `TaskTimeout` | of a change: perhaps |
//! | no answer to a read | `CannotReadMessage` | |

mod changes;
mod client;
mod cursor;
mod delivery;
mod jobs;
mod log;
pub mod names;
mod producer;
mod questions;
mod reader;
pub mod record;
mod room;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::ready;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use changes::Changes;
use client::ConsumerHandle;
use cursor::{Generation, Place};
use log::KafkaLog;
use names::kafka_topic;
use owned_io::Runtime;
use producer::Producer;
use questions::Questions;
use reader::Reader;
pub use room::ROOM_TIME_MAX;

use super::{LocalFuture, MessageLog, SharedTopic, SharedTopics, Storage};
use crate::iggy::Status;
use crate::iggy::catalogue::{Catalogue, LogId, Record, Topic, TopicId, TopicSettings};

/// How often topics are looked for that others have made or removed.
pub use super::REFRESH_INTERVAL;

/// How Kafka is reached and used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaConfig {
    /// Some of the brokers, as `HOST:PORT,HOST:PORT`. They name the others.
    pub brokers: String,
    /// How long a message may wait for its acknowledgement.
    pub message_time_max: Duration,
    /// The most bytes of messages that wait for their acknowledgement.
    pub waiting_bytes_max: usize,
}

/// Keeps messages in Kafka.
pub struct KafkaStorage<R> {
    clients: Rc<Clients>,
    /// Which partition a log is. A log is named before it is opened.
    places: RefCell<HashMap<LogId, Place>>,
    runtime: PhantomData<fn() -> R>,
}

/// What all logs use.
struct Clients {
    /// How many partitions there were so far.
    generations: Cell<Generation>,
    producer: Arc<Producer>,
    questions: Questions,
    changes: Changes,
    reader: Reader,
}

impl Clients {
    /// Tells a partition from all those before.
    fn next_generation(&self) -> Generation {
        self.generations.set(self.generations.get() + 1);
        self.generations.get()
    }
}

impl<R: Runtime> KafkaStorage<R> {
    /// A storage. The brokers need not be there yet.
    ///
    /// # Errors
    /// The list of brokers is none, or a thread cannot be started.
    pub fn new(config: KafkaConfig) -> io::Result<Self> {
        let brokers = config.brokers.clone();
        let consumer = Arc::new(ConsumerHandle::new(&brokers).map_err(io::Error::other)?);
        let producer = Arc::new(Producer::new(config).map_err(io::Error::other)?);
        let questions = Questions::start(Arc::clone(&consumer), Arc::clone(&producer))?;
        let changes = Changes::start(brokers, Arc::clone(&consumer))?;
        let reader = Reader::start(consumer)?;
        let generations = Cell::default();
        let clients = Rc::new(Clients { generations, producer, questions, changes, reader });
        Ok(Self { clients, places: RefCell::default(), runtime: PhantomData })
    }

    fn open_log(&self, log: LogId) -> Result<Rc<dyn MessageLog>, Status> {
        let places = self.places.borrow();
        let place = places.get(&log).ok_or(Status::Error)?;
        Ok(Rc::new(KafkaLog::<R>::new(Rc::clone(&self.clients), place.clone())))
    }

    async fn list_topics(&self) -> Result<Vec<SharedTopic>, Status> {
        let found = self.clients.questions.topics::<R>().await?;
        let shared = found.into_iter();
        Ok(shared
            .map(|found| SharedTopic {
                stream: found.stream,
                topic: found.topic,
                partitions: found.partitions,
            })
            .collect())
    }

    async fn run(&self, change: TopicChange) -> Result<(), Status> {
        let changes = &self.clients.changes;
        match change {
            TopicChange::None => Ok(()),
            TopicChange::Refused(status) => Err(status),
            TopicChange::Create { name, partitions, settings } => {
                let replicas = settings.replication_factor;
                changes.create_topic::<R>(name, partitions, replicas, configs(&settings)).await
            }
            TopicChange::SetPartitions { name, count } => {
                changes.set_partitions::<R>(name, count).await
            }
            TopicChange::Delete(names) => changes.delete_topics::<R>(names).await,
        }
    }
}

impl<R: Runtime> Storage for KafkaStorage<R> {
    fn open<'a>(
        &'a self,
        logs: &'a [LogId],
    ) -> LocalFuture<'a, Result<Vec<Rc<dyn MessageLog>>, Status>> {
        Box::pin(ready(logs.iter().map(|&log| self.open_log(log)).collect()))
    }

    fn remove<'a>(&'a self, logs: &'a [LogId]) -> LocalFuture<'a, Result<(), Status>> {
        let mut places = self.places.borrow_mut();
        logs.iter().for_each(|log| drop(places.remove(log)));
        Box::pin(ready(Ok(())))
    }

    /// Kafka has the topics, and the rest stays in memory.
    fn record(&self, _: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }

    fn shared(&self) -> Option<&dyn SharedTopics> {
        Some(self)
    }

    /// Waits until what was taken is acknowledged or refused.
    fn close(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async {
            self.clients.producer.flushed().await;
            Ok(())
        })
    }
}

impl<R: Runtime> SharedTopics for KafkaStorage<R> {
    fn list(&self) -> LocalFuture<'_, Result<Vec<SharedTopic>, Status>> {
        Box::pin(self.list_topics())
    }

    fn change(
        &self,
        catalogue: &Catalogue,
        record: &Record,
    ) -> LocalFuture<'_, Result<(), Status>> {
        let change = TopicChange::of(catalogue, record);
        Box::pin(self.run(change))
    }

    fn name_logs(&self, catalogue: &Catalogue, record: &Record) {
        let (first, log, count, kafka_name) = match record {
            Record::TopicCreated { at, log, partitions, name, .. } => {
                (0, log, *partitions, topic_name(catalogue, at.stream, name.as_str()))
            }
            Record::PartitionsAdded { at, log, count, .. } => {
                let present = catalogue.topic_at(*at).map_or(0, |topic| topic.partitions().len());
                (present as u64, log, *count, name_of(catalogue, *at))
            }
            _ => return,
        };
        let Some(kafka_name) = kafka_name else { return };
        let kafka_name: Arc<str> = kafka_name.into();
        let mut places = self.places.borrow_mut();
        for n in 0..u64::from(count) {
            places.insert(LogId(log.0 + n), (Arc::clone(&kafka_name), (first + n) as i32));
        }
    }
}

/// What a record changes in Kafka.
enum TopicChange {
    None,
    Refused(Status),
    Create { name: String, partitions: u32, settings: TopicSettings },
    SetPartitions { name: String, count: usize },
    Delete(Vec<String>),
}

impl TopicChange {
    fn of(catalogue: &Catalogue, record: &Record) -> Self {
        match record {
            Record::TopicCreated { partitions: 0, .. } => {
                Self::Refused(Status::InvalidPartitionsCount)
            }
            Record::TopicCreated { at, settings, partitions, name, .. } => {
                match topic_name(catalogue, at.stream, name.as_str()) {
                    Some(name) => {
                        Self::Create { name, partitions: *partitions, settings: *settings }
                    }
                    None => Self::Refused(Status::InvalidTopicName),
                }
            }
            Record::PartitionsAdded { at, count, .. } => {
                let present = catalogue.topic_at(*at).map_or(0, |topic| topic.partitions().len());
                match name_of(catalogue, *at) {
                    Some(name) => Self::SetPartitions { name, count: present + *count as usize },
                    None => Self::Refused(Status::TopicIdNotFound),
                }
            }
            Record::TopicDeleted { at } => {
                Self::Delete(name_of(catalogue, *at).into_iter().collect())
            }
            Record::StreamDeleted { stream } => {
                let deleted = catalogue.streams().find(|(number, _)| number == stream);
                let topics = deleted.into_iter().flat_map(|(_, deleted)| deleted.topics());
                let names = topics
                    .filter_map(|(_, topic)| topic_name(catalogue, *stream, topic.name.as_str()));
                Self::Delete(names.collect())
            }
            Record::StreamRenamed { .. }
            | Record::TopicUpdated { .. }
            | Record::TopicPurged { .. }
            | Record::PartitionsRemoved { .. } => Self::Refused(Status::FeatureUnavailable),
            _ => Self::None,
        }
    }
}

/// The name in Kafka of a topic that there is.
fn name_of(catalogue: &Catalogue, at: TopicId) -> Option<String> {
    let topic: &Topic = catalogue.topic_at(at).ok()?;
    topic_name(catalogue, at.stream, topic.name.as_str())
}

fn topic_name(catalogue: &Catalogue, stream: u32, topic: &str) -> Option<String> {
    let (_, stream) = catalogue.streams().find(|(number, _)| *number == stream)?;
    kafka_topic(stream.name.as_str(), topic)
}

/// The settings of a new topic, as far as Kafka has them. 0 leaves it to the brokers.
fn configs(settings: &TopicSettings) -> Vec<(&'static str, String)> {
    let value = |setting: u64, divisor: u64| match setting {
        0 => None,
        u64::MAX => Some("-1".to_owned()),
        limit => Some((limit / divisor).max(1).to_string()),
    };
    let retention = [
        ("retention.ms", value(settings.message_expiry, 1_000)),
        ("retention.bytes", value(settings.size_max, 1)),
    ];
    retention.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

//! [`Questions`]: what is asked of the brokers, on a thread of its own.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use owned_io::Clock;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::topic_partition_list::Offset;
use tracing::{info, warn};

use super::client::{ConsumerHandle, KafkaLogger};
use super::jobs::{Jobs, is_missing};
use super::names::stream_and_topic;
use super::producer::Producer;
use crate::iggy::Status;
use crate::iggy::catalogue::PARTITIONS_PER_TOPIC_MAX;

/// How long a question may take, from the moment at which it is asked. Longer than brokers take that are well.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(4);

/// Asks the brokers. The thread ends when it is dropped.
pub(super) struct Questions {
    jobs: Jobs<Clients>,
}

/// What the thread asks.
struct Clients {
    consumer: Arc<ConsumerHandle>,
    producer: Arc<Producer>,
    /// When the list of topics came last, or a client was replaced for want of it.
    listed_at: Cell<Instant>,
    /// How many probes of the producer have failed, one after the other.
    failed_probes: Cell<u32>,
    /// How many messages the producer had delivered at the last probe.
    delivered: Cell<u64>,
}

/// A topic of Kafka that is named by the [rule](super::names).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundTopic {
    pub(super) stream: String,
    pub(super) topic: String,
    pub(super) partitions: u32,
}

impl Questions {
    /// `consumer` is asked for metadata and offsets, which any number of threads may do. It and `producer` are replaced
    /// when they are stuck.
    pub(super) fn start(
        consumer: Arc<ConsumerHandle>,
        producer: Arc<Producer>,
    ) -> io::Result<Self> {
        Ok(Self { jobs: Jobs::start("kafka-ask", Clients::new(consumer, producer))? })
    }

    /// All topics that are named by the rule.
    pub(super) async fn topics<C: Clock>(&self) -> Result<Vec<FoundTopic>, Status> {
        self.jobs
            .ask::<C, _>(QUESTION_TIME_MAX, |clients, time| {
                let metadata = clients.list(time)?;
                let topics = metadata.topics().iter().filter_map(|topic| {
                    let (stream, name) = stream_and_topic(topic.name())?;
                    let partitions = topic.partitions().len().min(PARTITIONS_PER_TOPIC_MAX) as u32;
                    (partitions > 0).then_some(FoundTopic { stream, topic: name, partitions })
                });
                Ok(topics.collect())
            })
            .await
    }

    /// Has the producer ask for the partitions of a topic.
    pub(super) async fn inform_producer<C: Clock>(&self, topic: &Arc<str>) -> Result<(), Status> {
        let topic = Arc::clone(topic);
        self.jobs
            .ask::<C, _>(QUESTION_TIME_MAX, move |clients, time| {
                clients.producer.probe(&topic, time)
            })
            .await
    }

    /// The first offset of a partition, and the one behind its last message.
    pub(super) async fn offsets<C: Clock>(
        &self,
        topic: &Arc<str>,
        partition: i32,
    ) -> Result<(u64, u64), Status> {
        let topic = Arc::clone(topic);
        self.jobs
            .ask::<C, _>(QUESTION_TIME_MAX, move |clients, time| {
                let (until, consumer) = (Instant::now() + time, clients.consumer());
                let mut found = consumer.fetch_watermarks(&topic, partition, time);
                // The catalogue has the topic. What the consumer knows of it may be old, if it was created again.
                if found.as_ref().is_err_and(is_missing) {
                    let left = || until.saturating_duration_since(Instant::now());
                    consumer.fetch_metadata(Some(&topic), left())?;
                    found = consumer.fetch_watermarks(&topic, partition, left());
                }
                let (first, next) = found?;
                Ok((first.max(0) as u64, next.max(0) as u64))
            })
            .await
    }

    /// The offset of the first message of that time or a later one. `None`: there is none. `millis` since 1970.
    pub(super) async fn offset_at<C: Clock>(
        &self,
        topic: &Arc<str>,
        partition: i32,
        millis: i64,
    ) -> Result<Option<u64>, Status> {
        let topic = Arc::clone(topic);
        self.jobs
            .ask::<C, _>(QUESTION_TIME_MAX, move |clients, time| {
                let mut times = TopicPartitionList::with_capacity(1);
                times.add_partition_offset(&topic, partition, Offset::Offset(millis))?;
                let found = clients.consumer().offsets_for_times(times, time)?;
                let found = found.elements().first().map(|found| (found.error(), found.offset()));
                match found {
                    Some((Ok(()), Offset::Offset(offset))) => Ok(u64::try_from(offset).ok()),
                    Some((Err(error), _)) => Err(error),
                    _ => Ok(None),
                }
            })
            .await
    }
}

#[cfg(test)]
impl Questions {
    /// Keeps the thread busy until something is sent.
    pub(super) async fn hold_for_test<C: Clock>(&self, release: std::sync::mpsc::Receiver<()>) {
        let job = move |_: &Clients, _| {
            let _ = release.recv(); // a test that fails drops the sender
            Ok(())
        };
        let _ = self.jobs.ask::<C, _>(QUESTION_TIME_MAX, job).await;
    }
}

impl Clients {
    fn new(consumer: Arc<ConsumerHandle>, producer: Arc<Producer>) -> Self {
        let (listed_at, failed_probes) = (Cell::new(Instant::now()), Cell::new(0));
        Self { consumer, producer, listed_at, failed_probes, delivered: Cell::new(0) }
    }

    fn consumer(&self) -> Arc<BaseConsumer<KafkaLogger>> {
        self.consumer.current().1
    }

    /// Lists all topics. Replaces clients that are [stuck](ConsumerHandle): the storage lists topics each second.
    fn list(&self, time: Duration) -> KafkaResult<Metadata> {
        let listed = self.consumer().fetch_metadata(None, time);
        let now = Instant::now();
        match &listed {
            Ok(metadata) => {
                self.listed_at.set(now);
                let topic = metadata.topics().first().map(MetadataTopic::name);
                topic.into_iter().for_each(|topic| self.check_producer(topic));
            }
            Err(_) if now - self.listed_at.get() >= STUCK_TIME_MIN => {
                // If the brokers are away, this one does not find them either, and takes the same time.
                self.listed_at.set(now);
                info!(
                    "Kafka: a new consumer takes the place of one that does not reach the brokers"
                );
                self.consumer.replace()?;
            }
            Err(_) => {}
        }
        listed
    }

    /// Replaces the producer if it does not reach the brokers that answer to the consumer. Its messages cannot be sent.
    fn check_producer(&self, topic: &str) {
        // A probe waits behind the messages: under load it may fail although they are delivered.
        let delivered = self.producer.delivered();
        let is_delivering = self.delivered.replace(delivered) != delivered;
        let has_failed = !is_delivering
            && self.producer.has_waiting()
            && self.producer.probe(topic, PROBE_TIME_MAX).is_err();
        self.failed_probes.set(if has_failed { self.failed_probes.get() + 1 } else { 0 });
        if self.failed_probes.get() >= FAILED_PROBES_MAX {
            self.failed_probes.set(0);
            warn!("Kafka: a new producer takes the place of one that does not reach the brokers");
            if let Err(error) = self.producer.replace_stuck() {
                warn!("Kafka: no new producer: {error}");
            }
        }
    }
}

/// How long no list of topics may come before the clients are replaced. Longer than a broker takes to restart, and two
/// lists take to time out.
const STUCK_TIME_MIN: Duration = Duration::from_secs(10);

/// How long a probe of the producer may take, and how many may fail, one after the other.
const PROBE_TIME_MAX: Duration = Duration::from_millis(500);
const FAILED_PROBES_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::super::KafkaConfig;
    use super::*;

    /// Nobody listens there.
    const NOWHERE: &str = "127.0.0.1:1";

    fn clients(consumer: &str, producer: &str) -> Clients {
        let config = KafkaConfig {
            brokers: producer.to_owned(),
            message_time_max: Duration::from_secs(1),
            waiting_bytes_max: 1 << 20,
        };
        let consumer = Arc::new(ConsumerHandle::new(consumer).unwrap());
        Clients::new(consumer, Arc::new(Producer::new(config).unwrap()))
    }

    #[test]
    fn a_producer_that_does_not_reach_the_brokers_is_replaced_if_messages_wait() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("s.t", 1, 1).unwrap();
        let clients = clients(&cluster.bootstrap_servers(), NOWHERE);
        let list = || drop(clients.list(QUESTION_TIME_MAX).unwrap());
        let first = clients.producer.current();
        let is_first = || Arc::ptr_eq(&first, &clients.producer.current());
        (0..FAILED_PROBES_MAX).for_each(|_| list());
        assert!(is_first(), "nothing waits");
        let waiting = clients.producer.reserve_for_test();
        (1..FAILED_PROBES_MAX).for_each(|_| list());
        assert!(is_first());
        clients.producer.deliver_for_test();
        (0..FAILED_PROBES_MAX).for_each(|_| list());
        assert!(is_first(), "it is slow, but delivers");
        list();
        assert!(!is_first());
        drop(waiting);
    }

    #[test]
    fn a_consumer_that_does_not_reach_the_brokers_is_replaced_after_a_while() {
        let clients = clients(NOWHERE, NOWHERE);
        let list = || clients.list(Duration::from_millis(50)).map(drop).unwrap_err();
        list();
        assert_eq!(clients.consumer.current().0, 0);
        clients.listed_at.set(Instant::now().checked_sub(STUCK_TIME_MIN).unwrap());
        list();
        assert_eq!(clients.consumer.current().0, 1);
        list();
        assert_eq!(clients.consumer.current().0, 1, "not each time");
    }
}

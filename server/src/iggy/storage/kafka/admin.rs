//! [`Admin`]: questions to the brokers, and changes of topics, which block a thread of its own.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use std::{io, iter};

use owned_io::{Clock, channel};
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::topic_partition_list::Offset;
use tracing::{error, info, warn};

use super::client::{self, ConsumerHandle, KafkaLogger};
use super::names::{TOPIC_BYTES_MAX, stream_and_topic};
use super::producer::Producer;
use crate::iggy::Status;
use crate::iggy::catalogue::PARTITIONS_PER_TOPIC_MAX;
use crate::log_limit::LogLimit;

/// How long a job may take, from the moment at which it is asked for. Longer than brokers take that are well.
const JOB_TIME_MAX: Duration = Duration::from_secs(4);

/// How long the creation of a topic may take.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(10);

/// The most jobs that wait: about one for each client that polls. Further ones are refused.
const JOBS_MAX: usize = 1_024;

/// Runs jobs on its thread, one after the other. The thread ends when it is dropped.
pub(super) struct Admin {
    jobs: SyncSender<Job>,
    /// Each poll may fail.
    failure_log: RefCell<LogLimit>,
}

type Job = Box<dyn FnOnce(&Clients) + Send>;

/// What the thread asks.
struct Clients {
    brokers: String,
    consumer: Arc<ConsumerHandle>,
    producer: Arc<Producer>,
    admin: RefCell<AdminClient<KafkaLogger>>,
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

impl Admin {
    /// `consumer` is asked for metadata and offsets, which any number of threads may do. It and `producer` are replaced
    /// when they are stuck.
    pub(super) fn start(
        brokers: String,
        consumer: Arc<ConsumerHandle>,
        producer: Arc<Producer>,
    ) -> io::Result<Self> {
        let admin = RefCell::new(new_admin(&brokers).map_err(io::Error::other)?);
        let (listed_at, failed_probes) = (Cell::new(Instant::now()), Cell::new(0));
        let delivered = Cell::new(0);
        let clients =
            Clients { brokers, consumer, producer, admin, listed_at, failed_probes, delivered };
        let (jobs, receiver) = sync_channel(JOBS_MAX);
        let run = move || run_jobs(&receiver, &clients);
        thread::Builder::new().name("kafka-admin".to_owned()).spawn(run)?;
        Ok(Self { jobs, failure_log: RefCell::default() })
    }

    /// All topics that are named by the rule.
    pub(super) async fn topics<C: Clock>(&self) -> Result<Vec<FoundTopic>, Status> {
        self.ask::<C, _>(JOB_TIME_MAX, |clients, time| {
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
        self.ask::<C, _>(JOB_TIME_MAX, move |clients, time| clients.producer.probe(&topic, time))
            .await
    }

    /// The first offset of a partition, and the one behind its last message.
    pub(super) async fn offsets<C: Clock>(
        &self,
        topic: &Arc<str>,
        partition: i32,
    ) -> Result<(u64, u64), Status> {
        let topic = Arc::clone(topic);
        self.ask::<C, _>(JOB_TIME_MAX, move |clients, time| {
            let (first, next) = clients.consumer().fetch_watermarks(&topic, partition, time)?;
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
        self.ask::<C, _>(JOB_TIME_MAX, move |clients, time| {
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

    /// Creates a topic. `replication`: 1 is what the brokers have by default.
    pub(super) async fn create_topic<C: Clock>(
        &self,
        name: String,
        partitions: u32,
        replication: u8,
        settings: Vec<(&'static str, String)>,
    ) -> Result<(), Status> {
        debug_assert!(name.len() <= TOPIC_BYTES_MAX);
        self.ask::<C, _>(CHANGE_TIME_MAX, move |clients, time| {
            let replication = if replication <= 1 { -1 } else { i32::from(replication) };
            let replication = TopicReplication::Fixed(replication);
            let mut topic = NewTopic::new(&name, partitions as i32, replication);
            for (key, value) in &settings {
                topic = topic.set(key, value);
            }
            clients.change(|admin| {
                let created = admin.create_topics(iter::once(&topic), &options(time));
                first_result(block_on(created)?)
            })
        })
        .await
    }

    /// Gives a topic as many partitions.
    pub(super) async fn set_partitions<C: Clock>(
        &self,
        name: String,
        count: usize,
    ) -> Result<(), Status> {
        self.ask::<C, _>(CHANGE_TIME_MAX, move |clients, time| {
            let partitions = NewPartitions::new(&name, count);
            clients.change(|admin| {
                let created = admin.create_partitions(iter::once(&partitions), &options(time));
                first_result(block_on(created)?)
            })
        })
        .await
    }

    /// Deletes topics. One that is not there is no error.
    pub(super) async fn delete_topics<C: Clock>(&self, names: Vec<String>) -> Result<(), Status> {
        if names.is_empty() {
            return Ok(());
        }
        self.ask::<C, _>(CHANGE_TIME_MAX, move |clients, time| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let deleted =
                clients.change(|admin| block_on(admin.delete_topics(&names, &options(time))))?;
            let is_missing = |code| code == RDKafkaErrorCode::UnknownTopicOrPartition;
            let failed = deleted.into_iter().filter_map(Result::err);
            match failed.map(|(_, code)| code).find(|&code| !is_missing(code)) {
                Some(code) => Err(KafkaError::AdminOp(code)),
                None => Ok(()),
            }
        })
        .await
    }

    /// Runs a job within `time_max`. It is left out if its time is over before its turn comes, or nobody waits for it.
    ///
    /// # Errors
    /// [`TaskTimeout`](Status::TaskTimeout): too many jobs, or the time is over.
    async fn ask<C: Clock, T: Send + 'static>(
        &self,
        time_max: Duration,
        job: impl FnOnce(&Clients, Duration) -> KafkaResult<T> + Send + 'static,
    ) -> Result<T, Status> {
        let deadline = Instant::now() + time_max;
        let (answer, mut answered) = channel(NonZeroUsize::MIN);
        let waiter = Arc::new(());
        let is_wanted: Weak<()> = Arc::downgrade(&waiter);
        let job = move |clients: &Clients| {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || is_wanted.strong_count() == 0 {
                return;
            }
            let _ = answer.try_send(job(clients, left)); // nobody may wait any more
        };
        self.jobs.try_send(Box::new(job)).map_err(|_| Status::TaskTimeout)?;
        let answer = answered.receive::<C>().await.ok_or(Status::TaskTimeout)?;
        answer.map_err(|error| {
            let status = status_of(&error);
            if status == Status::TaskTimeout
                && let Some(suppressed) = self.failure_log.borrow_mut().admit(Instant::now())
            {
                warn!(suppressed, "Kafka: {error}");
            }
            status
        })
    }
}

impl Clients {
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
                self.admin.replace(new_admin(&self.brokers)?);
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

    /// Makes a change. After an error the next one gets a new client: the last one may be stuck.
    fn change<T>(
        &self,
        change: impl FnOnce(&AdminClient<KafkaLogger>) -> KafkaResult<T>,
    ) -> KafkaResult<T> {
        let changed = change(&self.admin.borrow());
        if changed.is_err() {
            self.admin.replace(new_admin(&self.brokers)?);
        }
        changed
    }
}

/// How long no list of topics may come before the clients are replaced. Longer than a broker takes to restart, and two
/// lists take to time out.
const STUCK_TIME_MIN: Duration = Duration::from_secs(10);

/// How long a probe of the producer may take, and how many may fail, one after the other.
const PROBE_TIME_MAX: Duration = Duration::from_millis(500);
const FAILED_PROBES_MAX: u32 = 3;

fn new_admin(brokers: &str) -> KafkaResult<AdminClient<KafkaLogger>> {
    AdminClient::from_config_and_context(&client::common(brokers), KafkaLogger::default())
}

fn run_jobs(jobs: &Receiver<Job>, clients: &Clients) {
    while let Ok(job) = jobs.recv() {
        // The bindings panic at what they do not expect. Whoever asked gets no answer then, and the next job runs: without
        // this thread the store would be of no use, and nobody would notice.
        let ran = catch_unwind(AssertUnwindSafe(|| job(clients)));
        if ran.is_err() {
            error!("Kafka: a question to the brokers has panicked");
        }
    }
}

fn options(time: Duration) -> AdminOptions {
    AdminOptions::new().request_timeout(Some(time)).operation_timeout(Some(time))
}

fn first_result(results: Vec<Result<String, (String, RDKafkaErrorCode)>>) -> KafkaResult<()> {
    match results.into_iter().next() {
        Some(Err((_, code))) => Err(KafkaError::AdminOp(code)),
        _ => Ok(()),
    }
}

fn status_of(error: &KafkaError) -> Status {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::TopicAlreadyExists) => Status::TopicNameAlreadyExists,
        Some(Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownTopicId) => {
            Status::TopicIdNotFound
        }
        Some(Code::UnknownPartition) => Status::PartitionNotFound,
        Some(Code::InvalidPartitions) => Status::InvalidPartitionsCount,
        Some(Code::InvalidTopic) => Status::InvalidTopicName,
        Some(Code::InvalidReplicationFactor) => Status::InvalidReplicationFactor,
        _ => Status::TaskTimeout,
    }
}

/// Waits for a future on this thread, which has no runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    // Each round waits for a wake. librdkafka ends each request at its deadline.
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

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
        Clients {
            brokers: consumer.to_owned(),
            consumer: Arc::new(ConsumerHandle::new(consumer).unwrap()),
            producer: Arc::new(Producer::new(config).unwrap()),
            admin: RefCell::new(new_admin(consumer).unwrap()),
            listed_at: Cell::new(Instant::now()),
            failed_probes: Cell::new(0),
            delivered: Cell::new(0),
        }
    }

    #[test]
    fn a_producer_that_does_not_reach_the_brokers_is_replaced_if_messages_wait() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("s.t", 1, 1).unwrap();
        let clients = clients(&cluster.bootstrap_servers(), NOWHERE);
        let list = || drop(clients.list(JOB_TIME_MAX).unwrap());
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
    #[test]
    fn a_job_that_panics_does_not_end_the_thread() {
        let Clients { consumer, producer, .. } = clients(NOWHERE, NOWHERE);
        let admin = Admin::start(NOWHERE.to_owned(), consumer, producer).unwrap();
        admin.jobs.send(Box::new(|_| panic!("as the bindings may"))).unwrap();
        let (done, is_done) = sync_channel(1);
        admin.jobs.send(Box::new(move |_| done.send(()).unwrap())).unwrap();
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

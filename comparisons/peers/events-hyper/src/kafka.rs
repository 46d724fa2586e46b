//! [`Topic`]: appends events to a topic of Kafka, with the settings of this project's server.

use std::cell::Cell;
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer,
};
use rdkafka::{ClientConfig, ClientContext, Message as _};
use tokio::sync::oneshot;

/// How long the broker may take to say which partitions the topic has.
const METADATA_TIME_MAX: Duration = Duration::from_secs(10);

/// The most events that wait for the broker.
const WAITING_MAX: &str = "131072";

/// The same in KiB.
const WAITING_KBYTES_MAX: &str = "131072";

/// A topic. Events go to its partitions in turn.
pub(crate) struct Topic {
    producer: ThreadedProducer<Reports>,
    name: String,
    partitions: i32,
    next: Cell<i32>,
}

/// Why there is no acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Too many events wait. This one is not stored.
    Full,
    /// The event may be stored or not.
    Unknown,
}

impl Topic {
    /// Connects, and asks for the partitions.
    ///
    /// # Errors
    /// Those of rdkafka.
    pub(crate) fn open(brokers: &str, name: &str) -> KafkaResult<Self> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("client.id", env!("CARGO_PKG_NAME"))
            .set("reconnect.backoff.ms", "100")
            .set("reconnect.backoff.max.ms", "1000")
            .set("socket.timeout.ms", "10000")
            .set("socket.keepalive.enable", "true")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "40000")
            .set("queue.buffering.max.messages", WAITING_MAX)
            .set("queue.buffering.max.kbytes", WAITING_KBYTES_MAX)
            .set("linger.ms", "0")
            .set("batch.size", "900000")
            .set("topic.metadata.propagation.max.ms", "1000")
            .set("allow.auto.create.topics", "false");
        let producer = ThreadedProducer::from_config_and_context(&config, Reports)?;
        let metadata = producer.client().fetch_metadata(Some(name), METADATA_TIME_MAX)?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let partitions = topic.map_or(0, |topic| topic.partitions().len() as i32);
        if partitions == 0 {
            return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition));
        }
        Ok(Self { producer, name: name.to_owned(), partitions, next: Cell::new(0) })
    }

    /// Appends an event. Returns its partition and its offset when all replicas in sync have it.
    ///
    /// # Errors
    /// There is no acknowledgement.
    pub(crate) async fn append(&self, event: &[u8]) -> Result<(i32, i64), Failure> {
        let partition = self.next.get();
        self.next.set((partition + 1) % self.partitions);
        let (report, reported) = oneshot::channel();
        let record = BaseRecord::<(), [u8], _>::with_opaque_to(&self.name, Box::new(report))
            .partition(partition)
            .payload(event);
        self.producer.send(record).map_err(|(error, _)| match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::QueueFull) => Failure::Full,
            _ => Failure::Unknown,
        })?;
        match reported.await {
            // The offset of an event that is stored already, after a connection was lost, is unknown.
            Ok(Some(offset @ 0..)) => Ok((partition, offset)),
            _ => Err(Failure::Unknown),
        }
    }
}

/// Passes each report to the task that waits for it: the offset if the event is stored.
struct Reports;

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<oneshot::Sender<Option<i64>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Self::DeliveryOpaque) {
        let offset = result.as_ref().ok().map(|message| message.offset());
        let _ = report.send(offset); // nobody may wait any more
    }
}

//! The settings of the clients of librdkafka, what they log, and the [`ConsumerHandle`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use tracing::{debug, info, warn};

use crate::log_limit::LogLimit;

/// What all clients share. Each connects to the brokers by itself.
pub(super) fn common(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "owned-io-server")
        // A broker that restarts is back within seconds. By default librdkafka waits up to ten between two attempts.
        .set("reconnect.backoff.ms", "100")
        .set("reconnect.backoff.max.ms", "1000")
        // A request whose broker hangs fails, and the connection with it. It is shorter than the clients of this server
        // wait, and longer than a broker takes that is busy.
        .set("socket.timeout.ms", "10000")
        .set("socket.keepalive.enable", "true")
        // The levels of syslog: 6 is info.
        .set("log_level", "6");
    config
}

/// Of the producer. `message_time_max`: how long a message may wait for its acknowledgement.
pub(super) fn producer(
    brokers: &str,
    message_time_max: Duration,
    messages_max: usize,
    bytes_max: usize,
) -> ClientConfig {
    let mut config = common(brokers);
    config
        // Retries make neither duplicates nor gaps, and keep the order: this implies `acks=all`.
        .set("enable.idempotence", "true")
        .set("message.timeout.ms", message_time_max.as_millis().to_string())
        .set("message.max.bytes", MESSAGE_BYTES_MAX.to_string())
        // The producer has a limit of its own, which is reached before these.
        .set("queue.buffering.max.messages", messages_max.saturating_mul(2).to_string())
        .set("queue.buffering.max.kbytes", kbytes(bytes_max.saturating_mul(2)))
        // A batch of a client is sent at once. While a request is in flight, others gather behind it.
        .set("linger.ms", "0")
        .set("batch.size", BATCH_BYTES_MAX.to_string())
        // A topic that was created a moment ago may not be known to all brokers. After this time it is missing.
        .set("topic.metadata.propagation.max.ms", "1000")
        .set("allow.auto.create.topics", "false");
    config
}

/// Of the consumer, which is assigned partitions and is in no group.
fn consumer(brokers: &str) -> ClientConfig {
    let mut config = common(brokers);
    config
        // librdkafka assigns partitions only to a consumer with a group. It never joins it, and commits nothing.
        .set("group.id", "owned-io-server")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        // Messages that retention has removed are skipped.
        .set("auto.offset.reset", "earliest")
        .set("allow.auto.create.topics", "false")
        // Each partition that is read has a queue, which a response to a fetch may exceed.
        .set("queued.max.messages.kbytes", QUEUED_KBYTES_MAX.to_string())
        .set("queued.min.messages", "1000")
        // How long a full queue is left alone. By default it stays empty for a second after it was read.
        .set("fetch.queue.backoff.ms", "10")
        .set("max.partition.fetch.bytes", FETCH_BYTES_MAX.to_string())
        .set("fetch.max.bytes", FETCH_ALL_BYTES_MAX.to_string())
        // How long a broker waits for messages. They are pushed as soon as they come, but a read at another offset waits
        // until the request in flight is answered.
        .set("fetch.wait.max.ms", "20")
        .set("fetch.error.backoff.ms", "100");
    config
}

/// The longest message with its headers, in bytes, as brokers have it by default.
pub(super) const MESSAGE_BYTES_MAX: usize = 1_000_000;

/// The longest batch of Kafka, in bytes. It must not be longer than brokers allow, which is 1 MiB by default.
const BATCH_BYTES_MAX: usize = 900_000;

/// The messages that wait in memory for a partition to be read, in KiB. Half a fetch: the next one is under way
/// while a client gets these.
const QUEUED_KBYTES_MAX: usize = 512;

/// What is fetched of one partition at once, in bytes. A longer batch is fetched all the same, and read by itself.
const FETCH_BYTES_MAX: usize = 1 << 20;

/// What is fetched of all partitions of a broker at once, in bytes.
const FETCH_ALL_BYTES_MAX: usize = 16 << 20;

/// librdkafka allows at most 2 GiB.
fn kbytes(bytes: usize) -> String {
    (bytes / 1024).clamp(1, 2_097_151).to_string()
}

/// The consumer of the process, which is replaced when it is stuck.
///
/// librdkafka 2.12 forgets all brokers if one answers that there are none, as the only broker of a cluster does that was
/// paused for long, and never connects again (<https://github.com/confluentinc/librdkafka/issues/5301>).
pub(super) struct ConsumerHandle {
    brokers: String,
    /// Counts the replacements.
    current: Mutex<(u64, Arc<BaseConsumer<KafkaLogger>>)>,
}

impl ConsumerHandle {
    pub(super) fn new(brokers: &str) -> KafkaResult<Self> {
        let current = Mutex::new((0, new_consumer(brokers)?));
        Ok(Self { brokers: brokers.to_owned(), current })
    }

    /// The consumer, and how often it was replaced.
    pub(super) fn current(&self) -> (u64, Arc<BaseConsumer<KafkaLogger>>) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the consumer. What is read by the old one has to be assigned again.
    pub(super) fn replace(&self) -> KafkaResult<()> {
        let new = new_consumer(&self.brokers)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = current.0 + 1;
        let old = std::mem::replace(&mut *current, (replaced, new));
        drop(current); // dropping the old one may take a while
        drop(old);
        Ok(())
    }
}

fn new_consumer(brokers: &str) -> KafkaResult<Arc<BaseConsumer<KafkaLogger>>> {
    let consumer =
        BaseConsumer::from_config_and_context(&consumer(brokers), KafkaLogger::default());
    consumer.map(Arc::new)
}

/// Passes what librdkafka logs on to the log of the server, with a limit.
#[derive(Debug, Default)]
pub(super) struct KafkaLogger {
    limit: Mutex<LogLimit>,
}

impl KafkaLogger {
    /// Logs what clients could repeat as often as they ask.
    pub(super) fn warn(&self, what: fmt::Arguments<'_>) {
        if let Some(suppressed) = self.admit() {
            warn!(suppressed, "Kafka: {what}");
        }
    }

    fn admit(&self) -> Option<u64> {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        limit.admit(Instant::now())
    }
}

impl ClientContext for KafkaLogger {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Debug => debug!("Kafka: {facility}: {message}"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => {
                info!("Kafka: {facility}: {message}");
            }
            _ => {
                self.warn(format_args!("{facility}: {message}"));
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.warn(format_args!("{error}: {reason}"));
    }
}

impl ConsumerContext for KafkaLogger {}

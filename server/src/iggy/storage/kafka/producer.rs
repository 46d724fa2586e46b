//! [`Producer`]: appends batches to Kafka, and waits for the reports of their delivery.
//!
//! librdkafka has threads of its own for the brokers. One more thread, of the `rdkafka` crate, calls back with reports:
//! the last report of a batch is sent to the task that waits for it, by a channel. No call of a worker blocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iggy_binary_protocol::WireMessageIterator;
use owned_io::{Clock, channel, coop};
use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tracing::warn;

use super::super::Appended;
use super::KafkaConfig;
use super::client::{self, KafkaLogger, MESSAGE_BYTES_MAX};
use super::delivery::{Delivery, UnsentMessages, status_of_failure};
use super::record::{headers_of, record_bytes};
use super::room::{Room, WAITING_MESSAGES_MAX};
use crate::iggy::Status;

/// The work of passing a message to librdkafka, in nanoseconds: two allocations, and a lock. Not measured.
const PRODUCE_NANOS: u64 = 2_000;

/// Why a batch is not appended.
pub(super) struct NotAppended {
    /// What the client is told.
    pub(super) status: Status,
    /// librdkafka has refused the first message, so that the batch may be passed to it again.
    is_untouched: bool,
}

impl NotAppended {
    /// The client knows no such topic or partition, and has taken nothing. What it knows may be old.
    pub(super) fn is_unknown(&self) -> bool {
        let is_missing =
            [Status::TopicIdNotFound, Status::PartitionNotFound].contains(&self.status);
        self.is_untouched && is_missing
    }
}

impl From<Status> for NotAppended {
    fn from(status: Status) -> Self {
        Self { status, is_untouched: false }
    }
}

/// The minimum interval between replacements of a failed client. A persistent broker error would fail each new client, and
/// each costs threads, connections and a second of shutdown.
const REPLACE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The one producer of the process.
pub(super) struct Producer {
    config: KafkaConfig,
    /// Replaced after a fatal error, because librdkafka refuses all messages then, and when it is
    /// [stuck](client::ConsumerHandle).
    client: Mutex<Arc<ThreadedProducer<Reports>>>,
    /// When a client was last replaced after a fatal error, or could not be.
    failed_at: Mutex<Option<Instant>>,
    room: Arc<Room>,
}

impl Producer {
    pub(super) fn new(config: KafkaConfig) -> KafkaResult<Self> {
        let client = Mutex::new(Arc::new(new_client(&config)?));
        let room = Arc::new(Room::new(config.waiting_bytes_max));
        Ok(Self { config, client, failed_at: Mutex::default(), room })
    }

    /// Waits for room, and passes the messages to librdkafka, in order, while `order` is held. Returns when all of them
    /// are acknowledged.
    pub(super) async fn append<C: Clock>(
        &self,
        (topic, partition): (&str, i32),
        order: &async_lock::Mutex<()>,
        messages: &Bytes,
        count: u32,
    ) -> Result<Appended, NotAppended> {
        let bytes = checked_bytes(messages, count)?;
        let permit = self.room.reserve::<C>(bytes, count as usize).await?;
        let (answer, mut answered) = channel(std::num::NonZeroUsize::MIN);
        let delivery = Arc::new(Delivery::new(answer, count, permit));
        let mut is_untouched = false;
        {
            // Else another batch could come between two messages of this one.
            let _order = order.lock().await;
            let client = self.client()?;
            let mut unsent = UnsentMessages::new(&delivery);
            for message in WireMessageIterator::new(messages, count) {
                coop::yield_if_exhausted::<C>().await;
                let message = message.map_err(|_| Status::InvalidMessagesSize)?;
                coop::consume(PRODUCE_NANOS + message.payload().len() as u64 / 8);
                let record =
                    BaseRecord::<(), [u8], _>::with_opaque_to(topic, Arc::clone(&delivery))
                        .partition(partition)
                        .payload(message.payload())
                        .headers(headers_of(&message));
                if let Err((error, _)) = client.send(record) {
                    is_untouched = unsent.refuse(&error);
                    break;
                }
                unsent.pass();
            }
        }
        drop(delivery);
        let answer = answered.receive::<C>().await.unwrap_or(Err(Status::Error));
        answer.map_err(|status| NotAppended { status, is_untouched })
    }

    /// Waits until no message waits for Kafka any more.
    pub(super) async fn flushed(&self) {
        self.room.all_free().await;
    }

    /// Whether messages wait for Kafka.
    pub(super) fn has_waiting(&self) -> bool {
        self.room.is_taken()
    }

    /// Asks a broker for something, which a client cannot do that is stuck. It blocks.
    pub(super) fn probe(&self, topic: &str, time_max: Duration) -> KafkaResult<()> {
        let client = Arc::clone(&self.lock());
        client.client().fetch_metadata(Some(topic), time_max).map(drop)
    }

    /// How many messages the client has delivered. One that goes on delivering is not stuck, though it may be slow.
    pub(super) fn delivered(&self) -> u64 {
        self.lock().context().delivered.load(Ordering::Relaxed)
    }

    /// Takes a new client in place of one that is stuck. All messages of the old one are refused first, so that it sends
    /// none of them behind those of the new one. What is already in a socket cannot be recalled: it is refused as "may be
    /// there", and may still arrive, behind later messages. It blocks for a moment.
    pub(super) fn replace_stuck(&self) -> KafkaResult<()> {
        let new = Arc::new(new_client(&self.config)?);
        let old = Arc::clone(&self.lock());
        old.purge(all_messages());
        *self.lock() = new;
        drop_elsewhere(old, self.config.message_time_max, Waiting::Refused);
        Ok(())
    }

    /// Takes a new client after a fatal error, when librdkafka itself has refused what was not sent. The rest waits for its
    /// acknowledgement.
    fn replace_failed(&self) -> KafkaResult<()> {
        let new = Arc::new(new_client(&self.config)?);
        let old = std::mem::replace(&mut *self.lock(), new);
        drop_elsewhere(old, self.config.message_time_max, Waiting::Awaited);
        Ok(())
    }

    /// The client, or a new one after a fatal error.
    ///
    /// # Errors
    /// [`TaskTimeout`](Status::TaskTimeout): there is none until [`REPLACE_INTERVAL_MIN`] is over.
    fn client(&self) -> Result<Arc<ThreadedProducer<Reports>>, Status> {
        let client = Arc::clone(&self.lock());
        let Some((_, reason)) = client.client().fatal_error() else { return Ok(client) };
        let mut failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if failed_at.is_some_and(|at| at.elapsed() < REPLACE_INTERVAL_MIN) {
            return Err(Status::TaskTimeout);
        }
        *failed_at = Some(Instant::now());
        warn!("Kafka: a new producer takes the place of one that has failed: {reason}");
        self.replace_failed().map_err(|error| {
            warn!("Kafka: no new producer: {error}");
            Status::TaskTimeout
        })?;
        Ok(Arc::clone(&self.lock()))
    }

    /// Held for a moment only.
    fn lock(&self) -> MutexGuard<'_, Arc<ThreadedProducer<Reports>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Producer {
    pub(super) fn current(&self) -> Arc<ThreadedProducer<Reports>> {
        Arc::clone(&self.lock())
    }

    /// As if a message was delivered.
    pub(super) fn deliver_for_test(&self) {
        self.lock().context().delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// As if a message waited.
    pub(super) fn reserve_for_test(&self) -> super::room::Permit {
        self.room.try_reserve(1, 1).expect("nothing waits")
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        drop_elsewhere(Arc::clone(&self.lock()), Duration::ZERO, Waiting::Awaited);
    }
}

fn new_client(config: &KafkaConfig) -> KafkaResult<ThreadedProducer<Reports>> {
    let (messages_max, bytes_max) = (WAITING_MESSAGES_MAX, config.waiting_bytes_max);
    let time_max = config.message_time_max;
    let config = client::producer(&config.brokers, time_max, messages_max, bytes_max);
    ThreadedProducer::from_config_and_context(&config, Reports::default())
}

/// What becomes of the messages of a client that is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Awaited,
    Refused,
}

fn all_messages() -> PurgeConfig {
    PurgeConfig::default().queue().inflight()
}

/// Waits until no message waits any more, `time_max` and a second at most, and drops a client. That takes up to some
/// 100 ms, and messages that still wait are refused.
fn drop_elsewhere(client: Arc<ThreadedProducer<Reports>>, time_max: Duration, waiting: Waiting) {
    let until = Instant::now() + time_max + Duration::from_secs(1);
    let wait_and_drop = move || {
        // A batch that was begun before the client was replaced goes on with it.
        let is_used = || client.in_flight_count() > 0 || Arc::strong_count(&client) > 1;
        while !time_max.is_zero() && is_used() && Instant::now() < until {
            if waiting == Waiting::Refused {
                client.purge(all_messages());
            }
            thread::sleep(Duration::from_millis(100));
        }
        drop(client);
    };
    let dropping = thread::Builder::new().name("kafka-end".to_owned());
    let _ = dropping.spawn(wait_and_drop); // an error drops it here
}

/// The bytes of all records.
///
/// # Errors
/// One is longer than Kafka allows.
fn checked_bytes(messages: &Bytes, count: u32) -> Result<usize, Status> {
    let mut all = 0;
    for message in WireMessageIterator::new(messages, count) {
        let bytes = record_bytes(&message.map_err(|_| Status::InvalidMessagesSize)?);
        if bytes > MESSAGE_BYTES_MAX {
            return Err(Status::InvalidSizeBytes);
        }
        all += bytes;
    }
    Ok(all)
}

/// Gets the reports of librdkafka, on its thread.
#[derive(Default)]
pub(super) struct Reports {
    logger: KafkaLogger,
    /// How many messages were delivered.
    delivered: AtomicU64,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.logger.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.logger.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Arc<Delivery>;

    fn delivery(&self, report: &DeliveryResult<'_>, delivery: Arc<Delivery>) {
        match report {
            Ok(message) => {
                self.delivered.fetch_add(1, Ordering::Relaxed);
                delivery.succeed(message.offset(), message.timestamp().to_millis().unwrap_or(0));
            }
            Err((error, _)) => {
                self.logger.error(error.clone(), "a message was not delivered");
                delivery.fail(status_of_failure(error));
            }
        }
        delivery.end(1);
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::super::delivery::tests::delivery;
    use super::*;

    /// Else they could come behind those of the new client.
    #[test]
    fn the_messages_of_a_client_that_is_stuck_are_refused_when_it_is_replaced() {
        let config = KafkaConfig {
            brokers: "127.0.0.1:1".to_owned(), // nobody listens there
            message_time_max: Duration::from_secs(600),
            waiting_bytes_max: 1 << 20,
        };
        let producer = Producer::new(config).unwrap();
        let old = producer.current();
        let send = || {
            let (delivery, answered) = delivery(1);
            let record = BaseRecord::<(), [u8], _>::with_opaque_to("t", Arc::new(delivery));
            old.send(record.partition(0).payload(b"message")).map_err(|(error, _)| error).unwrap();
            answered
        };
        let before = send();
        producer.replace_stuck().unwrap();
        let after = send(); // by a task that has begun before
        let until = Instant::now() + Duration::from_secs(60);
        for mut answered in [before, after] {
            let answer = std::iter::repeat_with(|| {
                thread::sleep(Duration::from_millis(5));
                answered.try_receive()
            });
            let answer = answer.take_while(|_| Instant::now() < until).flatten().next();
            assert_eq!(
                answer.map(|answer| answer.map(drop)),
                Some(Err(Status::CannotAppendMessage))
            );
        }
    }

    #[test]
    fn producers_that_fail_are_replaced_once_a_second_at_most() {
        let cluster = MockCluster::new(1).unwrap();
        let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 100];
        cluster.request_errors(RDKafkaApiKey::InitProducerId, &refused);
        let config = KafkaConfig {
            brokers: cluster.bootstrap_servers(),
            message_time_max: Duration::from_secs(1),
            waiting_bytes_max: 1 << 20,
        };
        let producer = Producer::new(config).unwrap();
        let mut clients = vec![producer.current()];
        let (began, patience) = (Instant::now(), Duration::from_secs(60));
        while clients.len() < 4 && began.elapsed() < patience {
            match producer.client() {
                Ok(client) if clients.iter().any(|known| Arc::ptr_eq(known, &client)) => {}
                Ok(client) => clients.push(client),
                Err(status) => assert_eq!(status, Status::TaskTimeout),
            }
            thread::sleep(Duration::from_millis(1));
        }
        // The first one is replaced at once.
        assert_eq!(clients.len(), 4);
        assert!(began.elapsed() >= 2 * REPLACE_INTERVAL_MIN, "{:?}", began.elapsed());
        // The last one fails too. In the future, so that the interval cannot end before the call.
        while producer.current().client().fatal_error().is_none() {
            assert!(began.elapsed() < patience);
            thread::sleep(Duration::from_millis(1));
        }
        *producer.failed_at.lock().unwrap() = Some(Instant::now() + patience);
        assert_eq!(producer.client().err(), Some(Status::TaskTimeout));
    }
}

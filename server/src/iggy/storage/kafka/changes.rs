//! [`Changes`]: changes of topics, which may take long, on a thread of their own.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{io, iter};

use owned_io::Clock;
use rdkafka::admin::{
    AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication, TopicResult,
};
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};

use super::client::{self, ConsumerHandle, KafkaLogger};
use super::jobs::Jobs;
use super::names::TOPIC_BYTES_MAX;
use crate::iggy::Status;

/// How long a change may take, from the moment at which it is asked for. A cluster that is well may take some seconds to
/// create a topic.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(10);

/// Changes topics. The thread ends when it is dropped.
pub(super) struct Changes {
    jobs: Jobs<ChangeClient>,
}

/// What the thread asks for changes.
struct ChangeClient {
    brokers: String,
    /// It is replaced when it is stuck, which this client may be then, too.
    consumer: Arc<ConsumerHandle>,
    /// How often the consumer had been replaced when this client was new.
    generation: Cell<u64>,
    admin: RefCell<AdminClient<KafkaLogger>>,
}

impl Changes {
    pub(super) fn start(brokers: String, consumer: Arc<ConsumerHandle>) -> io::Result<Self> {
        let client = ChangeClient::new(brokers, consumer).map_err(io::Error::other)?;
        Ok(Self { jobs: Jobs::start("kafka-change", client)? })
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
        self.jobs
            .ask::<C, _>(CHANGE_TIME_MAX, move |client, time| {
                let replication = if replication <= 1 { -1 } else { i32::from(replication) };
                let replication = TopicReplication::Fixed(replication);
                let mut topic = NewTopic::new(&name, partitions as i32, replication);
                for (key, value) in &settings {
                    topic = topic.set(key, value);
                }
                client.change_one(|admin| {
                    block_on(admin.create_topics(iter::once(&topic), &options(time)))
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
        self.jobs
            .ask::<C, _>(CHANGE_TIME_MAX, move |client, time| {
                let partitions = NewPartitions::new(&name, count);
                client.change_one(|admin| {
                    block_on(admin.create_partitions(iter::once(&partitions), &options(time)))
                })
            })
            .await
    }

    /// Deletes topics. One that is not there is no error.
    pub(super) async fn delete_topics<C: Clock>(&self, names: Vec<String>) -> Result<(), Status> {
        if names.is_empty() {
            return Ok(());
        }
        self.jobs
            .ask::<C, _>(CHANGE_TIME_MAX, move |client, time| {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                let deleted =
                    client.change(|admin| block_on(admin.delete_topics(&names, &options(time))))?;
                let is_missing = |code| code == RDKafkaErrorCode::UnknownTopicOrPartition;
                let failed = deleted.into_iter().filter_map(Result::err);
                match failed.map(|(_, code)| code).find(|&code| !is_missing(code)) {
                    Some(code) => Err(KafkaError::AdminOp(code)),
                    None => Ok(()),
                }
            })
            .await
    }
}

impl ChangeClient {
    fn new(brokers: String, consumer: Arc<ConsumerHandle>) -> KafkaResult<Self> {
        let (generation, admin) = (consumer.current().0, new_admin(&brokers)?);
        let (generation, admin) = (Cell::new(generation), RefCell::new(admin));
        Ok(Self { brokers, consumer, generation, admin })
    }

    /// Changes one topic. A refusal by the broker does not replace the client.
    fn change_one(
        &self,
        change: impl FnOnce(&AdminClient<KafkaLogger>) -> KafkaResult<Vec<TopicResult>>,
    ) -> KafkaResult<()> {
        match self.change(change)?.into_iter().next() {
            Some(Err((_, code))) => Err(KafkaError::AdminOp(code)),
            _ => Ok(()),
        }
    }

    /// Makes a change. `change` fails only if the request itself fails: the client may be stuck then, and is replaced. It
    /// is also replaced after the consumer was, because it may be stuck too. If no new client can be created, the old one
    /// stays.
    fn change<T>(
        &self,
        change: impl FnOnce(&AdminClient<KafkaLogger>) -> KafkaResult<T>,
    ) -> KafkaResult<T> {
        let generation = self.consumer.current().0;
        if self.generation.get() != generation {
            self.admin.replace(new_admin(&self.brokers)?);
            self.generation.set(generation);
        }
        let changed = change(&self.admin.borrow());
        if changed.is_err()
            && let Ok(admin) = new_admin(&self.brokers)
        {
            self.admin.replace(admin);
        }
        changed
    }
}

fn new_admin(brokers: &str) -> KafkaResult<AdminClient<KafkaLogger>> {
    AdminClient::from_config_and_context(&client::common(brokers), KafkaLogger::default())
}

fn options(time: Duration) -> AdminOptions {
    AdminOptions::new().request_timeout(Some(time)).operation_timeout(Some(time))
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
    use super::*;

    #[test]
    fn a_client_that_has_failed_or_may_be_stuck_is_replaced() {
        let brokers = "127.0.0.1:1".to_owned(); // nobody listens there
        let consumer = Arc::new(ConsumerHandle::new(&brokers).unwrap());
        let client = ChangeClient::new(brokers, Arc::clone(&consumer)).unwrap();
        let used = |outcome: KafkaResult<()>| {
            let mut used = None;
            let _ = client.change(|admin| {
                used = Some(admin.inner().native_ptr());
                outcome
            });
            used
        };
        let first = used(Ok(()));
        assert_eq!(used(Ok(())), first);
        consumer.replace().unwrap();
        let second = used(Ok(()));
        assert_ne!(second, first);
        assert_eq!(used(Err(KafkaError::Canceled)), second);
        let third = used(Ok(()));
        assert_ne!(third, second);
        let code = RDKafkaErrorCode::TopicAlreadyExists;
        let refused = client.change_one(|_| Ok(vec![Err(("t".to_owned(), code))]));
        assert_eq!(refused, Err(KafkaError::AdminOp(code)));
        assert_eq!(used(Ok(())), third, "a refusal does not replace the client");
    }
}

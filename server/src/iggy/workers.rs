//! [`Iggy`]: how all workers use one broker.
//!
//! One worker has the broker, and with it the catalogue and all partitions. A command that arrives at another worker
//! hops there and back, decoded: through one bounded queue for all, and a queue for its answer. So do a read of a
//! [tail](crate::service::tail), and [events](crate::service::events). A connection has one request at a time, so a hop
//! waits behind at most as many as there are connections.

use std::num::NonZeroUsize;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use iggy_binary_protocol::requests::messages::SendMessagesHeader;
use owned_io::{Clock, Executor, Receiver, Sender, channel, select};

use super::answer::{Answer, Totals};
use super::broker::tail::{TailError, TailPlace, TailStart, Tailed};
use super::broker::{AppendedAt, Broker, Epoch};
use super::clients::Clients;
use super::command::Command;
use super::messages::Batch;
use super::storage::{CatalogueFailure, REFRESH_INTERVAL};
use super::{Credentials, Status};
use crate::metrics::WorkerMetrics;

/// The most hops that wait in the queue. Commands that find it full wait for room, for [`HOP_TIME_MAX`]. Each is a few
/// hundred bytes; the messages of a batch are reserved in the account of its connection until it is answered: the task of
/// a connection waits for that although its client has gone.
const HOPS_MAX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// What the workers share.
#[derive(Debug)]
pub struct Hub {
    clients: Clients,
    credentials: Credentials,
    hops: Sender<Hop>,
    /// Until the worker with the broker takes it. When it is dropped, hops are refused.
    receiver: Mutex<Option<Receiver<Hop>>>,
    catalogue_failure: CatalogueFailure,
}

/// What the broker is asked for, on the way there, and where its answer goes.
#[derive(Debug)]
enum Hop {
    Execute { client: u32, command: Command, bytes_max: usize, answer: Sender<Executed> },
    Append { to: SendMessagesHeader, batch: Batch, answer: Sender<Result<AppendedAt, Status>> },
    FindTail { place: TailPlace, answer: Sender<Result<TailStart, Status>> },
    Tail { epoch: Epoch, from: u64, bytes_max: usize, answer: Sender<Result<Tailed, TailError>> },
}

type Executed = Result<Answer, Status>;

/// The protocol, as one worker has it.
#[derive(Debug)]
pub struct Iggy {
    hub: Arc<Hub>,
    /// If this is the worker that has it.
    broker: Option<Rc<Broker>>,
    metrics: Arc<WorkerMetrics>,
}

impl Hub {
    /// For clients with these credentials.
    pub fn new(credentials: Credentials) -> Self {
        let (hops, receiver) = channel(HOPS_MAX);
        let receiver = Mutex::new(Some(receiver));
        let (clients, catalogue_failure) = Default::default();
        Self { clients, credentials, hops, receiver, catalogue_failure }
    }

    /// Refuses the commands of all workers as [`Disconnected`](Status::Disconnected), unless one of them has the broker:
    /// otherwise they would wait for one that cannot be opened.
    pub fn refuse_without_broker(&self) {
        drop(self.take_receiver());
    }

    fn take_receiver(&self) -> Option<Receiver<Hop>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// How many commands are in the queue.
    pub fn waiting(&self) -> usize {
        self.hops.len()
    }

    /// The clients of all workers.
    pub const fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Whether nothing can be created any more.
    pub const fn catalogue_failure(&self) -> &CatalogueFailure {
        &self.catalogue_failure
    }
}

impl Iggy {
    /// For the worker that has the broker. From now on it executes what the other workers pass on.
    pub fn with_broker<R: Clock + Executor>(hub: Arc<Hub>, broker: Broker) -> Self {
        let broker = Rc::new(broker);
        if let Some(receiver) = hub.take_receiver() {
            drop(R::spawn(execute_hops::<R>(receiver, Rc::clone(&broker))));
        }
        drop(R::spawn(enforce_retention::<R>(Rc::downgrade(&broker))));
        if broker.has_shared_topics() {
            drop(R::spawn(refresh::<R>(Rc::downgrade(&broker))));
        }
        Self { hub, broker: Some(broker), metrics: Arc::default() }
    }

    /// For another worker.
    pub fn without_broker(hub: Arc<Hub>) -> Self {
        Self { hub, broker: None, metrics: Arc::default() }
    }

    /// How many partitions there are, and what is stored in them, if this is the worker that has them.
    pub fn stored(&self) -> Option<(usize, Totals)> {
        self.broker.as_ref().map(|broker| broker.stored())
    }

    /// Whether other servers have the same topics, and this is the worker that asks for them.
    pub fn has_shared_topics(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.has_shared_topics())
    }

    /// Counts in the cells of this worker.
    #[must_use]
    pub fn with_metrics(self, metrics: Arc<WorkerMetrics>) -> Self {
        Self { metrics, ..self }
    }

    /// What this worker counts.
    pub(super) fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// Refuses further commands, and makes all that is stored durable, if this is the worker that has it: see
    /// [`Broker::close`].
    ///
    /// # Errors
    /// Something may not be durable.
    ///
    /// # Cancellation
    /// Commands are refused all the same.
    pub async fn close(&self) -> Result<(), Status> {
        match &self.broker {
            Some(broker) => broker.close().await,
            None => Ok(()),
        }
    }

    /// What it shares with the other workers.
    pub fn hub(&self) -> Arc<Hub> {
        Arc::clone(&self.hub)
    }

    pub(super) fn clients(&self) -> &Clients {
        &self.hub.clients
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.hub.credentials
    }

    /// Executes a command of a client, here or at the worker with the broker.
    ///
    /// # Errors
    /// The command is refused. [`TaskTimeout`](Status::TaskTimeout): the worker with the broker has had no room for it for
    /// [`HOP_TIME_MAX`]. [`Disconnected`](Status::Disconnected): the broker closes, or its worker has ended.
    ///
    /// # Cancellation
    /// The command may be executed or not. A batch is in memory until then: drop the future only with the whole worker,
    /// or keep its bytes reserved.
    pub async fn execute<C: Clock>(
        &self,
        client: u32,
        command: Command,
        bytes_max: usize,
    ) -> Result<Answer, Status> {
        // A change runs in a task of its own in any case: it goes on when its connection ends.
        if let Some(broker) = &self.broker
            && !command.is_change()
        {
            return broker.execute(client, command, bytes_max).await;
        }
        self.ask::<C, _>(|answer| Hop::Execute { client, command, bytes_max, answer }).await?
    }

    /// Appends a batch that did not come over Iggy's protocol: [`Broker::append`], here or at the worker with the broker.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute), and those of `Broker::append`. After [`TaskTimeout`](Status::TaskTimeout) nothing was
    /// appended.
    ///
    /// # Cancellation
    /// As for [`execute`](Self::execute).
    pub async fn append<C: Clock>(
        &self,
        to: SendMessagesHeader,
        batch: Batch,
    ) -> Result<AppendedAt, Status> {
        if let Some(broker) = &self.broker {
            return broker.append(&to, batch).await;
        }
        self.ask::<C, _>(|answer| Hop::Append { to, batch, answer }).await?
    }

    /// Finds a partition for a tail: [`Broker::find_tail`].
    ///
    /// # Errors
    /// There is no such stream, topic or partition. Those of [`execute`](Self::execute).
    ///
    /// # Cancellation
    /// Safe.
    pub async fn find_tail<C: Clock>(&self, place: TailPlace) -> Result<TailStart, Status> {
        if let Some(broker) = &self.broker {
            return broker.find_tail(&place).await;
        }
        self.ask::<C, _>(|answer| Hop::FindTail { place, answer }).await?
    }

    /// Waits for messages, and reads some of them: [`Broker::tail`].
    ///
    /// # Errors
    /// As there. [`Ended`](TailError::Ended): the worker with the broker has ended.
    ///
    /// # Cancellation
    /// Safe. The wait at the other worker ends too.
    pub async fn tail<C: Clock>(
        &self,
        epoch: Epoch,
        from: u64,
        bytes_max: usize,
    ) -> Result<Tailed, TailError> {
        if let Some(broker) = &self.broker {
            return broker.tail(epoch, from, bytes_max).await;
        }
        // Who waits for messages may wait for room, too.
        let (answer, mut answered) = channel(NonZeroUsize::MIN);
        let hop = Hop::Tail { epoch, from, bytes_max, answer };
        self.hub.hops.send::<C>(hop).await.map_err(|_| TailError::Ended)?;
        answered.receive::<C>().await.unwrap_or(Err(TailError::Ended))
    }

    /// Sends a hop, and waits for its answer: at most [`HOP_TIME_MAX`] for room in the queue, and then as long as the broker
    /// takes, because nobody could say whether a batch is appended that was not waited for.
    ///
    /// # Errors
    /// [`TaskTimeout`](Status::TaskTimeout): the queue had no room, and the broker was not asked.
    /// [`Disconnected`](Status::Disconnected): the broker has ended, or a panic has ended what was asked for.
    async fn ask<C: Clock, T>(&self, hop: impl FnOnce(Sender<T>) -> Hop) -> Result<T, Status> {
        let (answer, mut answered) = channel(NonZeroUsize::MIN);
        // Most find room, and need no timer.
        if let Err(unsent) = self.hub.hops.try_send(hop(answer)) {
            let sending = pin!(self.hub.hops.send::<C>(unsent.into_value()));
            match select(sending, C::sleep(HOP_TIME_MAX)).await.first {
                Some(Ok(())) => {}
                Some(Err(_)) => return Err(Status::Disconnected),
                None => return Err(Status::TaskTimeout),
            }
        }
        answered.receive::<C>().await.ok_or(Status::Disconnected)
    }
}

/// How long a hop may wait for room in the queue of the worker with the broker. Several times as long as a busy worker takes
/// for a round of its tasks, and shorter than many clients wait for an answer.
pub const HOP_TIME_MAX: Duration = Duration::from_secs(5);

/// How often the retention of topics is enforced. A topic may keep what was appended meanwhile beyond its limit.
const RETENTION_PERIOD: Duration = Duration::from_secs(10);

/// Ends soon after the broker.
async fn enforce_retention<R: Clock>(broker: Weak<Broker>) {
    loop {
        R::sleep(RETENTION_PERIOD).await;
        let Some(broker) = broker.upgrade() else { return };
        broker.enforce_retention().await;
    }
}

/// Learns of the topics of other servers. Ends soon after the broker.
async fn refresh<R: Clock>(broker: Weak<Broker>) {
    let mut has_failed = false;
    loop {
        let Some(refreshed) = broker.upgrade() else { return };
        // Told once, and not each time until the store answers again.
        match refreshed.refresh().await {
            Ok(()) => has_failed = false,
            Err(error) if !has_failed => {
                tracing::warn!(%error, "the topics of other servers are not known now");
                has_failed = true;
            }
            Err(_) => {}
        }
        drop(refreshed);
        R::sleep(REFRESH_INTERVAL).await;
    }
}

/// Executes each hop in a task of its own, so that one that waits for a disk or for messages delays no other. There are
/// as many as there are connections of other workers, and tails that these share, at most: each waits for the answer.
async fn execute_hops<R: Clock + Executor>(mut receiver: Receiver<Hop>, broker: Rc<Broker>) {
    while let Some(hop) = receiver.receive::<R>().await {
        let broker = Rc::clone(&broker);
        drop(R::spawn(async move { hop.execute(&broker).await }));
    }
}

impl Hop {
    /// Executes it. An answer that cannot be sent is not wanted any more: the connection has ended meanwhile.
    async fn execute(self, broker: &Broker) {
        match self {
            Self::Execute { client, command, bytes_max, answer } => {
                let executed = broker.execute(client, command, bytes_max).await;
                let _ = answer.try_send(executed);
            }
            Self::Append { to, batch, answer } => {
                let appended = broker.append(&to, batch).await;
                let _ = answer.try_send(appended);
            }
            Self::FindTail { place, answer } => {
                let found = broker.find_tail(&place).await;
                let _ = answer.try_send(found);
            }
            Self::Tail { epoch, from, bytes_max, answer } => {
                // Not for longer than somebody waits for it: messages may never come.
                let tailing = pin!(broker.tail(epoch, from, bytes_max));
                let tailed = select(tailing, answer.closed()).await.first;
                let _ = tailed.map(|tailed| answer.try_send(tailed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::{WireIdentifier, WirePartitioning};
    use owned_io_sim::Sim;

    use super::*;
    use crate::iggy::messages::BatchEncoder;
    use crate::iggy::storage::MemoryStorage;
    use crate::iggy::{Environment, Node};

    #[test]
    fn a_command_that_waits_for_a_broker_is_refused_when_there_will_be_none() {
        owned_io_sim::block_on(async {
            let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
            let hub = Arc::new(Hub::new(credentials));
            let execute = || {
                let iggy = Iggy::without_broker(Arc::clone(&hub));
                Sim::spawn(async move { iggy.execute::<Sim>(1, Command::GetStreams, 0).await })
            };
            let waiting = execute();
            Sim::sleep(Duration::from_secs(1)).await;
            hub.refuse_without_broker();
            for refused in [waiting, execute()] {
                assert_eq!(refused.await.unwrap().unwrap_err(), Status::Disconnected);
            }
        });
    }

    #[test]
    fn hops_wait_for_room_in_the_queue_and_not_for_ever() {
        owned_io_sim::block_on(async {
            let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
            let hub = Arc::new(Hub::new(credentials));
            let iggy = Rc::new(Iggy::without_broker(Arc::clone(&hub)));
            let append = || {
                let iggy = Rc::clone(&iggy);
                let zero = WireIdentifier::numeric(0);
                let to = SendMessagesHeader {
                    stream_id: zero.clone(),
                    topic_id: zero,
                    partitioning: WirePartitioning::Balanced,
                    messages_count: 1,
                };
                Sim::spawn(async move {
                    let mut batch = BatchEncoder::new(0);
                    batch.make_room(batch.bytes_with(0)).unwrap();
                    batch.push(b"");
                    iggy.append::<Sim>(to, batch.finish().unwrap()).await
                })
            };
            let queued: Vec<_> = (0..HOPS_MAX.get()).map(|_| append()).collect();
            Sim::sleep(Duration::from_secs(1)).await;
            assert_eq!(hub.waiting(), HOPS_MAX.get());
            let began = Sim::now();
            let appended = append();
            let place = TailPlace {
                stream: WireIdentifier::numeric(0),
                topic: WireIdentifier::numeric(0),
                partition: 0,
            };
            let (executing, finding) = (Rc::clone(&iggy), Rc::clone(&iggy));
            let executed =
                Sim::spawn(
                    async move { executing.execute::<Sim>(1, Command::GetStreams, 0).await },
                );
            let found = Sim::spawn(async move { finding.find_tail::<Sim>(place).await });
            assert_eq!(appended.await.unwrap(), Err(Status::TaskTimeout));
            assert_eq!(executed.await.unwrap().unwrap_err(), Status::TaskTimeout);
            assert_eq!(found.await.unwrap().unwrap_err(), Status::TaskTimeout);
            assert_eq!((Sim::now() - began).as_secs(), HOP_TIME_MAX.as_secs());
            // This one gets room in time.
            let late = append();
            Sim::sleep(HOP_TIME_MAX / 2).await;
            let environment = Environment::of::<Sim>();
            let storage = Box::new(MemoryStorage::new(1 << 20, environment.now));
            let clients = hub.clients().clone();
            let broker = Broker::new(storage, clients, environment, Node::default());
            let _owner = Iggy::with_broker::<Sim>(hub, broker);
            for answered in queued.into_iter().chain([late]) {
                assert_eq!(answered.await.unwrap(), Err(Status::StreamIdNotFound));
            }
        });
    }
}

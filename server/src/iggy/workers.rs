//! [`Iggy`]: how all workers use one broker.
//!
//! One worker has the broker, and with it the catalogue and all partitions. A command that arrives at another worker
//! hops there and back, decoded: through one bounded queue for all, and a queue for its answer. A connection has one
//! request at a time, so a hop waits behind at most as many as there are connections.

use std::num::NonZeroUsize;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use owned_io::{Clock, Executor, Receiver, Sender, channel};

use super::answer::{Answer, Totals};
use super::broker::Broker;
use super::clients::Clients;
use super::command::Command;
use super::{Credentials, Status};
use crate::metrics::WorkerMetrics;

/// The most commands that wait in the queue. Connections whose commands find it full wait for room. Each is a few
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
}

/// A command on its way to the broker.
#[derive(Debug)]
struct Hop {
    client: u32,
    command: Command,
    bytes_max: usize,
    answer: Sender<Result<Answer, Status>>,
}

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
        Self { clients: Clients::default(), credentials, hops, receiver }
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
}

impl Iggy {
    /// For the worker that has the broker. From now on it executes what the other workers pass on.
    pub fn with_broker<R: Clock + Executor>(hub: Arc<Hub>, broker: Broker) -> Self {
        let broker = Rc::new(broker);
        if let Some(receiver) = hub.take_receiver() {
            drop(R::spawn(execute_hops::<R>(receiver, Rc::clone(&broker))));
        }
        drop(R::spawn(enforce_retention::<R>(Rc::downgrade(&broker))));
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

    pub(super) fn credentials(&self) -> &Credentials {
        &self.hub.credentials
    }

    /// Executes a command of a client, here or at the worker with the broker.
    ///
    /// # Errors
    /// The command is refused. [`Disconnected`](Status::Disconnected): the broker closes, or its worker has
    /// ended.
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
        let (answer, mut answered) = channel(NonZeroUsize::MIN);
        let hop = Hop { client, command, bytes_max, answer };
        self.hub.hops.send::<C>(hop).await.map_err(|_| Status::Disconnected)?;
        // Without an answer: the broker has ended, or a panic has ended the command.
        answered.receive::<C>().await.unwrap_or(Err(Status::Disconnected))
    }
}

/// How often messages are removed that their topic is not to keep any longer. Whole segments are removed, so that it does
/// not matter how often.
const RETENTION_PERIOD: Duration = Duration::from_secs(10);

/// Ends soon after the broker.
async fn enforce_retention<R: Clock>(broker: Weak<Broker>) {
    loop {
        R::sleep(RETENTION_PERIOD).await;
        let Some(broker) = broker.upgrade() else { return };
        broker.enforce_retention().await;
    }
}

/// Executes each command in a task of its own, so that one that waits for a disk delays no other. There are as many as
/// there are connections at most: each waits for the answer before it has another request.
async fn execute_hops<R: Clock + Executor>(mut receiver: Receiver<Hop>, broker: Rc<Broker>) {
    while let Some(Hop { client, command, bytes_max, answer }) = receiver.receive::<R>().await {
        let broker = Rc::clone(&broker);
        drop(R::spawn(async move {
            let executed = broker.execute(client, command, bytes_max).await;
            let _ = answer.try_send(executed); // an error: the connection has ended meanwhile
        }));
    }
}

#[cfg(test)]
mod tests {
    use owned_io_sim::Sim;

    use super::*;

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
}

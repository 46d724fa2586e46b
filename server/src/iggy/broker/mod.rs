//! [`Broker`]: executes commands. One worker has it, with the catalogue and all logs.

mod changes;
mod logs;
mod messages;
mod offsets;
mod queries;
mod retention;
mod shared;
mod snapshots;
pub mod tail;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use async_lock::Mutex;
use logs::Logs;
use offsets::Unstored;
use owned_io::coop;
use shared::SharedState;
use snapshots::Snapshots;

use super::answer::Answer;
use super::catalogue::{Catalogue, LogId, TopicId};
use super::clients::Clients;
use super::command::Command;
use super::members::Members;
use super::storage::Storage;
use super::{Environment, Node, Status};
use crate::usage::Meter;

pub use logs::Epoch;
pub use messages::AppendedAt;
pub(super) use queries::USER_ID;

/// The work of a command besides what it counts itself, in nanoseconds: decoding it, and looking up what it names.
const COMMAND_NANOS: u64 = 500;

/// Executes commands of clients that have logged in.
pub struct Broker {
    catalogue: RefCell<Catalogue>,
    logs: Logs,
    members: RefCell<Members>,
    /// The partition of each topic that gets the next balanced batch.
    next_balanced: RefCell<BTreeMap<TopicId, u32>>,
    storage: Box<dyn Storage>,
    unstored: Unstored,
    snapshots: Snapshots,
    shared: SharedState,
    /// Held while the catalogue changes, but not while an offset is stored. Held while the storage is closed.
    changing: Mutex<()>,
    /// Every command is refused: the storage is being closed, or was.
    is_closing: Cell<bool>,
    clients: Clients,
    environment: Environment,
    node: Node,
    meter: Meter,
    started_at: u64,
}

impl Broker {
    /// A broker with nothing in its catalogue.
    pub fn new(
        storage: Box<dyn Storage>,
        clients: Clients,
        environment: Environment,
        node: Node,
    ) -> Self {
        Self {
            catalogue: RefCell::default(),
            logs: Logs::default(),
            members: RefCell::default(),
            next_balanced: RefCell::default(),
            storage,
            unstored: Unstored::default(),
            snapshots: Snapshots::default(),
            shared: SharedState::default(),
            changing: Mutex::new(()),
            is_closing: Cell::new(false),
            clients,
            environment,
            node,
            meter: Meter::default(),
            started_at: (environment.now)(),
        }
    }

    /// Tells clients what `meter` measures, too.
    #[must_use]
    pub fn with_meter(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// A broker with the catalogue that `storage` had when it was opened.
    ///
    /// # Errors
    /// A log cannot be opened.
    pub async fn restore(
        storage: Box<dyn Storage>,
        catalogue: Catalogue,
        clients: Clients,
        environment: Environment,
        node: Node,
    ) -> Result<Self, Status> {
        let broker = Self::new(storage, clients, environment, node);
        let logs: Vec<_> = catalogue.logs().collect();
        broker.open_logs(&logs).await?;
        broker.catalogue.replace(catalogue);
        Ok(broker)
    }

    /// Refuses further commands as [`Disconnected`](Status::Disconnected), waits for the change in progress, makes all
    /// that is stored durable, and closes it. Other commands in progress are answered, or refused in the same way: what
    /// was acknowledged is durable.
    ///
    /// # Errors
    /// Something may not be durable.
    ///
    /// # Cancellation
    /// Commands are refused all the same.
    pub async fn close(&self) -> Result<(), Status> {
        self.is_closing.set(true);
        // Changes that wait for the lock get it afterwards, and are refused.
        let _guard = self.changing.lock().await;
        self.storage.close().await
    }

    /// Executes a command of a client. A poll is answered by at most `bytes_max` bytes of messages, and a command that
    /// only [asks](Command::repeated) by as many bytes, or by the [room](Answer::room_needed) that it needs.
    ///
    /// # Errors
    /// The command is refused. [`Disconnected`](Status::Disconnected): the broker [closes](Self::close).
    ///
    /// # Cancellation
    /// A [change](Command::is_change) must not be dropped, because its record may be stored. Others may take effect.
    pub async fn execute(
        &self,
        client: u32,
        command: Command,
        bytes_max: usize,
    ) -> Result<Answer, Status> {
        if self.is_closing.get() {
            return Err(Status::Disconnected);
        }
        coop::consume(COMMAND_NANOS);
        match command {
            Command::SendMessages(to, batch) => {
                self.send(&to, batch).await?;
                Ok(Answer::empty())
            }
            Command::PollMessages(poll) => self.poll(client, &poll, bytes_max).await,
            Command::Flush(flush) => self.flush(&flush).await,
            Command::StoreOffset(request) => self.store_offset(client, &request).await,
            Command::DeleteOffset(request) => self.delete_offset(client, &request).await,
            Command::GetOffset(request) => Ok(self.get_offset(&request)),
            Command::JoinGroup(request) => {
                self.refresh_for(&request.stream_id, &request.topic_id).await?;
                self.join(client, &request)
            }
            Command::LeaveGroup(request) => self.leave(client, &request),
            Command::Ping | Command::Logout => Ok(Answer::empty()),
            Command::Login(_) => Err(Status::InvalidCommand), // the session has it
            Command::GetStats => {
                self.refresh_for_query(&command).await?;
                let usage = self.meter.usage().await;
                Ok(Answer::of(&self.stats(usage)).within(bytes_max))
            }
            Command::GetMe
            | Command::GetClient(_)
            | Command::GetClients
            | Command::GetClusterMetadata
            | Command::GetStream(_)
            | Command::GetStreams
            | Command::GetTopic(_)
            | Command::GetTopics(_)
            | Command::GetGroup(_)
            | Command::GetGroups(_) => {
                self.refresh_for_query(&command).await?;
                Ok(self.query(client, command)?.within(bytes_max))
            }
            Command::CreateStream(_)
            | Command::DeleteStream(_)
            | Command::UpdateStream(_)
            | Command::PurgeStream(_)
            | Command::CreateTopic(_)
            | Command::DeleteTopic(_)
            | Command::UpdateTopic(_)
            | Command::PurgeTopic(_)
            | Command::CreatePartitions(_)
            | Command::DeletePartitions(_)
            | Command::CreateGroup(_)
            | Command::DeleteGroup(_) => self.change(command).await,
        }
    }

    /// Lets others run if the work of this poll is done.
    async fn yield_if_exhausted(&self) {
        if !coop::has_budget() {
            (self.environment.pause)().await;
        }
    }

    async fn open_logs(&self, logs: &[LogId]) -> Result<(), Status> {
        let opened = self.storage.open(logs).await?;
        self.logs.insert(logs.iter().copied().zip(opened));
        Ok(())
    }

    /// Removes clients that have left from their groups.
    fn update_members(&self) {
        let departed = self.clients.take_departed();
        if !departed.is_empty() {
            self.members.borrow_mut().remove_clients(&departed);
        }
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker").field("counts", &self.catalogue.borrow().counts()).finish()
    }
}

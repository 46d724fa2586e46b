//! Commands that change the catalogue, and the logs that come and go with it.

use iggy_binary_protocol::requests::consumer_groups::{
    JoinConsumerGroupRequest, LeaveConsumerGroupRequest,
};
use owned_io::coop;

use super::super::answer::{self, Answer, Totals};
use super::super::catalogue::{Catalogue, LogId, Record, TopicSettings};
use super::super::command::Command;
use super::super::join::{PARTITIONS_AT_ONCE, join_all};
use super::Broker;
use crate::iggy::Status;

/// The work of a record, and of each log that it removes or empties, in nanoseconds. Not measured.
const RECORD_NANOS: u64 = 1_000;
const LOG_NANOS: u64 = 200;

impl Broker {
    /// Makes a change of the catalogue: checks it, opens the logs that it needs, stores its record, and makes it. So a
    /// change that anybody sees is stored. Removes the logs that nobody needs any more.
    ///
    /// A change of many records lets others run in between. It ends before its next record when the broker closes.
    pub(super) async fn change(&self, command: Command) -> Result<Answer, Status> {
        self.refresh_if_old().await?;
        let _guard = self.changing.lock().await; // between check and change nothing else changes
        if self.is_closing.get() {
            return Err(Status::Disconnected);
        }
        let now = (self.environment.now)();
        let records = ask(&self.catalogue.borrow(), &command, now)?;
        let mut answer = Answer::empty();
        for record in &records {
            self.yield_if_exhausted().await;
            if self.is_closing.get() {
                return Err(Status::Disconnected);
            }
            coop::consume(RECORD_NANOS);
            if let Some(shared) = self.storage.shared() {
                let changing = shared.change(&self.catalogue.borrow(), record);
                changing.await?;
                shared.name_logs(&self.catalogue.borrow(), record);
                self.note_change(record);
            }
            self.open_logs(&new_logs(record)).await?;
            let emptied = self.logs.hold(emptied_logs(&self.catalogue.borrow(), record));
            self.store(record, emptied.logs()).await?;
            let unused = self.apply(record)?;
            let removed = self.logs.remove(&unused);
            if let Err(error) = self.storage.remove(&unused).await {
                tracing::warn!(%error, "cannot remove all logs of deleted partitions");
            }
            for log in removed {
                self.yield_if_exhausted().await;
                coop::consume(LOG_NANOS);
                log.free().await;
            }
            if matches!(record, Record::TopicPurged { .. }) {
                self.purge_logs(record, emptied.logs()).await?;
            }
            answer = self.answer_to(record);
        }
        self.make_snapshot().await;
        Ok(answer)
    }

    /// Stores a record, durably whatever the policy for messages is: the logs come and go with it. If there is no room
    /// for the record, the messages that it removes are removed first, from the logs `emptied`. If there is none even so,
    /// the logs that were opened for it are removed: they would keep descriptors, and no record has them.
    async fn store(&self, record: &Record, emptied: &[LogId]) -> Result<(), Status> {
        let mut stored = self.storage.record(record.to_bytes()).await;
        if stored == Err(Status::TopicFull) && !emptied.is_empty() {
            self.snapshots.owe(); // the journal has offsets of these messages
            self.purge_logs(record, emptied).await?;
            stored = self.storage.record(record.to_bytes()).await;
        }
        if stored == Err(Status::TopicFull) {
            let opened = new_logs(record);
            self.logs.remove(&opened);
            let _ = self.storage.remove(&opened).await; // an error was logged, and the next start removes them
        }
        stored?;
        self.storage.flush().await
    }

    /// Removes all messages of the logs that `record` empties, and the offsets that were stored for them: also if it is
    /// not applied, because there was no room for it. An error of one log does not keep the others from being purged:
    /// their offsets are gone too. The first error is returned.
    async fn purge_logs(&self, record: &Record, logs: &[LogId]) -> Result<(), Status> {
        self.logs.begin_epoch(logs);
        self.catalogue.borrow_mut().forget_offsets(record);
        let mut purged = Ok(());
        for some in logs.chunks(PARTITIONS_AT_ONCE) {
            self.yield_if_exhausted().await;
            coop::consume(some.len() as u64 * LOG_NANOS);
            let purging = join_all(some.iter().map(async |&log| self.logs.get(log)?.purge().await));
            purged = purging.await.into_iter().fold(purged, Result::and);
        }
        purged
    }

    /// Makes the change, and returns the logs that it leaves unused.
    pub(super) fn apply(&self, record: &Record) -> Result<Vec<LogId>, Status> {
        let mut catalogue = self.catalogue.borrow_mut();
        let unused = unused_logs(&catalogue, record);
        catalogue.apply(record).map_err(|_| Status::Error)?;
        let mut members = self.members.borrow_mut();
        match record {
            Record::PartitionsAdded { at, .. } | Record::PartitionsRemoved { at, .. } => {
                let partitions = catalogue.topic_at(*at)?.partitions().len();
                members.repartition(*at, partitions as u32);
            }
            Record::GroupDeleted { at } => members.remove(|group| group == *at),
            Record::TopicDeleted { .. } | Record::StreamDeleted { .. } => {
                members.remove(|group| catalogue.topic_at(group.at).is_err());
                let is_there = |at| catalogue.topic_at(at).is_ok();
                self.next_balanced.borrow_mut().retain(|&at, _| is_there(at));
            }
            _ => {}
        }
        Ok(unused)
    }

    fn answer_to(&self, record: &Record) -> Answer {
        let catalogue = self.catalogue.borrow();
        match record {
            Record::StreamCreated { stream, .. } => {
                let found = catalogue.streams().find(|(number, _)| number == stream);
                found.map_or_else(Answer::empty, |(id, created)| {
                    Answer::of(&answer::stream(id, created, Totals::default()))
                })
            }
            Record::TopicCreated { at, .. } => {
                let created = catalogue.topic_at(*at);
                created.map_or_else(|_| Answer::empty(), |topic| self.topic_answer(at.topic, topic))
            }
            Record::GroupCreated { at, name } => {
                let topic = catalogue.topic_at(at.at);
                topic.map_or_else(
                    |_| Answer::empty(),
                    |topic| Answer::of(&answer::group(at.group, name, topic, 0)),
                )
            }
            _ => Answer::empty(),
        }
    }

    /// Adds a client to a group.
    pub(super) fn join(
        &self,
        client: u32,
        request: &JoinConsumerGroupRequest,
    ) -> Result<Answer, Status> {
        self.update_members();
        let JoinConsumerGroupRequest { stream_id, topic_id, group_id } = request;
        let catalogue = self.catalogue.borrow();
        let (group, _) = catalogue.group(stream_id, topic_id, group_id)?;
        let partitions = catalogue.topic_at(group.at)?.partitions().len();
        if !self.clients.set_joined(client) {
            return Err(Status::Disconnected); // nobody reads the answer: the client has left
        }
        self.members.borrow_mut().join(group, client, partitions as u32)?;
        Ok(Answer::empty())
    }

    /// Removes a client from a group.
    pub(super) fn leave(
        &self,
        client: u32,
        request: &LeaveConsumerGroupRequest,
    ) -> Result<Answer, Status> {
        let LeaveConsumerGroupRequest { stream_id, topic_id, group_id } = request;
        let catalogue = self.catalogue.borrow();
        let (group, _) = catalogue.group(stream_id, topic_id, group_id)?;
        self.members.borrow_mut().leave(group, client)?;
        Ok(Answer::empty())
    }
}

/// Asks the catalogue for the changes that a command says. One, but for a stream that is purged: one for each topic.
fn ask(catalogue: &Catalogue, command: &Command, now: u64) -> Result<Vec<Record>, Status> {
    let record = match command {
        Command::CreateStream(request) => catalogue.create_stream(&request.name, now),
        Command::UpdateStream(request) => {
            catalogue.rename_stream(&request.stream_id, &request.name)
        }
        Command::DeleteStream(request) => catalogue.delete_stream(&request.stream_id),
        Command::PurgeStream(request) => return catalogue.purge_stream(&request.stream_id),
        Command::CreateTopic(request) => {
            let settings = settings(
                request.compression_algorithm,
                request.message_expiry,
                request.max_topic_size,
                request.replication_factor,
            )?;
            let (stream, partitions) = (&request.stream_id, request.partitions_count);
            catalogue.create_topic(stream, &request.name, settings, partitions, now)
        }
        Command::UpdateTopic(request) => {
            let settings = settings(
                request.compression_algorithm,
                request.message_expiry,
                request.max_topic_size,
                request.replication_factor,
            )?;
            catalogue.update_topic(&request.stream_id, &request.topic_id, &request.name, settings)
        }
        Command::DeleteTopic(request) => {
            catalogue.delete_topic(&request.stream_id, &request.topic_id)
        }
        Command::PurgeTopic(request) => {
            catalogue.purge_topic(&request.stream_id, &request.topic_id)
        }
        Command::CreatePartitions(request) => {
            let count = request.partitions_count;
            catalogue.add_partitions(&request.stream_id, &request.topic_id, count, now)
        }
        Command::DeletePartitions(request) => {
            let count = request.partitions_count;
            catalogue.remove_partitions(&request.stream_id, &request.topic_id, count)
        }
        Command::CreateGroup(request) => {
            catalogue.create_group(&request.stream_id, &request.topic_id, &request.name)
        }
        Command::DeleteGroup(request) => {
            catalogue.delete_group(&request.stream_id, &request.topic_id, &request.group_id)
        }
        _ => Err(Status::InvalidCommand),
    };
    Ok(vec![record?])
}

fn settings(
    compression_algorithm: u8,
    message_expiry: u64,
    size_max: u64,
    replication_factor: u8,
) -> Result<TopicSettings, Status> {
    if !(1..=2).contains(&compression_algorithm) {
        return Err(Status::InvalidCommand); // as Iggy's server
    }
    let replication_factor = replication_factor.max(1); // 0: as the server likes
    Ok(TopicSettings { compression_algorithm, message_expiry, size_max, replication_factor })
}

/// The logs that a record creates. They are there already if the last one may be stored or not.
pub(super) fn new_logs(record: &Record) -> Vec<LogId> {
    match record {
        Record::TopicCreated { log, partitions: count, .. }
        | Record::PartitionsAdded { log, count, .. } => {
            (log.0..log.0 + u64::from(*count)).map(LogId).collect()
        }
        _ => Vec::new(),
    }
}

/// The logs that have no messages once `record` is applied.
fn emptied_logs(catalogue: &Catalogue, record: &Record) -> Vec<LogId> {
    match record {
        Record::TopicPurged { at } => {
            catalogue.topic_at(*at).into_iter().flat_map(|purged| purged.logs()).collect()
        }
        _ => unused_logs(catalogue, record),
    }
}

/// The logs that are unused once `record` is applied.
fn unused_logs(catalogue: &Catalogue, record: &Record) -> Vec<LogId> {
    match record {
        Record::StreamDeleted { stream } => {
            let mut streams = catalogue.streams().filter(|(number, _)| number == stream);
            streams.next().into_iter().flat_map(|(_, deleted)| deleted.logs()).collect()
        }
        Record::TopicDeleted { at } => {
            catalogue.topic_at(*at).into_iter().flat_map(|deleted| deleted.logs()).collect()
        }
        Record::PartitionsRemoved { at, count } => {
            let partitions = catalogue.topic_at(*at).map_or(&[][..], |topic| topic.partitions());
            let removed = partitions.iter().rev().take(*count as usize);
            removed.map(|partition| partition.log).collect()
        }
        _ => Vec::new(),
    }
}

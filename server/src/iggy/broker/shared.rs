//! Topics that several servers share: the catalogue follows what others do.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use iggy_binary_protocol::WireIdentifier;
use owned_io::coop;

use super::super::catalogue::{Catalogue, LogId, Record, TopicId, TopicSettings};
use super::super::command::Command;
use super::super::storage::{SharedTopic, SharedTopics};
use super::Broker;
use crate::iggy::{Name, Status};

/// The least time between two refreshes because of names that are unknown, in µs: so that clients that name what is
/// nowhere do not ask the store all the time.
const REFRESH_MICROS_MIN: u64 = 200_000;

/// How long a change of this server may take until all others know it, in µs. Meanwhile its own knowledge counts.
const SETTLE_MICROS: u64 = 5_000_000;

/// The work of comparing a topic, and that of each of its partitions, in nanoseconds. Not measured.
const TOPIC_NANOS: u64 = 500;
const PARTITION_NANOS: u64 = 50;

/// The settings of a topic of which they are not known.
const UNKNOWN_SETTINGS: TopicSettings = TopicSettings {
    compression_algorithm: 1,
    message_expiry: 0,
    size_max: 0,
    replication_factor: 1,
};

/// What the broker knows of shared topics besides the catalogue.
#[derive(Default)]
pub(super) struct SharedState {
    /// How the topics were listed last, and when, in µs since 1970. `None`: never.
    listed: Cell<Option<(u64, Result<(), Status>)>>,
    /// Whether the topics have ever been listed.
    is_known: Cell<bool>,
    /// How many topics the last list had that could not be adopted.
    left_out: Cell<usize>,
    /// The streams that clients of this server have created. Others are there as long as they have a topic.
    own_streams: RefCell<BTreeSet<u32>>,
    /// The topics that this server has deleted, and when: others may list them for a while.
    deleted: RefCell<BTreeMap<(String, String), u64>>,
}

impl Broker {
    /// Whether topics are shared with other servers, so that [`refresh`](Self::refresh) has something to do.
    pub fn has_shared_topics(&self) -> bool {
        self.storage.shared().is_some()
    }

    /// Learns what other servers have done to the topics.
    ///
    /// # Errors
    /// That is not known. Nothing has changed.
    ///
    /// # Cancellation
    /// It may be done in part.
    pub async fn refresh(&self) -> Result<(), Status> {
        let Some(shared) = self.storage.shared() else { return Ok(()) };
        let _guard = self.changing.lock().await;
        self.list(shared).await
    }

    /// Lists the topics, and makes the catalogue have them. The caller holds `changing`.
    async fn list(&self, shared: &dyn SharedTopics) -> Result<(), Status> {
        if self.is_closing.get() {
            return Ok(());
        }
        let listed = match shared.list().await {
            Ok(found) => self.adopt(shared, found).await,
            Err(status) => Err(status),
        };
        self.shared.listed.set(Some(((self.environment.now)(), listed)));
        self.shared.is_known.set(self.shared.is_known.get() || listed.is_ok());
        listed
    }

    /// Refreshes the topics if a topic is unknown. Callers look it up then.
    ///
    /// # Errors
    /// The topics have never been listed, so nobody can say whether it is there.
    pub(super) async fn refresh_for(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<(), Status> {
        let is_known = || self.catalogue.borrow().topic(stream, topic).is_ok();
        if !self.has_shared_topics() || is_known() {
            return Ok(());
        }
        self.refresh_if_old().await
    }

    /// Refreshes the topics if a stream is unknown. Callers look it up then.
    ///
    /// # Errors
    /// The topics have never been listed, so nobody can say whether it is there.
    async fn refresh_for_stream(&self, stream: &WireIdentifier) -> Result<(), Status> {
        let is_known = self.catalogue.borrow().stream(stream).is_ok();
        if is_known { Ok(()) } else { self.refresh_if_old().await }
    }

    /// Refreshes the topics if a question is about what is unknown. Callers answer it then.
    ///
    /// # Errors
    /// The topics have never been listed, so nobody can answer.
    pub(super) async fn refresh_for_query(&self, query: &Command) -> Result<(), Status> {
        match query {
            // All topics are listed each second.
            Command::GetStreams if !self.shared.is_known.get() => self.refresh_if_old().await,
            Command::GetStream(request) => self.refresh_for_stream(&request.stream_id).await,
            Command::GetTopics(request) => self.refresh_for_stream(&request.stream_id).await,
            Command::GetTopic(request) => {
                self.refresh_for(&request.stream_id, &request.topic_id).await
            }
            Command::GetGroups(request) => {
                self.refresh_for(&request.stream_id, &request.topic_id).await
            }
            Command::GetGroup(request) => {
                self.refresh_for(&request.stream_id, &request.topic_id).await
            }
            _ => Ok(()),
        }
    }

    /// Refreshes the topics unless that was done, or failed, a moment ago.
    ///
    /// # Errors
    /// The topics have never been listed.
    pub(super) async fn refresh_if_old(&self) -> Result<(), Status> {
        let Some(shared) = self.storage.shared() else { return Ok(()) };
        let recent = || {
            let is_recent = |at: u64| (self.environment.now)().abs_diff(at) < REFRESH_MICROS_MIN;
            let listed = self.shared.listed.get().filter(|(at, _)| is_recent(*at));
            listed.map(|(_, listed)| listed)
        };
        let listed = match recent() {
            Some(listed) => listed,
            None => {
                let _guard = self.changing.lock().await;
                // Others may have listed them meanwhile: those who waited need no list each.
                match recent() {
                    Some(listed) => listed,
                    None => self.list(shared).await,
                }
            }
        };
        if self.shared.is_known.get() { Ok(()) } else { listed }
    }

    /// Notes a change that a client of this server has made.
    pub(super) fn note_change(&self, record: &Record) {
        let SharedState { own_streams, deleted, .. } = &self.shared;
        let catalogue = self.catalogue.borrow();
        match record {
            Record::StreamCreated { stream, .. } => {
                own_streams.borrow_mut().insert(*stream);
            }
            Record::StreamDeleted { stream } => {
                own_streams.borrow_mut().remove(stream);
                let now = (self.environment.now)();
                let topics = names(&catalogue).into_iter().filter(|(_, at)| at.stream == *stream);
                deleted.borrow_mut().extend(topics.map(|(names, _)| (names, now)));
            }
            Record::TopicDeleted { at } => {
                let now = (self.environment.now)();
                let topic = names(&catalogue).into_iter().find(|(_, there)| there == at);
                deleted.borrow_mut().extend(topic.map(|(names, _)| (names, now)));
            }
            Record::TopicCreated { at, name, .. } => {
                let stream = catalogue.streams().find(|(number, _)| *number == at.stream);
                let stream = stream.map(|(_, stream)| stream.name.as_str().to_owned());
                let key = (stream.unwrap_or_default(), name.as_str().to_owned());
                deleted.borrow_mut().remove(&key);
            }
            _ => {}
        }
    }

    /// Makes the catalogue have these topics. The caller holds `changing`.
    async fn adopt(
        &self,
        shared: &dyn SharedTopics,
        mut found: Vec<SharedTopic>,
    ) -> Result<(), Status> {
        let now = (self.environment.now)();
        found.sort();
        let is_settled = |at: u64| now.abs_diff(at) >= SETTLE_MICROS;
        self.shared.deleted.borrow_mut().retain(|_, at| !is_settled(*at));
        let mut present = names(&self.catalogue.borrow());
        let (mut left_out, mut last_error) = (0, None);
        for found in found {
            self.yield_if_exhausted().await;
            coop::consume(TOPIC_NANOS);
            let key = (found.stream.clone(), found.topic.clone());
            if self.shared.deleted.borrow().contains_key(&key) {
                continue;
            }
            // What cannot be adopted, because there are too many, is left out: the others are of use.
            let adopted = match present.remove(&key) {
                Some(at) => self.adopt_partitions(shared, at, &found, now).await,
                None => self.adopt_topic(shared, &found, now).await,
            };
            if let Err(error) = adopted {
                left_out += 1;
                last_error = Some((found, error));
            }
        }
        // The topics are listed each second, so only what is new is told.
        if self.shared.left_out.replace(left_out) != left_out
            && let Some((SharedTopic { stream, topic, .. }, error)) = last_error
        {
            tracing::warn!(left_out, stream, topic, %error, "topics are left out, one of them is this");
        }
        for at in present.into_values() {
            self.yield_if_exhausted().await;
            let created_at = self.catalogue.borrow().topic_at(at)?.created_at;
            if is_settled(created_at) {
                self.make(shared, &Record::TopicDeleted { at }).await?;
            }
        }
        let empty: Vec<_> = {
            let (catalogue, own) = (self.catalogue.borrow(), self.shared.own_streams.borrow());
            let streams = catalogue.streams().filter(|(_, stream)| stream.topics().len() == 0);
            streams.map(|(stream, _)| stream).filter(|stream| !own.contains(stream)).collect()
        };
        for stream in empty {
            self.make(shared, &Record::StreamDeleted { stream }).await?;
        }
        Ok(())
    }

    async fn adopt_topic(
        &self,
        shared: &dyn SharedTopics,
        found: &SharedTopic,
        now: u64,
    ) -> Result<(), Status> {
        let Ok(stream) = WireIdentifier::named(&found.stream) else { return Ok(()) };
        if self.catalogue.borrow().stream(&stream).is_err() {
            let record = self.catalogue.borrow().create_stream(&found.stream, now)?;
            self.make(shared, &record).await?;
        }
        let record = self.catalogue.borrow().create_topic(
            &stream,
            &found.topic,
            UNKNOWN_SETTINGS,
            found.partitions,
            now,
        )?;
        self.make(shared, &record).await
    }

    /// A topic that has fewer partitions than before is another one of the same name. So is one whose offsets have begun
    /// again, but its consumers go on with it, from its first message.
    async fn adopt_partitions(
        &self,
        shared: &dyn SharedTopics,
        at: TopicId,
        found: &SharedTopic,
        now: u64,
    ) -> Result<(), Status> {
        let (present, created_at) = {
            let catalogue = self.catalogue.borrow();
            let topic = catalogue.topic_at(at)?;
            (topic.partitions().len() as u32, topic.created_at)
        };
        coop::consume(u64::from(present) * PARTITION_NANOS);
        if found.partitions < present && now.abs_diff(created_at) >= SETTLE_MICROS {
            self.make(shared, &Record::TopicDeleted { at }).await?;
            return self.adopt_topic(shared, found, now).await;
        }
        let has_restarted = {
            let catalogue = self.catalogue.borrow();
            self.logs.take_restarted(catalogue.topic_at(at)?.logs())
        };
        if has_restarted {
            let (stream, topic) = (&found.stream, &found.topic);
            tracing::warn!(stream, topic, "a topic was replaced by another one of its name");
            self.catalogue.borrow_mut().forget_offsets(&Record::TopicPurged { at });
        }
        let count = found.partitions.saturating_sub(present);
        if count == 0 {
            return Ok(());
        }
        let stream = WireIdentifier::numeric(at.stream);
        let topic = WireIdentifier::numeric(at.topic);
        let record = self.catalogue.borrow().add_partitions(&stream, &topic, count, now)?;
        self.make(shared, &record).await
    }

    /// Makes a change of the catalogue that others have made to the topics.
    async fn make(&self, shared: &dyn SharedTopics, record: &Record) -> Result<(), Status> {
        shared.name_logs(&self.catalogue.borrow(), record);
        self.open_logs(&super::changes::new_logs(record)).await?;
        let unused: Vec<LogId> = self.apply(record)?;
        self.logs.remove(&unused);
        self.storage.remove(&unused).await
    }
}

/// The topics of a catalogue, by the names of stream and topic.
fn names(catalogue: &Catalogue) -> BTreeMap<(String, String), TopicId> {
    let name = |name: &Name| name.as_str().to_owned();
    let topics = catalogue.streams().flat_map(|(stream, found)| {
        let topics = found.topics();
        topics.map(move |(topic, of_it)| {
            ((name(&found.name), name(&of_it.name)), TopicId { stream, topic })
        })
    });
    topics.collect()
}

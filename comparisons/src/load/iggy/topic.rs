//! [`Topic`]: the stream and topic of a run, which are deleted at its end.

use std::process;
use std::time::Duration;

use bytes::Bytes;
use iggy_binary_protocol::codes::{
    CREATE_STREAM_CODE, CREATE_TOPIC_CODE, DELETE_STREAM_CODE, DELETE_TOPIC_CODE, GET_TOPIC_CODE,
};
use iggy_binary_protocol::requests::streams::{CreateStreamRequest, DeleteStreamRequest};
use iggy_binary_protocol::requests::topics::{
    CreateTopicRequest, DeleteTopicRequest, GetTopicRequest,
};
use iggy_binary_protocol::responses::topics::GetTopicResponse;
use iggy_binary_protocol::{WireDecode, WireEncode, WireIdentifier, WireName};

use super::super::options::Target;
use super::control::Control;
use crate::Failure;

/// Messages are not compressed.
const COMPRESSION_NONE: u8 = 1;

/// Messages never expire, and a topic may have any size: nothing is deleted in a run.
const UNLIMITED: u64 = u64::MAX;

/// A stream with one topic of the same name.
pub(in super::super) struct Topic<'a> {
    target: &'a Target,
    login: Bytes,
    patience: Duration,
    name: WireName,
    partitions: u32,
    is_there: bool,
}

impl<'a> Topic<'a> {
    /// Creates both. Each request about them may take as long as `patience`.
    ///
    /// # Errors
    /// A sentence with the cause.
    pub(in super::super) fn create(
        target: &'a Target,
        login: &Bytes,
        patience: Duration,
        partitions: u32,
    ) -> Result<Self, Failure> {
        let name = WireName::new(format!("load-{}", process::id()))
            .map_err(|error| Failure::new(format!("no name for a stream: {error}")))?;
        let (login, is_there) = (login.clone(), false);
        let mut topic = Self { target, login, patience, name, partitions, is_there };
        let request = CreateStreamRequest { name: topic.name.clone() };
        topic.ask("create a stream", CREATE_STREAM_CODE, &request)?;
        topic.is_there = true;
        topic.create_topic()?;
        Ok(topic)
    }

    /// How requests name the stream, and the topic.
    pub(in super::super) fn id(&self) -> WireIdentifier {
        WireIdentifier::String(self.name.clone())
    }

    /// Where this project's server pushes what is appended to the first partition from now on.
    pub(in super::super) fn tail_path(&self) -> String {
        let name = &self.name;
        format!("/tail/{name}/{name}/0?from=next")
    }

    /// Deletes the topic with all of its messages, and creates it again.
    ///
    /// # Errors
    /// A sentence with the cause.
    pub(in super::super) fn recreate(&self) -> Result<(), Failure> {
        let request = DeleteTopicRequest { stream_id: self.id(), topic_id: self.id() };
        self.ask("delete the topic", DELETE_TOPIC_CODE, &request)?;
        self.create_topic()
    }

    /// Compares the partitions with how many messages of each were acknowledged; those without a number are skipped.
    /// Returns a sentence about the first that has more, or fewer, or others.
    ///
    /// # Errors
    /// The server does not say what the partitions have.
    pub(in super::super) fn find_wrong(
        &self,
        acknowledged: &[Option<u64>],
    ) -> Result<Option<String>, Failure> {
        let request = GetTopicRequest { stream_id: self.id(), topic_id: self.id() };
        let answer = self.ask("look at the topic", GET_TOPIC_CODE, &request)?;
        let GetTopicResponse { partitions, .. } = GetTopicResponse::decode_from(&answer)
            .map_err(|error| Failure::new(format!("cannot read what the topic has: {error}")))?;
        for (id, expected) in acknowledged.iter().enumerate() {
            let Some(expected) = *expected else { continue };
            let found = partitions.iter().find(|partition| partition.id as usize == id);
            let found = found.map(|it| (it.messages_count, it.current_offset));
            // Of an empty partition the offset is 0, too.
            if found != Some((expected, expected.saturating_sub(1))) {
                let found = found.map_or_else(
                    || "is not there".to_owned(),
                    |(messages, last)| {
                        format!("has {messages} messages, the last at offset {last}")
                    },
                );
                return Ok(Some(format!("partition {id} {found}: {expected} were acknowledged")));
            }
        }
        Ok(None)
    }

    /// Deletes the stream with all that is in it.
    ///
    /// # Errors
    /// A sentence with the cause.
    pub(in super::super) fn delete(&mut self) -> Result<(), Failure> {
        self.is_there = false;
        let request = DeleteStreamRequest { stream_id: self.id() };
        self.ask("delete the stream", DELETE_STREAM_CODE, &request).map(drop)
    }

    fn create_topic(&self) -> Result<(), Failure> {
        let request = CreateTopicRequest {
            stream_id: self.id(),
            partitions_count: self.partitions,
            compression_algorithm: COMPRESSION_NONE,
            message_expiry: UNLIMITED,
            max_topic_size: UNLIMITED,
            replication_factor: 1,
            name: self.name.clone(),
        };
        self.ask("create a topic", CREATE_TOPIC_CODE, &request).map(drop)
    }

    /// Over a connection of its own: others have ended by the time of the next.
    fn ask(&self, what: &str, code: u32, request: &impl WireEncode) -> Result<Vec<u8>, Failure> {
        Control::connect(self.target, &self.login, self.patience)
            .and_then(|mut control| control.request(code, request))
            .map_err(|error| Failure::new(format!("cannot {what}: {error}")))
    }
}

impl Drop for Topic<'_> {
    fn drop(&mut self) {
        // After a failure, whose sentence is enough.
        if self.is_there {
            let _ = self.delete();
        }
    }
}

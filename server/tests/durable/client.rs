//! A server on a directory, and its client.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::consumer_groups::{
    CreateConsumerGroupRequest, JoinConsumerGroupRequest,
};
use iggy_binary_protocol::requests::consumer_offsets::{
    GetConsumerOffsetRequest, StoreConsumerOffsetRequest,
};
use iggy_binary_protocol::requests::messages::{
    PollMessagesRequest, RawMessage, SendMessagesEncoder,
};
use iggy_binary_protocol::requests::streams::CreateStreamRequest;
use iggy_binary_protocol::requests::topics::{
    CreateTopicRequest, DeleteTopicRequest, GetTopicRequest, GetTopicsRequest, PurgeTopicRequest,
};
use iggy_binary_protocol::requests::users::LoginUserRequest;
use iggy_binary_protocol::responses::consumer_offsets::ConsumerOffsetResponse;
use iggy_binary_protocol::responses::messages::PollMessagesResponse;
use iggy_binary_protocol::responses::topics::{GetTopicResponse, GetTopicsResponse};
use iggy_binary_protocol::{
    RequestFrame, ResponseFrame, WireConsumer, WireDecode, WireEncode, WireIdentifier, WireName,
    WirePartitioning, WirePollingStrategy,
};
use owned_io_log::{PartitionConfig, SyncPolicy};
use owned_io_server::iggy::broker::Broker;
use owned_io_server::iggy::clients::Transport;
use owned_io_server::iggy::frame::Request;
use owned_io_server::iggy::session::{AnswerRoom, Session};
use owned_io_server::iggy::storage::DurableStorage;
use owned_io_server::iggy::workers::{Hub, Iggy};
use owned_io_server::iggy::{Credentials, Environment, Node};
use owned_io_sim::Sim;

/// Where all servers keep their data.
pub(crate) const DIR: &str = "/data";

/// The memory that is reserved for the messages of a poll.
pub(crate) const POLL_BYTES_MAX: usize = 5_000;

/// The stream of all topics.
pub(crate) const STREAM: &str = "s";

/// Opens a server on [`DIR`], with small segments and little memory.
pub(crate) async fn open(sync: SyncPolicy) -> io::Result<Rc<Iggy>> {
    open_with(sync, 4096).await
}

/// Opens a server on [`DIR`], with segments of that length and little memory.
pub(crate) async fn open_with(sync: SyncPolicy, segment_bytes: u64) -> io::Result<Rc<Iggy>> {
    let mut config = PartitionConfig::default();
    (config.sync, config.segment_bytes) = (sync, segment_bytes);
    let (storage, catalogue) = DurableStorage::<Sim>::open(Path::new(DIR), config, 10_000).await?;
    let credentials = Credentials::new("iggy".into(), "secret".into()).expect("they are short");
    let hub = Arc::new(Hub::new(credentials));
    let (clients, environment) = (hub.clients().clone(), Environment::of::<Sim>());
    let broker =
        Broker::restore(Box::new(storage), catalogue, clients, environment, Node::default())
            .await
            .map_err(io::Error::other)?;
    Ok(Rc::new(Iggy::with_broker::<Sim>(hub, broker)))
}

/// A client that has logged in. Errors are Iggy's statuses.
pub(crate) struct Client {
    session: Session,
}

impl Client {
    pub(crate) async fn login(iggy: &Rc<Iggy>) -> Self {
        let mut client = Self { session: Session::new(iggy, Transport::Tcp, None) };
        client.ask(LOGIN_USER_CODE, &login()).await.expect("the password is right");
        client
    }

    async fn ask(&mut self, code: u32, request: &impl WireEncode) -> Result<Bytes, u32> {
        self.ask_raw(code, BytesMut::from(&request.to_bytes()[..])).await
    }

    async fn ask_raw(&mut self, code: u32, payload: BytesMut) -> Result<Bytes, u32> {
        self.ask_within(code, payload, &mut { POLL_BYTES_MAX }).await
    }

    async fn ask_within(
        &mut self,
        code: u32,
        payload: BytesMut,
        room: &mut impl AnswerRoom,
    ) -> Result<Bytes, u32> {
        let answer = self.session.answer::<Sim>(Request { code, payload }, room).await.concat();
        let (frame, _) = ResponseFrame::decode(&answer).expect("an answer is a frame");
        match frame.status {
            0 => Ok(Bytes::copy_from_slice(frame.payload)),
            status => Err(status),
        }
    }

    pub(crate) async fn create_stream(&mut self) -> Result<(), u32> {
        self.ask(CREATE_STREAM_CODE, &CreateStreamRequest { name: name(STREAM) }).await.map(drop)
    }

    /// `limits`: bytes and µs; 0: no limit.
    pub(crate) async fn create_topic(
        &mut self,
        topic: &str,
        partitions_count: u32,
        limits: (u64, u64),
    ) -> Result<(), u32> {
        let request = create_topic(topic, partitions_count, limits);
        self.ask(CREATE_TOPIC_CODE, &request).await.map(drop)
    }

    pub(crate) async fn delete_topic(&mut self, topic: &str) -> Result<(), u32> {
        let request = DeleteTopicRequest { stream_id: id(STREAM), topic_id: id(topic) };
        self.ask(DELETE_TOPIC_CODE, &request).await.map(drop)
    }

    pub(crate) async fn purge_topic(&mut self, topic: &str) -> Result<(), u32> {
        let request = PurgeTopicRequest { stream_id: id(STREAM), topic_id: id(topic) };
        self.ask(PURGE_TOPIC_CODE, &request).await.map(drop)
    }

    pub(crate) async fn create_group(&mut self, topic: &str, group: &str) -> Result<(), u32> {
        let (stream_id, topic_id) = (id(STREAM), id(topic));
        let request = CreateConsumerGroupRequest { stream_id, topic_id, name: name(group) };
        self.ask(CREATE_CONSUMER_GROUP_CODE, &request).await.map(drop)
    }

    /// The names of all topics. Nothing if there is no stream.
    pub(crate) async fn topics(&mut self) -> Vec<String> {
        let request = GetTopicsRequest { stream_id: id(STREAM) };
        let Ok(topics) = self.ask(GET_TOPICS_CODE, &request).await else { return Vec::new() };
        if topics.is_empty() {
            return Vec::new();
        }
        let topics = GetTopicsResponse::decode_from(&topics).expect("topics");
        topics.topics.iter().map(|topic| topic.name.to_string()).collect()
    }

    pub(crate) async fn topic(&mut self, topic: &str) -> GetTopicResponse {
        let request = GetTopicRequest { stream_id: id(STREAM), topic_id: id(topic) };
        let topic = self.ask(GET_TOPIC_CODE, &request).await.expect("the topic is there");
        GetTopicResponse::decode_from(&topic).expect("a topic")
    }

    pub(crate) async fn send(
        &mut self,
        topic: &str,
        partition: u32,
        payloads: &[Vec<u8>],
    ) -> Result<(), u32> {
        let message = |payload| RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
        let messages: Vec<_> = payloads.iter().map(|payload| message(payload)).collect();
        let (mut request, to) = (BytesMut::new(), WirePartitioning::PartitionId(partition));
        SendMessagesEncoder::encode(&mut request, &id(STREAM), &id(topic), &to, &messages);
        self.ask_raw(SEND_MESSAGES_CODE, request).await.map(drop)
    }

    /// At most `count` messages with their offsets.
    pub(crate) async fn poll(
        &mut self,
        topic: &str,
        partition: u32,
        strategy: WirePollingStrategy,
        count: u32,
    ) -> Result<Vec<(u64, Vec<u8>)>, u32> {
        let polled = self.ask(POLL_MESSAGES_CODE, &poll(topic, partition, strategy, count)).await?;
        let polled = PollMessagesResponse::decode(&polled).expect("messages");
        let messages = polled.messages.map(|message| message.expect("a message"));
        Ok(messages.map(|message| (message.offset(), message.payload().to_vec())).collect())
    }

    /// Polls the first message of a partition, or of the one whose turn it is of a group, which the client has joined.
    /// Returns the partition too.
    pub(crate) async fn poll_within(
        &mut self,
        topic: &str,
        group: &str,
        room: &mut impl AnswerRoom,
    ) -> Result<(u32, Vec<Vec<u8>>), u32> {
        let consumer = WireConsumer::consumer_group(id(group));
        let poll = poll(topic, 0, WirePollingStrategy::first(), 1);
        let poll = PollMessagesRequest { consumer, partition_id: None, ..poll };
        let payload = BytesMut::from(&poll.to_bytes()[..]);
        let polled = self.ask_within(POLL_MESSAGES_CODE, payload, room).await?;
        let polled = PollMessagesResponse::decode(&polled).expect("messages");
        let messages = polled.messages.map(|message| message.expect("a message"));
        let payloads = messages.map(|message| message.payload().to_vec()).collect();
        Ok((polled.header.partition_id, payloads))
    }

    pub(crate) async fn join_group(&mut self, topic: &str, group: &str) -> Result<(), u32> {
        let (stream_id, topic_id) = (id(STREAM), id(topic));
        let request = JoinConsumerGroupRequest { stream_id, topic_id, group_id: id(group) };
        self.ask(JOIN_CONSUMER_GROUP_CODE, &request).await.map(drop)
    }

    /// All messages of a partition, by many polls of `count`.
    pub(crate) async fn poll_all(
        &mut self,
        topic: &str,
        partition: u32,
        count: u32,
    ) -> Result<Vec<(u64, Vec<u8>)>, u32> {
        let mut all = self.poll(topic, partition, WirePollingStrategy::first(), count).await?;
        // Each round brings a message, or ends.
        while let Some((last, _)) = all.last() {
            let strategy = WirePollingStrategy::offset(last + 1);
            let more = self.poll(topic, partition, strategy, count).await?;
            if more.is_empty() {
                break;
            }
            all.extend(more);
        }
        Ok(all)
    }

    pub(crate) async fn store_offset(
        &mut self,
        topic: &str,
        partition: u32,
        offset: u64,
    ) -> Result<(), u32> {
        let request = StoreConsumerOffsetRequest {
            consumer: consumer(),
            stream_id: id(STREAM),
            topic_id: id(topic),
            partition_id: Some(partition),
            offset,
        };
        self.ask(STORE_CONSUMER_OFFSET_CODE, &request).await.map(drop)
    }

    pub(crate) async fn offset(&mut self, topic: &str, partition: u32) -> Option<u64> {
        let request = GetConsumerOffsetRequest {
            consumer: consumer(),
            stream_id: id(STREAM),
            topic_id: id(topic),
            partition_id: Some(partition),
        };
        let stored = self.ask(GET_CONSUMER_OFFSET_CODE, &request).await.expect("an answer");
        let stored = (!stored.is_empty()).then(|| ConsumerOffsetResponse::decode_from(&stored));
        stored.map(|stored| stored.expect("an offset").stored_offset)
    }
}

fn login() -> LoginUserRequest {
    let (username, password) = (name("iggy"), "secret".to_owned());
    LoginUserRequest { username, password, version: None, context: None }
}

/// The bytes of a login.
pub(crate) fn login_frame() -> Vec<u8> {
    frame(LOGIN_USER_CODE, &login())
}

/// The bytes of a request to create a stream.
pub(crate) fn create_stream_frame(stream: &str) -> Vec<u8> {
    frame(CREATE_STREAM_CODE, &CreateStreamRequest { name: name(stream) })
}

/// The bytes of a request to create a topic of one partition in the stream of all topics.
pub(crate) fn create_topic_frame(topic: &str) -> Vec<u8> {
    frame(CREATE_TOPIC_CODE, &create_topic(topic, 1, (0, 0)))
}

/// The bytes of a request to send one message to partition 0.
pub(crate) fn send_frame(topic: &str, payload: &[u8]) -> Vec<u8> {
    let message = RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
    let (mut request, to) = (BytesMut::new(), WirePartitioning::PartitionId(0));
    SendMessagesEncoder::encode(&mut request, &id(STREAM), &id(topic), &to, &[message]);
    let mut frame = BytesMut::new();
    RequestFrame::encode(SEND_MESSAGES_CODE, &request, &mut frame).expect("it is short enough");
    frame.to_vec()
}

/// The bytes of a poll of the first messages of partition 0.
pub(crate) fn poll_frame(topic: &str, count: u32) -> Vec<u8> {
    frame(POLL_MESSAGES_CODE, &poll(topic, 0, WirePollingStrategy::first(), count))
}

fn create_topic(
    topic: &str,
    partitions_count: u32,
    (max_topic_size, message_expiry): (u64, u64),
) -> CreateTopicRequest {
    CreateTopicRequest {
        stream_id: id(STREAM),
        partitions_count,
        compression_algorithm: 1,
        message_expiry,
        max_topic_size,
        replication_factor: 1,
        name: name(topic),
    }
}

fn frame(code: u32, request: &impl WireEncode) -> Vec<u8> {
    let mut frame = BytesMut::new();
    RequestFrame::encode(code, &request.to_bytes(), &mut frame).expect("it is short");
    frame.to_vec()
}

fn poll(
    topic: &str,
    partition: u32,
    strategy: WirePollingStrategy,
    count: u32,
) -> PollMessagesRequest {
    PollMessagesRequest {
        consumer: consumer(),
        stream_id: id(STREAM),
        topic_id: id(topic),
        partition_id: Some(partition),
        strategy,
        count,
        auto_commit: false,
    }
}

fn consumer() -> WireConsumer {
    WireConsumer::consumer(WireIdentifier::numeric(7))
}

fn id(name: &str) -> WireIdentifier {
    WireIdentifier::named(name).expect("the name is short")
}

fn name(name: &str) -> WireName {
    WireName::new(name).expect("the name is short")
}

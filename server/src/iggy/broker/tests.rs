//! Commands, from their bytes to the bytes of their answers.

mod disk;
mod shared;
mod tail;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::consumer_groups::*;
use iggy_binary_protocol::requests::consumer_offsets::*;
use iggy_binary_protocol::requests::messages::*;
use iggy_binary_protocol::requests::partitions::*;
use iggy_binary_protocol::requests::streams::*;
use iggy_binary_protocol::requests::topics::*;
use iggy_binary_protocol::requests::users::*;
use iggy_binary_protocol::responses::clients::*;
use iggy_binary_protocol::responses::consumer_groups::*;
use iggy_binary_protocol::responses::consumer_offsets::*;
use iggy_binary_protocol::responses::messages::*;
use iggy_binary_protocol::responses::streams::*;
use iggy_binary_protocol::responses::system::*;
use iggy_binary_protocol::responses::topics::*;
use iggy_binary_protocol::*;
use owned_io::{Clock, Executor, coop};
use owned_io_sim::Sim;

use super::super::catalogue::{GroupId, TopicId};
use super::super::clients::{Clients, Transport};
use super::super::command::Command;
use super::super::frame::Request;
use super::super::messages::tests::request as send_request;
use super::super::session::Session;
use super::super::storage::{MemoryStorage, Storage};
use super::super::workers::{Hub, Iggy};
use super::super::{Credentials, Environment, Node, Status};
use super::Broker;

/// A server of one worker, and the answers of its sessions.
struct Server {
    iggy: Rc<Iggy>,
}

impl Server {
    fn new() -> Self {
        Self::with(Box::new(MemoryStorage::new(1 << 20, || 1_000)))
    }

    fn with(storage: Box<dyn Storage>) -> Self {
        Self::with_clock(storage, || 1_000)
    }

    fn with_clock(storage: Box<dyn Storage>, now: fn() -> u64) -> Self {
        let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
        let hub = Arc::new(Hub::new(credentials));
        let environment = Environment { now, random: || 99, ..Environment::of::<Sim>() };
        let node = Node { workers: 1, ..Node::default() };
        let broker = Broker::new(storage, hub.clients().clone(), environment, node);
        Self { iggy: Rc::new(Iggy::with_broker::<Sim>(hub, broker)) }
    }

    fn connect(&self) -> Client {
        Client { session: Session::new(&self.iggy, Transport::Tcp, None) }
    }

    async fn login(&self) -> Client {
        let mut client = self.connect();
        assert_eq!(client.log_in("secret").await, Ok(Bytes::from_static(&[0; 4])));
        client
    }
}

struct Client {
    session: Session,
}

impl Client {
    /// The payload of the answer, or its status.
    async fn ask(&mut self, code: u32, payload: impl Into<BytesMut>) -> Result<Bytes, u32> {
        self.ask_for(code, payload, usize::MAX).await
    }

    async fn ask_for(
        &mut self,
        code: u32,
        payload: impl Into<BytesMut>,
        mut bytes_max: usize,
    ) -> Result<Bytes, u32> {
        let request = Request { code, payload: payload.into() };
        let answer = self.session.answer::<Sim>(request, &mut bytes_max).await.concat();
        let (frame, len) = ResponseFrame::decode(&answer).unwrap();
        assert_eq!(len, answer.len());
        match frame.status {
            0 => Ok(Bytes::copy_from_slice(frame.payload)),
            status => {
                assert!(frame.payload.is_empty());
                Err(status)
            }
        }
    }

    async fn send(&mut self, code: u32, request: &impl WireEncode) -> Result<Bytes, u32> {
        self.ask(code, BytesMut::from(&request.to_bytes()[..])).await
    }

    async fn log_in(&mut self, password: &str) -> Result<Bytes, u32> {
        let login = LoginUserRequest {
            username: name("iggy"),
            password: password.to_owned(),
            version: Some("0.10".to_owned()),
            context: None,
        };
        self.send(LOGIN_USER_CODE, &login).await
    }

    async fn create(&mut self, partitions: u32) {
        let created = self.send(CREATE_STREAM_CODE, &CreateStreamRequest { name: name("s") }).await;
        let created = CreateStreamResponse::decode_from(&created.unwrap()).unwrap();
        assert_eq!((created.id, &*created.name, created.created_at), (0, "s", 1_000));
        let created = self.send(CREATE_TOPIC_CODE, &create_topic("t", partitions)).await.unwrap();
        let created = GetTopicResponse::decode_from(&created).unwrap();
        assert_eq!((created.topic.id, created.topic.partitions_count), (0, partitions));
    }

    async fn produce(&mut self, payloads: &[&[u8]], to: WirePartitioning) -> Result<Bytes, u32> {
        self.ask(SEND_MESSAGES_CODE, send_request(payloads, &to)).await
    }

    async fn poll(&mut self, poll: &PollMessagesRequest) -> Result<Polled, u32> {
        Ok(Polled::decode(&self.send(POLL_MESSAGES_CODE, poll).await?))
    }

    async fn topic(&mut self) -> GetTopicResponse {
        let request = GetTopicRequest { stream_id: zero(), topic_id: zero() };
        let topic = self.send(GET_TOPIC_CODE, &request).await.unwrap();
        GetTopicResponse::decode_from(&topic).unwrap()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Polled {
    partition: u32,
    current_offset: u64,
    messages: Vec<(u64, Vec<u8>)>,
}

impl Polled {
    fn decode(payload: &[u8]) -> Self {
        let response = PollMessagesResponse::decode(payload).unwrap();
        let messages = response.messages.map(Result::unwrap);
        Self {
            partition: response.header.partition_id,
            current_offset: response.header.current_offset,
            messages: messages.map(|view| (view.offset(), view.payload().to_vec())).collect(),
        }
    }

    fn offsets(&self) -> Vec<u64> {
        self.messages.iter().map(|(offset, _)| *offset).collect()
    }
}

fn zero() -> WireIdentifier {
    WireIdentifier::numeric(0)
}

fn name(name: &str) -> WireName {
    WireName::new(name).unwrap()
}

fn create_topic(topic: &str, partitions_count: u32) -> CreateTopicRequest {
    CreateTopicRequest {
        stream_id: WireIdentifier::named("s").unwrap(),
        partitions_count,
        compression_algorithm: 1,
        message_expiry: u64::MAX,
        max_topic_size: 0,
        replication_factor: 0,
        name: name(topic),
    }
}

fn poll(consumer: WireConsumer, strategy: WirePollingStrategy, count: u32) -> PollMessagesRequest {
    PollMessagesRequest {
        consumer,
        stream_id: zero(),
        topic_id: WireIdentifier::named("t").unwrap(),
        partition_id: None,
        strategy,
        count,
        auto_commit: false,
    }
}

fn consumer() -> WireConsumer {
    WireConsumer::consumer(WireIdentifier::numeric(7))
}

fn group() -> WireConsumer {
    WireConsumer::consumer_group(WireIdentifier::named("g").unwrap())
}

fn run(case: impl AsyncFnOnce(Server)) {
    owned_io_sim::block_on(async { case(Server::new()).await });
}

const fn status(status: Status) -> u32 {
    status.code().get()
}

#[test]
fn without_a_login_there_are_ping_and_login_alone() {
    run(async |server: Server| {
        let mut client = server.connect();
        for command in COMMAND_TABLE {
            let answer = client.ask(command.code, BytesMut::new()).await;
            match command.code {
                PING_CODE => assert_eq!(answer, Ok(Bytes::new())),
                LOGIN_USER_CODE => assert_eq!(answer, Err(status(Status::InvalidCommand))),
                _ => assert_eq!(answer, Err(status(Status::Unauthenticated)), "{}", command.name),
            }
        }
        assert_eq!(client.log_in("wrong").await, Err(status(Status::InvalidCredentials)));
        assert!(!client.session.is_logged_in());
        client.log_in("secret").await.unwrap();
        assert!(client.ask(GET_STREAMS_CODE, BytesMut::new()).await.is_ok());
        assert_eq!(client.ask(9_999, BytesMut::new()).await, Err(status(Status::InvalidCommand)));
        let unavailable = client.ask(GET_USERS_CODE, BytesMut::new()).await;
        assert_eq!(unavailable, Err(status(Status::FeatureUnavailable)));
        client.ask(LOGOUT_USER_CODE, BytesMut::new()).await.unwrap();
        let refused = client.ask(GET_STREAMS_CODE, BytesMut::new()).await;
        assert_eq!(refused, Err(status(Status::Unauthenticated)));
    });
}

#[test]
fn streams_and_topics_are_created_changed_listed_and_deleted() {
    run(async |server: Server| {
        let mut client = server.login().await;
        client.create(3).await;
        let update = UpdateStreamRequest { stream_id: zero(), name: name("s2") };
        client.send(UPDATE_STREAM_CODE, &update).await.unwrap();
        let streams = client.ask(GET_STREAMS_CODE, BytesMut::new()).await.unwrap();
        let streams = GetStreamsResponse::decode_from(&streams).unwrap().streams;
        assert_eq!(streams.iter().map(|stream| &*stream.name).collect::<Vec<_>>(), ["s2"]);
        let update = UpdateTopicRequest {
            stream_id: zero(),
            topic_id: zero(),
            compression_algorithm: 2,
            message_expiry: 5,
            max_topic_size: 6,
            replication_factor: 1,
            name: name("t2"),
        };
        client.send(UPDATE_TOPIC_CODE, &update).await.unwrap();
        let bad = UpdateTopicRequest { compression_algorithm: 3, ..update };
        let refused = client.send(UPDATE_TOPIC_CODE, &bad).await;
        assert_eq!(refused, Err(status(Status::InvalidCommand)));
        let stream = client.send(GET_STREAM_CODE, &GetStreamRequest { stream_id: zero() }).await;
        let stream = GetStreamResponse::decode_from(&stream.unwrap()).unwrap();
        assert_eq!((stream.stream.topics_count, stream.topics.len()), (1, 1));
        let topic = &stream.topics[0];
        let settings = (topic.compression_algorithm, topic.message_expiry, topic.max_topic_size);
        assert_eq!((&*topic.name, settings), ("t2", (2, 5, 6)));
        let topics = client.send(GET_TOPICS_CODE, &GetTopicsRequest { stream_id: zero() }).await;
        assert_eq!(GetTopicsResponse::decode_from(&topics.unwrap()).unwrap().topics, stream.topics);

        let more =
            CreatePartitionsRequest { stream_id: zero(), topic_id: zero(), partitions_count: 2 };
        client.send(CREATE_PARTITIONS_CODE, &more).await.unwrap();
        let ids =
            |topic: GetTopicResponse| topic.partitions.iter().map(|it| it.id).collect::<Vec<_>>();
        assert_eq!(ids(client.topic().await), [0, 1, 2, 3, 4]);
        let fewer =
            DeletePartitionsRequest { stream_id: zero(), topic_id: zero(), partitions_count: 4 };
        client.send(DELETE_PARTITIONS_CODE, &fewer).await.unwrap();
        assert_eq!(ids(client.topic().await), [0]);
        let refused = client.send(DELETE_PARTITIONS_CODE, &fewer).await;
        assert_eq!(refused, Err(status(Status::InvalidPartitionsCount)));

        let delete = DeleteTopicRequest { stream_id: zero(), topic_id: zero() };
        client.send(DELETE_TOPIC_CODE, &delete).await.unwrap();
        let refused = client.send(DELETE_TOPIC_CODE, &delete).await;
        assert_eq!(refused, Err(status(Status::TopicIdNotFound)));
        let missing = GetTopicRequest { stream_id: zero(), topic_id: zero() };
        assert_eq!(client.send(GET_TOPIC_CODE, &missing).await, Ok(Bytes::new()));
        let delete = DeleteStreamRequest { stream_id: WireIdentifier::named("s2").unwrap() };
        client.send(DELETE_STREAM_CODE, &delete).await.unwrap();
        let missing = client.send(GET_STREAM_CODE, &GetStreamRequest { stream_id: zero() }).await;
        assert_eq!(missing, Ok(Bytes::new()));
        for bad in ["a/b", "\0", "a\\b"] {
            let refused =
                client.send(CREATE_STREAM_CODE, &CreateStreamRequest { name: name(bad) }).await;
            assert_eq!(refused, Err(status(Status::InvalidStreamName)), "{bad:?}");
        }
    });
}

#[test]
fn messages_go_where_the_partitioning_says() {
    run(async |server: Server| {
        let mut client = server.login().await;
        let nowhere = client.produce(&[b"m"], WirePartitioning::Balanced).await;
        assert_eq!(nowhere, Err(status(Status::StreamIdNotFound)));
        client.create(3).await;
        for _ in 0..4 {
            client.produce(&[b"balanced"], WirePartitioning::Balanced).await.unwrap();
        }
        client.produce(&[b"chosen"], WirePartitioning::PartitionId(2)).await.unwrap();
        let refused = client.produce(&[b"chosen"], WirePartitioning::PartitionId(3)).await;
        assert_eq!(refused, Err(status(Status::PartitionNotFound)));
        let counts = |topic: GetTopicResponse| -> Vec<u64> {
            topic.partitions.iter().map(|partition| partition.messages_count).collect()
        };
        assert_eq!(counts(client.topic().await), [2, 1, 2]);
        let key = WirePartitioning::messages_key(b"key".to_vec()).unwrap();
        for _ in 0..3 {
            client.produce(&[b"keyed"], key.clone()).await.unwrap();
        }
        let after = counts(client.topic().await);
        assert!([[5, 1, 2], [2, 4, 2], [2, 1, 5]].iter().any(|one| after == one), "{after:?}");
        let topic = CreateTopicRequest { name: name("empty"), ..create_topic("t", 0) };
        client.send(CREATE_TOPIC_CODE, &topic).await.unwrap();
        let mut request = BytesMut::new();
        let message = RawMessage { id: 0, origin_timestamp: 0, headers: None, payload: b"m" };
        let to = (zero(), WireIdentifier::named("empty").unwrap());
        SendMessagesEncoder::encode(
            &mut request,
            &to.0,
            &to.1,
            &WirePartitioning::Balanced,
            &[message],
        );
        let refused = client.ask(SEND_MESSAGES_CODE, request).await;
        assert_eq!(refused, Err(status(Status::NoPartitions)));
        let full = client.produce(&[&vec![0; 2 << 20]], WirePartitioning::Balanced).await;
        assert_eq!(full, Err(status(Status::TopicFull)));
    });
}

#[test]
fn messages_are_polled_from_anywhere_in_any_number() {
    run(async |server: Server| {
        let mut client = server.login().await;
        client.create(1).await;
        let nothing =
            client.poll(&poll(consumer(), WirePollingStrategy::first(), 10)).await.unwrap();
        assert_eq!(nothing, Polled { partition: 0, current_offset: 0, messages: vec![] });
        for batch in [&[&b"0"[..], b"1", b"2"][..], &[b"3"], &[b"4", b"5", b"6", b"7"]] {
            client.produce(batch, WirePartitioning::Balanced).await.unwrap();
        }
        for (strategy, count, expected) in [
            (WirePollingStrategy::first(), 2, 0..2),
            (WirePollingStrategy::first(), 100, 0..8),
            (WirePollingStrategy::first(), 0, 0..0),
            (WirePollingStrategy::offset(2), 3, 2..5),
            (WirePollingStrategy::offset(7), 3, 7..8),
            (WirePollingStrategy::offset(8), 3, 0..0),
            (WirePollingStrategy::offset(u64::MAX), 3, 0..0),
            (WirePollingStrategy::last(), 3, 5..8),
            (WirePollingStrategy::last(), u32::MAX, 0..8),
            (WirePollingStrategy::next(), 1, 0..1),
            (WirePollingStrategy::timestamp(0), 4, 0..4),
            (WirePollingStrategy::timestamp(1_000), 4, 0..4),
            (WirePollingStrategy::timestamp(1_001), 4, 0..0),
        ] {
            let polled = client.poll(&poll(consumer(), strategy.clone(), count)).await.unwrap();
            assert_eq!(polled.current_offset, 7);
            assert_eq!(
                polled.offsets(),
                expected.clone().collect::<Vec<_>>(),
                "{strategy:?} {count}"
            );
            for (offset, payload) in polled.messages {
                assert_eq!(payload, offset.to_string().as_bytes());
            }
        }
        let all = poll(consumer(), WirePollingStrategy::first(), 100).to_bytes();
        let one_batch = client.ask_for(POLL_MESSAGES_CODE, BytesMut::from(&all[..]), 1).await;
        assert_eq!(Polled::decode(&one_batch.unwrap()).offsets(), [0, 1, 2], "one batch at least");
        let elsewhere = PollMessagesRequest {
            partition_id: Some(1),
            ..poll(consumer(), WirePollingStrategy::first(), 1)
        };
        assert_eq!(client.poll(&elsewhere).await, Err(status(Status::PartitionNotFound)));
        let flush = FlushUnsavedBufferRequest {
            stream_id: zero(),
            topic_id: zero(),
            partition_id: 0,
            fsync: true,
        };
        assert_eq!(client.send(FLUSH_UNSAVED_BUFFER_CODE, &flush).await, Ok(Bytes::new()));
        let flush = FlushUnsavedBufferRequest { partition_id: 1, ..flush };
        let refused = client.send(FLUSH_UNSAVED_BUFFER_CODE, &flush).await;
        assert_eq!(refused, Err(status(Status::PartitionNotFound)));
    });
}

#[test]
fn offsets_are_stored_asked_for_deleted_and_committed_by_polls() {
    run(async |server: Server| {
        let mut client = server.login().await;
        client.create(1).await;
        client.produce(&[b"0", b"1", b"2", b"3"], WirePartitioning::Balanced).await.unwrap();
        let get = GetConsumerOffsetRequest {
            consumer: consumer(),
            stream_id: zero(),
            topic_id: zero(),
            partition_id: Some(0),
        };
        assert_eq!(client.send(GET_CONSUMER_OFFSET_CODE, &get).await, Ok(Bytes::new()));
        let store = |offset| StoreConsumerOffsetRequest {
            consumer: consumer(),
            stream_id: zero(),
            topic_id: zero(),
            partition_id: Some(0),
            offset,
        };
        let refused = client.send(STORE_CONSUMER_OFFSET_CODE, &store(4)).await;
        assert_eq!(refused, Err(status(Status::InvalidOffset)));
        client.send(STORE_CONSUMER_OFFSET_CODE, &store(1)).await.unwrap();
        let stored = client.send(GET_CONSUMER_OFFSET_CODE, &get).await.unwrap();
        let expected =
            ConsumerOffsetResponse { partition_id: 0, current_offset: 3, stored_offset: 1 };
        assert_eq!(ConsumerOffsetResponse::decode_from(&stored), Ok(expected));
        let mut next = poll(consumer(), WirePollingStrategy::next(), 1);
        assert_eq!(client.poll(&next).await.unwrap().offsets(), [2]);
        assert_eq!(client.poll(&next).await.unwrap().offsets(), [2], "nothing was committed");
        next.auto_commit = true;
        for expected in [&[2][..], &[3], &[]] {
            assert_eq!(client.poll(&next).await.unwrap().offsets(), expected);
        }
        let mut another = poll(
            WireConsumer::consumer(WireIdentifier::named("another").unwrap()),
            WirePollingStrategy::next(),
            10,
        );
        another.auto_commit = true;
        assert_eq!(client.poll(&another).await.unwrap().offsets(), [0, 1, 2, 3]);
        let delete = DeleteConsumerOffsetRequest {
            consumer: consumer(),
            stream_id: zero(),
            topic_id: zero(),
            partition_id: Some(0),
        };
        client.send(DELETE_CONSUMER_OFFSET_CODE, &delete).await.unwrap();
        let refused = client.send(DELETE_CONSUMER_OFFSET_CODE, &delete).await;
        assert_eq!(refused, Err(status(Status::ConsumerOffsetNotFound)));
        assert_eq!(client.poll(&next).await.unwrap().offsets(), [0]);
        let purge = PurgeTopicRequest { stream_id: zero(), topic_id: zero() };
        client.send(PURGE_TOPIC_CODE, &purge).await.unwrap();
        assert_eq!(client.poll(&next).await.unwrap().offsets(), [0_u64; 0]);
        assert_eq!(client.send(GET_CONSUMER_OFFSET_CODE, &get).await, Ok(Bytes::new()));
        client.produce(&[b"0"], WirePartitioning::Balanced).await.unwrap();
        client.send(PURGE_STREAM_CODE, &PurgeStreamRequest { stream_id: zero() }).await.unwrap();
        assert_eq!(client.topic().await.topic.messages_count, 0);
    });
}

fn join() -> JoinConsumerGroupRequest {
    let group_id = WireIdentifier::named("g").unwrap();
    JoinConsumerGroupRequest { stream_id: zero(), topic_id: zero(), group_id }
}

#[test]
fn the_members_of_a_group_share_the_partitions() {
    run(async |server: Server| {
        let mut one = server.login().await;
        one.create(2).await;
        let create =
            CreateConsumerGroupRequest { stream_id: zero(), topic_id: zero(), name: name("g") };
        let created = one.send(CREATE_CONSUMER_GROUP_CODE, &create).await.unwrap();
        let created = ConsumerGroupResponse::decode_from(&created).unwrap();
        assert_eq!((created.id, created.partitions_count, &*created.name), (0, 2, "g"));
        let refused = one.send(CREATE_CONSUMER_GROUP_CODE, &create).await;
        assert_eq!(refused, Err(status(Status::ConsumerGroupNameAlreadyExists)));
        for partition in [0, 1] {
            let payloads: [&[u8]; 2] = [b"a", b"b"];
            one.produce(&payloads, WirePartitioning::PartitionId(partition)).await.unwrap();
        }
        let mut next = poll(group(), WirePollingStrategy::next(), 1);
        next.auto_commit = true;
        let refused = one.poll(&next).await;
        assert_eq!(refused, Err(status(Status::ConsumerGroupMemberNotFound)));
        one.send(JOIN_CONSUMER_GROUP_CODE, &join()).await.unwrap();
        let mut polled = Vec::new();
        for _ in 0..2 {
            let answer = one.poll(&next).await.unwrap();
            polled.push((answer.partition, answer.offsets()));
        }
        assert_eq!(polled, [(0, vec![0]), (1, vec![0])]);

        let mut two = server.login().await;
        two.send(JOIN_CONSUMER_GROUP_CODE, &join()).await.unwrap();
        for (client, partition) in [(&mut one, 0), (&mut two, 1)] {
            let answer = client.poll(&next).await.unwrap();
            assert_eq!((answer.partition, answer.offsets()), (partition, vec![1]));
            let answer = client.poll(&next).await.unwrap();
            assert_eq!((answer.partition, answer.offsets()), (partition, vec![]));
        }
        let others = PollMessagesRequest { partition_id: Some(1), ..next.clone() };
        assert_eq!(one.poll(&others).await.unwrap().offsets(), [0_u64; 0], "it is the other one's");
        let get = GetConsumerGroupRequest {
            stream_id: zero(),
            topic_id: zero(),
            group_id: WireIdentifier::named("g").unwrap(),
        };
        let details = one.send(GET_CONSUMER_GROUP_CODE, &get).await.unwrap();
        let details = ConsumerGroupDetailsResponse::decode_from(&details).unwrap();
        let members: Vec<_> =
            details.members.iter().map(|it| (it.id, it.partitions.clone())).collect();
        assert_eq!(members, [(1, vec![0]), (2, vec![1])]);
        let me = two.ask(GET_ME_CODE, BytesMut::new()).await.unwrap();
        let me = ClientDetailsResponse::decode_from(&me).unwrap();
        assert_eq!((me.client.client_id, me.client.user_id, me.client.transport), (2, 0, 1));
        let expected = ConsumerGroupInfoResponse { stream_id: 0, topic_id: 0, group_id: 0 };
        assert_eq!(me.consumer_groups, [expected]);

        drop(two); // its connection ends
        let clients = one.ask(GET_CLIENTS_CODE, BytesMut::new()).await.unwrap();
        let clients = GetClientsResponse::decode_from(&clients).unwrap().clients;
        assert_eq!(clients.iter().map(|client| client.client_id).collect::<Vec<_>>(), [1]);
        assert_eq!(one.poll(&others).await.unwrap().partition, 1, "it is this one's again");
        let leave = LeaveConsumerGroupRequest {
            stream_id: zero(),
            topic_id: zero(),
            group_id: WireIdentifier::numeric(0),
        };
        one.send(LEAVE_CONSUMER_GROUP_CODE, &leave).await.unwrap();
        let refused = one.send(LEAVE_CONSUMER_GROUP_CODE, &leave).await;
        assert_eq!(refused, Err(status(Status::ConsumerGroupMemberNotFound)));
        let delete = DeleteConsumerGroupRequest {
            stream_id: zero(),
            topic_id: zero(),
            group_id: WireIdentifier::numeric(0),
        };
        one.send(DELETE_CONSUMER_GROUP_CODE, &delete).await.unwrap();
        let groups = GetConsumerGroupsRequest { stream_id: zero(), topic_id: zero() };
        assert_eq!(one.send(GET_CONSUMER_GROUPS_CODE, &groups).await, Ok(Bytes::new()));
        assert_eq!(one.send(GET_CONSUMER_GROUP_CODE, &get).await, Ok(Bytes::new()));
        let refused = one.send(JOIN_CONSUMER_GROUP_CODE, &join()).await;
        assert_eq!(refused, Err(status(Status::ConsumerGroupIdNotFound)));
    });
}

/// A connection yields between its commands once it has done enough work. So work must count that grows with what is
/// there, also if the answer is short.
#[test]
fn commands_with_short_answers_count_their_work() {
    run(async |server: Server| {
        let mut client = server.login().await;
        client.create(500).await;
        coop::refill();
        client.ask(GET_STATS_CODE, BytesMut::new()).await.unwrap();
        assert!(coop::spent_nanos() >= 500 * 100, "{} for partitions", coop::spent_nanos());

        let to = WirePartitioning::PartitionId(0);
        client.produce(&[&b"message"[..]; 5_000], to).await.unwrap();
        coop::refill();
        let last = poll(consumer(), WirePollingStrategy::last(), 1);
        assert_eq!(client.poll(&last).await.unwrap().offsets(), [4_999]);
        assert!(coop::spent_nanos() >= 4_999 * 5, "{} for messages", coop::spent_nanos());
    });
}

/// In memory nothing else would let them run.
#[test]
fn others_run_while_a_stream_of_many_topics_is_purged() {
    run(async |server: Server| {
        let mut client = server.login().await;
        client.create(1).await;
        for n in 0..1_000 {
            let topic = create_topic(&n.to_string(), 1);
            client.send(CREATE_TOPIC_CODE, &topic).await.unwrap();
        }
        let turns = Rc::new(Cell::new(0));
        let counted = Rc::clone(&turns);
        drop(Sim::spawn(async move {
            loop {
                Sim::sleep(Duration::ZERO).await;
                counted.set(counted.get() + 1);
            }
        }));
        client.send(PURGE_STREAM_CODE, &PurgeStreamRequest { stream_id: zero() }).await.unwrap();
        assert!(turns.get() >= 12, "{} turns of another task", turns.get());
    });
}

/// Its command can arrive from another worker after it has left.
#[test]
fn a_client_that_has_left_joins_no_group() {
    owned_io_sim::block_on(async {
        let clients = Clients::default();
        let environment = Environment { now: || 1_000, random: || 99, ..Environment::of::<Sim>() };
        let storage = Box::new(MemoryStorage::new(1 << 20, || 1_000));
        let broker = Broker::new(storage, clients.clone(), environment, Node::default());
        let create_group =
            CreateConsumerGroupRequest { stream_id: zero(), topic_id: zero(), name: name("g") };
        for command in [
            Command::CreateStream(CreateStreamRequest { name: name("s") }),
            Command::CreateTopic(create_topic("t", 2)),
            Command::CreateGroup(create_group),
        ] {
            broker.execute(0, command, 0).await.unwrap();
        }
        let group = GroupId { at: TopicId { stream: 0, topic: 0 }, group: 0 };
        let partitions = || {
            broker.update_members();
            let members = broker.members.borrow().of(group).into_iter();
            members.map(|member| (member.client, member.partitions)).collect::<Vec<_>>()
        };
        let [stays, leaves] = [(); 2].map(|()| clients.register(Transport::Tcp, None));
        for client in [stays.id(), leaves.id()] {
            broker.execute(client, Command::JoinGroup(join()), 0).await.unwrap();
        }
        assert_eq!(partitions(), [(1, vec![0]), (2, vec![1])]);
        drop(leaves);
        assert_eq!(partitions(), [(1, vec![0, 1])]);
        let refused = broker.execute(2, Command::JoinGroup(join()), 0).await;
        assert_eq!(refused.map(drop), Err(Status::Disconnected));
        assert_eq!(partitions(), [(1, vec![0, 1])]);
    });
}

#[test]
fn the_server_tells_its_state() {
    run(async |server: Server| {
        let mut client = server.login().await;
        client.create(2).await;
        client.produce(&[b"a", b"b"], WirePartitioning::Balanced).await.unwrap();
        let stats = client.ask(GET_STATS_CODE, BytesMut::new()).await.unwrap();
        let stats = StatsResponse::decode_from(&stats).unwrap();
        let counts =
            [stats.streams_count, stats.topics_count, stats.partitions_count, stats.clients_count];
        assert_eq!((counts, stats.messages_count), ([1, 1, 2, 1], 2));
        assert!(stats.messages_size_bytes > 128);
        // A simulation repeats on each machine.
        assert_eq!((&*stats.hostname, stats.memory_usage, stats.cpu_usage), ("", 0, 0.0));
        let cluster = client.ask(GET_CLUSTER_METADATA_CODE, BytesMut::new()).await.unwrap();
        assert_eq!(ClusterMetadataResponse::decode_from(&cluster).unwrap().nodes.len(), 1);
        for (id, expected) in [(0, Err(status(Status::InvalidClientId))), (77, Ok(Bytes::new()))] {
            assert_eq!(client.ask(GET_CLIENT_CODE, &u32::to_le_bytes(id)[..]).await, expected);
        }
        let me = client.ask(GET_CLIENT_CODE, &1_u32.to_le_bytes()[..]).await.unwrap();
        assert_eq!(ClientDetailsResponse::decode_from(&me).unwrap().client.client_id, 1);
    });
}

/// A session of another worker gets the same answers, and is told when the broker has ended.
#[test]
fn commands_hop_to_the_worker_with_the_broker() {
    run(async |server: Server| {
        let hub = server.iggy.hub();
        let other = Server { iggy: Rc::new(Iggy::without_broker(hub)) };
        let mut far = other.login().await;
        far.create(1).await;
        far.produce(&[b"far"], WirePartitioning::Balanced).await.unwrap();
        let mut near = server.login().await;
        let first = poll(consumer(), WirePollingStrategy::first(), 9);
        let polled = far.poll(&first).await.unwrap();
        assert_eq!(polled.messages, [(0, b"far".to_vec())]);
        assert_eq!(near.poll(&first).await.unwrap(), polled);
    });
    let iggy = owned_io_sim::block_on(async { Server::new().iggy });
    owned_io_sim::block_on(async {
        let other = Server { iggy: Rc::new(Iggy::without_broker(iggy.hub())) };
        let mut far = other.login().await;
        let refused = far.ask(GET_STREAMS_CODE, BytesMut::new()).await;
        assert_eq!(refused, Err(status(Status::Disconnected)));
    });
}

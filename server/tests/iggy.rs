//! Iggy over TCP and WebSocket in the simulation, where any read or write may be short: requests cut anywhere, and bad
//! ones. `server/iggy/run` runs Iggy's own client.

mod owners;

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::messages::{
    PollMessagesRequest, RawMessage, SendMessagesEncoder,
};
use iggy_binary_protocol::requests::streams::CreateStreamRequest;
use iggy_binary_protocol::requests::topics::{
    CreateTopicRequest, GetTopicRequest, PurgeTopicRequest,
};
use iggy_binary_protocol::requests::users::LoginUserRequest;
use iggy_binary_protocol::responses::messages::PollMessagesResponse;
use iggy_binary_protocol::{
    RequestFrame, ResponseFrame, WireConsumer, WireEncode, WireIdentifier, WireName,
    WirePartitioning, WirePollingStrategy,
};
use owned_io::{
    ByteStream, Clock, Executor, JoinHandle, MemoryAccount, MemoryBudget, OwnedRead, OwnedReadExt,
    OwnedWrite, OwnedWriteExt, Pool, PoolConfig,
};
use owned_io_server::config::{Engine, Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::iggy::broker::Broker;
use owned_io_server::iggy::storage::MemoryStorage;
use owned_io_server::iggy::workers::{Hub, Iggy};
use owned_io_server::iggy::{Credentials, Environment, Node, Status};
use owned_io_server::memory::Memory;
use owned_io_server::service::{http, iggy};
use owned_io_sim::{Config, Sim, SimStream, pipe, seeds};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Message, WebSocket, connect};
use owned_io_websocket::{CloseCode, CloseFrame};
use owners::{owned_by_server, server_bytes, with_owner};

/// The number of seeds without `SIM_SEEDS`.
const SEEDS: u64 = 40;

fn limits() -> Limits {
    let message_time_max = Duration::from_secs(3);
    Limits { message_bytes_max: 1 << 20, message_time_max, ..Limits::default() }
}

fn simulate(case: impl AsyncFn()) {
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

/// For cases with long messages.
fn simulate_few(case: impl AsyncFn()) {
    for seed in seeds(SEEDS).step_by(10) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

#[test]
fn requests_that_are_sent_at_once_are_answered_in_order() {
    simulate(async || {
        let server = Server::new();
        let (client, serving, account) = server.connect();
        let (mut read, mut write) = client.into_split();
        let all =
            [login(), create(), send(&[1; 10]), send(&[2; 300_000]), send(&[3; 70_000]), poll(9)];
        drop(Sim::spawn(async move {
            write.write_all(all.concat()).await.into_result().unwrap();
            write.shutdown().await.unwrap();
        }));
        for expected in [4, 38, 92, 0, 0, 0] {
            let (status, payload) = answer(&mut read).await;
            assert_eq!((status, payload.len()), (0, expected));
        }
        let (status, polled) = answer(&mut read).await;
        let polled = PollMessagesResponse::decode(&polled).unwrap();
        let messages: Vec<_> =
            polled.messages.map(|view| view.unwrap().payload().to_vec()).collect();
        assert_eq!(status, 0);
        assert!(messages == [vec![1; 10], vec![2; 300_000], vec![3; 70_000]]);
        serving.await.unwrap().unwrap();
        assert_eq!(account.held_bytes(), 0);
    });
}

#[test]
fn lengths_that_are_not_possible_are_answered_and_end_the_connection() {
    let announce = |len: u32| [len.to_le_bytes(), SEND_MESSAGES_CODE.to_le_bytes()].concat();
    let cases = [
        (false, announce(u32::MAX), Status::Unauthenticated),
        (false, announce(9_000), Status::Unauthenticated),
        (true, announce(u32::MAX), Status::InvalidSizeBytes),
        (true, announce(1 << 20), Status::InvalidSizeBytes),
        (false, announce(0), Status::InvalidCommand),
        (true, announce(3), Status::InvalidCommand),
    ];
    simulate(async || {
        let server = Server::new();
        let (mut neighbour, _serving, _) = server.connect();
        for (is_logged_in, bytes, expected) in cases.clone() {
            let (mut client, serving, account) = server.connect();
            if is_logged_in {
                assert_eq!(ask(&mut client, login()).await.0, 0);
            }
            let (status, _) = ask(&mut client, bytes).await;
            assert_eq!(status, expected.code().get());
            assert_ended(&mut client).await;
            drop(client);
            assert_eq!(serving.await.unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
            assert_eq!(account.held_bytes(), 0);
            assert_eq!(ask(&mut neighbour, frame(PING_CODE, &[])).await.0, 0);
        }
    });
}

#[test]
fn half_a_request_is_not_waited_for_and_holds_what_has_arrived() {
    simulate(async || {
        let server = Server::new();
        for bytes in [&send(&[1; 500_000])[..100_000], &send(&[1; 500_000])[..9], &[5][..]] {
            let (mut client, serving, account) = server.connect();
            assert_eq!(ask(&mut client, login()).await.0, 0);
            client.write_all(bytes.to_vec()).await.into_result().unwrap();
            Sim::sleep(Duration::from_secs(1)).await;
            assert!(
                account.held_bytes() <= 2 * bytes.len().max(8 * 1024),
                "{}",
                account.held_bytes()
            );
            assert_ended(&mut client).await;
            let ended = serving.await.unwrap().unwrap_err();
            assert_eq!(ended.kind(), ErrorKind::TimedOut);
            assert_eq!(account.held_bytes(), 0);

            let (mut client, serving, _) = server.connect();
            assert_eq!(ask(&mut client, login()).await.0, 0);
            client.write_all(bytes.to_vec()).await.into_result().unwrap();
            drop(client);
            let ended = serving.await.unwrap().unwrap_err().kind();
            assert!(
                [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&ended),
                "{ended}"
            );
        }
    });
}

/// Halves of long requests hold most of the memory. Who needs some gets it long before the others are too late.
#[test]
fn who_hoards_memory_is_reset_when_others_need_it() {
    simulate(async || {
        let server = Server::new();
        let memory = Memory::divide(8 << 20, 10).expect("enough memory");
        let limits = Limits { message_time_max: Duration::from_secs(300), ..limits() };
        let mut resources = Resources::new(memory, None, WebSockets::default(), limits);
        resources.iggy = Some(Rc::clone(&server.iggy));
        let (budget, worker) = (resources.budget.clone(), Rc::new(resources));
        let connections = Connections::new(DrainSignal::default(), budget.clone());
        let connect = || {
            let (client, server) = pipe();
            let connection = connections.add(server.shutdown_handle());
            let ctx = Context { connection, worker: Rc::clone(&worker) };
            (client, Sim::spawn(async move { iggy::serve::<Sim>(server, &ctx).await }))
        };
        let half = send(&[1; 1_000_000])[..999_000].to_vec();
        let mut hoarders = Vec::new();
        for _ in 0..6 {
            let (mut client, serving) = connect();
            assert_eq!(ask(&mut client, login()).await.0, 0);
            let half = half.clone();
            hoarders.push((
                serving,
                Sim::spawn(async move {
                    let _ = client.write_all(half).await; // an error: it was reset
                    Sim::sleep(Duration::from_secs(60)).await;
                }),
            ));
        }
        Sim::sleep(Duration::from_secs(5)).await;
        let began = Sim::now();
        let (mut client, _serving) = connect();
        assert_eq!(ask(&mut client, [login(), create()].concat()).await.0, 0);
        for _ in 0..2 {
            assert_eq!(answer(&mut client).await.0, 0);
        }
        assert_eq!(ask(&mut client, send(&[2; 900_000])).await.0, 0);
        assert!(Sim::now() - began < Duration::from_secs(20), "the memory came late");
        let mut reset_count = 0;
        for (serving, sending) in hoarders {
            sending.await.unwrap();
            // The others have a client that has gone.
            let ended = serving.await.unwrap().unwrap_err();
            reset_count += usize::from(ended.kind() != ErrorKind::UnexpectedEof);
        }
        assert!(reset_count > 0, "nobody was reset");
        assert_eq!(budget.common_bytes_held(), 0);
    });
}

/// The length of a message of which there are two in a batch. The second one is a little shorter.
const HALF: usize = 3 << 20;

/// Copies of messages, messages that are purged meanwhile, and lists.
#[test]
fn answers_that_nobody_reads_are_held_by_their_connections() {
    simulate_few(async || {
        let server = Server::with_halves().await;
        let worker = Worker::new(&server, 64 << 20);
        for (request, held_min, len) in [
            (poll_from(1, 1), HALF, 16 + 64 + HALF),
            (poll_from(0, 1), 2 * HALF, 16 + 64 + 100 + HALF), // a part of the batch holds all of it
            (poll_from(0, 2), 2 * HALF, 16 + 2 * 64 + 100 + 2 * HALF),
            (get_topic("many").repeat(10), 40_000, 40_055),
        ] {
            let (mut client, serving, account) = worker.connect();
            assert_eq!(ask(&mut client, login()).await.0, 0);
            client.write_all(request).await.into_result().unwrap();
            Sim::sleep(Duration::from_secs(1)).await;
            assert!(account.held_bytes() >= held_min, "{} are held", account.held_bytes());
            if len > 2 * HALF {
                server.ask_alone(frame(PURGE_TOPIC_CODE, &purge().to_bytes())).await;
                assert!(account.held_bytes() >= held_min, "{} are held", account.held_bytes());
            }
            let (status, payload) = answer(&mut client).await;
            assert_eq!((status, payload.len()), (0, len));
            client.shutdown().await.unwrap();
            while client.read(Vec::with_capacity(1 << 16)).await.into_result().unwrap().0 > 0 {}
            serving.await.unwrap().unwrap();
            assert_eq!(account.held_bytes(), 0);
        }
    });
}

/// Who finds no memory for an answer waits for it before there is one.
#[test]
fn answers_that_nobody_reads_take_no_more_than_the_budget() {
    const CLIENTS: usize = 12;
    simulate_few(async || {
        let server = Server::with_halves().await;
        let worker = Worker::new(&server, 8 << 20);
        let budget = worker.resources.budget.clone();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let (mut client, _serving, _) = worker.connect();
            assert_eq!(ask(&mut client, login()).await.0, 0);
            clients.push(client);
        }
        let before = server_bytes();
        for client in &mut clients {
            client.write_all(poll_from(1, 1)).await.into_result().unwrap();
        }
        for _ in 0..10 {
            Sim::sleep(Duration::from_millis(50)).await;
            assert!(budget.common_bytes_held() <= budget.common_bytes_max());
            let allocated = server_bytes() - before;
            assert!(allocated <= budget.bytes_max() as isize, "{allocated} are allocated");
        }
        assert!(budget.common_bytes_held() > HALF / 2, "nobody is answered");
        // Others get theirs when some of them read, or hoard.
        let mut served = 0;
        for mut client in clients {
            let header = client.read_exact(Vec::with_capacity(8), 8).await.into_result();
            let Ok(((), header)) = header else { continue };
            let len = u32::from_le_bytes(header[4..].try_into().unwrap()) as usize;
            let read = client.read_exact(Vec::with_capacity(len), len).await.into_result();
            served += usize::from(read.is_ok() && len > HALF);
        }
        assert!(served > 2, "{served} were served");
    });
}

/// An answer of many pieces leaves nothing behind that its connection would keep while it is idle.
///
/// What a connection holds is what its end releases. The simulator keeps memory for later writes, which counts as the
/// server's, and stays.
#[test]
fn an_idle_connection_holds_little_whatever_it_has_polled() {
    simulate_few(async || {
        let server = Server::new();
        server.ask_alone([create(), send(&[7; 1_100]).repeat(500)].concat()).await;
        let worker = Worker::new(&server, 64 << 20);
        let held = async |polls: bool| {
            let (mut client, _serving, _) = worker.connect();
            assert_eq!(ask(&mut client, login()).await.0, 0);
            if polls {
                let (status, polled) = ask(&mut client, poll_from(0, u32::MAX)).await;
                assert_eq!((status, polled.len()), (0, 16 + 500 * (64 + 1_100)));
            }
            Sim::sleep(Duration::from_secs(1)).await;
            let idle = server_bytes();
            drop(client);
            Sim::sleep(Duration::from_secs(1)).await;
            idle - server_bytes()
        };
        let before = held(false).await;
        assert!(before > 0, "the end of a connection releases {before} bytes");
        let kept = held(true).await - before;
        assert!(kept < 2 * 1024, "{kept} bytes are kept");
    });
}

#[test]
fn bad_requests_are_refused_and_the_connection_goes_on() {
    simulate(async || {
        let server = Server::new();
        let (mut client, serving, _) = server.connect();
        let lying = {
            let mut request = send(b"m");
            request[12 + 6 + 6 + 2 + 8] ^= 1; // the number of messages
            request
        };
        for (request, expected) in [
            (frame(GET_STREAMS_CODE, &[]), Some(Status::Unauthenticated)),
            (
                frame(LOGIN_USER_CODE, b"\x04iggy\x05wrong\0\0\0\0\0\0\0\0"),
                Some(Status::InvalidCredentials),
            ),
            (login(), None),
            (frame(4_000_000_000, b"?"), Some(Status::InvalidCommand)),
            (frame(CREATE_USER_CODE, &[]), Some(Status::FeatureUnavailable)),
            (frame(CREATE_STREAM_CODE, b"\x03a/b"), Some(Status::InvalidStreamName)),
            (frame(CREATE_STREAM_CODE, b"\x03a\0b"), Some(Status::InvalidStreamName)),
            (frame(CREATE_STREAM_CODE, b"\xffshort"), Some(Status::InvalidCommand)),
            (frame(CREATE_STREAM_CODE, b"\x02\xff\xff"), Some(Status::InvalidCommand)),
            (send(b"m"), Some(Status::StreamIdNotFound)),
            (frame(SEND_MESSAGES_CODE, &[255; 50]), Some(Status::InvalidCommand)),
            (frame(POLL_MESSAGES_CODE, &[1; 3]), Some(Status::InvalidCommand)),
        ] {
            let (status, payload) = ask(&mut client, request).await;
            assert_eq!(status, expected.map_or(0, |status| status.code().get()), "{expected:?}");
            assert_eq!(payload.is_empty(), expected.is_some());
        }
        assert_ne!(ask(&mut client, lying).await.0, 0);
        assert_eq!(ask(&mut client, frame(PING_CODE, &[])).await.0, 0);
        drop(client);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn a_websocket_has_whole_requests_in_binary_messages() {
    simulate_each_engine(async |engine| {
        let server = Server::new();
        let mut socket = server.upgrade(engine).await;
        // Several in one message, then a long one alone.
        let first = [login(), create(), send(&[1; 10])].concat();
        socket.outgoing.send(Message::Binary(&first)).await.unwrap();
        for expected in [4, 38, 92, 0] {
            assert_eq!(next(&mut socket).await, (0, expected));
        }
        socket.outgoing.send(Message::Binary(&send(&[2; 400_000]))).await.unwrap();
        assert_eq!(next(&mut socket).await, (0, 0));
        socket.outgoing.send(Message::Binary(&poll(9))).await.unwrap();
        assert_eq!(next(&mut socket).await, (0, 16 + 2 * 64 + 10 + 400_000));
        socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
    });
}

#[test]
fn a_websocket_is_closed_for_what_is_no_request() {
    let announced = [u32::MAX.to_le_bytes(), SEND_MESSAGES_CODE.to_le_bytes()].concat();
    let half = send(&[1; 5_000])[..3_000].to_vec();
    let cases = [
        (Message::Text("hello"), None, CloseCode::UNSUPPORTED),
        (Message::Binary(&announced), Some(Status::InvalidSizeBytes), CloseCode::TOO_LARGE),
        (Message::Binary(&half), Some(Status::InvalidCommand), CloseCode::INVALID_DATA),
        (Message::Binary(&[1, 2]), Some(Status::InvalidCommand), CloseCode::INVALID_DATA),
    ];
    simulate_each_engine(async |engine| {
        for (message, status, code) in cases {
            let server = Server::new();
            let mut socket = server.upgrade(engine).await;
            socket.outgoing.send(Message::Binary(&login())).await.unwrap();
            assert_eq!(next(&mut socket).await, (0, 4));
            socket.outgoing.send(message).await.unwrap();
            if let Some(status) = status {
                assert_eq!(next(&mut socket).await, (status.code().get(), 0));
            }
            assert!(socket.incoming.receive().await.unwrap().is_none());
            assert_eq!(socket.incoming.peer_close().and_then(|frame| frame.code), Some(code));
        }
    });
}

fn simulate_each_engine(case: impl AsyncFn(Engine)) {
    for &engine in Engine::ALL {
        for seed in seeds(SEEDS).step_by(if engine == Engine::Native { 2 } else { 8 }) {
            println!("{engine:?}, seed {seed}"); // shown when it fails
            Sim::block_on(Config::with_seed(seed), case(engine)).unwrap();
        }
    }
}

struct Server {
    iggy: Rc<Iggy>,
}

impl Server {
    fn new() -> Self {
        Self::with_room(4 << 20)
    }

    fn with_room(bytes_max: usize) -> Self {
        let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
        let hub = Arc::new(Hub::new(credentials));
        let environment = Environment::of::<Sim>();
        let storage = Box::new(MemoryStorage::new(bytes_max, environment.now));
        let broker = Broker::new(storage, hub.clients().clone(), environment, Node::default());
        Self { iggy: Rc::new(Iggy::with_broker::<Sim>(hub, broker)) }
    }

    fn context(&self, stream: &SimStream, engine: Engine) -> Context {
        let memory = Memory::divide(64 << 20, 100).expect("enough memory");
        let sockets = WebSockets { engine, ..WebSockets::default() };
        let mut resources = Resources::new(memory, None, sockets, limits());
        resources.iggy = Some(Rc::clone(&self.iggy));
        let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
        let connection = connections.add(stream.shutdown_handle());
        Context { connection, worker: Rc::new(resources) }
    }

    /// A server with a batch of two messages of [`HALF`] bytes, and a topic `many` of 1,000 partitions.
    async fn with_halves() -> Self {
        let server = Self::with_room(32 << 20);
        server.ask_alone([create(), create_topic("many", 1_000)].concat()).await;
        server.ask_alone(send_all(&[&vec![1; HALF + 100], &vec![2; HALF]])).await;
        server
    }

    /// Executes requests of another client, which leaves then.
    async fn ask_alone(&self, requests: Vec<u8>) {
        let worker = Worker::new(self, 256 << 20);
        let (mut client, serving, _) = worker.connect();
        client.write_all([login(), requests].concat()).await.into_result().unwrap();
        client.shutdown().await.unwrap();
        // Each round reads an answer, or ends.
        while let Ok(((), header)) = client.read_exact(Vec::with_capacity(8), 8).await.into_result()
        {
            assert_eq!(header[..4], [0; 4]);
            let len = u32::from_le_bytes(header[4..].try_into().unwrap()) as usize;
            client.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap();
        }
        serving.await.unwrap().unwrap();
    }

    /// A connection over TCP, its task, and its memory.
    fn connect(&self) -> (SimStream, JoinHandle<std::io::Result<()>>, MemoryAccount) {
        let (client, server) = pipe();
        let ctx = self.context(&server, Engine::Native);
        let account = ctx.connection.account().clone();
        let serving = Sim::spawn(async move { iggy::serve::<Sim>(server, &ctx).await });
        (client, serving, account)
    }

    async fn upgrade(&self, engine: Engine) -> WebSocket<SimStream> {
        let (client, server) = pipe();
        let ctx = self.context(&server, engine);
        drop(Sim::spawn(async move {
            http::serve::<Sim>(server, &ctx).await.unwrap();
        }));
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
        let offer = Offer { host: "localhost", path: "/", ..Offer::default() };
        let config = owned_io_websocket::Config::default();
        connect::<Sim, _>(client, &buffers, config, &offer).await.unwrap().0
    }
}

/// Connections that share a budget.
struct Worker {
    resources: Rc<Resources>,
    connections: Connections,
}

impl Worker {
    fn new(server: &Server, memory_max: usize) -> Self {
        let memory = Memory::divide(memory_max, 20).expect("enough memory");
        let limits = Limits {
            message_bytes_max: 16 << 20,
            message_time_max: Duration::from_secs(30),
            ..limits()
        };
        let mut resources = Resources::new(memory, None, WebSockets::default(), limits);
        resources.iggy = Some(Rc::clone(&server.iggy));
        let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
        Self { resources: Rc::new(resources), connections }
    }

    /// A connection over TCP, its task, and its memory. What its task allocates is the server's.
    fn connect(&self) -> (SimStream, JoinHandle<std::io::Result<()>>, MemoryAccount) {
        let (client, server) = pipe();
        let connection = self.connections.add(server.shutdown_handle());
        let account = connection.account().clone();
        let ctx = Context { connection, worker: Rc::clone(&self.resources) };
        let serving = owned_by_server(true, async move { iggy::serve::<Sim>(server, &ctx).await });
        (client, with_owner(true, || Sim::spawn(serving)), account)
    }
}

async fn ask(client: &mut SimStream, request: impl Into<Vec<u8>>) -> (u32, Vec<u8>) {
    client.write_all(request.into()).await.into_result().unwrap();
    answer(client).await
}

async fn answer(read: &mut impl OwnedRead) -> (u32, Vec<u8>) {
    let header = read.read_exact(Vec::with_capacity(8), 8).await.into_result().unwrap().1;
    let [status, len] = [0, 4].map(|at| u32::from_le_bytes(header[at..at + 4].try_into().unwrap()));
    let len = len as usize;
    (status, read.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap().1)
}

/// The status of the next answer, and the length of its payload.
async fn next(socket: &mut WebSocket<SimStream>) -> (u32, usize) {
    let message = socket.incoming.receive().await.unwrap().expect("an answer");
    let (frame, len) = ResponseFrame::decode(message.as_bytes()).unwrap();
    assert_eq!(len, message.as_bytes().len(), "one answer in a message");
    (frame.status, frame.payload.len())
}

async fn assert_ended(client: &mut SimStream) {
    match client.read_exact(Vec::with_capacity(1), 1).await.into_result() {
        Err(_) => {}
        Ok(((), read)) => panic!("more was sent: {read:?}"),
    }
}

fn frame(code: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    RequestFrame::encode(code, payload, &mut out).unwrap();
    out.to_vec()
}

fn login() -> Vec<u8> {
    let (username, password) = (WireName::new("iggy").unwrap(), "secret".to_owned());
    let login = LoginUserRequest { username, password, version: None, context: None };
    frame(LOGIN_USER_CODE, &login.to_bytes())
}

/// Requests for a stream and a topic of one partition. Their answers are 38 and 92 bytes long.
fn create() -> Vec<u8> {
    let stream = CreateStreamRequest { name: WireName::new("hello").unwrap() };
    [frame(CREATE_STREAM_CODE, &stream.to_bytes()), create_topic("t", 1)].concat()
}

fn create_topic(name: &str, partitions_count: u32) -> Vec<u8> {
    let topic = CreateTopicRequest {
        stream_id: WireIdentifier::numeric(0),
        partitions_count,
        compression_algorithm: 1,
        message_expiry: 0,
        max_topic_size: 0,
        replication_factor: 0,
        name: WireName::new(name).unwrap(),
    };
    frame(CREATE_TOPIC_CODE, &topic.to_bytes())
}

fn get_topic(name: &str) -> Vec<u8> {
    let (stream_id, topic_id) = (WireIdentifier::numeric(0), WireIdentifier::named(name).unwrap());
    frame(GET_TOPIC_CODE, &GetTopicRequest { stream_id, topic_id }.to_bytes())
}

fn purge() -> PurgeTopicRequest {
    PurgeTopicRequest {
        stream_id: WireIdentifier::numeric(0),
        topic_id: WireIdentifier::numeric(0),
    }
}

fn send(payload: &[u8]) -> Vec<u8> {
    send_all(&[payload])
}

/// A batch of messages with these payloads.
fn send_all(payloads: &[&[u8]]) -> Vec<u8> {
    let (zero, to) = (WireIdentifier::numeric(0), WirePartitioning::Balanced);
    let message = |payload| RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
    let messages: Vec<_> = payloads.iter().map(|payload| message(*payload)).collect();
    let mut request = BytesMut::new();
    SendMessagesEncoder::encode(&mut request, &zero, &zero, &to, &messages);
    frame(SEND_MESSAGES_CODE, &request)
}

fn poll(count: u32) -> Vec<u8> {
    frame(POLL_MESSAGES_CODE, &poll_request(count).to_bytes())
}

/// A poll that stores no offset.
fn poll_from(offset: u64, count: u32) -> Vec<u8> {
    let strategy = WirePollingStrategy::offset(offset);
    let poll = PollMessagesRequest { strategy, auto_commit: false, ..poll_request(count) };
    frame(POLL_MESSAGES_CODE, &poll.to_bytes())
}

fn poll_request(count: u32) -> PollMessagesRequest {
    PollMessagesRequest {
        consumer: WireConsumer::consumer(WireIdentifier::numeric(1)),
        stream_id: WireIdentifier::numeric(0),
        topic_id: WireIdentifier::numeric(0),
        partition_id: Some(0),
        strategy: WirePollingStrategy::next(),
        count,
        auto_commit: true,
    }
}

//! A server of two workers, its producers and its listeners.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
use iggy_binary_protocol::{ResponseFrame, WireIdentifier, WirePartitioning};
use owned_io::{
    ByteStream, Clock, Executor, JoinHandle, MemoryBudget, OwnedReadExt, OwnedWriteExt, Pool,
    PoolConfig, Random,
};
use owned_io_server::config::{Deflate, Engine, Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::iggy::broker::Broker;
use owned_io_server::iggy::clients::Transport;
use owned_io_server::iggy::frame::Request;
use owned_io_server::iggy::session::Session;
use owned_io_server::iggy::storage::MemoryStorage;
use owned_io_server::iggy::workers::{Hub, Iggy};
use owned_io_server::iggy::{Credentials, Environment, Node};
use owned_io_server::memory::Memory;
use owned_io_server::service::http;
use owned_io_sim::{Config, Sim, SimStream, pipe, seeds};
use owned_io_websocket::deflate;
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Message, WebSocket, connect};
use serde_json::Value;

use super::owners::{owned_by_server, with_owner};

/// The number of seeds without `SIM_SEEDS`.
const SEEDS: u64 = 40;

/// `iggy:secret`.
pub(crate) const AUTHORIZATION: (&str, &str) = ("Authorization", "Basic aWdneTpzZWNyZXQ=");

/// With and without compression by the native engine, and the engines of tungstenite with fewer seeds.
pub(crate) fn simulate_each(case: impl AsyncFn(WebSockets)) {
    simulate_each_by(1, case);
}

/// The same with one seed in `step_of_seeds`, for cases that move many bytes.
pub(crate) fn simulate_each_by(step_of_seeds: usize, case: impl AsyncFn(WebSockets)) {
    for &engine in Engine::ALL {
        let (step, ways) = match engine {
            Engine::Native => (2, &[Deflate::Off, Deflate::Shared][..]),
            #[cfg(feature = "tungstenite")]
            _ => (10, &[Deflate::Off][..]),
        };
        for seed in seeds(SEEDS).step_by(step * step_of_seeds) {
            for &deflate in ways {
                println!("{engine:?}, {deflate:?}, seed {seed}"); // shown when it fails
                let sockets = WebSockets { engine, deflate, ..WebSockets::default() };
                Sim::block_on(Config::with_seed(seed), case(sockets)).unwrap();
            }
        }
    }
}

pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    Sim::fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// A message, as a client gets it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) offset: u64,
    pub(crate) payload: Vec<u8>,
}

impl Pushed {
    /// A message whose payload is its offset.
    pub(crate) fn numbered(offset: u64) -> Self {
        Self { offset, payload: offset.to_string().into_bytes() }
    }

    fn decode(message: Message<'_>) -> Self {
        let (offset, timestamp, payload) = match message {
            Message::Text(text) => {
                let json: Value = serde_json::from_str(text).unwrap();
                let payload = json["payload"].as_str().unwrap().as_bytes().to_vec();
                (json["offset"].as_u64().unwrap(), json["timestamp"].as_u64().unwrap(), payload)
            }
            Message::Binary(bytes) => {
                let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                (field(0), field(8), bytes[16..].to_vec())
            }
        };
        assert!(timestamp > 0);
        Self { offset, payload }
    }
}

pub(crate) async fn next(socket: &mut WebSocket<SimStream>) -> Pushed {
    let message = socket.incoming.receive().await.unwrap();
    Pushed::decode(message.expect("a message"))
}

/// The code and the reason with which the server closes. It sends no message before.
pub(crate) async fn closed(socket: &mut WebSocket<SimStream>) -> (u16, String) {
    assert!(socket.incoming.receive().await.unwrap().is_none());
    let frame = socket.incoming.peer_close().unwrap();
    (frame.code.unwrap().get(), frame.reason.to_owned())
}

/// Two workers, of which the first has the broker, and stream `s` with topic `t` of two partitions.
pub(crate) struct Server {
    pub(crate) workers: [Worker; 2],
}

pub(crate) struct Worker {
    pub(crate) resources: Rc<Resources>,
    pub(crate) connections: Connections,
}

impl Server {
    pub(crate) async fn new(sockets: WebSockets) -> Self {
        Self::with_room(sockets, 64 << 20).await
    }

    /// With a memory of `bytes_max` bytes for messages.
    pub(crate) async fn with_room(sockets: WebSockets, bytes_max: usize) -> Self {
        let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
        let hub = Arc::new(Hub::new(credentials));
        let environment = Environment::of::<Sim>();
        let storage = Box::new(MemoryStorage::new(bytes_max, environment.now));
        let broker = Broker::new(storage, hub.clients().clone(), environment, Node::default());
        let first = Iggy::with_broker::<Sim>(Arc::clone(&hub), broker);
        let workers = [first, Iggy::without_broker(hub)].map(|iggy| {
            let memory = Memory::divide(64 << 20, 100).expect("enough memory");
            let limits = Limits { message_bytes_max: 1 << 20, ..Limits::default() };
            let mut resources = Resources::new(memory, None, sockets.clone(), limits);
            resources.iggy = Some(Rc::new(iggy));
            Worker::new(resources)
        });
        let server = Self { workers };
        let mut producer = server.producer().await;
        producer.ask(CREATE_STREAM_CODE, b"\x01s").await;
        let topic = [&STREAM[..], &[2, 0, 0, 0, 1], &[255; 16], &[1, 1, b't']].concat();
        producer.ask(CREATE_TOPIC_CODE, &topic).await;
        server
    }

    pub(crate) async fn producer(&self) -> Producer {
        let iggy = self.workers[0].resources.iggy.as_ref().unwrap();
        let mut producer = Producer { session: Session::new(iggy, Transport::Tcp, None) };
        producer.ask(LOGIN_USER_CODE, b"\x04iggy\x06secret\0\0\0\0\0\0\0\0").await;
        producer
    }

    /// Nothing is held, and no feed is left, soon after the last client has gone.
    pub(crate) async fn assert_idle(&self) {
        Sim::sleep(Duration::from_secs(60)).await;
        for worker in &self.workers {
            let Resources { budget, feeds, .. } = &*worker.resources;
            assert_eq!(budget.common_bytes_held(), 0);
            assert_eq!(format!("{feeds:?}"), "Feeds { live: 0 }");
        }
    }
}

/// The identifiers of stream 0, and of its topic 0.
pub(crate) const STREAM: [u8; 6] = [1, 4, 0, 0, 0, 0];
pub(crate) const TOPIC: [u8; 12] = [1, 4, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0];

impl Worker {
    pub(crate) fn new(resources: Resources) -> Self {
        let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
        Self { resources: Rc::new(resources), connections }
    }

    /// A client's end of a connection for HTTP, and the task that serves it.
    pub(crate) fn serve(&self) -> (SimStream, JoinHandle<()>) {
        let (client, server) = pipe();
        let connection = self.connections.add(server.shutdown_handle());
        let ctx = Context { connection, worker: Rc::clone(&self.resources) };
        let serving = owned_by_server(true, async move {
            let _ = http::serve::<Sim>(server, &ctx).await; // an error: the client has gone
        });
        (client, with_owner(true, || Sim::spawn(serving)))
    }

    /// The answer to a request without an upgrade.
    pub(crate) async fn ask(&self, request: &str, header: Option<(&str, &str)>) -> String {
        let (mut client, serving) = self.serve();
        let header =
            header.map_or_else(String::new, |(name, value)| format!("{name}: {value}\r\n"));
        let request =
            format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n");
        client.write_all(request.into_bytes()).await.into_result().unwrap();
        let mut answer = Vec::new();
        // Each round reads a byte, or ends.
        while let Ok(((), byte)) = client.read_exact(Vec::with_capacity(1), 1).await.into_result() {
            answer.extend(byte);
        }
        drop(client);
        serving.await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    pub(crate) async fn tail(&self, path: &str, protocols: &[&str]) -> WebSocket<SimStream> {
        let (client, _) = self.serve();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
        let offer = Offer {
            host: "localhost",
            path: &format!("/tail/{path}"),
            protocols,
            headers: &[AUTHORIZATION],
            deflate: Some(deflate::Deflate::default()),
        };
        let config = owned_io_websocket::Config::default();
        let connected = connect::<Sim, _>(client, &buffers, config, &offer).await;
        let (socket, protocol) = connected.unwrap();
        assert_eq!(protocol, protocols.first().copied(), "the subprotocol that was asked for");
        socket
    }
}

pub(crate) struct Producer {
    session: Session,
}

impl Producer {
    pub(crate) async fn ask(&mut self, code: u32, payload: &[u8]) -> Vec<u8> {
        let request = Request { code, payload: payload.into() };
        let answer = self.session.answer::<Sim>(request, &mut 0_usize).await.concat();
        let frame = ResponseFrame::decode(&answer).unwrap().0;
        assert_eq!(frame.status, 0);
        frame.payload.to_vec()
    }

    /// Appends a batch to a partition.
    pub(crate) async fn send(&mut self, partition: u32, payloads: &[&[u8]]) {
        let message = |payload| RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
        let messages: Vec<_> = payloads.iter().map(|payload| message(*payload)).collect();
        let (zero, to) = (WireIdentifier::numeric(0), WirePartitioning::PartitionId(partition));
        let mut request = BytesMut::new();
        SendMessagesEncoder::encode(&mut request, &zero, &zero, &to, &messages);
        self.ask(SEND_MESSAGES_CODE, &request).await;
    }

    /// Appends a batch of messages whose payloads are their offsets, to partition 0.
    pub(crate) async fn send_numbered(&mut self, offsets: std::ops::Range<u64>) {
        let payloads: Vec<_> = offsets.map(|offset| offset.to_string()).collect();
        let payloads: Vec<_> = payloads.iter().map(String::as_bytes).collect();
        self.send(0, &payloads).await;
    }
}

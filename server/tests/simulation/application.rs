//! Echo with two queue hops in the simulation, where any read or write may be short, and the application is a task.

use std::rc::Rc;

use bytes::Bytes;
use owned_io::{ByteStream, Executor, JoinHandle, MemoryAccount, MemoryBudget, Pool, PoolConfig};
use owned_io_server::config::{Engine, Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::service::application::{OUT_MESSAGES_MAX, QUEUE_MESSAGES_MAX};
use owned_io_server::service::http;
use owned_io_sim::{Config, Sim, SimStream, pipe, seeds};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, connect};
use owned_io_websocket::{CloseCode, CloseFrame, Fragment, MessageKind};

/// The number of seeds without `SIM_SEEDS`.
const SEEDS: u64 = 50;

/// A worker, and the registry of its connections.
#[derive(Clone)]
struct Worker {
    resources: Rc<Resources>,
    connections: Connections,
}

/// A client, and what serves it.
struct Client {
    socket: WebSocket<SimStream>,
    account: MemoryAccount,
    serving: JoinHandle<Result<(), Error>>,
}

impl Worker {
    fn new(engine: Engine) -> Self {
        let memory = Memory::divide(64 << 20, 100).expect("enough memory");
        let sockets = WebSockets { engine, ..WebSockets::default() };
        let resources = Resources::new(memory, None, sockets, Limits::default());
        let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
        Self { resources: Rc::new(resources), connections }
    }

    async fn client(&self) -> Client {
        let (client, server) = pipe();
        let connection = self.connections.add(server.shutdown_handle());
        let account = connection.account().clone();
        let ctx = Context { connection, worker: Rc::clone(&self.resources) };
        let serving = Sim::spawn(async move { http::serve::<Sim>(server, &ctx).await });
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 28));
        let offer = Offer { host: "localhost", path: "/echo?hops=app", ..Offer::default() };
        let config = owned_io_websocket::Config::default();
        let (socket, _) = connect::<Sim, _>(client, &buffers, config, &offer).await.unwrap();
        Client { socket, account, serving }
    }

    /// Nothing of a client is left.
    fn assert_idle(&self) {
        assert_eq!(self.resources.budget.common_bytes_held(), 0);
        assert_eq!(self.resources.pool.leased(), 0);
        assert_eq!(self.resources.application.queue_len(), 0);
    }
}

impl Client {
    /// Sends numbered messages in one write.
    async fn send(&mut self, count: usize) {
        for n in 0..count {
            self.socket.outgoing.write(Message::Text(&format!("message {n}"))).unwrap();
        }
        self.socket.outgoing.flush().await.unwrap();
    }

    /// Asserts that they come back, in order.
    async fn receive(&mut self, count: usize) {
        for n in 0..count {
            let message = self.socket.incoming.receive().await.unwrap();
            assert!(message == Some(Message::Text(&format!("message {n}"))), "message {n}");
        }
    }

    async fn close(mut self) {
        let normal = CloseFrame { code: Some(CloseCode::NORMAL), reason: "" };
        self.socket.close(normal).await.unwrap();
        self.serving.await.unwrap().unwrap();
        assert_eq!(self.account.held_bytes(), 0);
    }
}

fn simulate(case: impl AsyncFn(Worker)) {
    for seed in seeds(SEEDS) {
        for &engine in Engine::ALL {
            println!("{engine:?}, seed {seed}"); // shown when it fails
            Sim::block_on(Config::with_seed(seed), case(Worker::new(engine))).unwrap();
        }
    }
}

#[test]
fn messages_come_back_as_they_were_sent() {
    simulate(async |worker| {
        let mut client = worker.client().await;
        let long = Bytes::from(vec![7; 100_000]);
        for message in [Message::Text("héllo"), Message::Binary(b""), Message::Binary(&[9; 5_000])]
        {
            client.socket.outgoing.write(message).unwrap();
        }
        let whole = Fragment::Whole(MessageKind::Binary);
        client.socket.outgoing.write_bytes(whole, long.clone()).unwrap();
        client.socket.outgoing.flush().await.unwrap();
        for expected in [
            Message::Text("héllo"),
            Message::Binary(b""),
            Message::Binary(&[9; 5_000]),
            Message::Binary(&long),
        ] {
            assert!(client.socket.incoming.receive().await.unwrap() == Some(expected));
        }
        client.close().await;
        worker.assert_idle();
    });
}

/// More messages than a connection may have with the application, and than the queues have room for.
#[test]
fn many_messages_of_many_connections_keep_their_order() {
    const EACH: usize = 3 * OUT_MESSAGES_MAX;
    const CLIENTS: usize = 2 * QUEUE_MESSAGES_MAX.get() / EACH;
    simulate(async |worker| {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(worker.client().await);
        }
        let exchanging = clients.into_iter().map(|mut client| {
            Sim::spawn(async move {
                client.send(EACH).await;
                client.receive(EACH).await;
                client.close().await;
            })
        });
        for client in exchanging.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        worker.assert_idle();
    });
}

#[test]
fn a_connection_that_ends_meanwhile_takes_nothing_from_others() {
    simulate(async |worker| {
        let mut neighbour = worker.client().await;
        for _ in 0..5 {
            let mut gone = worker.client().await;
            neighbour.send(50).await;
            gone.send(50).await;
            drop(gone.socket);
            let _ = gone.serving.await.unwrap(); // an error: it was cut off
            assert_eq!(gone.account.held_bytes(), 0);
            neighbour.receive(50).await;
        }
        // The task of a connection is dropped while its messages are with the application.
        let cut = worker.client().await;
        let Client { mut socket, account, serving } = cut;
        socket.outgoing.write(Message::Text("lost")).unwrap();
        socket.outgoing.flush().await.unwrap();
        worker.connections.reset_all();
        let _ = serving.await.unwrap();
        assert_eq!(account.held_bytes(), 0);
    });
}

#[test]
fn the_application_ends_behind_what_was_passed() {
    simulate(async |worker| {
        let mut client = worker.client().await;
        client.send(10).await;
        client.receive(10).await;
        worker.resources.application.end::<Sim>().await;
        worker.resources.application.end::<Sim>().await; // a second time, nothing happens

        // What is passed afterwards, and who comes afterwards, is told to try again.
        client.send(1).await;
        let mut later = worker.client().await;
        for client in [&mut client, &mut later] {
            assert!(client.socket.incoming.receive().await.is_ok_and(|message| message.is_none()));
            let close = client.socket.incoming.peer_close().unwrap();
            assert_eq!(close.code, Some(CloseCode::TRY_AGAIN));
        }
        for client in [client, later] {
            client.serving.await.unwrap().unwrap_err();
            assert_eq!(client.account.held_bytes(), 0);
        }
        worker.assert_idle();
    });
}

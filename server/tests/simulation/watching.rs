//! The watch, in the simulation: connections that are idle, or whose peers take nothing.

use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use iggy_binary_protocol::codes::{GET_STREAMS_CODE, LOGIN_USER_CODE};
use iggy_binary_protocol::requests::users::LoginUserRequest;
use iggy_binary_protocol::{RequestFrame, WireEncode, WireName};
use owned_io::backend::{Duplex, Endpoint};
use owned_io::{
    BufResult, ByteStream, Clock, Executor, IoBuf, IoVec, JoinHandle, OwnedRead, OwnedReadExt,
    OwnedWrite, OwnedWriteExt, ShutdownHandle, select,
};
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::iggy::broker::Broker;
use owned_io_server::iggy::storage::MemoryStorage;
use owned_io_server::iggy::workers::{Hub, Iggy};
use owned_io_server::iggy::{Credentials, Environment, Node};
use owned_io_server::memory::Memory;
use owned_io_server::service::{echo, iggy, sink, source};
use owned_io_server::ticker::Ticker;
use owned_io_server::watch::watch;
use owned_io_sim::{Config, Sim, SimStream, SimWriteHalf, pipe, seeds};

const SEEDS: u64 = 100;

const LIMITS: fn() -> Limits = || Limits {
    message_time_max: Duration::from_secs(4),
    tcp_idle_time_max: Some(Duration::from_secs(8)),
    ..Limits::default()
};

fn simulate(case: impl AsyncFn()) {
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

/// A client of a watched echo, and the task of the echo.
fn echoing(limits: Limits) -> (SimStream, JoinHandle<io::Result<()>>) {
    let (client, server, ctx) = watched(limits, None);
    let serving = Sim::spawn(async move { echo::serve(server, &ctx).await });
    (client, serving)
}

/// Both ends of a watched connection.
fn watched(limits: Limits, iggy: Option<Rc<Iggy>>) -> (SimStream, SimStream, Context) {
    let (client, server) = pipe();
    let memory = Memory::divide(64 << 20, 100).unwrap();
    let mut resources = Resources::new(memory, None, WebSockets::default(), limits);
    resources.iggy = iggy;
    let worker = Rc::new(resources);
    let connections = Connections::new(DrainSignal::default(), worker.budget.clone());
    drop(Sim::spawn(watch::<Sim>(connections.clone(), limits, Ticker::default())));
    let connection = connections.add(server.shutdown_handle());
    (client, server, Context { connection, worker })
}

#[test]
fn idle_connections_are_closed_after_their_limit_and_not_before() {
    simulate(async || {
        let (mut client, serving) = echoing(LIMITS());
        for _ in 0..5 {
            client.write_all("x").await.into_result().unwrap();
            let echo = client.read_exact(Vec::with_capacity(1), 1).await;
            assert_eq!(echo.into_result().unwrap().1, b"x");
            Sim::sleep(Duration::from_millis(7_900)).await;
        }
        client.write_all("x").await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
        let start = Sim::now();
        assert_eq!(client.read(Vec::with_capacity(1)).await.into_result().unwrap().0, 0);
        let took = (Sim::now() - start).as_secs_f64();
        assert!((8.0..10.1).contains(&took), "{took}");
        assert_eq!(serving.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

/// Whatever the other limit is.
#[test]
fn idle_connections_are_closed_within_a_third_of_their_limit() {
    for (message, idle) in [(4, 5), (5, 4), (30, 31), (7, 100), (30, 1)] {
        let (message_time_max, tcp_idle_time_max) =
            (Duration::from_secs(message), Some(Duration::from_secs(idle)));
        simulate(async || {
            let limits = Limits { message_time_max, tcp_idle_time_max, ..LIMITS() };
            let (mut client, _serving) = echoing(limits);
            client.write_all("x").await.into_result().unwrap();
            client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
            let start = Sim::now();
            assert_eq!(client.read(Vec::with_capacity(1)).await.into_result().unwrap().0, 0);
            let took = (Sim::now() - start).as_secs_f64() / idle as f64;
            assert!(
                (0.99..4.0 / 3.0).contains(&took),
                "{took} of {idle} s, with {message} s for a message"
            );
        });
    }
}

#[test]
fn connections_whose_peers_take_nothing_are_reset_after_their_limit_and_not_before() {
    simulate(async || {
        let (client, serving) = echoing(LIMITS());
        let (mut read, mut write) = client.into_split();
        let writing = Sim::spawn(async move {
            loop {
                let BufResult(result, _) = write.write_all(vec![7; 10_000]).await;
                if let Err(error) = result {
                    return error.kind();
                }
            }
        });
        for _ in 0..5 {
            // A small read now and then is enough, if it makes room.
            Sim::sleep(Duration::from_millis(3_900)).await;
            read.read_exact(Vec::with_capacity(100_000), 100_000).await.into_result().unwrap();
        }
        let start = Sim::now();
        let error = serving.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let took = (Sim::now() - start).as_secs_f64();
        assert!(took < 5.2, "{took}");
        let told = writing.await.unwrap();
        assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&told), "{told}");
        // Reads what has arrived, up to the reset, unless the writer has received that.
        while read.read(vec![0; 64 * 1024]).await.into_result().is_ok_and(|(n, _)| n > 0) {}
    });
}

#[test]
fn without_a_limit_no_connection_is_closed() {
    simulate(async || {
        let (mut client, _serving) = echoing(Limits { tcp_idle_time_max: None, ..LIMITS() });
        Sim::sleep(Duration::from_secs(1_000)).await;
        client.write_all("x").await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
    });
}

/// A stream whose end is preceded by bytes, as with TLS. Here they are more than the kernel takes.
struct LongEnd(SimWriteHalf);

impl OwnedWrite for LongEnd {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.0.write(buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        self.0.write_vectored(bufs).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.0.write_all(vec![7; 1 << 20]).await.into_result()?;
        self.0.shutdown().await
    }
}

impl Endpoint for LongEnd {
    fn shutdown_handle(&self) -> ShutdownHandle {
        self.0.shutdown_handle()
    }
}

/// Also if connections may be idle for ever.
#[test]
fn peers_that_do_not_take_the_end_are_reset_after_the_limit_of_a_write() {
    for service in 0..4 {
        simulate(async || {
            let limits = Limits { tcp_idle_time_max: None, ..LIMITS() };
            let hub = Arc::new(Hub::new(Credentials::new("iggy".into(), "secret".into()).unwrap()));
            let iggy = Rc::new(Iggy::without_broker(hub));
            let (client, server, ctx) = watched(limits, Some(iggy));
            let (read, write) = server.into_split();
            let server = Duplex::new(read, LongEnd(write));
            let serving = Sim::spawn(async move {
                match service {
                    0 => echo::serve(server, &ctx).await,
                    1 => sink::serve::<Sim>(server, &ctx).await,
                    2 => source::serve::<Sim>(server, &ctx).await,
                    _ => iggy::serve::<Sim>(server, &ctx).await,
                }
            });
            let (_read, mut write) = client.into_split();
            write.shutdown().await.unwrap();
            let start = Sim::now();
            let ended = select(pin!(serving), Sim::sleep(Duration::from_secs(60))).await.first;
            let ended = ended.expect("it ends").unwrap();
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::TimedOut);
            let took = (Sim::now() - start).as_secs_f64();
            assert!((3.9..5.4).contains(&took), "{took}");
        });
    }
}

/// A client whose request waits for the server, here for a worker that opens its log, has done nothing wrong.
#[test]
fn a_request_that_waits_for_the_server_is_answered_however_long_that_takes() {
    let frame = |code, payload: &[u8]| {
        let mut frame = BytesMut::new();
        RequestFrame::encode(code, payload, &mut frame).unwrap();
        frame.to_vec()
    };
    let (username, password) = (WireName::new("iggy").unwrap(), "secret".to_owned());
    let login = LoginUserRequest { username, password, version: None, context: None };
    let requests =
        [frame(LOGIN_USER_CODE, &login.to_bytes()), frame(GET_STREAMS_CODE, &[])].concat();
    simulate(async || {
        let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
        let hub = Arc::new(Hub::new(credentials));
        let waiting = Rc::new(Iggy::without_broker(Arc::clone(&hub)));
        let (mut client, server, ctx) = watched(LIMITS(), Some(waiting));
        let serving = Sim::spawn(async move { iggy::serve::<Sim>(server, &ctx).await });
        client.write_all(requests.clone()).await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(12), 12).await.into_result().unwrap();
        Sim::sleep(Duration::from_secs(100)).await;
        let environment = Environment::of::<Sim>();
        let storage = Box::new(MemoryStorage::new(1 << 20, environment.now));
        let broker = Broker::new(storage, hub.clients().clone(), environment, Node::default());
        let _opened = Iggy::with_broker::<Sim>(hub, broker);
        let answer = client.read_exact(Vec::with_capacity(8), 8).await;
        assert_eq!(answer.into_result().unwrap().1, [0; 8]);
        // Then it is idle.
        assert_eq!(client.read(Vec::with_capacity(1)).await.into_result().unwrap().0, 0);
        assert_eq!(serving.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

//! Fairness in the simulation: a client with one request at a time is answered soon, whatever fifty neighbours
//! make the server do.
//!
//! Time is virtual. It advances by the work that each poll consumes ([`owned_io::coop`]), so an answer is late
//! only if too much work was done before it, also when this machine is busy. `SIM_SEEDS` sets the number of seeds.

use std::error::Error;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use owned_io::{
    ByteStream, Clock, ConnectOptions, Executor, ListenOptions, MemoryBudget, OwnedRead,
    OwnedWriteExt, Pool, PoolConfig, StopSignal, Tcp,
};
use owned_io_server::accept::accept_loop;
use owned_io_server::config::{Deflate, Limits, WebSockets};
use owned_io_server::connection_limit::ConnectionLimit;
use owned_io_server::connections::{ConnectionHandle, Connections};
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::iggy::broker::Broker;
use owned_io_server::iggy::storage::MemoryStorage;
use owned_io_server::iggy::workers::{Hub, Iggy};
use owned_io_server::iggy::{Credentials, Environment, Node};
use owned_io_server::memory::Memory;
use owned_io_server::service::{http, sink, source};
use owned_io_sim::{Config, Host, Sim, SimStream, World, seeds};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Message, connect};

/// The number of seeds without `SIM_SEEDS`.
const SEEDS: u64 = 1;

const NEIGHBOURS: usize = 50;

/// Echoes of the client; and as many requests of `/health`.
const REQUESTS: usize = 5;

/// From an answer to the next request. A longer pause would find the server just as busy, and make the test
/// longer.
const PAUSE: Duration = Duration::from_millis(10);

/// After this time all neighbours are at work.
const SETTLED: Duration = Duration::from_millis(100);

/// The most that the median answer may take: twice what is promised. The simulator delays one operation in four by a
/// round of fifty polls, 3 to 5 ms, and looks for arrivals only between rounds.
const MEDIAN_MAX: Duration = Duration::from_millis(20);

/// The most that any answer may take, as promised.
const ANSWER_MAX: Duration = Duration::from_millis(40);

/// The most that any answer of `/health` may take, with the connect, as promised.
const HEALTH_MAX: Duration = Duration::from_millis(50);

/// Socket buffers as long as the kernel's become on a fast link. Each holds the work of many polls.
const BUFFER_BYTES: u32 = 256 * 1024;

/// With this number the server's receive buffers have their greatest length.
const CONNECTIONS_MAX: usize = 1_000;

const HTTP: u16 = 80;
const SINK: u16 = 81;
const SOURCE: u16 = 82;

#[test]
fn pings_at_full_speed_leave_others_their_turn() {
    let pings = repeated(b"\x89\x80\0\0\0\0");
    while_neighbours_flood(HTTP, move |stream| {
        send(stream, Some("/echo"), pings.clone(), usize::MAX)
    });
}

#[test]
fn empty_messages_at_full_speed_leave_others_their_turn() {
    let messages = repeated(b"\x82\x80\0\0\0\0");
    while_neighbours_flood(HTTP, move |stream| {
        send(stream, Some("/echo"), messages.clone(), usize::MAX)
    });
}

#[test]
fn fragments_at_full_speed_leave_others_their_turn() {
    let begin = b"\x02\x80\0\0\0\0".to_vec();
    let fragments = repeated(b"\x00\x80\0\0\0\0");
    while_neighbours_flood(HTTP, move |stream| {
        let first = [begin.clone(), fragments.clone()].concat();
        send_first(stream, Some("/echo"), first, fragments.clone(), usize::MAX)
    });
}

#[test]
fn output_without_end_leaves_others_their_turn() {
    let path = "/source?bytes=0&batch=1000000";
    while_neighbours_flood(HTTP, move |stream| send(stream, Some(path), Vec::new(), 0));
}

#[test]
fn messages_that_inflate_leave_others_their_turn() {
    let messages = repeated(&inflating_frame());
    while_neighbours_flood(HTTP, move |stream| {
        send(stream, Some("/sink"), messages.clone(), usize::MAX)
    });
}

#[test]
fn echoes_that_are_deflated_leave_others_their_turn() {
    let messages = repeated(&inflating_frame());
    while_neighbours_flood(HTTP, move |stream| {
        send(stream, Some("/echo"), messages.clone(), usize::MAX)
    });
}

#[test]
fn empty_messages_over_tcp_leave_others_their_turn() {
    let messages = repeated(&0_u32.to_le_bytes());
    while_neighbours_flood(SINK, move |stream| send(stream, None, messages.clone(), usize::MAX));
}

#[test]
fn output_over_tcp_leaves_others_their_turn() {
    let request = [u32::MAX, 0, 1_000_000].map(u32::to_le_bytes).concat();
    while_neighbours_flood(SOURCE, move |stream| send(stream, None, request.clone(), 1));
}

#[test]
fn requests_over_tcp_leave_others_their_turn() {
    let requests = repeated(&[1_u32, 0, 1].map(u32::to_le_bytes).concat());
    while_neighbours_flood(SOURCE, move |stream| send(stream, None, requests.clone(), usize::MAX));
}

#[test]
fn lines_of_events_leave_others_their_turn() {
    for line in ["1\n", "\n", "\r\n", "{\"a line\": \"of usual length\"}\n"] {
        let requests = events(&line.repeat(60_000 / line.len()));
        while_neighbours_flood(HTTP, move |stream| {
            send(stream, None, requests.clone(), usize::MAX)
        });
    }
}

#[test]
fn requests_with_an_event_leave_others_their_turn() {
    let requests = repeated(&events("{}"));
    while_neighbours_flood(HTTP, move |stream| send(stream, None, requests.clone(), usize::MAX));
}

/// A request to append lines to a topic that is not there: the server finds out when it has read all of them.
fn events(lines: &str) -> Vec<u8> {
    let length = lines.len();
    // iggy:secret
    let request = format!(
        "POST /events/s/t HTTP/1.1\r\nHost: server\r\nAuthorization: Basic aWdneTpzZWNyZXQ=\r\n\
         Content-Type: application/x-ndjson\r\nContent-Length: {length}\r\n\r\n{lines}"
    );
    request.into_bytes()
}

/// A message of 79 bytes that inflates to 64 KiB of zeros.
fn inflating_frame() -> Vec<u8> {
    let mut payload = vec![0; 79];
    payload[..14].copy_from_slice(b"\xec\xc1\x01\x01\0\0\0\x80\x90\xfe\xaf\xee\x08\x0a");
    payload[77] = 0x6a;
    // One frame, binary and compressed. A mask of zeros changes nothing.
    [&[0xc2, 0x80 | payload.len() as u8, 0, 0, 0, 0][..], &payload].concat()
}

/// The frames that a client writes at once.
fn repeated(frame: &[u8]) -> Vec<u8> {
    frame.repeat(64 * 1024 / frame.len())
}

/// Asserts that a client and `/health` are answered in time while neighbours each run `neighbour`.
fn while_neighbours_flood<Fut>(port: u16, neighbour: impl Fn(SimStream) -> Fut)
where
    Fut: Future<Output = io::Result<()>> + 'static,
{
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), simulate(port, &neighbour)).unwrap().unwrap();
    }
}

async fn simulate<Fut>(port: u16, neighbour: &impl Fn(SimStream) -> Fut) -> io::Result<()>
where
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let world = World::current();
    world.main_host().work_takes_no_time(); // as if each client had a core of its own
    let server = world.host("server");
    server.start(serve_all);
    Sim::sleep(Duration::from_millis(1)).await;
    for _ in 0..NEIGHBOURS {
        let mut options = ConnectOptions::new(server.at(port));
        options.recv_buffer_bytes = Some(BUFFER_BYTES);
        options.send_buffer_bytes = Some(BUFFER_BYTES);
        let neighbour = neighbour(Sim::connect(options).await?);
        Sim::spawn_detached(async move {
            let ended = neighbour.await;
            panic!("a neighbour has stopped: {ended:?}");
        });
    }
    Sim::sleep(SETTLED).await;
    let asked = Sim::spawn(ask_for_health(server.clone()));
    let echoed = echo_now_and_then(&server).await?;
    check("echo", echoed, MEDIAN_MAX, ANSWER_MAX);
    check("/health", asked.await??, HEALTH_MAX, HEALTH_MAX);
    Ok(())
}

fn check(what: &str, mut took: Vec<Duration>, median_max: Duration, max: Duration) {
    took.sort();
    let (median, last) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{what}: half within {median:?}, all within {last:?}");
    assert!(median <= median_max, "{what}: half took more than {median:?}");
    assert!(last <= max, "{what}: one took {last:?}");
}

/// Echoes one request after the other. Returns how long each took.
async fn echo_now_and_then(server: &Host) -> io::Result<Vec<Duration>> {
    let stream = Sim::connect(ConnectOptions::new(server.at(HTTP))).await?;
    let offer = Offer { host: "server", path: "/echo", ..Offer::default() };
    let config = owned_io_websocket::Config::default();
    let connected = connect::<Sim, _>(stream, &buffers(), config, &offer).await;
    let mut socket = connected.map_err(other)?.0;
    let mut took = Vec::new();
    for _ in 0..REQUESTS {
        Sim::sleep(PAUSE).await;
        let asked = Sim::now();
        socket.outgoing.send(Message::Text("is anybody there")).await.map_err(other)?;
        let answer = socket.incoming.receive().await.map_err(other)?;
        assert_eq!(answer, Some(Message::Text("is anybody there")));
        took.push(Sim::now() - asked);
    }
    Ok(took)
}

/// Asks for `/health` again and again. Returns how long each answer took, with its connect.
async fn ask_for_health(server: Host) -> io::Result<Vec<Duration>> {
    let mut took = Vec::new();
    for _ in 0..REQUESTS {
        Sim::sleep(PAUSE).await;
        let asked = Sim::now();
        let mut stream = Sim::connect(ConnectOptions::new(server.at(HTTP))).await?;
        stream.write_all("GET /health HTTP/1.1\r\nHost: server\r\n\r\n").await.into_result()?;
        let head = read_head(&mut stream).await?;
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", head.escape_ascii());
        took.push(Sim::now() - asked);
    }
    Ok(took)
}

/// Upgrades to `path` if there is one, sends `bytes` `times` times, and reads whatever arrives.
async fn send(
    stream: SimStream,
    path: Option<&'static str>,
    bytes: Vec<u8>,
    times: usize,
) -> io::Result<()> {
    send_first(stream, path, Vec::new(), bytes, times).await
}

/// As [`send`], but sends `first` before the others.
async fn send_first(
    mut stream: SimStream,
    path: Option<&'static str>,
    first: Vec<u8>,
    mut bytes: Vec<u8>,
    times: usize,
) -> io::Result<()> {
    if let Some(path) = path {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
        );
        stream.write_all(request).await.into_result()?;
        let head = read_head(&mut stream).await?;
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", head.escape_ascii());
    }
    let (mut read, mut write) = stream.into_split();
    let reading = Sim::spawn(async move {
        let mut buf = Vec::with_capacity(BUFFER_BYTES as usize);
        loop {
            let n;
            (n, buf) = read.read(buf).await.into_result()?;
            if n == 0 {
                return Err::<(), _>(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
    });
    write.write_all(first).await.into_result()?;
    for _ in 0..times {
        ((), bytes) = write.write_all(bytes).await.into_result()?;
    }
    reading.await?
}

/// Reads until the head of a response is complete. The bytes may contain more than the head.
async fn read_head(stream: &mut SimStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let (n, read) = stream.read(Vec::with_capacity(1024)).await.into_result()?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&read);
    }
    Ok(head)
}

/// Runs the server's accept loops.
async fn serve_all() -> io::Result<()> {
    let memory = Memory::divide(1 << 30, CONNECTIONS_MAX).expect("enough memory");
    let sockets = WebSockets { deflate: Deflate::Shared, ..WebSockets::default() };
    let mut worker = Resources::new(memory, None, sockets, Limits::default());
    worker.iggy = Some(Rc::new(iggy()));
    let worker = Rc::new(worker);
    drop(Sim::spawn(serve(SINK, Rc::clone(&worker), sink::serve::<Sim>)));
    drop(Sim::spawn(serve(SOURCE, Rc::clone(&worker), source::serve::<Sim>)));
    serve(HTTP, worker, http::serve::<Sim>).await
}

fn iggy() -> Iggy {
    let credentials = Credentials::new("iggy".into(), "secret".into()).expect("they are short");
    let hub = Arc::new(Hub::new(credentials));
    let environment = Environment::of::<Sim>();
    let storage = Box::new(MemoryStorage::new(0, environment.now));
    let broker = Broker::new(storage, hub.clients().clone(), environment, Node::default());
    Iggy::with_broker::<Sim>(hub, broker)
}

async fn serve<E: Error + 'static>(
    port: u16,
    worker: Rc<Resources>,
    service: impl AsyncFn(SimStream, &Context) -> Result<(), E> + 'static,
) -> io::Result<()> {
    let mut options = ListenOptions::new(([0, 0, 0, 0], port).into());
    options.recv_buffer_bytes = Some(BUFFER_BYTES);
    options.send_buffer_bytes = Some(BUFFER_BYTES);
    let listener = Sim::listen(&Sim::bind(options)?)?;
    let (limit, stop) = (ConnectionLimit::new(CONNECTIONS_MAX), StopSignal::new());
    let connections = Connections::new(DrainSignal::default(), worker.budget.clone());
    let serve = async move |stream, connection: ConnectionHandle| {
        service(stream, &Context { connection, worker: Rc::clone(&worker) }).await
    };
    accept_loop::<Sim, _>(listener, limit, connections, &stop, serve).await;
    Ok(())
}

/// The buffers of the client, as long as the server's.
fn buffers() -> Buffers {
    let mut config = PoolConfig::default();
    config.buf_bytes = 64 * 1024 - PoolConfig::SHORT_OF_PAGE_BYTES;
    Buffers::new(Pool::new(config), MemoryBudget::new(1 << 28))
}

fn other(error: impl ToString) -> io::Error {
    io::Error::other(error.to_string())
}

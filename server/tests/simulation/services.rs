//! The services in the simulation, where any read or write may be short. The answers are the same for every seed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use owned_io::{
    BufResult, ByteStream, Clock, Executor, JoinHandle, MemoryBudget, OwnedRead, OwnedReadExt,
    OwnedWriteExt, Pool, PoolConfig, Random, select,
};
use owned_io_server::config::{Deflate, Engine, Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::service::{echo, http, sink, source};
use owned_io_sim::{Config, Sim, SimStream, pipe, seeds};
use owned_io_websocket::handshake::{Key, Offer, Refusal};
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, connect};
use owned_io_websocket::{
    CloseCode, CloseFrame, Fragment, MessageKind, ProtocolError as Protocol, Timeout,
};

/// The number of seeds without `SIM_SEEDS`.
const SEEDS: u64 = 100;

fn simulate(case: impl AsyncFn()) {
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

/// As [`simulate`], with each engine and each way to compress that it has. The engines of
/// tungstenite run fewer seeds.
fn simulate_each_engine(case: impl AsyncFn(Engine, Deflate)) {
    simulate_each_engine_by(1, case);
}

/// The same with one seed in `step_of_seeds`, for cases that move many bytes.
fn simulate_each_engine_by(step_of_seeds: usize, case: impl AsyncFn(Engine, Deflate)) {
    for &engine in Engine::ALL {
        let (step, ways) = match engine {
            Engine::Native => (1, &[Deflate::Off, Deflate::Shared, Deflate::Takeover][..]),
            #[cfg(feature = "tungstenite")]
            _ => (4, &[Deflate::Off][..]),
        };
        for seed in seeds(SEEDS).step_by(step * step_of_seeds) {
            for &deflate in ways {
                println!("{engine:?}, {deflate:?}, seed {seed}"); // shown when it fails
                Sim::block_on(Config::with_seed(seed), case(engine, deflate)).unwrap();
            }
        }
    }
}

#[test]
fn echo_gives_back_what_it_gets() {
    simulate(async || {
        let (client, server) = pipe();
        let ctx = context(&server, resources(WebSockets::default(), Limits::default())).0;
        let serving = Sim::spawn(async move { echo::serve(server, &ctx).await });
        let sent: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let (mut read, mut write) = client.into_split();
        drop(Sim::spawn({
            let sent = sent.clone();
            async move {
                write.write_all(sent).await.into_result().unwrap();
                owned_io::OwnedWrite::shutdown(&mut write).await.unwrap();
            }
        }));
        let ((), received) = read
            .read_exact(Vec::with_capacity(sent.len()), sent.len())
            .await
            .into_result()
            .unwrap();
        assert!(received == sent);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn sink_answers_each_message_and_times_out_an_incomplete_one() {
    simulate(async || {
        let limits = Limits { message_bytes_max: 5_000, ..Limits::default() };
        let (mut client, server) = pipe();
        let ctx = context(&server, resources(WebSockets::default(), limits)).0;
        let pool = ctx.worker.pool.clone();
        let serving = Sim::spawn(async move { sink::serve::<Sim>(server, &ctx).await });
        for len in [0_u32, 3, 5_000, 100, 4_999] {
            client.write_all(len.to_le_bytes().to_vec()).await.into_result().unwrap();
            client.write_all(vec![1; len as usize]).await.into_result().unwrap();
            let answer = client.read_exact(Vec::with_capacity(8), 8).await.into_result().unwrap().1;
            assert_eq!(answer, u64::from(len).to_le_bytes());
        }
        // Half a message times out.
        client.write_all(vec![200, 0, 0, 0, 1, 2, 3]).await.into_result().unwrap();
        let BufResult(result, _) = client.read_exact(Vec::with_capacity(1), 1).await;
        assert!(result.is_err());
        let ended = serving.await.unwrap().unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::TimedOut);
        assert_eq!(pool.leased(), 0);
    });
}

#[test]
fn source_sends_what_is_asked_for() {
    simulate(async || {
        let (mut client, server) = pipe();
        let ctx = context(&server, resources(WebSockets::default(), Limits::default())).0;
        let serving = Sim::spawn(async move { source::serve::<Sim>(server, &ctx).await });
        for (messages, bytes, batch) in [(7_u32, 300_u32, 2_u32), (1, 100_000, 1), (50, 0, 64)] {
            let request = [messages, bytes, batch].map(u32::to_le_bytes).concat();
            client.write_all(request).await.into_result().unwrap();
            for n in 0..messages {
                let len = 4 + bytes as usize;
                let read = client.read_exact(Vec::with_capacity(len), len).await;
                let message = read.into_result().unwrap().1;
                assert_eq!(message[..4], bytes.to_le_bytes());
                let expected = |i: usize| (n as usize + i) as u8;
                assert!(message[4..].iter().enumerate().all(|(i, byte)| *byte == expected(i)));
            }
        }
        drop(client);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn source_reserves_what_it_copies_until_the_request_is_answered() {
    simulate(async || {
        let (mut client, server) = pipe();
        let ctx = context(&server, resources(WebSockets::default(), Limits::default())).0;
        let account = ctx.connection.account().clone();
        let serving = Sim::spawn(async move { source::serve::<Sim>(server, &ctx).await });
        let long = [50_000_u32, 10, u32::MAX].map(u32::to_le_bytes).concat();
        let empty = [1_u32, 0, 1].map(u32::to_le_bytes).concat();
        client.write_all(long).await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(14), 14).await.into_result().unwrap();
        assert_eq!(account.held_bytes(), 60 * 1024);
        let rest = 49_999 * 14;
        client.read_exact(Vec::with_capacity(rest), rest).await.into_result().unwrap();
        client.write_all(empty).await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(4), 4).await.into_result().unwrap();
        assert_eq!(account.held_bytes(), 0);
        drop(client);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn websocket_echo_gives_each_message_back() {
    simulate_each_engine(async |engine, deflate| {
        let (mut socket, serving) = upgrade("/echo", engine, deflate, Limits::default()).await;
        let long = "é".repeat(50_000);
        let messages = [Message::Text(""), Message::Binary(&[0; 300]), Message::Text(&long)];
        for message in messages {
            socket.outgoing.write(message).unwrap();
        }
        socket.outgoing.flush().await.unwrap();
        for message in messages {
            assert_eq!(socket.incoming.receive().await.unwrap(), Some(message));
        }
        socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn websocket_sink_answers_each_message_by_its_length() {
    simulate_each_engine(async |engine, deflate| {
        let (mut socket, serving) = upgrade("/sink", engine, deflate, Limits::default()).await;
        let lens = [0_usize, 3, 70_000, 125, 126];
        for len in lens {
            socket.outgoing.write(Message::Binary(&vec![1; len])).unwrap();
        }
        socket.outgoing.flush().await.unwrap();
        for len in lens {
            let answer = (len as u64).to_le_bytes();
            let received = socket.incoming.receive().await.unwrap();
            assert_eq!(received, Some(Message::Binary(&answer)));
        }
        socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn websocket_source_sends_what_is_asked_for_and_closes() {
    simulate_each_engine(async |engine, deflate| {
        for (messages, bytes, batch) in [(7_u64, 300_usize, 2_u64), (3, 100_000, 5), (600, 0, 64)] {
            let path = format!("/source?messages={messages}&bytes={bytes}&batch={batch}");
            let (mut socket, serving) = upgrade(&path, engine, deflate, Limits::default()).await;
            for n in 0..messages as usize {
                let expected: Vec<u8> = (0..bytes).map(|i| (n + i) as u8).collect();
                let received = socket.incoming.receive().await.unwrap();
                assert_eq!(received, Some(Message::Binary(&expected)));
            }
            assert_eq!(socket.incoming.receive().await.unwrap(), None);
            serving.await.unwrap().unwrap();
        }
    });
}

#[test]
fn websocket_source_without_a_query_answers_each_request() {
    simulate_each_engine(async |engine, deflate| {
        let (mut socket, serving) = upgrade("/source", engine, deflate, Limits::default()).await;
        let requests = [[7_u32, 300, 2], [1, 100_000, 1], [0, 5, 1], [50, 0, 64]];
        for request in requests {
            let request = request.map(u32::to_le_bytes);
            socket.outgoing.write(Message::Binary(request.as_flattened())).unwrap();
        }
        socket.outgoing.flush().await.unwrap();
        for [messages, bytes, _] in requests {
            for n in 0..messages {
                let expected: Vec<u8> = (0..bytes).map(|i| (n + i) as u8).collect();
                let received = socket.incoming.receive().await.unwrap();
                assert_eq!(received, Some(Message::Binary(&expected)));
            }
        }
        socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn a_malformed_request_for_messages_closes_the_websocket() {
    simulate_each_engine(async |engine, deflate| {
        let limits = Limits { message_bytes_max: 1_000, ..Limits::default() };
        let request = |fields: [u32; 3]| fields.map(u32::to_le_bytes).concat();
        for (wrong, named) in [
            (request([1, 1, 1])[..11].to_vec(), "three u32"),
            ([request([1, 1, 1]), vec![0]].concat(), "three u32"),
            (request([1, 1_001, 1]), "message-bytes-max"),
            (request([1, 1, 0]), "batch"),
        ] {
            let (mut socket, serving) = upgrade("/source", engine, deflate, limits).await;
            socket.outgoing.send(Message::Binary(&wrong)).await.unwrap();
            assert_eq!(socket.incoming.receive().await.unwrap(), None);
            let close = socket.incoming.peer_close().unwrap();
            assert_eq!(close.code, Some(CloseCode::INVALID_DATA));
            assert!(close.reason.contains(named), "{close:?}");
            serving.await.unwrap().unwrap();
        }
    });
}

/// A message of the greatest length that does not shrink: compressed, it is longer.
#[test]
fn the_longest_message_is_given_back_compressed_too() {
    simulate_each_engine(async |engine, deflate| {
        let limits = Limits { message_bytes_max: 20_000, ..Limits::default() };
        let (mut socket, serving) = upgrade("/echo", engine, deflate, limits).await;
        let mut noise = vec![0; limits.message_bytes_max];
        Sim::fill_random(&mut noise);
        socket.outgoing.send(Message::Binary(&noise)).await.unwrap();
        let answer = socket.incoming.receive().await.unwrap();
        assert!(answer == Some(Message::Binary(&noise)));
        socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}

/// A client that sends without waiting, and reads everything, gets every echo, also when the echoes are longer than
/// the queue: each message is a block of 1,000 random bytes again and again, which a window of 9 bits cannot
/// compress.
#[test]
fn pipelined_messages_all_come_back() {
    const MESSAGES: usize = 20;
    simulate_each_engine_by(20, async |engine, deflate| {
        let limits = Limits { message_bytes_max: 20_000, ..Limits::default() };
        let mut small_window = owned_io_websocket::deflate::Deflate::default();
        (small_window.send_takeover, small_window.receive_window_bits) = (true, 9);
        let small_window = (deflate != Deflate::Off).then_some(small_window);
        let (socket, serving) = upgrade_with(small_window, "/echo", engine, deflate, limits).await;
        let WebSocket { mut incoming, mut outgoing } = socket;
        let mut block = vec![0; 1_000];
        Sim::fill_random(&mut block);
        let message = block.repeat(20);
        let mut receiving = Box::pin(async {
            for _ in 0..MESSAGES {
                assert!(incoming.receive().await.unwrap() == Some(Message::Binary(&message)));
            }
        });
        let sending = async {
            for _ in 0..MESSAGES {
                outgoing.send(Message::Binary(&message)).await.unwrap();
            }
        };
        if select(receiving.as_mut(), sending).await.first.is_none() {
            receiving.as_mut().await;
        }
        drop(receiving);
        drop((incoming, outgoing));
        let _ = serving.await.unwrap(); // the client goes without a close
    });
}

#[test]
fn a_websocket_source_without_end_ends_when_the_peer_closes() {
    simulate_each_engine(async |engine, deflate| {
        let (mut socket, serving) =
            upgrade("/source?bytes=1000&batch=10", engine, deflate, Limits::default()).await;
        for _ in 0..25 {
            assert!(socket.incoming.receive().await.unwrap().is_some());
        }
        socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}

/// With a small limit on the length of messages.
#[test]
fn many_short_messages_are_answered() {
    simulate_each_engine(async |engine, deflate| {
        let limits = Limits { message_bytes_max: 1_000, ..Limits::default() };
        let path = "/source?messages=1000&bytes=1000&batch=1000";
        let (mut socket, serving) = upgrade(path, engine, deflate, limits).await;
        for _ in 0..1_000 {
            assert_eq!(socket.incoming.receive().await.unwrap().unwrap().as_bytes().len(), 1_000);
        }
        assert_eq!(socket.incoming.receive().await.unwrap(), None);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn an_answer_that_is_not_taken_ends_the_connection() {
    simulate_each_engine(async |engine, deflate| {
        let (socket, serving) =
            upgrade("/source?bytes=100000", engine, deflate, Limits::default()).await;
        let ended = serving.await.unwrap().unwrap_err();
        assert!(matches!(ended, Error::Protocol(Protocol::Timeout(Timeout::Write))));
        drop(socket);
    });
}

#[test]
fn a_message_that_does_not_end_ends_the_connection() {
    simulate_each_engine(async |engine, deflate| {
        for path in ["/echo", "/sink"] {
            let (mut socket, serving) = upgrade(path, engine, deflate, Limits::default()).await;
            let fragment = Bytes::from_static(b"once upon a time");
            socket.outgoing.write_bytes(Fragment::First(MessageKind::Binary), fragment).unwrap();
            socket.outgoing.flush().await.unwrap();
            assert!(socket.incoming.receive().await.is_ok_and(|message| message.is_none()));
            let ended = serving.await.unwrap().unwrap_err();
            assert!(matches!(ended, Error::Protocol(Protocol::Timeout(Timeout::Message))));
        }
    });
}

/// After an answer, and after a WebSocket's close frame.
#[test]
fn a_client_that_ends_nothing_has_the_linger_time() {
    const SECONDS: u64 = 60;
    let limits = Limits { linger_time: Duration::from_secs(SECONDS), ..Limits::default() };
    simulate_each_engine_by(10, async |engine, deflate| {
        let start = Sim::now();
        let (socket, closing) =
            upgrade("/source?messages=1&bytes=1&batch=1", engine, deflate, limits).await;
        let _ = closing.await.unwrap();
        assert_eq!((Sim::now() - start).as_secs(), SECONDS);
        drop(socket);

        let (mut client, server) = pipe();
        let ctx = context(&server, resources(WebSockets::default(), limits)).0;
        const LAST: &str = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let start = Sim::now();
        let answering = Sim::spawn(async move { http::serve::<Sim>(server, &ctx).await });
        client.write_all(LAST).await.into_result().unwrap();
        answering.await.unwrap().unwrap();
        assert_eq!((Sim::now() - start).as_secs(), SECONDS);
    });
}

/// Whenever the drain begins: a client that was upgraded receives a close of going away. Any other client receives
/// 503, or nothing if its request had not arrived.
#[test]
fn a_websocket_that_opens_while_the_server_drains_is_closed_or_refused() {
    const GOING_AWAY: &[u8] = b"\x88\x02\x03\xE9";
    let mut request = Vec::new();
    let offer = Offer { host: "localhost", path: "/echo", ..Offer::default() };
    offer.encode(&Key::new([7; 16]), &mut request).unwrap();
    let answers = RefCell::new(BTreeSet::new());
    simulate_each_engine(async |engine, deflate| {
        for millis in 0..40 {
            let (mut client, connections, serving) = serve(engine, deflate);
            drop(Sim::spawn(async move {
                Sim::sleep(Duration::from_millis(millis)).await;
                connections.close_all();
            }));
            let _ = client.write_all(request.clone()).await; // fails if the server has closed already
            let mut answer = Vec::new();
            while !answer.ends_with(GOING_AWAY) {
                let read = client.read(Vec::with_capacity(1024)).await.into_result();
                match read {
                    Ok((1.., bytes)) => answer.extend_from_slice(&bytes),
                    _ => break,
                }
            }
            drop(client);
            let _ = serving.await.unwrap(); // cut off within the handshake, or closed
            let status = answer[..answer.len().min(12)].to_vec();
            let is_upgraded = status == b"HTTP/1.1 101";
            assert_eq!(is_upgraded, answer.ends_with(GOING_AWAY), "{millis} ms");
            answers.borrow_mut().insert(status);
        }
    });
    let expected = [&b""[..], b"HTTP/1.1 101", b"HTTP/1.1 503"];
    assert!(answers.into_inner().iter().eq(expected));
}

/// A client that sends requests and reads no answers. What waits for it fits the share that a connection has.
#[test]
fn answers_that_nobody_reads_hold_little_memory() {
    simulate(async || {
        let (mut client, server) = pipe();
        let ctx = context(&server, resources(WebSockets::default(), Limits::default())).0;
        let account = ctx.connection.account().clone();
        let serving = Sim::spawn(async move { http::serve::<Sim>(server, &ctx).await });
        let sending = Sim::spawn(async move {
            let requests = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20_000);
            let _ = client.write_all(requests).await; // the server resets the connection
            client
        });
        Sim::sleep(Duration::from_secs(5)).await;
        let held = account.held_bytes();
        let share = account.budget().share_bytes();
        assert!((1..=share.min(34 * 1024)).contains(&held), "{held} bytes of {share}");
        serving.await.unwrap().unwrap_err();
        drop(sending.await);
    });
}

/// A bad request for an upgrade is answered, and the drain ends its connection at once.
#[test]
fn a_refused_upgrade_does_not_delay_the_drain() {
    simulate_each_engine(async |engine, deflate| {
        let (mut client, connections, serving) = serve(engine, deflate);
        client.write_all("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").await.into_result().unwrap();
        Sim::sleep(Duration::from_secs(1)).await;
        let start = Sim::now();
        connections.close_all();
        let refused = serving.await.unwrap().unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::NoUpgrade)), "{refused:?}");
        assert!(Sim::now() - start < Duration::from_secs(1));
        let head = client.read(Vec::with_capacity(12)).await.into_result().unwrap().1;
        assert!(b"HTTP/1.1 426".starts_with(&head));
    });
}

/// A client that has sent nothing yet, the registry of its connection, and its service.
fn serve(
    engine: Engine,
    deflate: Deflate,
) -> (SimStream, Connections, JoinHandle<Result<(), Error>>) {
    let (client, server) = pipe();
    let sockets = WebSockets { engine, deflate, ..WebSockets::default() };
    let (ctx, connections) = context(&server, resources(sockets, Limits::default()));
    let serving = Sim::spawn(async move { http::serve::<Sim>(server, &ctx).await });
    (client, connections, serving)
}

/// A client that was upgraded to `path`, and its service, on this engine.
async fn upgrade(
    path: &str,
    engine: Engine,
    deflate: Deflate,
    limits: Limits,
) -> (WebSocket<impl ByteStream>, JoinHandle<Result<(), Error>>) {
    let mut takeover = owned_io_websocket::deflate::Deflate::default();
    (takeover.send_takeover, takeover.receive_takeover) = (true, true);
    let client = (deflate != Deflate::Off).then_some(takeover);
    upgrade_with(client, path, engine, deflate, limits).await
}

/// The same for a client that offers this compression.
async fn upgrade_with(
    offered: Option<owned_io_websocket::deflate::Deflate>,
    path: &str,
    engine: Engine,
    deflate: Deflate,
    limits: Limits,
) -> (WebSocket<impl ByteStream>, JoinHandle<Result<(), Error>>) {
    let (client, server) = pipe();
    let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 28));
    let sockets = WebSockets { engine, deflate, ..WebSockets::default() };
    let ctx = context(&server, resources(sockets, limits)).0;
    let serving = Sim::spawn(async move { http::serve::<Sim>(server, &ctx).await });
    let offer = Offer { host: "localhost", path, deflate: offered, ..Offer::default() };
    let config = owned_io_websocket::Config::default();
    let (socket, _) = connect::<Sim, _>(client, &buffers, config, &offer).await.unwrap();
    (socket, serving)
}

/// The only connection of a worker, and the registry that it is in.
fn context(stream: &SimStream, resources: Resources) -> (Context, Connections) {
    let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
    let connection = connections.add(stream.shutdown_handle());
    (Context { connection, worker: Rc::new(resources) }, connections)
}

fn resources(sockets: WebSockets, limits: Limits) -> Resources {
    let memory = Memory::divide(64 << 20, 100).expect("enough memory");
    Resources::new(memory, None, sockets, limits)
}

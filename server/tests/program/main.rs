//! The program, on each runtime that is compiled in: its services, its limits, its end, and its refusals to
//! start.

#![cfg(target_os = "linux")]

mod balance;
mod draining;
mod events;
mod hops;
mod http;
mod iggy;
mod limits;
mod logs;
mod metrics;
mod refusals;
mod server;
#[cfg(feature = "tls")]
mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tungstenite::Message;

use server::{ENGINES, RUNTIMES, Server, announce, assert_closed, echoed};

/// With three workers, the first and the last share a CPU where there are two.
#[test]
fn each_worker_is_pinned_to_a_cpu_in_turn() {
    let allowed = owned_io_os::allowed_cpus().unwrap();
    for runtime in RUNTIMES {
        for (pin, is_pinned) in [(&["--pin"][..], true), (&["--pin", "off"], false), (&[], false)] {
            let echo = ["--runtime", runtime, "--workers", "3", "--echo", "127.0.0.1:0"];
            let server = Server::start_with(&[&echo, pin].concat());
            let cpus = server.cpus_of_workers();
            assert_eq!(cpus.len(), 3, "{cpus:?}");
            for (worker, cpus) in cpus {
                let only = [allowed[worker % allowed.len()]];
                assert_eq!(
                    cpus,
                    if is_pinned { &only[..] } else { &allowed },
                    "{runtime} {worker}"
                );
            }
        }
    }
}

#[test]
fn services_answer() {
    for runtime in RUNTIMES {
        let all = ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0", "--source", "127.0.0.1:0"];
        let server = Server::start(runtime, &all);
        for round in 0..8 {
            echoed(&mut server.connect(0), &vec![round; 10_000]);
        }

        let mut sink = server.connect(1);
        for len in [0, 1, 5, 70_000, 2_000_000_u32] {
            announce(&mut sink, len, &vec![7; len as usize]);
            assert_eq!(answer(&mut sink), len.into());
        }

        let mut source = server.connect(2);
        for (messages, bytes, batch) in [(10_u32, 1_000_u32, 3_u32), (2, 600_000, 2), (0, 5, 1)] {
            for number in [messages, bytes, batch] {
                source.write_all(&number.to_le_bytes()).unwrap();
            }
            for n in 0..messages {
                let mut message = vec![0; 4 + bytes as usize];
                source.read_exact(&mut message).unwrap();
                assert_eq!(message[..4], bytes.to_le_bytes());
                let expected = |i: usize| (n as usize + i) as u8;
                assert!(message[4..].iter().enumerate().all(|(i, byte)| *byte == expected(i)));
            }
        }
    }
}

#[test]
fn websockets_answer() {
    for (runtime, engine) in each_engine() {
        let options = [&["--http", "127.0.0.1:0"], engine].concat();
        let server = Server::start(runtime, &options);
        let mut echo = server.upgrade(0, "/echo");
        let long = Message::binary(vec![7; 3_000_000]);
        for message in [Message::text("héllo"), long, Message::binary(vec![])] {
            echo.send(message.clone()).unwrap();
            assert_eq!(echo.read().unwrap(), message, "{runtime}, {engine:?}");
        }
        echo.send(Message::Ping("here?".into())).unwrap();
        assert_eq!(echo.read().unwrap(), Message::Pong("here?".into()));
        echo.close(None).unwrap();
        assert!(matches!(echo.read().unwrap(), Message::Close(_)));

        let mut sink = server.upgrade(0, "/sink");
        for len in [0, 125, 126, 70_000, 2_000_000_usize] {
            sink.send(Message::binary(vec![1; len])).unwrap();
            let answer = (len as u64).to_le_bytes().to_vec();
            assert_eq!(sink.read().unwrap(), Message::binary(answer), "{runtime}, {engine:?}");
        }

        let mut source = server.upgrade(0, "/source?messages=300&bytes=2000&batch=7");
        for n in 0..300 {
            let expected: Vec<u8> = (0..2000).map(|i| (n + i) as u8).collect();
            assert_eq!(source.read().unwrap(), Message::binary(expected), "{runtime}, {engine:?}");
        }
        let Message::Close(Some(frame)) = source.read().unwrap() else { panic!("no close") };
        assert_eq!(u16::from(frame.code), 1000);
    }
}

#[test]
fn a_bad_client_loses_only_its_own_connection() {
    for runtime in RUNTIMES {
        let options = ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0", "--source", "127.0.0.1:0"];
        let limits = ["--message-seconds-max", "1"];
        let server = Server::start(runtime, &[&options[..], &limits[..]].concat());
        let mut neighbour = server.connect(0);
        echoed(&mut neighbour, b"before");

        let mut too_long = server.connect(1);
        announce(&mut too_long, u32::MAX, b"");
        assert_closed(&mut too_long);

        let mut half = server.connect(1);
        let started = Instant::now();
        announce(&mut half, 100, b"half");
        assert_closed(&mut half);
        assert!(started.elapsed() >= Duration::from_millis(900));

        let mut half_a_request = server.connect(2);
        half_a_request.write_all(&[1, 0, 0, 0, 1]).unwrap();
        assert_closed(&mut half_a_request);

        let mut nonsense = server.connect(2);
        nonsense.write_all(&[0; 12]).unwrap(); // asks for batches of no messages
        assert_closed(&mut nonsense);

        echoed(&mut neighbour, b"after");
    }
}

/// Without room, accepting stops for milliseconds whenever the table of descriptors grows.
#[test]
fn there_is_room_for_all_connections_from_the_start() {
    let options = ["--workers", "2", "--connections-max", "900", "--echo", "127.0.0.1:0"];
    let server = Server::start_with(&[&["--runtime", RUNTIMES[0]], &options[..]].concat());
    let size: usize = server.status("FDSize:").parse().unwrap();
    assert!(size >= 1800, "{size}");
}

#[test]
fn a_listener_without_clients_holds_no_permit() {
    for runtime in RUNTIMES {
        let one_connection = ["--runtime", runtime, "--workers", "1", "--connections-max", "1"];
        let services = ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0"];
        let server = Server::start_with(&[&one_connection[..], &services[..]].concat());
        for _ in 0..2 {
            echoed(&mut server.connect(0), b"one");
            let mut sink = server.connect(1);
            announce(&mut sink, 3, b"two");
            assert_eq!(answer(&mut sink), 3);
        }
    }
}

/// An announced length reserves nothing: until the bytes arrive, over TCP or WebSocket, it takes no memory and
/// makes nobody wait.
#[test]
fn announced_lengths_take_no_memory() {
    const CONNECTIONS: usize = 1_000;
    const MESSAGE_BYTES: u64 = 16 << 20;
    allow_descriptors(2 * CONNECTIONS as u64 + 100);
    // A binary frame of a client, its length, its key, and the first byte of its payload.
    let start = [&[0x82, 0xFF][..], &MESSAGE_BYTES.to_be_bytes(), &[0; 4], b"x"].concat();
    for runtime in RUNTIMES {
        let memory = ["--memory-max", "100000000", "--connections-max", "2100"];
        let services = ["--sink", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let one_worker = ["--runtime", runtime, "--workers", "1"];
        let server = Server::start_with(&[&one_worker[..], &services[..], &memory[..]].concat());
        let mut neighbour = server.upgrade(1, "/echo");
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| server.upgrade(1, "/echo")).collect();
        let mut sinks: Vec<_> = (0..CONNECTIONS).map(|_| server.connect(0)).collect();
        let before = server.memory();
        for client in &mut clients {
            client.get_mut().write_all(&start).unwrap();
        }
        for sink in &mut sinks {
            announce(sink, MESSAGE_BYTES as u32, b"x");
        }
        // Later clients are answered, so the worker has read from all of those before.
        for _ in 0..10 {
            let mut later = server.upgrade(1, "/echo");
            later.send(Message::text("later")).unwrap();
            assert_eq!(later.read().unwrap(), Message::text("later"));
        }
        let after = server.memory();
        let grown = after.0.saturating_sub(before.0);
        assert!(grown < 100_000_000, "{runtime}: {grown} B more are resident");
        let long = Message::binary(vec![7; 1 << 20]);
        neighbour.send(long.clone()).unwrap();
        assert_eq!(neighbour.read().unwrap(), long, "{runtime}");
    }
}

/// Allows this process, and processes that it starts, `count` open files.
fn allow_descriptors(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.is_none_or(|most| most >= count);
    assert!(allowed, "needs {count} descriptors, see ulimit -Hn");
    let current = limit.current.map(|current| current.max(count));
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

/// Each engine for WebSockets, on each runtime.
fn each_engine() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    RUNTIMES.iter().flat_map(|runtime| ENGINES.iter().map(|engine| (*runtime, *engine)))
}

/// The answer of the sink.
fn answer(sink: &mut TcpStream) -> u64 {
    let mut answer = [0; 8];
    sink.read_exact(&mut answer).unwrap();
    u64::from_le_bytes(answer)
}

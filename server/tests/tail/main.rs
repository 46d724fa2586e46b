//! Tails in the simulation, where any read or write may be short: with two workers, on each engine.

mod idle;
#[path = "../owners/mod.rs"]
mod owners;
mod server;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use iggy_binary_protocol::codes::*;
use owned_io::{Clock, Executor};
use owned_io_server::config::WebSockets;
use owned_io_server::service::tail::{BINARY_PROTOCOL, IGNORED_BYTES_MAX, IGNORED_MESSAGES_MAX};
use owned_io_sim::{Config, Sim};
use owned_io_websocket::CloseFrame;
use owned_io_websocket::stream::Message;
use owners::server_bytes;
use server::{
    AUTHORIZATION, Pushed, STREAM, Server, TOPIC, Worker, closed, next, random, simulate_each,
    simulate_each_by,
};

#[test]
fn what_is_appended_is_pushed_once_and_in_order() {
    simulate_each(async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        producer.send_numbered(0..20).await;
        let mut listening = Vec::new();
        for worker in &server.workers {
            for (query, first) in [("", 20), ("?from=next", 20), ("?from=first", 0), ("?from=7", 7)]
            {
                for protocols in [&[][..], &[BINARY_PROTOCOL]] {
                    let mut socket = worker.tail(&format!("s/t/0{query}"), protocols).await;
                    listening.push(Sim::spawn(async move {
                        for n in first..200 {
                            assert_eq!(next(&mut socket).await, Pushed::numbered(n));
                        }
                        socket
                    }));
                }
            }
        }
        let mut n = 20;
        while n < 200 {
            let count = 1 + random() % 20;
            producer.send_numbered(n..(n + count).min(200)).await;
            n += count;
            Sim::sleep(Duration::from_millis(random() % 3)).await;
        }
        let mut sockets = Vec::new();
        for listening in listening {
            sockets.push(listening.await.unwrap());
        }
        // Others listen to their own partition.
        let mut other = server.workers[1].tail("0/0/1", &[]).await;
        producer.send(1, &[b"other"]).await;
        assert_eq!(next(&mut other).await.payload, b"other");
        for mut socket in sockets.into_iter().chain([other]) {
            socket.close(CloseFrame { code: None, reason: "" }).await.unwrap();
        }
        server.assert_idle().await;
    });
}

/// Joins at random moments, also in the middle of a batch, while the feed publishes.
#[test]
fn who_joins_while_much_is_appended_misses_nothing() {
    simulate_each(async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        let is_over = Rc::new(Cell::new(false));
        let producing = Sim::spawn({
            let is_over = Rc::clone(&is_over);
            async move {
                let mut n = 0;
                while !is_over.get() {
                    let count = 1 + random() % 50;
                    producer.send_numbered(n..n + count).await;
                    n += count;
                    Sim::sleep(Duration::from_micros(random() % 500)).await;
                }
            }
        });
        for _ in 0..4 {
            let mut listening = Vec::new();
            for worker in &server.workers {
                for query in ["?from=first", ""] {
                    let mut socket = worker.tail(&format!("s/t/0{query}"), &[]).await;
                    let pause = Duration::from_micros(random() % 2_000);
                    listening.push(Sim::spawn(async move {
                        let first = next(&mut socket).await.offset;
                        assert!(query.is_empty() || first == 0);
                        for n in first + 1..first + 150 {
                            if n % 16 == 0 {
                                Sim::sleep(pause).await;
                            }
                            assert_eq!(next(&mut socket).await, Pushed::numbered(n));
                        }
                    }));
                }
            }
            for listening in listening {
                listening.await.unwrap();
            }
        }
        is_over.set(true);
        producing.await.unwrap();
        server.assert_idle().await;
    });
}

/// The slow one is behind by more than the topic keeps.
#[test]
fn a_slow_client_reads_on_from_the_log_and_delays_no_other() {
    const COUNT: u64 = 100;
    let payload = |n: u64| vec![b'a' + (n % 26) as u8; 30_000];
    simulate_each_by(5, async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        for worker in &server.workers {
            let mut slow = worker.tail("s/t/0", &[]).await;
            let mut fast = worker.tail("s/t/0", &[BINARY_PROTOCOL]).await;
            let mut like_slow = worker.tail("s/t/0", &[]).await;
            let mut offset = None;
            for n in 0..COUNT {
                producer.send(0, &[&payload(n)]).await;
                for socket in [&mut fast, &mut like_slow] {
                    let pushed = next(socket).await;
                    assert!(pushed.payload == payload(n));
                    offset.get_or_insert(pushed.offset);
                }
            }
            let first = offset.unwrap();
            for n in 0..COUNT {
                let pushed = next(&mut slow).await;
                assert_eq!(pushed.offset, first + n);
                assert!(pushed.payload == payload(n));
            }
            // It has caught up.
            producer.send(0, &[b"last"]).await;
            for socket in [&mut slow, &mut fast, &mut like_slow] {
                assert_eq!(next(socket).await.payload, b"last");
            }
        }
    });
}

#[test]
fn long_messages_are_pushed_up_to_the_limit() {
    simulate_each_by(5, async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        // Too long for a topic; then too long for JSON, but not for binary.
        let (long, longest) = (vec![b'x'; 600_000], vec![0; 900_000]);
        for worker in &server.workers {
            let mut json = worker.tail("s/t/0", &[]).await;
            let mut binary = worker.tail("s/t/0", &[BINARY_PROTOCOL]).await;
            producer.send(0, &[b"short", &long, b"short"]).await;
            for socket in [&mut json, &mut binary] {
                for expected in [&b"short"[..], &long, b"short"] {
                    assert!(next(socket).await.payload == expected);
                }
            }
            producer.send(0, &[&longest]).await;
            producer.send(0, &[b"short"]).await;
            assert!(next(&mut binary).await.payload == longest);
            let offset = next(&mut binary).await.offset - 1;
            assert_eq!(closed(&mut json).await.0, 1009);
            let mut json = worker.tail(&format!("s/t/0?from={}", offset + 1), &[]).await;
            assert_eq!(next(&mut json).await.payload, b"short");
        }
    });
}

#[test]
fn a_bad_request_is_answered_by_what_is_wrong_with_it() {
    simulate_each(async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        producer.send_numbered(0..3).await;
        let wrong = ("Authorization", "Basic aWdneTp3cm9uZw=="); // iggy:wrong
        for worker in &server.workers {
            for (path, authorization, status, culprit) in [
                ("s/t/0", None, 401, "password"),
                ("s/t/0", Some(wrong), 401, "password"),
                ("nowhere", None, 401, "password"),
                ("s/t", Some(AUTHORIZATION), 404, "/tail/STREAM/TOPIC/PARTITION"),
                ("x/t/0", Some(AUTHORIZATION), 404, "stream \"x\""),
                ("1/t/0", Some(AUTHORIZATION), 404, "stream \"1\""),
                ("s/x/0", Some(AUTHORIZATION), 404, "topic \"x\""),
                ("s/t/2", Some(AUTHORIZATION), 404, "partition \"2\""),
                ("s/t/p", Some(AUTHORIZATION), 404, "partition \"p\""),
                ("s/t/0?from=last", Some(AUTHORIZATION), 400, "\"last\""),
                ("s/t/0?from=4", Some(AUTHORIZATION), 400, "4 is beyond the next offset, 3"),
                ("s/t/0?form=3", Some(AUTHORIZATION), 400, "\"form\""),
            ] {
                let answer = worker.ask(&format!("GET /tail/{path}"), authorization).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
                assert!(answer.contains(culprit), "{path}: {answer}");
                let asks = answer.contains("WWW-Authenticate: Basic realm=\"owned-io\"\r\n");
                assert_eq!(asks, status == 401, "{path}: {answer}");
            }
            for method in ["GET", "HEAD"] {
                let request = format!("{method} /tail/s/t/0");
                let answer = worker.ask(&request, Some(AUTHORIZATION)).await;
                assert!(answer.starts_with("HTTP/1.1 426 "), "no upgrade: {answer}");
            }
        }
        let mut resources = (*server.workers[0].resources).clone();
        resources.iggy = None;
        let worker = Worker::new(resources);
        let answer = worker.ask("GET /tail/s/t/0", Some(AUTHORIZATION)).await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("no streams"), "{answer}");
    });
}

#[test]
fn who_listens_to_what_is_purged_or_deleted_is_told() {
    simulate_each(async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        for (code, request, expected) in [
            (PURGE_TOPIC_CODE, &TOPIC[..], 4001),
            (PURGE_STREAM_CODE, &STREAM, 4001),
            (DELETE_TOPIC_CODE, &TOPIC, 1001),
        ] {
            producer.send_numbered(0..3).await;
            let mut sockets = Vec::new();
            for worker in &server.workers {
                // One waits for messages, one has still to read them.
                let mut waiting = worker.tail("s/t/0?from=2", &[]).await;
                assert_eq!(next(&mut waiting).await, Pushed::numbered(2));
                sockets.extend([waiting, worker.tail("s/t/0", &[BINARY_PROTOCOL]).await]);
            }
            producer.ask(code, request).await;
            for mut socket in sockets {
                let (code, reason) = closed(&mut socket).await;
                assert_eq!(code, expected);
                assert!(reason.ends_with("before message 3"), "{reason}");
            }
        }
        server.assert_idle().await;
    });
}

#[test]
fn a_drain_closes_tails_as_other_websockets() {
    simulate_each(async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        producer.send_numbered(0..50).await;
        for worker in &server.workers {
            let mut sockets = Vec::new();
            for query in ["", "?from=first"] {
                sockets.push(worker.tail(&format!("s/t/0{query}"), &[]).await);
            }
            assert_eq!(next(&mut sockets[1]).await, Pushed::numbered(0));
            worker.connections.close_all();
            for mut socket in sockets {
                while socket.incoming.receive().await.unwrap().is_some() {}
                let code = socket.incoming.peer_close().and_then(|frame| frame.code);
                assert_eq!(code.map(|code| code.get()), Some(1001));
            }
        }
        server.assert_idle().await;
    });
}

#[test]
fn who_talks_too_much_is_closed() {
    simulate_each(async |sockets| {
        let server = Server::new(sockets).await;
        let mut producer = server.producer().await;
        let worker = &server.workers[1];
        for (count, bytes) in [(IGNORED_MESSAGES_MAX, 1), (4, IGNORED_BYTES_MAX / 4)] {
            let mut socket = worker.tail("s/t/0", &[]).await;
            let message = vec![0; bytes as usize];
            for _ in 0..count {
                socket.outgoing.send(Message::Binary(&message)).await.unwrap();
            }
            producer.send(0, &[b"still served"]).await;
            assert_eq!(next(&mut socket).await.payload, b"still served");
            socket.outgoing.send(Message::Binary(b"!")).await.unwrap();
            assert_eq!(closed(&mut socket).await.0, 1008);
        }
        server.assert_idle().await;
    });
}

/// What a connection takes while it waits for messages: its state, and that of its task, without optimisation.
const STATE_BYTES_MAX: isize = 14 * 1024;

/// With an engine of tungstenite each connection reads for itself.
#[cfg(feature = "tungstenite")]
#[test]
fn who_waits_for_messages_with_tungstenite_reserves_no_memory_for_them() {
    use owned_io_server::config::{Engine, Limits};
    use owned_io_server::context::Resources;
    use owned_io_server::memory::Memory;

    for &engine in Engine::ALL.iter().filter(|engine| **engine != Engine::Native) {
        let case = async {
            let sockets = WebSockets { engine, ..WebSockets::default() };
            let server = Server::new(sockets.clone()).await;
            let mut producer = server.producer().await;
            producer.send_numbered(0..10).await;
            // A share of 24 KiB. What is read at once needs more.
            let memory = Memory::divide(64 << 20, 1_000).expect("enough memory");
            let mut resources = Resources::new(memory, None, sockets, Limits::default());
            resources.iggy = server.workers[0].resources.iggy.clone();
            let worker = Worker::new(resources);
            let mut socket = worker.tail("s/t/0?from=first", &[]).await;
            for messages in [0..10, 10..12, 12..13] {
                if messages.start > 0 {
                    producer.send_numbered(messages.clone()).await;
                }
                for n in messages {
                    assert_eq!(next(&mut socket).await, Pushed::numbered(n));
                }
                Sim::sleep(Duration::from_secs(1)).await;
                assert_eq!(worker.resources.budget.common_bytes_held(), 0);
            }
        };
        Sim::block_on(Config::with_seed(1), case).unwrap();
    }
}

#[test]
fn who_waits_for_messages_holds_no_buffer() {
    const COUNT: u8 = 80; // fewer than there are shares, because a queue that is empty keeps some of its share reserved
    let case = async {
        let server = Server::new(WebSockets::default()).await;
        let mut producer = server.producer().await;
        producer.send_numbered(0..10).await;
        for worker in &server.workers {
            let resources = &worker.resources;
            let mut sockets = Vec::new();
            let bytes_before = server_bytes();
            for n in 0..COUNT {
                let query = if n % 2 == 0 { "" } else { "?from=first" };
                sockets.push((n % 2 == 0, worker.tail(&format!("s/t/0{query}"), &[]).await));
            }
            for (is_new, socket) in &mut sockets {
                for n in if *is_new { 0..0 } else { 0..10 } {
                    assert_eq!(next(socket).await, Pushed::numbered(n));
                }
            }
            Sim::sleep(Duration::from_secs(1)).await;
            let bytes = (server_bytes() - bytes_before) / isize::from(COUNT);
            println!("{bytes} bytes for each connection");
            assert!(bytes <= STATE_BYTES_MAX, "{bytes}");
            assert_eq!((resources.budget.common_bytes_held(), resources.pool.leased()), (0, 0));
            assert_eq!(format!("{:?}", resources.feeds), "Feeds { live: 1 }");
        }
    };
    Sim::block_on(Config::with_seed(1), case).unwrap();
}

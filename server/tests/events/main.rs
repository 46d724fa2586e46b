//! Events over HTTP in the simulation, where any read or write may be short: with two workers, of which the first has
//! the streams.

mod client;
#[path = "../owners/mod.rs"]
mod owners;
#[path = "../tail/server.rs"]
mod server;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iggy_binary_protocol::codes::{DELETE_TOPIC_CODE, SEND_MESSAGES_CODE};
use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
use iggy_binary_protocol::{WireIdentifier, WirePartitioning};
use owned_io::{Clock, Executor};
use owned_io_server::config::{AllowedOrigins, Limits, WebSockets};
use owned_io_server::context::Resources;
use owned_io_server::iggy::Credentials;
use owned_io_server::iggy::command::Command;
use owned_io_server::iggy::workers::{HOP_TIME_MAX, Hub, Iggy};
use owned_io_server::memory::Memory;
use owned_io_server::service::tail::BINARY_PROTOCOL;
use owned_io_sim::{Config, Sim, seeds};

use client::{Client, NDJSON, chunked, head, poll_all, request};
use server::{AUTHORIZATION, Server, TOPIC, Worker, next, random};

fn simulate(case: impl AsyncFn()) {
    for seed in seeds(20) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

/// From both workers, one event and many, with a length and in chunks, short and long.
#[test]
fn events_are_polled_and_pushed_unchanged_and_in_order() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        let mut sent: Vec<Vec<u8>> = Vec::new();
        let mut tails = Vec::new();
        for worker in &server.workers {
            for protocols in [&[][..], &[BINARY_PROTOCOL]] {
                tails.push(worker.tail("s/t/0?from=first", protocols).await);
            }
        }
        for worker in &server.workers {
            let mut client = Client::new(worker);
            let long = vec![b'x'; 200_000];
            let lines: Vec<_> = (0..300).map(|n| format!("{{\"n\":{n}}}").into_bytes()).collect();
            for (headers, events) in [
                ("", vec![b"{\"one\":\"event\"}\n".to_vec()]),
                ("Content-Type: text/plain\r\n", vec![vec![b'\n'; 3]]),
                (NDJSON, vec![b"one line".to_vec()]),
                (NDJSON, lines),
                ("", vec![long.clone()]),
                (NDJSON, vec![b"short".to_vec(), long, b"short".to_vec()]),
            ] {
                let body = events.join(&b'\n');
                let request = match random() % 2 {
                    0 => request("s/t?partition=0", headers, &body),
                    _ => chunked("s/t?partition=0", headers, &body, 1 + random() as usize % 70_000),
                };
                let answer = client.ask(request).await;
                assert_eq!(answer.appended(), (events.len() as u64, 0, sent.len() as u64));
                sent.extend(events);
            }
            client.end().await;
        }
        let polled = poll_all(&mut server.producer().await, 0).await;
        assert!(polled.into_iter().eq((0..).zip(sent.clone())));
        for mut tail in tails {
            for (offset, payload) in (0..).zip(&sent) {
                let pushed = next(&mut tail).await;
                assert!(pushed.offset == offset && pushed.payload == *payload, "{offset}");
            }
        }
        server.assert_idle().await;
    });
}

#[test]
fn requests_that_are_sent_at_once_are_appended_and_answered_in_order() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        for (worker, first) in server.workers.iter().zip([0, 20]) {
            let mut client = Client::new(worker);
            let health = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
            let events = (first..first + 20).map(|n: u64| n.to_string());
            let events = events.map(|event| request("s/t?partition=1", "", event.as_bytes()));
            client.write([events.collect::<Vec<_>>().concat(), health].concat()).await;
            for n in first..first + 20 {
                assert_eq!(client.answer().await.appended(), (1, 1, n));
            }
            assert_eq!(client.answer().await.body, "ok\n");
        }
        let polled = poll_all(&mut server.producer().await, 1).await;
        assert!(polled.into_iter().eq((0..40).map(|n| (n, n.to_string().into_bytes()))));
    });
}

#[test]
fn the_partition_is_that_which_iggy_would_choose() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        let mut producer = server.producer().await;
        let mut clients: Vec<_> = server.workers.iter().map(Client::new).collect();
        let mut next = [0; 2];
        let mut turn = 0;
        for round in 0..10 {
            for client in &mut clients {
                let key = format!("key-{round}");
                for path in
                    ["0/0".to_owned(), "s/0?partition=1".to_owned(), format!("0/t?key={key}")]
                {
                    let answer = client.ask(request(&path, NDJSON, b"a\nb")).await;
                    let (count, partition, offset) = answer.appended();
                    assert_eq!((count, offset), (2, next[partition as usize]), "{path}");
                    next[partition as usize] += 2;
                    if path == "0/0" {
                        assert_eq!(partition, turn, "each in turn");
                        turn = (turn + 1) % 2;
                    } else if path.contains("partition") {
                        assert_eq!(partition, 1);
                    } else {
                        // A message that a client of Iggy sends with this key is behind them.
                        let payload = key.as_bytes();
                        let message =
                            RawMessage { id: 0, origin_timestamp: 1, headers: None, payload };
                        let to = WirePartitioning::MessagesKey(payload.to_vec());
                        let (zero, mut sent) = (WireIdentifier::numeric(0), bytes::BytesMut::new());
                        SendMessagesEncoder::encode(&mut sent, &zero, &zero, &to, &[message]);
                        producer.ask(SEND_MESSAGES_CODE, &sent).await;
                        let polled = poll_all(&mut producer, partition as u32).await;
                        assert_eq!(polled.last().unwrap().1, payload);
                        next[partition as usize] += 1;
                    }
                }
            }
        }
    });
}

/// A batch for which there is no room, one that is too long, one that is cut, and one with too many events.
#[test]
fn all_events_of_a_request_are_appended_or_none() {
    simulate(async || {
        let server = Server::with_room(WebSockets::default(), 300_000).await;
        let mut producer = server.producer().await;
        for worker in &server.workers {
            let before = poll_all(&mut producer, 0).await;
            let lines = |count: usize, len: usize| vec![vec![b'e'; len]; count].join(&b'\n');
            for (body, status, culprit) in [
                (lines(400, 1_000), 507, "no room"),
                (lines(10, 104_850), 413, "--message-bytes-max"),
                (lines(16_200, 1), 413, "64"),
                (lines(65_537, 0), 400, "no event"),
            ] {
                for request in [
                    request("s/t?partition=0", NDJSON, &body),
                    chunked("s/t?partition=0", NDJSON, &body, 10_000),
                ] {
                    let mut client = Client::new(worker);
                    let answer = client.ask(request).await;
                    assert_eq!(answer.status, status, "{answer:?}");
                    assert!(answer.body.contains(culprit), "{answer:?}");
                    client.end().await;
                }
            }
            let mut cut = Client::new(worker);
            let whole = request("s/t?partition=0", NDJSON, &lines(100, 100));
            let len = whole.len() - 1 - random() as usize % 10_000;
            cut.write(whole[..len].to_vec()).await;
            cut.end().await;
            assert_eq!(poll_all(&mut producer, 0).await, before);
            let mut client = Client::new(worker);
            let answer = client.ask(request("s/t?partition=0", NDJSON, &lines(50, 1_000))).await;
            assert_eq!(answer.appended(), (50, 0, before.len() as u64));
            client.end().await;
        }
        server.assert_idle().await;
    });
}

/// A limit that only a large `--message-bytes-max` lets anybody reach.
#[test]
fn a_batch_has_no_more_events_than_one_of_iggy() {
    Sim::block_on(Config::with_seed(1), async {
        let server = Server::new(WebSockets::default()).await;
        let mut resources = (*server.workers[0].resources).clone();
        resources.limits.message_bytes_max = 16 << 20;
        let worker = Worker::new(resources);
        let mut client = Client::new(&worker);
        let answer = client.ask(request("s/t", NDJSON, &b"1\n".repeat(65_536))).await;
        assert_eq!(answer.appended(), (65_536, 0, 0));
        let answer = client.ask(request("s/t", NDJSON, &b"1\n".repeat(65_537))).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.body.contains("65536"), "{answer:?}");
        // The rest of the body is short: the connection goes on.
        assert_eq!(client.ask(request("s/t", "", b"1")).await.appended(), (1, 1, 0));
    })
    .unwrap();
}

#[test]
fn a_bad_request_is_answered_by_what_is_wrong_with_it() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        let right = format!("{}: {}\r\n", AUTHORIZATION.0, AUTHORIZATION.1);
        let wrong = "Authorization: Basic aWdneTp3cm9uZw==\r\n"; // iggy:wrong
        for worker in &server.workers {
            for (method, path, headers, status, culprit) in [
                ("POST", "s/t", "", 401, "password"),
                ("POST", "s/t", wrong, 401, "password"),
                ("POST", "nowhere", wrong, 401, "password"),
                ("GET", "s/t", &*right, 405, "POST"),
                ("PUT", "s/t", &right, 405, "POST"),
                ("OPTIONS", "s/t", &right, 405, "POST"),
                ("POST", "s", &right, 404, "/events/STREAM/TOPIC"),
                ("POST", "s/t/0", &right, 404, "/events/STREAM/TOPIC"),
                ("POST", "x/t", &right, 404, "stream \"x\""),
                ("POST", "1/t", &right, 404, "stream \"1\""),
                ("POST", "s/x", &right, 404, "topic \"x\""),
                ("POST", "s/t?partition=2", &right, 404, "partition \"2\""),
                ("POST", "s/t?partition=x", &right, 400, "\"x\""),
                ("POST", "s/t?partition=0&key=a", &right, 400, "once"),
                ("POST", "s/t?to=0", &right, 400, "\"to\""),
                (
                    "POST",
                    "s/t",
                    &format!("{right}Content-Encoding: gzip\r\n"),
                    415,
                    "Content-Encoding",
                ),
                ("POST", "s/t", &format!("{right}{NDJSON}{NDJSON}"), 400, "Content-Type"),
            ] {
                let request = format!(
                    "{method} /events/{path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: 5\r\n\r\nevent"
                );
                let mut client = Client::new(worker);
                let answer = client.ask(request.into_bytes()).await;
                assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
                assert!(answer.body.contains(culprit), "{method} {path}: {answer:?}");
                for (header, is_of) in [
                    ("WWW-Authenticate: Basic realm=\"owned-io\"\r\n", 401),
                    ("Allow: POST\r\n", 405),
                ] {
                    assert_eq!(answer.head.contains(header), status == is_of, "{answer:?}");
                }
                client.end().await;
            }
            for (headers, body) in [("", &b""[..]), (NDJSON, b""), (NDJSON, b"\n\r\n")] {
                for request in [request("s/t", headers, body), chunked("s/t", headers, body, 1)] {
                    let mut client = Client::new(worker);
                    let answer = client.ask(request).await;
                    assert_eq!(
                        (answer.status, &*answer.body),
                        (400, "there is no event in the body\n")
                    );
                    client.end().await;
                }
            }
        }
        let mut resources = (*server.workers[0].resources).clone();
        resources.iggy = None;
        let worker = Worker::new(resources);
        let answer = Client::new(&worker).ask(request("s/t", "", b"event")).await;
        assert!(answer.status == 404 && answer.body.contains("no streams"), "{answer:?}");
        let mut producer = server.producer().await;
        producer.ask(DELETE_TOPIC_CODE, &TOPIC).await;
        let answer = Client::new(&server.workers[1]).ask(request("s/t", "", b"event")).await;
        assert!(answer.status == 404 && answer.body.contains("topic \"t\""), "{answer:?}");
    });
}

#[test]
fn a_client_is_told_to_continue_after_the_checks_that_need_no_body() {
    const EXPECT: &str = "Expect: 100-continue\r\n";
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        for worker in &server.workers {
            let mut client = Client::new(worker);
            client.write(head("s/t", &format!("{EXPECT}Content-Length: 5\r\n"))).await;
            assert_eq!(client.answer().await.status, 100);
            client.write("event").await;
            assert_eq!(client.answer().await.appended().0, 1);
            client.end().await;
            let longest = (1 << 20) - 64;
            for (head, status) in [
                (head("s", &format!("{EXPECT}Content-Length: 5\r\n")), 404),
                (head("s/t?partition=-1", &format!("{EXPECT}Content-Length: 5\r\n")), 400),
                (head("s/t", &format!("{EXPECT}Content-Length: {}\r\n", longest + 1)), 413),
                (head("s/t", &format!("{EXPECT}Content-Length: {}\r\n", 2 << 20)), 413),
                (
                    format!(
                        "POST /events/s/t HTTP/1.1\r\nHost: a\r\n{EXPECT}Content-Length: 5\r\n\r\n"
                    ),
                    401,
                ),
            ] {
                let mut client = Client::new(worker);
                client.write(head).await;
                let answer = client.answer().await;
                assert_eq!(answer.status, status, "{answer:?}");
                assert!(answer.head.contains("Connection: close\r\n"), "{answer:?}");
                client.expect_end().await;
            }
            let mut client = Client::new(worker);
            let answer = client.ask(request("s/t", "", &vec![0; longest])).await;
            assert_eq!(answer.appended().0, 1);
        }
    });
}

#[test]
fn pages_of_other_origins_are_refused() {
    simulate(async || {
        let only = AllowedOrigins::only(vec!["https://a.example".to_owned()]).unwrap();
        let limited = WebSockets { origins: only, ..WebSockets::default() };
        for (sockets, foreign) in [(limited, 403), (WebSockets::default(), 200)] {
            let server = Server::new(sockets).await;
            for (origin, status) in [
                ("", 200),
                ("Origin: https://a.example\r\n", 200),
                ("Origin: https://evil.example\r\n", foreign),
                ("Origin: null\r\n", foreign),
                ("Origin: https://a.example\r\nOrigin: https://evil.example\r\n", foreign),
            ] {
                let answer =
                    Client::new(&server.workers[1]).ask(request("s/t", origin, b"e")).await;
                assert_eq!(answer.status, status, "{origin}: {answer:?}");
            }
        }
    });
}

#[test]
fn a_drain_answers_the_request_that_is_arriving_and_no_further_one() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        for worker in &server.workers {
            let mut arriving = Client::new(worker);
            arriving.write(head("s/t?partition=0", "Content-Length: 5\r\n")).await;
            arriving.write("ev").await;
            let mut idle = Client::new(worker);
            let answer = idle.ask(request("s/t?partition=1", "", b"before")).await;
            assert_eq!(answer.status, 200);
            Sim::sleep(Duration::from_secs(1)).await;
            worker.connections.close_all();
            idle.expect_end().await;
            arriving
                .write([&b"ent"[..], &request("s/t?partition=0", "", b"another")].concat())
                .await;
            let answer = arriving.answer().await;
            assert_eq!(answer.appended().0, 1);
            assert!(answer.head.contains("Connection: close\r\n"), "{answer:?}");
            arriving.expect_end().await;
        }
        let polled = poll_all(&mut server.producer().await, 0).await;
        assert_eq!(polled, [(0, b"event".to_vec()), (1, b"event".to_vec())]);
    });
}

/// The events are refused when they cannot be stored any more, and the worker with the streams goes on.
#[test]
fn what_comes_when_the_streams_are_closed_is_refused() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        server.workers[0].resources.iggy.as_ref().unwrap().close().await.unwrap();
        for worker in &server.workers {
            let answer = Client::new(worker).ask(request("s/t", "", b"event")).await;
            assert!(answer.status == 503 && answer.body.contains("about to end"), "{answer:?}");
            assert!(answer.head.contains("Retry-After: 1\r\n"), "{answer:?}");
        }
    });
}

/// Nobody takes what other workers pass on.
#[test]
fn events_are_refused_when_there_is_no_room_on_the_way() {
    Sim::block_on(Config::with_seed(1), async {
        let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
        let iggy = Rc::new(Iggy::without_broker(Arc::new(Hub::new(credentials))));
        for _ in 0..1024 {
            let iggy = Rc::clone(&iggy);
            Sim::spawn_detached(async move {
                let _ = iggy.execute::<Sim>(1, Command::GetStreams, 0).await;
            });
        }
        let memory = Memory::divide(64 << 20, 100).expect("enough memory");
        let mut resources = Resources::new(memory, None, WebSockets::default(), Limits::default());
        resources.iggy = Some(iggy);
        let (worker, began) = (Worker::new(resources), Sim::now());
        let mut client = Client::new(&worker);
        let answer = client.ask(request("s/t", "", b"event")).await;
        assert!(answer.status == 503 && answer.body.contains("has no room"), "{answer:?}");
        assert!(answer.head.contains("Retry-After: 1\r\n"), "{answer:?}");
        assert!(Sim::now() - began >= HOP_TIME_MAX);
        assert_eq!(worker.resources.budget.common_bytes_held(), 0);
    })
    .unwrap();
}

/// What has arrived of bodies is all of the memory. Whoever needs some gets it, or is refused in time.
#[test]
fn bodies_hold_no_more_memory_than_there_is() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        let memory = Memory::divide(8 << 20, 10).expect("enough memory");
        let message_time_max = Duration::from_secs(60);
        let limits = Limits { message_bytes_max: 1 << 20, message_time_max, ..Limits::default() };
        let mut resources = Resources::new(memory, None, WebSockets::default(), limits);
        resources.iggy = server.workers[0].resources.iggy.clone();
        let worker = Worker::new(resources);
        let budget = &worker.resources.budget;
        let half = &request("s/t", "", &vec![1; 1_000_000])[..900_000];
        // All of them get what they need, and stop; and more than there is memory for.
        for (hoarder_count, newcomer_bytes) in [(5, 1_000_000), (8, 700_000)] {
            let mut hoarders = Vec::new();
            for _ in 0..hoarder_count {
                let mut client = Client::new(&worker);
                let half = half.to_vec();
                hoarders.push(Sim::spawn(async move {
                    client.try_write(half).await; // it may be reset
                    client
                }));
            }
            Sim::sleep(Duration::from_secs(5)).await;
            assert!(budget.common_bytes_held() > 1 << 20, "{}", budget.common_bytes_held());
            let began = Sim::now();
            let newcomer = request("s/t", "", &vec![2; newcomer_bytes]);
            assert_eq!(Client::new(&worker).ask(newcomer).await.appended().0, 1);
            let took = Sim::now() - began;
            assert!(took < Duration::from_secs(20), "the memory came after {took:?}");
            Sim::sleep(Duration::from_secs(300)).await; // the others are late
            assert_eq!(budget.common_bytes_held(), 0);
        }

        // Nobody gives memory back.
        let mut held = budget.common_account().reservation();
        held.resize(budget.common_bytes_max()).unwrap();
        let began = Sim::now();
        let mut client = Client::new(&worker);
        let answer = client.ask(request("s/t", "", &vec![2; 700_000])).await;
        assert!(answer.status == 503 && answer.body.contains("memory"), "{answer:?}");
        assert!(answer.head.contains("Retry-After: 1\r\n"), "{answer:?}");
        assert!(Sim::now() - began >= message_time_max);
    });
}

/// It has to arrive in time, and at a rate.
#[test]
fn a_body_that_does_not_arrive_is_answered_408() {
    simulate(async || {
        let server = Server::new(WebSockets::default()).await;
        for (first, trickles) in [(0, false), (500, false), (1, true)] {
            let mut client = Client::new(&server.workers[1]);
            let whole = request("s/t", "", &[b'e'; 600]);
            client.write(whole[..whole.len() - 600 + first].to_vec()).await;
            let began = Sim::now();
            if trickles {
                for _ in 0..5 {
                    Sim::sleep(Duration::from_secs(5)).await;
                    client.write("e").await;
                }
            }
            let answer = client.answer().await;
            assert_eq!(answer.status, 408, "{answer:?}");
            let waited = (Sim::now() - began).as_secs();
            assert!((29..40).contains(&waited), "{waited}");
            client.end().await;
        }
        assert!(poll_all(&mut server.producer().await, 0).await.is_empty());
        server.assert_idle().await;
    });
}

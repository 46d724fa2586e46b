//! Brokers that are down or away, messages that are too long, and a full queue.

use std::thread;
use std::time::{Duration, Instant};

use iggy_binary_protocol::WirePollingStrategy;

use super::client::{Client, events, status};
use super::server::RUNTIMES;
use super::{cluster, payloads, start, start_on, wait_until};

const INVALID_SIZE_BYTES: u32 = 80;
const CANNOT_APPEND_MESSAGE: u32 = 4010;
const CANNOT_READ_MESSAGE: u32 = 4011;

/// Of a batch with one such message, none is stored.
#[test]
fn a_message_that_is_too_long_is_refused_with_its_batch() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &[]);
    let mut client = Client::login(&server);
    let (long, longest) = (vec![1; 1_000_000], vec![2; 999_500]);
    assert_eq!(client.send(0, &[b"a".to_vec(), long.clone()], None), INVALID_SIZE_BYTES);
    let answer = events(&server, "s/t?partition=0", "", &long);
    assert_eq!(status(&answer), 413, "{answer}");
    assert_eq!(client.send(0, std::slice::from_ref(&longest), None), 0);
    assert_eq!(payloads(&client.poll_all(0, 10)), [longest]);
}

/// The client is told in time, nothing is acknowledged, and it goes on without a restart.
#[test]
fn brokers_that_are_down_are_told_and_come_back() {
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let cluster = cluster();
        let server = start(runtime, &cluster, &["--kafka-seconds", "2"]);
        let mut client = Client::login(&server);
        assert_eq!(client.send(0, &[b"before".to_vec()], None), 0);
        cluster.broker_down(-1).unwrap();
        let began = Instant::now();
        assert_eq!(client.send(0, &[b"meanwhile".to_vec()], None), CANNOT_APPEND_MESSAGE);
        let answer = events(&server, "s/t?partition=0", "", b"meanwhile");
        assert!(status(&answer) == 500 && answer.contains("may be there"), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let refused = client.poll(0, WirePollingStrategy::first(), 10).unwrap_err();
        assert_eq!(refused, CANNOT_READ_MESSAGE);
        cluster.broker_up(-1).unwrap();
        wait_until("messages are acknowledged again", || {
            client.send(0, &[b"afterwards".to_vec()], None) == 0
        });
        let mut polled = Vec::new();
        wait_until("messages are polled again", || {
            let found = client.poll(0, WirePollingStrategy::first(), 100);
            polled = found.unwrap_or_default();
            !polled.is_empty()
        });
        let polled = payloads(&polled);
        assert_eq!(polled.first(), Some(&b"before".to_vec()));
        assert_eq!(polled.last(), Some(&b"afterwards".to_vec()));
    }
}

/// Polls of one partition wait for one question to the brokers, and not one after the other for one each.
#[test]
fn polls_of_a_partition_are_refused_together() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &[]);
    let mut clients: Vec<_> = (0..6).map(|_| Client::login(&server)).collect();
    assert_eq!(clients[0].send(0, &[b"before".to_vec()], None), 0);
    cluster.broker_down(-1).unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| {
                let refused = client.poll(0, WirePollingStrategy::first(), 10).unwrap_err();
                assert_eq!(refused, CANNOT_READ_MESSAGE);
            });
        }
    });
    // A question fails after four seconds, and one may be under way for the list of topics.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// A broker that is down for less time than messages may wait is not noticed: no gap and no duplicate.
#[test]
fn brokers_that_are_down_for_a_moment_are_waited_for() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &["--kafka-seconds", "20"]);
    let mut client = Client::login(&server);
    let mut sent = Vec::new();
    for round in 0..3 {
        let (sending, server) = (&mut sent, &server);
        thread::scope(|scope| {
            let events = scope.spawn(move || {
                for n in 0..50 {
                    let event = format!("{round} {n}").into_bytes();
                    let answer = events(server, "s/t?partition=1", "", &event);
                    assert_eq!(status(&answer), 200, "{answer}");
                    sending.push(event);
                }
            });
            thread::sleep(Duration::from_millis(30));
            cluster.broker_down(-1).unwrap();
            thread::sleep(Duration::from_millis(700));
            cluster.broker_up(-1).unwrap();
            events.join().unwrap();
        });
    }
    assert_eq!(payloads(&client.poll_all(1, 40)), sent);
}

#[test]
fn a_full_queue_is_answered_503() {
    let cluster = cluster();
    let few = ["--kafka-seconds", "9", "--iggy-memory-max", "100000"];
    let server = start(RUNTIMES[0], &cluster, &few);
    let mut client = Client::login(&server);
    assert_eq!(client.send(0, &[b"before".to_vec()], None), 0);
    let event = vec![b'e'; 60_000];
    // More than all room is not waited for.
    assert_eq!(status(&events(&server, "s/t", "", &[b'e'; 110_000])), 413);
    cluster.broker_down(-1).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| events(&server, "s/t?partition=0", "", &event));
        thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        let answer = events(&server, "s/t?partition=0", "", &event);
        assert!(status(&answer) == 503 && answer.contains("Retry-After: 1\r\n"), "{answer}");
        let waited = began.elapsed();
        assert!((4_900..8_000).contains(&waited.as_millis()), "{waited:?}");
        // The loop of the worker is not blocked meanwhile.
        assert_eq!(server.health(1), "200");
        assert_eq!(status(&first.join().unwrap()), 500);
    });
    cluster.broker_up(-1).unwrap();
    wait_until("there is room again", || {
        status(&events(&server, "s/t?partition=0", "", &event)) == 200
    });
}

#[test]
fn a_server_starts_without_its_brokers() {
    let cluster = cluster();
    let brokers = cluster.bootstrap_servers();
    cluster.broker_down(-1).unwrap();
    let server = start_on(RUNTIMES[0], &brokers, &[]);
    let answer = events(&server, "s/t", "", b"event");
    assert!(status(&answer) == 503 && answer.contains("Retry-After"), "{answer}");
    cluster.broker_up(-1).unwrap();
    wait_until("the brokers are found", || status(&events(&server, "s/t", "", b"event")) == 200);
    server.signal("-TERM");
    assert_eq!(server.wait(), 0);
}

//! The program with Kafka as its store, on the mock cluster of librdkafka. `server/kafka/run` has a real broker.

#![cfg(target_os = "linux")]

mod client;
mod failures;
mod foreign;
mod raw;
#[allow(dead_code, reason = "shared with the tests of the program")]
#[path = "../program/server.rs"]
mod server;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use client::{BASIC, Client, Polled, events, status};
use iggy_binary_protocol::WirePollingStrategy;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use server::{RUNTIMES, Server};
use tungstenite::{ClientRequestBuilder, Message, WebSocket};

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// A cluster with topic `t` of stream `s`, of two partitions.
fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("s.t", 2, 1).unwrap();
    cluster
}

/// A server on these brokers, of two workers: most connections are not at the one with the store.
fn start(runtime: &str, cluster: &Cluster, options: &[&str]) -> Server {
    start_on(runtime, &cluster.bootstrap_servers(), options)
}

fn start_on(runtime: &str, brokers: &str, options: &[&str]) -> Server {
    let password = password_file();
    let always = [
        ["--tcp", "127.0.0.1:0"],
        ["--http", "127.0.0.1:0"],
        ["--iggy-password-file", password.to_str().unwrap()],
        ["--store", "kafka"],
        ["--kafka-brokers", brokers],
    ];
    Server::start(runtime, &[&always.concat(), options].concat())
}

/// All tests have the same one, so it stays.
fn password_file() -> PathBuf {
    let path = std::env::temp_dir().join("owned-io-server-kafka-password");
    let new = path.with_extension(format!("{:?}", thread::current().id()));
    std::fs::write(&new, "open sesame\n").unwrap();
    std::fs::rename(&new, &path).unwrap();
    path
}

/// Repeats until it is true.
fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + server::PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn payloads(polled: &[Polled]) -> Vec<Vec<u8>> {
    polled.iter().map(|message| message.payload.clone()).collect()
}

/// A WebSocket that gets the messages of a partition of topic `t` of stream `s`, from the first one on.
fn tail(server: &Server, partition: u32) -> WebSocket<std::net::TcpStream> {
    let uri = format!("ws://{}/tail/s/t/{partition}?from=first", server.addr(1));
    let request = ClientRequestBuilder::new(uri.parse().unwrap());
    let request =
        request.with_header("Authorization", BASIC).with_sub_protocol("owned-io.tail.binary.v1");
    tungstenite::client(request, server.connect(1)).unwrap().0
}

/// The offset and the payload of the next message.
fn pushed(socket: &mut WebSocket<std::net::TcpStream>) -> (u64, Vec<u8>) {
    match socket.read().unwrap() {
        Message::Ping(_) => pushed(socket),
        Message::Binary(bytes) => {
            (u64::from_le_bytes(bytes[..8].try_into().unwrap()), bytes[16..].to_vec())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_are_sent_polled_and_pushed() {
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let cluster = cluster();
        let server = start(runtime, &cluster, &[]);
        let mut client = Client::login(&server);
        let mut sent = Vec::new();
        let mut early = tail(&server, 0);
        for n in 0..20_usize {
            let batch: Vec<_> = (0..=n).map(|m| format!("{n} {m}").into_bytes()).collect();
            assert_eq!(client.send(0, &batch, Some(b"user headers")), 0);
            sent.extend(batch);
            let body = format!("{{\"n\":{n}}}\n{}\n", "x".repeat(n * 5_000 + 1));
            let lines = "Content-Type: application/x-ndjson\r\n";
            let answer = events(&server, "s/t?partition=0", lines, body.as_bytes());
            let offset = sent.len();
            let expected = format!("{{\"events\":2,\"partition\":0,\"offset\":{offset}}}\n");
            assert!(status(&answer) == 200 && answer.ends_with(&expected), "{answer}");
            sent.extend(body.lines().map(|line| line.as_bytes().to_vec()));
        }
        // As many at once as do not fit a batch of Kafka.
        let many: Vec<_> = (0..20_000).map(|n| format!("{n:0100}").into_bytes()).collect();
        assert_eq!(client.send(1, &many, None), 0);

        let polled = client.poll_all(0, 7);
        assert!(polled.iter().map(|message| message.offset).eq(0..sent.len() as u64));
        assert_eq!(payloads(&polled), sent);
        assert_eq!(polled[0].user_headers, b"user headers");
        assert_eq!(payloads(&client.poll_all(1, 3_000)), many);
        let last = client.poll(0, WirePollingStrategy::last(), 3).unwrap();
        assert_eq!(last, polled[polled.len() - 3..]);
        let first = client.poll(0, WirePollingStrategy::first(), 2).unwrap();
        assert_eq!(first, polled[..2]);
        let beyond = WirePollingStrategy::offset(1_000_000);
        assert_eq!(client.poll(0, beyond, 2), Ok(vec![]));
        let mut late = tail(&server, 0);
        for (offset, payload) in (0..).zip(&sent) {
            assert_eq!(pushed(&mut early), (offset, payload.clone()));
            assert_eq!(pushed(&mut late), (offset, payload.clone()));
        }
        // What is unknown is refused before it reaches Kafka.
        for (path, expected) in [("s/u", 404), ("r/t", 404), ("s/t?partition=2", 404)] {
            let answer = events(&server, path, "", b"event");
            assert_eq!(status(&answer), expected, "{path}: {answer}");
        }
        drop((client, early, late));
        server.signal("-TERM");
        assert_eq!(server.wait(), 0);
    }
}

#[test]
fn other_clients_of_kafka_read_and_write_the_same_messages() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &[]);
    let mut client = Client::login(&server);
    assert_eq!(client.send(1, &[b"from Iggy".to_vec()], Some(b"u")), 0);
    let brokers = cluster.bootstrap_servers();
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", &brokers).create().unwrap();
    let record = BaseRecord::<str, str>::to("s.t").partition(1).key("key").payload("from Kafka");
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(server::PATIENCE).unwrap();
    let polled = client.poll_all(1, 10);
    assert_eq!(payloads(&polled), [&b"from Iggy"[..], b"from Kafka"]);
    assert!(polled[0].id != polled[1].id && polled[1].id != 0);
    assert_eq!(polled[1].user_headers, b"");

    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &brokers)
        .set("group.id", "test")
        .create()
        .unwrap();
    let mut assigned = TopicPartitionList::new();
    assigned.add_partition_offset("s.t", 1, Offset::Beginning).unwrap();
    consumer.assign(&assigned).unwrap();
    let record = consumer.poll(server::PATIENCE).unwrap().unwrap();
    assert_eq!(record.payload(), Some(&b"from Iggy"[..]));
    let headers = record.headers().unwrap();
    let headers: Vec<_> = headers.iter().map(|header| (header.key, header.value)).collect();
    let id = polled[0].id.to_be_bytes();
    assert_eq!(
        headers,
        [
            ("iggy-id", Some(&id[..])),
            ("iggy-origin-timestamp", Some(b"7")),
            ("iggy-user-headers", Some(b"u"))
        ]
    );
}

/// Two servers on one Kafka, with topics of before their start and of afterwards.
#[test]
fn two_servers_serve_the_same_streams() {
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        serve_the_same_streams(runtime);
    }
}

fn serve_the_same_streams(runtime: &str) {
    let cluster = cluster();
    let servers = [(); 2].map(|()| start(runtime, &cluster, &[]));
    let mut clients = servers.each_ref().map(Client::login);
    let mut tails = servers.each_ref().map(|server| tail(server, 0));
    let mut sent = Vec::new();
    for n in 0..20 {
        let payload = format!("{n}").into_bytes();
        assert_eq!(clients[n % 2].send(0, std::slice::from_ref(&payload), None), 0);
        sent.push(payload);
        for client in &mut clients {
            // At the other server, offsets may be some milliseconds old.
            wait_until("it is polled", || client.poll_all(0, 100).len() == sent.len());
            assert_eq!(payloads(&client.poll_all(0, 100)), sent);
        }
        for tail in &mut tails {
            assert_eq!(pushed(tail), (n as u64, sent[n].clone()));
        }
    }
    // A topic that appears is found, and has the same numbers.
    cluster.create_topic("r._35F", 3, 1).unwrap();
    for client in &mut clients {
        wait_until("the new topic is found", || client.streams().len() == 2);
        assert_eq!(client.topics("r").len(), 1);
    }
    let [one, other] = clients.each_mut().map(|client| (client.streams(), client.topics("r")));
    assert_eq!(one, other);
    assert_eq!(one.0.iter().map(|(name, _)| &name[..]).filter(|name| *name == "r").count(), 1);
    assert!(matches!(&one.1[..], [(name, _, 3)] if name == "5F"), "{one:?}");
}

/// A name that is unknown is looked for at once, unless that was done a moment ago.
#[test]
fn a_topic_that_is_named_before_it_was_found_is_found() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &[]);
    assert_eq!(status(&events(&server, "s/t", "", b"event")), 200);
    cluster.create_topic("s.new", 1, 1).unwrap();
    thread::sleep(Duration::from_millis(250)); // a name that is unknown is looked for five times a second
    let answer = events(&server, "s/new", "", b"event");
    assert_eq!(status(&answer), 200, "{answer}");
}

/// Each partition that is waited for has a cursor, of which there are 64.
#[test]
fn a_partition_is_polled_while_as_many_are_waited_for_as_can_be() {
    const TAILS: u32 = 64;
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("s.t", TAILS as i32 + 1, 1).unwrap();
    let server = start(RUNTIMES[0], &cluster, &[]);
    let mut client = Client::login(&server);
    let mut tails: Vec<_> = (0..TAILS).map(|partition| tail(&server, partition)).collect();
    thread::sleep(Duration::from_millis(500)); // until all of them wait
    let message = [b"message".to_vec()];
    assert_eq!(client.send(TAILS, &message, None), 0);
    assert_eq!(payloads(&client.poll(TAILS, WirePollingStrategy::first(), 1).unwrap()), message);
    for (partition, tail) in (0..).zip(&mut tails) {
        assert_eq!(client.send(partition, &message, None), 0);
        assert_eq!(pushed(tail), (0, message[0].clone()));
    }
}

//! Every command that the server has of Iggy, by Iggy's own Rust SDK, and many messages each way.
//!
//!     owned-io-server-iggy TRANSPORT ADDR PASSWORD MESSAGES [--tls CERTIFICATE] [fill|read]
//!
//! TRANSPORT is `tcp` or `websocket`. With `--tls` it is over TLS, and CERTIFICATE is the file of the server's certificate,
//! which is for localhost. Sends MESSAGES messages with several producers, and checks that each arrives once, in order,
//! unchanged. The server must be empty. The exit code is 0 if all is as it has to be; else a panic says what is not.
//!
//! `fill` and `read` are the two halves of another check, for a server that is restarted in between. `fill` sends the
//! messages and reads half of them. `read` reads the other half, then all of them, and deletes them.

use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;
use iggy::prelude::*;

/// Messages of a batch while many are sent.
const BATCH: u64 = 1_000;

/// How many clients produce at once, each into a partition of its own.
const PRODUCERS: u32 = 4;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [transport, addr, password, messages, rest @ ..] = &args[..] else {
        panic!(
            "usage: owned-io-server-iggy tcp|websocket ADDR PASSWORD MESSAGES \
             [--tls CERTIFICATE] [fill|read]"
        );
    };
    let (certificate, half) = match rest {
        [option, certificate, half @ ..] if option == "--tls" => (Some(&certificate[..]), half),
        half => (None, half),
    };
    let server = Server { transport, addr, password, certificate };
    let messages = messages.parse().expect("MESSAGES is a number");
    match half.first().map(String::as_str) {
        Some("fill") => return server.fills(messages).await,
        Some("read") => {
            server.reads(messages).await;
            return println!("{transport}: {messages} messages after a restart");
        }
        Some(other) => panic!("there is no {other}"),
        None => {}
    }
    server.refuses_bad_logins().await;
    server.has_streams_and_topics().await;
    server.has_messages_and_offsets().await;
    server.has_groups().await;
    server.tells_its_state().await;
    server.refuses_what_it_has_not().await;
    server.moves(messages).await;
    let over_tls = if certificate.is_some() { " over TLS" } else { "" };
    println!("{transport}{over_tls}: {messages} messages each way, and every command");
}

#[derive(Clone, Copy)]
struct Server<'a> {
    transport: &'a str,
    addr: &'a str,
    password: &'a str,
    /// The file of the certificate. `None`: without TLS.
    certificate: Option<&'a str>,
}

/// Over TLS, if there is a certificate. Nothing else is trusted then.
macro_rules! over_tls {
    ($builder:expr, $certificate:expr) => {
        match $certificate {
            None => $builder,
            Some(certificate) => $builder
                .with_tls_enabled(true)
                .with_tls_domain("localhost".to_owned())
                .with_tls_ca_file(certificate.to_owned()),
        }
    };
}

impl Server<'_> {
    async fn connect(self) -> IggyClient {
        let builder = IggyClientBuilder::new();
        let addr = self.addr.to_owned();
        // The builders have the same methods, and no trait for them.
        let client = match self.transport {
            "tcp" => {
                let builder = builder.with_tcp().with_server_address(addr);
                over_tls!(builder, self.certificate).build()
            }
            "websocket" => {
                let builder = builder.with_websocket().with_server_address(addr);
                over_tls!(builder, self.certificate).build()
            }
            other => panic!("there is no transport {other}"),
        };
        let client = client.expect("the address is right");
        client.connect().await.expect("the server listens");
        client
    }

    async fn login(self) -> IggyClient {
        let client = self.connect().await;
        client.login_user("iggy", self.password).await.expect("the password is right");
        client
    }

    async fn refuses_bad_logins(self) {
        let client = self.connect().await;
        client.ping().await.unwrap();
        for (user, password) in [("iggy", "wrong"), ("nobody", self.password)] {
            let refused = client.login_user(user, password).await.unwrap_err();
            assert_eq!(refused, IggyError::InvalidCredentials);
        }
        assert!(client.get_streams().await.is_err(), "without a login");
        let identity = client.login_user("iggy", self.password).await.unwrap();
        assert_eq!(identity.user_id, 0);
        assert_eq!(client.get_streams().await.unwrap().len(), 0);
        client.logout_user().await.unwrap();
        assert!(client.get_streams().await.is_err(), "after a logout");
    }

    async fn has_streams_and_topics(self) {
        let client = self.login().await;
        let created = client.create_stream("orders").await.unwrap();
        let again = client.create_stream("orders").await.unwrap_err();
        assert_eq!(again, IggyError::StreamNameAlreadyExists(String::new()));
        let (by_name, by_number) = (id("orders"), Identifier::numeric(created.id).unwrap());
        assert_eq!(client.get_stream(&by_name).await.unwrap().unwrap().id, created.id);
        assert_eq!(client.get_stream(&by_number).await.unwrap().unwrap().name, "orders");
        assert!(client.get_stream(&id("none")).await.unwrap().is_none());
        client.update_stream(&by_number, "sales").await.unwrap();
        let stream = id("sales");
        let names = client.get_streams().await.unwrap();
        assert_eq!(names.iter().map(|stream| &stream.name[..]).collect::<Vec<_>>(), ["sales"]);

        let created = create_topic(&client, &stream, "new", 3).await.unwrap();
        assert_eq!((&created.name[..], created.partitions_count), ("new", 3));
        let again = create_topic(&client, &stream, "new", 1).await.unwrap_err();
        assert!(matches!(again, IggyError::TopicNameAlreadyExists(..)), "{again}");
        let topic = Identifier::numeric(created.id).unwrap();
        client
            .update_topic(
                &stream,
                &topic,
                "all",
                CompressionAlgorithm::Gzip,
                None,
                IggyExpiry::NeverExpire,
                MaxTopicSize::Unlimited,
            )
            .await
            .unwrap();
        let found = client.get_topic(&stream, &id("all")).await.unwrap().unwrap();
        assert_eq!(found.compression_algorithm, CompressionAlgorithm::Gzip);
        assert_eq!(found.partitions.iter().map(|it| it.id).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(client.get_topic(&stream, &id("new")).await.unwrap().is_none());
        client.create_partitions(&stream, &topic, 2).await.unwrap();
        client.delete_partitions(&stream, &topic, 4).await.unwrap();
        let topics = client.get_topics(&stream).await.unwrap();
        assert_eq!(topics.iter().map(|topic| topic.partitions_count).collect::<Vec<_>>(), [1]);
        client.delete_topic(&stream, &topic).await.unwrap();
        assert_eq!(client.get_topics(&stream).await.unwrap().len(), 0);
        client.delete_stream(&stream).await.unwrap();
        for name in ["a/b", "a\0b"] {
            assert!(client.create_stream(name).await.is_err(), "{name:?}");
        }
        client.shutdown().await.unwrap();
    }

    async fn has_messages_and_offsets(self) {
        let client = self.login().await;
        let (stream, topic) = (id("s"), id("t"));
        client.create_stream("s").await.unwrap();
        create_topic(&client, &stream, "t", 2).await.unwrap();
        let send = async |to: Partitioning, payloads: &[&str]| {
            let mut messages: Vec<_> =
                payloads.iter().map(|payload| IggyMessage::from_str(payload).unwrap()).collect();
            client.send_messages(&stream, &topic, &to, &mut messages).await
        };
        send(Partitioning::partition_id(0), &["0", "1", "2"]).await.unwrap();
        send(Partitioning::partition_id(0), &["3", "4"]).await.unwrap();
        assert!(send(Partitioning::partition_id(7), &["lost"]).await.is_err());
        let consumer = Consumer::new(id("reader"));
        let poll = async |strategy: PollingStrategy, count, auto_commit| -> Vec<String> {
            let consumer = &consumer;
            let polled = client
                .poll_messages(&stream, &topic, Some(0), consumer, &strategy, count, auto_commit)
                .await
                .unwrap();
            for message in &polled.messages {
                assert!(message.header.timestamp > 0 && message.header.id != 0);
                assert_eq!(message.header.offset.to_string(), message.payload_as_string().unwrap());
            }
            polled.messages.iter().map(|message| message.payload_as_string().unwrap()).collect()
        };
        let long_ago = IggyTimestamp::from(1);
        for (strategy, count, expected) in [
            (PollingStrategy::first(), 2, &["0", "1"][..]),
            (PollingStrategy::last(), 2, &["3", "4"]),
            (PollingStrategy::offset(1), 3, &["1", "2", "3"]),
            (PollingStrategy::offset(5), 3, &[]),
            (PollingStrategy::timestamp(long_ago), 4, &["0", "1", "2", "3"]),
            (PollingStrategy::timestamp(IggyTimestamp::from(u64::MAX)), 4, &[]),
            (PollingStrategy::next(), 3, &["0", "1", "2"]),
        ] {
            assert_eq!(poll(strategy, count, false).await, expected);
        }
        for expected in [&["0", "1", "2"][..], &["3", "4"], &[]] {
            assert_eq!(poll(PollingStrategy::next(), 3, true).await, expected);
        }
        let at = Some(0);
        let offset = client.get_consumer_offset(&consumer, &stream, &topic, at).await.unwrap();
        let offset = offset.unwrap();
        assert_eq!((offset.stored_offset, offset.current_offset, offset.partition_id), (4, 4, 0));
        client.store_consumer_offset(&consumer, &stream, &topic, at, 1).await.unwrap();
        assert_eq!(poll(PollingStrategy::next(), 1, false).await, ["2"]);
        assert!(client.store_consumer_offset(&consumer, &stream, &topic, at, 5).await.is_err());
        client.delete_consumer_offset(&consumer, &stream, &topic, at).await.unwrap();
        let offset = client.get_consumer_offset(&consumer, &stream, &topic, at).await.unwrap();
        assert!(offset.is_none());
        client.flush_unsaved_buffer(&stream, &topic, 0, true).await.unwrap();

        for _ in 0..4 {
            send(Partitioning::balanced(), &["balanced"]).await.unwrap();
        }
        let key = Partitioning::messages_key_str("customer 7").unwrap();
        for _ in 0..3 {
            send(key.clone(), &["keyed"]).await.unwrap();
        }
        let found = client.get_topic(&stream, &topic).await.unwrap().unwrap();
        let counts: Vec<_> = found.partitions.iter().map(|it| it.messages_count).collect();
        assert!(counts == [7, 5] || counts == [10, 2], "{counts:?}");
        client.purge_topic(&stream, &topic).await.unwrap();
        assert_eq!(poll(PollingStrategy::first(), 1, false).await, [""; 0]);
        send(Partitioning::partition_id(0), &["0"]).await.unwrap();
        client.purge_stream(&stream).await.unwrap();
        let found = client.get_topic(&stream, &topic).await.unwrap().unwrap();
        assert_eq!(found.messages_count, 0);
        client.delete_stream(&stream).await.unwrap();
    }

    async fn has_groups(self) {
        let (one, two) = (self.login().await, self.login().await);
        let (stream, topic, group) = (id("s"), id("t"), id("g"));
        one.create_stream("s").await.unwrap();
        create_topic(&one, &stream, "t", 2).await.unwrap();
        one.create_consumer_group(&stream, &topic, "g").await.unwrap();
        assert!(one.create_consumer_group(&stream, &topic, "g").await.is_err());
        assert_eq!(one.get_consumer_groups(&stream, &topic).await.unwrap().len(), 1);
        for client in [&one, &two] {
            client.join_consumer_group(&stream, &topic, &group).await.unwrap();
        }
        let details = one.get_consumer_group(&stream, &topic, &group).await.unwrap().unwrap();
        assert_eq!((details.members_count, details.partitions_count), (2, 2));
        assert!(details.members.iter().all(|member| member.partitions.len() == 1));
        for partition in [0, 1] {
            let mut messages = [IggyMessage::from_str(&partition.to_string()).unwrap()];
            let to = Partitioning::partition_id(partition);
            one.send_messages(&stream, &topic, &to, &mut messages).await.unwrap();
        }
        let consumer = Consumer::group(group.clone());
        let mut seen = Vec::new();
        for client in [&one, &two] {
            for _ in 0..2 {
                let polled = client
                    .poll_messages(
                        &stream,
                        &topic,
                        None,
                        &consumer,
                        &PollingStrategy::next(),
                        9,
                        true,
                    )
                    .await
                    .unwrap();
                seen.extend(polled.messages.iter().map(|it| it.payload_as_string().unwrap()));
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, ["0", "1"], "each message once");
        let me = two.get_me().await.unwrap();
        assert_eq!(me.consumer_groups_count, 1);
        two.leave_consumer_group(&stream, &topic, &group).await.unwrap();
        let details = one.get_consumer_group(&stream, &topic, &group).await.unwrap().unwrap();
        assert_eq!((details.members_count, details.members[0].partitions.len()), (1, 2));
        one.delete_consumer_group(&stream, &topic, &group).await.unwrap();
        assert!(one.get_consumer_group(&stream, &topic, &group).await.unwrap().is_none());
        one.delete_stream(&stream).await.unwrap();
    }

    async fn tells_its_state(self) {
        let client = self.login().await;
        let me = client.get_me().await.unwrap();
        assert_eq!(me.user_id, Some(0));
        assert!(me.address.starts_with("127.0.0.1:"), "{}", me.address);
        let transport = if self.transport == "tcp" { "TCP" } else { "WebSocket" };
        assert_eq!(me.transport, transport);
        assert_eq!(client.get_client(me.client_id).await.unwrap().unwrap().client_id, me.client_id);
        let clients = client.get_clients().await.unwrap();
        assert!(clients.iter().any(|other| other.client_id == me.client_id));
        let stats = client.get_stats().await.unwrap();
        assert!(stats.process_id > 0 && stats.clients_count > 0);
        let cluster = client.get_cluster_metadata().await.unwrap();
        assert_eq!(cluster.nodes.len(), 1);
    }

    async fn refuses_what_it_has_not(self) {
        let client = self.login().await;
        let refused = client.get_users().await.unwrap_err();
        assert_eq!(refused, IggyError::FeatureUnavailable);
        client.ping().await.unwrap();
    }

    /// `messages` messages from several producers, and back.
    async fn moves(self, messages: u64) {
        let client = self.login().await;
        self.creates_many(&client).await;
        let each = messages / u64::from(PRODUCERS);
        let producers = (0..PRODUCERS).map(async |partition| {
            self.produce(partition, each).await;
            self.consume(1, partition, 0..each).await;
        });
        futures_util::future::join_all(producers).await;
        client.delete_stream(&id("many")).await.unwrap();
    }

    /// `messages` messages from several producers, of which consumers read half.
    async fn fills(self, messages: u64) {
        let client = self.login().await;
        self.creates_many(&client).await;
        client.create_consumer_group(&id("many"), &id("t"), "g").await.unwrap();
        let each = messages / u64::from(PRODUCERS);
        let producers = (0..PRODUCERS).map(async |partition| {
            self.produce(partition, each).await;
            self.consume(1, partition, 0..each / 2).await;
        });
        futures_util::future::join_all(producers).await;
    }

    /// What [`fills`](Self::fills) has left: the consumers go on where they were, and others read everything.
    async fn reads(self, messages: u64) {
        let client = self.login().await;
        let groups = client.get_consumer_groups(&id("many"), &id("t")).await.unwrap();
        assert_eq!(groups.iter().map(|group| &group.name[..]).collect::<Vec<_>>(), ["g"]);
        let each = messages / u64::from(PRODUCERS);
        let consumers = (0..PRODUCERS).map(async |partition| {
            self.consume(1, partition, each / 2..each).await;
            self.consume(2, partition, 0..each).await;
        });
        futures_util::future::join_all(consumers).await;
        client.delete_stream(&id("many")).await.unwrap();
    }

    /// The stream `many`, with a topic of a partition for each producer.
    async fn creates_many(self, client: &IggyClient) {
        client.create_stream("many").await.unwrap();
        create_topic(client, &id("many"), "t", PRODUCERS).await.unwrap();
    }

    async fn produce(self, partition: u32, count: u64) {
        let client = self.login().await;
        let to = Partitioning::partition_id(partition);
        for start in (0..count).step_by(BATCH as usize) {
            let batch = start..count.min(start + BATCH);
            let mut messages: Vec<_> = batch.map(|n| message(partition, n)).collect();
            client.send_messages(&id("many"), &id("t"), &to, &mut messages).await.unwrap();
        }
    }

    /// Reads messages, and stores the offset with each poll. The last offset that the consumer has stored is the one
    /// before them.
    async fn consume(self, consumer: u32, partition: u32, numbers: Range<u64>) {
        let client = self.login().await;
        let consumer = Consumer::new(Identifier::numeric(consumer).unwrap());
        let mut next = numbers.start;
        while next < numbers.end {
            let (stream, topic, strategy) = (id("many"), id("t"), PollingStrategy::next());
            let count = (numbers.end - next).min(700) as u32;
            let polled = client
                .poll_messages(&stream, &topic, Some(partition), &consumer, &strategy, count, true)
                .await
                .unwrap();
            assert!(!polled.messages.is_empty(), "{next} of {} have come", numbers.end);
            for received in polled.messages {
                let sent = message(partition, next);
                assert_eq!(received.header.offset, next);
                assert_eq!(received.payload, sent.payload, "message {next}");
                assert_eq!(received.header.id, sent.header.id);
                next += 1;
            }
        }
        assert_eq!(next, numbers.end);
    }
}

/// Message `n` of a partition: its length and its bytes follow from both numbers.
fn message(partition: u32, n: u64) -> IggyMessage {
    let seed = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(partition.into());
    let len = 8 + (seed >> 32) as usize % 400;
    let payload: Vec<u8> = seed.to_le_bytes().into_iter().cycle().take(len).collect();
    let id = u128::from(n) + 1;
    IggyMessage::builder()
        .id(id)
        .payload(Bytes::from(payload))
        .build()
        .expect("a payload of this length")
}

async fn create_topic(
    client: &IggyClient,
    stream: &Identifier,
    name: &str,
    partitions: u32,
) -> Result<TopicDetails, IggyError> {
    let (compression, expiry) = (CompressionAlgorithm::None, IggyExpiry::NeverExpire);
    client
        .create_topic(stream, name, partitions, compression, None, expiry, MaxTopicSize::Unlimited)
        .await
}

fn id(name: &str) -> Identifier {
    Identifier::named(name).expect("a name")
}

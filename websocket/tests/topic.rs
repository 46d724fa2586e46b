//! Topics, on the simulator. Reads and writes are short everywhere, and each test runs under many seeds.

mod common;
mod ends;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use common::{CLOSE, FIN, Got, PING, Reader, Role, frame, message};
use ends::{
    NORMAL, Protocol, Socket, buffers, pair, raw_client, read_to_end, seconds_since, simulate,
};
use owned_io::{
    Clock, Executor, JoinHandle, MemoryBudget, OwnedRead, OwnedWriteExt, Pool, PoolConfig, select,
};
use owned_io_sim::Sim;
use owned_io_websocket::stream::Buffers;
use owned_io_websocket::{
    CloseCode, Config, Error, Fragment, Lagged, Limit, Message, MessageKind, Misuse, OnLag,
    Outgoing, Subscriber, Timeout, Topic, WebSocket,
};

const KIB: usize = 1024;
const MS: Duration = Duration::from_millis(1);
const BIN: MessageKind = MessageKind::Binary;

/// Without pings: the write of one also continues with what a topic has failed to deliver.
fn quiet() -> Config {
    let mut config = Config::default();
    config.stream.ping_interval = None;
    config
}

fn topic(kept_bytes_max: usize) -> Topic {
    Topic::new::<Sim>(&buffers(), kept_bytes_max)
}

/// Message number `n` of a topic: its number, and `len` bytes more.
fn numbered(n: u32, len: usize) -> Vec<u8> {
    [&n.to_be_bytes()[..], &vec![n as u8; len]].concat()
}

fn publish(topic: &Topic, payload: &[u8]) {
    topic.publish(Message::Binary(payload)).unwrap();
}

/// Receives until the connection ends, and keeps the subscription meanwhile.
fn serve(socket: Socket, subscriber: Subscriber) -> JoinHandle<Result<(), Error>> {
    let WebSocket { mut incoming, outgoing } = socket;
    Sim::spawn(async move {
        let (_outgoing, _subscriber) = (outgoing, subscriber);
        while incoming.receive().await?.is_some() {}
        Ok(())
    })
}

/// A client of a server that subscribes it and then only receives.
async fn subscribed(topic: &Topic, on_lag: OnLag) -> (Socket, JoinHandle<Result<(), Error>>) {
    let (server, client) = pair(quiet(), quiet()).await;
    let subscriber = topic.subscribe(&server.outgoing, on_lag).unwrap();
    (client, serve(server, subscriber))
}

async fn receive(client: &mut Socket) -> Vec<u8> {
    client.incoming.receive().await.unwrap().expect("a message").as_bytes().to_vec()
}

fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(*payload.first_chunk().unwrap())
}

#[test]
fn each_subscriber_gets_each_message_from_its_subscription_on_in_order() {
    const LENGTHS: [usize; 9] = [0, 1, 121, 122, 1019, 1020, 5_000, 65_531, 65_532];
    const MESSAGES: u32 = 60;
    simulate(|| async {
        let topic = topic(1024 * KIB);
        let mut receiving = Vec::new();
        for n in 0..MESSAGES {
            if n < 20 {
                // Some messages are published and not delivered when it subscribes.
                let (mut client, serving) = subscribed(&topic, OnLag::Close).await;
                publish(&topic, &numbered(n, 10));
                receiving.push(Sim::spawn(async move {
                    for expected in n..MESSAGES {
                        let len = if expected < 20 { 10 } else { LENGTHS[expected as usize % 9] };
                        assert_eq!(receive(&mut client).await, numbered(expected, len));
                    }
                    client.close(NORMAL).await.unwrap();
                    serving.await.unwrap().unwrap();
                }));
                continue;
            }
            publish(&topic, &numbered(n, LENGTHS[n as usize % 9]));
            if n % 3 == 0 {
                topic.flush().await;
            }
            if n % 7 == 0 {
                Sim::sleep(MS).await;
            }
        }
        for received in receiving {
            received.await.unwrap();
        }
        assert_eq!(topic.published(), u64::from(MESSAGES));
        assert_eq!((topic.kept_bytes(), topic.subscriber_count()), (0, 0), "nobody needs it");
    });
}

/// "If more than `kept_bytes_max` bytes would be kept, the oldest are dropped."
#[test]
fn a_slow_reader_lags_and_resumes_without_harm_to_others() {
    const MESSAGES: u32 = 200;
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (mut fast, _serving) = subscribed(&topic, OnLag::Close).await;
        let all = Sim::spawn(async move {
            for n in 0..MESSAGES {
                assert_eq!(receive(&mut fast).await, numbered(n, 2_000));
            }
            assert_eq!(receive(&mut fast).await, b"after");
        });
        let (slow_server, mut slow) = pair(quiet(), quiet()).await;
        let WebSocket { mut incoming, outgoing } = slow_server;
        let mut subscriber = topic.subscribe(&outgoing, OnLag::Pause).unwrap();
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        for n in 0..MESSAGES {
            publish(&topic, &numbered(n, 2_000));
            Sim::sleep(2 * MS).await;
            assert!(topic.kept_bytes() <= 64 * KIB);
        }
        // Nobody told it before, because its socket was full. Now it reads.
        let reading = Sim::spawn(async move {
            let mut numbers = Vec::new();
            loop {
                match receive(&mut slow).await {
                    after if after == b"after" => return numbers,
                    payload => numbers.push(number(&payload)),
                }
            }
        });
        let Lagged { missed } = subscriber.lagged().await.expect("it has lagged");
        assert!(missed > 0);
        assert_eq!(subscriber.position() + missed, u64::from(MESSAGES));
        assert_eq!(subscriber.resume(), Some(Lagged { missed }));
        assert_eq!(subscriber.resume(), None);
        publish(&topic, b"after");
        let numbers = reading.await.unwrap();
        assert!(numbers.iter().copied().eq(0..MESSAGES - missed as u32), "a prefix, in order");
        all.await.unwrap();
    });
}

/// Messages that are published and sealed by a new subscription were not offered to anybody yet.
#[test]
fn new_subscriptions_make_no_idle_subscriber_lag() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (mut idle, _serving) = subscribed(&topic, OnLag::Close).await;
        let (server, _client) = pair(quiet(), quiet()).await;
        let mut accepted = 0;
        for n in 0..4 {
            let payload = numbered(n, 20 * KIB);
            match topic.publish(Message::Binary(&payload)) {
                Ok(()) => accepted += 1,
                Err(error) => {
                    let is_full = matches!(error, Protocol::Limit { limit: Limit::Queue, .. });
                    assert!(is_full, "{error:?}");
                }
            }
            drop(topic.subscribe(&server.outgoing, OnLag::Close).unwrap());
            assert!(topic.kept_bytes() <= 64 * KIB);
        }
        assert_eq!(accepted, 3);
        for n in 0..accepted {
            assert_eq!(receive(&mut idle).await, numbered(n, 20 * KIB));
        }
        publish(&topic, b"room again");
        assert_eq!(receive(&mut idle).await, b"room again");
    });
}

/// "The bytes that are kept for slow subscribers, at most `kept_bytes_max`."
#[test]
fn a_message_that_fills_the_topic_keeps_to_the_bound() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (_slow, _serving) = subscribed(&topic, OnLag::Pause).await;
        for len in (64 * KIB - 200..64 * KIB).step_by(50).cycle().take(20) {
            let _ = topic.publish(Message::Binary(&vec![7; len]));
            topic.flush().await;
            assert!(topic.kept_bytes() <= 64 * KIB, "{}", topic.kept_bytes());
        }
    });
}

/// `send` waits for room, unless there can never be any.
#[test]
fn members_who_publish_much_wait_for_room() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (mut client, _serving) = subscribed(&topic, OnLag::Pause).await;
        let sending: Vec<_> = (0..10)
            .map(|n| {
                let topic = topic.clone();
                Sim::spawn(async move {
                    topic.send(Message::Binary(&numbered(n, 20 * KIB))).await.unwrap();
                })
            })
            .collect();
        for sent in sending {
            sent.await.unwrap();
        }
        assert_eq!(receive(&mut client).await.len(), 20 * KIB + 4);
        assert_eq!(topic.published(), 10);
        let refused = topic.send(Message::Binary(&vec![0; 64 * KIB])).await.unwrap_err();
        assert!(matches!(refused, Protocol::Limit { limit: Limit::Queue, .. }), "{refused:?}");
    });
}

/// Others publish and subscribe in each turn. That does not prolong a flush.
#[test]
fn a_flush_ends_although_others_publish() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let mut clients = Vec::new();
        for _ in 0..60 {
            clients.push(subscribed(&topic, OnLag::Pause).await);
        }
        let others = {
            let topic = topic.clone();
            async move {
                let (server, _client) = pair(quiet(), quiet()).await;
                loop {
                    let _ = topic.publish(Message::Binary(&[7; 10]));
                    drop(topic.subscribe(&server.outgoing, OnLag::Close).unwrap());
                    Sim::sleep(Duration::ZERO).await;
                }
            }
        };
        let flushing = async {
            for _ in 0..5 {
                publish(&topic, b"flushed");
                topic.flush().await;
            }
        };
        let limit = async {
            select(pin!(others), Sim::sleep(Duration::from_secs(5))).await;
        };
        assert!(select(pin!(flushing), limit).await.first.is_some());
    });
}

/// A lag is noticed while the connection may not send whole messages, and it is returned once.
#[test]
fn a_lag_within_a_message_is_returned_once() {
    for on_lag in [OnLag::Pause, OnLag::Close] {
        simulate(|| async move {
            let topic = topic(64 * KIB);
            let (server, mut client) = pair(quiet(), quiet()).await;
            let WebSocket { mut incoming, mut outgoing } = server;
            let mut subscriber = topic.subscribe(&outgoing, on_lag).unwrap();
            outgoing.write_fragment(Fragment::First(BIN), b"its own ").unwrap();
            outgoing.flush().await.unwrap();
            drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
            for n in 0..4 {
                publish(&topic, &numbered(n, 30_000));
                Sim::sleep(MS).await;
            }
            let soon = Sim::sleep(Duration::from_secs(1));
            let lagged = select(pin!(subscriber.lagged()), soon).await.first;
            assert!(matches!(lagged, Some(Some(Lagged { missed: 1..=4 }))), "{lagged:?}");
            let soon = Sim::sleep(Duration::from_secs(1));
            let again = select(pin!(subscriber.lagged()), soon).await.first;
            if on_lag == OnLag::Close {
                assert_eq!(again, Some(None));
                return;
            }
            assert_eq!(again, None, "it waits");
            assert!(subscriber.resume().is_some());
            outgoing.write_fragment(Fragment::Last, b"message").unwrap();
            outgoing.flush().await.unwrap();
            publish(&topic, b"after");
            assert_eq!(receive(&mut client).await, b"its own message");
            assert_eq!(receive(&mut client).await, b"after");
        });
    }
}

#[test]
fn a_subscriber_that_lags_is_closed_if_the_caller_wants_that() {
    simulate(|| async {
        let topic = topic(32 * KIB);
        let (mut client, serving) = subscribed(&topic, OnLag::Close).await;
        for n in 0..100 {
            publish(&topic, &numbered(n, 2_000));
            Sim::sleep(2 * MS).await;
        }
        let mut expected = 0;
        while let Some(message) = client.incoming.receive().await.unwrap() {
            assert_eq!(message, Message::Binary(&numbered(expected, 2_000)));
            expected += 1;
        }
        assert!(expected < 100);
        let close = client.incoming.peer_close().unwrap();
        assert_eq!((close.code, close.reason), (Some(CloseCode::TRY_AGAIN), "lagged"));
        serving.await.unwrap().unwrap();
        assert_eq!(topic.subscriber_count(), 0);
    });
}

/// "If the peer accepts nothing at all, the `write_timeout` ends the connection."
#[test]
fn a_peer_that_accepts_nothing_times_out() {
    simulate(|| async {
        let topic = topic(512 * KIB);
        let (_client, serving) = subscribed(&topic, OnLag::Close).await;
        let began = Sim::now();
        publish(&topic, &[7; 200 * KIB]); // more than the socket takes
        let error = serving.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Write))), "{error:?}");
        assert_eq!(seconds_since(began), 60);
        assert_eq!(topic.subscriber_count(), 0);
    });
}

#[test]
fn a_subscriber_vanishes() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (mut stays, _serving) = subscribed(&topic, OnLag::Close).await;
        for n in 0..20 {
            let (client, serving) = subscribed(&topic, OnLag::Close).await;
            publish(&topic, &numbered(n, 3_000));
            if n % 2 == 0 {
                Sim::sleep(MS).await;
            }
            drop(client);
            publish(&topic, &numbered(n, 4_000));
            assert_eq!(receive(&mut stays).await, numbered(n, 3_000));
            assert_eq!(receive(&mut stays).await, numbered(n, 4_000));
            assert!(serving.await.unwrap().is_err());
        }
        assert_eq!((topic.kept_bytes(), topic.subscriber_count()), (0, 1));
    });
}

#[test]
fn a_connection_that_is_dropped_before_its_subscription_needs_nothing() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (server, client) = pair(quiet(), quiet()).await;
        let mut subscriber = topic.subscribe(&server.outgoing, OnLag::Pause).unwrap();
        publish(&topic, b"in its way");
        drop((server, client));
        assert_eq!(subscriber.lagged().await, None);
        publish(&topic, b"lost");
        topic.flush().await;
        assert_eq!(topic.kept_bytes(), 0);
    });
}

#[test]
fn without_subscribers_messages_are_only_counted() {
    simulate(|| async {
        let budget = MemoryBudget::new(1024 * KIB);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let topic = Topic::new::<Sim>(&buffers, 64 * KIB);
        (0..100).for_each(|n| publish(&topic, &numbered(n, 2_000)));
        assert_eq!((topic.published(), budget.common_bytes_held()), (100, 0));
        let (mut client, _serving) = subscribed(&topic, OnLag::Close).await;
        publish(&topic, b"first");
        assert_eq!(receive(&mut client).await, b"first");
    });
}

#[test]
fn large_messages_and_the_bound_of_a_turn() {
    simulate(|| async {
        let topic = topic(400 * KIB);
        let (mut client, _serving) = subscribed(&topic, OnLag::Close).await;
        let large = numbered(0, 300 * KIB);
        publish(&topic, &large);
        let full = topic.publish(Message::Binary(&large));
        let is_full = |result| {
            matches!(result, Err(Protocol::Limit { limit: Limit::Queue, max: 409_600, .. }))
        };
        assert!(is_full(full), "{full:?}");
        topic.flush().await; // makes room
        assert_eq!(receive(&mut client).await, large);
        publish(&topic, &large);
        assert_eq!(receive(&mut client).await, large);
        assert!(is_full(topic.publish(Message::Binary(&vec![0; 400 * KIB]))), "it can never fit");
        assert_eq!(topic.published(), 2);
        topic.publish(Message::Text("text")).unwrap();
        assert_eq!(client.incoming.receive().await.unwrap(), Some(Message::Text("text")));
    });
}

/// "It reserves at most about four times `kept_bytes_max`."
#[test]
fn peers_that_never_read_hold_a_bounded_part_of_the_budget() {
    const KEPT: usize = 64 * KIB;
    simulate(|| async {
        let budget = MemoryBudget::new(4 * 1024 * KIB);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let topic = Topic::new::<Sim>(&buffers, KEPT);
        let mut stuck = Vec::new();
        for n in 0..100 {
            // Each of them is stuck in another message.
            if n < 40 {
                stuck.push(subscribed(&topic, OnLag::Close).await);
            }
            publish(&topic, &numbered(n, 30 * KIB));
            Sim::sleep(MS).await;
            let held = budget.common_bytes_held();
            assert!(held <= 5 * KEPT, "{held} bytes");
        }
        drop(stuck);
        Sim::sleep(Duration::from_secs(1)).await;
        assert_eq!((topic.subscriber_count(), budget.common_bytes_held()), (0, 0));
    });
}

#[test]
fn an_evicted_topic_drops_what_it_keeps() {
    simulate(|| async {
        let budget = MemoryBudget::new(200 * KIB);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let topic = Topic::new::<Sim>(&buffers, 190 * KIB);
        let (_slow, _slow_serving) = subscribed(&topic, OnLag::Pause).await;
        let (mut fast, _serving) = subscribed(&topic, OnLag::Pause).await;
        for n in 0..20 {
            publish(&topic, &numbered(n, 10 * KIB));
            assert_eq!(number(&receive(&mut fast).await), n);
        }
        assert!(budget.common_bytes_held() > 100 * KIB, "the slow one needs it");
        let mut other = budget.account().reservation();
        while other.resize(150 * KIB).is_err() {
            budget.evict_holders(Sim::now());
            Sim::sleep(MemoryBudget::ROUND).await;
        }
        assert_eq!(topic.kept_bytes(), 0);
        publish(&topic, b"again");
        assert_eq!(receive(&mut fast).await, b"again");
    });
}

/// Reserves memory that a topic holds. Panics if the topic does not release it.
async fn reserve_by_eviction(budget: &MemoryBudget, bytes: usize) {
    let mut other = budget.account().reservation();
    for _ in 0..10 {
        if other.resize(bytes).is_ok() {
            return;
        }
        budget.evict_holders(Sim::now());
        Sim::sleep(MemoryBudget::ROUND).await;
    }
    panic!("no memory was released");
}

/// A delivery that never ends, because messages are published in each turn, does not delay an eviction.
#[test]
fn a_topic_is_evicted_under_load() {
    simulate(|| async {
        let budget = MemoryBudget::new(200 * KIB);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let topic = Topic::new::<Sim>(&buffers, 190 * KIB);
        let mut clients = Vec::new();
        for _ in 0..60 {
            let (mut client, serving) = subscribed(&topic, OnLag::Pause).await;
            let receiving =
                Sim::spawn(
                    async move { while let Ok(Some(_)) = client.incoming.receive().await {} },
                );
            clients.push((serving, receiving));
        }
        let (_slow, _slow_serving) = subscribed(&topic, OnLag::Pause).await;
        for _ in 0..16 {
            publish(&topic, &[7; 10 * KIB]);
            Sim::sleep(MS).await;
        }
        let mut other = budget.account().reservation();
        let mut turns = 0;
        while other.resize(150 * KIB).is_err() {
            let _ = topic.publish(Message::Binary(b"load"));
            Sim::sleep(Duration::ZERO).await;
            if turns == 20 {
                // As if others had waited for a long time.
                (0..20).for_each(|n| budget.evict_holders(Sim::now() + n * MemoryBudget::ROUND));
            }
            turns += 1;
            assert!(turns < 200, "the topic releases nothing");
        }
        assert!(turns >= 20, "the slow one needs it");
    });
}

#[test]
fn a_topic_that_has_ended_is_evicted() {
    simulate(|| async {
        let budget = MemoryBudget::new(200 * KIB);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let topic = Topic::new::<Sim>(&buffers, 190 * KIB);
        let (_slow, serving) = subscribed(&topic, OnLag::Pause).await;
        for _ in 0..18 {
            publish(&topic, &[7; 10 * KIB]);
            Sim::sleep(MS).await;
        }
        drop(topic);
        Sim::sleep(MS).await;
        assert!(budget.common_bytes_held() > 100 * KIB, "the slow one needs it");
        reserve_by_eviction(&budget, 150 * KIB).await;
        drop(serving);
    });
}

/// The memory of a topic is its own, and an eviction of a connection does not concern it.
#[test]
fn a_topic_has_its_own_account() {
    simulate(|| async {
        let budget = MemoryBudget::new(1024 * KIB);
        let account = budget.account();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let topic = Topic::new::<Sim>(&buffers.with_account(&account), 64 * KIB);
        let (mut client, _serving) = subscribed(&topic, OnLag::Close).await;
        publish(&topic, &[7; 10 * KIB]);
        assert_eq!((account.held_bytes(), budget.common_bytes_held() > 0), (0, true));
        assert_eq!(receive(&mut client).await, [7; 10 * KIB]);
    });
}

#[test]
fn without_memory_nothing_is_published() {
    simulate(|| async {
        let budget = MemoryBudget::new(64 * KIB);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let topic = Topic::new::<Sim>(&buffers, 64 * KIB);
        let (mut client, _serving) = subscribed(&topic, OnLag::Close).await;
        let mut other = budget.account().reservation();
        other.resize(60 * KIB).unwrap();
        let refused = topic.publish(Message::Binary(&[7; 10 * KIB])).unwrap_err();
        assert!(matches!(refused, Protocol::Limit { limit: Limit::Memory, .. }), "{refused:?}");
        drop(other);
        publish(&topic, &[7; 10 * KIB]);
        assert_eq!(receive(&mut client).await, [7; 10 * KIB]);
        assert_eq!(topic.published(), 1);
    });
}

/// "When the last handle is dropped, the topic ends: what was published is still sent, the connections stay open."
#[test]
fn the_last_handle_ends_the_topic() {
    simulate(|| async {
        let topic = topic(256 * KIB);
        let (server, mut client) = pair(quiet(), quiet()).await;
        let WebSocket { mut incoming, mut outgoing } = server;
        let mut subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        let ended = Sim::spawn(async move { subscriber.lagged().await });
        let other = topic.clone();
        drop(topic);
        for n in 0..5 {
            publish(&other, &numbered(n, 40 * KIB)); // more than the socket takes
            Sim::sleep(MS).await;
        }
        drop(other);
        for n in 0..5 {
            assert_eq!(receive(&mut client).await, numbered(n, 40 * KIB));
        }
        assert_eq!(ended.await.unwrap(), None);
        outgoing.send(Message::Text("still open")).await.unwrap();
        assert_eq!(receive(&mut client).await, b"still open");
    });
}

/// A connection that only receives answers pings and the peer's close frame between the messages of a topic.
#[test]
fn pings_and_a_close_are_answered_meanwhile() {
    simulate(|| async {
        let topic = topic(512 * KIB);
        let (server, mut raw) = raw_client(quiet(), buffers(), b"").await;
        let subscriber = topic.subscribe(&server.outgoing, OnLag::Close).unwrap();
        let serving = serve(server, subscriber);
        let publishing = Sim::spawn(async move {
            for n in 0..100 {
                publish(&topic, &numbered(n, 1_000));
                if n % 4 == 0 {
                    Sim::sleep(MS).await;
                }
            }
            topic
        });
        let mut reader = Reader::new(Role::Client, Config::default());
        for n in 0..20_u8 {
            raw.write_all(frame(Role::Server, FIN | PING, &[n])).await.into_result().unwrap();
            let bytes;
            (_, bytes) = raw.read(Vec::with_capacity(4 * KIB)).await.into_result().unwrap();
            reader.feed(&bytes).unwrap();
        }
        let messages =
            |got: &[Got]| got.iter().filter(|got| matches!(got, Got::Message(..))).count();
        while messages(&reader.got) < 100 {
            let (_, bytes) = raw.read(Vec::with_capacity(4 * KIB)).await.into_result().unwrap();
            reader.feed(&bytes).unwrap();
        }
        let _topic = publishing.await.unwrap();
        let close = frame(Role::Server, FIN | CLOSE, &1000_u16.to_be_bytes());
        raw.write_all(close).await.into_result().unwrap();
        reader.feed(&read_to_end(&mut raw).await).unwrap();
        serving.await.unwrap().unwrap();

        let (mut pongs, mut numbers) = (0, 0);
        for got in &reader.got[..reader.got.len() - 1] {
            match got {
                Got::Pong(payload) => {
                    assert_eq!(*payload, [pongs]);
                    pongs += 1;
                }
                got => {
                    assert_eq!(*got, message(BIN, &numbered(numbers, 1_000)));
                    numbers += 1;
                }
            }
        }
        assert_eq!((pongs, numbers), (20, 100));
        assert_eq!(reader.got.last(), Some(&Got::Close(Some(CloseCode::NORMAL), String::new())));
    });
}

/// "A message is never sent within another."
#[test]
fn own_messages_and_several_topics_interleave_by_whole_messages() {
    simulate(|| async {
        let topics = [topic(512 * KIB), topic(512 * KIB)];
        let (server, mut client) = pair(quiet(), quiet()).await;
        let WebSocket { mut incoming, mut outgoing } = server;
        let subscribers =
            topics.each_ref().map(|topic| topic.subscribe(&outgoing, OnLag::Close).unwrap());
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        let sending = Sim::spawn(async move {
            for _ in 0..20 {
                outgoing.write_fragment(Fragment::First(BIN), &[2; 3_000]).unwrap();
                outgoing.flush().await.unwrap();
                Sim::sleep(MS).await;
                outgoing.write_fragment(Fragment::Last, &[2; 3_000]).unwrap();
                outgoing.send(Message::Binary(&[2; 10])).await.unwrap();
                Sim::sleep(MS).await;
            }
            (outgoing, subscribers)
        });
        let publishing = Sim::spawn(async move {
            for _ in 0..100 {
                publish(&topics[0], &[0; 1_500]);
                publish(&topics[1], &[1; 20]);
                topics[1].flush().await;
                Sim::sleep(MS / 2).await;
            }
            topics
        });
        let mut counts = [0; 4];
        while counts != [100, 100, 20, 20] {
            let payload = receive(&mut client).await;
            let which = usize::from(payload[0]);
            let len = [[1_500, 1_500], [20, 20], [6_000, 10]][which];
            let at = len.iter().position(|len| *len == payload.len()).expect("a whole message");
            assert!(payload.iter().all(|byte| *byte == payload[0]));
            counts[which + at] += 1;
        }
        drop((sending.await.unwrap(), publishing.await.unwrap()));
    });
}

/// "Messages of a `Topic` are not waited for."
#[test]
fn a_flush_does_not_wait_for_topics() {
    simulate(|| async {
        let topic = topic(512 * KIB);
        let (server, client) = pair(quiet(), quiet()).await;
        let WebSocket { mut incoming, mut outgoing } = server;
        let _subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        publish(&topic, &[0; 300 * KIB]); // more than the socket takes
        topic.flush().await;
        outgoing.flush().await.unwrap();
        drop(client);
    });
}

/// A delivery to many subscribers lets other tasks run.
#[test]
fn a_delivery_is_charged_to_the_work_budget() {
    owned_io_sim::block_on(async {
        let topic = topic(64 * KIB);
        let mut all = Vec::new();
        for _ in 0..300 {
            all.push(subscribed(&topic, OnLag::Close).await);
        }
        Sim::sleep(Duration::from_millis(10)).await;
        let turns = Rc::new(Cell::new(0));
        let counting = {
            let turns = Rc::clone(&turns);
            async move {
                loop {
                    Sim::sleep(Duration::ZERO).await;
                    turns.set(turns.get() + 1);
                }
            }
        };
        publish(&topic, &[7; 200]);
        assert!(select(pin!(topic.flush()), counting).await.first.is_some());
        assert!(turns.get() >= 5, "{} turns", turns.get());
    });
}

#[test]
fn only_an_open_server_can_subscribe() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (mut server, client) = pair(quiet(), quiet()).await;
        let subscribe = |outgoing: &Outgoing| topic.subscribe(outgoing, OnLag::Close).map(drop);
        let misuse = |misuse| Err(Protocol::Misuse(misuse));
        assert_eq!(subscribe(&client.outgoing), misuse(Misuse::NotMasked));
        assert_eq!(subscribe(&server.outgoing), Ok(()));
        server.outgoing.close(NORMAL).await.unwrap();
        assert_eq!(subscribe(&server.outgoing), misuse(Misuse::SentAfterClose));
        assert_eq!(topic.subscriber_count(), 0);
    });
}

/// Begins a flush, and drops it in the middle of the delivery.
async fn flush_partly(topic: &Topic) {
    let mut flushing = pin!(topic.flush());
    poll_fn(|cx| {
        assert!(flushing.as_mut().poll(cx).is_pending(), "too few subscribers to test");
        Poll::Ready(())
    })
    .await;
}

/// `flush`: "Safe. The topic's task continues."
#[test]
fn a_dropped_flush_delays_nothing() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let mut clients = Vec::new();
        for _ in 0..60 {
            clients.push(subscribed(&topic, OnLag::Close).await);
        }
        publish(&topic, b"all");
        flush_partly(&topic).await;
        for (client, _serving) in &mut clients {
            assert_eq!(receive(client).await, b"all");
        }
    });
}

#[test]
fn subscribers_that_leave_during_a_delivery_cost_the_others_nothing() {
    simulate(|| async {
        let topic = topic(64 * KIB);
        let (mut clients, mut leaving) = (Vec::new(), Vec::new());
        for n in 0..60 {
            let (server, client) = pair(quiet(), quiet()).await;
            let subscriber = topic.subscribe(&server.outgoing, OnLag::Close).unwrap();
            if n % 5 == 1 {
                leaving.push((subscriber, server, client));
            } else {
                clients.push((client, serve(server, subscriber)));
            }
        }
        publish(&topic, b"all");
        flush_partly(&topic).await;
        drop(leaving);
        for (client, _serving) in &mut clients {
            assert_eq!(receive(client).await, b"all");
        }
        assert_eq!((topic.kept_bytes(), topic.subscriber_count()), (0, 48));
    });
}

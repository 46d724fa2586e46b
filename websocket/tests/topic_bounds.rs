//! Topics with slow subscribers: what is kept, who lags, and what memory is released, on the simulator.

mod ends;
mod topics;

use std::pin::pin;
use std::time::Duration;

use ends::{Protocol, pair, seconds_since, simulate};
use owned_io::{Clock, Executor, MemoryBudget, Pool, PoolConfig, select};
use owned_io_sim::Sim;
use owned_io_websocket::stream::Buffers;
use owned_io_websocket::{
    CloseCode, Error, Fragment, Lagged, Limit, Message, OnLag, Timeout, Topic, WebSocket,
};
use topics::{BIN, KIB, MS, number, numbered, publish, quiet, receive, subscribed, topic};

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

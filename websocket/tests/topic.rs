//! Topics, on the simulator. Reads and writes are short everywhere, and each test runs under many seeds.

mod common;
mod ends;
mod topics;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use common::{CLOSE, FIN, Got, PING, Reader, Role, frame, message};
use ends::{NORMAL, Protocol, buffers, pair, raw_client, read_to_end, simulate};
use owned_io::{Clock, Executor, MemoryBudget, OwnedRead, OwnedWriteExt, Pool, PoolConfig, select};
use owned_io_sim::Sim;
use owned_io_websocket::stream::Buffers;
use owned_io_websocket::{
    CloseCode, Config, Fragment, Message, Misuse, OnLag, Outgoing, Topic, WebSocket,
};
use topics::{BIN, KIB, MS, numbered, publish, quiet, receive, serve, subscribed, topic};

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

//! Encoded frames, and what happens when a peer reads slowly or not at all.

mod common;
mod ends;

use std::pin::pin;
use std::time::Duration;

use common::{CLOSE, FIN, PING, Role, TEXT, frame};
use ends::{NORMAL, Protocol, Socket, buffers, pair, raw_client, seconds_since, simulate};
use owned_io::{Clock, Executor, OwnedReadExt, OwnedWriteExt, select};
use owned_io_sim::Sim;
use owned_io_websocket::stream::{EncodedFrame, Error, Message, WebSocket};
use owned_io_websocket::{Config, Fragment, Limit, MessageKind, Misuse, Timeout};

#[test]
fn one_encoded_frame_is_sent_to_many_connections() {
    simulate(|| async {
        let large = "\u{fc}".repeat(30_000);
        let frames = [
            EncodedFrame::new(Fragment::Whole(MessageKind::Text), large.as_bytes()),
            EncodedFrame::new(Fragment::Whole(MessageKind::Binary), b""),
            EncodedFrame::new(Fragment::First(MessageKind::Binary), &[1; 70_000]),
            EncodedFrame::new(Fragment::Middle, &[2; 200]),
            EncodedFrame::new(Fragment::Last, &[3; 1100]),
        ];
        let parts = [vec![1; 70_000], vec![2; 200], vec![3; 1100]].concat();
        let mut receiving = Vec::new();
        for id in 0..5_u8 {
            let (mut server, mut client) = pair(Config::default(), Config::default()).await;
            for frame in &frames {
                if matches!(frame.fragment(), Fragment::Whole(_)) {
                    server.outgoing.write(Message::Binary(&[id])).unwrap();
                }
                server.outgoing.write_frame(frame).unwrap();
                server.outgoing.ping(b"").unwrap();
            }
            let (large, parts) = (large.clone(), parts.clone());
            receiving.push(Sim::spawn(async move {
                let expected = [
                    Message::Binary(&[id]),
                    Message::Text(&large),
                    Message::Binary(&[id]),
                    Message::Binary(b""),
                    Message::Binary(&parts),
                ];
                for message in expected {
                    assert_eq!(client.incoming.receive().await.unwrap(), Some(message));
                }
                client.close(NORMAL).await.unwrap();
            }));
            Sim::spawn_detached(async move {
                server.outgoing.flush().await.unwrap();
                assert_eq!(server.incoming.receive().await.unwrap(), None);
            });
        }
        for receiving in receiving {
            receiving.await.unwrap();
        }
    });
}

#[test]
fn an_encoded_frame_has_the_rules_of_other_messages() {
    simulate(|| async {
        let mut config = Config::default();
        config.engine.queue_bytes_max = 5000;
        let (mut server, mut client) = pair(config, Config::default()).await;
        let [first, middle, last] =
            [Fragment::First(MessageKind::Text), Fragment::Middle, Fragment::Last]
                .map(|fragment| EncodedFrame::new(fragment, b"in parts"));
        let whole = EncodedFrame::new(Fragment::Whole(MessageKind::Text), &[b'a'; 4000]);

        let refused = |result, misuse| assert_eq!(result, Err(Protocol::Misuse(misuse)));
        refused(client.outgoing.write_frame(&whole), Misuse::NotMasked);
        refused(server.outgoing.write_frame(&middle), Misuse::ContinuationWithoutStart);
        refused(server.outgoing.write_frame(&last), Misuse::ContinuationWithoutStart);
        server.outgoing.write_frame(&first).unwrap();
        refused(server.outgoing.write_frame(&whole), Misuse::MessageWithinMessage);
        server.outgoing.write_frame(&last).unwrap();
        assert_eq!(server.outgoing.queued_bytes(), 20);
        server.outgoing.write_frame(&whole).unwrap();
        let full = server.outgoing.write_frame(&whole).unwrap_err();
        assert!(matches!(full, Protocol::Limit { limit: Limit::Queue, max: 5000, .. }));
        assert_eq!(server.outgoing.queued_bytes(), 20 + 4004);

        server.outgoing.flush().await.unwrap();
        let message = client.incoming.receive().await.unwrap();
        assert_eq!(message, Some(Message::Text("in partsin parts")));
        let closing = Sim::spawn(async move { client.close(NORMAL).await });
        assert!(server.incoming.receive().await.unwrap().is_none());
        refused(server.outgoing.write_frame(&whole), Misuse::SentAfterClose);
        closing.await.unwrap().unwrap();
    });
}

/// Queues a megabyte, which is more than the transport holds.
fn write_much(server: &mut Socket) {
    for _ in 0..100 {
        server.outgoing.write(Message::Binary(&[7; 10_000])).unwrap();
    }
}

/// The failure that ends `receive`, and after how many seconds.
async fn failure(server: &mut Socket) -> (Protocol, u64) {
    let start = Sim::now();
    match server.incoming.receive().await {
        Err(Error::Protocol(failure)) => (failure, seconds_since(start)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_sends_and_does_not_read_is_cut_off() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        write_much(&mut server);
        Sim::spawn_detached(async move {
            while raw.write_all(frame(Role::Server, FIN | PING, b"")).await.into_result().is_ok() {
                Sim::sleep(Duration::from_secs(7)).await;
            }
        });
        assert_eq!(failure(&mut server).await, (Protocol::Timeout(Timeout::Write), 60));
    });
}

#[test]
fn a_stuck_write_also_fails_a_pending_receive() {
    simulate(|| async {
        let mut config = Config::default();
        config.stream.ping_interval = None;
        let (server, _raw) = raw_client(config, buffers(), b"").await;
        let WebSocket { mut incoming, mut outgoing } = server;
        let waiting = Sim::spawn(async move { incoming.receive().await.map(drop).unwrap_err() });
        Sim::sleep(Duration::from_secs(100)).await;
        let start = Sim::now();
        outgoing
            .write_bytes(Fragment::Whole(MessageKind::Binary), vec![7; 1_000_000].into())
            .unwrap();
        for failure in [outgoing.flush().await.unwrap_err(), waiting.await.unwrap()] {
            assert!(matches!(failure, Error::Protocol(Protocol::Timeout(Timeout::Write))));
        }
        assert_eq!(seconds_since(start), 60);
    });
}

/// Without pings there is a time without any deadline between two writes. The timer of the first write ends in it. The
/// flushes are dropped, so that the half that receives alone watches.
#[test]
fn without_pings_each_stuck_write_fails_a_receive() {
    simulate(|| async {
        let mut config = Config::default();
        config.stream.ping_interval = None;
        let (mut server, mut raw) = raw_client(config, buffers(), b"").await;
        let bytes = 500_000; // more than the transport holds
        let reading = Sim::spawn(async move {
            Sim::sleep(Duration::from_secs(10)).await;
            let len = 10 + bytes; // and the header
            raw.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap();
            Sim::sleep(Duration::from_secs(490)).await;
            raw.write_all(frame(Role::Server, FIN | TEXT, b"hello")).await.into_result().unwrap();
            raw // still open, but no longer read
        });
        for is_read in [true, false] {
            let large = vec![7; bytes].into();
            server.outgoing.write_bytes(Fragment::Whole(MessageKind::Binary), large).unwrap();
            let pause = Sim::sleep(Duration::from_secs(1));
            let flushed = select(pin!(server.outgoing.flush()), pause).await.first;
            assert!(flushed.is_none());
            let mut receiving = pin!(server.incoming.receive());
            let patience = Sim::sleep(Duration::from_secs(1000));
            let began = Sim::now();
            let received = select(receiving.as_mut(), patience).await.first;
            match received.expect("the write times out") {
                Ok(message) => assert!(is_read && message == Some(Message::Text("hello"))),
                Err(Error::Protocol(Protocol::Timeout(Timeout::Write))) => {
                    assert!(!is_read && seconds_since(began) == 59);
                }
                Err(error) => panic!("{error}"),
            }
        }
        let _raw = reading.await.unwrap();
    });
}

/// No receive is pending meanwhile, so the connection cannot see pongs, and a missing pong is no failure.
#[test]
fn a_flush_without_a_receive_has_the_write_timeout_alone() {
    simulate(|| async {
        let mut config = Config::default();
        config.stream.ping_interval = Some(Duration::from_secs(10));
        config.stream.pong_timeout = Duration::from_secs(10);
        let (mut server, mut raw) = raw_client(config, buffers(), b"").await;
        let start = Sim::now();
        write_much(&mut server);
        let reading = Sim::spawn(async move {
            for _ in 0..10 {
                Sim::sleep(Duration::from_secs(50)).await;
                let some = raw.read_exact(Vec::with_capacity(10_000), 10_000).await;
                some.into_result().unwrap();
            }
            raw // still open, but no longer read
        });
        let failure = server.outgoing.flush().await.unwrap_err();
        assert!(matches!(failure, Error::Protocol(Protocol::Timeout(Timeout::Write))));
        let _raw = reading.await.unwrap();
        assert_eq!(seconds_since(start), 10 * 50 + 60);
    });
}

#[test]
fn a_peer_that_reads_slowly_is_not_cut_off() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        let start = Sim::now();
        write_much(&mut server);
        let reading = Sim::spawn(async move {
            raw.write_all(frame(Role::Server, FIN | TEXT, b"hello")).await.into_result().unwrap();
            let mut left = 100 * 10_004 + 7;
            while left > 0 {
                Sim::sleep(Duration::from_secs(2)).await;
                let len = left.min(45_000);
                raw.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap();
                left -= len;
            }
            raw.write_all(frame(Role::Server, FIN | CLOSE, b"")).await.into_result().unwrap();
            raw
        });
        let message = server.incoming.receive().await.unwrap();
        assert_eq!(message, Some(Message::Text("hello")));
        server.close(NORMAL).await.unwrap();
        assert!(seconds_since(start) > 40);
        reading.await.unwrap();
    });
}

#[test]
fn a_peer_that_violated_the_protocol_gets_only_the_close_timeout() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        write_much(&mut server);
        Sim::spawn_detached(async move {
            let violation = frame(Role::Server, TEXT | 0x70, b"");
            raw.write_all(violation).await.into_result().unwrap();
            while raw.read_exact(Vec::with_capacity(1000), 1000).await.into_result().is_ok() {
                Sim::sleep(Duration::from_secs(1)).await;
            }
        });
        let (failure, secs) = failure(&mut server).await;
        assert!(matches!(failure, Protocol::Peer(_)) && secs == 5, "{failure} after {secs} s");
    });
}

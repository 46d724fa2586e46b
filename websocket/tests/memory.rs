//! The memory that peers can make a worker hold, and when a connection that holds it is evicted.

mod common;
mod ends;

use std::pin::pin;
use std::time::Duration;

use common::{BINARY, FIN, Role, frame};
use ends::{Protocol, Socket, raw_client, read_to_end, simulate};
use owned_io::{Clock, Executor, MemoryBudget, OwnedWriteExt, Pool, PoolConfig, Random, select};
use owned_io_sim::{Sim, SimStream};
use owned_io_websocket::stream::{Buffers, Error, Message, Received};
use owned_io_websocket::{CloseFrame, Config, Fragment, Limit, MessageKind};

const KIB: usize = 1024;

fn buffers(budget: &MemoryBudget) -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), budget.clone())
}

async fn open(budget: &MemoryBudget) -> (Socket, SimStream) {
    raw_client(Config::default(), buffers(budget), b"").await
}

/// A client that sends `bytes`. The future returns everything that the client receives until the end.
fn send(mut raw: SimStream, bytes: Vec<u8>) -> impl Future<Output = Vec<u8>> {
    let sending = Sim::spawn(async move {
        let _ = raw.write_all(bytes).await;
        read_to_end(&mut raw).await
    });
    async { sending.await.unwrap() }
}

fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::Protocol(Protocol::Limit { limit: Limit::Memory, .. }))
}

async fn completes_within(time: Duration, future: impl Future) -> bool {
    select(pin!(future), Sim::sleep(time)).await.first.is_some()
}

/// Messages are reserved "as their bytes arrive": bytes that were only announced are hardly reserved.
#[test]
fn announced_bytes_are_not_reserved() {
    simulate(|| async {
        let budget = MemoryBudget::new(1024 * KIB);
        let announced = frame(Role::Server, FIN | BINARY, &vec![0; 1000 * KIB])[..15].to_vec();
        let mut waiting = Vec::new();
        for _ in 0..16 {
            let (mut server, mut raw) = open(&budget).await;
            raw.write_all(announced.clone()).await.into_result().unwrap();
            waiting.push(Sim::spawn(async move {
                let _raw = raw;
                server.incoming.receive().await.map(drop)
            }));
        }
        Sim::sleep(Duration::from_millis(100)).await;
        assert!(budget.common_bytes_held() < 16 * 80 * KIB / 2, "{budget:?}");
        let (mut server, raw) = open(&budget).await;
        let message = vec![7; 200 * KIB];
        let _peer = send(raw, frame(Role::Server, FIN | BINARY, &message));
        let received = server.incoming.receive().await.unwrap();
        assert_eq!(received, Some(Message::Binary(&message)));
    });
}

/// "If a reservation is refused, the connection stops reading until memory is released."
#[test]
fn a_refused_connection_waits_until_memory_is_returned() {
    simulate(|| async {
        let budget = MemoryBudget::new(300 * KIB);
        let message = vec![7; 200 * KIB];
        let wire = frame(Role::Server, FIN | BINARY, &message);
        let (mut first, raw) = open(&budget).await;
        let _peer = send(raw, wire.clone());
        assert!(first.incoming.receive().await.unwrap().is_some()); // `first` holds the message

        let (mut second, raw) = open(&budget).await;
        let _peer = send(raw, wire);
        let mut receiving = Box::pin(second.incoming.receive());
        assert!(!completes_within(Duration::from_millis(500), receiving.as_mut()).await);
        drop(first);
        let received = receiving.await.unwrap();
        assert_eq!(received, Some(Message::Binary(&message)));
    });
}

/// The message timeout "also bounds each wait for memory".
#[test]
fn a_wait_for_memory_takes_no_longer_than_a_message_may() {
    const TIMEOUT: Duration = MemoryBudget::HOLDER_IDLE_MAX; // nobody is evicted before
    const LATEST: Duration = Duration::from_millis(1_100);
    simulate(|| async {
        let budget = MemoryBudget::new(300 * KIB);
        let mut other = budget.account().reservation();
        other.resize(290 * KIB).unwrap();
        let mut config = Config::default();
        config.stream.message_timeout = Some(TIMEOUT);

        let (mut server, raw) = raw_client(config, buffers(&budget), b"").await;
        let answer = send(raw, frame(Role::Server, FIN | BINARY, &[7; 200 * KIB]));
        let began = Sim::now();
        let mut receiving = Box::pin(server.incoming.receive());
        assert!(completes_within(LATEST, receiving.as_mut()).await, "it waits");
        assert!(Sim::now() - began >= TIMEOUT);
        drop(receiving);
        assert_eq!(answer.await, b"\x88\x02\x03\xF5"); // 1013

        let (mut server, _raw) = raw_client(config, buffers(&budget), b"").await;
        let began = Sim::now();
        let mut sending = Box::pin(server.outgoing.send(Message::Binary(&[7; 100 * KIB])));
        assert!(completes_within(LATEST, sending.as_mut()).await, "it waits");
        assert!(Sim::now() - began >= TIMEOUT);
    });
}

/// The message timeout counts "until a write succeeds". "A wait that was dropped does not count for the next one."
#[test]
fn each_wait_to_send_has_its_own_time() {
    const TIMEOUT: Duration = MemoryBudget::HOLDER_IDLE_MAX;
    const BRIEFLY: Duration = Duration::from_millis(100);
    simulate(|| async {
        for is_dropped in [false, true] {
            let budget = MemoryBudget::new(300 * KIB);
            let mut other = budget.account().reservation();
            let mut config = Config::default();
            config.stream.message_timeout = Some(TIMEOUT);
            let (mut server, mut raw) = raw_client(config, buffers(&budget), b"").await;
            drop(Sim::spawn(async move { read_to_end(&mut raw).await }));
            for _ in 0..3 {
                other.force(290 * KIB);
                let mut sending = Box::pin(server.outgoing.send(Message::Binary(&[7; 100 * KIB])));
                assert!(!completes_within(BRIEFLY, sending.as_mut()).await, "it does not wait");
                other.force(0);
                if is_dropped {
                    drop(sending);
                } else {
                    sending.await.unwrap();
                }
                Sim::sleep(2 * TIMEOUT).await;
            }
        }
    });
}

/// A connection that waits to send is evicted like others.
#[test]
fn a_connection_that_waits_to_send_can_be_evicted() {
    simulate(|| async {
        let budget = MemoryBudget::new(300 * KIB);
        let (mut server, raw) = open(&budget).await;
        let _peer = send(raw, frame(Role::Server, FIN | BINARY, &[7; 200 * KIB]));
        let message = server.incoming.receive().await.unwrap().unwrap();
        let mut sending = Box::pin(server.outgoing.send(message)); // needs as much again
        assert!(!completes_within(Duration::from_millis(100), sending.as_mut()).await);
        for _ in 0..4 {
            Sim::sleep(MemoryBudget::ROUND).await;
            budget.evict_holders(Sim::now());
        }
        assert!(is_out_of_memory(&sending.await.unwrap_err()));
    });
}

/// It may linger after that. Others share what is free as if it were gone.
#[test]
fn an_evicted_connection_waits_no_longer() {
    simulate(|| async {
        let budget = MemoryBudget::new(300 * KIB);
        let (mut server, raw) = open(&budget).await;
        let _peer = send(raw, frame(Role::Server, FIN | BINARY, &[7; 100 * KIB]));
        let message = server.incoming.receive().await.unwrap().unwrap();
        let mut other = budget.account().reservation();
        other.force(290 * KIB);
        let began = Sim::now();
        let refused = server.outgoing.send(message).await.unwrap_err();
        assert!(is_out_of_memory(&refused));
        assert!(Sim::now() - began < 5 * MemoryBudget::HOLDER_IDLE_MAX, "it is evicted");
        other.force(10 * KIB);
        let mut third = budget.account().reservation();
        third.resize(140 * KIB).unwrap();
        drop(server);
    });
}

/// A close from elsewhere ends the wait at once.
#[test]
fn a_connection_that_waits_to_send_can_be_closed() {
    simulate(|| async {
        let budget = MemoryBudget::new(300 * KIB);
        let mut other = budget.account().reservation();
        other.resize(290 * KIB).unwrap();
        let (mut server, _raw) = open(&budget).await;
        let handle = server.outgoing.close_handle();
        let mut sending = Box::pin(server.outgoing.send(Message::Binary(&[7; 100 * KIB])));
        assert!(!completes_within(Duration::from_millis(100), sending.as_mut()).await);
        handle.close(CloseFrame { code: None, reason: "" }).unwrap();
        assert!(completes_within(MemoryBudget::ROUND / 10, sending.as_mut()).await);
    });
}

/// A connection fails if it "holds much memory while others wait". "The peer is told [`CloseCode::TRY_AGAIN`]".
#[test]
fn an_idle_holder_is_evicted_while_others_wait_and_its_peer_is_told() {
    simulate(|| async {
        let budget = MemoryBudget::new(300 * KIB);
        let message = vec![7; 200 * KIB];
        let wire = frame(Role::Server, FIN | BINARY, &message);
        let (mut hoarder, raw) = open(&budget).await;
        let answer = send(raw, wire[..150 * KIB].to_vec());
        let hoarding = Sim::spawn(async move {
            let result = hoarder.incoming.receive().await.map(drop);
            (result, hoarder)
        });
        Sim::sleep(Duration::from_millis(100)).await;

        let (mut other, raw) = open(&budget).await;
        let _peer = send(raw, wire);
        let began = Sim::now();
        let received = other.incoming.receive().await.unwrap();
        assert_eq!(received, Some(Message::Binary(&message)));
        assert!(Sim::now() - began < 4 * MemoryBudget::HOLDER_IDLE_MAX);
        let (result, _hoarder) = hoarding.await.unwrap();
        assert!(is_out_of_memory(&result.unwrap_err()));
        assert_eq!(answer.await, b"\x88\x02\x03\xF5"); // 1013
    });
}

/// Output that a peer does not read is reserved memory. The connection is evicted when others wait for memory.
#[test]
fn a_connection_whose_peer_does_not_read_is_evicted() {
    simulate(|| async {
        let budget = MemoryBudget::new(400 * KIB);
        let message = vec![7; 200 * KIB];
        let (mut hoarder, _unread) = open(&budget).await;
        let echoing = Sim::spawn(async move {
            for fragment in [Fragment::Whole(MessageKind::Binary); 2] {
                hoarder.outgoing.write_bytes(fragment, vec![7; 190 * KIB].into()).unwrap();
            }
            let refused = hoarder.outgoing.write(Message::Binary(&[7; 32 * KIB])).unwrap_err();
            assert!(matches!(refused, Protocol::Limit { limit: Limit::Memory, .. }));
            hoarder.outgoing.flush().await
        });
        Sim::sleep(Duration::from_millis(100)).await;
        assert!(budget.common_bytes_held() > 380 * KIB);
        let (mut other, raw) = open(&budget).await;
        let _peer = send(raw, frame(Role::Server, FIN | BINARY, &message));
        let received = other.incoming.receive().await.unwrap();
        assert_eq!(received, Some(Message::Binary(&message)));
        assert!(is_out_of_memory(&echoing.await.unwrap().unwrap_err()));
    });
}

/// The connections together hold no more than the budget, whatever peers do. A well-behaved connection is served.
#[test]
fn peers_cannot_make_connections_hold_more_than_the_budget() {
    let seeds = std::env::var("SIM_SEEDS").map_or(20, |seeds| seeds.parse().expect("a number"));
    owned_io_sim::run(0..seeds, async |_| {
        const SHARE: usize = 8 * KIB;
        let budget = MemoryBudget::new(768 * KIB).with_shares(32, 32 * SHARE);
        let mut random = [0; 32];
        Sim::fill_random(&mut random);
        for byte in random {
            let (mut server, raw) = open(&budget).await;
            let bytes = usize::from(byte) * KIB;
            let wire = frame(Role::Server, FIN | BINARY, &vec![byte; bytes]);
            let end = if byte % 3 == 0 { wire.len() } else { wire.len() * usize::from(byte) / 256 };
            drop(Sim::spawn(async move {
                let mut raw = raw;
                let _ = raw.write_all(wire[..end].to_vec()).await;
                if byte % 2 == 0 {
                    read_to_end(&mut raw).await;
                }
                Sim::sleep(Duration::from_secs(100)).await; // reads nothing
            }));
            drop(Sim::spawn(async move {
                while let Ok(Some(message)) = server.incoming.receive_owned().await {
                    if let Received::Owned(kind, payload) = message {
                        let _ = server.outgoing.write_bytes(Fragment::Whole(kind), payload);
                    }
                    if server.outgoing.flush().await.is_err() {
                        return;
                    }
                }
            }));
        }
        for _ in 0..200 {
            Sim::sleep(Duration::from_millis(50)).await;
            // Two reservations are always granted: the smallest of the queue, and that of a decompressor.
            assert!(budget.common_bytes_held() <= 512 * KIB + 32 * 4 * KIB, "{budget:?}");
        }
        let message = vec![9; 256 * KIB];
        let (mut server, raw) = open(&budget).await;
        drop(send(raw, frame(Role::Server, FIN | BINARY, &message)));
        let mut receiving = Box::pin(server.incoming.receive());
        assert!(completes_within(Duration::from_secs(20), receiving.as_mut()).await, "{budget:?}");
        Ok(())
    });
}

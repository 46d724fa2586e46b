//! The memory of bridged connections is reserved in a budget before tungstenite allocates it.

#[path = "../../websocket/tests/ends/mod.rs"]
mod ends;

use std::time::Duration;

use ends::request;
use owned_io::{
    Clock, Executor, JoinHandle, MemoryBudget, OwnedRead, OwnedReadExt, OwnedWriteExt, Pool,
    PoolConfig, coop,
};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_tungstenite::{self as bridge, BufferGrowth};
use owned_io_websocket::stream::{Buffers, Error, Message};
use owned_io_websocket::{CloseFrame, Config, Limit, ProtocolError};

const MIB: usize = 1 << 20;

fn buffers(budget: &MemoryBudget) -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), budget.clone())
}

type Bridge = bridge::WebSocket<SimStream>;

/// A server, and a client that is driven by hand.
async fn raw_client(buffers: &Buffers, growth: BufferGrowth) -> (Bridge, SimStream) {
    let (a, mut raw) = pipe();
    let (buffers, config) = (buffers.clone(), Config::default());
    let accepted =
        Sim::spawn(async move { bridge::accept::<Sim, _>(a, &buffers, config, growth).await });
    raw.write_all(request()).await.into_result().unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let (_, byte) = raw.read(Vec::with_capacity(1)).await.into_result().unwrap();
        response.extend_from_slice(&byte);
    }
    (accepted.await.unwrap().unwrap(), raw)
}

/// The header of a binary frame of a client, with a masking key of zeros.
fn header(first: u8, bytes: usize) -> Vec<u8> {
    let mut header = vec![first, 0x80 | 127];
    header.extend((bytes as u64).to_be_bytes());
    header.extend([0; 4]);
    header
}

fn binary(bytes: usize) -> Vec<u8> {
    let mut frame = header(0x82, bytes);
    frame.resize(frame.len() + bytes, 7);
    frame
}

fn echo(mut socket: Bridge) -> JoinHandle<Result<usize, Error>> {
    Sim::spawn(async move {
        let mut messages = 0;
        while let Some(message) = socket.incoming.receive().await? {
            socket.outgoing.send(message).await?;
            messages += 1;
        }
        Ok(messages)
    })
}

fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::Protocol(ProtocolError::Limit { limit: Limit::Memory, .. }))
}

const GROWTHS: [BufferGrowth; 3] =
    [BufferGrowth::FIXED, BufferGrowth::LINEAR, BufferGrowth::EXPONENTIAL];

/// A later connection is served once the first ones have had their time.
#[test]
fn announced_frames_hold_no_more_than_the_budget() {
    for growth in GROWTHS {
        owned_io_sim::block_on(async move {
            let budget = MemoryBudget::new(64 * MIB);
            let buffers = buffers(&budget);
            let (mut clients, mut serving) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                let (socket, mut raw) = raw_client(&buffers, growth).await;
                raw.write_all(header(0x82, 15 * MIB)).await.into_result().unwrap();
                clients.push(raw);
                serving.push(echo(socket));
            }
            Sim::sleep(Duration::from_millis(100)).await;
            let held = budget.common_bytes_held();
            assert!((45 * MIB..=64 * MIB).contains(&held), "{held}");
            let (socket, mut raw) = raw_client(&buffers, growth).await;
            let receiving = Sim::spawn(async move {
                let mut socket = socket;
                let message = socket.incoming.receive().await?;
                Ok::<_, Error>(message.map(|message| message.as_bytes().len()))
            });
            raw.write_all(binary(8 * MIB)).await.into_result().unwrap();
            assert_eq!(receiving.await.unwrap().unwrap(), Some(8 * MIB));
            assert!(budget.common_bytes_held() <= 64 * MIB);
            drop((clients, raw));
            let mut out_of_memory = 0;
            for task in serving {
                let error = task.await.unwrap().unwrap_err();
                out_of_memory += usize::from(is_out_of_memory(&error));
            }
            assert!(out_of_memory > 0);
            assert_eq!(budget.common_bytes_held(), 0, "memory was not returned");
        });
    }
}

/// The peer sends much and reads nothing of the echo. The echo stays reserved until the connection ends.
#[test]
fn the_queue_for_a_peer_that_does_not_read_is_reserved() {
    for growth in GROWTHS {
        owned_io_sim::block_on(async move {
            let budget = MemoryBudget::new(64 * MIB);
            let (socket, mut raw) = raw_client(&buffers(&budget), growth).await;
            let serving = echo(socket);
            raw.write_all(binary(15 * MIB)).await.into_result().unwrap();
            Sim::sleep(Duration::from_millis(500)).await;
            let held = budget.common_bytes_held();
            assert!((59 * MIB..=64 * MIB).contains(&held), "{held}");
            for _ in 0..3 {
                Sim::sleep(MemoryBudget::HOLDER_IDLE_MAX).await;
                budget.evict_holders(Sim::now());
            }
            let error = serving.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Io(_)) || is_out_of_memory(&error), "{error:?}");
            assert_eq!(budget.common_bytes_held(), 0);
        });
    }
}

#[test]
fn an_evicted_connection_tells_its_peer() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(64 * MIB);
        let (socket, mut raw) = raw_client(&buffers(&budget), BufferGrowth::FIXED).await;
        raw.write_all(header(0x82, 15 * MIB)).await.into_result().unwrap();
        let receiving = Sim::spawn(async move {
            let mut socket = socket;
            socket.incoming.receive().await.map(drop)
        });
        for _ in 0..3 {
            Sim::sleep(MemoryBudget::HOLDER_IDLE_MAX).await;
            budget.evict_holders(Sim::now());
        }
        let ((), answer) = raw.read_exact(Vec::with_capacity(4), 4).await.into_result().unwrap();
        assert_eq!(answer, [0x88, 2, 0x03, 0xF5], "1013");
        drop(raw);
        assert!(is_out_of_memory(&receiving.await.unwrap().unwrap_err()));
        assert_eq!(budget.common_bytes_held(), 0);
    });
}

#[test]
fn a_message_that_could_never_fit_fails_its_connection_at_once() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(MIB);
        let (mut socket, mut raw) = raw_client(&buffers(&budget), BufferGrowth::LINEAR).await;
        let fragments = [header(0x02, 300_000), vec![0; 300_000], header(0x80, 300_000)];
        let sending = Sim::spawn(async move {
            let _ = raw.write_all(fragments.concat()).await; // fails once the server has closed
        });
        let start = Sim::now();
        let receiving =
            Sim::spawn(async move { socket.incoming.receive().await.map(drop).unwrap_err() });
        assert!(is_out_of_memory(&receiving.await.unwrap()));
        drop(sending.await);
        assert!(Sim::now() - start < Duration::from_secs(1));
    });
}

#[test]
fn a_connection_that_waits_for_memory_continues_once_some_is_returned() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(4 * MIB);
        let (mut socket, mut raw) = raw_client(&buffers(&budget), BufferGrowth::LINEAR).await;
        let mut other = budget.account().reservation();
        other.resize(4 * MIB).unwrap();
        let receiving = Sim::spawn(async move {
            let message = socket.incoming.receive().await.unwrap().unwrap();
            (message.as_bytes().len(), Sim::now())
        });
        let sending = Sim::spawn(async move {
            raw.write_all(binary(2 * MIB)).await.into_result().unwrap();
            raw
        });
        Sim::sleep(Duration::from_millis(600)).await;
        let released = Sim::now();
        drop(other);
        let (bytes, at) = receiving.await.unwrap();
        assert_eq!(bytes, 2 * MIB);
        assert!(at >= released, "it did not wait");
        drop(sending.await);
    });
}

/// A message that is to be sent waits for memory too.
#[test]
fn a_message_to_send_waits_for_memory() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(4 * MIB);
        let (mut socket, mut raw) = raw_client(&buffers(&budget), BufferGrowth::LINEAR).await;
        let mut other = budget.account().reservation();
        other.resize(4 * MIB).unwrap();
        let sending = Sim::spawn(async move {
            let message = vec![7; MIB];
            socket.outgoing.send(Message::Binary(&message)).await.map(|()| socket)
        });
        Sim::sleep(Duration::from_millis(100)).await;
        drop(other);
        let received = raw.read_exact(Vec::with_capacity(MIB), MIB).await.into_result();
        assert_eq!(received.unwrap().1[..2], [0x82, 127]);
        assert!(sending.await.unwrap().is_ok());
    });
}

/// The wait for memory fails if it takes too long, or if the connection is evicted. The peer is told.
#[test]
fn a_message_to_send_that_gets_no_memory_fails_its_connection() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(4 * MIB);
        let (mut socket, mut raw) = raw_client(&buffers(&budget), BufferGrowth::LINEAR).await;
        let sending = Sim::spawn(async move {
            raw.write_all(binary(MIB)).await.into_result().unwrap();
            raw
        });
        let message = socket.incoming.receive_owned().await.unwrap().unwrap().as_bytes().to_vec();
        let mut raw = sending.await.unwrap();
        let mut other = budget.account().reservation();
        other.resize(2 * MIB).unwrap();
        let failing = Sim::spawn(async move {
            let error = socket.outgoing.send(Message::Binary(&message)).await.unwrap_err();
            let _ = socket.incoming.receive().await;
            (error, socket)
        });
        for _ in 0..6 {
            Sim::sleep(MemoryBudget::ROUND).await;
            budget.evict_holders(Sim::now());
        }
        let ((), answer) = raw.read_exact(Vec::with_capacity(4), 4).await.into_result().unwrap();
        assert_eq!(answer, [0x88, 2, 0x03, 0xF5], "1013");
        let (error, socket) = failing.await.unwrap();
        assert!(is_out_of_memory(&error));
        // It waits no longer, and others share what is free as if it were gone.
        other.resize(1).unwrap();
        assert!(budget.account().reservation().resize(3 * MIB / 2).is_ok());
        drop((socket, raw));
        assert_eq!(budget.common_bytes_held(), 1);
    });
}

/// A close from elsewhere ends the wait at once.
#[test]
fn a_message_to_send_waits_no_longer_once_the_connection_closes() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(4 * MIB);
        let (mut socket, _raw) = raw_client(&buffers(&budget), BufferGrowth::LINEAR).await;
        let mut other = budget.account().reservation();
        other.resize(4 * MIB).unwrap();
        let handle = socket.outgoing.close_handle();
        let sending = Sim::spawn(async move {
            let message = vec![7; MIB];
            let refused = socket.outgoing.send(Message::Binary(&message)).await.unwrap_err();
            (refused, Sim::now())
        });
        Sim::sleep(Duration::from_millis(100)).await;
        let closed = Sim::now();
        handle.close(CloseFrame { code: None, reason: "" }).unwrap();
        let (refused, ended) = sending.await.unwrap();
        assert!(matches!(refused, Error::Protocol(ProtocolError::Misuse(_))), "{refused:?}");
        assert!(ended - closed < MemoryBudget::ROUND / 10);
    });
}

/// The budget of a poll bounds `try_receive`, even if more messages have arrived.
#[test]
fn received_messages_are_handed_out_within_the_budget_of_a_poll() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(64 * MIB);
        let (mut socket, mut raw) = raw_client(&buffers(&budget), BufferGrowth::LINEAR).await;
        let mut frame = vec![0x82, 0x81, 0, 0, 0, 0, 7];
        frame = frame.repeat(2000);
        raw.write_all(frame).await.into_result().unwrap();
        assert_eq!(socket.incoming.receive().await.unwrap(), Some(Message::Binary(&[7])));
        coop::refill();
        let mut at_once = 0;
        while socket.incoming.try_receive().is_some() {
            at_once += 1;
        }
        assert!((100..=500).contains(&at_once), "{at_once}");
        for _ in at_once + 1..2000 {
            assert!(socket.incoming.receive().await.unwrap().is_some());
        }
    });
}

//! The memory of compression: with context takeover, without it, and with a compression bomb.

mod counting;

use std::time::Duration;

use counting::{allocations, live_bytes, peak_bytes};
use owned_io::{
    Clock, Executor, MemoryBudget, OwnedReadExt, OwnedWriteExt, Pool, PoolConfig, select,
};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::deflate::{COMPRESSOR_BYTES_MAX, DECOMPRESSOR_BYTES, Deflate};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, accept, connect};
use owned_io_websocket::{Config, Limit};

type Socket = WebSocket<SimStream>;

/// Takeover in both directions or in none, with a window of `send_window_bits`.
fn deflate(takeover: bool, send_window_bits: u8) -> Option<Deflate> {
    let mut deflate = Deflate::default();
    (deflate.send_takeover, deflate.receive_takeover) = (takeover, takeover);
    deflate.send_window_bits = send_window_bits;
    Some(deflate)
}

fn config(deflate: Option<Deflate>) -> Config {
    let mut config = Config::default();
    config.handshake.deflate = deflate;
    config
}

async fn pair(config: Config, buffers: &Buffers) -> (Socket, Socket) {
    let (mut a, mut b) = pipe();
    for _ in 0..2 {
        // The pipe allocates its own memory now, so that it does not grow during the measurement.
        a.write_all(vec![0; 8192]).await.into_result().unwrap();
        b.read_exact(Vec::with_capacity(8192), 8192).await.into_result().unwrap();
        std::mem::swap(&mut a, &mut b);
    }
    let accepting = {
        let buffers = buffers.clone();
        Sim::spawn(async move { accept::<Sim, _>(a, &buffers, config).await })
    };
    let offer = Offer { deflate: config.handshake.deflate, ..Offer::default() };
    let (client, _) = connect::<Sim, _>(b, buffers, config, &offer).await.unwrap();
    (accepting.await.unwrap().unwrap(), client)
}

/// Sends a message from the client to the server, and back.
async fn echo(server: &mut Socket, client: &mut Socket, message: Message<'_>) {
    client.outgoing.send(message).await.unwrap();
    let received = server.incoming.receive().await.unwrap().unwrap();
    assert_eq!(received, message);
    server.outgoing.send(received).await.unwrap();
    assert_eq!(client.incoming.receive().await.unwrap(), Some(message));
}

#[test]
fn bytes_that_a_connection_holds() {
    let plain = bytes_each(None);
    let [shared, takeover, small] = [deflate(false, 15), deflate(true, 15), deflate(true, 9)]
        .map(|deflate| bytes_each(deflate) - plain);
    println!("{plain} bytes for each connection; more: {shared}, {takeover}, {small}");
    // Without takeover a connection holds its settings alone. Compressors are shared.
    assert!((0..800).contains(&shared), "{shared} bytes");
    let own = (COMPRESSOR_BYTES_MAX + DECOMPRESSOR_BYTES) as isize;
    assert!((own * 9 / 10..own).contains(&takeover), "{takeover} bytes");
    // The level makes no difference.
    for level in 2..=9 {
        let mut deflate = deflate(true, 15).unwrap();
        deflate.level = level;
        let bytes = bytes_each(Some(deflate)) - plain;
        assert!(bytes < own, "level {level}: {bytes} bytes");
    }
    // Two thirds of a compressor's memory do not depend on the window.
    assert!((own * 6 / 10..own * 8 / 10).contains(&small), "{small} bytes");
}

/// The bytes that a connection holds after it has exchanged messages.
fn bytes_each(deflate: Option<Deflate>) -> isize {
    const PAIRS: isize = 10;
    let text = "{\"price\":1.25,\"symbol\":\"ABC\"},".repeat(40);
    let mut bytes = 0;
    owned_io_sim::block_on(async {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 30));
        let mut idle = Vec::new();
        for pair in -1..PAIRS {
            if pair == 0 {
                bytes = live_bytes(); // everything that is shared has been allocated
            }
            let (mut server, mut client) = self::pair(config(deflate), &buffers).await;
            for _ in 0..3 {
                echo(&mut server, &mut client, Message::Text(&text)).await;
            }
            for mut socket in [server, client] {
                let mut receiving = Box::pin(async move {
                    let _ = socket.incoming.receive().await;
                    drop(socket);
                });
                let waited = Sim::sleep(Duration::from_millis(10));
                assert!(select(receiving.as_mut(), waited).await.first.is_none());
                idle.push(receiving);
            }
        }
        bytes = (live_bytes() - bytes) / (2 * PAIRS);
    });
    bytes
}

#[test]
fn once_warm_an_echo_allocates_nothing() {
    let text = "{\"price\":1.25,\"symbol\":\"ABC\"},".repeat(1000);
    for takeover in [false, true] {
        owned_io_sim::block_on(async {
            let buffers =
                Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 30));
            let (mut server, mut client) = pair(config(deflate(takeover, 15)), &buffers).await;
            let mut before = 0;
            for round in 0..40 {
                if round == 20 {
                    before = allocations(); // warm
                }
                for len in [10, 100, 1000, 30_000] {
                    echo(&mut server, &mut client, Message::Text(&text[..len])).await;
                }
            }
            assert_eq!(allocations() - before, 0, "takeover {takeover}");
        });
    }
}

#[test]
fn a_compression_bomb_gets_no_more_than_the_budget() {
    const BYTES_MAX: usize = 512 * 1024;
    for takeover in [false, true] {
        owned_io_sim::block_on(async {
            let buffers =
                Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 30));
            let mut limited = config(deflate(takeover, 15));
            limited.engine.message_bytes_max = BYTES_MAX;
            limited.engine.queue_bytes_max = 32 << 20;
            let (mut server, mut client) = pair(limited, &buffers).await;
            echo(&mut server, &mut client, Message::Binary(&[1; 1000])).await;
            let bomb = vec![0; 16 << 20];
            client.outgoing.write(Message::Binary(&bomb)).unwrap();
            assert!(client.outgoing.queued_bytes() < BYTES_MAX);
            let before = live_bytes();
            peak_bytes();
            let sending = Sim::spawn(async move {
                let _ = client.outgoing.flush().await;
                while client.incoming.receive().await.is_ok_and(|message| message.is_some()) {}
            });
            let (max, got) = (BYTES_MAX as u64, BYTES_MAX as u64 + 1);
            let expected =
                owned_io_websocket::ProtocolError::Limit { limit: Limit::Message, max, got };
            match server.incoming.receive().await {
                Err(Error::Protocol(error)) => assert_eq!(error, expected),
                other => panic!("{other:?}"),
            }
            // The budget, twice while a buffer grows, and the rest of the bomb in the transport.
            let peak = peak_bytes() - before;
            assert!(peak < 3 * BYTES_MAX as isize, "{peak} bytes");
            drop(server);
            sending.await.unwrap();
        });
    }
}

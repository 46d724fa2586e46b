//! The memory that a connection keeps after it has received a long message.

#[path = "../../websocket/tests/counting/mod.rs"]
mod counting;

use std::time::Duration;

use counting::live_bytes;
use owned_io::{Clock, Executor, MemoryBudget, OwnedRead, OwnedWriteExt, Pool, PoolConfig, select};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_tungstenite::{self as bridge, BufferGrowth};
use owned_io_websocket::handshake::{Key, Offer};
use owned_io_websocket::stream::{self, Buffers, Message};
use owned_io_websocket::{AnyIncoming, AnyOutgoing, Config};

const MESSAGE_BYTES: usize = 8_000_000;

/// Buffers of a worker and of a bridge, which are kept whatever was received.
const OTHER_BYTES_MAX: isize = 300_000;

#[test]
fn tungstenite_keeps_the_memory_of_the_longest_frame() {
    let message_bytes = MESSAGE_BYTES as isize;
    let native = bytes_kept(async move |stream, buffers| {
        let socket = stream::accept::<Sim, _>(stream, &buffers, Config::default()).await.unwrap();
        (socket.incoming, socket.outgoing)
    });
    assert!((0..OTHER_BYTES_MAX).contains(&native), "{native}");
    for growth in [BufferGrowth::FIXED, BufferGrowth::LINEAR, BufferGrowth::EXPONENTIAL] {
        let bridged = bytes_kept(async move |stream, buffers| {
            let config = Config::default();
            let accepted = bridge::accept::<Sim, _>(stream, &buffers, config, growth).await;
            let socket = accepted.unwrap();
            (socket.incoming, socket.outgoing)
        });
        let expected = message_bytes..message_bytes + OTHER_BYTES_MAX;
        assert!(expected.contains(&bridged), "{growth:?}: {bridged}");
    }
}

/// The peer sends pings and reads no pongs. Only a few are queued, and the close frame still has room.
#[test]
fn pongs_that_are_not_read_are_bounded() {
    const PINGS: usize = 100_000;
    for growth in [BufferGrowth::FIXED, BufferGrowth::LINEAR, BufferGrowth::EXPONENTIAL] {
        owned_io_sim::block_on(async move {
            let (a, mut raw) = pipe();
            let budget = MemoryBudget::new(0);
            let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
            let serving = Sim::spawn(async move {
                let config = Config::default();
                let accepted = bridge::accept::<Sim, _>(a, &buffers, config, growth).await;
                accepted.unwrap().incoming.receive().await.map(drop)
            });
            let mut request = Vec::new();
            Offer::default().encode(&Key::new([7; 16]), &mut request).unwrap();
            raw.write_all(request).await.into_result().unwrap();
            Sim::sleep(Duration::from_millis(10)).await;
            let before = live_bytes();
            let ping = [&[0x89, 0xFD, 0, 0, 0, 0][..], &[7; 125]].concat();
            let mut pings = ping.repeat(PINGS / 100);
            for _ in 0..100 {
                ((), pings) = raw.write_all(pings).await.into_result().unwrap();
            }
            Sim::sleep(Duration::from_millis(100)).await;
            let held = live_bytes() - before - pings.capacity() as isize;
            assert!(held < 2 * OTHER_BYTES_MAX, "{growth:?}: {held}");
            raw.write_all(b"\x8F\x80key!".to_vec()).await.into_result().unwrap();
            // The connection fails while its buffers are full and a pong waits for room.
            Sim::sleep(Duration::from_millis(100)).await;
            let mut answers = Vec::new();
            while let Ok((1.., bytes)) = raw.read(Vec::with_capacity(64 * 1024)).await.into_result()
            {
                answers.extend_from_slice(&bytes);
            }
            assert!(answers.ends_with(b"\x88\x02\x03\xEA"), "1002, after the pongs");
            assert!(serving.await.unwrap().is_err());
        });
    }
}

/// How many more bytes a server holds after it has received a message and dropped it.
fn bytes_kept<I: AnyIncoming + 'static, O: AnyOutgoing + 'static>(
    accept: impl AsyncFn(SimStream, Buffers) -> (I, O) + 'static,
) -> isize {
    let mut bytes = 0;
    owned_io_sim::block_on(async {
        let (a, b) = pipe();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
        let shared = buffers.clone();
        let accepting = Sim::spawn(async move { accept(a, shared).await });
        let config = Config::default();
        let connected = stream::connect::<Sim, _>(b, &buffers, config, &Offer::default()).await;
        let mut client = connected.unwrap().0;
        let (mut incoming, outgoing) = accepting.await.unwrap();
        bytes = live_bytes();
        let sending = Sim::spawn(async move {
            client.outgoing.send(Message::Binary(&vec![1; MESSAGE_BYTES])).await.unwrap();
            client
        });
        let received = incoming.receive_owned().await.unwrap();
        assert_eq!(received.unwrap().as_bytes().len(), MESSAGE_BYTES);
        let client = sending.await.unwrap();
        {
            let mut waiting = Box::pin(incoming.receive());
            let waited = Sim::sleep(Duration::from_millis(10));
            assert!(select(waiting.as_mut(), waited).await.first.is_none());
            bytes = live_bytes() - bytes;
        }
        drop((client, outgoing));
    });
    bytes
}

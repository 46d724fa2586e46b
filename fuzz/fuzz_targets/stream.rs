//! The stream, with a peer that sends any bytes in any portions, and may stop reading or vanish. The stream returns the
//! same messages as the engine, in each way of receiving. It ends, and all memory is given back.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use owned_io::{Executor, MemoryBudget, OwnedRead, OwnedWrite, OwnedWriteExt, Pool, PoolConfig};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::handshake::{Key, Offer};
use owned_io_websocket::stream::{Buffers, Received, WebSocket, accept};
use owned_io_websocket::engine::{Decoded, Engine, Event};
use owned_io_websocket::{Config, MessageKind, Fragment};

/// Small, so that most messages are assembled from pieces.
const BUF_BYTES: usize = 200;
const ASSEMBLED_BYTES_MAX: usize = 1 << 20;
/// Less than the buffers towards a peer that does not read while it sends.
const WIRE_BYTES_MAX: usize = 1 << 15;

fuzz_target!(|input: &[u8]| {
    let [seed, cut, habits, wire @ ..] = input else { return };
    let (habits, wire) = (Habits(*habits), &wire[..wire.len().min(WIRE_BYTES_MAX)]);
    let simulation = owned_io_sim::Config::with_seed((*seed).into());
    let received = Sim::block_on(simulation, serve(*cut, habits, wire.to_vec())).unwrap();
    let expected = expected(wire);
    // A failed write ends the stream early.
    assert!(expected.starts_with(&received), "{received:x?} of {expected:x?}");
    if !habits.is_gone() {
        assert_eq!(received.len(), expected.len());
    }
});

/// Choices of the test case, by the bits of one input byte.
#[derive(Clone, Copy)]
struct Habits(u8);

impl Habits {
    /// The peer does not read, and vanishes after it has sent everything.
    fn is_gone(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether the peer ends its side, or else waits for ours.
    fn ends(self) -> bool {
        self.0 & 2 != 0
    }

    /// The method that receives the next message, from 0 to 3.
    fn way(self, received: usize) -> usize {
        usize::from(self.0 >> 2).wrapping_mul(received + 1) / 3 % 4
    }
}

type Got = (MessageKind, Vec<u8>);

async fn serve(cut: u8, habits: Habits, wire: Vec<u8>) -> Vec<Got> {
    let mut config = PoolConfig::default();
    config.buf_bytes = BUF_BYTES;
    let pool = Pool::new(config);
    let buffers = Buffers::new(pool.clone(), MemoryBudget::new(ASSEMBLED_BYTES_MAX)).aligned_to(64);
    let (a, raw) = pipe();
    let peer = Sim::spawn(peer(raw, cut, habits, wire));
    let mut config = Config::default();
    config.engine.message_bytes_max = 1 << 17;
    let received = match accept::<Sim, _>(a, &buffers, config).await {
        Ok(mut socket) => receive_all(&mut socket, habits).await,
        Err(error) => {
            assert!(habits.is_gone(), "{error}");
            Vec::new()
        }
    };
    peer.await.expect("the peer does not panic");
    assert_eq!(pool.leased(), 0);
    received
}

async fn peer(mut raw: SimStream, cut: u8, habits: Habits, wire: Vec<u8>) {
    let mut request = Vec::new();
    let offer = Offer { host: "a", ..Offer::default() };
    offer.encode(&Key::new([7; 16]), &mut request).unwrap();
    raw.write_all(request).await.into_result().unwrap();
    for chunk in wire.chunks(usize::from(cut) + 1) {
        if raw.write_all(chunk.to_vec()).await.into_result().is_err() {
            break;
        }
    }
    if habits.is_gone() {
        return;
    }
    if habits.ends() {
        let _ = raw.shutdown().await;
    }
    while let Ok((1.., _)) = raw.read(Vec::with_capacity(4096)).await.into_result() {}
}

/// Echoes each message, and returns all messages.
async fn receive_all(socket: &mut WebSocket<SimStream>, habits: Habits) -> Vec<Got> {
    let WebSocket { incoming, outgoing } = socket;
    let (mut all, mut begun) = (Vec::<Got>::new(), None::<Got>);
    loop {
        // A message that was begun in pieces continues in pieces.
        let way = if begun.is_some() { 3 } else { habits.way(all.len()) };
        match way {
            0 => match incoming.receive().await {
                Ok(Some(message)) => {
                    all.push((message.kind(), message.as_bytes().to_vec()));
                    let _ = outgoing.write(message);
                }
                _ => return all,
            },
            1 => match incoming.receive_owned().await {
                Ok(Some(received)) => {
                    all.push((received.kind(), received.as_bytes().to_vec()));
                    if let Received::Owned(kind, payload) = received {
                        assert!(payload.as_ptr().addr().is_multiple_of(64));
                        let _ = outgoing.write_bytes(Fragment::Whole(kind), payload);
                    }
                }
                _ => return all,
            },
            2 if let Some(message) = incoming.try_receive() => {
                all.push((message.kind(), message.as_bytes().to_vec()));
            }
            _ => match incoming.receive_piece().await {
                Ok(Some(piece)) => {
                    assert_eq!(piece.first, begun.is_none());
                    let (_, message) = begun.get_or_insert_with(|| (piece.kind, Vec::new()));
                    message.extend_from_slice(piece.payload);
                    if piece.last {
                        all.extend(begun.take());
                    }
                }
                _ => return all,
            },
        }
        if way < 2 && outgoing.flush().await.is_err() {
            continue; // messages that were received can still be read
        }
    }
}

/// The messages that the engine returns for the same bytes.
fn expected(wire: &[u8]) -> Vec<Got> {
    let mut config = Config::default();
    config.engine.message_bytes_max = 1 << 17;
    let Engine { mut receiver, control, .. } = Engine::server(config, Instant::now());
    receiver.set_whole_frame_bytes_max(usize::MAX);
    let (mut buf, mut at) = (wire.to_vec(), 0);
    let (mut all, mut begun) = (Vec::new(), Vec::new());
    while let Ok(Decoded { consumed, event: Some(event) }) =
        receiver.decode(&control, &mut buf[at..])
    {
        at += consumed;
        match event {
            Event::Text(text) => all.push((MessageKind::Text, text.as_bytes().to_vec())),
            Event::Binary(payload) => all.push((MessageKind::Binary, payload.to_vec())),
            Event::Piece(piece) => {
                begun.extend_from_slice(piece.payload);
                if piece.last {
                    all.push((piece.kind, std::mem::take(&mut begun)));
                }
            }
            Event::Close(_) => break,
            _ => {}
        }
    }
    all
}

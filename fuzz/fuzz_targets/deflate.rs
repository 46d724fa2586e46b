//! Compressed messages of any bytes, cut into any frames: the stream returns the messages that plain zlib returns, up to
//! the first invalid one. It ends, and all memory is given back.
#![no_main]

use flate2::{Decompress, FlushDecompress, Status};
use libfuzzer_sys::fuzz_target;
use owned_io::{Executor, MemoryBudget, OwnedRead, OwnedWrite, OwnedWriteExt, Pool, PoolConfig};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::deflate::Deflate;
use owned_io_websocket::handshake::{Key, Offer};
use owned_io_websocket::stream::{Buffers, accept};
use owned_io_websocket::{Config, Violation};

/// Small, so that many messages come in pieces.
const BUF_BYTES: usize = 200;
const MESSAGE_BYTES_MAX: usize = 10_000;
/// How often a deflate stream may end within a message.
const ENDS_MAX: u32 = 1000;

fuzz_target!(|input: &[u8]| {
    let [seed, habits, cut, payloads @ ..] = input else { return };
    let takes_over = habits & 1 != 0;
    let payloads: Vec<_> = payloads.split(|byte| *byte == b'|').collect();
    let wire: Vec<u8> = payloads.iter().flat_map(|payload| message(payload, *cut)).collect();
    let simulation = owned_io_sim::Config::with_seed((*seed).into());
    let got = Sim::block_on(simulation, serve(wire, takes_over, habits & 2 != 0)).unwrap();
    assert_eq!(got, expected(&payloads, takes_over));
});

/// A message in two frames, masked with zeroes.
fn message(payload: &[u8], cut: u8) -> Vec<u8> {
    let (first, second) = payload.split_at(payload.len().min(cut.into()));
    let mut wire = Vec::new();
    for (head, part) in [(0x42, first), (0x80, second)] {
        wire.extend_from_slice(&[head, 0x80 | 126]);
        if part.len() < 126 {
            wire.pop();
            wire.push(0x80 | part.len() as u8);
        } else {
            wire.extend_from_slice(&(part.len() as u16).to_be_bytes());
        }
        wire.extend_from_slice(&[0; 4]);
        wire.extend_from_slice(part);
    }
    wire
}

/// The messages before the first invalid one, and whether there was an invalid one.
type Got = (Vec<Vec<u8>>, bool);

async fn serve(wire: Vec<u8>, takes_over: bool, in_pieces: bool) -> Got {
    let mut config = PoolConfig::default();
    config.buf_bytes = BUF_BYTES;
    let pool = Pool::new(config);
    let buffers = Buffers::new(pool.clone(), MemoryBudget::new(1 << 20));
    let mut config = Config::default();
    config.engine.message_bytes_max = MESSAGE_BYTES_MAX;
    let mut deflate = Deflate::default();
    deflate.receive_takeover = takes_over;
    config.handshake.deflate = Some(deflate);
    let (a, raw) = pipe();
    let peer = Sim::spawn(peer(raw, wire));
    let mut socket = accept::<Sim, _>(a, &buffers, config).await.expect("the request is valid");
    let (mut messages, mut begun) = (Vec::new(), Vec::new());
    let failure = loop {
        let received = if in_pieces {
            socket.incoming.receive_piece().await.map(|piece| {
                piece.and_then(|piece| {
                    begun.extend_from_slice(piece.payload);
                    piece.last.then(|| messages.push(std::mem::take(&mut begun)))
                })
            })
        } else {
            let message = socket.incoming.receive().await;
            message.map(|message| message.map(|message| messages.push(message.as_bytes().to_vec())))
        };
        match received {
            Ok(_) => {}
            Err(owned_io_websocket::stream::Error::Protocol(error)) => break error,
            Err(error) => panic!("{error}"),
        }
    };
    drop(socket);
    peer.await.expect("the peer does not panic");
    assert_eq!(pool.leased(), 0);
    (messages, failure != Violation::EndedWithoutClose.into())
}

async fn peer(mut raw: SimStream, wire: Vec<u8>) {
    let mut request = Vec::new();
    let headers = [("Sec-WebSocket-Extensions", "permessage-deflate")];
    let offer = Offer { host: "a", headers: &headers, ..Offer::default() };
    offer.encode(&Key::new([7; 16]), &mut request).unwrap();
    let _ = raw.write_all(request).await;
    let _ = raw.write_all(wire).await;
    let _ = raw.shutdown().await;
    while let Ok((1.., _)) = raw.read(Vec::with_capacity(4096)).await.into_result() {}
}

fn expected(payloads: &[&[u8]], takes_over: bool) -> Got {
    let (mut messages, mut decompress) = (Vec::new(), Decompress::new(false));
    for payload in payloads {
        if !takes_over {
            decompress.reset(false);
        }
        match inflate(&mut decompress, payload) {
            Some(message) => messages.push(message),
            None => return (messages, true),
        }
    }
    (messages, false)
}

/// `None` if the message is invalid or too long. Bytes behind the end of a deflate stream begin another stream.
fn inflate(decompress: &mut Decompress, payload: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(1 << 20);
    let (mut left, mut ends, mut is_at_end) = (payload, 0, false);
    while !left.is_empty() {
        let read = decompress.total_in();
        let status = decompress.decompress_vec(left, &mut message, FlushDecompress::Sync).ok()?;
        left = &left[(decompress.total_in() - read) as usize..];
        is_at_end = status == Status::StreamEnd;
        if is_at_end {
            decompress.reset(false);
            ends += 1;
        }
        if message.len() > MESSAGE_BYTES_MAX || ends > ENDS_MAX {
            return None;
        }
    }
    let before = message.len();
    if !is_at_end {
        let tail = [0, 0, 0xFF, 0xFF];
        // The tail ends a block, not the stream.
        let status = decompress.decompress_vec(&tail, &mut message, FlushDecompress::Sync).ok()?;
        (status == Status::Ok).then_some(())?;
    }
    (message.len() == before).then_some(message)
}

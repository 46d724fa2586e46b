//! Compression (RFC 7692), on the simulator: negotiation, the bytes on the wire, and the answers to bad input.

mod common;
mod ends;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use common::{BINARY, CONTINUATION, FIN, PING, Role, TEXT, frame};
use ends::{NORMAL, Protocol, Socket, buffers, read_to_end, seconds_since, simulate};
use flate2::{Compress, Compression, FlushCompress};
use owned_io::{
    Clock, Executor, MemoryBudget, OwnedRead, OwnedWrite, OwnedWriteExt, Pool, PoolConfig, Random,
    select,
};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::deflate::{DECOMPRESSOR_BYTES, Deflate};
use owned_io_websocket::handshake::{HandshakeError, Key, Offer, accept_key};
use owned_io_websocket::stream::{
    Buffers, EncodedFrame, Error, Message, WebSocket, accept, connect,
};
use owned_io_websocket::{Config, Fragment, Limit, MessageKind, Timeout, Violation};

/// The bit that says that a message is compressed (section 6).
const COMPRESSED: u8 = 0x40;
const RSV2: u8 = 0x20;
const RSV3: u8 = 0x10;

/// "Hello", compressed as in section 7.2.3.1.
const HELLO: &[u8] = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
/// "Hello" a second time, as in section 7.2.3.2.
const HELLO_AGAIN: &[u8] = b"\xf2\x00\x11\x00\x00";

const OFFER: &str = "permessage-deflate; client_max_window_bits";

fn with(deflate: Deflate) -> Config {
    let mut config = Config::default();
    config.handshake.deflate = Some(deflate);
    config
}

fn takeover() -> Deflate {
    let mut deflate = Deflate::default();
    (deflate.send_takeover, deflate.receive_takeover) = (true, true);
    deflate
}

/// All combinations of takeover, at three combinations of windows.
fn settings() -> impl Iterator<Item = Deflate> {
    (0..4).flat_map(|flags| {
        [(9, 15), (15, 10), (15, 15)].map(|(send, receive)| {
            let mut deflate = Deflate::default();
            (deflate.send_takeover, deflate.receive_takeover) = (flags & 1 != 0, flags & 2 != 0);
            (deflate.send_window_bits, deflate.receive_window_bits) = (send, receive);
            deflate.level = [1, 6][flags & 1];
            deflate
        })
    })
}

/// A server and a client that both compress.
async fn pair(server: Deflate, client: Deflate) -> (Socket, Socket) {
    let (a, b) = pipe();
    let accepted = Sim::spawn(async move { accept::<Sim, _>(a, &buffers(), with(server)).await });
    let offer = Offer { deflate: Some(client), ..Offer::default() };
    let (client, _) = connect::<Sim, _>(b, &buffers(), Config::default(), &offer).await.unwrap();
    (accepted.await.unwrap().unwrap(), client)
}

/// A server, a client that is driven by hand, and the server's answer to the client's offer.
async fn raw_client(
    config: Config,
    buffers: Buffers,
    offer: &str,
) -> (Socket, SimStream, Option<String>) {
    let (a, mut raw) = pipe();
    let accepted = Sim::spawn(async move { accept::<Sim, _>(a, &buffers, config).await });
    let mut request = Vec::new();
    let headers = [("Sec-WebSocket-Extensions", offer)];
    let offer = Offer { headers: &headers, ..Offer::default() };
    offer.encode(&Key::new([7; 16]), &mut request).unwrap();
    raw.write_all(request).await.into_result().unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let (_, byte) = raw.read(Vec::with_capacity(1)).await.into_result().unwrap();
        response.extend_from_slice(&byte);
    }
    let response = String::from_utf8(response).unwrap();
    let answer = response.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: "));
    (accepted.await.unwrap().unwrap(), raw, answer.map(str::to_owned))
}

/// Sends `wire` to a server. Returns the messages that it received, its failure, and the bytes that it sent.
async fn received(
    config: Config,
    buffers: Buffers,
    wire: &[u8],
) -> (Vec<Vec<u8>>, Option<Protocol>, Vec<u8>) {
    let (mut server, mut raw, answer) = raw_client(config, buffers, OFFER).await;
    assert_eq!(answer.is_some(), config.handshake.deflate.is_some());
    let wire = wire.to_vec();
    let peer = Sim::spawn(async move {
        raw.write_all(wire).await.into_result().unwrap();
        raw.shutdown().await.unwrap();
        read_to_end(&mut raw).await
    });
    let mut messages = Vec::new();
    let failure = loop {
        match server.incoming.receive().await {
            Ok(Some(message)) => messages.push(message.as_bytes().to_vec()),
            Ok(None) => break None,
            Err(Error::Protocol(failure)) => break Some(failure),
            Err(error) => panic!("{error}"),
        }
    };
    drop(server);
    (messages, failure, peer.await.unwrap())
}

fn compressed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * message.len() + 100);
    Compress::new(Compression::new(6), false)
        .compress_vec(message, &mut out, FlushCompress::Sync)
        .unwrap();
    assert!(out.ends_with(&[0, 0, 0xFF, 0xFF]));
    out.truncate(out.len() - 4);
    out
}

/// A random number below `below`, from the seed.
fn random_below(below: usize) -> usize {
    let mut random = [0; 8];
    Sim::fill_random(&mut random);
    (u64::from_le_bytes(random) % below as u64) as usize
}

fn json(bytes: usize) -> Vec<u8> {
    let records = (0_u64..).flat_map(|n| {
        format!("{{\"id\":{n},\"price\":{}.5,\"name\":\"order é\"}},", n * n % 9973).into_bytes()
    });
    let mut json: Vec<u8> = records.take(bytes).collect();
    if std::str::from_utf8(&json).is_err() {
        json.pop();
        json.push(b'.');
    }
    json
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn echo_with_all_settings() {
    let settings: Vec<_> = settings().collect();
    let settings = &settings;
    simulate(|| async move {
        // Each seed picks other settings. All of them would take a minute.
        for _ in 0..4 {
            let [server, client] = [(); 2].map(|()| settings[random_below(settings.len())]);
            let (server, mut client) = pair(server, client).await;
            let echoing = Sim::spawn(async move {
                let WebSocket { mut incoming, mut outgoing } = server;
                while let Some(message) = incoming.receive().await.unwrap() {
                    outgoing.write(message).unwrap();
                    outgoing.flush().await.unwrap();
                }
            });
            for bytes in [0, 1, 63, 64, 1000, 1000, 30_000, 1000] {
                for payload in [json(bytes), noise(bytes)] {
                    let text = std::str::from_utf8(&payload).map(Message::Text);
                    let message = text.unwrap_or(Message::Binary(&payload));
                    client.outgoing.send(message).await.unwrap();
                    assert_eq!(client.incoming.receive().await.unwrap(), Some(message));
                    let shared = payload.clone().into();
                    client
                        .outgoing
                        .write_bytes(Fragment::Whole(MessageKind::Binary), shared)
                        .unwrap();
                    client.outgoing.flush().await.unwrap();
                    let answer = client.incoming.receive().await.unwrap();
                    assert_eq!(answer, Some(Message::Binary(&payload)));
                }
            }
            client.close(NORMAL).await.unwrap();
            echoing.await.unwrap();
        }
    });
}

/// Messages of more than 32 KiB are compressed "in pieces of 16 KiB", and leave "in one frame".
#[test]
fn echo_of_long_messages_with_all_settings() {
    let settings: Vec<_> = settings().collect();
    let settings = &settings;
    simulate(|| async move {
        let [server, client] = [(); 2].map(|()| settings[random_below(settings.len())]);
        let (server, mut client) = pair(server, client).await;
        let echoing = Sim::spawn(async move {
            let WebSocket { mut incoming, mut outgoing } = server;
            while let Some(message) = incoming.receive_owned().await.unwrap() {
                let fragment = Fragment::Whole(message.kind());
                let payload = message.as_bytes().to_vec().into();
                outgoing.write_bytes(fragment, payload).unwrap();
                outgoing.flush().await.unwrap();
            }
        });
        let len = [16 * 1024, 16 * 1024 + 1, 100_000][random_below(3)];
        for payload in [noise(32 * 1024 + 1), json(len * 2)] {
            let message = Message::Binary(&payload);
            client.outgoing.send(message).await.unwrap();
            assert!(client.incoming.receive().await.unwrap() == Some(message));
        }
        // Several messages, one of them long, are sent in order.
        let (short, long) = (json(1000), json(70_000));
        for payload in [&short, &long, &short] {
            client.outgoing.write(Message::Binary(payload)).unwrap();
        }
        client.outgoing.flush().await.unwrap();
        assert_eq!(client.outgoing.queued_bytes(), 0);
        for payload in [&short, &long, &short] {
            assert!(client.incoming.receive().await.unwrap() == Some(Message::Binary(payload)));
        }
        client.close(NORMAL).await.unwrap();
        echoing.await.unwrap();
    });
}

/// "Other tasks can run between two pieces." Pings are answered meanwhile.
#[test]
fn other_tasks_run_while_a_long_message_is_compressed() {
    const PERIOD: Duration = Duration::from_millis(1);
    for takeover in [Deflate::default(), takeover()] {
        let config = owned_io_sim::Config::with_seed(1);
        Sim::block_on(config, async move {
            let budget =
                || Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
            let mut config = with(takeover);
            config.engine.queue_bytes_max = 32 << 20;
            let (mut server, mut raw, _) = raw_client(config, budget(), OFFER).await;
            let neighbour = Sim::spawn(async {
                let (mut wait_max, mut waits) = (Duration::ZERO, 0);
                while waits < 20 {
                    let before = Sim::now();
                    Sim::sleep(PERIOD).await;
                    wait_max = wait_max.max(Sim::now() - before - PERIOD);
                    waits += 1;
                }
                wait_max
            });
            let reading = Sim::spawn(async move { read_to_end(&mut raw).await });
            let message = vec![7; 16 << 20];
            let began = Sim::now();
            server
                .outgoing
                .write_bytes(Fragment::Whole(MessageKind::Binary), message.into())
                .unwrap();
            server.outgoing.flush().await.unwrap();
            let took = Sim::now() - began;
            assert!(took > 40 * PERIOD, "{took:?}: no work was counted");
            let wait_max = neighbour.await.unwrap();
            assert!(wait_max < Duration::from_micros(200), "{wait_max:?}");
            drop(server);
            assert_eq!(reading.await.unwrap()[0], FIN | COMPRESSED | BINARY);
        })
        .unwrap();
    }
}

/// "Dropping a flush loses nothing": the next flush, or the close, continues the compression.
#[test]
fn a_flush_that_is_dropped_within_a_long_message_loses_nothing() {
    simulate(|| async {
        for deflate in [Deflate::default(), takeover()] {
            let (server, mut client) = pair(deflate, deflate).await;
            let receiving = Sim::spawn(async move {
                let mut messages = Vec::new();
                let mut incoming = server.incoming;
                while let Some(message) = incoming.receive().await.unwrap() {
                    messages.push(message.as_bytes().to_vec());
                }
                (messages, server.outgoing)
            });
            let (long, short) = (json(150_000), json(500));
            for _ in 0..3 {
                client.outgoing.write(Message::Binary(&long)).unwrap();
                // Compresses some of ten pieces.
                let polls = random_below(5);
                let mut flushing = Box::pin(client.outgoing.flush());
                for _ in 0..polls {
                    let done =
                        poll_fn(|cx| Poll::Ready(flushing.as_mut().poll(cx).is_ready())).await;
                    assert!(!done);
                    Sim::sleep(Duration::from_micros(100)).await;
                }
                drop(flushing);
                match random_below(3) {
                    0 => client.outgoing.flush().await.unwrap(),
                    1 => client.outgoing.write(Message::Binary(&short)).unwrap(),
                    _ => client.outgoing.send(Message::Binary(&short)).await.unwrap(),
                }
            }
            client.outgoing.write(Message::Binary(&long)).unwrap();
            client.close(NORMAL).await.unwrap();
            let (messages, _outgoing) = receiving.await.unwrap();
            assert_eq!(messages.iter().filter(|message| **message == long).count(), 4);
            assert!(messages.iter().all(|message| *message == long || *message == short));
            assert!(messages.last() == Some(&long), "the close frame came first");
        }
    });
}

/// A connection fails "if the peer accepts nothing for longer than `write_timeout` while either half is awaited": also
/// while a flush alone is awaited, which compresses before it writes.
#[test]
fn a_flush_that_compresses_first_has_the_write_timeout() {
    simulate(|| async {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
        let (mut server, _raw, _) = raw_client(with(Deflate::default()), buffers, OFFER).await;
        let long = noise(400_000); // more than the transport holds, compressed too
        let began = Sim::now();
        let sending = pin!(server.outgoing.send(Message::Binary(&long)));
        let patience = Sim::sleep(Duration::from_secs(1000));
        let sent = select(sending, patience).await.first.expect("the write times out");
        let late = Protocol::Timeout(Timeout::Write);
        assert!(matches!(sent, Err(Error::Protocol(failure)) if failure == late), "{sent:?}");
        assert_eq!(seconds_since(began), 60);
    });
}

/// "If there is no memory for compression, the message is sent uncompressed." The messages after it are intact.
#[test]
fn a_long_message_without_memory_for_compression_is_sent_uncompressed() {
    simulate(|| async {
        for deflate in [Deflate::default(), takeover()] {
            // Enough for the compressor, the message and a small part of the compressed message.
            let bytes_max = owned_io_websocket::deflate::COMPRESSOR_BYTES_MAX + 330 * 1024;
            let pool = Pool::new(PoolConfig::default());
            let buffers = Buffers::new(pool, MemoryBudget::new(bytes_max));
            let (server, mut raw, _) = raw_client(with(deflate), buffers, OFFER).await;
            let WebSocket { incoming, mut outgoing } = server;
            let reading = Sim::spawn(async move { read_to_end(&mut raw).await });
            let message = noise(300_000);
            outgoing.send(Message::Binary(&message)).await.unwrap();
            outgoing.send(Message::Binary(&json(1000))).await.unwrap();
            drop((outgoing, incoming));
            let sent = reading.await.unwrap();
            assert_eq!(sent[..10], [FIN | BINARY, 127, 0, 0, 0, 0, 0, 4, 0x93, 0xE0]);
            assert!(sent[10..][..message.len()] == message);
            let (first, payload) = frames(&sent[10 + message.len()..]).remove(0);
            assert_eq!(first, FIN | COMPRESSED | BINARY);
            let mut inflated = Vec::with_capacity(2000);
            flate2::Decompress::new(false)
                .decompress_vec(&payload, &mut inflated, flate2::FlushDecompress::Sync)
                .unwrap();
            assert!(inflated == json(1000), "it refers to what was not sent");
        }
    });
}

#[test]
fn small_and_incompressible_messages_on_the_wire() {
    simulate(|| async {
        let text = "{\"price\":1}".repeat(20);
        for (deflate, is_shorter_again) in [(Deflate::default(), false), (takeover(), true)] {
            let (server, mut raw, _) = raw_client(with(deflate), buffers(), OFFER).await;
            let WebSocket { mut outgoing, incoming } = server;
            outgoing.write(Message::Text("short")).unwrap();
            outgoing.write(Message::Text(&text)).unwrap();
            outgoing.write(Message::Text(&text)).unwrap();
            outgoing.write_fragment(Fragment::First(MessageKind::Text), text.as_bytes()).unwrap();
            outgoing.write_fragment(Fragment::Last, text.as_bytes()).unwrap();
            let encoded = EncodedFrame::new(Fragment::Whole(MessageKind::Text), text.as_bytes());
            outgoing.write_frame(&encoded).unwrap();
            outgoing.write(Message::Binary(&noise(100))).unwrap();
            outgoing.flush().await.unwrap();
            drop((outgoing, incoming));
            let sent = read_to_end(&mut raw).await;
            let mut frames = frames(&sent).into_iter();
            assert_eq!(frames.next(), Some((FIN | TEXT, b"short".to_vec())));
            let (first, once) = frames.next().unwrap();
            assert_eq!(first, FIN | COMPRESSED | TEXT);
            assert!(once.len() < text.len() / 3);
            let (first, again) = frames.next().unwrap();
            assert_eq!(first, FIN | COMPRESSED | TEXT);
            assert_eq!(again.len() < once.len(), is_shorter_again);
            assert_eq!(frames.next(), Some((TEXT, text.clone().into_bytes())));
            assert_eq!(frames.next(), Some((FIN | CONTINUATION, text.clone().into_bytes())));
            assert_eq!(frames.next(), Some((FIN | TEXT, text.clone().into_bytes())));
            // A message that does not shrink is sent uncompressed, unless later messages may refer to it.
            let (first, last) = frames.next().unwrap();
            assert_eq!(first & COMPRESSED != 0, is_shorter_again);
            assert_eq!(last == noise(100), !is_shorter_again);
            assert_eq!(frames.next(), None);
        }
    });
}

/// Splits `wire` into the frames of a server.
fn frames(mut wire: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [first, len, rest @ ..] = wire {
        let (len, rest) = match len {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            len => (usize::from(*len), rest),
        };
        frames.push((*first, rest[..len].to_vec()));
        wire = &rest[len..];
    }
    frames
}

#[test]
fn compressed_frames_and_fragments_cut_anywhere_are_received() {
    simulate(|| async {
        let text = json(3000);
        let wire = compressed(&text);
        for cut in
            [0, 1, random_below(wire.len()), random_below(wire.len()), wire.len() - 1, wire.len()]
        {
            let frames = [
                frame(Role::Server, COMPRESSED | TEXT, &wire[..cut]),
                frame(Role::Server, FIN | PING, b"between"),
                frame(Role::Server, CONTINUATION, b""),
                frame(Role::Server, FIN | CONTINUATION, &wire[cut..]),
                frame(Role::Server, FIN | TEXT, b"plain"),
                frame(Role::Server, FIN | COMPRESSED | BINARY, HELLO),
            ];
            let (messages, failure, _) =
                received(with(Deflate::default()), buffers(), &frames.concat()).await;
            assert!(messages == [&text[..], b"plain", b"Hello"]);
            assert_eq!(failure, Some(Violation::EndedWithoutClose.into()));
        }
    });
}

#[test]
fn small_buffers_receive_a_long_compressed_frame() {
    simulate(|| async {
        let message = noise(40_000);
        let frames = [
            frame(Role::Server, FIN | COMPRESSED | BINARY, &compressed(&message)),
            frame(Role::Server, FIN | COMPRESSED | BINARY, HELLO),
        ];
        let mut pool = PoolConfig::default();
        pool.buf_bytes = 1000;
        let buffers = Buffers::new(Pool::new(pool), MemoryBudget::new(1 << 20));
        let (messages, ..) = received(with(takeover()), buffers, &frames.concat()).await;
        assert!(messages == [&message[..], b"Hello"]);
    });
}

#[test]
fn the_context_is_kept_only_with_takeover() {
    simulate(|| async {
        let twice = [
            frame(Role::Server, FIN | COMPRESSED | TEXT, HELLO),
            frame(Role::Server, FIN | TEXT, b"plain: in no context"),
            frame(Role::Server, FIN | COMPRESSED | TEXT, HELLO_AGAIN),
        ]
        .concat();
        let (messages, ..) = received(with(takeover()), buffers(), &twice).await;
        assert!(messages == [&b"Hello"[..], b"plain: in no context", b"Hello"]);
        let (messages, failure, _) = received(with(Deflate::default()), buffers(), &twice).await;
        assert_eq!(messages.len(), 2);
        assert_eq!(failure, Some(Violation::NotCompressed.into()));
    });
}

#[test]
fn a_message_may_refer_to_pieces_that_were_skipped() {
    simulate(|| async {
        let text = json(50_000);
        let wire = compressed(&text);
        let middle = wire.len() / 2;
        let message = || {
            [
                frame(Role::Server, COMPRESSED | TEXT, &wire[..middle]),
                frame(Role::Server, FIN | CONTINUATION, &wire[middle..]),
            ]
            .concat()
        };
        // The first message is received in pieces. One piece of the second is received, and the rest is skipped. The
        // last message refers to that rest.
        let last = {
            let mut compress = Compress::new(Compression::new(6), false);
            let mut out = Vec::with_capacity(200_000);
            compress.compress_vec(&text, &mut out, FlushCompress::Sync).unwrap();
            let start = out.len();
            compress.compress_vec(&text[30_000..], &mut out, FlushCompress::Sync).unwrap();
            out[start..out.len() - 4].to_vec()
        };
        assert!(last.len() < 500, "{}", last.len());
        let frames =
            [message(), message(), frame(Role::Server, FIN | COMPRESSED | TEXT, &last)].concat();
        let (mut server, mut raw, _) = raw_client(with(takeover()), buffers(), OFFER).await;
        let peer = Sim::spawn(async move {
            raw.write_all(frames).await.into_result().unwrap();
            read_to_end(&mut raw).await
        });
        let mut whole = Vec::new();
        loop {
            let piece = server.incoming.receive_piece().await.unwrap().unwrap();
            assert_eq!((piece.kind, piece.compressed), (MessageKind::Text, false));
            assert_eq!(piece.first, whole.is_empty());
            assert_eq!(piece.frame_bytes_left, 0);
            whole.extend_from_slice(piece.payload);
            if piece.last {
                break;
            }
        }
        assert!(whole == text);
        let piece = server.incoming.receive_piece().await.unwrap().unwrap();
        assert!(piece.first && !piece.last && text.starts_with(piece.payload));
        let message = server.incoming.receive().await.unwrap().unwrap();
        assert!(message.as_bytes() == &text[30_000..]);
        drop(server);
        drop(peer);
    });
}

#[test]
fn bad_compressed_input_is_answered_with_its_close_code() {
    let hello = FIN | COMPRESSED | TEXT;
    let split: &[u8] = "é".as_bytes();
    type Frames<'a> = &'a [(u8, Vec<u8>)];
    let cases: &[(Frames<'_>, Violation, u16)] = &[
        (&[(hello | RSV2, HELLO.to_vec())], Violation::ReservedBits, 1002),
        (&[(hello | RSV3, HELLO.to_vec())], Violation::ReservedBits, 1002),
        (&[(FIN | RSV2 | TEXT, vec![])], Violation::ReservedBits, 1002),
        (&[(FIN | COMPRESSED | PING, vec![])], Violation::ReservedBits, 1002),
        (
            &[(COMPRESSED | TEXT, HELLO.to_vec()), (FIN | COMPRESSED | CONTINUATION, vec![])],
            Violation::ReservedBits,
            1002,
        ),
        (
            &[(TEXT, b"plain".to_vec()), (FIN | COMPRESSED | CONTINUATION, HELLO.to_vec())],
            Violation::ReservedBits,
            1002,
        ),
        (&[(hello, vec![0x07])], Violation::NotCompressed, 1007),
        (&[(hello, [HELLO, b"\xff"].concat())], Violation::NotCompressed, 1007),
        (&[(hello, HELLO_AGAIN.to_vec())], Violation::NotCompressed, 1007),
        (
            // Garbage after the last block.
            &[(hello, b"\xf3\x48\xcd\xc9\xc9\x07\x00\xff\xff".to_vec())],
            Violation::NotCompressed,
            1007,
        ),
        (&[(hello, compressed(b"\xff"))], Violation::TextNotUtf8, 1007),
        (&[(hello, compressed(&split[..1]))], Violation::TextNotUtf8, 1007),
    ];
    simulate(|| async move {
        for (frames, violation, code) in cases {
            let wire: Vec<_> = frames
                .iter()
                .map(|(first, payload)| frame(Role::Server, *first, payload))
                .collect();
            for deflate in [Deflate::default(), takeover()] {
                let (messages, failure, sent) =
                    received(with(deflate), buffers(), &wire.concat()).await;
                assert_eq!(messages, [] as [&[u8]; 0]);
                assert_eq!(failure, Some((*violation).into()));
                assert_eq!(sent, [&[0x88, 2][..], &code.to_be_bytes()].concat());
            }
        }
        // Compression was not negotiated.
        let wire = frame(Role::Server, hello, HELLO);
        let (_, failure, sent) = received(Config::default(), buffers(), &wire).await;
        assert_eq!(failure, Some(Violation::ReservedBits.into()));
        assert_eq!(sent, b"\x88\x02\x03\xEA");
    });
}

#[test]
fn a_message_that_inflates_beyond_a_limit_fails() {
    let message = |bytes| {
        let wire = compressed(&vec![b'a'; bytes]);
        frame(Role::Server, FIN | COMPRESSED | BINARY, &wire)
    };
    let bomb = &message(5_000_000);
    simulate(|| async move {
        let mut config = with(Deflate::default());
        config.engine.message_bytes_max = 10_000;
        let (messages, ..) = received(config, buffers(), &message(10_000)).await;
        assert_eq!(messages, [[b'a'; 10_000]]);
        let (messages, failure, sent) = received(config, buffers(), &message(10_001)).await;
        assert_eq!(messages, [] as [&[u8]; 0]);
        let limit = Protocol::Limit { limit: Limit::Message, max: 10_000, got: 10_001 };
        assert_eq!(failure, Some(limit));
        assert_eq!(sent, b"\x88\x02\x03\xF1"); // 1009
        // A compression bomb, and fragments that are each within the limit.
        let (_, failure, _) = received(config, buffers(), bomb).await;
        assert_eq!(failure, Some(limit));
        let wire = compressed(&[b'a'; 15_000]);
        let fragments = [
            frame(Role::Server, COMPRESSED | BINARY, &wire[..wire.len() / 2]),
            frame(Role::Server, FIN | CONTINUATION, &wire[wire.len() / 2..]),
        ];
        let (_, failure, _) = received(config, buffers(), &fragments.concat()).await;
        assert_eq!(failure, Some(limit));

        // The same where the limit is the worker's memory.
        let small = Buffers::new(
            Pool::new(PoolConfig::default()),
            MemoryBudget::new(120_000 + DECOMPRESSOR_BYTES),
        );
        let mut long = with(takeover());
        long.engine.message_bytes_max = 1 << 20;
        let (_, failure, sent) = received(long, small.clone(), &message(500_000)).await;
        assert!(
            matches!(failure, Some(Protocol::Limit { limit: Limit::Memory, .. })),
            "{failure:?}"
        );
        assert_eq!(sent, b"\x88\x02\x03\xF5"); // 1013
        // The memory was returned.
        let (messages, ..) = received(with(takeover()), small, &message(59_000)).await;
        assert_eq!(messages.len(), 1);
    });
}

/// A message that arrives whole needs no decompressor of its own. An incomplete message holds one, which is reserved
/// in the memory budget.
#[test]
fn decompressors_of_incomplete_messages_are_reserved() {
    simulate(|| async {
        let few = || Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(10_000));
        let text = json(1000);
        let wire = compressed(&text);
        let whole = frame(Role::Server, FIN | COMPRESSED | TEXT, &wire);
        let many = Buffers::new(
            Pool::new(PoolConfig::default()),
            MemoryBudget::new(10_000 + DECOMPRESSOR_BYTES),
        );
        let in_parts = [
            frame(Role::Server, COMPRESSED | TEXT, &wire[..50]),
            frame(Role::Server, FIN | CONTINUATION, &wire[50..]),
        ]
        .concat();
        // A frame that fits the buffer is decoded whole, wherever the transport cuts it.
        let (messages, ..) = received(with(Deflate::default()), few(), &whole.repeat(3)).await;
        assert!(messages == [&text[..]; 3]);
        for _ in 0..2 {
            let wire = in_parts.repeat(3);
            let (messages, ..) = received(with(Deflate::default()), many.clone(), &wire).await;
            assert!(messages == [&text[..]; 3], "the memory was not returned");
        }
        let (messages, failure, _) = received(with(Deflate::default()), few(), &in_parts).await;
        assert_eq!(messages.len(), 0);
        let is_refused = matches!(failure, Some(Protocol::Limit { limit: Limit::Memory, .. }));
        assert!(is_refused, "{failure:?}");
    });
}

/// A message that takes more than one step waits for the memory of a decompressor before it begins.
#[test]
fn a_decompressor_that_is_kept_was_reserved_before() {
    const BUDGET_BYTES: usize = 200_000 + DECOMPRESSOR_BYTES;
    simulate(|| async move {
        let text = json(100_000);
        let wire = frame(Role::Server, FIN | COMPRESSED | TEXT, &compressed(&text));
        let budget = MemoryBudget::new(BUDGET_BYTES);
        let mut other = budget.account().reservation();
        other.resize(BUDGET_BYTES - 40_000).unwrap();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let receiving =
            Sim::spawn(async move { received(with(Deflate::default()), buffers, &wire).await });
        for _ in 0..10 {
            Sim::sleep(Duration::from_millis(20)).await;
            assert!(budget.common_bytes_held() <= BUDGET_BYTES, "{budget:?}");
        }
        drop(other);
        let (messages, ..) = receiving.await.unwrap();
        assert!(messages == [text]);
        assert_eq!(budget.common_bytes_held(), 0);
    });
}

#[test]
fn each_offer_has_its_answer() {
    const PLAIN: &str =
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    simulate(|| async {
        let mut small = takeover();
        small.receive_window_bits = 10;
        for (deflate, offer, expected) in [
            (Deflate::default(), OFFER, Some(PLAIN)),
            (takeover(), OFFER, Some("permessage-deflate")),
            (small, OFFER, Some("permessage-deflate; client_max_window_bits=10")),
            (takeover(), "permessage-deflate; unknown=1", None),
            (
                takeover(),
                "permessage-deflate; client_max_window_bits; client_max_window_bits",
                None,
            ),
            (
                takeover(),
                "permessage-deflate; server_max_window_bits=7, permessage-deflate",
                Some("permessage-deflate"),
            ),
            (takeover(), "other", None),
        ] {
            let (mut server, mut raw, answer) = raw_client(with(deflate), buffers(), offer).await;
            assert_eq!(answer.as_deref(), expected);
            // The connection is open, with compression or without.
            raw.write_all(frame(Role::Server, FIN | TEXT, b"hello")).await.into_result().unwrap();
            assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("hello")));
        }
    });
}

/// "A server MUST decline an extension negotiation offer for this extension if [...] the server doesn't
/// support the offered configuration" (7.1): zlib cannot compress with a window of 256 bytes. The server takes the
/// next offer if there is one, and then compresses what it sends.
#[test]
fn a_server_declines_a_window_that_it_cannot_send_with() {
    simulate(|| async {
        for (offer, expected) in [
            ("permessage-deflate; server_max_window_bits=8", None),
            (
                "permessage-deflate; server_max_window_bits=8, permessage-deflate",
                Some("permessage-deflate"),
            ),
            (
                "permessage-deflate; server_max_window_bits=9",
                Some("permessage-deflate; server_max_window_bits=9"),
            ),
            // The server can decompress with any window of the client.
            (
                "permessage-deflate; client_max_window_bits=8",
                Some("permessage-deflate; client_max_window_bits=8"),
            ),
        ] {
            let (server, mut raw, answer) = raw_client(with(takeover()), buffers(), offer).await;
            assert_eq!(answer.as_deref(), expected);
            let WebSocket { mut outgoing, incoming } = server;
            outgoing.send(Message::Binary(&[7; 1000])).await.unwrap();
            drop((outgoing, incoming));
            let sent = frames(&read_to_end(&mut raw).await);
            match expected {
                None => assert_eq!(sent, [(FIN | BINARY, vec![7; 1000])]),
                Some(_) => {
                    let [(first, payload)] = &sent[..] else { panic!("{} frames", sent.len()) };
                    assert_eq!(*first, FIN | COMPRESSED | BINARY);
                    assert!(payload.len() < 30, "{} bytes", payload.len());
                }
            }
        }
    });
}

#[test]
fn a_client_refuses_an_answer_that_does_not_match_its_offer() {
    use HandshakeError as E;
    simulate(|| async {
        let open = "permessage-deflate; server_no_context_takeover";
        for (deflate, answer, expected) in [
            (Some(Deflate::default()), Some(open), None),
            (Some(Deflate::default()), None, None),
            (Some(Deflate::default()), Some("permessage-deflate"), Some(E::WrongDeflate)),
            (
                Some(takeover()),
                Some("permessage-deflate; server_max_window_bits=10; server_max_window_bits=10"),
                Some(E::WrongDeflate),
            ),
            (Some(takeover()), Some("permessage-deflate; other"), Some(E::WrongDeflate)),
            // "The client does not support the configuration that the response represents" (7.1).
            (
                Some(takeover()),
                Some("permessage-deflate; client_max_window_bits=8"),
                Some(E::WrongDeflate),
            ),
            (Some(takeover()), Some("other"), Some(E::UnknownExtension)),
            (None, Some(open), Some(E::UnknownExtension)),
        ] {
            let (a, mut raw) = pipe();
            let connecting = Sim::spawn(async move {
                let offer = Offer { deflate, ..Offer::default() };
                connect::<Sim, _>(a, &buffers(), Config::default(), &offer).await.map(|_| ())
            });
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let (_, byte) = raw.read(Vec::with_capacity(1)).await.into_result().unwrap();
                request.extend_from_slice(&byte);
            }
            let request = String::from_utf8(request).unwrap();
            let header = |name| request.lines().find_map(|line| line.strip_prefix(name));
            let offered = header("Sec-WebSocket-Extensions: ");
            assert_eq!(offered.is_some(), deflate.is_some());
            let key = accept_key(header("Sec-WebSocket-Key: ").unwrap().as_bytes());
            let extension = answer.map(|answer| format!("Sec-WebSocket-Extensions: {answer}\r\n"));
            let response = format!(
                "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n{}\
                 Sec-WebSocket-Accept: {}\r\n\r\n",
                extension.unwrap_or_default(),
                std::str::from_utf8(&key).unwrap(),
            );
            raw.write_all(response.into_bytes()).await.into_result().unwrap();
            match (connecting.await.unwrap(), expected) {
                (Ok(()), None) => {}
                (Err(Error::NotUpgraded(error)), Some(expected)) => assert_eq!(error, expected),
                (result, _) => panic!("{answer:?}: {result:?}"),
            }
        }
    });
}

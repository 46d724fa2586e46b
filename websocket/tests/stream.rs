//! The stream, on the simulator. Reads and writes are short everywhere, and each test runs under many seeds.

mod common;
mod ends;

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use common::{BINARY, CLOSE, CONTINUATION, FIN, KEY, PING, PONG, Role, TEXT, frame};
use ends::{NORMAL, Protocol, Socket, buffers, pair, raw_client, read_to_end, simulate};
use owned_io::{
    Clock, Executor, MemoryBudget, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt, Pool,
    PoolConfig, select,
};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::handshake::{HandshakeError, Offer, Origins, Refusal};
use owned_io_websocket::stream::{
    Buffers, Error, Incoming, Message, Outgoing, PendingRequest, WebSocket, accept, connect,
};
use owned_io_websocket::{
    CloseCode, CloseFrame, Config, Fragment, Limit, MessageKind, Misuse, Violation,
};

/// Lengths around each width of the length field, and around each limit between whole messages and pieces.
const LENGTHS: [usize; 13] =
    [0, 1, 125, 126, 1000, 1024, 1025, 16_274, 16_275, 16_384, 65_535, 65_536, 300_000];

/// A payload that is sent as text if `len` is even.
fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| b'a' + (i % 23) as u8).collect()
}

fn message(payload: &[u8]) -> Message<'_> {
    match payload.len() % 2 {
        0 => Message::Text(std::str::from_utf8(payload).unwrap()),
        _ => Message::Binary(payload),
    }
}

async fn echo(incoming: &mut Incoming<impl OwnedRead>, outgoing: &mut Outgoing) -> usize {
    let mut echoed = 0;
    while let Some(message) = incoming.receive().await.unwrap() {
        outgoing.write(message).unwrap();
        echoed += 1;
        while let Some(message) = incoming.try_receive() {
            outgoing.write(message).unwrap();
            echoed += 1;
        }
        outgoing.flush().await.unwrap();
    }
    echoed
}

/// Sends messages of all lengths, waits for each echo, and closes.
async fn ask(mut socket: Socket) {
    for len in LENGTHS {
        let payload = payload(len);
        socket.outgoing.send(message(&payload)).await.unwrap();
        assert_eq!(socket.incoming.receive().await.unwrap(), Some(message(&payload)));
        let fragment = Fragment::Whole(message(&payload).kind());
        let shared = Bytes::from(payload.clone());
        socket.outgoing.write_bytes(fragment, shared.clone()).unwrap(); // a client copies it to mask it
        socket.outgoing.write(Message::Text("small")).unwrap();
        socket.outgoing.flush().await.unwrap();
        assert_eq!(socket.incoming.receive().await.unwrap(), Some(message(&payload)));
        assert_eq!(socket.incoming.receive().await.unwrap(), Some(Message::Text("small")));
        drop(shared);
        socket.outgoing.write_bytes(fragment, Bytes::from(payload.clone())).unwrap();
        socket.outgoing.flush().await.unwrap();
        assert_eq!(socket.incoming.receive().await.unwrap(), Some(message(&payload)));
        assert_eq!(socket.outgoing.queued_bytes(), 0);
    }
    socket.close(NORMAL).await.unwrap();
    assert_eq!(socket.incoming.receive().await.unwrap(), None, "again");
    let late = socket.outgoing.write(Message::Text("late"));
    assert_eq!(late, Err(Protocol::Misuse(Misuse::SentAfterClose)));
}

#[test]
fn echo_of_all_sizes_by_each_side() {
    for server_asks in [false, true] {
        simulate(|| async move {
            let (server, client) = pair(Config::default(), Config::default()).await;
            let (asks, echoes) = if server_asks { (server, client) } else { (client, server) };
            let echoing = Sim::spawn(async move {
                let WebSocket { mut incoming, mut outgoing } = echoes;
                echo(&mut incoming, &mut outgoing).await
            });
            ask(asks).await;
            assert_eq!(echoing.await.unwrap(), 4 * LENGTHS.len());
        });
    }
}

#[test]
fn both_halves_work_at_the_same_time() {
    async fn send_all(mut outgoing: Outgoing) -> Outgoing {
        for i in 0..150 {
            let payload = vec![i as u8; i * 40];
            if i % 3 == 0 {
                let payload = Bytes::from(payload);
                outgoing.write_bytes(Fragment::Whole(MessageKind::Binary), payload).unwrap();
            } else {
                outgoing.write(Message::Binary(&payload)).unwrap();
            }
            if i % 5 == 0 {
                outgoing.ping(b"ping").unwrap();
                outgoing.flush().await.unwrap();
            }
        }
        outgoing.close(NORMAL).await.unwrap();
        outgoing
    }
    async fn receive_all(incoming: &mut Incoming<impl OwnedRead>) {
        for i in 0..150 {
            let message = incoming.receive().await.unwrap();
            assert_eq!(message, Some(Message::Binary(&vec![i as u8; i * 40])));
        }
        assert_eq!(incoming.receive().await.unwrap(), None);
    }
    simulate(|| async {
        let (server, mut client) = pair(Config::default(), Config::default()).await;
        let WebSocket { mut incoming, outgoing } = server;
        let sending = Sim::spawn(send_all(outgoing));
        let echoing = Sim::spawn(async move { receive_all(&mut client.incoming).await });
        assert_eq!(incoming.receive().await.unwrap(), None);
        drop(sending.await.unwrap());
        echoing.await.unwrap();
    });
}

#[test]
fn pings_between_fragments_and_frames_after_the_request_are_received() {
    simulate(|| async {
        let mut wire = frame(Role::Server, FIN | BINARY, b"at once");
        wire.extend(frame(Role::Server, TEXT, "gr\u{fc}".as_bytes().split_at(3).0));
        wire.extend(frame(Role::Server, FIN | PING, b"1"));
        wire.extend(frame(Role::Server, CONTINUATION, b"\xBC\xC3"));
        wire.extend(frame(Role::Server, FIN | PONG, b"unasked"));
        wire.extend(frame(Role::Server, CONTINUATION, &[b'\x9F'; 1]));
        wire.extend(frame(Role::Server, CONTINUATION, &[b'x'; 40_000]));
        wire.extend(frame(Role::Server, FIN | CONTINUATION, b"e"));
        wire.extend(frame(Role::Server, FIN | CLOSE, b"\x03\xE8"));
        let mut text = String::from("gr\u{fc}\u{df}");
        // The first fragment ends within the first character that is not ASCII.
        let first = frame(Role::Server, TEXT, b"gr\xC3");
        let fixed = frame(Role::Server, TEXT, "gr\u{fc}".as_bytes().split_at(3).0);
        assert_eq!(first, fixed);
        text.extend(std::iter::repeat_n('x', 40_000));
        text.push('e');

        let (mut server, mut raw) = raw_client(Config::default(), buffers(), &wire[..20]).await;
        let rest = wire[20..].to_vec();
        let peer = Sim::spawn(async move {
            raw.write_all(rest).await.into_result().unwrap();
            read_to_end(&mut raw).await
        });
        let first = server.incoming.receive().await.unwrap();
        assert_eq!(first, Some(Message::Binary(b"at once")));
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text(&text)));
        assert_eq!(server.incoming.receive().await.unwrap(), None);
        drop(server);
        assert_eq!(peer.await.unwrap(), b"\x8A\x011\x88\x02\x03\xE8");
    });
}

#[test]
fn huge_messages_in_pieces_in_both_directions() {
    simulate(|| async {
        let (mut server, mut client) = pair(Config::default(), Config::default()).await;
        let sending = Sim::spawn(async move {
            let chunk = vec![7; 50_000];
            for i in 0..40 {
                let fragment = match i {
                    0 => Fragment::First(MessageKind::Binary),
                    39 => Fragment::Last,
                    _ => Fragment::Middle,
                };
                server.outgoing.write_fragment(fragment, &chunk).unwrap();
                server.outgoing.ping(b"").unwrap();
                server.outgoing.flush().await.unwrap();
            }
            server.outgoing.send(Message::Text("short")).await.unwrap();
            server.close(NORMAL).await.unwrap();
        });
        let (mut bytes, mut last) = (0, false);
        while !last {
            let piece = client.incoming.receive_piece().await.unwrap().unwrap();
            assert_eq!(piece.first, bytes == 0);
            assert!(piece.payload.iter().all(|byte| *byte == 7));
            bytes += piece.payload.len();
            last = piece.last;
        }
        assert_eq!(bytes, 2_000_000, "twice what may be assembled");
        let piece = client.incoming.receive_piece().await.unwrap().unwrap();
        assert!(piece.first && piece.last && *piece.payload == *b"short");
        assert!(client.incoming.receive_piece().await.unwrap().is_none());
        sending.await.unwrap();
    });
}

#[test]
fn a_peer_that_does_not_read_fills_the_queue_and_nothing_is_lost() {
    simulate(|| async {
        let mut config = Config::default();
        config.engine.queue_bytes_max = 200_000;
        let (mut server, mut raw) = raw_client(config, buffers(), b"").await;
        let payload = Bytes::from(vec![7; 30_000]);
        let mut queued = 0;
        let unsent = loop {
            let fragment = Fragment::Whole(MessageKind::Binary);
            match server.outgoing.write_bytes(fragment, payload.clone()) {
                Ok(()) => queued += 1,
                Err(unsent) => break unsent,
            }
        };
        assert_eq!((queued, &unsent.payload), (6, &payload));
        assert!(matches!(unsent.error, Protocol::Limit { limit: Limit::Queue, .. }));

        // A flush that is dropped in the middle of a write.
        let late = {
            let flush = pin!(server.outgoing.flush());
            select(flush, Sim::sleep(Duration::from_secs(1))).await
        };
        assert!(late.first.is_none());
        server.outgoing.write(Message::Binary(&[0; 20_000])).unwrap_err();

        // The peer's messages are still received.
        raw.write_all(frame(Role::Server, FIN | PING, b"!")).await.into_result().unwrap();
        raw.write_all(frame(Role::Server, FIN | TEXT, b"hello")).await.into_result().unwrap();
        let received = server.incoming.receive().await.unwrap();
        assert_eq!(received, Some(Message::Text("hello")));

        let reading = Sim::spawn(async move {
            let (mut wire, expected) = (Vec::new(), 6 * (4 + 30_000) + 3);
            while wire.len() < expected {
                let read = raw.read(Vec::with_capacity(9000)).await.into_result();
                wire.extend_from_slice(&read.unwrap().1);
            }
            (wire, raw)
        });
        server.outgoing.flush().await.unwrap();
        assert_eq!(server.outgoing.queued_bytes(), 0);
        let (wire, _raw) = reading.await.unwrap();
        for frame in wire[..6 * 30_004].chunks(30_004) {
            assert_eq!(frame[..4], [0x82, 126, 0x75, 0x30]);
            assert!(frame[4..].iter().all(|byte| *byte == 7));
        }
        assert_eq!(&wire[6 * 30_004..], b"\x8A\x01!");
    });
}

#[test]
fn a_flush_that_is_dropped_at_each_poll_loses_nothing() {
    simulate(|| async {
        let (mut server, mut client) = pair(Config::default(), Config::default()).await;
        let sending = Sim::spawn(async move {
            for i in 0..40_usize {
                let payload = vec![i as u8; i * 500];
                let copied = Message::Binary(&payload);
                server.outgoing.write(copied).unwrap();
                let fragment = Fragment::Whole(MessageKind::Binary);
                server.outgoing.write_bytes(fragment, Bytes::from(payload)).unwrap();
                poll_fn(|cx| pin!(server.outgoing.flush()).poll(cx)).await.unwrap();
                assert_eq!(server.outgoing.queued_bytes(), 0);
            }
            server.close(NORMAL).await
        });
        for i in 0..80_usize {
            let message = client.incoming.receive().await.unwrap();
            assert_eq!(message, Some(Message::Binary(&vec![(i / 2) as u8; i / 2 * 500])));
        }
        assert_eq!(client.incoming.receive().await.unwrap(), None);
        sending.await.unwrap().unwrap();
    });
}

#[test]
fn messages_of_one_read_and_the_close_are_received_without_waiting() {
    let wire = [
        frame(Role::Server, FIN | TEXT, b"one"),
        frame(Role::Server, FIN | PING, b""),
        frame(Role::Server, BINARY, b"tw"),
        frame(Role::Server, FIN | CONTINUATION, b"o"),
        frame(Role::Server, FIN | CLOSE, b"\x03\xE8"),
    ]
    .concat();
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), &wire).await;
        let WebSocket { incoming, outgoing } = &mut server;
        let mut received = Vec::new();
        while received.len() < 2 {
            let message = incoming.receive().await.unwrap().unwrap();
            received.push(message.as_bytes().to_vec());
            outgoing.write(message).unwrap();
            while let Some(message) = incoming.try_receive() {
                received.push(message.as_bytes().to_vec());
                outgoing.write(message).unwrap();
            }
        }
        assert_eq!(received, [b"one", b"two"]);
        let peer = Sim::spawn(async move { read_to_end(&mut raw).await });
        outgoing.flush().await.unwrap();
        assert_eq!(incoming.receive().await.unwrap(), None);
        assert_eq!(incoming.try_receive(), None);
        drop(server);
        let answers = peer.await.unwrap();
        assert_eq!(answers, b"\x81\x03one\x8A\x00\x82\x03two\x88\x02\x03\xE8");
    });
}

/// Autobahn's cases 2.10 and 5.6.
#[test]
fn each_ping_is_answered_before_what_comes_behind_it() {
    let wire = [
        frame(Role::Server, FIN | PING, b"1"),
        frame(Role::Server, TEXT, b"a"),
        frame(Role::Server, FIN | PING, b"2"),
        frame(Role::Server, FIN | CONTINUATION, b"b"),
        frame(Role::Server, FIN | PING, b"3"),
        frame(Role::Server, FIN | PING, b"4"),
        frame(Role::Server, FIN | CLOSE, b""),
    ]
    .concat();
    let expected = b"\x8A\x011\x8A\x012\x81\x02ab\x8A\x013\x8A\x014\x88\x00";
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), &wire).await;
        let peer = Sim::spawn(async move { read_to_end(&mut raw).await });
        let message = server.incoming.receive().await.unwrap();
        server.outgoing.write(message.unwrap()).unwrap();
        server.outgoing.flush().await.unwrap();
        assert_eq!(server.incoming.receive().await.unwrap(), None);
        drop(server);
        assert_eq!(peer.await.unwrap(), expected);
    });
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), &wire).await;
        let peer = Sim::spawn(async move { read_to_end(&mut raw).await });
        let mut text = Vec::new();
        while let Some(piece) = server.incoming.receive_piece().await.unwrap() {
            text.extend_from_slice(piece.payload);
            if piece.last {
                server.outgoing.write(Message::Binary(&text)).unwrap();
            }
        }
        drop(server);
        let mut expected = expected.to_vec();
        expected[6] = 0x82;
        assert_eq!(peer.await.unwrap(), expected);
    });
}

#[test]
fn pings_of_a_peer_that_does_not_read_use_no_memory() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        let peer = Sim::spawn(async move {
            for i in 0..300 {
                let pings =
                    (0..300).flat_map(|j| frame(Role::Server, FIN | PING, &[i as u8, j as u8]));
                raw.write_all(pings.collect::<Vec<_>>()).await.into_result().unwrap();
            }
            raw.write_all(frame(Role::Server, FIN | TEXT, b"hello")).await.into_result().unwrap();
            raw
        });
        let message = server.incoming.receive().await.unwrap();
        assert_eq!(message, Some(Message::Text("hello")));
        let queued_bytes = server.outgoing.queued_bytes();
        assert!((4096..3 * 4096).contains(&queued_bytes), "{queued_bytes}");

        // The peer gets the pongs that were queued, and the latest.
        let mut raw = peer.await.unwrap();
        let last = [0x8A, 2, 43, 43];
        let peer = Sim::spawn(async move {
            let mut answers = Vec::new();
            while !answers.ends_with(&last) {
                let read = raw.read(Vec::with_capacity(9000)).await.into_result();
                answers.extend_from_slice(&read.unwrap().1);
            }
            (answers, raw)
        });
        server.outgoing.flush().await.unwrap();
        let (answers, _raw) = peer.await.unwrap();
        assert!(answers.starts_with(&[0x8A, 2, 0, 0, 0x8A, 2, 0, 1]));
    });
}

#[test]
fn buffers_of_any_size_work() {
    for buf_bytes in [200, 300, 4096] {
        simulate(|| async move {
            let mut config = PoolConfig::default();
            config.buf_bytes = buf_bytes;
            let buffers = Buffers::new(Pool::new(config), MemoryBudget::new(1 << 20));
            let (a, b) = pipe();
            let serving = Sim::spawn(async move {
                let accepted = accept::<Sim, _>(a, &buffers, Config::default()).await;
                let WebSocket { mut incoming, mut outgoing } = accepted.unwrap();
                echo(&mut incoming, &mut outgoing).await
            });
            let offer = Offer { host: "a", ..Offer::default() };
            let config = Config::default();
            let (client, _) = connect::<Sim, _>(b, &self::buffers(), config, &offer).await.unwrap();
            ask(client).await;
            assert_eq!(serving.await.unwrap(), 4 * LENGTHS.len());
        });
    }
}

#[test]
fn a_receive_that_was_dropped_within_a_read_interrupts() {
    simulate(|| async {
        let (mut server, _client) = pair(Config::default(), Config::default()).await;
        {
            let receive = pin!(server.incoming.receive());
            let selected = select(receive, Sim::sleep(Duration::from_secs(1))).await;
            assert!(selected.first.is_none());
        }
        assert!(server.incoming.try_receive().is_none());
        assert!(matches!(server.incoming.receive().await, Err(Error::Interrupted)));
        assert!(matches!(server.incoming.receive_piece().await, Err(Error::Interrupted)));
        server.outgoing.send(Message::Text("can still be sent")).await.unwrap();
    });
}

/// A half is woken in its present task, even if it waited in another before: by the peer, by a timer, and by a handle.
#[test]
fn halves_are_woken_in_the_task_that_polls_them() {
    simulate(|| async {
        let (server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        let WebSocket { mut incoming, mut outgoing } = server;
        let close = outgoing.close_handle();
        let mut receiving = Box::pin(async move { incoming.receive().await.map(|m| m.is_none()) });
        let waited = select(receiving.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
        assert!(waited.first.is_none());
        // More than the transport holds.
        let large = vec![7; 300_000];
        outgoing.write(Message::Binary(&large)).unwrap();
        let mut flushing = Box::pin(async move { outgoing.flush().await });
        let waited = select(flushing.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
        assert!(waited.first.is_none());

        let (receiving, flushing) = (Sim::spawn(receiving), Sim::spawn(flushing));
        Sim::sleep(Duration::from_secs(1)).await;
        let len = 10 + large.len();
        raw.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap();
        flushing.await.unwrap().unwrap();
        let ping = raw.read_exact(Vec::with_capacity(2), 2).await.into_result().unwrap().1;
        assert_eq!(ping, [FIN | PING, 0]);
        close.close(NORMAL).unwrap();
        let closing = raw.read_exact(Vec::with_capacity(7), 7).await.into_result().unwrap().1;
        assert_eq!(closing, b"\x88\x05\x03\xE8bye");
        let answer = frame(Role::Server, FIN | CLOSE, b"\x03\xE8");
        raw.write_all(answer).await.into_result().unwrap();
        assert!(receiving.await.unwrap().unwrap());
    });
}

#[test]
fn a_pending_receive_continues_while_messages_are_sent() {
    simulate(|| async {
        let (mut server, mut client) = pair(Config::default(), Config::default()).await;
        let echoing = Sim::spawn(async move {
            echo(&mut server.incoming, &mut server.outgoing).await;
        });
        let WebSocket { incoming, outgoing } = &mut client;
        {
            let mut receive = pin!(incoming.receive());
            let early = select(receive.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
            assert!(early.first.is_none());
            outgoing.ping(b"").unwrap();
            outgoing.send(Message::Text("hello")).await.unwrap();
            assert_eq!(receive.await.unwrap(), Some(Message::Text("hello")));
        }
        client.close(NORMAL).await.unwrap();
        echoing.await.unwrap();
    });
}

#[test]
fn a_peer_that_ends_without_a_close_frame_is_an_error() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        raw.write_all(frame(Role::Server, FIN | TEXT, b"cut off")[..9].to_vec())
            .await
            .into_result()
            .unwrap();
        raw.shutdown().await.unwrap();
        let ended = Protocol::Peer(Violation::EndedWithoutClose);
        for _ in 0..2 {
            let error = server.incoming.receive().await.unwrap_err();
            assert!(matches!(error, Error::Protocol(error) if error == ended));
        }

        let (mut server, raw) = raw_client(Config::default(), buffers(), b"").await;
        server.outgoing.send(Message::Text("unread")).await.unwrap();
        drop(raw);
        assert!(matches!(server.incoming.receive().await, Err(Error::Io(_))));
        let error = server.incoming.receive().await.unwrap_err();
        assert!(matches!(error, Error::Protocol(error) if error == ended));
        for _ in 0..2 {
            let sent = server.outgoing.write(Message::Text("late"));
            assert_eq!(sent, Err(Protocol::Misuse(Misuse::SentAfterClose)));
        }
    });
}

#[test]
fn violations_and_limits_are_told_to_the_peer() {
    let huge = {
        let mut bytes = vec![FIN | BINARY, 0xFF];
        bytes.extend_from_slice(&(1_u64 << 63).to_be_bytes());
        bytes.extend_from_slice(&KEY);
        bytes
    };
    let cases = [
        (b"\x81\x01a".to_vec(), Protocol::Peer(Violation::NotMasked), 1002_u16),
        (frame(Role::Server, FIN | TEXT, b"\xFF"), Protocol::Peer(Violation::TextNotUtf8), 1007),
        (huge, Protocol::Limit { limit: Limit::Frame, max: 16 << 20, got: 1 << 63 }, 1009),
    ];
    simulate(|| {
        let cases = cases.clone();
        async move {
            for (wire, expected, code) in cases {
                let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
                let peer = Sim::spawn(async move {
                    raw.write_all(wire).await.into_result().unwrap();
                    raw.write_all(vec![0; 100_000]).await.into_result().unwrap();
                    read_to_end(&mut raw).await
                });
                for _ in 0..2 {
                    let error = server.incoming.receive().await.unwrap_err();
                    assert!(matches!(error, Error::Protocol(error) if error == expected));
                }
                let [high, low] = code.to_be_bytes();
                assert_eq!(peer.await.unwrap(), [0x88, 2, high, low]);
            }
        }
    });
}

/// The close timeout begins when the violation is decoded, however long ago its bytes were read.
#[test]
fn a_violation_that_is_decoded_late_is_told_to_the_peer() {
    simulate(|| async {
        for flushes in [false, true] {
            let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
            let mut wire = frame(Role::Server, FIN | TEXT, b"good");
            wire.extend_from_slice(b"\x81\x01a"); // not masked
            raw.write_all(wire).await.into_result().unwrap();
            let peer = Sim::spawn(async move { read_to_end(&mut raw).await });
            assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("good")));
            Sim::sleep(Duration::from_secs(10)).await; // the service works on the message
            if flushes {
                assert_eq!(server.incoming.try_receive(), None);
                server.outgoing.flush().await.unwrap();
            }
            let error = server.incoming.receive().await.unwrap_err();
            let unmasked = Protocol::Peer(Violation::NotMasked);
            assert!(matches!(error, Error::Protocol(error) if error == unmasked));
            assert_eq!(peer.await.unwrap(), b"\x88\x02\x03\xEA");
        }
    });
}

#[test]
fn the_close_frame_of_the_peer_is_known_once_it_has_closed() {
    simulate(|| async {
        let (mut server, mut client) = pair(Config::default(), Config::default()).await;
        assert_eq!(client.incoming.peer_close(), None);
        let away = CloseFrame { code: Some(CloseCode::GOING_AWAY), reason: "at five" };
        let closing = Sim::spawn(async move {
            server.close(away).await.unwrap();
            server
        });
        assert_eq!(client.incoming.receive().await.unwrap(), None);
        assert_eq!(client.incoming.peer_close(), Some(away));
        let answer = CloseFrame { reason: "", ..away };
        assert_eq!(closing.await.unwrap().incoming.peer_close(), Some(answer));
    });
}

#[test]
fn both_sides_close_at_once() {
    simulate(|| async {
        let (mut server, mut client) = pair(Config::default(), Config::default()).await;
        let closing = Sim::spawn(async move { client.close(NORMAL).await });
        server.close(NORMAL).await.unwrap();
        closing.await.unwrap().unwrap();
    });
}

#[test]
fn a_service_sees_a_request_before_it_answers() {
    async fn serve(stream: SimStream) -> Result<Option<Socket>, Error> {
        let pending = PendingRequest::<Sim, _>::read(stream, &buffers(), Config::default()).await?;
        if pending.request().path() != "/chat" {
            return pending.respond(404, &[], b"nothing here").await.map(|()| None);
        }
        let origins = Origins::Only(&["https://example.com"]);
        let upgrade = pending.request().upgrade(origins).ok();
        let protocol = upgrade.and_then(|upgrade| upgrade.choose_protocol(&["v2", "v1"]));
        pending.accept(origins, protocol, &[("Server", "me")]).await.map(Some)
    }
    async fn ask(
        offer: Offer<'static>,
    ) -> (Result<Option<&'static str>, Error>, Result<bool, Error>) {
        let (a, b) = pipe();
        let serving = Sim::spawn(serve(a));
        let asked = connect::<Sim, _>(b, &buffers(), Config::default(), &offer).await;
        let asked = asked.map(|(_socket, protocol)| protocol);
        (asked, serving.await.unwrap().map(|socket| socket.is_some()))
    }
    simulate(|| async {
        let chat = Offer { path: "/chat?room=1", protocols: &["v1", "v0"], ..Offer::default() };
        let (asked, served) = ask(chat).await;
        assert_eq!((asked.unwrap(), served.unwrap()), (Some("v1"), true));

        let (asked, served) = ask(Offer { path: "/", ..chat }).await;
        let rejected = HandshakeError::Rejected { status: 404 };
        assert!(matches!(asked, Err(Error::NotUpgraded(error)) if error == rejected));
        // The client may have disconnected before it got the whole answer.
        assert!(matches!(served, Ok(false) | Err(Error::Io(_))), "{served:?}");

        let (asked, served) = ask(Offer { headers: &[("Origin", "https://evil")], ..chat }).await;
        let rejected = HandshakeError::Rejected { status: 403 };
        assert!(matches!(asked, Err(Error::NotUpgraded(error)) if error == rejected));
        assert!(matches!(served, Err(Error::Refused(Refusal::ForeignOrigin))));
    });
}

#[test]
fn an_idle_connection_holds_no_buffer() {
    simulate(|| async {
        let buffers = buffers();
        let (mut server, mut raw) = raw_client(Config::default(), buffers.clone(), b"").await;
        raw.write_all(frame(Role::Server, FIN | TEXT, b"hello")).await.into_result().unwrap();
        let received = server.incoming.receive().await.unwrap();
        assert_eq!(received, Some(Message::Text("hello")));
        let mut waiting = Box::pin(server.incoming.receive());
        select(waiting.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
        assert_eq!(buffers.pool().leased(), 0);
    });
}

#[test]
fn a_bad_request_gets_its_status() {
    let long = format!("GET / HTTP/1.1\r\nCookie: {}", "x".repeat(8192));
    let cases: [(&[u8], Refusal, &[u8]); 3] = [
        (b"\x16\x03\x01 not HTTP\r\n\r\n", Refusal::Malformed, b"HTTP/1.1 400 "),
        (long.as_bytes(), Refusal::HeadTooLarge, b"HTTP/1.1 431 "),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::NoUpgrade, b"HTTP/1.1 426 "),
    ];
    simulate(|| async {
        for (request, refusal, status) in cases {
            let (a, mut raw) = pipe();
            let request = request.to_vec();
            let peer = Sim::spawn(async move {
                raw.write_all(request).await.into_result().unwrap();
                read_to_end(&mut raw).await
            });
            let refused = accept::<Sim, _>(a, &buffers(), Config::default()).await.map(drop);
            assert!(matches!(refused, Err(Error::Refused(got)) if got == refusal));
            assert!(peer.await.unwrap().starts_with(status));
        }
        let (a, mut raw) = pipe();
        raw.write_all("GET / HT").await.into_result().unwrap();
        raw.shutdown().await.unwrap();
        let ended = accept::<Sim, _>(a, &buffers(), Config::default()).await.map(drop);
        let eof = std::io::ErrorKind::UnexpectedEof;
        assert!(matches!(ended, Err(Error::Io(error)) if error.kind() == eof));
    });
}

#[test]
fn sending_makes_room_in_the_queue() {
    simulate(|| async {
        let mut config = Config::default();
        config.engine.queue_bytes_max = 1000;
        let (mut server, mut client) = pair(config, Config::default()).await;
        let payload = [7; 2000];
        server.outgoing.write(Message::Binary(&payload[..900])).unwrap();
        server.outgoing.send(Message::Binary(&payload[..900])).await.unwrap();
        let error = server.outgoing.send(Message::Binary(&payload)).await.unwrap_err();
        let Error::Protocol(error) = error else { panic!("{error}") };
        assert!(matches!(error, Protocol::Limit { limit: Limit::Queue, max: 1000, .. }));
        for _ in 0..2 {
            let message = client.incoming.receive().await.unwrap();
            assert_eq!(message, Some(Message::Binary(&payload[..900])));
        }
    });
}

#[test]
fn one_buffer_is_enough_and_receiving_without_a_buffer_can_be_repeated() {
    simulate(|| async {
        let mut config = PoolConfig::default();
        config.leased_max = 1;
        let buffers = Buffers::new(Pool::new(config), MemoryBudget::new(1 << 20));
        let (mut server, mut raw) = raw_client(Config::default(), buffers.clone(), b"").await;
        assert_eq!(server.incoming.try_receive(), None);
        let lengths = [1, 9000, 9000, 16_000, 20_000, 2];
        for len in lengths {
            let wire = frame(Role::Server, FIN | BINARY, &vec![len as u8; len]);
            raw.write_all(wire).await.into_result().unwrap();
        }
        let used_elsewhere = buffers.pool().take();
        let Err(Error::Io(error)) = server.incoming.receive().await else {
            panic!("received without a buffer");
        };
        assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
        drop(used_elsewhere);
        for len in lengths {
            let message = server.incoming.receive().await.unwrap();
            assert_eq!(message, Some(Message::Binary(&vec![len as u8; len])));
        }
    });
}

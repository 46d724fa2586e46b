//! Messages in both directions.

use std::time::Duration;

use bytes::Bytes;
use owned_io::{Clock, Executor, OwnedReadExt, OwnedWriteExt};
use owned_io_sim::Sim;
use owned_io_tungstenite::BufferGrowth;
use owned_io_websocket::stream::{Message, Received};
use owned_io_websocket::{
    AnyIncoming, AnyOutgoing, Config, Fragment, MessageKind, Misuse, PieceInfo,
};

use super::common::{BINARY, CLOSE, CONTINUATION, FIN, PING, Role, TEXT, frame};
use super::ends::{NORMAL, Protocol, read_to_end, simulate};
use super::{
    GROWTHS, bridge_and_native_client, bridges, buffers, message, native_and_bridge_client,
    payload, raw_client,
};

/// Lengths around each width of the length field, and around each size of a buffer.
const LENGTHS: [usize; 11] =
    [0, 1, 125, 126, 8_185, 8_192, 16_384, 65_535, 65_536, 131_073, 300_000];

#[test]
fn echo_between_bridges() {
    for growth in GROWTHS {
        for server_asks in [false, true] {
            simulate(|| async move {
                let (server, client) = bridges(growth).await;
                let (asks, echoes) = if server_asks { (server, client) } else { (client, server) };
                let echoing = Sim::spawn(echo(echoes.incoming, echoes.outgoing));
                ask(asks.incoming, asks.outgoing, &LENGTHS).await;
                assert_eq!(echoing.await.unwrap(), 4 * LENGTHS.len());
            });
        }
    }
}

#[test]
fn echo_between_a_bridge_and_a_native_socket() {
    for growth in GROWTHS {
        simulate(|| async move {
            let (bridge, native) = bridge_and_native_client(growth).await;
            let echoing = Sim::spawn(echo(bridge.incoming, bridge.outgoing));
            ask(native.incoming, native.outgoing, &LENGTHS).await;
            assert_eq!(echoing.await.unwrap(), 4 * LENGTHS.len());

            let (native, bridge) = native_and_bridge_client(growth).await;
            let echoing = Sim::spawn(echo(native.incoming, native.outgoing));
            ask(bridge.incoming, bridge.outgoing, &LENGTHS).await;
            assert_eq!(echoing.await.unwrap(), 4 * LENGTHS.len());
        });
    }
}

#[test]
fn echo_of_sixteen_megabytes_with_each_growth() {
    let growths =
        [BufferGrowth::Fixed { bytes: 1 << 20 }, BufferGrowth::LINEAR, BufferGrowth::EXPONENTIAL];
    for growth in growths {
        owned_io_sim::block_on(async {
            let (bridge, native) = bridge_and_native_client(growth).await;
            let echoing = Sim::spawn(echo(bridge.incoming, bridge.outgoing));
            ask(native.incoming, native.outgoing, &[16_000_000]).await;
            assert_eq!(echoing.await.unwrap(), 4);
        });
    }
}

/// In one direction only: tungstenite moves the rest of the message after each part that is written.
#[test]
fn sixteen_megabytes_through_a_buffer_of_eight_kilobytes() {
    owned_io_sim::block_on(async {
        let (mut bridge, mut native) = bridge_and_native_client(BufferGrowth::FIXED).await;
        let sending = Sim::spawn(async move {
            let payload = payload(16_000_001);
            bridge.outgoing.send(message(&payload)).await.unwrap();
            bridge.close(NORMAL).await.unwrap();
        });
        let received = native.incoming.receive().await.unwrap();
        assert!(received == Some(message(&payload(16_000_001))));
        assert_eq!(native.incoming.receive().await.unwrap(), None);
        sending.await.unwrap();
    });
}

#[test]
fn a_fixed_buffer_moves_the_rest_of_a_message_after_each_part() {
    // 1,000,010 bytes are written in parts of 100,000. This is the sum of what is left after each of ten parts.
    let parts = 10 * 1_000_010 - 55 * 100_000;
    let fixed = BufferGrowth::Fixed { bytes: 100_000 };
    for (growth, moved) in
        [(fixed, parts), (BufferGrowth::LINEAR, 0), (BufferGrowth::EXPONENTIAL, 0)]
    {
        simulate(|| async move {
            let (mut bridge, mut native) = bridge_and_native_client(growth).await;
            let sending = Sim::spawn(async move {
                bridge.outgoing.send(Message::Binary(&[0; 1_000_000])).await.unwrap();
                bridge.outgoing.copy_stats()
            });
            assert!(native.incoming.receive().await.unwrap().is_some());
            let stats = sending.await.unwrap();
            assert_eq!((stats.copied_bytes, stats.moved_bytes), (1_000_010, moved));
        });
    }
}

#[test]
fn messages_are_sent_by_reference_and_in_parts_and_received_owned() {
    for growth in GROWTHS {
        simulate(|| async move {
            let (mut server, mut client) = bridges(growth).await;
            let sent = &mut client.outgoing;
            sent.write_bytes(Fragment::Whole(MessageKind::Text), Bytes::from_static(b"text"))
                .unwrap();
            let middle = sent.write_bytes(Fragment::Middle, Bytes::from_static(b"of what?"));
            let unsent = middle.unwrap_err();
            assert_eq!(unsent.error, Misuse::ContinuationWithoutStart.into());
            assert_eq!(*unsent.payload, *b"of what?");
            sent.write_fragment(Fragment::First(MessageKind::Binary), b"in ").unwrap();
            let within = sent.write(Message::Text("another"));
            assert_eq!(within, Err(Misuse::MessageWithinMessage.into()));
            sent.write_fragment(Fragment::Middle, b"three ").unwrap();
            sent.write_bytes(Fragment::Last, Bytes::from_static(b"parts")).unwrap();
            sent.flush().await.unwrap();
            for (expected, bytes) in
                [(MessageKind::Text, &b"text"[..]), (MessageKind::Binary, b"in three parts")]
            {
                let Some(Received::Owned(kind, payload)) =
                    server.incoming.receive_owned().await.unwrap()
                else {
                    panic!("borrowed, or none");
                };
                assert_eq!((kind, &payload[..]), (expected, bytes));
            }
            assert!(server.incoming.try_receive_owned().is_none());
        });
    }
}

#[test]
fn a_bridge_receives_one_piece_per_message_and_a_native_socket_several() {
    simulate(|| async {
        let (bridge, native) = bridge_and_native_client(BufferGrowth::LINEAR).await;
        let receiving = Sim::spawn(count(bridge.incoming));
        let mut sent = native.outgoing;
        sent.send(message(&payload(300_000))).await.unwrap();
        sent.close(NORMAL).await.unwrap();
        assert_eq!(receiving.await.unwrap(), (300_000, 1, 1));

        let (native, bridge) = native_and_bridge_client(BufferGrowth::LINEAR).await;
        let receiving = Sim::spawn(count(native.incoming));
        let mut sent = bridge.outgoing;
        sent.send(message(&payload(300_000))).await.unwrap();
        sent.close(NORMAL).await.unwrap();
        let (bytes, pieces, messages) = receiving.await.unwrap();
        assert_eq!((bytes, messages), (300_000, 1));
        assert!(pieces > 1);
    });
}

#[test]
fn pings_between_fragments_and_frames_after_the_request_are_received() {
    for growth in GROWTHS {
        simulate(|| async move {
            let mut wire = frame(Role::Server, FIN | BINARY, b"at once");
            wire.extend(frame(Role::Server, TEXT, b"gr\xC3"));
            wire.extend(frame(Role::Server, FIN | PING, b"1"));
            wire.extend(frame(Role::Server, CONTINUATION, b"\xBC"));
            wire.extend(frame(Role::Server, FIN | CONTINUATION, &[b'x'; 40_000]));
            wire.extend(frame(Role::Server, FIN | CLOSE, b"\x03\xE8"));
            let text = format!("gr\u{fc}{}", "x".repeat(40_000));

            let (mut server, mut raw) =
                raw_client(Config::default(), buffers(), growth, &wire[..20]).await;
            let rest = wire[20..].to_vec();
            let peer = Sim::spawn(async move {
                raw.write_all(rest).await.into_result().unwrap();
                read_to_end(&mut raw).await
            });
            let first = server.incoming.receive().await.unwrap();
            assert_eq!(first, Some(Message::Binary(b"at once")));
            assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text(&text)));
            assert_eq!(server.incoming.receive().await.unwrap(), None);
            assert_eq!(peer.await.unwrap(), b"\x8A\x011\x88\x02\x03\xE8");
        });
    }
}

#[test]
fn a_ping_is_answered_on_an_idle_connection() {
    for growth in GROWTHS {
        simulate(|| async move {
            let (mut server, mut raw) = raw_client(Config::default(), buffers(), growth, b"").await;
            let serving = Sim::spawn(async move {
                server.outgoing.ping(b"there?").unwrap();
                server.outgoing.flush().await.unwrap();
                server.incoming.receive().await.map(|message| message.is_none())
            });
            let ((), ping) = raw.read_exact(Vec::with_capacity(8), 8).await.into_result().unwrap();
            assert_eq!(ping, b"\x89\x06there?");
            raw.write_all(frame(Role::Server, FIN | PING, b"you?")).await.into_result().unwrap();
            let ((), pong) = raw.read_exact(Vec::with_capacity(6), 6).await.into_result().unwrap();
            assert_eq!(pong, b"\x8A\x04you?");
            let close = frame(Role::Server, FIN | CLOSE, b"");
            raw.write_all(close).await.into_result().unwrap();
            assert_eq!(read_to_end(&mut raw).await, b"\x88\x00");
            assert!(serving.await.unwrap().unwrap());
        });
    }
}

#[test]
fn an_idle_connection_holds_no_buffer_of_the_pool() {
    simulate(|| async {
        let shared = buffers();
        let growth = BufferGrowth::EXPONENTIAL;
        let (server, mut raw) = raw_client(Config::default(), shared.clone(), growth, b"").await;
        let echoing = Sim::spawn(echo(server.incoming, server.outgoing));
        for len in [1_001, 200_001] {
            let sent = frame(Role::Server, FIN | BINARY, &payload(len));
            raw.write_all(sent).await.into_result().unwrap();
            let header = if len < 65_536 { 4 } else { 10 };
            let back = raw.read_exact(Vec::with_capacity(header + len), header + len).await;
            assert!(back.into_result().unwrap().1[header..] == payload(len));
            Sim::sleep(Duration::from_secs(1)).await;
            assert_eq!(shared.pool().leased(), 0);
        }
        raw.write_all(frame(Role::Server, FIN | CLOSE, b"")).await.into_result().unwrap();
        assert_eq!(read_to_end(&mut raw).await, b"\x88\x00");
        assert_eq!(echoing.await.unwrap(), 2);
    });
}

/// Sends messages of these lengths, alone and several at once, waits for each echo, and closes.
async fn ask(mut incoming: impl AnyIncoming, mut outgoing: impl AnyOutgoing, lengths: &[usize]) {
    for len in lengths {
        let payload = payload(*len);
        outgoing.send(message(&payload)).await.unwrap();
        assert!(incoming.receive().await.unwrap() == Some(message(&payload)));
        for _ in 0..3 {
            outgoing.write(Message::Text("small")).unwrap();
        }
        assert!(outgoing.queued_bytes() >= 3 * 5);
        outgoing.flush().await.unwrap();
        assert_eq!(outgoing.queued_bytes(), 0);
        for _ in 0..3 {
            assert_eq!(incoming.receive().await.unwrap(), Some(Message::Text("small")));
        }
    }
    outgoing.close(NORMAL).await.unwrap();
    for _ in 0..2 {
        assert_eq!(incoming.receive().await.unwrap(), None);
    }
    let late = outgoing.write(Message::Text("late"));
    assert_eq!(late, Err(Protocol::Misuse(Misuse::SentAfterClose)));
}

/// Counts bytes, pieces and messages until the peer closes.
async fn count(mut incoming: impl AnyIncoming) -> (usize, usize, usize) {
    let mut received = (0, 0, 0);
    while let Some(piece) = incoming.receive_piece().await.unwrap().map(Into::into) {
        let PieceInfo { bytes, last } = piece;
        received = (received.0 + bytes, received.1 + 1, received.2 + usize::from(last));
    }
    received
}

/// Echoes each message until the peer closes. Returns the number of messages.
async fn echo(mut incoming: impl AnyIncoming, mut outgoing: impl AnyOutgoing) -> usize {
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

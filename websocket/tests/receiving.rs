//! The forms in which messages are received, in any order, and the memory that receiving holds.

mod common;
mod ends;

use common::{BINARY, CLOSE, CONTINUATION, FIN, Role, TEXT, frame};
use ends::{NORMAL, Protocol, buffers, pair, raw_client, read_to_end, simulate};
use owned_io::{Executor, MemoryBudget, OwnedRead, OwnedWriteExt, Pool, PoolConfig};
use owned_io_sim::{Sim, SimStream};
use owned_io_websocket::stream::{Buffers, Error, Incoming, Message, Received};
use owned_io_websocket::{Config, Fragment, Limit, MessageKind, Violation};

/// Sends `wire`, reads to the end, and returns what was read.
fn send(mut raw: SimStream, wire: Vec<u8>) -> owned_io::JoinHandle<Vec<u8>> {
    Sim::spawn(async move {
        raw.write_all(wire).await.into_result().unwrap();
        read_to_end(&mut raw).await
    })
}

/// Receives the next message in pieces.
async fn in_pieces(incoming: &mut Incoming<impl OwnedRead>) -> Vec<u8> {
    let mut message = Vec::new();
    loop {
        let piece = incoming.receive_piece().await.unwrap().unwrap();
        assert_eq!(piece.first, message.is_empty());
        message.extend_from_slice(piece.payload);
        if piece.last {
            return message;
        }
    }
}

#[test]
fn pieces_can_follow_an_assembled_message() {
    simulate(|| async {
        let wire = [
            frame(Role::Server, FIN | BINARY, &[1; 40_000]),
            frame(Role::Server, FIN | BINARY, &[2; 50_000]),
            frame(Role::Server, FIN | TEXT, b"short"),
        ];
        let (mut server, raw) = raw_client(Config::default(), buffers(), b"").await;
        let _peer = send(raw, wire.concat());
        let whole = server.incoming.receive().await.unwrap();
        assert_eq!(whole, Some(Message::Binary(&[1; 40_000])));
        assert_eq!(in_pieces(&mut server.incoming).await, [2; 50_000]);
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("short")));
    });
}

#[test]
fn a_close_can_follow_an_assembled_message() {
    simulate(|| async {
        let wire = [
            frame(Role::Server, FIN | BINARY, &[1; 40_000]),
            frame(Role::Server, FIN | BINARY, &[2; 50_000]),
            frame(Role::Server, FIN | CLOSE, b"\x03\xE8"),
        ];
        let (mut server, raw) = raw_client(Config::default(), buffers(), b"").await;
        let peer = send(raw, wire.concat());
        assert!(server.incoming.receive().await.unwrap().is_some());
        server.close(NORMAL).await.unwrap();
        assert_eq!(peer.await.unwrap(), b"\x88\x05\x03\xE8bye");
    });
}

#[test]
fn a_message_that_is_partly_assembled_can_be_received_in_pieces() {
    simulate(|| async {
        let wire = [
            frame(Role::Server, FIN | TEXT, b"short"),
            frame(Role::Server, BINARY, &[2; 9_000]),
            frame(Role::Server, FIN | CONTINUATION, &[2; 31_000]),
            frame(Role::Server, FIN | BINARY, &[3; 50_000]),
        ];
        let (mut server, raw) = raw_client(Config::default(), buffers(), b"").await;
        let _peer = send(raw, wire.concat());
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("short")));
        assert_eq!(server.incoming.try_receive(), None);
        assert_eq!(in_pieces(&mut server.incoming).await, [2; 40_000]);
        assert_eq!(in_pieces(&mut server.incoming).await, [3; 50_000]);
    });
}

#[test]
fn receiving_whole_messages_skips_the_rest_of_a_message_in_pieces() {
    simulate(|| async {
        let text = "\u{e4}".repeat(30_000);
        let wire = [
            frame(Role::Server, TEXT, &text.as_bytes()[..20_001]),
            frame(Role::Server, FIN | CONTINUATION, &text.as_bytes()[20_001..]),
            frame(Role::Server, FIN | TEXT, text.as_bytes()),
        ];
        let (mut server, raw) = raw_client(Config::default(), buffers(), b"").await;
        let _peer = send(raw, wire.concat());
        let piece = server.incoming.receive_piece().await.unwrap().unwrap();
        assert!(piece.first && !piece.last);
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text(&text)));
    });
}

#[test]
fn a_message_that_begins_with_an_empty_frame_is_skipped_once_a_piece_was_received() {
    // Reads in which the bytes arrive as they were sent.
    owned_io_sim::block_on(async {
        let begin =
            [frame(Role::Server, FIN | TEXT, b"short"), frame(Role::Server, TEXT, b"")].concat();
        let rest = [
            frame(Role::Server, CONTINUATION, b"\xE2"),
            frame(Role::Server, FIN | CONTINUATION, b"\x82\xAC"),
            frame(Role::Server, FIN | TEXT, b"next"),
        ];
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        raw.write_all(begin).await.into_result().unwrap();
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("short")));
        assert_eq!(server.incoming.try_receive(), None); // the message so far is empty
        let _peer = send(raw, rest.concat());
        let piece = server.incoming.receive_piece().await.unwrap().unwrap();
        assert_eq!((&*piece.payload, piece.first, piece.last), (&b"\xE2"[..], true, false));
        let next = server.incoming.receive().await.unwrap().unwrap();
        assert_eq!(next.as_bytes(), b"next");
    });
}

#[test]
fn a_message_that_there_was_no_memory_for_is_skipped_once_a_piece_was_received() {
    // Reads in which the bytes arrive as they were sent.
    owned_io_sim::block_on(async {
        let wire = [
            frame(Role::Server, FIN | TEXT, b"short"),
            frame(Role::Server, TEXT, b"\xE2"),
            frame(Role::Server, FIN | CONTINUATION, b"\x82\xAC"),
            frame(Role::Server, FIN | TEXT, b"next"),
        ];
        let budget = MemoryBudget::new(100_000);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let (mut server, raw) = raw_client(Config::default(), buffers, b"").await;
        let _peer = send(raw, wire.concat());
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("short")));
        let mut others = budget.account().reservation();
        others.resize(100_000 - budget.common_bytes_held()).unwrap();
        assert_eq!(server.incoming.try_receive(), None); // there is no memory for the message
        let piece = server.incoming.receive_piece().await.unwrap().unwrap();
        assert_eq!((&*piece.payload, piece.first, piece.last), (&b"\xE2"[..], true, false));
        drop(others);
        let next = server.incoming.receive().await.unwrap().unwrap();
        assert_eq!(next.as_bytes(), b"next");
    });
}

#[test]
fn a_message_that_can_never_fit_ends_the_connection_at_once() {
    simulate(|| async {
        let wire = [
            frame(Role::Server, FIN | TEXT, b"short"),
            frame(Role::Server, BINARY, &[1; 300]),
            frame(Role::Server, FIN | CONTINUATION, &[2; 100]),
        ];
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(200));
        let (mut server, raw) = raw_client(Config::default(), buffers, b"").await;
        let peer = send(raw, wire.concat());
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("short")));
        for _ in 0..3 {
            assert_eq!(server.incoming.try_receive(), None);
        }
        let error = server.incoming.receive().await.unwrap_err();
        assert!(matches!(
            error,
            Error::Protocol(Protocol::Limit { limit: Limit::Memory, max: 200, got: 201.. })
        ));
        assert_eq!(peer.await.unwrap(), b"\x88\x02\x03\xF5");
    });
}

#[test]
fn an_ended_connection_holds_no_memory() {
    let big = frame(Role::Server, BINARY, &[1; 20_000]);
    let violation = frame(Role::Server, FIN | TEXT, b"\xFF"); // and it is within a message
    let close = frame(Role::Server, FIN | CLOSE, b"");
    let within = Protocol::Peer(Violation::MessageWithinMessage);
    let cases = [
        ([&big[..], &violation, &[0; 90_000]].concat(), Some(within), &b"\x88\x02\x03\xEA"[..]),
        // What the transport holds: if a read ends right behind the close frame, the server reads no more than that.
        ([&big[..], &close, &[0; 90]].concat(), None, b"\x88\x00"),
    ];
    simulate(|| async {
        for (wire, failure, answer) in cases.clone() {
            let mut config = PoolConfig::default();
            config.leased_max = 1;
            let buffers = Buffers::new(Pool::new(config), MemoryBudget::new(30_000));
            let (mut server, raw) = raw_client(Config::default(), buffers.clone(), b"").await;
            let peer = send(raw, wire);
            match server.incoming.receive().await {
                Ok(message) => assert!(message.is_none() && failure.is_none()),
                Err(Error::Protocol(error)) => assert_eq!(Some(error), failure),
                Err(error) => panic!("{error}"),
            }
            assert_eq!(buffers.pool().leased(), 0);
            // The connection read everything after the end. Otherwise the peer might not get the answer.
            assert_eq!(peer.await.unwrap(), answer);

            let (mut other, raw) = raw_client(Config::default(), buffers, b"").await;
            let _peer = send(raw, frame(Role::Server, FIN | BINARY, &[2; 20_000]));
            let message = other.incoming.receive().await.unwrap();
            assert_eq!(message, Some(Message::Binary(&[2; 20_000])), "the memory was not returned");
        }
    });
}

#[test]
fn a_message_that_fits_a_pool_buffer_is_not_assembled() {
    simulate(|| async {
        let mut config = PoolConfig::default();
        config.buf_bytes = 32 * 1024;
        let buffers = Buffers::new(Pool::new(config), MemoryBudget::new(128 * 1024));
        let (mut server, raw) = raw_client(Config::default(), buffers, b"").await;
        let lens = [16 * 1024, 32 * 1024 - 14, 32 * 1024 - 13, 32 * 1024];
        let wire = lens.map(|len| frame(Role::Server, FIN | TEXT, &vec![b'a'; len]));
        let _peer = send(raw, wire.concat());
        for len in lens {
            let message = server.incoming.receive_owned().await.unwrap().unwrap();
            assert_eq!(
                (message.kind(), message.as_bytes()),
                (MessageKind::Text, &*vec![b'a'; len])
            );
            assert_eq!(matches!(message, Received::Borrowed(_)), len <= 32 * 1024 - 14);
        }
    });
}

#[test]
fn large_messages_are_received_and_sent_back_without_a_copy() {
    simulate(|| async {
        let (server, mut client) = pair(Config::default(), Config::default()).await;
        let echoing = Sim::spawn(async move {
            let (mut incoming, mut outgoing) = (server.incoming, server.outgoing);
            let mut moved = Vec::new();
            let mut next = incoming.receive_owned().await.unwrap();
            while let Some(message) = next {
                match message {
                    Received::Borrowed(message) => outgoing.write(message).unwrap(),
                    Received::Owned(kind, payload) => {
                        moved.push(payload.len());
                        outgoing.write_bytes(Fragment::Whole(kind), payload).unwrap();
                    }
                }
                next = match incoming.try_receive_owned() {
                    Some(message) => Some(message),
                    None => {
                        outgoing.flush().await.unwrap();
                        incoming.receive_owned().await.unwrap()
                    }
                };
            }
            moved
        });
        let text = "\u{e4}".repeat(50_000);
        for end in [10, 1000, 16_000, 17_000, 60_000, 100_000] {
            for message in [Message::Text(&text[..end]), Message::Binary(&text.as_bytes()[..end])] {
                client.outgoing.send(message).await.unwrap();
                assert_eq!(client.incoming.receive().await.unwrap(), Some(message));
            }
        }
        for fragment in [Fragment::First(MessageKind::Text), Fragment::Middle, Fragment::Last] {
            client.outgoing.write_fragment(fragment, b"in parts").unwrap();
        }
        client.outgoing.flush().await.unwrap();
        let message = client.incoming.receive().await.unwrap();
        assert_eq!(message, Some(Message::Text("in partsin partsin parts")));
        client.close(NORMAL).await.unwrap();
        let moved = [17_000, 17_000, 60_000, 60_000, 100_000, 100_000];
        assert_eq!(echoing.await.unwrap(), moved, "the short message in parts is borrowed");
    });
}

#[test]
fn an_owned_message_is_not_reserved_and_wastes_little_capacity() {
    simulate(|| async {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(210_000));
        let (mut server, raw) = raw_client(Config::default(), buffers, b"").await;
        let lens = [200_000, 17_000, 200_000, 60_000, 200_000];
        let wire = lens.map(|len| frame(Role::Server, FIN | BINARY, &vec![7; len]));
        let _peer = send(raw, wire.concat());
        let mut kept = Vec::new();
        for (i, len) in lens.into_iter().enumerate() {
            // The buffer of a borrowed message is used for the next one.
            let received = match i {
                0 | 2 => Received::Borrowed(server.incoming.receive().await.unwrap().unwrap()),
                _ => server.incoming.receive_owned().await.unwrap().unwrap(),
            };
            assert_eq!(
                (received.kind(), received.as_bytes()),
                (MessageKind::Binary, &*vec![7; len])
            );
            if let Received::Owned(_, payload) = received {
                kept.push(payload);
            }
        }
        let lens: Vec<_> = kept.iter().map(|payload| payload.len()).collect();
        assert_eq!(lens, [60_000, 200_000], "17,000 bytes must not keep a buffer of 200,000");
    });
}

#[test]
fn messages_begin_at_the_requested_alignment() {
    for align in [2, 64, 4096] {
        simulate(|| async move {
            let buffers = buffers().aligned_to(align);
            let (mut server, raw) = raw_client(Config::default(), buffers, b"").await;
            let mut wire = Vec::new();
            for len in [20_000, 70_000, 17_000, 90_000, 0, 1] {
                let payload = vec![len as u8; len];
                wire.extend(frame(Role::Server, FIN | BINARY, &payload));
                let (start, rest) = payload.split_at(len / 3);
                let (middle, end) = rest.split_at(len / 3);
                wire.extend(frame(Role::Server, BINARY, start));
                wire.extend(frame(Role::Server, CONTINUATION, middle));
                wire.extend(frame(Role::Server, FIN | CONTINUATION, end));
            }
            let _peer = send(raw, wire);
            for (i, len) in [20_000, 70_000, 17_000, 90_000].into_iter().enumerate() {
                for _ in 0..2 {
                    let received = match i % 2 {
                        0 => server.incoming.receive_owned().await.unwrap().unwrap(),
                        _ => Received::Borrowed(server.incoming.receive().await.unwrap().unwrap()),
                    };
                    let payload = received.as_bytes();
                    assert_eq!(payload, vec![len as u8; len]);
                    assert!(payload.as_ptr().addr().is_multiple_of(align));
                }
            }
            for len in [0, 0, 1, 1] {
                let message = server.incoming.receive().await.unwrap();
                assert_eq!(message, Some(Message::Binary(&vec![1; len])));
            }
        });
    }
}

#[test]
#[should_panic(expected = "48 is no alignment up to 4096")]
fn an_alignment_is_a_power_of_two() {
    let _ = buffers().aligned_to(48);
}

#[test]
#[should_panic(expected = "8192 is no alignment up to 4096")]
fn an_alignment_is_at_most_a_page() {
    let _ = buffers().aligned_to(8192);
}

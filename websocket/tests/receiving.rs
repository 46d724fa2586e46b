//! Ways to receive, one after the other, and what is held meanwhile.

mod common;
mod ends;

use common::{BINARY, CLOSE, CONTINUATION, FIN, Role, TEXT, frame};
use ends::{NORMAL, Protocol, buffers, raw_client, read_to_end, simulate};
use owned_io::{OwnedRead, OwnedWriteExt, Pool, PoolConfig, Runtime};
use owned_io_sim::{Sim, SimStream};
use owned_io_websocket::stream::{Buffers, Error, Incoming, Message};
use owned_io_websocket::{Config, Limit, Violation};

/// Sends `wire`, and closes once the other side has.
fn send(mut raw: SimStream, wire: Vec<u8>) -> owned_io::JoinHandle<Vec<u8>> {
    Sim::spawn(async move {
        raw.write_all(wire).await.into_result().unwrap();
        read_to_end(&mut raw).await
    })
}

/// The next message, piece by piece.
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
fn pieces_behind_a_message_that_was_put_together() {
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
fn closing_behind_a_message_that_was_put_together() {
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
fn pieces_of_a_message_that_was_begun_to_be_put_together() {
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
fn what_is_left_of_a_message_in_pieces_is_passed_over() {
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
fn a_promise_that_cannot_be_made_ends_it_at_once() {
    simulate(|| async {
        let wire = [
            frame(Role::Server, FIN | TEXT, b"short"),
            frame(Role::Server, BINARY, &[1; 300]),
            frame(Role::Server, FIN | CONTINUATION, &[2; 100]),
        ];
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), 200);
        let (mut server, raw) = raw_client(Config::default(), buffers, b"").await;
        let peer = send(raw, wire.concat());
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("short")));
        for _ in 0..3 {
            assert_eq!(server.incoming.try_receive(), None);
        }
        let error = server.incoming.receive().await.unwrap_err();
        let expected = Protocol::Limit { limit: Limit::Promised, max: 200, got: 300 };
        assert!(matches!(error, Error::Protocol(error) if error == expected));
        assert_eq!(peer.await.unwrap(), b"\x88\x02\x03\xF5");
    });
}

#[test]
fn a_connection_that_is_over_holds_no_memory() {
    let big = frame(Role::Server, BINARY, &[1; 20_000]);
    let violation = frame(Role::Server, FIN | TEXT, b"\xFF"); // within a message, too
    let close = frame(Role::Server, FIN | CLOSE, b"");
    let within = Protocol::Peer(Violation::MessageWithinMessage);
    let cases = [
        ([&big[..], &violation, &[0; 90_000]].concat(), Some(within), &b"\x88\x02\x03\xEA"[..]),
        ([&big[..], &close, &[0; 90_000]].concat(), None, b"\x88\x00"),
    ];
    simulate(|| async {
        for (wire, failure, answer) in cases.clone() {
            let mut config = PoolConfig::default();
            config.leased_max = 1;
            let buffers = Buffers::new(Pool::new(config), 20_000);
            let (mut server, raw) = raw_client(Config::default(), buffers.clone(), b"").await;
            let peer = send(raw, wire);
            match server.incoming.receive().await {
                Ok(message) => assert!(message.is_none() && failure.is_none()),
                Err(Error::Protocol(error)) => assert_eq!(Some(error), failure),
                Err(error) => panic!("{error}"),
            }
            assert_eq!(buffers.pool().leased(), 0);
            // All that came behind was read, or the peer might not have had its answer.
            assert_eq!(peer.await.unwrap(), answer);

            let (mut other, raw) = raw_client(Config::default(), buffers, b"").await;
            let _peer = send(raw, frame(Role::Server, FIN | BINARY, &[2; 20_000]));
            let message = other.incoming.receive().await.unwrap();
            assert_eq!(message, Some(Message::Binary(&[2; 20_000])), "the promise was given back");
        }
    });
}

//! How much memory a peer can make a connection hold, and for how long.

mod common;
#[path = "../../websocket/tests/counting/mod.rs"]
mod counting;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::{
    Plain, acceptor, buffers, client_config, pattern, server_config, server_name, tls_error,
    with_forger,
};
use counting::live_bytes;
use owned_io::{Clock, Executor, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt, select};
use owned_io_sim::Sim;
use owned_io_tls::rustls::version::{TLS12, TLS13};
use owned_io_tls::rustls::{ContentType, Error};
use owned_io_tls::{Connector, TlsError};

/// An endless handshake message of 64 KiB, in records of `piece` bytes.
fn endless(piece: usize, mut record: impl FnMut(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut message = vec![0; 65_000];
    message[..4].copy_from_slice(&[1, 0, 255, 255]);
    message.chunks(piece).flat_map(&mut record).collect()
}

fn in_the_clear(payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).unwrap();
    [&[22, 3, 1][..], &len.to_be_bytes(), payload].concat()
}

/// Before authentication, a connection holds at most 82 KiB. Its buffer may have twice that capacity as it grows.
#[test]
fn an_endless_hello_takes_bounded_memory() {
    for piece in [1, 100, 16_384] {
        owned_io_sim::block_on(async move {
            let (mut client, b) = owned_io_sim::pipe();
            let accepting = acceptor();
            let buffers = buffers();
            let mut accepting = pin!(accepting.accept::<Sim, _>(b, &buffers));
            let nothing = select(accepting.as_mut(), Sim::sleep(Duration::from_millis(1))).await;
            assert!(nothing.first.is_none());
            let records = endless(piece, in_the_clear);
            let before = live_bytes();
            let (mut held_max, mut refused) = (0, None);
            for part in records.chunks(1000) {
                let writing = client.write_all(part.to_vec()).await.into_result();
                if writing.is_err() || refused.is_some() {
                    break;
                }
                let waited = Sim::sleep(Duration::from_millis(1));
                refused = select(accepting.as_mut(), waited).await.first;
                held_max = held_max.max(live_bytes() - before);
            }
            println!("in pieces of {piece} bytes: {held_max} bytes");
            assert!(held_max < 2 * 84 * 1024 + 40 * 1024, "{held_max} bytes");
        });
    }
}

/// A ClientHello of the longest allowed length, in more bytes of records than allowed, is refused.
#[test]
fn a_hello_in_records_that_are_too_short_is_refused() {
    owned_io_sim::block_on(async {
        let (mut client, b) = owned_io_sim::pipe();
        let server =
            Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await.err() });
        let records = endless(1, in_the_clear);
        client.write_all(records).await.into_result().unwrap();
        let told = client.read_exact(Vec::with_capacity(7), 7).await.into_result().unwrap().1;
        assert_eq!(told, [21, 3, 3, 0, 2, 2, 22]); // record_overflow
        drop(client);
        let error = server.await.unwrap().unwrap();
        assert_eq!(tls_error(&error), &TlsError::Protocol(Error::PeerSentOversizedRecord));
    });
}

/// After the handshake, when messages are short: 36 KiB.
#[test]
fn a_message_without_end_is_refused() {
    for version in [&TLS12, &TLS13] {
        for piece in [1, 100, 10_000] {
            owned_io_sim::block_on(async move {
                let (mut client, mut server) = with_forger(version).await;
                let records = endless(piece, |piece| client.record(ContentType::Handshake, piece));
                let sending = Sim::spawn(async move {
                    client.stream.write_all(records).await.into_result().unwrap();
                    client.receive().await
                });
                let error = server.read(vec![0; 8]).await.0.unwrap_err();
                assert_eq!(tls_error(&error), &TlsError::Protocol(Error::PeerSentOversizedRecord));
                assert_eq!(sending.await.unwrap(), (ContentType::Alert, vec![2, 50]));
            });
        }
    }
}

/// An idle connection has no buffers, whatever went through it before.
#[test]
fn what_an_idle_connection_takes_does_not_depend_on_what_it_did() {
    owned_io_sim::block_on(async {
        let buffers = buffers();
        let (a, b) = owned_io_sim::pipe();
        let accepting = {
            let buffers = buffers.clone();
            Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers).await.unwrap() })
        };
        let mut client = Plain::connected(a).await;
        let mut server = accepting.await.unwrap();
        let mut idle = 0;
        for round in 0..5 {
            let sent = pattern(if round == 0 { 100 } else { 100_000 });
            let expected = sent.len();
            let writing = Sim::spawn(async move {
                client.write(&sent).await;
                client
            });
            let received = server.read_exact(Vec::with_capacity(expected), expected).await;
            drop(received.into_result().unwrap());
            client = writing.await.unwrap();
            // New keys, which the next write answers.
            client.tls.refresh_traffic_keys().unwrap();
            client.flush().await;
            let waited = Sim::sleep(Duration::from_millis(10));
            let mut reading = pin!(server.read(Vec::with_capacity(1)));
            assert!(select(reading.as_mut(), waited).await.first.is_none());
            let now = live_bytes();
            if round == 1 {
                idle = now; // the pipe and the shared buffers have reached their largest size
            } else if round > 1 {
                assert!(now - idle < 8 * 1024, "{} bytes more", now - idle);
            }
        }
    });
}

/// A server sends many tickets, of which a client keeps some.
#[test]
fn many_tickets_take_little_memory() {
    owned_io_sim::block_on(async {
        let mut config = server_config(&[&TLS13]);
        config.send_tls13_tickets = 100;
        let (a, b) = owned_io_sim::pipe();
        let connecting = Sim::spawn(async move {
            let connector = Connector::new(Arc::new(client_config(&[&TLS13])));
            connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap()
        });
        let mut server = Plain::server(b, config);
        let sending = Sim::spawn(async move {
            server.shake_hands().await;
            server.write(b"done").await;
            server
        });
        let mut client = connecting.await.unwrap();
        let before = live_bytes();
        let read = client.read_exact(Vec::with_capacity(4), 4).await;
        assert_eq!(read.into_result().unwrap().1, b"done");
        let server = sending.await.unwrap();
        let held = live_bytes() - before;
        assert!(held < 16 * 1024, "{held} bytes");
        client.shutdown().await.unwrap();
        drop(server);
    });
}

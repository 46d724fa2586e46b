//! Records of about one byte: much work for the receiver, little for the sender.

mod common;

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use common::{Forger, Plain, acceptor, buffers, client_config, pattern, simulate, with_forger};
use owned_io::{Clock, Executor, JoinHandle, OwnedRead, OwnedReadExt, OwnedWriteExt, select};
use owned_io_sim::{Sim, SimStream};
use owned_io_tls::TlsStream;
use owned_io_tls::rustls::version::{TLS12, TLS13};
use owned_io_tls::rustls::{ALL_VERSIONS, ContentType, SupportedProtocolVersion};

/// A read of the transport brings hundreds of short records. They are decrypted a few at a time, so that the work of
/// one read is bounded.
#[test]
fn many_short_records_are_decrypted_a_few_at_a_time() {
    for version in [&TLS12, &TLS13] {
        simulate(|| async move {
            let sent = pattern(2000);
            let (mut server, sending) = with_short_records(version, &sent).await;
            let mut received = Vec::new();
            while received.len() < sent.len() {
                let read = server.read(Vec::with_capacity(9000)).await;
                let (n, bytes) = read.into_result().expect("plaintext");
                assert!((1..=128).contains(&n), "{n} records at once");
                received.extend_from_slice(&bytes);
            }
            assert!(received == sent);
            sending.await.unwrap();
        });
    }
}

/// Other tasks run in between, although all records have arrived.
#[test]
fn many_short_records_are_not_decrypted_in_one_go() {
    let rounds = Cell::new(0);
    let rounds = &rounds;
    simulate(|| async move {
        let sent = pattern(700);
        let (mut server, sending) = with_short_records(&TLS13, &sent).await;
        Sim::sleep(Duration::from_secs(1)).await; // everything has arrived
        let mut reading = pin!(server.read_exact(Vec::with_capacity(700), 700));
        let received = loop {
            let selected = select(reading.as_mut(), Sim::sleep(Duration::ZERO)).await;
            if let Some(read) = selected.first {
                break read.into_result().unwrap().1;
            }
            rounds.set(rounds.get() + 1);
        };
        assert!(received == sent);
        sending.await.unwrap();
    });
    assert!(rounds.get() >= 30, "{} rounds", rounds.get());
}

/// A server that receives each of these bytes in a record of its own.
async fn with_short_records(
    version: &'static SupportedProtocolVersion,
    bytes: &[u8],
) -> (TlsStream<SimStream>, JoinHandle<Forger<SimStream>>) {
    let (mut client, server) = with_forger(version).await;
    let mut records = Vec::new();
    for byte in bytes {
        records.extend(client.record(ContentType::ApplicationData, &[*byte]));
    }
    let sending = Sim::spawn(async move {
        client.stream.write_all(records).await.into_result().unwrap();
        client
    });
    (server, sending)
}

/// A handshake in records of one byte succeeds.
#[test]
fn a_hello_in_pieces_of_one_byte_is_taken() {
    simulate(|| async {
        let (a, b) = owned_io_sim::pipe();
        let server = Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await });
        let mut client = Plain::client(a, client_config(ALL_VERSIONS));
        let hello = client.records();
        let pieces = hello[5..].iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect::<Vec<_>>();
        client.stream.write_all(pieces).await.into_result().unwrap();
        client.shake_hands().await;
        let mut server = server.await.unwrap().unwrap();
        client.write(b"hello").await;
        let read = server.read_exact(Vec::with_capacity(5), 5).await;
        assert_eq!(read.into_result().unwrap().1, b"hello");
    });
}

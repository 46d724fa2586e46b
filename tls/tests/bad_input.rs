//! Each violation by a peer has its answer.

mod common;

use std::io::ErrorKind;
use std::net::Shutdown;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::{
    Plain, acceptor, buffers, client_config, pattern, read_to_end, server_config, server_name,
    simulate, tls_error, with_forger, with_plain_client,
};
use owned_io::{
    BufResult, ByteStream, Clock, Executor, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt,
    Pool, PoolConfig, Random, select,
};
use owned_io_sim::{Sim, SimStream};
use owned_io_tls::rustls::version::{TLS12, TLS13};
use owned_io_tls::rustls::{ALL_VERSIONS, AlertDescription, ContentType, Error};
use owned_io_tls::{Acceptor, Connector, TlsError, TlsStream};

/// Makes the bytes to send.
type Make = dyn Fn(&mut Plain<SimStream>) -> Vec<u8>;

#[test]
fn a_stream_that_is_cut_is_an_error_and_not_an_end() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        client.write(b"all but").await;
        let mut torn = client.encrypted(b"the end");
        torn.truncate(9);
        client.stream.write_all(torn).await.into_result().unwrap();
        client.stream.shutdown().await.unwrap();
        let read = server.read_exact(Vec::with_capacity(7), 7).await;
        assert_eq!(read.into_result().unwrap().1, b"all but");
        let pool = Pool::new(PoolConfig::default());
        for _ in 0..2 {
            let BufResult(result, buf) = server.read(b"as it was".to_vec()).await;
            let error = result.unwrap_err();
            assert_eq!((error.kind(), buf), (ErrorKind::UnexpectedEof, b"as it was".to_vec()));
            assert_eq!(tls_error(&error), &TlsError::Truncated);
            let error = server.read_pooled(&pool).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
        assert_eq!(pool.leased(), 0);
    });
}

#[test]
fn a_bad_record_is_answered_by_an_alert() {
    let oversized = |_: &mut Plain<SimStream>| [&[23, 3, 3, 0xff, 0xff][..], &[0; 100]].concat();
    let tampered = |client: &mut Plain<SimStream>| {
        let mut record = client.encrypted(b"tampered with");
        *record.last_mut().unwrap() ^= 1;
        record
    };
    let repeated = |client: &mut Plain<SimStream>| {
        let record = client.encrypted(b"once");
        [&record[..], &record[..]].concat()
    };
    let lost = |client: &mut Plain<SimStream>| {
        let _ = client.encrypted(b"never arrives");
        client.encrypted(b"next")
    };
    let bad: [(&Make, _, &[u8]); 4] = [
        (&oversized, AlertDescription::DecodeError, b""),
        (&tampered, AlertDescription::BadRecordMac, b""),
        (&repeated, AlertDescription::BadRecordMac, b"once"),
        (&lost, AlertDescription::BadRecordMac, b""),
    ];
    for (make, alert, before) in bad {
        simulate(|| async move {
            let (mut client, mut server) = with_plain_client().await;
            let records = make(&mut client);
            client.stream.write_all(records).await.into_result().unwrap();
            let read = server.read_exact(Vec::with_capacity(50), 50).await;
            let BufResult(result, received) = read;
            let error = result.unwrap_err();
            assert_eq!((error.kind(), &received[..]), (ErrorKind::InvalidData, before));
            assert!(matches!(tls_error(&error), TlsError::Protocol(_)));
            assert_eq!(client.alert().await, Error::AlertReceived(alert));
            // The connection has ended for good, in both directions.
            let again = server.read(Vec::with_capacity(1)).await.0.unwrap_err();
            assert_eq!(again.kind(), ErrorKind::InvalidData);
            let write = server.write("more").await.0.unwrap_err();
            assert_eq!(write.kind(), ErrorKind::BrokenPipe);
            server.shutdown().await.unwrap();
        });
    }
}

/// The read half sends the alert, whatever the write half is doing.
#[test]
fn an_alert_is_sent_while_a_write_is_pending() {
    simulate(|| async {
        let (mut client, server) = with_plain_client().await;
        let (mut read, mut write) = server.into_split();
        let writing = Sim::spawn(async move {
            loop {
                if let Err(error) = write.write(pattern(50_000)).await.0 {
                    return error;
                }
            }
        });
        Sim::sleep(Duration::from_secs(1)).await; // the write waits, because nobody reads
        client.stream.write_all(vec![23, 3, 3, 0xff, 0xff]).await.into_result().unwrap();
        let reading = Sim::spawn(async move { read.read(vec![0; 10]).await.0.unwrap_err() });
        Sim::sleep(Duration::from_secs(1)).await;
        let alert = client.alert().await;
        assert_eq!(alert, Error::AlertReceived(AlertDescription::DecodeError));
        assert_eq!(reading.await.unwrap().kind(), ErrorKind::InvalidData);
        assert_eq!(writing.await.unwrap().kind(), ErrorKind::BrokenPipe);
    });
}

/// Writes until a write waits, because nobody reads.
async fn fill(server: &mut TlsStream<SimStream>) {
    loop {
        let mut writing = pin!(server.write(pattern(50_000)));
        let selected = select(writing.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
        if selected.first.is_none() {
            break;
        }
    }
}

/// A read returns the bytes before a bad record even if the peer takes no alert.
#[test]
fn bytes_before_a_bad_record_are_returned_at_once() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        fill(&mut server).await;
        let mut records = client.encrypted(b"once");
        records.extend([23, 3, 3, 0xff, 0xff]);
        client.stream.write_all(records).await.into_result().unwrap();
        {
            let mut reading = pin!(server.read_exact(Vec::with_capacity(4), 4));
            let selected = select(reading.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
            assert_eq!(selected.first.expect("what came").into_result().unwrap().1, b"once");
        }
        let reading = Sim::spawn(async move { server.read(vec![0; 10]).await.0.unwrap_err() });
        let alert = client.alert().await;
        assert_eq!(alert, Error::AlertReceived(AlertDescription::DecodeError));
        assert_eq!(reading.await.unwrap().kind(), ErrorKind::InvalidData);
    });
}

/// A read with a time-out does not wait longer than that for the alert to be sent.
#[test]
fn a_read_that_waits_for_its_alert_can_be_ended_meanwhile() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        fill(&mut server).await;
        client.stream.write_all(vec![23, 3, 3, 0xff, 0xff]).await.into_result().unwrap();
        let handle = server.shutdown_handle();
        let mut reading = pin!(server.read(vec![0; 10]));
        let selected = select(reading.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
        assert!(selected.first.is_none(), "the alert has no room");
        let ending = Sim::spawn(async move { handle.shutdown(Shutdown::Read) });
        let selected = select(reading.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
        let BufResult(result, _) = selected.first.expect("it is ended");
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidData);
        ending.await.unwrap();
    });
}

#[test]
fn a_record_with_more_than_16_kib_is_over_the_limit() {
    for version in [&TLS12, &TLS13] {
        simulate(|| async move {
            let (mut client, mut server) = with_forger(version).await;
            let record = client.record(ContentType::ApplicationData, &pattern(16 * 1024 + 1));
            let sending = Sim::spawn(async move {
                client.stream.write_all(record).await.into_result().unwrap();
                client.receive().await
            });
            let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert_eq!(tls_error(&error), &TlsError::Protocol(Error::PeerSentOversizedRecord));
            let record_overflow = (ContentType::Alert, vec![2, 22]);
            assert_eq!(sending.await.unwrap(), record_overflow);
        });
    }
}

/// A bad record arrives after our side has ended. rustls 0.23 with debug assertions asserts that it never sends an
/// alert after `close_notify`, as it does here. The workspace builds it without.
#[test]
fn a_bad_record_after_our_end_is_an_error() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        server.shutdown().await.unwrap();
        client.stream.write_all(vec![23, 3, 3, 0xff, 0xff]).await.into_result().unwrap();
        let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    });
}

/// The bytes of a record that name a version: they are ignored and not signed (RFC 8446 5.1).
const RECORD_VERSION: Range<usize> = 1..3;

/// One byte from the client is changed: the handshake fails or times out, or the byte is one that is not signed.
#[test]
fn a_handshake_that_was_tampered_with_fails() {
    simulate(|| async {
        let len =
            Plain::client(owned_io_sim::pipe().0, client_config(ALL_VERSIONS)).records().len();
        let mut place = [0; 4];
        for _ in 0..20 {
            Sim::fill_random(&mut place);
            let [high, low, bit, _] = place;
            let at = usize::from(u16::from_be_bytes([high, low])) % len;
            if RECORD_VERSION.contains(&at) {
                continue;
            }
            let (a, b) = owned_io_sim::pipe();
            let accepting =
                Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await.err() });
            let mut client = Plain::client(a, client_config(ALL_VERSIONS));
            let mut hello = client.records();
            hello[at] ^= 1 << (bit % 8);
            client.stream.write_all(hello).await.into_result().unwrap();
            while client.tls.is_handshaking() && matches!(client.fill().await, Ok(true)) {
                client.flush().await;
            }
            client.flush().await;
            drop(client);
            assert!(accepting.await.unwrap().is_some(), "byte {at} was of no matter");
        }
    });
}

#[test]
fn a_client_that_speaks_no_tls_gets_the_plain_answer_or_an_alert() {
    simulate(|| async {
        for (plain_answer, expected) in [
            (&b""[..], &[21, 3, 3, 0, 2, 2, 50][..]), // a fatal alert: decode_error
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ] {
            let (mut client, b) = owned_io_sim::pipe();
            let mut acceptor = acceptor();
            acceptor.plain_answer = plain_answer;
            let server =
                Sim::spawn(async move { acceptor.accept::<Sim, _>(b, &buffers()).await.err() });
            client.write_all("GET / HTTP/1.1\r\n\r\n").await.into_result().unwrap();
            let answer = read_to_end(&mut client).await;
            assert_eq!(answer, expected);
            drop(client);
            let error = server.await.unwrap().expect("no connection");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            if !plain_answer.is_empty() {
                assert_eq!(tls_error(&error), &TlsError::NotTls);
            }
        }
    });
}

#[test]
fn a_handshake_ends_at_its_deadline() {
    simulate(|| async {
        for said in [0, 40] {
            let (mut a, b) = owned_io_sim::pipe();
            let hello =
                Plain::client(owned_io_sim::pipe().0, client_config(ALL_VERSIONS)).records();
            a.write_all(hello[..said].to_vec()).await.into_result().unwrap();
            let started = Sim::now();
            let acceptor = acceptor();
            let error = acceptor.accept::<Sim, _>(b, &buffers()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let took = Sim::now() - started;
            assert!(took >= acceptor.handshake_timeout && took < 2 * acceptor.handshake_timeout);
            assert_eq!(read_to_end(&mut a).await, b"", "it is closed");
        }
    });
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    simulate(|| async {
        let (a, b) = owned_io_sim::pipe();
        let server =
            Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await.err() });
        let connector = Connector::new(Arc::new(client_config(ALL_VERSIONS)));
        let name = "example.com".try_into().unwrap();
        let error = connector.connect::<Sim, _>(a, name, &buffers()).await.unwrap_err();
        assert!(matches!(tls_error(&error), TlsError::Protocol(Error::InvalidCertificate(_))));
        let told = server.await.unwrap().expect("no connection");
        assert_eq!(
            tls_error(&told),
            &TlsError::Protocol(Error::AlertReceived(AlertDescription::BadCertificate))
        );
    });
}

#[test]
fn a_client_without_a_common_protocol_gets_an_alert() {
    simulate(|| async {
        let mut config = server_config(ALL_VERSIONS);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (a, b) = owned_io_sim::pipe();
        let server = Sim::spawn(async move {
            let acceptor = Acceptor::new(Arc::new(config));
            acceptor.accept::<Sim, _>(b, &buffers()).await.err()
        });
        let mut config = client_config(ALL_VERSIONS);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = Connector::new(Arc::new(config));
        let error = connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap_err();
        let told = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
        assert_eq!(tls_error(&error), &TlsError::Protocol(told));
        let error = server.await.unwrap().expect("no connection");
        assert_eq!(tls_error(&error), &TlsError::Protocol(Error::NoApplicationProtocol));
    });
}

/// A server for HTTPS answers plain HTTP with 400.
#[test]
fn a_server_that_speaks_no_tls_gets_an_alert() {
    simulate(|| async {
        let (a, mut server) = owned_io_sim::pipe();
        let client = Sim::spawn(async move {
            let connector = Connector::new(Arc::new(client_config(ALL_VERSIONS)));
            connector.connect::<Sim, _>(a, server_name(), &buffers()).await.err()
        });
        let hello = server.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap().1;
        assert_eq!(hello, [22], "a handshake");
        server.write_all("HTTP/1.1 400 Bad Request\r\n\r\n").await.into_result().unwrap();
        let said = read_to_end(&mut server).await;
        assert!(said.ends_with(&[21, 3, 3, 0, 2, 2, 50]), "a fatal alert: decode_error");
        drop(server);
        let error = client.await.unwrap().expect("no connection");
        assert!(matches!(tls_error(&error), TlsError::Protocol(Error::InvalidMessage(_))));
    });
}

/// The peer cannot be told any more.
#[test]
fn the_error_of_a_peer_without_tls_survives_its_reset() {
    simulate(|| async {
        let (mut client, b) = owned_io_sim::pipe();
        client.write_all("GET / HTTP/1.1\r\n\r\n").await.into_result().unwrap();
        drop(client);
        let error = acceptor().accept::<Sim, _>(b, &buffers()).await.unwrap_err();
        assert!(matches!(tls_error(&error), TlsError::Protocol(Error::InvalidMessage(_))));
    });
}

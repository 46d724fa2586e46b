//! Connections in the simulation: both roles, against each other and against rustls by itself.

mod common;

use std::future::Future;
use std::io::ErrorKind;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::{
    Forger, Plain, buffers, client_config, pair, server_config, server_config_of, server_name,
};
use owned_io::{
    BufResult, ByteStream, IoVec, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt, Pool,
    PoolConfig, Runtime, beside,
};
use owned_io_sim::{Config, Sim, SimStream};
use owned_io_tls::rustls::version::{TLS12, TLS13};
use owned_io_tls::rustls::{
    ALL_VERSIONS, AlertDescription, ContentType, Error, InvalidMessage, PeerMisbehaved,
    ProtocolVersion, SupportedProtocolVersion,
};
use owned_io_tls::{Acceptor, Buffers, Connector, TlsError, TlsStream};

/// Many seeds: each cuts transfers elsewhere.
fn simulate<F: Future<Output = ()>>(case: impl Fn() -> F) {
    for seed in owned_io_sim::seeds(30) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

fn acceptor() -> Acceptor {
    Acceptor::new(Arc::new(server_config(ALL_VERSIONS)))
}

async fn accept(stream: SimStream) -> TlsStream<SimStream> {
    acceptor().accept::<Sim, _>(stream, &buffers()).await.unwrap()
}

/// A client and the server's end of it, by us both.
async fn both() -> (TlsStream<SimStream>, TlsStream<SimStream>) {
    let (a, b) = owned_io_sim::pipe();
    let server = Sim::spawn(accept(b));
    let connector = Connector::new(Arc::new(client_config(ALL_VERSIONS)));
    let client = connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap();
    (client, server.await.unwrap())
}

/// rustls by itself as the client, and our server.
async fn with_plain_client() -> (Plain<SimStream>, TlsStream<SimStream>) {
    let (a, b) = owned_io_sim::pipe();
    let server = Sim::spawn(accept(b));
    (Plain::connected(a).await, server.await.unwrap())
}

/// A client that makes its records as it likes, and our server.
async fn with_forger(
    version: &'static SupportedProtocolVersion,
) -> (Forger<SimStream>, TlsStream<SimStream>) {
    let (a, b) = owned_io_sim::pipe();
    let mut config = server_config(ALL_VERSIONS);
    config.send_tls13_tickets = 0;
    let server = Sim::spawn(async move {
        Acceptor::new(Arc::new(config)).accept::<Sim, _>(b, &buffers()).await.unwrap()
    });
    (Forger::connected(a, version).await, server.await.unwrap())
}

async fn read_to_end(stream: &mut impl OwnedRead) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (n, buf) = stream.read(Vec::with_capacity(5000)).await.into_result().unwrap();
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&buf);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Makes what is sent.
type Make = dyn Fn(&mut Plain<SimStream>) -> Vec<u8>;

fn tls_error(error: &std::io::Error) -> &TlsError {
    error.get_ref().and_then(|inner| inner.downcast_ref()).expect("a TLS error inside")
}

#[test]
fn each_role_speaks_with_rustls_in_each_version() {
    for (version, number) in
        [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)]
    {
        simulate(|| async move {
            let sent = pattern(100_000);
            let (a, b) = owned_io_sim::pipe();
            let server = Sim::spawn(async move {
                let acceptor = Acceptor::new(Arc::new(server_config(&[version])));
                let mut stream = acceptor.accept::<Sim, _>(b, &buffers()).await.unwrap();
                assert_eq!(stream.protocol_version(), Some(number));
                let received = stream.read_exact(Vec::with_capacity(100_000), 100_000).await;
                stream.write_all(received.into_result().unwrap().1).await.into_result().unwrap();
                stream.shutdown().await.unwrap();
                assert_eq!(read_to_end(&mut stream).await, b"");
            });
            let mut client = Plain::client(a, client_config(&[version]));
            client.shake_hands().await;
            let received = {
                // More than fits on the way, so both directions go on at once.
                client.write(&sent).await;
                client.read_exact(sent.len()).await
            };
            assert!(received == sent);
            client.tls.send_close_notify();
            client.flush().await;
            server.await.unwrap();

            let (a, b) = owned_io_sim::pipe();
            let client = Sim::spawn(async move {
                let connector = Connector::new(Arc::new(client_config(&[version])));
                let mut stream =
                    connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap();
                stream.write_all(pattern(100_000)).await.into_result().unwrap();
                stream.shutdown().await.unwrap();
                read_to_end(&mut stream).await
            });
            let mut server = Plain::server(b, server_config(&[version]));
            server.shake_hands().await;
            let received = server.read_exact(sent.len()).await;
            server.write(&received).await;
            server.tls.send_close_notify();
            server.flush().await;
            assert!(client.await.unwrap() == sent);
        });
    }
}

#[test]
fn protocols_are_agreed_on_and_sessions_resumed() {
    simulate(|| async {
        let mut server = server_config(ALL_VERSIONS);
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut client = client_config(ALL_VERSIONS);
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (acceptor, connector) =
            (Acceptor::new(Arc::new(server)), Connector::new(Arc::new(client)));
        for round in 0..3 {
            let (a, b) = owned_io_sim::pipe();
            let acceptor = acceptor.clone();
            let server = Sim::spawn(async move {
                let mut stream = acceptor.accept::<Sim, _>(b, &buffers()).await.unwrap();
                assert_eq!(stream.alpn_protocol().as_deref(), Some(&b"http/1.1"[..]));
                assert_eq!(stream.is_resumed(), round > 0, "round {round}");
                stream.write_all("ticket before this").await.into_result().unwrap();
                stream.shutdown().await.unwrap();
                assert_eq!(read_to_end(&mut stream).await, b"");
            });
            let mut stream =
                connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap();
            assert_eq!(stream.is_resumed(), round > 0, "round {round}");
            assert_eq!(read_to_end(&mut stream).await, b"ticket before this");
            stream.shutdown().await.unwrap();
            server.await.unwrap();
        }
    });
}

/// As long as the client takes its time.
#[test]
fn a_record_may_be_cut_anywhere() {
    let case = |at: usize| async move {
        let (mut client, mut server) = with_plain_client().await;
        let mut records = client.encrypted(b"one");
        records.extend(client.encrypted(b"two"));
        let second = records.split_off(at.min(records.len()));
        let is_over = second.is_empty();
        drop(Sim::spawn(async move {
            client.stream.write_all(records).await.into_result().unwrap();
            Sim::sleep(Duration::from_millis(10)).await;
            client.stream.write_all(second).await.into_result().unwrap();
            client.tls.send_close_notify();
            client.flush().await;
            let _ = client.fill().await;
        }));
        assert_eq!(read_to_end(&mut server).await, b"onetwo", "cut at {at}");
        is_over
    };
    let mut at = 1;
    while !Sim::block_on(Config::default(), case(at)).unwrap() {
        at += 1;
    }
    assert!(at > 40, "two records have only {at} bytes");
}

/// A handshake that does not fit a record, nor a buffer of the pool.
#[test]
fn a_long_chain_of_certificates_is_received() {
    simulate(|| async {
        let (a, b) = owned_io_sim::pipe();
        let chain = vec![pair().certificate.clone(); 120];
        let len: usize = chain.iter().map(|certificate| certificate.len()).sum();
        assert!(len > 2 * 16 * 1024, "{len}");
        let server = Sim::spawn(async move {
            let mut server = Plain::server(b, server_config_of(chain, ALL_VERSIONS));
            server.shake_hands().await;
            server.write(b"hello").await;
            server
        });
        let mut pool = PoolConfig::default();
        pool.buf_bytes = 1000;
        let buffers = Buffers::new(Pool::new(pool));
        let connector = Connector::new(Arc::new(client_config(ALL_VERSIONS)));
        let mut client = connector.connect::<Sim, _>(a, server_name(), &buffers).await.unwrap();
        let read = client.read_exact(Vec::with_capacity(5), 5).await;
        assert_eq!(read.into_result().unwrap().1, b"hello");
        drop(server.await);
    });
}

#[test]
fn the_halves_go_on_without_each_other() {
    simulate(|| async {
        let (client, server) = both().await;
        let sent = pattern(300_000);
        let mut tasks = Vec::new();
        for stream in [client, server] {
            let (mut read, mut write) = stream.into_split();
            let sent = sent.clone();
            tasks.push(Sim::spawn(async move {
                let writing = Sim::spawn(async move {
                    let mut pieces = IoVec::new();
                    pieces.extend(sent.chunks(1234).map(<[u8]>::to_vec));
                    write.write_all_vectored(pieces).await.into_result().unwrap();
                    write.shutdown().await.unwrap();
                });
                let received = read_to_end(&mut read).await;
                writing.await.unwrap();
                received
            }));
        }
        for task in tasks {
            assert!(task.await.unwrap() == sent);
        }
    });
}

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
fn keys_are_updated() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        for round in 0..3 {
            client.tls.refresh_traffic_keys().unwrap(); // and asks us for the same
            client.write(b"after it").await;
            let read = server.read_exact(Vec::with_capacity(8), 8).await;
            assert_eq!(read.into_result().unwrap().1, b"after it", "round {round}");
            server.write_all("and we").await.into_result().unwrap();
            assert_eq!(client.read_exact(6).await, b"and we");
        }
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
            // It has ended for good, on both sides.
            let again = server.read(Vec::with_capacity(1)).await.0.unwrap_err();
            assert_eq!(again.kind(), ErrorKind::InvalidData);
            let write = server.write("more").await.0.unwrap_err();
            assert_eq!(write.kind(), ErrorKind::BrokenPipe);
            server.shutdown().await.unwrap();
        });
    }
}

/// The half that reads tells the peer, whatever the half that writes is about.
#[test]
fn an_alert_leaves_behind_a_write_that_waits() {
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
        Sim::sleep(Duration::from_secs(1)).await; // it waits: nobody reads
        client.stream.write_all(vec![23, 3, 3, 0xff, 0xff]).await.into_result().unwrap();
        let reading = Sim::spawn(async move { read.read(vec![0; 10]).await.0.unwrap_err() });
        Sim::sleep(Duration::from_secs(1)).await;
        let alert = client.alert().await;
        assert_eq!(alert, Error::AlertReceived(AlertDescription::DecodeError));
        assert_eq!(reading.await.unwrap().kind(), ErrorKind::InvalidData);
        assert_eq!(writing.await.unwrap().kind(), ErrorKind::BrokenPipe);
    });
}

/// Who reads has what came before a bad record, though the peer takes no alert.
#[test]
fn what_came_before_a_bad_record_waits_for_nobody() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        loop {
            let mut writing = pin!(server.write(pattern(50_000)));
            let ready = beside(writing.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
            if ready.pinned.is_none() {
                break; // it waits: nobody reads
            }
        }
        let mut records = client.encrypted(b"once");
        records.extend([23, 3, 3, 0xff, 0xff]);
        client.stream.write_all(records).await.into_result().unwrap();
        {
            let mut reading = pin!(server.read_exact(Vec::with_capacity(4), 4));
            let ready = beside(reading.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
            assert_eq!(ready.pinned.expect("what came").into_result().unwrap().1, b"once");
        }
        let reading = Sim::spawn(async move { server.read(vec![0; 10]).await.0.unwrap_err() });
        let alert = client.alert().await;
        assert_eq!(alert, Error::AlertReceived(AlertDescription::DecodeError));
        assert_eq!(reading.await.unwrap().kind(), ErrorKind::InvalidData);
    });
}

/// A client of TLS 1.2 that asks for another handshake is told that there is none, by a server that
/// only reads; and the connection goes on.
#[test]
fn another_handshake_is_declined_at_once() {
    simulate(|| async {
        let (mut client, mut server) = with_forger(&TLS12).await;
        let reading = Sim::spawn(async move {
            server.read_exact(Vec::with_capacity(7), 7).await.into_result().unwrap().1
        });
        let hello = Plain::client(owned_io_sim::pipe().0, client_config(&[&TLS12])).records();
        let request = client.record(ContentType::Handshake, &hello[RECORD_HEADER_BYTES..]);
        client.stream.write_all(request).await.into_result().unwrap();
        {
            let mut answer = pin!(client.receive());
            let ready = beside(answer.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
            let no_renegotiation = (ContentType::Alert, vec![1, 100]);
            assert_eq!(ready.pinned.expect("an answer"), no_renegotiation);
        }
        let record = client.record(ContentType::ApplicationData, b"goes on");
        client.stream.write_all(record).await.into_result().unwrap();
        assert_eq!(reading.await.unwrap(), b"goes on");
    });
}

#[test]
fn a_record_may_have_16_kib_or_nothing() {
    let data = ContentType::ApplicationData;
    for version in [&TLS12, &TLS13] {
        simulate(|| async move {
            let (mut client, mut server) = with_forger(version).await;
            let expected = [&pattern(16 * 1024)[..], b"after them"].concat();
            let mut records = client.record(data, &expected[..16 * 1024]);
            for _ in 0..10 {
                records.extend(client.record(data, b""));
            }
            records.extend(client.record(data, b"after them"));
            let sending = Sim::spawn(async move {
                client.stream.write_all(records).await.into_result().unwrap();
                client
            });
            let read = server.read_exact(Vec::with_capacity(expected.len()), expected.len()).await;
            assert!(read.into_result().unwrap().1 == expected);
            drop(sending.await);
        });
    }
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

/// There is no end to the message, and no alert for that in rustls.
#[test]
fn a_handshake_message_of_more_than_64_kib_is_refused() {
    simulate(|| async {
        let (mut client, b) = owned_io_sim::pipe();
        client.write_all(vec![22, 3, 1, 0, 4, 1, 1, 0, 0]).await.into_result().unwrap();
        let server =
            Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await.err() });
        assert_eq!(read_to_end(&mut client).await, b"");
        drop(client);
        let error = server.await.unwrap().expect("no connection");
        let too_large = InvalidMessage::HandshakePayloadTooLarge.into();
        assert_eq!(tls_error(&error), &TlsError::Protocol(too_large));
    });
}

/// Records with nothing in them, and new keys that nothing is sent with, cost the peer little.
#[test]
fn what_leads_to_nothing_has_an_end() {
    simulate(|| async {
        for version in [&TLS12, &TLS13] {
            let (mut client, mut server) = with_forger(version).await;
            let mut records = Vec::new();
            for _ in 0..33 {
                records.extend(client.record(ContentType::ApplicationData, b""));
            }
            client.stream.write_all(records).await.into_result().unwrap();
            let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
            let flood = PeerMisbehaved::TooManyEmptyFragments.into();
            assert_eq!(tls_error(&error), &TlsError::Protocol(flood));
        }
        let (mut client, mut server) = with_plain_client().await;
        for _ in 0..33 {
            client.tls.refresh_traffic_keys().unwrap();
        }
        client.flush().await;
        let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
        let flood = PeerMisbehaved::TooManyKeyUpdateRequests.into();
        assert_eq!(tls_error(&error), &TlsError::Protocol(flood));
    });
}

/// Our side has ended; what comes then is bad all the same. rustls 0.23 asserts, in builds that have
/// assertions, that it never sends an alert after `close_notify`, as it does here.
#[cfg(not(debug_assertions))]
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

#[test]
fn a_read_is_resumed_and_a_write_that_is_given_up_goes_on() {
    simulate(|| async {
        let (mut client, server) = with_plain_client().await;
        let (mut read, mut write) = server.into_split();
        {
            let mut reading = pin!(read.read(Vec::with_capacity(100)));
            for part in client.encrypted(b"in parts").chunks(3) {
                let ready = beside(reading.as_mut(), Sim::sleep(Duration::from_millis(3))).await;
                assert!(ready.pinned.is_none());
                client.stream.write_all(part.to_vec()).await.into_result().unwrap();
            }
            assert_eq!(reading.await.into_result().unwrap().1, b"in parts");
        }
        // More than fits on the way; then who wrote it gives up.
        let sent = pattern(200_000);
        let mut written = 0;
        loop {
            let mut writing = pin!(write.write(sent[written..].to_vec()));
            let ready = beside(writing.as_mut(), Sim::sleep(Duration::from_millis(50))).await;
            match ready.pinned {
                Some(result) => written += result.into_result().unwrap().0,
                None => break,
            }
        }
        let reader = Sim::spawn(async move {
            let given_up = (sent.len() - written).min(owned_io_tls::WRITE_BYTES_MAX);
            let received = client.read_exact(written + given_up + 4).await;
            assert!(received[..written + given_up] == sent[..written + given_up]);
            assert_eq!(&received[written + given_up..], b"next");
        });
        write.write_all("next").await.into_result().unwrap();
        reader.await.unwrap();
    });
}

/// Content type, version, length (RFC 8446 5.1).
const RECORD_HEADER_BYTES: usize = 5;

/// Where a record says a version, which is to be ignored, and is not signed (RFC 8446 5.1).
const RECORD_VERSION: Range<usize> = 1..3;

/// One byte of what the client says is another: the handshake fails, or is over at its deadline, or what
/// was said is not what was signed.
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
fn who_speaks_no_tls_is_told_so() {
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
fn a_server_that_nobody_vouches_for_is_refused() {
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
fn who_speaks_no_protocol_of_the_server_is_told_so() {
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

/// And cannot be told any more.
#[test]
fn who_spoke_no_tls_and_has_gone_is_what_the_error_says() {
    simulate(|| async {
        let (mut client, b) = owned_io_sim::pipe();
        client.write_all("GET / HTTP/1.1\r\n\r\n").await.into_result().unwrap();
        drop(client);
        let error = acceptor().accept::<Sim, _>(b, &buffers()).await.unwrap_err();
        assert!(matches!(tls_error(&error), TlsError::Protocol(Error::InvalidMessage(_))));
    });
}

#[test]
fn an_idle_connection_has_no_buffer() {
    simulate(|| async {
        let (a, b) = owned_io_sim::pipe();
        let buffers = buffers();
        let server = Sim::spawn({
            let buffers = buffers.clone();
            async move { acceptor().accept::<Sim, _>(b, &buffers).await.unwrap() }
        });
        let mut client = Plain::connected(a).await;
        let mut server = server.await.unwrap();
        let pool = Pool::new(PoolConfig::default());
        for round in 0..3 {
            let sent = pattern(20_000);
            let mut received = {
                let mut reading = pin!(server.read_pooled(&pool));
                let ready = beside(reading.as_mut(), Sim::sleep(Duration::from_millis(50))).await;
                assert!(ready.pinned.is_none());
                assert_eq!((pool.leased(), buffers.pool().leased()), (0, 0), "round {round}");
                client.write(&sent).await;
                reading.await.unwrap().to_vec()
            };
            while received.len() < sent.len() {
                received.extend_from_slice(&server.read_pooled(&pool).await.unwrap());
            }
            assert!(received == sent);
        }
    });
}

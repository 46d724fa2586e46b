//! Connections in the simulation: both roles, against each other and against plain rustls.

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::{
    Plain, acceptor, both, buffers, client_config, pair, pattern, read_to_end, server_config,
    server_config_of, server_name, simulate, with_forger, with_plain_client,
};
use owned_io::{
    ByteStream, Clock, Executor, IoVec, MemoryBudget, OwnedRead, OwnedReadExt, OwnedWrite,
    OwnedWriteExt, Pool, PoolConfig, coop, select,
};
use owned_io_sim::{Config, Sim};
use owned_io_tls::rustls::version::{TLS12, TLS13};
use owned_io_tls::rustls::{ALL_VERSIONS, ContentType, ProtocolVersion};
use owned_io_tls::{Acceptor, Buffers, Connector, TlsConnection};

/// Otherwise an accept loop would begin many handshakes before other tasks run. The work counts once the write of the
/// answer has begun, also if that waits.
#[test]
fn the_work_of_a_handshake_counts_once_its_answer_is_being_written() {
    simulate(|| async {
        let (a, b) = owned_io_sim::pipe();
        let client = Sim::spawn(Plain::connected(a));
        let acceptor = acceptor();
        let buffers = buffers();
        let mut accepting = pin!(acceptor.accept::<Sim, _>(b, &buffers));
        let mut spent_max = 0;
        let accepted = poll_fn(|cx| {
            coop::refill();
            let polled = accepting.as_mut().poll(cx);
            spent_max = coop::spent_nanos().max(spent_max);
            polled
        });
        accepted.await.unwrap();
        drop(client.await.unwrap());
        // Without the handshake, a poll ends when it has used up the budget, with an operation of some 2 µs.
        let other_max = u64::from(coop::POLL_BUDGET_NANOS) + 10_000;
        assert!(spent_max >= coop::cost::tls_handshake(), "{spent_max} ns");
        assert!(spent_max <= coop::cost::tls_handshake() + other_max, "{spent_max} ns");
    });
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
                assert_eq!(stream.session().protocol_version(), Some(number));
                let received = stream.read_exact(Vec::with_capacity(100_000), 100_000).await;
                stream.write_all(received.into_result().unwrap().1).await.into_result().unwrap();
                stream.shutdown().await.unwrap();
                assert_eq!(read_to_end(&mut stream).await, b"");
            });
            let mut client = Plain::client(a, client_config(&[version]));
            client.shake_hands().await;
            let received = {
                // More bytes than the buffers hold, so both directions proceed at the same time.
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
                assert_eq!(stream.session().alpn_protocol().as_deref(), Some(&b"http/1.1"[..]));
                assert_eq!(stream.session().is_resumed(), round > 0, "round {round}");
                stream.write_all("ticket before this").await.into_result().unwrap();
                stream.shutdown().await.unwrap();
                assert_eq!(read_to_end(&mut stream).await, b"");
            });
            let stream = connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap();
            assert_eq!(stream.session().is_resumed(), round > 0, "round {round}");
            let server_certificates = stream.session().peer_certificates().unwrap();
            let (mut read, mut write) = stream.into_split();
            assert_eq!(read_to_end(&mut read).await, b"ticket before this");
            // As before it was split, and after it has ended.
            for session in [read.session(), write.session()] {
                assert_eq!(session.peer_certificates().as_ref(), Some(&server_certificates));
                assert_eq!(session.protocol_version(), Some(ProtocolVersion::TLSv1_3));
                assert!(session.cipher_suite().is_some() && !server_certificates.is_empty());
            }
            write.shutdown().await.unwrap();
            server.await.unwrap();
        }
    });
}

/// The transport may cut a record anywhere, with a pause behind the cut.
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

/// A handshake that fits neither into a record nor into a buffer of the pool.
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
        let buffers = Buffers::new(Pool::new(pool), MemoryBudget::new(1 << 20));
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
fn keys_are_updated() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        for round in 0..3 {
            client.tls.refresh_traffic_keys().unwrap(); // and asks us to do the same
            client.write(b"after it").await;
            let read = server.read_exact(Vec::with_capacity(8), 8).await;
            assert_eq!(read.into_result().unwrap().1, b"after it", "round {round}");
            server.write_all("and we").await.into_result().unwrap();
            assert_eq!(client.read_exact(6).await, b"and we");
        }
    });
}

/// A client of TLS 1.2 asks for renegotiation. A server that only reads refuses by a warning, and the connection
/// continues.
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
            let selected = select(answer.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
            let no_renegotiation = (ContentType::Alert, vec![1, 100]);
            assert_eq!(selected.first.expect("an answer"), no_renegotiation);
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
fn a_read_is_resumed_and_a_dropped_write_continues() {
    simulate(|| async {
        let (mut client, server) = with_plain_client().await;
        let (mut read, mut write) = server.into_split();
        {
            let mut reading = pin!(read.read(Vec::with_capacity(100)));
            for part in client.encrypted(b"in parts").chunks(3) {
                let selected = select(reading.as_mut(), Sim::sleep(Duration::from_millis(3))).await;
                assert!(selected.first.is_none());
                client.stream.write_all(part.to_vec()).await.into_result().unwrap();
            }
            assert_eq!(reading.await.into_result().unwrap().1, b"in parts");
        }
        // More bytes than the buffers hold; then the writer drops its write.
        let sent = pattern(200_000);
        let mut written = 0;
        loop {
            let mut writing = pin!(write.write(sent[written..].to_vec()));
            let selected = select(writing.as_mut(), Sim::sleep(Duration::from_millis(50))).await;
            match selected.first {
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
                let selected =
                    select(reading.as_mut(), Sim::sleep(Duration::from_millis(50))).await;
                assert!(selected.first.is_none());
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

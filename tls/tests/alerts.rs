//! A peer whose failure ends the connection is told why by an alert, and the connection then ends in order (RFC 8446
//! section 6.2).

mod common;

use std::io::ErrorKind;
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::{
    Forger, Plain, acceptor, buffers, client_config, pattern, read_to_end, server_config,
    server_name, simulate, tls_error, with_forger, with_plain_client,
};
use owned_io::{
    BufResult, ByteStream, Clock, Executor, OwnedRead, OwnedWrite, OwnedWriteExt, Random, select,
};
use owned_io_sim::{Sim, SimStream};
use owned_io_tls::rustls::version::{TLS12, TLS13};
use owned_io_tls::rustls::{
    ALL_VERSIONS, AlertDescription, ContentType, Error, InvalidMessage, PeerMisbehaved,
    SupportedProtocolVersion,
};
use owned_io_tls::{Connector, TlsError, TlsStream};

/// A fatal alert that is not encrypted.
fn alert(description: AlertDescription) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description.into()]
}

/// A warning; TLS 1.2 has some.
const USER_CANCELED: [u8; 7] = [21, 3, 3, 0, 2, 1, 90];

fn too_large() -> Error {
    InvalidMessage::HandshakePayloadTooLarge.into()
}

fn hello(versions: &[&'static SupportedProtocolVersion]) -> Vec<u8> {
    Plain::client(owned_io_sim::pipe().0, client_config(versions)).records()
}

/// The first record of a ClientHello, with `more` behind the message.
fn with_behind(mut hello: Vec<u8>, more: &[u8]) -> Vec<u8> {
    hello.extend_from_slice(more);
    let len = u16::try_from(hello.len() - 5).unwrap();
    hello[3..5].copy_from_slice(&len.to_be_bytes());
    hello
}

/// Returns all bytes that a server answers to `said`, and why there is no connection.
async fn accept(said: Vec<u8>) -> (Vec<u8>, Error) {
    let (mut client, b) = owned_io_sim::pipe();
    let server = Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await.err() });
    client.write_all(said).await.into_result().unwrap();
    let answer = read_to_end(&mut client).await;
    drop(client);
    (answer, protocol(&server.await.unwrap().expect("no connection")))
}

fn protocol(error: &std::io::Error) -> Error {
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    match tls_error(error) {
        TlsError::Protocol(error) => error.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_invalid_start_is_answered_by_an_alert() {
    simulate(|| async {
        let interleaved = PeerMisbehaved::MessageInterleavedWithHandshakeMessage;
        let warnings = PeerMisbehaved::TooManyWarningAlertsReceived;
        let decode_error = AlertDescription::DecodeError;
        let unexpected = AlertDescription::UnexpectedMessage;
        let half = [&[22, 3, 1, 0, 100][..], &hello(ALL_VERSIONS)[5..105]].concat();
        for (said, description, failure) in [
            // A ClientHello that announces 16 MiB, and a second message of that length behind a ClientHello.
            (vec![22, 3, 1, 0, 4, 1, 255, 255, 255], decode_error, too_large()),
            (with_behind(hello(ALL_VERSIONS), &[1, 255, 255, 255]), decode_error, too_large()),
            (with_behind(hello(ALL_VERSIONS), &[9; 4096]), decode_error, too_large()),
            (with_behind(hello(&[&TLS12]), &[1, 255, 255, 255]), decode_error, too_large()),
            // Endless alerts.
            (USER_CANCELED.repeat(5), unexpected, warnings.into()),
            // A record of another type within a message.
            ([&half[..], &USER_CANCELED].concat(), unexpected, interleaved.clone().into()),
            ([&half[..], &[20, 3, 3, 0, 1, 1]].concat(), unexpected, interleaved.into()),
        ] {
            assert_eq!(accept(said).await, (alert(description).to_vec(), failure));
        }
    });
}

/// rustls's description is replaced as long as the alert is not encrypted.
#[test]
fn an_alert_within_the_handshake_is_encrypted_where_it_has_to_be() {
    for (version, expected) in
        [(&TLS12, AlertDescription::UnexpectedMessage), (&TLS13, AlertDescription::DecodeError)]
    {
        simulate(|| async move {
            let (a, b) = owned_io_sim::pipe();
            let server =
                Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await.err() });
            let mut client = Plain::client(a, client_config(&[version]));
            let said = [client.records(), USER_CANCELED.repeat(5)].concat();
            client.stream.write_all(said).await.into_result().unwrap();
            assert_eq!(client.alert().await, Error::AlertReceived(expected));
            drop(client);
            let failure = protocol(&server.await.unwrap().expect("no connection"));
            assert_eq!(failure, PeerMisbehaved::TooManyWarningAlertsReceived.into());
        });
    }
}

#[test]
fn an_alert_is_not_answered_by_another() {
    simulate(|| async {
        let failure = Error::AlertReceived(AlertDescription::HandshakeFailure);
        let said = alert(AlertDescription::HandshakeFailure).to_vec();
        assert_eq!(accept(said).await, (Vec::new(), failure));
    });
}

#[test]
fn a_client_answers_an_invalid_start_by_an_alert() {
    simulate(|| async {
        let interleaved = PeerMisbehaved::MessageInterleavedWithHandshakeMessage;
        let warnings = PeerMisbehaved::TooManyWarningAlertsReceived;
        let half = [22, 3, 3, 0, 6, 2, 0, 0, 70, 3, 3];
        for (said, description, failure) in [
            (vec![22, 3, 3, 0, 4, 2, 255, 255, 255], AlertDescription::DecodeError, too_large()),
            (USER_CANCELED.repeat(5), AlertDescription::UnexpectedMessage, warnings.into()),
            (
                [&half[..], &USER_CANCELED].concat(),
                AlertDescription::UnexpectedMessage,
                interleaved.into(),
            ),
        ] {
            let (a, mut server) = owned_io_sim::pipe();
            let client = Sim::spawn(async move {
                let connector = Connector::new(Arc::new(client_config(ALL_VERSIONS)));
                connector.connect::<Sim, _>(a, server_name(), &buffers()).await.err()
            });
            server.write_all(said).await.into_result().unwrap();
            let answer = read_to_end(&mut server).await;
            drop(server);
            assert!(answer.ends_with(&alert(description)), "{description:?}");
            assert_eq!(protocol(&client.await.unwrap().expect("no connection")), failure);
        }
    });
}

/// Makes encrypted records of a client.
type Make = dyn Fn(&mut Forger<SimStream>) -> Vec<u8>;

#[test]
fn records_without_progress_are_answered_by_an_alert() {
    let empty =
        |client: &mut Forger<_>| repeat(33, || client.record(ContentType::ApplicationData, b""));
    let warnings =
        |client: &mut Forger<_>| repeat(5, || client.record(ContentType::Alert, &[1, 90]));
    let interleaved = |client: &mut Forger<_>| {
        let half = client.record(ContentType::Handshake, &[24, 0]);
        [half, client.record(ContentType::ApplicationData, b"within")].concat()
    };
    let oversized =
        |client: &mut Forger<_>| client.record(ContentType::Handshake, &[24, 255, 255, 255]);
    let pieces = |client: &mut Forger<_>| {
        [&[24, 255, 255][..], &[255], b"and more"]
            .map(|piece| client.record(ContentType::Handshake, piece))
            .concat()
    };
    let many: &[(&Make, Error)] = &[
        (&empty, PeerMisbehaved::TooManyEmptyFragments.into()),
        (&warnings, PeerMisbehaved::TooManyWarningAlertsReceived.into()),
        (&interleaved, PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into()),
        (&oversized, too_large()),
        (&pieces, too_large()),
    ];
    for version in [&TLS12, &TLS13] {
        for (make, failure) in many {
            simulate(|| async move {
                let (mut client, mut server) = with_forger(version).await;
                let records = make(&mut client);
                assert_eq!(fails(&mut client, &mut server, records).await, *failure);
            });
        }
    }
}

#[test]
fn a_record_of_padding_alone_is_answered_by_an_alert() {
    simulate(|| async {
        let (mut client, mut server) = with_forger(&TLS13).await;
        let record = client.record(ContentType::Unknown(0), &[0; 9]);
        let failure = fails(&mut client, &mut server, record).await;
        assert_eq!(failure, PeerMisbehaved::IllegalTlsInnerPlaintext.into());
    });
}

/// Messages behind the offending one are not processed yet when the alert is made.
#[test]
fn asking_again_and_again_for_another_handshake_is_answered_by_an_alert() {
    simulate(|| async {
        let (mut client, mut server) = with_forger(&TLS12).await;
        let hello = hello(&[&TLS12])[5..].repeat(20);
        let records = client.record(ContentType::Handshake, &hello);
        client.stream.write_all(records).await.into_result().unwrap();
        let reading =
            Sim::spawn(async move { server.read(Vec::with_capacity(8)).await.0.unwrap_err() });
        assert_eq!(client.receive().await, (ContentType::Alert, vec![1, 100])); // no_renegotiation
        assert_eq!(client.receive().await, (ContentType::Alert, vec![2, 50]));
        assert_eq!(read_to_end(&mut client.stream).await, b"");
        drop(client);
        let failure = protocol(&reading.await.unwrap());
        assert_eq!(failure, PeerMisbehaved::TooManyRenegotiationRequests.into());
    });
}

/// The failure does not take long either: behind thousands of messages there is no alert, and the connection ends.
#[test]
fn thousands_of_messages_in_a_record_are_not_processed() {
    owned_io_sim::block_on(async {
        let (mut client, mut server) = with_forger(&TLS12).await;
        let mut messages = hello(&[&TLS12])[5..].repeat(2);
        messages.extend([99, 0, 0, 0].repeat(3900));
        let records = client.record(ContentType::Handshake, &messages);
        client.stream.write_all(records).await.into_result().unwrap();
        let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
        assert_eq!(protocol(&error), PeerMisbehaved::TooManyRenegotiationRequests.into());
        assert_eq!(client.receive().await, (ContentType::Alert, vec![1, 100])); // no_renegotiation
        assert_eq!(read_to_end(&mut client.stream).await, b"");
    });
}

/// Records with random contents, before and after the handshake: the connection waits for more, or it fails and sends
/// an alert.
#[test]
fn random_records_are_answered_by_an_alert_if_they_are_refused() {
    simulate(|| async {
        let mut told = 0;
        for _ in 0..20 {
            let mut said = Vec::new();
            if random(4) == 0 {
                said.extend(hello(ALL_VERSIONS));
            }
            for _ in 0..=random(6) {
                let (typ, payload) = random_payload();
                said.extend([&[typ.into(), 3, 3, 0, payload.len() as u8], &payload[..]].concat());
            }
            let (mut client, b) = owned_io_sim::pipe();
            let server =
                Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers()).await.err() });
            client.write_all(said).await.into_result().unwrap();
            client.shutdown().await.unwrap();
            let answer = read_to_end(&mut client).await;
            drop(client);
            let error = server.await.unwrap().expect("no connection");
            if error.kind() == ErrorKind::InvalidData {
                let is_alert = matches!(protocol(&error), Error::AlertReceived(_));
                assert!(is_alert || !answer.is_empty(), "{error:?}");
                told += 1;
            }
        }
        assert!(told > 5, "{told}");
        for version in [&TLS12, &TLS13] {
            for _ in 0..5 {
                let (mut client, mut server) = with_forger(version).await;
                for _ in 0..=random(6) {
                    let (typ, payload) = random_payload();
                    let record = client.record(typ, &payload);
                    client.stream.write_all(record).await.into_result().unwrap();
                }
                client.stream.shutdown().await.unwrap();
                let error = loop {
                    match server.read(Vec::with_capacity(100)).await.0 {
                        Ok(0) => break None,
                        Ok(_) => {}
                        Err(error) => break Some(error),
                    }
                };
                let is_refused = error.filter(|error| error.kind() == ErrorKind::InvalidData);
                if is_refused
                    .is_some_and(|error| !matches!(protocol(&error), Error::AlertReceived(_)))
                {
                    while client.receive().await.1.first() != Some(&2) {} // warnings come first
                }
            }
        }
    });
}

fn random(max: u8) -> u8 {
    let mut byte = [0];
    Sim::fill_random(&mut byte);
    byte[0] % (max + 1)
}

/// Chooses a content type that exists. Handshake messages get lengths that may be right.
fn random_payload() -> (ContentType, Vec<u8>) {
    let mut payload = vec![0; usize::from(1 + random(60))];
    Sim::fill_random(&mut payload);
    let typ = match random(5) {
        0 => ContentType::ChangeCipherSpec,
        1 => ContentType::Alert,
        2 => ContentType::ApplicationData,
        _ => ContentType::Handshake,
    };
    if typ == ContentType::Alert && random(1) == 0 {
        payload = vec![1 + random(1), [0, 10, 90, 100][usize::from(random(3))]];
    }
    if typ == ContentType::Handshake && random(3) > 0 && payload.len() > 4 {
        payload[0] = [0, 1, 4, 11, 20, 24][usize::from(random(5))];
        let len = random(payload.len() as u8);
        payload[1..4].copy_from_slice(&[0, 0, len]);
    }
    (typ, payload)
}

/// Returns the failure of the server after `records`. Checks that the client gets the alert before the end.
async fn fails(
    client: &mut Forger<SimStream>,
    server: &mut TlsStream<SimStream>,
    records: Vec<u8>,
) -> Error {
    client.stream.write_all(records).await.into_result().unwrap();
    let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
    let decode_error = (ContentType::Alert, vec![2, 50]);
    assert_eq!(client.receive().await, decode_error);
    assert_eq!(read_to_end(&mut client.stream).await, b"");
    protocol(&error)
}

fn repeat(times: usize, make: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    std::iter::repeat_with(make).take(times).flatten().collect()
}

#[test]
fn endless_key_updates_are_answered_by_an_alert() {
    simulate(|| async {
        let flood = Error::from(PeerMisbehaved::TooManyKeyUpdateRequests);
        let told = Error::AlertReceived(AlertDescription::DecodeError);
        let (mut client, mut server) = with_plain_client().await;
        for _ in 0..33 {
            client.tls.refresh_traffic_keys().unwrap();
        }
        client.flush().await;
        let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
        assert_eq!(protocol(&error), flood);
        assert_eq!(client.alert().await, told);

        // The same with a client as the receiver.
        let (a, b) = owned_io_sim::pipe();
        let connecting = Sim::spawn(async move {
            let connector = Connector::new(Arc::new(client_config(&[&TLS13])));
            connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap()
        });
        let mut server = Plain::server(b, server_config(&[&TLS13]));
        server.shake_hands().await;
        let mut client = connecting.await.unwrap();
        for _ in 0..33 {
            server.tls.refresh_traffic_keys().unwrap();
        }
        server.flush().await;
        let error = client.read(Vec::with_capacity(8)).await.0.unwrap_err();
        assert_eq!(protocol(&error), flood);
        assert_eq!(server.alert().await, told);
    });
}

/// A record that cannot be decrypted, with many bytes behind it: a client that keeps sending gets the alert and then
/// the end, and no reset, although nobody reads after the error.
#[test]
fn an_alert_is_not_lost_in_what_the_peer_still_sends() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        let mut bad = vec![23, 3, 3, 0xff, 0xff];
        bad.extend(pattern(300_000));
        let serving = Sim::spawn(async move {
            let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        });
        client.stream.write_all(bad).await.into_result().expect("all of it is taken");
        let told = Error::AlertReceived(AlertDescription::DecodeError);
        assert_eq!(client.alert().await, told);
        let (n, _) = client.stream.read(vec![0; 10]).await.into_result().expect("no reset");
        assert_eq!(n, 0);
        drop(client);
        serving.await.unwrap();
    });
}

/// The wait is bounded: the connection to a peer that does not take the alert, or does not end its side, is closed.
#[test]
fn a_failed_connection_ends_at_its_deadline() {
    simulate(|| async {
        for seconds in [5, 60] {
            let mut acceptor = acceptor();
            acceptor.close_timeout = Duration::from_secs(seconds); // 5 s is the default
            let (a, b) = owned_io_sim::pipe();
            let in_handshake = acceptor.clone();
            let accepting =
                Sim::spawn(async move { acceptor.accept::<Sim, _>(b, &buffers()).await.unwrap() });
            let mut client = Plain::connected(a).await;
            let mut server = accepting.await.unwrap();
            client.stream.write_all(vec![23, 3, 3, 0xff, 0xff]).await.into_result().unwrap();
            let started = Sim::now();
            let error = server.read(Vec::with_capacity(8)).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert_eq!((Sim::now() - started).as_secs(), seconds);
            // A second read does not wait again.
            let started = Sim::now();
            assert_eq!(server.read(vec![0; 8]).await.0.unwrap_err().kind(), ErrorKind::InvalidData);
            assert_eq!(Sim::now(), started);

            let (mut a, b) = owned_io_sim::pipe();
            a.write_all(b"no record").await.into_result().unwrap();
            in_handshake.accept::<Sim, _>(b, &buffers()).await.unwrap_err();
            assert_eq!((Sim::now() - started).as_secs(), seconds);
        }
    });
}

/// The number of bytes that are discarded is bounded too.
#[test]
fn a_peer_that_does_not_stop_is_not_listened_to_for_long() {
    owned_io_sim::block_on(async {
        let (mut client, mut server) = with_plain_client().await;
        let serving = Sim::spawn(async move {
            server.read(Vec::with_capacity(8)).await.0.unwrap_err();
        });
        client.stream.write_all(vec![23, 3, 3, 0xff, 0xff]).await.into_result().unwrap();
        let mut sent = 0;
        // An error at last: more bytes than that cause a reset.
        while let BufResult(Ok(n), _) = client.stream.write(pattern(50_000)).await {
            sent += n;
            assert!(sent < 32 << 20, "it goes on and on");
        }
        serving.await.unwrap();
    });
}

/// A program that shuts reads down does not wait either.
#[test]
fn a_failed_connection_can_be_ended_meanwhile() {
    simulate(|| async {
        let (mut client, mut server) = with_plain_client().await;
        client.stream.write_all(vec![23, 3, 3, 0xff, 0xff]).await.into_result().unwrap();
        let handle = server.shutdown_handle();
        let mut reading = pin!(server.read(vec![0; 10]));
        let selected = select(reading.as_mut(), Sim::sleep(Duration::from_secs(1))).await;
        assert!(selected.first.is_none(), "the client has not ended its side");
        let started = Sim::now();
        handle.shutdown(Shutdown::Read);
        let BufResult(result, buf) = reading.await;
        assert_eq!((result.unwrap_err().kind(), buf.len()), (ErrorKind::InvalidData, 10));
        assert_eq!(Sim::now(), started);
    });
}

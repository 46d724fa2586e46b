//! TLS: the services over it, certificates, and clients that speak the wrong protocol.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use iggy_binary_protocol::codes::{LOGIN_USER_CODE, SEND_MESSAGES_CODE};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};
use tungstenite::{ClientRequestBuilder, Message};

use super::iggy::{self, BASIC, LOGIN, batch, password_file};
use super::server::{ENGINES, PATIENCE, RUNTIMES, Server, announce, ended, program};

type Client = StreamOwned<ClientConnection, TcpStream>;

/// A server's certificate and key, in files. Removed when dropped.
struct Files {
    folder: PathBuf,
    chain: String,
    key: String,
}

impl Files {
    fn new(test: &str) -> (Self, CertificateDer<'static>) {
        let folder = std::env::temp_dir().join(format!("owned-io-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name| folder.join(name).display().to_string();
        let files = Self { chain: path("chain.pem"), key: path("key.pem"), folder };
        let certificate = files.write(2099);
        (files, certificate)
    }

    /// Writes a new certificate, valid until the year `until`.
    fn write(&self, until: i32) -> CertificateDer<'static> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        fs::write(&self.chain, certificate.pem()).unwrap();
        fs::write(&self.key, key.serialize_pem()).unwrap();
        certificate.der().clone()
    }

    fn options(&self) -> [&str; 4] {
        ["--tls-cert", &self.chain, "--tls-key", &self.key]
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A client that trusts this certificate only.
fn trusting(
    certificate: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

fn connect(server: &Server, service: usize, config: &Arc<ClientConfig>) -> Client {
    let name = "localhost".try_into().unwrap();
    let client = ClientConnection::new(Arc::clone(config), name).unwrap();
    StreamOwned::new(client, server.connect(service))
}

fn echoed(client: &mut Client, bytes: &[u8]) {
    client.write_all(bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes);
}

/// Ends our side, and expects the server's close_notify. An end without it would be an error here.
fn end(mut client: Client) {
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn services_answer() {
    let (files, certificate) = Files::new("services");
    let services = [
        ["--echo-tls", "127.0.0.1:0"],
        ["--sink-tls", "127.0.0.1:0"],
        ["--source-tls", "127.0.0.1:0"],
        ["--https", "127.0.0.1:0"],
    ];
    for runtime in RUNTIMES {
        let server =
            Server::start(runtime, &[&files.options()[..], services.as_flattened()].concat());
        for version in [&TLS12, &TLS13] {
            let config = trusting(&certificate, &[version]);
            let mut echo = connect(&server, 0, &config);
            for round in 0..8 {
                echoed(&mut echo, &vec![round; 40_000]);
            }
            assert_eq!(echo.conn.alpn_protocol(), None);
            end(echo);

            let mut sink = connect(&server, 1, &config);
            for len in [0, 1, 70_000, 2_000_000_u32] {
                let message = [&len.to_le_bytes()[..], &vec![7; len as usize]].concat();
                sink.write_all(&message).unwrap();
                let mut answer = [0; 8];
                sink.read_exact(&mut answer).unwrap();
                assert_eq!(u64::from_le_bytes(answer), len.into());
            }
            end(sink);

            let mut source = connect(&server, 2, &config);
            for number in [3_u32, 600_000, 2] {
                source.write_all(&number.to_le_bytes()).unwrap();
            }
            for n in 0..3 {
                let mut message = vec![0; 4 + 600_000];
                source.read_exact(&mut message).unwrap();
                let is_right = |(i, byte): (usize, &u8)| *byte == (n + i) as u8;
                assert!(message[4..].iter().enumerate().all(is_right));
            }
            end(source);

            let mut https = connect(&server, 3, &config);
            write!(https, "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            let mut response = String::new();
            https.read_to_string(&mut response).unwrap();
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
            assert_eq!(https.conn.alpn_protocol(), Some(&b"http/1.1"[..]));

            let stream = connect(&server, 3, &config);
            let (mut socket, _) = tungstenite::client("ws://localhost/echo", stream).unwrap();
            for message in [Message::text("héllo"), Message::binary(vec![7; 300_000])] {
                socket.send(message.clone()).unwrap();
                assert_eq!(socket.read().unwrap(), message, "{runtime}");
            }
            socket.close(None).unwrap();
            assert!(matches!(socket.read().unwrap(), Message::Close(_)));
            assert!(matches!(socket.read(), Err(tungstenite::Error::ConnectionClosed)));
        }
    }
}

/// Starts a server for Iggy's clients: the service 0 over TCP, and 1 over HTTP.
fn start_iggy(runtime: &str, files: &Files, password: &iggy::File, engine: &[&str]) -> Server {
    let services = ["--tcp-tls", "127.0.0.1:0", "--https", "127.0.0.1:0"];
    let password = ["--iggy-password-file", password.0.to_str().unwrap()];
    Server::start(runtime, &[&services[..], &password, &files.options(), engine].concat())
}

/// Over TCP, and over WebSocket at `/`: what one client sends, all poll. A length over the limit is answered by its status
/// and the end.
#[test]
fn iggy_answers() {
    let (files, certificate) = Files::new("iggy");
    let password = password_file("tls");
    let config = trusting(&certificate, ALL_VERSIONS);
    for (runtime, engine) in
        RUNTIMES.iter().flat_map(|runtime| ENGINES.iter().map(move |engine| (runtime, engine)))
    {
        println!("{runtime}, {engine:?}"); // shown when it fails
        let server = start_iggy(runtime, &files, &password, engine);
        let upgrade = || {
            let stream = connect(&server, 1, &config);
            tungstenite::client("ws://localhost/", stream).unwrap().0
        };
        let mut clients: Vec<iggy::Client<Client>> = Vec::new();
        for _ in 0..2 {
            clients.push(iggy::Client::Tcp(connect(&server, 0, &config)));
            clients.push(iggy::Client::WebSocket(upgrade().into()));
        }
        for client in &mut clients {
            assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        }
        clients[0].create();
        let mut payloads = Vec::new();
        for (n, client) in (1..).zip(&mut clients) {
            let payload = vec![n; 100 + usize::from(n) * 50_000];
            assert_eq!(client.ask(SEND_MESSAGES_CODE, &batch(&payload)), (0, vec![]));
            payloads.push(payload);
        }
        for client in &mut clients {
            assert!(client.poll_all(payloads.len()) == payloads);
        }

        let iggy::Client::Tcp(logged_in) = clients.swap_remove(0) else { unreachable!() };
        for (mut too_long, status) in [(connect(&server, 0, &config), 40), (logged_in, 80)] {
            too_long.write_all(&[255; 8]).unwrap();
            let mut answer = [0; 8];
            too_long.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [status, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(too_long.read(&mut answer).unwrap(), 0, "behind a close_notify");
        }
    }
}

#[test]
fn messages_are_pushed() {
    let (files, certificate) = Files::new("tail");
    let password = password_file("tail-tls");
    let config = trusting(&certificate, ALL_VERSIONS);
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let server = start_iggy(runtime, &files, &password, &[]);
        let mut producer = iggy::Client::Tcp(connect(&server, 0, &config));
        assert_eq!(producer.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        producer.create();
        let uri = "ws://localhost/tail/s/t/0".parse().unwrap();
        let request = ClientRequestBuilder::new(uri).with_header("Authorization", BASIC);
        let stream = connect(&server, 1, &config);
        let (mut tail, _) = tungstenite::client(request, stream).unwrap();
        for len in [1, 100, 100_000] {
            let payload = vec![b'a'; len];
            assert_eq!(producer.ask(SEND_MESSAGES_CODE, &batch(&payload)), (0, vec![]));
            let pushed = tail.read().unwrap().into_text().unwrap();
            assert!(pushed.ends_with(&format!("\"payload\":\"{}\"}}", "a".repeat(len))));
        }
    }
}

/// There are buffers for as many connections as there may be.
#[test]
fn the_only_connection_is_served() {
    let (files, certificate) = Files::new("only");
    for runtime in RUNTIMES {
        let only = ["--https", "127.0.0.1:0", "--connections-max", "1"];
        let server = Server::start(runtime, &[&files.options()[..], &only].concat());
        let stream = connect(&server, 0, &trusting(&certificate, ALL_VERSIONS));
        let (mut socket, _) = tungstenite::client("ws://localhost/echo", stream).unwrap();
        for message in [Message::text("short"), Message::binary(vec![7; 300_000])] {
            socket.send(message.clone()).unwrap();
            assert_eq!(socket.read().unwrap(), message, "{runtime}");
        }
    }
}

/// By any worker.
#[test]
fn sessions_are_resumed() {
    let (files, certificate) = Files::new("sessions");
    for runtime in RUNTIMES {
        let server = Server::start(
            runtime,
            &[&files.options()[..], &["--echo-tls", "127.0.0.1:0"]].concat(),
        );
        for version in [&TLS12, &TLS13] {
            let config = trusting(&certificate, &[version]);
            for round in 0..8 {
                let mut echo = connect(&server, 0, &config);
                echoed(&mut echo, b"a server sends tickets with it");
                let expected =
                    if round == 0 { HandshakeKind::Full } else { HandshakeKind::Resumed };
                assert_eq!(echo.conn.handshake_kind(), Some(expected), "{runtime}, round {round}");
                end(echo);
            }
        }
    }
}

#[test]
fn the_wrong_protocol_is_answered() {
    let (files, certificate) = Files::new("wrong");
    let services = ["--http", "127.0.0.1:0", "--echo-tls", "127.0.0.1:0", "--https", "127.0.0.1:0"];
    for runtime in RUNTIMES {
        let server = Server::start(runtime, &[&files.options()[..], &services].concat());
        let mut plain = server.connect(2);
        write!(plain, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = String::new();
        plain.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{runtime}: {response}");
        assert!(response.ends_with("\r\n\r\nthis port speaks TLS: use https://\n"), "{response}");

        let mut over_tls = connect(&server, 0, &trusting(&certificate, ALL_VERSIONS));
        // The answer is HTTP (400), not TLS.
        let error = over_tls.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{runtime}: {error}");
        let mut raw = server.connect(0);
        raw.write_all(&[22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]).unwrap();
        let mut response = String::new();
        raw.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 400 "), "{runtime}: {response}");

        let mut plain = server.connect(1);
        announce(&mut plain, 5, b"no TLS");
        let mut alert = Vec::new();
        plain.read_to_end(&mut alert).unwrap();
        assert_eq!(alert, [21, 3, 3, 0, 2, 2, 50], "{runtime}: a fatal alert, decode_error");

        let mut too_long = server.connect(1);
        too_long.write_all(&[22, 3, 1, 0xff, 0xff]).unwrap();
        let mut alert = Vec::new();
        too_long.read_to_end(&mut alert).unwrap();
        assert_eq!(alert, [21, 3, 3, 0, 2, 2, 50], "{runtime}: a fatal alert, decode_error");
    }
}

#[test]
fn certificates_are_read_again_on_sighup() {
    let (files, old) = Files::new("reloaded");
    for runtime in RUNTIMES {
        let log = files.folder.join(format!("{runtime}.log"));
        let options = [
            &["--runtime", runtime, "--workers", "2", "--echo-tls", "127.0.0.1:0"][..],
            &files.options(),
        ]
        .concat();
        let mut trusted = files.write(2099);
        let server = Server::start_logging_to(
            Stdio::from(File::create(&log).unwrap()),
            program(&options),
            &options,
        );
        let mut before = connect(&server, 0, &trusting(&trusted, ALL_VERSIONS));
        echoed(&mut before, b"before");

        for (until, said) in [(2098, "were read again"), (2001, "stay as they are")] {
            let new = files.write(until);
            server.signal("-HUP");
            let since = Instant::now();
            while !fs::read_to_string(&log).unwrap().contains(said) {
                assert!(since.elapsed() < PATIENCE, "{runtime} did not say that they {said}");
                thread::sleep(Duration::from_millis(5));
            }
            if until > 2001 {
                trusted = new;
            }
            let mut after = connect(&server, 0, &trusting(&trusted, ALL_VERSIONS));
            echoed(&mut after, b"after");
            echoed(&mut before, b"goes on");
        }
        let log = fs::read_to_string(&log).unwrap();
        assert!(log.contains("has expired") && log.contains(&files.chain), "{log}");

        let config = trusting(&old, ALL_VERSIONS);
        let refused = connect(&server, 0, &config).write_all(b"x");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidData, "it is the old one");
    }
}

/// A file whose read blocks, as on a disk that is gone, does not block later signals.
#[test]
fn certificates_that_cannot_be_read_block_nothing() {
    let (files, certificate) = Files::new("fifo");
    let options = [&files.options()[..], &["--echo-tls", "127.0.0.1:0"]].concat();
    let server = Server::start(RUNTIMES[0], &options);
    let mut before = connect(&server, 0, &trusting(&certificate, ALL_VERSIONS));
    echoed(&mut before, b"before");
    fs::remove_file(&files.chain).unwrap();
    assert!(Command::new("mkfifo").arg(&files.chain).status().unwrap().success());
    for _ in 0..3 {
        server.signal("-HUP");
        thread::sleep(Duration::from_millis(100));
    }
    echoed(&mut before, b"as ever");
    let mut after = connect(&server, 0, &trusting(&certificate, ALL_VERSIONS));
    echoed(&mut after, b"the old certificate");
    let signalled = Instant::now();
    server.signal("-TERM");
    assert_eq!(before.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(server.wait(), 0);
    assert!(signalled.elapsed() < Duration::from_secs(5));
}

/// With a close_notify.
#[test]
fn silent_clients_are_closed() {
    let (files, certificate) = Files::new("idle");
    for runtime in RUNTIMES {
        let options = ["--echo-tls", "127.0.0.1:0", "--idle-seconds-max", "1"];
        let server = Server::start(runtime, &[&files.options()[..], &options[..]].concat());
        let mut client = connect(&server, 0, &trusting(&certificate, ALL_VERSIONS));
        echoed(&mut client, b"before");
        let started = Instant::now();
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0, "{runtime}");
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(5), "{took:?}");
    }
}

#[test]
fn draining_ends_connections_cleanly() {
    let (files, certificate) = Files::new("draining");
    for runtime in RUNTIMES {
        let services = ["--echo-tls", "127.0.0.1:0", "--https", "127.0.0.1:0"];
        let server = Server::start(
            runtime,
            &[&files.options()[..], &services[..], &["--drain-seconds", "15"]].concat(),
        );
        let mut idle = connect(&server, 0, &trusting(&certificate, ALL_VERSIONS));
        echoed(&mut idle, b"before");
        // Two have sent nothing, one is within its handshake, and one has made no request.
        let silent = [server.connect(0), server.connect(1)];
        let mut begun = server.connect(1);
        begun.write_all(&[22, 3, 1, 2]).unwrap();
        let mut asks_nothing = connect(&server, 1, &trusting(&certificate, ALL_VERSIONS));
        asks_nothing.conn.complete_io(&mut asks_nothing.sock).unwrap();
        let signalled = Instant::now();
        server.signal("-TERM");
        assert_eq!(idle.read(&mut [0; 16]).unwrap(), 0, "{runtime}");
        assert_eq!(server.wait(), 0, "{runtime}");
        let took = signalled.elapsed();
        assert!(took < Duration::from_secs(5), "{runtime} ended after {took:?}");
        drop((silent, begun, asks_nothing));
    }
}

#[test]
fn bad_certificates_are_refused_at_the_start() {
    let (files, _) = Files::new("refused");
    let (other, _) = Files::new("refused-other");
    let options = |chain, key| {
        ["--https", "127.0.0.1:0", "--tls-cert", chain, "--tls-key", key].map(str::to_owned)
    };
    let expired = files.folder.join("expired.pem").display().to_string();
    files.write(2001);
    fs::rename(&files.chain, &expired).unwrap();
    files.write(2099);
    for (options, said) in [
        (
            options(&expired, &files.key),
            format!("--tls-cert: the certificate in {expired} has expired"),
        ),
        (
            options(&files.chain, &other.key),
            format!("--tls-key: the key in {} is not that of", other.key),
        ),
        (
            options(&files.key, &files.key),
            format!("--tls-cert: there is no certificate in {}", files.key),
        ),
        (options("nowhere.pem", &files.key), "--tls-cert: cannot read nowhere.pem: ".to_owned()),
    ] {
        refused(&options, &said);
    }
    let not_regular = "/dev/zero: it is not a regular file";
    refused(&options("/dev/zero", &files.key), &format!("--tls-cert: cannot read {not_regular}"));
    refused(&options(&files.chain, "/dev/zero"), &format!("--tls-key: cannot read {not_regular}"));
    let long = files.folder.join("long.pem").display().to_string();
    File::create(&long).unwrap().set_len(1 << 40).unwrap(); // of zeros, which take no space
    refused(
        &options(&files.chain, &long),
        &format!("--tls-key: cannot read {long}: it is longer than 1048576 bytes"),
    );
    let https = ["--https", "127.0.0.1:0"].map(str::to_owned);
    refused(&https, "--https is over TLS: it needs --tls-cert and --tls-key");
    let echo = ["--echo", "127.0.0.1:0", "--tls-cert", &files.chain].map(str::to_owned);
    refused(&echo, "nothing to serve over TLS: ");
}

fn refused(options: &[String], said: &str) {
    let mut options: Vec<_> = options.iter().map(String::as_str).collect();
    options.extend(["--runtime", RUNTIMES[0]]);
    let (code, stderr) = ended(program(&options).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.starts_with(&format!("owned-io-server: {said}")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

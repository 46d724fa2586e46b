//! Over TLS: echo as over TCP, and servers with an untrusted certificate.

use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ALL_VERSIONS, ServerConfig, ServerConnection, StreamOwned};

use super::post::{acknowledged, request};
use super::websocket::echo_compressed;
use super::{load, server};

/// A server's certificate in a file, which is removed when this is dropped, and the server's configuration.
struct Certificate {
    file: PathBuf,
    config: Arc<ServerConfig>,
}

impl Certificate {
    fn new(test: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("to sign");
        let file = std::env::temp_dir().join(format!("load-{test}-{}.pem", std::process::id()));
        std::fs::write(&file, made.cert.pem()).expect("to write");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(ALL_VERSIONS)
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .expect("its key");
        config.ticketer = ring::Ticketer::new().expect("a key");
        Self { file, config: Arc::new(config) }
    }

    fn echo(&self) -> SocketAddr {
        let config = Arc::clone(&self.config);
        server(move |_, stream| {
            let mut stream = accept(stream, &config)?;
            echo(&mut stream)?;
            stream.conn.send_close_notify();
            io::Write::flush(&mut stream)
        })
    }

    /// A server that does not send close_notify.
    fn rude_echo(&self) -> SocketAddr {
        let config = Arc::clone(&self.config);
        server(move |_, stream| echo(&mut accept(stream, &config)?))
    }

    fn compressed_echo(&self) -> SocketAddr {
        let config = Arc::clone(&self.config);
        server(move |_, stream| echo_compressed(&mut accept(stream, &config)?, |_, _| {}))
    }

    /// Acknowledges events that are posted.
    fn events(&self) -> SocketAddr {
        let (config, events) = (Arc::clone(&self.config), AtomicU64::new(0));
        server(move |_, stream| {
            let mut stream = BufReader::new(accept(stream, &config)?);
            while let Some((head, _)) = request(&mut stream)? {
                let answer = acknowledged(events.fetch_add(1, Ordering::SeqCst));
                stream.get_mut().write_all(answer.as_bytes())?;
                if head.iter().any(|line| line == "Connection: close") {
                    break;
                }
            }
            stream.get_mut().conn.send_close_notify();
            stream.get_mut().flush()
        })
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

type Tls = StreamOwned<ServerConnection, TcpStream>;

fn accept(stream: TcpStream, config: &Arc<ServerConfig>) -> io::Result<Tls> {
    let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    Ok(StreamOwned::new(tls, stream))
}

fn echo(stream: &mut Tls) -> io::Result<()> {
    let mut buf = vec![0; 64 * 1024];
    loop {
        let n = io::Read::read(stream, &mut buf)?;
        if n == 0 {
            return Ok(());
        }
        io::Write::write_all(stream, &buf[..n])?;
    }
}

#[test]
fn an_echo_over_tls() {
    let certificate = Certificate::new("echo");
    let file = certificate.file.display();
    for payload in [1, 1000, 40_000, 300_000] {
        let options = format!(
            "--connections 3 --payload {payload} --in-flight 2 --seconds 0.4 --warm-up 0.1 --tls {file}"
        );
        let run = load("echo", certificate.echo(), &options);
        run.is_clean();
        assert_eq!(run.number("/connections/opened"), 3.0);
        assert!(run.number("/messages/received") > 3.0, "{}", run.stdout);
        assert_eq!(run.number("/messages/unanswered"), 0.0);
    }
}

#[test]
fn a_compressed_echo_over_tls() {
    let certificate = Certificate::new("compressed");
    let options = format!(
        "--websocket /echo --connections 3 --payload 1024 --in-flight 2 --seconds 0.4 --warm-up 0.1 --tls {}",
        certificate.file.display()
    );
    let run = load("deflate", certificate.compressed_echo(), &options);
    run.is_clean();
    assert_eq!(run.number("/connections/opened"), 3.0);
    assert!(run.number("/messages/received") > 3.0, "{}", run.stdout);
}

#[test]
fn events_over_tls() {
    let certificate = Certificate::new("post");
    let file = certificate.file.display();
    let options = format!(
        "--path /events/s/t --payload 20000 --connections 3 --seconds 0.4 --warm-up 0.1 --tls {file}"
    );
    let run = load("post", certificate.events(), &options);
    run.is_clean();
    assert_eq!(run.number("/connections/opened"), 3.0);
    assert!(run.number("/posts/acknowledged") > 3.0, "{}", run.stdout);
    let run = load("post", certificate.events(), &(options + " --per-connection"));
    run.is_clean();
    assert!(run.number("/posts/acknowledged") > 3.0, "{}", run.stdout);
    assert_eq!(run.number("/posts/acknowledged"), run.number("/connections/opened"));
}

#[test]
fn handshakes_at_a_rate() {
    let certificate = Certificate::new("rate");
    let file = certificate.file.display();
    let options = format!("--busy 1 --payload 10 --rate 50 --seconds 0.5 --warm-up 0 --tls {file}");
    let run = load("arrivals", certificate.echo(), &options);
    run.is_clean();
    let echoed = run.number("/arrivals/within_1_s") + run.number("/arrivals/over_1_s");
    assert_eq!(echoed, 25.0, "{}", run.stdout);
}

#[test]
fn connections_that_come_and_go_with_a_full_handshake_or_resumed() {
    let certificate = Certificate::new("churn");
    let file = certificate.file.display();
    let options = format!("--connections 4 --payload 10 --seconds 0.4 --warm-up 0.1 --tls {file}");
    for (option, percent) in [("", 0.0), (" --tls-resume", 100.0)] {
        let run = load("churn", certificate.echo(), &(options.clone() + option));
        run.is_clean();
        assert!(run.number("/churn/done") > 4.0, "{}", run.stdout);
        assert_eq!(run.number("/churn/whole_us/count"), run.number("/churn/first_echo_us/count"));
        assert_eq!(run.number("/churn/resumed_percent"), percent, "{}", run.stdout);
    }
    let run = load("churn", certificate.rude_echo(), &options);
    let errors = run.json["connections"]["errors"].to_string();
    assert!(errors.contains("without sending TLS close_notify"), "{}", run.stdout);
}

#[test]
fn a_server_that_is_not_trusted_is_refused() {
    let (certificate, other) = (Certificate::new("trusted"), Certificate::new("other"));
    let file = other.file.display();
    let options = format!("--connections 1 --payload 10 --seconds 0.1 --tls {file}");
    load("echo", certificate.echo(), &options).is_refused("invalid peer certificate");
    let options = "--connections 1 --payload 10 --seconds 0.1 --tls /nowhere.pem";
    load("echo", certificate.echo(), options).is_refused("cannot trust /nowhere.pem: ");
}

//! Helpers for the tests: a server's identity, and plain rustls as the other end.

#![allow(dead_code, unused_imports, reason = "each test uses some of it")]

mod forger;
mod simulated;

use std::io;
use std::sync::{Arc, OnceLock};

use owned_io::{ByteStream, MemoryBudget, OwnedWriteExt, Pool, PoolConfig};
use owned_io_tls::Buffers;
use owned_io_tls::rustls::crypto::ring;
use owned_io_tls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName,
};
use owned_io_tls::rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, Connection, Error, RootCertStore, ServerConfig,
    ServerConnection, SupportedProtocolVersion,
};
use rcgen::{CertificateParams, KeyPair};

pub(crate) use self::forger::Forger;
pub(crate) use self::simulated::{
    accept, acceptor, both, pattern, read_to_end, simulate, tls_error, with_forger,
    with_plain_client,
};

/// A certificate for `localhost`, and its key.
pub(crate) struct Pair {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Pair {
    /// Of a kind whose signatures all have the same length, so that a simulation repeats.
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Self { certificate, key }
    }
}

pub(crate) fn pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(Pair::new)
}

pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

pub(crate) fn server_config(versions: &[&'static SupportedProtocolVersion]) -> ServerConfig {
    server_config_of(vec![pair().certificate.clone()], versions)
}

pub(crate) fn server_config_of(
    chain: Vec<CertificateDer<'static>>,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, pair().key.clone_key())
        .unwrap();
    config.ticketer = ring::Ticketer::new().unwrap();
    config
}

pub(crate) fn client_config(versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(pair().certificate.clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

pub(crate) fn buffers() -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 24))
}

/// Plain rustls with its own buffers, over any stream.
pub(crate) struct Plain<S> {
    pub(crate) tls: Connection,
    pub(crate) stream: S,
    /// Plaintext that was received.
    received: Vec<u8>,
}

impl<S: ByteStream> Plain<S> {
    pub(crate) fn client(stream: S, config: ClientConfig) -> Self {
        let client = ClientConnection::new(Arc::new(config), server_name()).unwrap();
        Self { tls: client.into(), stream, received: Vec::new() }
    }

    pub(crate) fn server(stream: S, config: ServerConfig) -> Self {
        let server = ServerConnection::new(Arc::new(config)).unwrap();
        Self { tls: server.into(), stream, received: Vec::new() }
    }

    /// A client after its handshake.
    pub(crate) async fn connected(stream: S) -> Self {
        let mut plain = Self::client(stream, client_config(ALL_VERSIONS));
        plain.shake_hands().await;
        plain
    }

    pub(crate) async fn shake_hands(&mut self) {
        self.flush().await;
        while self.tls.is_handshaking() {
            assert!(self.fill().await.expect("no TLS error"), "ended within the handshake");
            self.flush().await;
        }
    }

    /// Sends the records that rustls has to send.
    pub(crate) fn records(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records).unwrap();
        }
        records
    }

    pub(crate) async fn flush(&mut self) {
        let records = self.records();
        // A peer that is gone does not need them.
        let _ = self.stream.write_all(records).await;
    }

    /// The records of `plain`.
    pub(crate) fn encrypted(&mut self, plain: &[u8]) -> Vec<u8> {
        io::Write::write_all(&mut self.tls.writer(), plain).unwrap();
        self.records()
    }

    pub(crate) async fn write(&mut self, plain: &[u8]) {
        for part in plain.chunks(16 * 1024) {
            let records = self.encrypted(part);
            self.stream.write_all(records).await.into_result().unwrap();
        }
    }

    /// Reads once; false at the end of the stream.
    pub(crate) async fn fill(&mut self) -> Result<bool, Error> {
        let read = self.stream.read(Vec::with_capacity(4096)).await;
        let (n, bytes) = read.into_result().expect("expected to read");
        let mut left = &bytes[..];
        while !left.is_empty() {
            self.tls.read_tls(&mut left).unwrap();
            let state = self.tls.process_new_packets()?;
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            io::Read::read_exact(&mut self.tls.reader(), &mut plain).unwrap();
            self.received.extend_from_slice(&plain);
        }
        Ok(n > 0)
    }

    /// Reads until there are this many bytes of plaintext.
    pub(crate) async fn read_exact(&mut self, len: usize) -> Vec<u8> {
        while self.received.len() < len {
            let so_far = self.received.len();
            assert!(self.fill().await.expect("no TLS error"), "cut after {so_far} bytes");
        }
        self.received.drain(..len).collect()
    }

    /// The description of the other end's alert, once it has arrived.
    pub(crate) async fn alert(&mut self) -> Error {
        loop {
            match self.fill().await {
                Ok(is_open) => assert!(is_open, "the end, and no alert"),
                Err(error) => return error,
            }
        }
    }
}

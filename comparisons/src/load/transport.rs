//! [`Transport`]: TCP, or TLS over it.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ALL_VERSIONS, ClientConfig, ClientConnection, HandshakeKind, RootCertStore};

use super::Failure;

/// The size of one read from the socket: more than a record. TLS itself would read little at a time.
const SOCKET_BYTES: usize = 20 * 1024;

/// The buffer of one read from the socket. `owned_io::Pool::ALIGN` says why it is aligned.
#[repr(align(64))]
struct SocketBuf([u8; SOCKET_BYTES]);

/// A connection's non-blocking stream.
#[derive(Debug)]
pub(crate) struct Transport {
    tcp: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Whether the last read over TLS emptied the socket.
    is_drained: bool,
}

/// A configuration that trusts the certificate in this file alone, for a server named `localhost`. Unless it `resumes`,
/// every handshake is a full one.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn trusting(certificate: &Path, resumes: bool) -> Result<Arc<ClientConfig>, Failure> {
    let failure = |error: &dyn std::fmt::Display| {
        Failure::new(format!("cannot trust {}: {error}", certificate.display()))
    };
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_file(certificate).map_err(|error| failure(&error))?;
    roots.add(trusted).map_err(|error| failure(&error))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(ALL_VERSIONS)
        .map_err(|error| failure(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    Ok(Arc::new(config))
}

/// One connection to such a server, before its handshake.
pub(crate) fn client(config: &Arc<ClientConfig>) -> io::Result<ClientConnection> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)
}

impl Transport {
    /// Over a stream that is still connecting.
    pub(crate) fn new(tcp: TcpStream, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let tls = tls.map(|config| client(config).map(Box::new)).transpose()?;
        Ok(Self { tcp, tls, is_drained: false })
    }

    pub(crate) const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    pub(crate) const fn tcp_mut(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// Whether application data cannot be sent yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether the handshake resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        let kind = self.tls.as_ref().and_then(|tls| tls.handshake_kind());
        kind == Some(HandshakeKind::Resumed)
    }

    /// Whether the last read emptied the socket; without TLS that is so if it was short.
    pub(crate) const fn is_drained(&self, is_short: bool) -> bool {
        if self.tls.is_some() { self.is_drained } else { is_short }
    }

    /// Queues close_notify for the next push. False without TLS.
    pub(crate) fn start_close(&mut self) -> bool {
        self.tls.iter_mut().for_each(|tls| tls.send_close_notify());
        self.tls.is_some()
    }

    /// Sends the records that TLS has queued.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            tls.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.tcp.write(bytes);
        }
        self.push()?;
        let Some(tls) = &mut self.tls else { return Ok(0) };
        let n = tls.writer().write(bytes)?;
        match self.push() {
            // TLS has taken the bytes; the next write reports WouldBlock.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(n),
            pushed => pushed.map(|()| n),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

impl Read for Transport {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Self { tcp, tls: Some(tls), is_drained } = self else { return self.tcp.read(buf) };
        let SocketBuf(socket) = &mut SocketBuf([0; SOCKET_BYTES]);
        let mut filled = 0;
        *is_drained = false;
        loop {
            match tls.reader().read(&mut buf[filled..]) {
                Ok(0) => return Ok(filled), // the end, or no room
                Ok(n) => {
                    filled += n;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if filled == 0 => return Err(error),
                Err(_) => return Ok(filled), // the next read returns the error
            }
            // If there is less room, one more read from the socket may not fit.
            let is_full = buf.len() - filled < 3 * SOCKET_BYTES;
            match (*is_drained || is_full, filled) {
                (true, 0) => return Err(io::ErrorKind::WouldBlock.into()),
                (true, _) => return Ok(filled),
                (false, _) => {}
            }
            let n = match tcp.read(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && filled > 0 => {
                    *is_drained = true;
                    return Ok(filled);
                }
                read => read?,
            };
            let mut left = &socket[..n];
            loop {
                tls.read_tls(&mut left)?;
                tls.process_new_packets().map_err(io::Error::other)?;
                if left.is_empty() {
                    break;
                }
                match tls.reader().read(&mut buf[filled..]) {
                    Ok(n) => filled += n,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            *is_drained = 0 < n && n < socket.len();
        }
    }
}

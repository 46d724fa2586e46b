//! [`TlsConnection`]: what the handshake of a connection agreed on.

use std::fmt;

use owned_io::backend::Duplex;
use rustls::pki_types::CertificateDer;
use rustls::{CommonState, HandshakeKind, ProtocolVersion, SupportedCipherSuite};

use crate::shared::Shared;
use crate::{TlsReadHalf, TlsWriteHalf};

/// A [`TlsStream`](crate::TlsStream), or a half of one, which can be asked for its TLS session.
///
/// ```
/// use owned_io::ByteStream;
/// use owned_io_tls::{TlsConnection, TlsStream};
///
/// /// Whether this connection uses HTTP/2.
/// fn is_http2<S: ByteStream>(stream: &TlsStream<S>) -> bool {
///     stream.session().alpn_protocol().as_deref() == Some(b"h2")
/// }
/// ```
pub trait TlsConnection {
    /// What the handshake agreed on.
    fn session(&self) -> TlsSession<'_>;
}

/// What the handshake of a connection agreed on. Everything is known once the connection is open.
///
/// The name that a client asked for (SNI) is not here. On connections with rustls's unbuffered interface,
/// rustls 0.23 passes it only to the resolver of the server's certificates.
#[derive(Clone, Copy)]
pub struct TlsSession<'a>(&'a Shared);

impl TlsSession<'_> {
    /// The application protocol that was agreed on (ALPN), if one was.
    pub fn alpn_protocol(&self) -> Option<Vec<u8>> {
        self.with_common(|common| common.alpn_protocol().map(<[u8]>::to_vec))
    }

    /// The version of TLS.
    pub fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.with_common(|common| common.protocol_version())
    }

    /// The cipher suite.
    pub fn cipher_suite(&self) -> Option<SupportedCipherSuite> {
        self.with_common(|common| common.negotiated_cipher_suite())
    }

    /// The peer's certificates, its own first. On a server, `None` unless the server asked its client for one.
    pub fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.with_common(|common| {
            let certificates = common.peer_certificates()?;
            Some(certificates.iter().map(|certificate| certificate.clone().into_owned()).collect())
        })
    }

    /// Whether an earlier session was resumed.
    pub fn is_resumed(&self) -> bool {
        self.with_common(|common| common.handshake_kind()) == Some(HandshakeKind::Resumed)
    }

    /// Borrows the session only for this call: the halves need it for each read and write.
    fn with_common<T>(&self, f: impl FnOnce(&CommonState) -> T) -> T {
        f(self.0.session.borrow().connection().common())
    }
}

impl fmt::Debug for TlsSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession")
            .field("protocol_version", &self.protocol_version())
            .field("is_resumed", &self.is_resumed())
            .finish_non_exhaustive()
    }
}

impl<H> TlsConnection for TlsReadHalf<H> {
    fn session(&self) -> TlsSession<'_> {
        TlsSession(self.shared())
    }
}

impl TlsConnection for TlsWriteHalf {
    fn session(&self) -> TlsSession<'_> {
        TlsSession(self.shared())
    }
}

impl<H> TlsConnection for Duplex<TlsReadHalf<H>, TlsWriteHalf> {
    fn session(&self) -> TlsSession<'_> {
        self.get_ref().1.session()
    }
}

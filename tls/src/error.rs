//! [`TlsError`]: why a connection failed, where it was not the transport.

use std::error::Error;
use std::{fmt, io};

/// Why a TLS connection failed: the cause inside an [`io::Error`].
///
/// ```
/// use std::io;
/// use owned_io_tls::TlsError;
///
/// /// Whether somebody may have cut the stream.
/// fn is_truncated(error: &io::Error) -> bool {
///     let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
///     matches!(inner, Some(TlsError::Truncated))
/// }
/// assert!(is_truncated(&TlsError::Truncated.into()));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer broke the protocol, or we could not agree with it, and it was told by an alert. Or it is
    /// the one who said so, by an alert of its own. As [`InvalidData`](io::ErrorKind::InvalidData).
    Protocol(rustls::Error),
    /// The stream ended without `close_notify`: by the peer, who may have crashed, or by anybody
    /// between. As [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    Truncated,
    /// The peer does not speak TLS at all. As [`InvalidData`](io::ErrorKind::InvalidData).
    NotTls,
    /// Others needed the memory that the connection held: what it had received and could not make use of
    /// yet, what nobody read, or what its peer did not take. As
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded).
    Evicted,
    /// There was no memory for the connection, for a long time: its budget was used up, or the allocator's.
    /// As [`QuotaExceeded`](io::ErrorKind::QuotaExceeded).
    OutOfMemory,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protocol(_) => "TLS failed",
            Self::Truncated => "the stream was cut: it ended without the close_notify of TLS",
            Self::NotTls => "the peer does not speak TLS",
            Self::Evicted => "others needed the memory that the TLS connection held",
            Self::OutOfMemory => "there is no memory for the TLS connection",
        })
    }
}

impl Error for TlsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Protocol(error) => Some(error),
            Self::Truncated | Self::NotTls | Self::Evicted | Self::OutOfMemory => None,
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        let kind = match error {
            TlsError::Protocol(_) | TlsError::NotTls => io::ErrorKind::InvalidData,
            TlsError::Truncated => io::ErrorKind::UnexpectedEof,
            TlsError::Evicted | TlsError::OutOfMemory => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

//! [`TlsError`]: why a connection failed, unless its transport did.

use std::error::Error;
use std::{fmt, io};

/// Why a TLS connection failed. It is inside an [`io::Error`].
///
/// ```
/// use std::io;
/// use owned_io_tls::TlsError;
///
/// /// Whether somebody may have truncated the stream.
/// fn is_truncated(error: &io::Error) -> bool {
///     let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
///     matches!(inner, Some(TlsError::Truncated))
/// }
/// assert!(is_truncated(&TlsError::Truncated.into()));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer violated the protocol, or there was no agreement, and we sent an alert. Or the peer sent an alert.
    /// As [`InvalidData`](io::ErrorKind::InvalidData).
    Protocol(rustls::Error),
    /// The stream ended without `close_notify`. The peer may have crashed, or somebody on the path may have cut the
    /// stream. As [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    Truncated,
    /// The peer does not speak TLS at all. As [`InvalidData`](io::ErrorKind::InvalidData).
    NotTls,
    /// Other connections needed the memory that this one held: incomplete records, plaintext that nobody read, or
    /// records that the peer did not take. As [`QuotaExceeded`](io::ErrorKind::QuotaExceeded).
    Evicted,
    /// There was no memory for the connection for half a minute, in its budget or from the allocator.
    /// As [`QuotaExceeded`](io::ErrorKind::QuotaExceeded).
    OutOfMemory,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentence = match self {
            Self::Protocol(error) => return write!(f, "TLS failed: {error}"),
            Self::Truncated => "the stream was cut: it ended without the close_notify of TLS",
            Self::NotTls => "the peer does not speak TLS",
            Self::Evicted => "others needed the memory that the TLS connection held",
            Self::OutOfMemory => "there is no memory for the TLS connection",
        };
        f.write_str(sentence)
    }
}

impl Error for TlsError {}

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

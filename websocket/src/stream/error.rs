use std::{error, fmt, io};

use bytes::Bytes;

use crate::handshake::{HandshakeError, InvalidHeader, Refusal};

/// Why a connection could not be opened, or failed.
///
/// `Display` prints the cause. [`source`](error::Error::source) is the source of the cause.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A violation by the peer, a limit, a timeout or a misuse. The inner error says which.
    Protocol(crate::ProtocolError),
    /// The underlying connection failed.
    Io(io::Error),
    /// The server refused the client's request, and has told the client so.
    Refused(Refusal),
    /// The server's response does not accept the upgrade.
    NotUpgraded(HandshakeError),
    /// A header that the caller gave cannot be sent.
    InvalidHeader,
    /// A receive future was dropped while it read. Bytes of the peer may be lost.
    Interrupted,
}

/// A payload that could not be queued, and why.
pub struct Unsent {
    /// Why: [`Limit::Queue`](crate::Limit::Queue), [`Limit::Memory`](crate::Limit::Memory) or a
    /// [`Misuse`](crate::Misuse).
    pub error: crate::ProtocolError,
    /// The payload, unchanged.
    pub payload: Bytes,
}

impl From<crate::ProtocolError> for Error {
    fn from(error: crate::ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl From<Error> for io::Error {
    /// Returns an I/O error unchanged. Any other error is wrapped, and gets a matching kind.
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Io(error) => return error,
            Error::Protocol(error) => error.io_kind(),
            Error::Refused(_) | Error::NotUpgraded(_) => io::ErrorKind::InvalidData,
            Error::InvalidHeader => io::ErrorKind::InvalidInput,
            // Not `Interrupted`: callers would retry.
            Error::Interrupted => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<HandshakeError> for Error {
    fn from(error: HandshakeError) -> Self {
        Self::NotUpgraded(error)
    }
}

impl From<InvalidHeader> for Error {
    fn from(_: InvalidHeader) -> Self {
        Self::InvalidHeader
    }
}

impl From<Unsent> for Error {
    /// Drops the payload.
    fn from(unsent: Unsent) -> Self {
        Self::Protocol(unsent.error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => write!(f, "websocket failed: {error}"),
            Self::Io(error) => write!(f, "connection failed: {error}"),
            Self::Refused(refusal) => write!(f, "request was refused: {refusal}"),
            Self::NotUpgraded(error) => error.fmt(f),
            Self::InvalidHeader => InvalidHeader.fmt(f),
            Self::Interrupted => {
                f.write_str("a read of this connection was dropped while it was pending")
            }
        }
    }
}

impl error::Error for Error {
    /// The source of the cause. `Display` prints the cause itself.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl fmt::Debug for Unsent {
    /// Prints the length of the payload, not the payload: it may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsent")
            .field("error", &self.error)
            .field("payload_bytes", &self.payload.len())
            .finish()
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "payload of {} bytes was not queued: {}", self.payload.len(), self.error)
    }
}

impl error::Error for Unsent {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Misuse;

    #[test]
    fn unsent_prints_the_length_of_its_payload_and_not_the_payload() {
        let error = Misuse::SentAfterClose.into();
        let unsent = Unsent { error, payload: Bytes::from_static(b"a secret") };
        let printed = format!("{unsent:?} {unsent}");
        assert!(!printed.contains("secret"), "{printed}");
        assert!(printed.contains("payload_bytes: 8"), "{printed}");
    }
}

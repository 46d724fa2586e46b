use std::{error, fmt, io};

use bytes::Bytes;

use crate::handshake::{HandshakeError, InvalidHeader, Refusal};

/// Why a connection could not be opened, or failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The protocol's: the peer's fault, a limit, a timeout or a misuse, as it says itself.
    Protocol(crate::ProtocolError),
    /// The connection's.
    Io(io::Error),
    /// The client's request asked for no upgrade that can be agreed to. It has been told.
    Refused(Refusal),
    /// The server's response is no agreement.
    NotUpgraded(HandshakeError),
    /// A header of our own cannot be sent.
    InvalidHeader,
    /// A future was dropped while it read from the connection: bytes of the peer may be lost.
    Interrupted,
}

/// A payload that could not be queued, and why.
#[derive(Debug)]
pub struct Unsent {
    /// Why: [`Limit::Queue`](crate::Limit::Queue), or a [`Misuse`](crate::Misuse).
    pub error: crate::ProtocolError,
    /// As it was given.
    pub payload: Bytes,
}

impl From<crate::ProtocolError> for Error {
    fn from(error: crate::ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl From<Error> for io::Error {
    /// An error of the connection comes out as it went in. Others get a kind, and are what the new error
    /// wraps.
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Io(error) => return error,
            Error::Protocol(error) => error.io_kind(),
            Error::Refused(_) | Error::NotUpgraded(_) => io::ErrorKind::InvalidData,
            Error::InvalidHeader => io::ErrorKind::InvalidInput,
            // Not `Interrupted`: that would be tried again.
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
        f.write_str(match self {
            Self::Protocol(_) => "websocket failed",
            Self::Io(_) => "connection failed",
            Self::Refused(_) => "request was refused",
            Self::NotUpgraded(_) => "server did not agree",
            Self::InvalidHeader => "a header cannot be sent",
            Self::Interrupted => "a read of this connection was dropped while it was under way",
        })
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Protocol(error) => Some(error),
            Self::Io(error) => Some(error),
            Self::Refused(refusal) => Some(refusal),
            Self::NotUpgraded(error) => Some(error),
            Self::InvalidHeader => Some(&InvalidHeader),
            Self::Interrupted => None,
        }
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "payload of {} bytes was not queued", self.payload.len())
    }
}

impl error::Error for Unsent {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.error)
    }
}

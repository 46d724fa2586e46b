//! [`ProtocolError`]: what went wrong, and who caused it.

use std::{error, fmt, io};

use crate::CloseCode;

/// Why the engine refused an input or a call, and who caused it. Holds no I/O error, and can be
/// compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The peer violated the protocol. The connection has failed.
    Peer(Violation),
    /// A limit of the [`Config`](crate::Config) would be exceeded. If the peer caused it, the
    /// connection has failed. If the caller's own queue caused it, the connection continues.
    Limit {
        /// Which limit.
        limit: Limit,
        /// The limit, in bytes.
        max: u64,
        /// The announced or requested size, in bytes.
        got: u64,
    },
    /// Something took longer than the [`Config`](crate::Config) allows. The connection has failed.
    Timeout(Timeout),
    /// The caller requested something that the protocol does not allow. Nothing has changed.
    Misuse(Misuse),
}

/// How a peer violated the protocol. Section numbers are those of RFC 6455.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A reserved bit is set, and no negotiated extension uses it there (5.2).
    ReservedBits,
    /// A reserved opcode (5.2).
    ReservedOpcode,
    /// A length is not encoded in the fewest bytes (5.2).
    LengthNotMinimal,
    /// A control frame without the FIN bit (5.5).
    FragmentedControlFrame,
    /// A control frame with a payload of more than 125 bytes (5.5).
    LongControlFrame,
    /// A client sent a frame that is not masked (5.1).
    NotMasked,
    /// A server sent a masked frame (5.1).
    Masked,
    /// A continuation frame without a message to continue (5.4).
    ContinuationWithoutStart,
    /// A new message began before the last fragment of the previous one (5.4).
    MessageWithinMessage,
    /// Text that is not UTF-8 (8.1).
    TextNotUtf8,
    /// A compressed message that cannot be decompressed (RFC 7692 section 7.2.2).
    NotCompressed,
    /// The payload of a close frame is one byte (5.5.1).
    TruncatedCloseCode,
    /// A close code that must not be sent (7.4).
    ReservedCloseCode,
    /// The reason in a close frame is not UTF-8 (5.5.1).
    CloseReasonNotUtf8,
    /// The stream ended before the closing handshake was done (7.1.5: code 1006, which is never
    /// sent).
    EndedWithoutClose,
}

/// Which limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// [`frame_bytes_max`](crate::EngineConfig::frame_bytes_max).
    Frame,
    /// [`message_bytes_max`](crate::EngineConfig::message_bytes_max).
    Message,
    /// [`queue_bytes_max`](crate::EngineConfig::queue_bytes_max).
    Queue,
    /// The [memory](crate::stream#memory) of a connection. Either the connection needs more than it
    /// may ever have; or it was evicted with what it holds; or, for a message to send, there is not
    /// enough memory now.
    Memory,
}

/// What took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Timeout {
    /// Nothing arrived from the peer after a ping was sent.
    Pong,
    /// No data frame in either direction.
    Idle,
    /// The peer began a message, or a control frame between messages, and did not end it.
    Message,
    /// The peer accepted nothing of what was written.
    Write,
    /// The peer did not finish the closing handshake.
    Close,
}

/// What a caller did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// Sent something on a connection that is closing.
    SentAfterClose,
    /// Began a message before the last fragment of the previous one.
    MessageWithinMessage,
    /// Continued a message that was not begun.
    ContinuationWithoutStart,
    /// A ping of more than 125 bytes, or a close reason of more than 123.
    LongControlFrame,
    /// Requested only a header on a client, or sent an encoded frame there. A client must mask what
    /// it sends, each frame with another key.
    NotMasked,
}

impl ProtocolError {
    /// The code that a connection is closed with when it fails with this error. `None` if it does
    /// not fail, or if nothing can be sent any more.
    pub const fn close_code(self) -> Option<CloseCode> {
        Some(match self {
            Self::Peer(
                Violation::TextNotUtf8 | Violation::NotCompressed | Violation::CloseReasonNotUtf8,
            ) => CloseCode::INVALID_DATA,
            Self::Peer(Violation::EndedWithoutClose) => return None,
            Self::Peer(_) => CloseCode::PROTOCOL_ERROR,
            Self::Limit { limit: Limit::Frame | Limit::Message, .. } => CloseCode::TOO_LARGE,
            Self::Limit { limit: Limit::Memory, .. } => CloseCode::TRY_AGAIN,
            Self::Timeout(Timeout::Pong) => CloseCode::INTERNAL_ERROR,
            Self::Timeout(Timeout::Idle) => CloseCode::GOING_AWAY,
            Self::Timeout(Timeout::Message) => CloseCode::POLICY,
            Self::Timeout(Timeout::Write | Timeout::Close)
            | Self::Limit { limit: Limit::Queue, .. }
            | Self::Misuse(_) => return None,
        })
    }
}

impl ProtocolError {
    pub(crate) const fn io_kind(self) -> io::ErrorKind {
        match self {
            Self::Peer(Violation::EndedWithoutClose) => io::ErrorKind::UnexpectedEof,
            Self::Peer(_) | Self::Limit { limit: Limit::Frame | Limit::Message, .. } => {
                io::ErrorKind::InvalidData
            }
            Self::Limit { limit: Limit::Queue | Limit::Memory, .. } => io::ErrorKind::QuotaExceeded,
            Self::Timeout(_) => io::ErrorKind::TimedOut,
            Self::Misuse(_) => io::ErrorKind::InvalidInput,
        }
    }
}

impl From<ProtocolError> for io::Error {
    fn from(error: ProtocolError) -> Self {
        Self::new(error.io_kind(), error)
    }
}

impl From<Violation> for ProtocolError {
    fn from(violation: Violation) -> Self {
        Self::Peer(violation)
    }
}

impl From<Misuse> for ProtocolError {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse)
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(violation) => violation.fmt(f),
            // A connection may have that much, but not now.
            Self::Limit { limit: Limit::Memory, max, got } if got <= max => {
                write!(
                    f,
                    "memory is used up: no room for {got} bytes of at most {max} for a connection"
                )
            }
            Self::Limit { limit, max, got } => {
                let what = match limit {
                    Limit::Frame => "frame",
                    Limit::Message => "message",
                    Limit::Queue => "write queue",
                    Limit::Memory => "memory of a connection",
                };
                write!(f, "{what} of {got} bytes exceeds the limit of {max}")
            }
            Self::Timeout(timeout) => timeout.fmt(f),
            Self::Misuse(misuse) => misuse.fmt(f),
        }
    }
}

impl error::Error for ProtocolError {}

impl error::Error for Violation {}

impl error::Error for Timeout {}

impl error::Error for Misuse {}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReservedBits => "peer set a reserved bit",
            Self::ReservedOpcode => "peer used a reserved opcode",
            Self::LengthNotMinimal => "peer wrote a length in more bytes than it needs",
            Self::FragmentedControlFrame => "peer fragmented a control frame",
            Self::LongControlFrame => "peer sent a control frame of more than 125 bytes",
            Self::NotMasked => "client sent a frame that is not masked",
            Self::Masked => "server sent a masked frame",
            Self::ContinuationWithoutStart => "peer continued a message that was not begun",
            Self::MessageWithinMessage => "peer began a message within another",
            Self::TextNotUtf8 => "peer sent text that is not utf-8",
            Self::NotCompressed => "peer sent a compressed message that does not decompress",
            Self::TruncatedCloseCode => "peer sent half a close code",
            Self::ReservedCloseCode => "peer sent a close code that must not be sent",
            Self::CloseReasonNotUtf8 => "peer sent a close reason that is not utf-8",
            Self::EndedWithoutClose => "stream ended without a closing handshake",
        })
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pong => "peer did not answer a ping in time",
            Self::Idle => "no message for too long",
            Self::Message => "peer did not end a message in time",
            Self::Write => "peer took nothing for too long",
            Self::Close => "peer did not close in time",
        })
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SentAfterClose => "sent on a connection that is closing",
            Self::MessageWithinMessage => "began a message within another",
            Self::ContinuationWithoutStart => "continued a message that was not begun",
            Self::LongControlFrame => "control frame of more than 125 bytes",
            Self::NotMasked => "a client's payload needs masking",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_words_at_most() {
        assert!(size_of::<ProtocolError>() <= 24);
    }

    #[test]
    fn says_what_and_how_much() {
        let error = ProtocolError::Limit { limit: Limit::Frame, max: 10, got: 1 << 63 };
        let expected = "frame of 9223372036854775808 bytes exceeds the limit of 10";
        assert_eq!(error.to_string(), expected);
        let refused = |got| ProtocolError::Limit { limit: Limit::Memory, max: 10, got }.to_string();
        assert_eq!(refused(11), "memory of a connection of 11 bytes exceeds the limit of 10");
        let expected = "memory is used up: no room for 9 bytes of at most 10 for a connection";
        assert_eq!(refused(9), expected);
    }

    #[test]
    fn prints_its_cause() {
        let error = ProtocolError::Peer(Violation::TextNotUtf8);
        assert_eq!(error.to_string(), "peer sent text that is not utf-8");
        let error = ProtocolError::Timeout(Timeout::Pong);
        assert_eq!(error.to_string(), "peer did not answer a ping in time");
        let error = ProtocolError::Misuse(Misuse::SentAfterClose);
        assert_eq!(error.to_string(), "sent on a connection that is closing");
    }

    #[test]
    fn becomes_an_io_error_that_keeps_it() {
        let error = io::Error::from(ProtocolError::Timeout(Timeout::Pong));
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ProtocolError>());
        assert_eq!(inner, Some(&ProtocolError::Timeout(Timeout::Pong)));
    }
}

//! What tungstenite's errors are called here.

use std::io;

use owned_io_websocket::{EngineConfig, Error, Limit, Misuse, Violation};
use tungstenite::Error as Theirs;
use tungstenite::error::{CapacityError, ProtocolError};

/// What an error of tungstenite says.
pub(crate) enum Meaning {
    /// The buffers are empty, or full.
    WouldBlock,
    /// The closing handshake is done, or the connection has failed before.
    Closed,
    /// The connection has failed, or what was asked for is refused.
    Error(Error),
}

impl Meaning {
    pub(crate) fn of(error: &Theirs, config: &EngineConfig) -> Self {
        Self::Error(match error {
            Theirs::Io(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Self::WouldBlock;
            }
            Theirs::ConnectionClosed | Theirs::AlreadyClosed => return Self::Closed,
            Theirs::Protocol(ProtocolError::ReceivedAfterClosing) => return Self::Closed,
            Theirs::Protocol(ProtocolError::SendAfterClosing) => Misuse::SentAfterClose.into(),
            Theirs::Protocol(error) => violation(error).into(),
            Theirs::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
                // Where the two are the same, a frame that is too long is a message that is.
                let is_message = *max_size == config.message_bytes_max;
                let limit = if is_message { Limit::Message } else { Limit::Frame };
                Error::Limit { limit, max: *max_size as u64, got: *size as u64 }
            }
            Theirs::WriteBufferFull(message) => Error::Limit {
                limit: Limit::Queue,
                max: config.queue_bytes_max as u64,
                got: message.len() as u64,
            },
            Theirs::Utf8(_) => Violation::TextNotUtf8.into(),
            other => unreachable!("of a handshake, or of TLS: {other}"),
        })
    }
}

fn violation(error: &ProtocolError) -> Violation {
    match error {
        ProtocolError::NonZeroReservedBits => Violation::ReservedBits,
        ProtocolError::UnmaskedFrameFromClient => Violation::NotMasked,
        ProtocolError::MaskedFrameFromServer => Violation::Masked,
        ProtocolError::FragmentedControlFrame => Violation::FragmentedControlFrame,
        ProtocolError::ControlFrameTooBig => Violation::LongControlFrame,
        ProtocolError::UnknownControlFrameType(_)
        | ProtocolError::UnknownDataFrameType(_)
        | ProtocolError::InvalidOpcode(_) => Violation::ReservedOpcode,
        ProtocolError::UnexpectedContinueFrame => Violation::ContinuationWithoutStart,
        ProtocolError::ExpectedFragment(_) => Violation::MessageWithinMessage,
        ProtocolError::ResetWithoutClosingHandshake => Violation::EndedWithoutClose,
        ProtocolError::InvalidCloseSequence => Violation::TruncatedCloseCode,
        other => unreachable!("of a handshake, or of a frame that was not read: {other}"),
    }
}

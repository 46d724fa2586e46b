//! What tungstenite's errors are called here.

use std::io;

use owned_io_websocket::{EngineConfig, Limit, Misuse, ProtocolError, Violation};
use tungstenite::Error as Theirs;
use tungstenite::error::{CapacityError, ProtocolError as Violated};

/// What an error of tungstenite says.
pub(crate) enum Meaning {
    /// The buffers are empty, or full.
    WouldBlock,
    /// The closing handshake is done, or the connection has failed before.
    Closed,
    /// The connection has failed, or what was asked for is refused.
    Error(ProtocolError),
}

impl Meaning {
    pub(crate) fn of(error: &Theirs, config: &EngineConfig) -> Self {
        Self::Error(match error {
            Theirs::Io(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Self::WouldBlock;
            }
            Theirs::ConnectionClosed | Theirs::AlreadyClosed => return Self::Closed,
            Theirs::Protocol(Violated::ReceivedAfterClosing) => return Self::Closed,
            Theirs::Protocol(Violated::SendAfterClosing) => Misuse::SentAfterClose.into(),
            Theirs::Protocol(error) => violation(error).into(),
            Theirs::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
                // Where the two are the same, a frame that is too long is a message that is.
                let is_message = *max_size == config.message_bytes_max;
                let limit = if is_message { Limit::Message } else { Limit::Frame };
                ProtocolError::Limit { limit, max: *max_size as u64, got: *size as u64 }
            }
            Theirs::WriteBufferFull(message) => ProtocolError::Limit {
                limit: Limit::Queue,
                max: config.queue_bytes_max as u64,
                got: message.len() as u64,
            },
            Theirs::Utf8(_) => Violation::TextNotUtf8.into(),
            other => unreachable!("of a handshake, or of TLS: {other}"),
        })
    }
}

fn violation(error: &Violated) -> Violation {
    match error {
        Violated::NonZeroReservedBits => Violation::ReservedBits,
        Violated::UnmaskedFrameFromClient => Violation::NotMasked,
        Violated::MaskedFrameFromServer => Violation::Masked,
        Violated::FragmentedControlFrame => Violation::FragmentedControlFrame,
        Violated::ControlFrameTooBig => Violation::LongControlFrame,
        Violated::UnknownControlFrameType(_)
        | Violated::UnknownDataFrameType(_)
        | Violated::InvalidOpcode(_) => Violation::ReservedOpcode,
        Violated::UnexpectedContinueFrame => Violation::ContinuationWithoutStart,
        Violated::ExpectedFragment(_) => Violation::MessageWithinMessage,
        Violated::ResetWithoutClosingHandshake => Violation::EndedWithoutClose,
        Violated::InvalidCloseSequence => Violation::TruncatedCloseCode,
        other => unreachable!("of a handshake, or of a frame that was not read: {other}"),
    }
}

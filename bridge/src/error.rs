//! Translates the errors of tungstenite.

use std::io;

use owned_io_websocket::{EngineConfig, Limit, Misuse, ProtocolError, Violation};
use tungstenite::Error as TungsteniteError;
use tungstenite::error::{CapacityError, ProtocolError as TungsteniteViolation};

/// What an error of tungstenite means.
pub(crate) enum ErrorClass {
    /// A buffer is empty or full.
    WouldBlock,
    /// The closing handshake is done, or the connection has failed before.
    Closed,
    /// The connection has failed, or the call was refused.
    Error(ProtocolError),
}

pub(crate) fn classify(error: &TungsteniteError, config: &EngineConfig) -> ErrorClass {
    ErrorClass::Error(match error {
        TungsteniteError::Io(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return ErrorClass::WouldBlock;
        }
        TungsteniteError::ConnectionClosed | TungsteniteError::AlreadyClosed => {
            return ErrorClass::Closed;
        }
        TungsteniteError::Protocol(TungsteniteViolation::ReceivedAfterClosing) => {
            return ErrorClass::Closed;
        }
        TungsteniteError::Protocol(TungsteniteViolation::SendAfterClosing) => {
            Misuse::SentAfterClose.into()
        }
        TungsteniteError::Protocol(error) => violation(error).into(),
        TungsteniteError::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            // If both limits are equal, a frame that is too long is reported as a message.
            let is_message = *max_size == config.message_bytes_max;
            let limit = if is_message { Limit::Message } else { Limit::Frame };
            ProtocolError::Limit { limit, max: *max_size as u64, got: *size as u64 }
        }
        TungsteniteError::WriteBufferFull(message) => ProtocolError::Limit {
            limit: Limit::Queue,
            max: config.queue_bytes_max as u64,
            got: message.len() as u64,
        },
        TungsteniteError::Utf8(_) => Violation::TextNotUtf8.into(),
        other => unreachable!("an error of the handshake or of TLS: {other}"),
    })
}

fn violation(error: &TungsteniteViolation) -> Violation {
    match error {
        TungsteniteViolation::NonZeroReservedBits => Violation::ReservedBits,
        TungsteniteViolation::UnmaskedFrameFromClient => Violation::NotMasked,
        TungsteniteViolation::MaskedFrameFromServer => Violation::Masked,
        TungsteniteViolation::FragmentedControlFrame => Violation::FragmentedControlFrame,
        TungsteniteViolation::ControlFrameTooBig => Violation::LongControlFrame,
        TungsteniteViolation::UnknownControlFrameType(_)
        | TungsteniteViolation::UnknownDataFrameType(_)
        | TungsteniteViolation::InvalidOpcode(_) => Violation::ReservedOpcode,
        TungsteniteViolation::UnexpectedContinueFrame => Violation::ContinuationWithoutStart,
        TungsteniteViolation::ExpectedFragment(_) => Violation::MessageWithinMessage,
        TungsteniteViolation::ResetWithoutClosingHandshake => Violation::EndedWithoutClose,
        TungsteniteViolation::InvalidCloseSequence => Violation::TruncatedCloseCode,
        other => unreachable!("an error of the handshake, or of sending: {other}"),
    }
}

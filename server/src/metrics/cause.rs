//! [`CloseCause`]: why a connection has ended.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use owned_io_http as http;
use owned_io_websocket::stream::Error;
use owned_io_websocket::{ProtocolError, Violation};

/// Why a connection has ended. `docs/metrics.md` explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is in the documentation of the metrics, by its label")]
pub enum CloseCause {
    Ended,
    Refused,
    Reset,
    CutOff,
    Timeout,
    Protocol,
    Limit,
    Memory,
    Panic,
    Dropped,
    Other,
}

impl CloseCause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Ended,
        Self::Refused,
        Self::Reset,
        Self::CutOff,
        Self::Timeout,
        Self::Protocol,
        Self::Limit,
        Self::Memory,
        Self::Panic,
        Self::Dropped,
        Self::Other,
    ];

    /// The value of the label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::CutOff => "cut_off",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Limit => "limit",
            Self::Memory => "memory",
            Self::Panic => "panic",
            Self::Dropped => "dropped",
            Self::Other => "other",
        }
    }

    /// The cause of an error of a service.
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Self::of_io(error);
        }
        if let Some(error) = error.downcast_ref::<http::Error>() {
            return Self::of_http(error);
        }
        match error.downcast_ref::<Error>() {
            Some(Error::Protocol(error)) => Self::of_protocol(*error),
            Some(Error::Io(error)) => Self::of_io(error),
            Some(Error::Refused(_)) => Self::Refused,
            _ => Self::Other,
        }
    }

    fn of_http(error: &http::Error) -> Self {
        match error {
            http::Error::Refused(_) => Self::Refused,
            http::Error::Io(error) => Self::of_io(error),
            http::Error::Memory(_) => Self::Memory,
            _ => Self::Other,
        }
    }

    const fn of_protocol(error: ProtocolError) -> Self {
        use owned_io_websocket::Limit;
        match error {
            ProtocolError::Peer(Violation::EndedWithoutClose) => Self::CutOff,
            ProtocolError::Peer(_) => Self::Protocol,
            ProtocolError::Limit { limit: Limit::Memory, .. } => Self::Memory,
            ProtocolError::Limit { .. } => Self::Limit,
            ProtocolError::Timeout(_) => Self::Timeout,
            _ => Self::Other,
        }
    }

    fn of_io(error: &io::Error) -> Self {
        if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<http::Error>()) {
            return Self::of_http(error);
        }
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                Self::Reset
            }
            ErrorKind::UnexpectedEof => Self::CutOff,
            ErrorKind::TimedOut => Self::Timeout,
            ErrorKind::InvalidData => Self::Protocol,
            ErrorKind::OutOfMemory | ErrorKind::QuotaExceeded => Self::Memory,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use owned_io_websocket::{Limit, Timeout};

    use super::*;

    #[test]
    fn each_cause_has_its_number_and_a_label_of_its_own() {
        for (index, cause) in CloseCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
            let same = CloseCause::ALL.iter().filter(|other| other.label() == cause.label());
            assert_eq!(same.count(), 1);
        }
    }

    #[test]
    fn errors_have_causes() {
        let limit = |limit| ProtocolError::Limit { limit, max: 1, got: 2 };
        for (error, cause) in [
            (Error::Protocol(ProtocolError::Peer(Violation::NotMasked)), CloseCause::Protocol),
            (
                Error::Protocol(ProtocolError::Peer(Violation::EndedWithoutClose)),
                CloseCause::CutOff,
            ),
            (Error::Protocol(limit(Limit::Memory)), CloseCause::Memory),
            (Error::Protocol(limit(Limit::Frame)), CloseCause::Limit),
            (Error::Protocol(ProtocolError::Timeout(Timeout::Pong)), CloseCause::Timeout),
            (Error::Io(ErrorKind::ConnectionReset.into()), CloseCause::Reset),
            (Error::Interrupted, CloseCause::Other),
        ] {
            assert_eq!(CloseCause::of(&error), cause, "{error:?}");
        }
        assert_eq!(CloseCause::of(&io::Error::from(ErrorKind::TimedOut)), CloseCause::Timeout);
        let refused = || http::Error::Refused(http::Refusal::NoHost);
        assert_eq!(CloseCause::of(&refused()), CloseCause::Refused);
        assert_eq!(CloseCause::of(&io::Error::from(refused())), CloseCause::Refused);
        let timed_out = http::Error::Io(ErrorKind::TimedOut.into());
        assert_eq!(CloseCause::of(&timed_out), CloseCause::Timeout);
        assert_eq!(CloseCause::of(&std::fmt::Error), CloseCause::Other);
    }
}

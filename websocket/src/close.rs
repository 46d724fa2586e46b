//! [`CloseCode`] and [`CloseFrame`]: why a connection ends.

use std::fmt;

use crate::Violation;
use crate::frame::CONTROL_PAYLOAD_BYTES_MAX;

/// Why a connection is closed (RFC 6455 section 7.4).
///
/// It always may be sent: the codes of the RFC and of its registry up to 1014, and 3000 to 4999 for
/// libraries and applications.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// The connection has fulfilled its purpose.
    pub const NORMAL: Self = Self(1000);
    /// A server shuts down, or a browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// The other side violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// The other side sent a kind of message that is not accepted, for example binary instead of
    /// text.
    pub const UNSUPPORTED: Self = Self(1003);
    /// The other side sent text that is not UTF-8, or data that does not fit the kind of message.
    pub const INVALID_DATA: Self = Self(1007);
    /// The other side violated a rule for which there is no other code.
    pub const POLICY: Self = Self(1008);
    /// A message is larger than accepted.
    pub const TOO_LARGE: Self = Self(1009);
    /// A client needs an extension that the server did not accept.
    pub const EXTENSION_NEEDED: Self = Self(1010);
    /// A server met an unexpected condition and cannot continue.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// A server restarts; reconnect after a while.
    pub const RESTART: Self = Self(1012);
    /// A server is overloaded; reconnect later.
    pub const TRY_AGAIN: Self = Self(1013);
    /// A gateway got an invalid response from the server behind it.
    pub const BAD_GATEWAY: Self = Self(1014);

    /// Returns the code with this number, or `None` if it must not be sent (sections 7.4.1 and
    /// 7.4.2).
    pub const fn new(code: u16) -> Option<Self> {
        match code {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(code)),
            _ => None,
        }
    }

    /// The number of the code.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloseCode({})", self.0)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The content of a close frame (RFC 6455 section 5.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// Why the connection closes. A close frame may have no code.
    pub code: Option<CloseCode>,
    /// The reason as text, for logs: at most 123 bytes. Empty without a code.
    pub reason: &'a str,
}

impl<'a> CloseFrame<'a> {
    /// The longest reason, in bytes.
    pub const REASON_BYTES_MAX: usize = CONTROL_PAYLOAD_BYTES_MAX - 2;

    /// Decodes the payload of a close frame.
    ///
    /// # Errors
    /// The payload is one byte, the code must not be sent, or the reason is not UTF-8.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Violation> {
        let Some((&code, reason)) = payload.split_first_chunk() else {
            return match payload {
                [] => Ok(Self { code: None, reason: "" }),
                _ => Err(Violation::TruncatedCloseCode),
            };
        };
        let code = CloseCode::new(u16::from_be_bytes(code)).ok_or(Violation::ReservedCloseCode)?;
        let reason = std::str::from_utf8(reason).map_err(|_| Violation::CloseReasonNotUtf8)?;
        Ok(Self { code: Some(code), reason })
    }
}

/// The peer's close frame, kept. Its users box it, because most of the time there is none.
#[derive(Debug)]
pub(crate) struct PeerClose {
    code: Option<CloseCode>,
    reason: Box<str>,
}

impl PeerClose {
    pub(crate) fn frame(&self) -> CloseFrame<'_> {
        CloseFrame { code: self.code, reason: &self.reason }
    }
}

impl From<CloseFrame<'_>> for PeerClose {
    fn from(CloseFrame { code, reason }: CloseFrame<'_>) -> Self {
        Self { code, reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_may_be_on_the_wire() {
        let on_wire = |code| CloseCode::new(code).is_some();
        let allowed: Vec<u16> = (0..3000).filter(|code| on_wire(*code)).collect();
        let expected = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014];
        assert_eq!(allowed, expected);
        assert!((3000..5000).all(on_wire) && !(5000..=u16::MAX).any(on_wire));
    }

    #[test]
    fn payloads() {
        let normal = Some(CloseCode::NORMAL);
        assert_eq!(CloseFrame::decode(b""), Ok(CloseFrame { code: None, reason: "" }));
        assert_eq!(CloseFrame::decode(b"\x03\xE8"), Ok(CloseFrame { code: normal, reason: "" }));
        let bye = CloseFrame { code: normal, reason: "bye" };
        assert_eq!(CloseFrame::decode(b"\x03\xE8bye"), Ok(bye));
        assert_eq!(CloseFrame::decode(b"\x03"), Err(Violation::TruncatedCloseCode));
        assert_eq!(CloseFrame::decode(b"\x03\xED"), Err(Violation::ReservedCloseCode));
        assert_eq!(CloseFrame::decode(b"\x03\xE8\xFF"), Err(Violation::CloseReasonNotUtf8));
    }
}

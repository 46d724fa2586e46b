//! [`MessageKind`] and [`Fragment`]: messages, and the frames that they are split into.

use crate::frame::Opcode;

/// The kind of a message (RFC 6455 section 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Text, UTF-8.
    Text,
    /// Binary.
    Binary,
}

/// Which part of a message a frame is (RFC 6455 section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// A message in one frame.
    Whole(MessageKind),
    /// The first of several frames.
    First(MessageKind),
    /// A frame between the first and the last.
    Middle,
    /// The last of several frames.
    Last,
}

impl Fragment {
    /// The opcode of the frame, and whether it is the last of its message.
    #[inline]
    pub(crate) const fn opcode(self) -> (Opcode, bool) {
        match self {
            Self::Whole(kind) => (kind.opcode(), true),
            Self::First(kind) => (kind.opcode(), false),
            Self::Middle => (Opcode::Continuation, false),
            Self::Last => (Opcode::Continuation, true),
        }
    }
}

impl MessageKind {
    #[inline]
    const fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}

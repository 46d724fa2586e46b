//! [`Kind`] and [`Part`]: messages, and the frames that they are split into.

use crate::frame::Opcode;

/// The kind of a message (RFC 6455 section 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Text, UTF-8.
    Text,
    /// Binary.
    Binary,
}

/// Which part of a message a frame is (RFC 6455 section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A message in one frame.
    Whole(Kind),
    /// The first of several frames.
    First(Kind),
    /// A frame between the first and the last.
    Middle,
    /// The last of several frames.
    Last,
}

impl Part {
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

impl Kind {
    #[inline]
    const fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}

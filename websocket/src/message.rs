//! [`Kind`] and [`Part`]: messages, and the frames they are cut into.

use crate::frame::Opcode;

/// What a message is made of (RFC 6455 section 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// UTF-8.
    Text,
    /// Bytes.
    Binary,
}

/// Which part of a message a frame is (RFC 6455 section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A message in one frame.
    Whole(Kind),
    /// The first frame of a message in several.
    First(Kind),
    /// One in between.
    Middle,
    /// The last one.
    Last,
}

impl Part {
    /// The opcode of its frame, and whether that is the last of its message.
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

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

impl Kind {
    #[inline]
    pub(crate) const fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}

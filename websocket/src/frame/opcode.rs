/// What a frame is (RFC 6455 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Goes on with the message that an earlier frame began.
    Continuation = 0x0,
    /// Begins a message of UTF-8 text.
    Text = 0x1,
    /// Begins a message of bytes.
    Binary = 0x2,
    /// Begins or answers the closing handshake.
    Close = 0x8,
    /// Asks for a [`Pong`](Self::Pong).
    Ping = 0x9,
    /// Answers a [`Ping`](Self::Ping), or comes unasked as a sign of life.
    Pong = 0xA,
}

impl Opcode {
    /// The opcode of these four bits; none if the RFC reserves them.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xA => Self::Pong,
            _ => return None,
        })
    }

    /// Whether this is a control frame (section 5.5): short, never fragmented, and allowed between
    /// the fragments of a message.
    #[inline]
    pub const fn is_control(self) -> bool {
        self as u8 & 0x8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_there_and_back() {
        let known = (0..=255).filter_map(Opcode::from_bits);
        let bits: Vec<_> = known.map(|opcode| (opcode as u8, opcode.is_control())).collect();
        let control = [(8, true), (9, true), (10, true)];
        assert_eq!(bits, [[(0, false), (1, false), (2, false)], control].concat());
    }
}

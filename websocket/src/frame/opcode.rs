/// The opcode of a frame (RFC 6455 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Continues the message that an earlier frame began.
    Continuation = 0x0,
    /// Begins a text message, UTF-8.
    Text = 0x1,
    /// Begins a binary message.
    Binary = 0x2,
    /// Begins or answers the closing handshake.
    Close = 0x8,
    /// Requests a [`Pong`](Self::Pong).
    Ping = 0x9,
    /// Answers a [`Ping`](Self::Ping), or is sent unrequested as a heartbeat.
    Pong = 0xA,
}

impl Opcode {
    /// Returns the opcode of these four bits, or `None` if the RFC reserves them.
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

    /// Whether it is a control frame (section 5.5): short, never fragmented, and allowed between
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

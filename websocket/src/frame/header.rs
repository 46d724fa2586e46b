use std::ops::Deref;

use super::Opcode;
use crate::Violation;

/// The header of a frame (RFC 6455 section 5.2).
///
/// ```text
///  first byte           second byte      then
/// +---+------+--------+------+---------+----------------------+-------------------+
/// |FIN|RSV   | opcode | MASK | length  | longer length        | masking key       |
/// |1  |3     | 4      | 1    | 7 bits  | 2 bytes (length 126) | 4 bytes (MASK)    |
/// |   |      |        |      |         | 8 bytes (length 127) |                   |
/// +---+------+--------+------+---------+----------------------+-------------------+
/// ```
///
/// ```
/// use owned_io_websocket::frame::{Header, Opcode};
///
/// let (opcode, payload_bytes) = (Opcode::Binary, 300);
/// let header = Header { fin: true, compressed: false, opcode, key: None, payload_bytes };
/// assert_eq!(&*header.encode(), [0x82, 126, 1, 44]);
/// assert_eq!(Header::decode(&header.encode()), Ok(Some((header, 4))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether the frame is the last of its message.
    pub fin: bool,
    /// Whether the frame begins a compressed message: the first reserved bit, as in RFC 7692
    /// section 6. On other frames the bit is a violation here. Without negotiated compression the
    /// caller has to reject it.
    pub compressed: bool,
    /// The opcode.
    pub opcode: Opcode,
    /// The masking key. A client's frames have one, a server's have none.
    pub key: Option<[u8; 4]>,
    /// The length of the payload, in bytes. Not limited here. A length with the top bit set, which
    /// the RFC forbids, exceeds every limit and is refused for that.
    pub payload_bytes: u64,
}

impl Header {
    /// The length of the longest header, in bytes.
    pub const BYTES_MAX: usize = 14;

    /// The length of [`HeaderBytes::padded`], in bytes.
    pub(crate) const PADDED_BYTES: usize = 16;

    /// Decodes the header at the front of `bytes`. Returns it with its length in bytes, or `None`
    /// if more bytes are needed.
    ///
    /// # Errors
    /// What is wrong for any sender and after any frame: reserved bits (except
    /// [`compressed`](Self::compressed)), reserved opcodes, a length not encoded in the fewest
    /// bytes, and a control frame that is fragmented or longer than 125 bytes.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let &[first, second, ..] = bytes else { return Ok(None) };
        let fin = first & FIN != 0;
        let compressed = first & COMPRESSED != 0;
        if first & RESERVED != 0 {
            return Err(Violation::ReservedBits);
        }
        let Some(opcode) = Opcode::from_bits(first & OPCODE) else {
            return Err(Violation::ReservedOpcode);
        };
        if compressed && !matches!(opcode, Opcode::Text | Opcode::Binary) {
            return Err(Violation::ReservedBits);
        }
        let length = second & LENGTH;
        if opcode.is_control() {
            if !fin {
                return Err(Violation::FragmentedControlFrame);
            }
            if length > CONTROL_PAYLOAD_BYTES_MAX as u8 {
                return Err(Violation::LongControlFrame);
            }
        }

        let (payload_bytes, key_at) = match length {
            LENGTH_16 => {
                let Some(&length) = bytes[2..].first_chunk() else { return Ok(None) };
                let length = u16::from_be_bytes(length);
                if length < LENGTH_16.into() {
                    return Err(Violation::LengthNotMinimal);
                }
                (length.into(), 4)
            }
            LENGTH_64 => {
                let Some(&length) = bytes[2..].first_chunk() else { return Ok(None) };
                let length = u64::from_be_bytes(length);
                if length <= u16::MAX.into() {
                    return Err(Violation::LengthNotMinimal);
                }
                (length, 10)
            }
            short => (short.into(), 2),
        };
        if second & MASKED == 0 {
            return Ok(Some((Self { fin, compressed, opcode, key: None, payload_bytes }, key_at)));
        }
        let Some(&key) = bytes[key_at..].first_chunk() else { return Ok(None) };
        Ok(Some((Self { fin, compressed, opcode, key: Some(key), payload_bytes }, key_at + 4)))
    }

    /// The length of the encoded header, in bytes, without payload.
    #[inline]
    pub const fn encoded_bytes(&self) -> usize {
        let key_bytes = if self.key.is_some() { 4 } else { 0 };
        let length_bytes = match self.payload_bytes {
            0..=125 => 0,
            126..=0xFFFF => 2,
            _ => 8,
        };
        2 + length_bytes + key_bytes
    }

    /// Encodes the header for the wire.
    #[inline]
    pub fn encode(&self) -> HeaderBytes {
        let fin = if self.fin { FIN } else { 0 };
        let compressed = if self.compressed { COMPRESSED } else { 0 };
        let (length, longer, len) = match self.payload_bytes {
            short @ 0..126 => (short as u8, 0, 2),
            middle @ 126..0x1_0000 => (LENGTH_16, middle << 48, 4),
            long => (LENGTH_64, long, 10),
        };
        // Assembled in registers, the first byte lowest. Separate byte stores would stall the wide
        // load that copies them afterwards.
        let mut word = u128::from(fin | compressed | self.opcode as u8)
            | u128::from(length) << 8
            | u128::from(longer.swap_bytes()) << 16;
        let mut header = HeaderBytes { bytes: [0; 16], len };
        if let Some(key) = self.key {
            word |= u128::from(MASKED) << 8;
            word |= u128::from(u32::from_le_bytes(key)) << (8 * len);
            header.len += 4;
        }
        header.bytes = word.to_le_bytes();
        header
    }
}

/// An encoded [`Header`]: 2 to 14 bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    /// Zero after the header.
    bytes: [u8; 16],
    len: u8,
}

impl HeaderBytes {
    /// The header, padded with zeros.
    #[inline]
    pub(crate) const fn padded(&self) -> &[u8; Header::PADDED_BYTES] {
        &self.bytes
    }
}

impl Deref for HeaderBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// The longest payload of a control frame, in bytes (section 5.5).
pub(crate) const CONTROL_PAYLOAD_BYTES_MAX: usize = 125;

pub(crate) const FIN: u8 = 0x80;
/// The first of the three reserved bits.
const COMPRESSED: u8 = 0x40;
/// The other two.
const RESERVED: u8 = 0x30;
const OPCODE: u8 = 0x0F;
pub(crate) const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7F;
/// In place of a length: the length is in the next two bytes.
pub(crate) const LENGTH_16: u8 = 126;
/// In place of a length: the length is in the next eight bytes.
const LENGTH_64: u8 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [u64; 10] =
        [0, 1, 125, 126, 127, 65_535, 65_536, u32::MAX as u64, 1 << 62, u64::MAX];

    #[test]
    fn every_header_there_and_back_and_cut_at_every_byte() {
        let opcodes = (0..=255).filter_map(Opcode::from_bits);
        for (opcode, payload_bytes) in opcodes.flat_map(|o| LENGTHS.map(|length| (o, length))) {
            for (fin, key) in [(true, None), (false, Some([1, 2, 3, 4])), (true, Some([0; 4]))] {
                if opcode.is_control() && (!fin || payload_bytes > 125) {
                    continue;
                }
                let compressed = !fin && opcode == Opcode::Text || fin && opcode == Opcode::Binary;
                let header = Header { fin, compressed, opcode, key, payload_bytes };
                let encoded = header.encode();
                assert_eq!(Header::decode(&encoded), Ok(Some((header, encoded.len()))));
                assert_eq!(header.encoded_bytes(), encoded.len());
                for cut in 0..encoded.len() {
                    assert_eq!(Header::decode(&encoded[..cut]), Ok(None));
                }
            }
        }
    }

    #[test]
    fn every_pair_of_first_bytes_is_a_header_or_a_violation() {
        let step = if cfg!(miri) { 13 } else { 1 };
        let bytes = || (0..=255).step_by(step);
        for (first, second) in bytes().flat_map(|first| bytes().map(move |s| (first, s))) {
            let (fin, opcode, length) = (first & 0x80 != 0, first & 0x0F, second & 0x7F);
            let expected = match opcode {
                _ if first & 0x30 != 0 => Some(Violation::ReservedBits),
                3..=7 | 11..=15 => Some(Violation::ReservedOpcode),
                0 | 8..=10 if first & 0x40 != 0 => Some(Violation::ReservedBits),
                8..=10 if !fin => Some(Violation::FragmentedControlFrame),
                8..=10 if length > 125 => Some(Violation::LongControlFrame),
                _ => None,
            };
            assert_eq!(Header::decode(&[first, second]).err(), expected);
        }
    }

    #[test]
    fn a_length_takes_the_fewest_bytes() {
        let not_minimal = Err(Violation::LengthNotMinimal);
        assert_eq!(Header::decode(&[0x82, 126, 0, 125]), not_minimal);
        assert_eq!(Header::decode(&[0x82, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]), not_minimal);
    }
}

//! [`Template`]: a request whose copies differ in some fields.

use super::super::exchange::Wire;
use super::super::frames::{FrameHeader, KEY};

/// The longest field, in bytes.
const FIELD_BYTES_MAX: usize = 16;

/// A request as it is sent: over WebSocket in a frame, and masked. It is masked once, so that sending a copy costs the
/// same over both. Places in it are counted from the beginning of the message, without the frame's header.
#[derive(Debug)]
pub(in super::super) struct Template {
    bytes: Vec<u8>,
    /// The length of the frame's header.
    header_bytes: usize,
    /// The mask of a field at a place that is 0, 1, 2 or 3 more than a multiple of four.
    masks: [[u8; FIELD_BYTES_MAX]; 4],
}

impl Template {
    /// A request that is this message.
    pub(in super::super) fn new(wire: Wire, message: &[u8]) -> Self {
        let (header, key) = match wire {
            Wire::Tcp => (FrameHeader::default(), [0; 4]),
            Wire::WebSocket => (FrameHeader::of_client(message.len() as u64), KEY),
        };
        let mut bytes = [header.as_slice(), message].concat();
        let header_bytes = header.as_slice().len();
        wire.mask(&mut bytes[header_bytes..]);
        let mask = |phase: usize| std::array::from_fn(|index| key[(phase + index) % key.len()]);
        Self { bytes, header_bytes, masks: std::array::from_fn(mask) }
    }

    /// The request, without its fields.
    pub(in super::super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies the request from `offset` on.
    pub(in super::super) fn copy(&self, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[offset as usize..][..out.len()]);
    }

    /// The part of the message that is in `len` bytes of the request from `offset` on: its first byte, and its end.
    pub(in super::super) fn part(&self, offset: u64, len: usize) -> (usize, usize) {
        let begin = offset as usize;
        let place = |at: usize| at.saturating_sub(self.header_bytes);
        (place(begin), place(begin + len))
    }

    /// Writes the field at a place of the message into `out`, which are the bytes of the request from `offset` on. What
    /// lies outside is left out.
    pub(in super::super) fn put<const N: usize>(
        &self,
        out: &mut [u8],
        offset: u64,
        place: usize,
        mut field: [u8; N],
    ) {
        const { assert!(N <= FIELD_BYTES_MAX) };
        for (byte, mask) in field.iter_mut().zip(&self.masks[place % 4]) {
            *byte ^= mask;
        }
        let (at, offset) = (self.header_bytes + place, offset as usize);
        if at >= offset && at + N <= offset + out.len() {
            out[at - offset..][..N].copy_from_slice(&field);
            return;
        }
        let (begin, end) = (at.max(offset), (at + N).min(offset + out.len()));
        if begin < end {
            out[begin - offset..end - offset].copy_from_slice(&field[begin - at..end - at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::frames;
    use super::*;

    #[test]
    fn fields_are_written_wherever_the_request_is_cut() {
        let message: Vec<u8> = (0..40).collect();
        for wire in [Wire::Tcp, Wire::WebSocket] {
            let template = Template::new(wire, &message);
            for place in 0..32 {
                let mut expected = message.clone();
                expected[place..place + 8].copy_from_slice(&[0xee; 8]);
                let len = template.bytes().len();
                for cut in 0..=len {
                    let mut sent = vec![0; len];
                    for (from, to) in [(0, cut), (cut, len)] {
                        template.copy(from as u64, &mut sent[from..to]);
                        template.put(&mut sent[from..to], from as u64, place, [0xee; 8]);
                    }
                    let mut sent = sent.split_off(template.header_bytes);
                    if wire == Wire::WebSocket {
                        frames::mask(&mut sent);
                    }
                    assert_eq!(sent, expected, "{wire:?}: at {place}, cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn the_part_of_the_message_leaves_out_the_header() {
        let template = Template::new(Wire::WebSocket, &[0; 10]);
        assert_eq!(template.header_bytes, 6);
        assert_eq!(template.part(0, 16), (0, 10));
        assert_eq!(template.part(2, 3), (0, 0));
        assert_eq!(template.part(7, 5), (1, 6));
    }
}

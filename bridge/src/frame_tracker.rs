//! [`FrameTracker`]: which message the peer is sending, and how long it is. tungstenite does not
//! report that.

use owned_io_websocket::frame::Header;

/// Follows the peer's frames from header to header. tungstenite detects invalid frames, and reads
/// no more after one.
#[derive(Default)]
pub(crate) struct FrameTracker {
    /// The bytes of the current header that have arrived.
    header: [u8; Header::BYTES_MAX],
    header_bytes: usize,
    payload_bytes_left: u64,
    /// Whether a frame has arrived that was not the last of its message.
    is_within_message: bool,
    /// The length of the longest frame that has begun, in bytes.
    frame_bytes_longest: u64,
    /// The length of the fragmented message so far, in bytes, including frames that have only
    /// begun.
    fragments_bytes: u64,
    /// The largest value of `fragments_bytes` since the last bytes arrived.
    fragments_bytes_longest: u64,
}

impl FrameTracker {
    /// The length of the longest frame that has begun, in bytes. Control frames are short, and are
    /// ignored.
    pub(crate) const fn frame_bytes_longest(&self) -> u64 {
        self.frame_bytes_longest
    }

    /// The length of the longest fragmented message that the last bytes belong to, in bytes,
    /// including frames that have only begun.
    pub(crate) const fn fragments_bytes_longest(&self) -> u64 {
        self.fragments_bytes_longest
    }

    /// Whether a message or another frame has arrived in part.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.header_bytes > 0 || self.payload_bytes_left > 0 || self.is_within_message
    }

    /// Takes the next received bytes. Returns whether a message or frame
    /// [began](Self::is_under_way) with them.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_begun = false;
        self.fragments_bytes_longest = self.fragments_bytes;
        while !bytes.is_empty() {
            has_begun |= !self.is_under_way();
            let n;
            if self.payload_bytes_left > 0 {
                n = self.payload_bytes_left.min(bytes.len() as u64) as usize;
                self.payload_bytes_left -= n as u64;
            } else {
                n = (self.header_bytes_known() - self.header_bytes).min(bytes.len());
                self.header[self.header_bytes..][..n].copy_from_slice(&bytes[..n]);
                self.header_bytes += n;
                if self.header_bytes > 1 && self.header_bytes == self.header_bytes_known() {
                    self.begin_payload();
                }
            }
            bytes = &bytes[n..];
        }
        has_begun
    }

    /// The length of the header, as far as it is known: its second byte determines it (RFC 6455
    /// section 5.2).
    const fn header_bytes_known(&self) -> usize {
        if self.header_bytes < 2 {
            return 2;
        }
        let length_bytes = match self.header[1] & !MASKED {
            0..LENGTH_16 => 0,
            LENGTH_16 => 2,
            _ => 8,
        };
        let key_bytes = if self.header[1] & MASKED == 0 { 0 } else { 4 };
        2 + length_bytes + key_bytes
    }

    /// The header has arrived completely.
    const fn begin_payload(&mut self) {
        let [first, second, a, b, c, d, e, f, g, h, ..] = self.header;
        self.payload_bytes_left = match second & !MASKED {
            short @ 0..LENGTH_16 => short as u64,
            LENGTH_16 => u16::from_be_bytes([a, b]) as u64,
            _ => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        };
        if first & CONTROL == 0 {
            let is_first = !self.is_within_message;
            self.is_within_message = first & FIN == 0;
            if self.payload_bytes_left > self.frame_bytes_longest {
                self.frame_bytes_longest = self.payload_bytes_left;
            }
            if !is_first || self.is_within_message {
                self.fragments_bytes = self.fragments_bytes.saturating_add(self.payload_bytes_left);
            }
            if self.fragments_bytes > self.fragments_bytes_longest {
                self.fragments_bytes_longest = self.fragments_bytes;
            }
            if !self.is_within_message {
                self.fragments_bytes = 0;
            }
        }
        self.header_bytes = 0;
    }
}

/// In the first byte of a header: the frame is the last of its message.
const FIN: u8 = 0x80;

/// In an opcode: a control frame, which may come between the frames of a message.
const CONTROL: u8 = 0x08;

/// In the second byte: a masking key follows the length.
const MASKED: u8 = 0x80;

/// In place of a length: the length is in the next two bytes. A greater value means the next eight.
const LENGTH_16: u8 = 126;

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames, and whether a message is incomplete after each.
    const FRAMES: [(&[u8], bool); 9] = [
        (b"\x81\x05hello", false),
        (b"\x01\x85keyxhello", true),
        (b"\x89\x00", true),
        (b"\x00\x7E\x00\x03abc", true), // a length that is not in its shortest form
        (b"\x8A\x81keyx!", true),
        (b"\x80\x00", false),
        (b"\x82\x7F\x00\x00\x00\x00\x00\x00\x00\x02ab", false),
        (b"\x89\xFE\x00\x01keyx?", false),
        (b"\x88\x02\x03\xE8", false),
    ];

    #[test]
    fn frames_are_tracked_wherever_the_bytes_are_cut() {
        // For each byte: whether something begins with it, and whether it is incomplete after it.
        let (mut wire, mut expected) = (Vec::new(), Vec::new());
        let mut was_within = false;
        for (frame, is_within) in FRAMES {
            expected.extend((0..frame.len()).map(|at| (at == 0 && !was_within, true)));
            expected.last_mut().unwrap().1 = is_within;
            wire.extend_from_slice(frame);
            was_within = is_within;
        }
        for step in 1..=wire.len() {
            let mut frame_tracker = FrameTracker::default();
            for (bytes, expected) in wire.chunks(step).zip(expected.chunks(step)) {
                assert_eq!(frame_tracker.push(bytes), expected.iter().any(|(begins, _)| *begins));
                assert_eq!(frame_tracker.is_under_way(), expected.last().unwrap().1);
            }
        }
    }

    #[test]
    fn the_longest_frame_and_the_longest_fragmented_message_are_tracked() {
        let mut frame_tracker = FrameTracker::default();
        let longest = |frame_tracker: &FrameTracker| {
            (frame_tracker.frame_bytes_longest(), frame_tracker.fragments_bytes_longest())
        };
        frame_tracker
            .push(b"\x81\x05hello\x01\x03abc\x89\x06ping!!\x80\x04defg\x81\x01x\x01\x02ab");
        assert_eq!(longest(&frame_tracker), (5, 7));
        frame_tracker.push(b"\x89\x00");
        assert_eq!(longest(&frame_tracker), (5, 2), "the message under way");
        frame_tracker.push(&[0x80, 126, 1, 0]);
        assert_eq!(longest(&frame_tracker), (256, 258), "a frame that is only announced counts");
    }

    #[test]
    fn a_frame_of_the_largest_length_is_tracked() {
        let mut frame_tracker = FrameTracker::default();
        assert!(
            frame_tracker.push(&[0x82, 0xFF, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0])
        );
        assert_eq!(frame_tracker.payload_bytes_left, u64::MAX);
        assert!(!frame_tracker.push(&[0; 100]));
        assert_eq!(frame_tracker.payload_bytes_left, u64::MAX - 100);
    }
}

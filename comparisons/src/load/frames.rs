//! WebSocket frames (RFC 6455), independent of the engine that is measured: writes a client's frames, reads a server's.
//! Anything that a server may not send is an error.

use std::str;

/// The masking key of every frame. It is the same for all, so that messages are masked before the run. No byte of it
/// is zero, so that a server that does not unmask is found.
pub(crate) const KEY: [u8; 4] = [0x9d, 0x37, 0x5c, 0xe1];

/// The payload of a control frame is no longer (RFC 6455 5.5).
const CONTROL_BYTES_MAX: u64 = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
/// The reserved bit of a compressed message (RFC 7692 6).
const COMPRESSED: u8 = 0x40;
const CONTROL: u8 = 0x08;
const MASKED: u8 = 0x80;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// The first bytes of a frame: at most 2, a length of 8, and a key of 4.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameHeader {
    bytes: [u8; 14],
    len: usize,
}

impl FrameHeader {
    /// The header of a server's binary message in one frame.
    pub(crate) fn of_server(payload: u64) -> Self {
        Self::new(BINARY, payload)
    }

    /// The header of a client's binary message in one frame.
    pub(crate) fn of_client(payload: u64) -> Self {
        Self::new(BINARY, payload).masked()
    }

    /// The header of a server's compressed text message in one frame.
    pub(crate) fn of_server_compressed(payload: u64) -> Self {
        Self::new(COMPRESSED | TEXT, payload)
    }

    /// The same of a client's.
    pub(crate) fn of_client_compressed(payload: u64) -> Self {
        Self::of_server_compressed(payload).masked()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn new(first: u8, payload: u64) -> Self {
        let mut head = Self::default();
        head.push(&[FIN | first]);
        match payload {
            0..=125 => head.push(&[payload as u8]),
            126..=0xffff => {
                head.push(&[126]);
                head.push(&(payload as u16).to_be_bytes());
            }
            _ => {
                head.push(&[127]);
                head.push(&payload.to_be_bytes());
            }
        }
        head
    }

    fn masked(mut self) -> Self {
        self.bytes[1] |= MASKED;
        self.push(&KEY);
        self
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// How many bytes the header has, as far as the bytes so far tell.
    fn needs(&self) -> usize {
        match (self.len, self.bytes[1]) {
            (0 | 1, _) => 2,
            (_, 126) => 4,
            (_, 127) => 10,
            _ => 2,
        }
    }
}

/// Masks a payload from its beginning, or unmasks it.
pub(crate) fn mask(payload: &mut [u8]) {
    for (byte, key) in payload.iter_mut().zip(KEY.iter().cycle()) {
        *byte ^= key;
    }
}

/// A client's answer to a ping.
pub(crate) fn pong(payload: &[u8]) -> Vec<u8> {
    control(PONG, payload)
}

/// A client's close.
pub(crate) fn close(code: Option<u16>) -> Vec<u8> {
    control(CLOSE, code.map(u16::to_be_bytes).as_ref().map_or(&[], |code| &code[..]))
}

fn control(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = FrameHeader::new(opcode, payload.len() as u64).masked().as_slice().to_vec();
    let begin = frame.len();
    frame.extend_from_slice(payload);
    mask(&mut frame[begin..]);
    frame
}

/// A part of what a server sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameEvent<'a> {
    /// Payload of a message, and whether it is the end of the message.
    Payload(&'a [u8], bool),
    /// With its payload.
    Ping(Vec<u8>),
    Pong,
    /// The code, if it gave one.
    Close(Option<u16>),
}

/// The messages that a server is to send. Others are wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Expected {
    #[default]
    Binary,
    Text,
    CompressedText,
}

/// Reads a server's frames, which may be cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    expected: Expected,
    head: FrameHeader,
    /// The frame whose head is complete.
    frame: Option<Frame>,
    /// A message has begun and not ended.
    in_message: bool,
    /// The payload of a control frame, as far as it has arrived.
    control: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: u8,
    last: bool,
    left: u64,
}

impl Frames {
    pub(crate) fn new(expected: Expected) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Whether the next byte begins a frame outside of any message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.head.len == 0 && self.frame.is_none() && !self.in_message
    }

    /// Takes the next event off `got`; none when there is not enough for one.
    ///
    /// # Errors
    /// What the server violated.
    pub(crate) fn next<'a>(
        &mut self,
        got: &mut &'a [u8],
    ) -> Result<Option<FrameEvent<'a>>, &'static str> {
        let mut frame = match self.frame {
            Some(frame) => frame,
            None => match self.next_frame(got)? {
                Some(frame) => frame,
                None => return Ok(None),
            },
        };
        if frame.left > 0 && got.is_empty() {
            self.frame = Some(frame);
            return Ok(None);
        }
        let len = frame.left.min(got.len() as u64);
        let (part, rest) = got.split_at(len as usize);
        *got = rest;
        frame.left -= len;
        self.frame = (frame.left > 0).then_some(frame);
        let ends = frame.left == 0;
        if frame.opcode & CONTROL == 0 {
            self.in_message = !(ends && frame.last);
            return Ok(Some(FrameEvent::Payload(part, !self.in_message)));
        }
        self.control.extend_from_slice(part);
        if !ends {
            return Ok(None);
        }
        let payload = std::mem::take(&mut self.control);
        Ok(Some(match frame.opcode {
            PING => FrameEvent::Ping(payload),
            PONG => FrameEvent::Pong,
            _ => FrameEvent::Close(close_code(&payload)?),
        }))
    }

    fn next_frame(&mut self, got: &mut &[u8]) -> Result<Option<Frame>, &'static str> {
        while self.head.len < self.head.needs() {
            let Some((byte, rest)) = got.split_first() else { return Ok(None) };
            self.head.push(&[*byte]);
            *got = rest;
        }
        let head = std::mem::take(&mut self.head);
        let frame = Frame::parse(head.as_slice(), self.expected)?;
        match (frame.opcode, self.in_message) {
            (CONTINUATION, false) => return Err("a fragment of no message"),
            (BINARY | TEXT, true) => return Err("a message within a message"),
            _ => {}
        }
        Ok(Some(frame))
    }
}

impl Frame {
    fn parse(head: &[u8], expected: Expected) -> Result<Self, &'static str> {
        let (first, second) = (head[0], head[1]);
        let extended = head[2..].iter().fold(0, |len, byte| len << 8 | u64::from(*byte));
        let (left, least) = match second & !MASKED {
            126 => (extended, 126),
            127 => (extended, 0x1_0000),
            short => (short.into(), 0),
        };
        let opcode = first & 0x0f;
        let frame = Self { opcode, last: first & FIN != 0, left };
        let compressed = expected == Expected::CompressedText;
        let begins_compressed = compressed && matches!(opcode, TEXT | BINARY);
        if first & RESERVED != if begins_compressed { COMPRESSED } else { 0 } {
            return Err(if begins_compressed {
                "a message that is not compressed"
            } else {
                "a frame with a reserved bit"
            });
        }
        if second & MASKED != 0 {
            return Err("a masked frame");
        }
        if left < least || left >> 63 != 0 {
            return Err("a length that is not in its shortest form, or over 2^63");
        }
        if opcode & CONTROL != 0 && (!frame.last || left > CONTROL_BYTES_MAX) {
            return Err("a control frame in fragments, or of more than 125 bytes");
        }
        match opcode {
            CONTINUATION | CLOSE | PING | PONG => Ok(frame),
            BINARY if expected == Expected::Binary => Ok(frame),
            BINARY => Err("a binary message"),
            TEXT if expected != Expected::Binary => Ok(frame),
            TEXT => Err("a text message"),
            _ => Err("a frame with a reserved opcode"),
        }
    }
}

fn close_code(payload: &[u8]) -> Result<Option<u16>, &'static str> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() { Ok(None) } else { Err("a close with half a code") };
    };
    let code = u16::from_be_bytes(*code);
    // RFC 6455 7.4, and what has been registered since.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err("a close with a code that may not be sent");
    }
    if str::from_utf8(reason).is_err() {
        return Err("a close whose reason is not UTF-8");
    }
    Ok(Some(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = FrameHeader::of_server(payload.len() as u64).as_slice().to_vec();
        frame[0] = first;
        frame.extend_from_slice(payload);
        frame
    }

    /// The messages, each followed by what else came up to its end.
    fn read(chunks: &[&[u8]]) -> Result<Vec<String>, &'static str> {
        let mut frames = Frames::default();
        let (mut seen, mut message) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let mut got = *chunk;
            loop {
                match frames.next(&mut got)? {
                    None => break,
                    Some(FrameEvent::Payload(part, last)) => {
                        message.extend_from_slice(part);
                        if last {
                            seen.push(String::from_utf8(std::mem::take(&mut message)).unwrap());
                        }
                    }
                    Some(other) => seen.push(format!("{other:?}")),
                }
            }
        }
        assert!(frames.is_between_messages());
        Ok(seen)
    }

    #[test]
    fn the_heads_of_all_lengths() {
        for (payload, head) in [
            (0, &[0x82, 0][..]),
            (125, &[0x82, 125]),
            (126, &[0x82, 126, 0, 126]),
            (0xffff, &[0x82, 126, 0xff, 0xff]),
            (0x1_0000, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            assert_eq!(FrameHeader::of_server(payload).as_slice(), head);
            let client = FrameHeader::of_client(payload);
            let (begin, key) = client.as_slice().split_at(head.len());
            assert_eq!((begin[0], begin[1], &begin[2..]), (0x82, head[1] | 0x80, &head[2..]));
            assert_eq!(key, KEY);
            let frame = Frame::parse(head, Expected::Binary).unwrap();
            assert_eq!((frame.left, frame.opcode, frame.last), (payload, BINARY, true));
        }
        assert_eq!(pong(b"ab"), [0x8a, 0x82, 0x9d, 0x37, 0x5c, 0xe1, 0x9d ^ b'a', 0x37 ^ b'b']);
        assert_eq!(close(Some(1000)).len(), 8);
        assert_eq!(close(None).len(), 6);
    }

    #[test]
    fn messages_fragments_and_controls_cut_anywhere() {
        let stream = [
            frame(0x82, b"one"),
            frame(0x02, b"tw"),
            frame(0x89, b"ping"),
            frame(0x00, b""),
            frame(0x80, b"o"),
            frame(0x8a, b""),
            frame(0x82, b""),
            frame(0x82, &[b'x'; 300]),
            frame(0x88, &[3, 232, b'b', b'y', b'e']),
        ]
        .concat();
        let ping = format!("{:?}", FrameEvent::Ping(b"ping".to_vec()));
        let long = "x".repeat(300);
        let seen = ["one", &ping, "two", "Pong", "", &long, "Close(Some(1000))"];
        for cut in 0..=stream.len() {
            let (first, second) = stream.split_at(cut);
            assert_eq!(read(&[first, second]).unwrap(), seen, "cut at {cut}");
        }
        assert_eq!(read(&stream.chunks(1).collect::<Vec<_>>()).unwrap(), seen);
    }

    #[test]
    fn frames_a_server_may_not_send() {
        for (bytes, what) in [
            (&[0x81, 1, b'a'][..], "text"),
            (&[0xc2, 0], "reserved bit"),
            (&[0x83, 0], "reserved opcode"),
            (&[0x82, 0x81, 0, 0, 0, 0, b'a'], "masked"),
            (&[0x82, 126, 0, 125], "shortest"),
            (&[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff], "shortest"),
            (&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], "shortest"),
            (&[0x09, 0], "control frame"),
            (&[0x89, 126, 0, 126], "control frame"),
            (&[0x80, 0], "fragment of no message"),
            (&[0x02, 0, 0x82, 0], "within a message"),
            (&[0x88, 1, 3], "half a code"),
            (&[0x88, 2, 3, 237], "may not be sent"),
            (&[0x88, 3, 3, 232, 0xff], "UTF-8"),
        ] {
            let error = read(&[bytes]).unwrap_err();
            assert!(error.contains(what), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn compressed_messages_and_no_others() {
        let first = |bytes: &[u8]| {
            let mut frames = Frames::new(Expected::CompressedText);
            let message = FrameEvent::Payload(b"a", true);
            frames.next(&mut &*bytes).map(|piece| piece == Some(message))
        };
        assert_eq!(first(&[0xc1, 1, b'a']), Ok(true));
        assert_eq!(FrameHeader::of_server_compressed(1).as_slice(), [0xc1, 1]);
        assert_eq!(first(&[0x81, 1, b'a']), Err("a message that is not compressed"));
        assert_eq!(first(&[0xc2, 1, b'a']), Err("a binary message"));
        assert_eq!(first(&[0xe1, 1, b'a']), Err("a message that is not compressed"));
        assert_eq!(first(&[0xc9, 0]), Err("a frame with a reserved bit"));
    }

    #[test]
    fn plain_text_and_no_other_messages() {
        let first = |bytes: &[u8]| {
            let mut frames = Frames::new(Expected::Text);
            let message = FrameEvent::Payload(b"a", true);
            frames.next(&mut &*bytes).map(|piece| piece == Some(message))
        };
        assert_eq!(first(&[0x81, 1, b'a']), Ok(true));
        assert_eq!(first(&[0x82, 1, b'a']), Err("a binary message"));
        assert_eq!(first(&[0xc1, 1, b'a']), Err("a frame with a reserved bit"));
    }
}

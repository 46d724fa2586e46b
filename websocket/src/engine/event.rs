use std::fmt;

use crate::{CloseFrame, Kind};

/// What [`Receiver::decode`](super::Receiver::decode) made of the front of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded<'b> {
    /// How many bytes at the front of the buffer are done with once `event` is, the event's own
    /// payload included.
    pub consumed: usize,
    /// What they were; none if more bytes are needed to tell.
    pub event: Option<Event<'b>>,
}

/// What the peer sent. Payloads are unmasked, in the buffer they were received in.
#[derive(PartialEq, Eq)]
pub enum Event<'b> {
    /// A message of text, in one frame.
    Text(&'b mut str),
    /// A message of bytes, in one frame.
    Binary(&'b mut [u8]),
    /// A piece of a message that comes in several frames, in one that is
    /// [too long](super::Receiver::set_whole_frame_bytes_max) to come out whole, or compressed.
    Piece(Piece<'b>),
    /// A ping. Its answer is queued already; unless that is taken by
    /// [`poll_control`](super::Sender::poll_control) before the next ping comes, the next one's
    /// replaces it.
    Ping(&'b [u8]),
    /// A pong, asked for or not.
    Pong(&'b [u8]),
    /// The peer closes: the last event. Its answer is queued already.
    Close(CloseFrame<'b>),
}

/// A piece of a message. Other pieces may come before and after it, and control frames in between;
/// pieces of another message may not.
#[derive(PartialEq, Eq)]
pub struct Piece<'b> {
    /// What the message is. Of text, a piece can end within a character, and is otherwise known to
    /// be UTF-8; unless it is compressed.
    pub kind: Kind,
    /// Whether the message is compressed, and the payload as it came: only where that was
    /// [agreed on](super::Receiver::expect_compressed).
    pub compressed: bool,
    /// The next bytes of the message: maybe none.
    pub payload: &'b mut [u8],
    /// Whether the message begins with this piece.
    pub first: bool,
    /// Whether the message ends with this piece.
    pub last: bool,
    /// How many bytes of this piece's frame are still to come. If there are any, they come first, and
    /// with no other frame in between.
    pub frame_bytes_left: usize,
}

impl fmt::Debug for Event<'_> {
    /// How long the payload is, not what it is: that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Binary(payload) => write!(f, "Binary({} bytes)", payload.len()),
            Self::Piece(piece) => piece.fmt(f),
            Self::Ping(payload) => write!(f, "Ping({} bytes)", payload.len()),
            Self::Pong(payload) => write!(f, "Pong({} bytes)", payload.len()),
            Self::Close(frame) => frame.fmt(f),
        }
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, compressed, payload, first, last, frame_bytes_left } = self;
        f.debug_struct("Piece")
            .field("kind", kind)
            .field("compressed", compressed)
            .field("payload_bytes", &payload.len())
            .field("first", first)
            .field("last", last)
            .field("frame_bytes_left", frame_bytes_left)
            .finish()
    }
}

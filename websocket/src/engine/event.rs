use std::fmt;

use crate::{CloseFrame, MessageKind};

/// The result of [`Receiver::decode`](super::Receiver::decode) for the front of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded<'b> {
    /// The number of bytes to remove from the front of the buffer once `event` has been used. They
    /// include the payload of the event.
    pub consumed: usize,
    /// What was decoded; `None` if more bytes are needed.
    pub event: Option<Event<'b>>,
}

/// What the peer sent. Payloads are unmasked, and lie in the buffer that they were received in.
#[derive(PartialEq, Eq)]
pub enum Event<'b> {
    /// A text message in one frame.
    Text(&'b mut str),
    /// A binary message in one frame.
    Binary(&'b mut [u8]),
    /// A piece of a message. The message has several frames, or is compressed, or its frame is [too
    /// long](super::Receiver::set_whole_frame_bytes_max) to be handed out whole.
    Piece(Piece<'b>),
    /// A ping. Its pong is queued already. If another ping arrives before
    /// [`poll_control`](super::Sender::poll_control) takes the pong, the pong of that one replaces
    /// it.
    Ping(&'b [u8]),
    /// A pong, requested or not.
    Pong(&'b [u8]),
    /// The peer's close frame, which is the last event. Its answer is queued already.
    Close(CloseFrame<'b>),
}

/// A piece of a message. Other pieces of the same message may come before and after it, with
/// control frames between them. Messages do not interleave.
#[derive(PartialEq, Eq)]
pub struct Piece<'b> {
    /// Whether the message is text or binary. Uncompressed text is valid UTF-8 over all its pieces,
    /// but a piece may end within a character. Compressed text is not checked.
    pub kind: MessageKind,
    /// Whether the message is compressed. The payload is then still compressed. Only if compression
    /// was [allowed](super::Receiver::allow_compressed).
    pub compressed: bool,
    /// The next bytes of the message; may be empty.
    pub payload: &'b mut [u8],
    /// Whether the message begins with this piece.
    pub first: bool,
    /// Whether the message ends with this piece.
    pub last: bool,
    /// How many bytes of the piece's frame are still to arrive. They come next, with no other frame
    /// between.
    pub frame_bytes_left: usize,
}

impl fmt::Debug for Event<'_> {
    /// Prints the length of the payload, not the payload: it may be secret.
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

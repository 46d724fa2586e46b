//! [`BodyDecoder`]: finds the content of a body (RFC 9112 sections 6 and 7.1).

use std::ops::Range;

use super::Refusal;
use super::head::is_token_byte;
use super::request::BodyLength;

/// The longest chunk extensions of a body, in bytes. More are answered 413. No known client sends any, and each byte
/// of content could otherwise cost a long line.
pub const CHUNK_EXTENSIONS_BYTES_MAX: usize = 4096;

/// The longest trailers of a body, with their line ends, in bytes. More are answered 431. They are checked and
/// ignored.
pub const TRAILERS_BYTES_MAX: usize = 4096;

/// The most hexadecimal digits of a chunk's size: those of 64 bits, with leading zeros.
const SIZE_DIGITS_MAX: u8 = 16;

/// What [`decode_body`](super::Decoder::decode_body) or a [`BodyDecoder`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPiece {
    /// How many of the bytes belong to the body, with the framing of its chunks. Do not pass them again.
    pub consumed: usize,
    /// Where in the bytes the content is. Empty if there is none among them.
    pub content: Range<usize>,
}

/// Decodes one body. A [`Decoder`](super::Decoder) has one for each request. A client uses it for the bodies of
/// responses, which have the same framing.
///
/// ```
/// use owned_io_http::engine::{BodyDecoder, BodyLength};
///
/// let received = b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
/// let (mut decoder, mut content, mut at) = (BodyDecoder::new(BodyLength::Chunked, 3), Vec::new(), 0);
/// while !decoder.is_at_end() {
///     let piece = decoder.decode(&received[at..])?;
///     content.extend_from_slice(&received[at..][piece.content]);
///     at += piece.consumed;
/// }
/// assert_eq!(content, b"abc");
/// # Ok::<(), owned_io_http::Refusal>(())
/// ```
#[derive(Debug)]
pub struct BodyDecoder {
    framing: Framing,
}

#[derive(Debug)]
enum Framing {
    /// This many bytes are left.
    Exact(u64),
    Chunked(Chunked),
}

/// It examines the framing byte by byte, so a part of a line can be consumed.
#[derive(Debug)]
struct Chunked {
    state: State,
    /// How much more content the body may have.
    content_bytes_left: u64,
    extensions_bytes_left: usize,
    trailers_bytes_left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size {
        size: u64,
        digits: u8,
    },
    /// Spaces behind the size, before an extension (BWS).
    SpaceAfterSize {
        size: u64,
    },
    /// Behind the semicolon. A name has to follow.
    ExtensionStart {
        size: u64,
    },
    Extension {
        size: u64,
    },
    /// LF has to follow.
    SizeLf {
        size: u64,
    },
    Content {
        left: u64,
    },
    ContentCr,
    ContentLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    End,
}

impl BodyDecoder {
    /// A decoder for a body of this length. One in chunks has at most `content_bytes_max` bytes of content.
    pub const fn new(length: BodyLength, content_bytes_max: u64) -> Self {
        let framing = match length {
            BodyLength::Exact(bytes) => Framing::Exact(bytes),
            BodyLength::Chunked => Framing::Chunked(Chunked {
                state: State::Size { size: 0, digits: 0 },
                content_bytes_left: content_bytes_max,
                extensions_bytes_left: CHUNK_EXTENSIONS_BYTES_MAX,
                trailers_bytes_left: TRAILERS_BYTES_MAX,
            }),
        };
        Self { framing }
    }

    /// Whether the body is complete.
    pub fn is_at_end(&self) -> bool {
        match &self.framing {
            Framing::Exact(left) => *left == 0,
            Framing::Chunked(chunked) => chunked.state == State::End,
        }
    }

    /// The bytes that certainly follow. Chunks may follow them.
    pub const fn bytes_left_min(&self) -> u64 {
        match &self.framing {
            Framing::Exact(left) => *left,
            Framing::Chunked(chunked) => match chunked.state {
                State::Content { left } => left,
                _ => 0,
            },
        }
    }

    /// Finds the next content in `bytes`. Without any, all bytes are consumed, or the body is at its end.
    ///
    /// # Errors
    /// The body is malformed or too long. Do not call it again.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<BodyPiece, Refusal> {
        match &mut self.framing {
            Framing::Exact(left) => {
                let len = within(*left, bytes.len());
                *left -= len as u64;
                Ok(BodyPiece { consumed: len, content: 0..len })
            }
            Framing::Chunked(chunked) => chunked.decode(bytes),
        }
    }
}

impl Chunked {
    fn decode(&mut self, bytes: &[u8]) -> Result<BodyPiece, Refusal> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::End {
            if let State::Content { left } = self.state {
                let content = at..at + within(left, bytes.len() - at);
                let left = left - content.len() as u64;
                self.state = if left > 0 { State::Content { left } } else { State::ContentCr };
                return Ok(BodyPiece { consumed: content.end, content });
            }
            self.state = self.next(bytes[at])?;
            at += 1;
        }
        Ok(BodyPiece { consumed: at, content: at..at })
    }

    /// The state after `byte`, which is not content.
    fn next(&mut self, byte: u8) -> Result<State, Refusal> {
        match (self.state, byte) {
            (State::Size { size, digits }, _) => match (char::from(byte).to_digit(16), byte) {
                (Some(_), _) if digits == SIZE_DIGITS_MAX => Err(Refusal::ChunkSize),
                (Some(digit), _) => {
                    Ok(State::Size { size: (size << 4) | u64::from(digit), digits: digits + 1 })
                }
                (None, _) if digits == 0 => Err(Refusal::ChunkSize),
                (None, b'\r') => Ok(State::SizeLf { size }),
                (None, b'\n') => Err(Refusal::BareLf),
                (None, b';') => self.extension(State::ExtensionStart { size }),
                (None, b' ' | b'\t') => self.extension(State::SpaceAfterSize { size }),
                (None, _) => Err(Refusal::ChunkSize),
            },
            (State::SpaceAfterSize { size }, b';') => {
                self.extension(State::ExtensionStart { size })
            }
            (state @ State::SpaceAfterSize { .. }, b' ' | b'\t') => self.extension(state),
            (State::SpaceAfterSize { .. }, _) => Err(Refusal::ChunkSize),
            (state @ State::ExtensionStart { .. }, b' ' | b'\t') => self.extension(state),
            (State::ExtensionStart { size }, _) if is_token_byte(byte) => {
                self.extension(State::Extension { size })
            }
            (State::Extension { size }, b'\r') => Ok(State::SizeLf { size }),
            (State::ExtensionStart { .. } | State::Extension { .. }, b'\n') => Err(Refusal::BareLf),
            (state @ State::Extension { .. }, _) if is_value_byte(byte) => self.extension(state),
            (State::ExtensionStart { .. } | State::Extension { .. }, _) => {
                Err(Refusal::ChunkExtension)
            }
            (State::SizeLf { size }, b'\n') => self.begin_content(size),
            (State::ContentCr, b'\r') => Ok(State::ContentLf),
            (State::ContentLf, b'\n') => Ok(State::Size { size: 0, digits: 0 }),
            (State::ContentCr | State::ContentLf, _) => Err(Refusal::ChunkEnd),
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::TrailerStart | State::TrailerName, _) if is_token_byte(byte) => {
                self.trailer(State::TrailerName)
            }
            (State::TrailerName, b':') => self.trailer(State::TrailerValue),
            (State::TrailerStart | State::TrailerName | State::TrailerValue, b'\n') => {
                Err(Refusal::BareLf)
            }
            (State::TrailerStart | State::TrailerName, _) => Err(Refusal::Trailer),
            (State::TrailerValue, b'\r') => self.trailer(State::TrailerLf),
            (State::TrailerValue, _) if is_value_byte(byte) => self.trailer(State::TrailerValue),
            (State::TrailerValue, _) => Err(Refusal::Trailer),
            (State::TrailerLf, b'\n') => self.trailer(State::TrailerStart),
            (State::EndLf, b'\n') => Ok(State::End),
            (State::SizeLf { .. } | State::TrailerLf | State::EndLf, _) => Err(Refusal::BareCr),
            (state @ (State::Content { .. } | State::End), _) => Ok(state), // not called then
        }
    }

    const fn begin_content(&mut self, size: u64) -> Result<State, Refusal> {
        let Some(left) = self.content_bytes_left.checked_sub(size) else {
            return Err(Refusal::BodyTooLarge);
        };
        self.content_bytes_left = left;
        match size {
            0 => Ok(State::TrailerStart),
            _ => Ok(State::Content { left: size }),
        }
    }

    /// Counts a byte of an extension.
    const fn extension(&mut self, next: State) -> Result<State, Refusal> {
        match self.extensions_bytes_left.checked_sub(1) {
            Some(left) => self.extensions_bytes_left = left,
            None => return Err(Refusal::ChunkExtensionsTooLarge),
        }
        Ok(next)
    }

    /// Counts a byte of a trailer.
    const fn trailer(&mut self, next: State) -> Result<State, Refusal> {
        match self.trailers_bytes_left.checked_sub(1) {
            Some(left) => self.trailers_bytes_left = left,
            None => return Err(Refusal::TrailersTooLarge),
        }
        Ok(next)
    }
}

/// Whether a field value may contain `byte` (RFC 9110 section 5.5).
const fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// The least of both.
fn within(left: u64, len: usize) -> usize {
    usize::try_from(left).map_or(len, |left| left.min(len))
}

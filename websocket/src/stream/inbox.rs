//! [`Inbox`]: what was read, and what it turns out to be.

use std::mem;
use std::ops::Range;

use owned_io::{IoBufMut, PoolBuf};

use super::{Buffers, Message};
use crate::{Control, Decoded, Error, Event, Kind, Piece, Receiver, Violation};

/// The bytes that are received and not yet consumed, and the message that is being assembled.
pub(super) struct Inbox {
    receiver: Receiver,
    buffers: Buffers,
    buf: Option<PoolBuf>,
    /// How much of `buf` is consumed. If that is all, it is given up when more is asked for.
    at: usize,
    assembly: Option<Assembly>,
    /// Of the frame that comes in pieces, how many bytes are missing. None of them is in `buf`.
    frame_bytes_left: usize,
    /// Whether the peer's close frame has come.
    is_closed: bool,
}

/// What there is to receive.
pub(super) enum Step {
    /// A message in the buffer: [`Inbox::message`].
    Message,
    /// One that is assembled: [`Inbox::assembled`].
    Assembled,
    /// Nothing before more is read.
    Starved,
    /// Nothing any more.
    Closed,
}

/// What the next frame, or a part of it, is.
pub(super) enum Next {
    Piece(Found),
    Control,
    Starved,
    Closed,
}

/// Where a [`Piece`] is.
pub(super) struct Found {
    kind: Kind,
    payload: Range<usize>,
    first: bool,
    last: bool,
    frame_bytes_left: usize,
}

/// What is to be read into.
pub(super) enum Room {
    /// Any buffer.
    Any,
    /// Behind what this holds.
    Behind(PoolBuf),
    /// At most so many bytes, behind what this holds: for [`Inbox::put_direct`].
    Direct(Vec<u8>, usize),
}

/// A message that is put together, or was, and is handed out.
struct Assembly {
    kind: Kind,
    bytes: Vec<u8>,
    is_whole: bool,
    is_handed_out: bool,
    promised: usize,
    buffers: Buffers,
}

impl Inbox {
    pub(super) fn new(receiver: Receiver, buffers: Buffers) -> Self {
        Self {
            receiver,
            buffers,
            buf: None,
            at: 0,
            assembly: None,
            frame_bytes_left: 0,
            is_closed: false,
        }
    }

    /// Looks at what comes next, up to a message, which may be put together of several pieces.
    #[inline]
    pub(super) fn step(&mut self, control: &Control) -> Result<Step, Error> {
        match &mut self.assembly {
            Some(assembly) if assembly.is_handed_out => self.assembly = None,
            Some(assembly) if assembly.is_whole => return Ok(Step::Assembled),
            _ => {}
        }
        loop {
            if let Some(buf) = &self.buf
                && self.receiver.is_message(&buf[self.at..])
            {
                return Ok(Step::Message);
            }
            match self.next(control)? {
                Next::Control => {}
                Next::Starved => return Ok(Step::Starved),
                Next::Closed => return Ok(Step::Closed),
                Next::Piece(found) => {
                    if self.assemble(control, &found)? {
                        return Ok(Step::Assembled);
                    }
                }
            }
        }
    }

    /// The message in the buffer that [`Step::Message`] tells of.
    #[inline]
    pub(super) fn message(&mut self, control: &Control) -> Result<Message<'_>, Error> {
        let buf = self.buf.as_deref_mut().unwrap_or_default();
        let Decoded { consumed, event } = self.receiver.decode(control, &mut buf[self.at..])?;
        self.at += consumed;
        match event {
            Some(Event::Text(text)) => Ok(Message::Text(text)),
            Some(Event::Binary(payload)) => Ok(Message::Binary(payload)),
            event => unreachable!("{event:?} is no message"),
        }
    }

    /// The message that [`Step::Assembled`] tells of.
    pub(super) fn assembled(&mut self) -> Result<Message<'_>, Error> {
        let assembly = self.assembly.as_mut().expect("it is assembled");
        assembly.is_handed_out = true;
        Ok(match assembly.kind {
            Kind::Binary => Message::Binary(&assembly.bytes),
            // All its pieces were UTF-8 already, as far as one can tell of pieces.
            Kind::Text => Message::Text(
                simdutf8::basic::from_utf8(&assembly.bytes).map_err(|_| Violation::TextNotUtf8)?,
            ),
        })
    }

    /// Decodes one frame, or a piece of one.
    pub(super) fn next(&mut self, control: &Control) -> Result<Next, Error> {
        if self.is_closed {
            return Ok(Next::Closed);
        }
        let Some(buf) = self.buf.as_mut().filter(|buf| self.at < buf.len()) else {
            self.buf = None;
            return Ok(Next::Starved);
        };
        let Decoded { consumed, event } = self.receiver.decode(control, &mut buf[self.at..])?;
        self.at += consumed;
        let end = self.at;
        let found = |kind, payload: &[u8]| Found {
            kind,
            payload: end - payload.len()..end,
            first: true,
            last: true,
            frame_bytes_left: 0,
        };
        Ok(match event {
            None => Next::Starved,
            Some(Event::Ping(_) | Event::Pong(_)) => Next::Control,
            Some(Event::Close(_)) => {
                self.is_closed = true;
                Next::Closed
            }
            Some(Event::Text(text)) => Next::Piece(found(Kind::Text, text.as_bytes())),
            Some(Event::Binary(payload)) => Next::Piece(found(Kind::Binary, payload)),
            Some(Event::Piece(Piece { kind, payload, first, last, frame_bytes_left })) => {
                self.frame_bytes_left = frame_bytes_left;
                Next::Piece(Found { first, last, frame_bytes_left, ..found(kind, payload) })
            }
        })
    }

    /// The piece that [`Next::Piece`] tells of.
    pub(super) fn piece(&mut self, found: Found) -> Piece<'_> {
        let Found { kind, payload, first, last, frame_bytes_left } = found;
        let buf = self.buf.as_deref_mut().unwrap_or_default();
        Piece { kind, payload: &mut buf[payload], first, last, frame_bytes_left }
    }

    /// Where the next bytes go. What was consumed is given up, and its buffer with it.
    ///
    /// To be followed by [`put`](Self::put), or by [`put_direct`](Self::put_direct).
    pub(super) fn room(&mut self) -> Room {
        let at = mem::take(&mut self.at);
        if let Some(buf) = self.buf.take()
            && at < buf.len()
        {
            return Room::Behind(self.moved_to_front(buf, at));
        }
        match &mut self.assembly {
            Some(assembly) if self.frame_bytes_left > 0 => {
                Room::Direct(mem::take(&mut assembly.bytes), self.frame_bytes_left)
            }
            _ => Room::Any,
        }
    }

    /// Takes what was read, empty or not.
    pub(super) fn put(&mut self, buf: PoolBuf) {
        self.buf = Some(buf);
    }

    /// Takes what was read, of which the first bytes are consumed.
    pub(super) fn put_from(&mut self, buf: PoolBuf, at: usize) {
        if at < buf.len() {
            self.put(buf);
            self.at = at;
        }
    }

    /// Takes what was read behind the message that is being assembled, whose last `read` bytes are
    /// new.
    pub(super) fn put_direct(
        &mut self,
        control: &Control,
        mut bytes: Vec<u8>,
        read: usize,
    ) -> Result<(), Error> {
        let assembly = self.assembly.as_mut().expect("its bytes were taken");
        let start = bytes.len() - read;
        let decoded = self.receiver.decode(control, &mut bytes[start..]);
        if let Ok(Decoded { event: Some(Event::Piece(piece)), .. }) = &decoded {
            self.frame_bytes_left = piece.frame_bytes_left;
            assembly.is_whole = piece.last;
        }
        let result = decoded.map(drop);
        assembly.bytes = bytes;
        result
    }

    /// What is left of `buf` from `at` on, at its front, so that a whole frame fits behind it. By way of
    /// another buffer, because bytes cannot be taken from the front of one; what is left is the start
    /// of a frame, and short as a rule.
    fn moved_to_front(&self, mut buf: PoolBuf, at: usize) -> PoolBuf {
        if at > 0 {
            let mut rest = self.buffers.take();
            rest.extend_from_slice(&buf[at..]);
            buf.buf_fill(&rest);
            self.buffers.give(rest);
        }
        buf
    }

    /// Adds a piece to its message. Whether that is whole now.
    fn assemble(&mut self, control: &Control, found: &Found) -> Result<bool, Error> {
        let buf = self.buf.as_deref().unwrap_or_default();
        let announced = found.payload.len() + found.frame_bytes_left;
        let assembly =
            self.assembly.get_or_insert_with(|| Assembly::new(found.kind, self.buffers.clone()));
        assembly.announce(announced).map_err(|error| control.fail(error))?;
        assembly.bytes.extend_from_slice(&buf[found.payload.clone()]);
        assembly.is_whole = found.last;
        Ok(found.last)
    }
}

impl Assembly {
    fn new(kind: Kind, buffers: Buffers) -> Self {
        let bytes = buffers.take();
        Self { kind, bytes, is_whole: false, is_handed_out: false, promised: 0, buffers }
    }

    /// So many bytes are to come.
    fn announce(&mut self, bytes: usize) -> Result<(), Error> {
        self.buffers.promise(bytes)?;
        self.promised += bytes;
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(bytes);
        } else {
            self.bytes.reserve(bytes);
        }
        Ok(())
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.buffers.release(self.promised);
        self.buffers.give(mem::take(&mut self.bytes));
    }
}

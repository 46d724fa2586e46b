//! [`Inbox`]: what was read, and what it turns out to be.

use std::mem;
use std::ops::Range;

use owned_io::{IoBufMut, PoolBuf};

use super::assembly::Assembly;
use super::compression::Inflation;
use super::shared::Shared;
use super::{Buffers, Message, Received};
use crate::close::PeerClose;
use crate::{CloseFrame, Decoded, Error, Event, Kind, Piece, Receiver};

/// The bytes that are received and not yet consumed, and the message that is being assembled.
pub(super) struct Inbox {
    receiver: Receiver,
    buffers: Buffers,
    buf: Option<PoolBuf>,
    /// How much of `buf` is consumed. If that is all, it is given up when more is asked for.
    at: usize,
    assembly: Option<Assembly>,
    /// Whether the transport has read once more since the start of what is under way was checked: it had
    /// that start in its hands then, as a rule.
    spans_reads: bool,
    /// Of the frame that comes in pieces, how many bytes are missing. None of them is in `buf`.
    frame_bytes_left: usize,
    /// The peer's close frame, if it has come.
    peer_close: Option<Box<PeerClose>>,
    /// None: no message comes compressed.
    inflation: Option<Box<Inflation>>,
}

/// What comes next.
pub(super) enum Next {
    Found(Found),
    /// Nothing before more is read.
    Starved,
    /// Nothing any more.
    Closed,
}

/// A message, or a piece of one, that is there to be handed out.
pub(super) struct Found {
    kind: Kind,
    place: Place,
    first: bool,
    last: bool,
}

enum Place {
    /// This part of the buffer.
    Buffer(Range<usize>),
    /// The same, but it is yet to be decompressed.
    Compressed(Range<usize>),
    /// All of the assembly.
    Assembly,
}

/// What is to be read into.
pub(super) enum Room {
    /// Behind what this holds.
    Behind(PoolBuf),
    /// At most so many bytes, behind what this holds: for [`Inbox::put_direct`].
    Direct(Vec<u8>, usize),
}

impl Inbox {
    pub(super) fn new(
        receiver: Receiver,
        buffers: Buffers,
        inflation: Option<Box<Inflation>>,
    ) -> Self {
        Self {
            receiver,
            buffers,
            buf: None,
            at: 0,
            assembly: None,
            spans_reads: false,
            frame_bytes_left: 0,
            peer_close: None,
            inflation,
        }
    }

    /// Looks for a message, which may have to be put together of several pieces. What is left of one
    /// whose first piece was handed out is passed over.
    #[inline]
    pub(super) fn next_message(&mut self, shared: &Shared) -> Result<Next, Error> {
        if self.is_starved(shared) {
            return Ok(Next::Starved);
        }
        if let Some(assembled) = self.assembled(shared)?
            && assembled.last
        {
            return Ok(Next::Found(assembled));
        }
        if self.assembly.is_none()
            && let Some(buf) = &mut self.buf
            && let Some((kind, payload)) =
                self.receiver.decode_whole(&shared.control, &mut buf[self.at..])
        {
            let place = Place::Buffer(self.at + payload.start..self.at + payload.end);
            self.at += payload.end;
            return Ok(Next::Found(Found { kind, place, first: true, last: true }));
        }
        loop {
            match self.decode(shared)? {
                Next::Found(found) if found.is_message() => return Ok(Next::Found(found)),
                Next::Found(piece) if !piece.first && self.assembly.is_none() => {
                    self.pass_over(shared, piece)?;
                }
                Next::Found(piece) => {
                    if let Some(assembled) = self.assemble(shared, piece)? {
                        return Ok(Next::Found(assembled));
                    }
                }
                other => return Ok(other),
            }
        }
    }

    /// Looks for a piece of a message: the first may be what was put together of it already.
    pub(super) fn next_piece(&mut self, shared: &Shared) -> Result<Next, Error> {
        if let Some(assembled) = self.assembled(shared)? {
            return Ok(Next::Found(assembled));
        }
        let next = self.decode(shared)?;
        let Next::Found(piece @ Found { place: Place::Compressed(_), .. }) = next else {
            return Ok(next);
        };
        let Found { kind, first, last, .. } = piece;
        self.assemble(shared, piece)?;
        Ok(Next::Found(Found { kind, place: Place::Assembly, first, last }))
    }

    /// The message that was found.
    ///
    /// # Panics
    /// If it is text, and the transport changed what it had received of it.
    #[inline]
    pub(super) fn message(&mut self, found: Found) -> Message<'_> {
        let kind = found.kind;
        let is_exposed = self.spans_reads && matches!(found.place, Place::Assembly);
        let payload = &*self.piece(found).payload;
        match kind {
            Kind::Binary => Message::Binary(payload),
            Kind::Text if is_exposed => Message::Text(text_again(payload)),
            Kind::Text => Message::Text(text(payload)),
        }
    }

    /// The message that was found, and its buffer if it has one of its own.
    #[inline]
    pub(super) fn received(&mut self, found: Found) -> Received<'_> {
        match found.place {
            Place::Assembly => self.moved_out(found),
            _ => Received::Borrowed(self.message(found)),
        }
    }

    /// The piece that was found.
    #[inline]
    pub(super) fn piece(&mut self, found: Found) -> Piece<'_> {
        let Found { kind, place, first, last } = found;
        let payload = match place {
            Place::Buffer(range) => &mut self.buf.as_deref_mut().unwrap_or_default()[range],
            Place::Compressed(_) => unreachable!("it is decompressed first"),
            Place::Assembly => self.assembly.as_mut().map(Assembly::hand_out).unwrap_or_default(),
        };
        let frame_bytes_left = self.frame_bytes_left;
        Piece { kind, compressed: false, payload, first, last, frame_bytes_left }
    }

    pub(super) fn peer_close(&self) -> Option<CloseFrame<'_>> {
        self.peer_close.as_deref().map(PeerClose::frame)
    }

    /// Gives up all memory: nothing is received any more.
    pub(super) fn clear(&mut self) {
        (self.buf, self.at, self.assembly) = (None, 0, None);
    }

    /// Where the next bytes go; none: into any buffer. What was consumed is given up, and its buffer
    /// with it.
    ///
    /// To be followed by [`put`](Self::put), or by [`put_direct`](Self::put_direct).
    pub(super) fn room(&mut self) -> Option<Room> {
        let at = mem::take(&mut self.at);
        let rest = self.buf.take().filter(|buf| at < buf.len());
        self.spans_reads = rest.is_some() || self.assembly.is_some();
        if let Some(buf) = rest {
            return Some(Room::Behind(self.moved_to_front(buf, at)));
        }
        match &mut self.assembly {
            Some(assembly) if self.frame_bytes_left > 0 => {
                Some(Room::Direct(assembly.take(), self.frame_bytes_left))
            }
            _ => None,
        }
    }

    /// Takes what was read, empty or not; says how many bytes there are.
    pub(super) fn put(&mut self, buf: PoolBuf) -> usize {
        self.buf.insert(buf).len()
    }

    /// Takes what was read, of which the first bytes are consumed.
    pub(super) fn put_from(&mut self, buf: PoolBuf, at: usize) {
        if at < buf.len() {
            self.put(buf);
            self.at = at;
        }
    }

    /// Takes what was read behind the message that is being assembled, which was `len` bytes before.
    pub(super) fn put_direct(&mut self, bytes: Vec<u8>, len: usize) {
        if let Some(assembly) = &mut self.assembly {
            assembly.put(bytes, len);
        }
    }

    fn moved_out(&mut self, found: Found) -> Received<'_> {
        match self.assembly.take_if(|assembly| assembly.is_movable()) {
            Some(assembly) => Received::Owned(found.kind, assembly.into_bytes()),
            None => Received::Borrowed(self.message(found)),
        }
    }

    /// Whether nothing is to be found before more is read: asked first, because it is so twice for
    /// each message that comes alone.
    #[inline]
    fn is_starved(&self, shared: &Shared) -> bool {
        let is_empty = self.buf.as_ref().is_none_or(|buf| self.at >= buf.len());
        let is_over = self.peer_close.is_some() || shared.control.failure().is_some();
        is_empty && self.assembly.is_none() && !is_over
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

    /// Decodes what was read behind the message that is being assembled, and says what there is of it;
    /// none if there is none, or it was handed out.
    #[inline]
    fn assembled(&mut self, shared: &Shared) -> Result<Option<Found>, Error> {
        // It may be in no frame of the peer: a time that is up, or a promise that cannot be made.
        if let Some(failure) = shared.control.failure() {
            return Err(failure);
        }
        let Some(assembly) = &mut self.assembly else { return Ok(None) };
        if assembly.is_handed_out() {
            self.assembly = None;
            return Ok(None);
        }
        let fresh = assembly.fresh();
        if !fresh.is_empty()
            && let Some(Event::Piece(piece)) = self.receiver.decode(&shared.control, fresh)?.event
        {
            self.frame_bytes_left = piece.frame_bytes_left;
            let last = piece.last;
            assembly.settle(last);
        }
        Ok(Some(assembly.found()))
    }

    /// Decodes up to a message or a piece of one. Pings before it are answered.
    #[inline]
    fn decode(&mut self, shared: &Shared) -> Result<Next, Error> {
        loop {
            if self.peer_close.is_some() {
                return Ok(Next::Closed);
            }
            let Some(buf) = self.buf.as_mut().filter(|buf| self.at < buf.len()) else {
                self.buf = None;
                return Ok(Next::Starved);
            };
            let Decoded { consumed, event } =
                self.receiver.decode(&shared.control, &mut buf[self.at..])?;
            self.at += consumed;
            let (kind, len, compressed, first, last) = match event {
                None => return Ok(Next::Starved),
                Some(Event::Ping(_)) => {
                    shared.queue_replies();
                    continue;
                }
                Some(Event::Pong(_)) => continue,
                Some(Event::Close(frame)) => {
                    self.peer_close = Some(Box::new(frame.into()));
                    continue;
                }
                Some(Event::Text(text)) => (Kind::Text, text.len(), false, true, true),
                Some(Event::Binary(payload)) => (Kind::Binary, payload.len(), false, true, true),
                Some(Event::Piece(piece)) => {
                    let Piece { kind, compressed, payload, first, last, frame_bytes_left } = piece;
                    // The rest of a compressed frame is not read to where it is decompressed.
                    self.frame_bytes_left = if compressed { 0 } else { frame_bytes_left };
                    (kind, payload.len(), compressed, first, last)
                }
            };
            let range = self.at - len..self.at;
            let place = if compressed { Place::Compressed(range) } else { Place::Buffer(range) };
            return Ok(Next::Found(Found { kind, place, first, last }));
        }
    }

    /// Adds a piece to its message; that, if it is whole now.
    fn assemble(&mut self, shared: &Shared, piece: Found) -> Result<Option<Found>, Error> {
        let Found { kind, place, last, .. } = piece;
        let buf = self.buf.as_deref().unwrap_or_default();
        let assembly =
            self.assembly.get_or_insert_with(|| Assembly::new(kind, self.buffers.clone()));
        let added = match (place, &mut self.inflation) {
            (Place::Buffer(range), _) => assembly.push(&buf[range], self.frame_bytes_left, last),
            (Place::Compressed(range), Some(inflation)) => {
                inflation.inflate(kind, &buf[range], last, assembly)
            }
            _ => unreachable!("decoded in the buffer, and compressed where that was agreed on"),
        };
        added.map_err(|error| shared.control.fail(error))?;
        Ok(last.then(|| assembly.found()))
    }

    /// Passes over a piece of a message of which there is nothing. Compressed, it is decompressed all the
    /// same: what comes next may refer to it.
    fn pass_over(&mut self, shared: &Shared, piece: Found) -> Result<(), Error> {
        if let Place::Compressed(_) = piece.place {
            self.assemble(shared, piece)?;
            self.assembly = None;
        }
        Ok(())
    }
}

impl Found {
    /// Whether it is a message, where it was received.
    const fn is_message(&self) -> bool {
        self.first && self.last && matches!(self.place, Place::Buffer(_))
    }

    /// What is put together of a message.
    pub(super) const fn assembled(kind: Kind, last: bool) -> Self {
        Self { kind, place: Place::Assembly, first: true, last }
    }
}

/// The text of a message that was checked with no read since.
#[inline]
#[expect(unsafe_code, reason = "to look at it once more takes half as long as all the rest")]
fn text(payload: &[u8]) -> &str {
    debug_assert!(str::from_utf8(payload).is_ok());
    // SAFETY: this is a whole message of text, from its first piece to its last, and every byte of it was
    // checked after the last read began (`Inbox::message` sends others to `text_again`):
    // - Where it was received, the receiver checked all of it, those bytes included that it had unmasked
    //   before, in the very call that found it.
    // - In the assembly, every piece was checked as it was decoded or decompressed, in order, the last one
    //   for ending with a character. No read began between the first of these checks and now.
    // What was checked is in a buffer that `Inbox` owns alone. Only `Inbox::room` hands it to a transport,
    // and `Inbox::piece` to the application; which consumes it, and text has no piece in it that was.
    unsafe { str::from_utf8_unchecked(payload) }
}

/// The text of a message that a transport may have opened and changed, by safe code of its own, since the
/// receiver checked it: it is lent the buffer with all that was received before, to read the rest
/// behind it.
#[cold]
fn text_again(payload: &[u8]) -> &str {
    let checked = simdutf8::basic::from_utf8(payload);
    checked.expect("the transport changed bytes that were received")
}

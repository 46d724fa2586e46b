//! [`ReceiveBuffer`]: what was read, and what it turns out to be.

use std::ops::Range;

use owned_io::coop::{self, cost};
use owned_io::{MemoryAccount, PoolBuf};

use super::assembly::{Assembly, ReserveError};
use super::compression::{InflateProgress, Inflater};
use super::partial_frame::PartialFrame;
use super::shared::Shared;
use super::{Buffers, Message, Received};
use crate::close::PeerClose;
use crate::engine::{Decoded, Event, Piece, Receiver};
use crate::{CloseFrame, Kind, ProtocolError};

/// What was read and is not yet consumed, and the message that is being assembled.
///
/// Between two reads it holds no buffer of the pool: a frame that has come in part is in the carry, or in
/// the assembly.
pub(super) struct ReceiveBuffer {
    receiver: Receiver,
    buffers: Buffers,
    account: MemoryAccount,
    buf: Option<PoolBuf>,
    /// How much of `buf` is consumed. If that is all, it is given up when more is asked for.
    consumed_bytes: usize,
    /// Comes before what is left of `buf`.
    partial_frame: PartialFrame,
    assembly: Option<Assembly>,
    /// A piece that is decoded, and of which the assembly has not yet taken all.
    pending: Option<LocatedPiece>,
    /// Of the frame that comes in pieces, how many bytes are missing. None of them is in `buf`.
    frame_bytes_left: usize,
    /// The peer's close frame, if it has come.
    peer_close: Option<Box<PeerClose>>,
    /// None: no message comes compressed.
    inflater: Option<Box<Inflater>>,
}

/// What comes next.
pub(super) enum ReceiveStatus {
    Piece(LocatedPiece),
    /// Nothing before more is read.
    NeedsRead,
    /// Nothing before others had their turn: the task's budget of work is used up.
    BudgetExhausted,
    /// Nothing before memory is given back.
    OutOfMemory,
    /// Nothing any more.
    Closed,
}

/// A message, or a piece of one, that is there to be handed out.
pub(super) struct LocatedPiece {
    kind: Kind,
    location: Location,
    /// Whether it is yet to be decompressed.
    compressed: bool,
    first: bool,
    last: bool,
}

enum Location {
    /// This part of the buffer.
    Buffer(Range<usize>),
    /// This part of the carry.
    PartialFrame(Range<usize>),
    /// All of the assembly, which a transport may have changed since it was checked.
    Assembly { was_lent: bool },
}

/// What is to be read into.
pub(super) enum ReadTarget {
    /// A buffer of the pool.
    Pooled,
    /// At most so many bytes, behind what this holds: for [`ReceiveBuffer::put_direct`].
    Direct(Vec<u8>, usize),
}

/// The most bytes of a frame that one read brings behind what there is of it: some 50 µs of unmasking
/// and checking.
const DIRECT_BYTES_MAX: usize = 256 * 1024;

/// The least room that is made for it, if as much is missing: a read costs as much as copying this.
const DIRECT_BYTES_MIN: usize = 16 * 1024;

impl ReceiveBuffer {
    pub(super) fn new(
        receiver: Receiver,
        buffers: Buffers,
        account: MemoryAccount,
        inflater: Option<Box<Inflater>>,
    ) -> Self {
        Self {
            receiver,
            buffers,
            buf: None,
            consumed_bytes: 0,
            partial_frame: PartialFrame::new(&account),
            account,
            assembly: None,
            pending: None,
            frame_bytes_left: 0,
            peer_close: None,
            inflater,
        }
    }

    /// Looks for a message, which may have to be put together of several pieces. What is left of one
    /// whose first piece was handed out is passed over.
    #[inline]
    pub(super) fn next_message(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        if self.needs_read(shared) {
            return Ok(ReceiveStatus::NeedsRead);
        }
        if let Some(assembled) = self.assembled(shared)?
            && assembled.last
        {
            return Ok(ReceiveStatus::Piece(assembled));
        }
        if self.assembly.is_none()
            && self.pending.is_none()
            && self.partial_frame.is_empty()
            && let Some(buf) = &mut self.buf
            && let Some((kind, payload)) =
                self.receiver.decode_whole(&shared.control, &mut buf[self.consumed_bytes..])
        {
            consume_frame(payload.len());
            let location = Location::Buffer(
                self.consumed_bytes + payload.start..self.consumed_bytes + payload.end,
            );
            self.consumed_bytes += payload.end;
            let compressed = false;
            return Ok(ReceiveStatus::Piece(LocatedPiece {
                kind,
                location,
                compressed,
                first: true,
                last: true,
            }));
        }
        loop {
            match self.next_decoded(shared)? {
                ReceiveStatus::Piece(located) if located.is_message() => {
                    return Ok(ReceiveStatus::Piece(located));
                }
                ReceiveStatus::Piece(piece) => {
                    // The first piece was handed out. What is compressed is decompressed all the same: what
                    // comes next may refer to it.
                    let is_skipped = !piece.first && self.assembly.is_none();
                    if is_skipped && !piece.compressed {
                        continue;
                    }
                    let next = self.assemble(shared, piece)?;
                    if is_skipped {
                        self.assembly = None;
                    }
                    match next {
                        ReceiveStatus::Piece(located) if located.last && !is_skipped => {
                            return Ok(ReceiveStatus::Piece(located));
                        }
                        ReceiveStatus::Piece(_) => {}
                        other => return Ok(other),
                    }
                }
                other => return Ok(other),
            }
        }
    }

    /// Looks for a piece of a message: the first may be what was put together of it already.
    pub(super) fn next_piece(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        if let Some(assembled) = self.assembled(shared)?
            && (assembled.last || self.assembly.as_ref().is_some_and(|assembly| assembly.len() > 0))
        {
            self.pending_is_not_first();
            return Ok(ReceiveStatus::Piece(assembled));
        }
        let next = self.next_decoded(shared)?;
        let ReceiveStatus::Piece(piece @ LocatedPiece { compressed: true, first, .. }) = next
        else {
            return Ok(next);
        };
        match (self.assemble(shared, piece)?, &self.assembly) {
            (ReceiveStatus::Piece(located), _) => {
                Ok(ReceiveStatus::Piece(LocatedPiece { first, ..located }))
            }
            // What there is of it so far is a piece as well.
            (_, Some(assembly)) if assembly.len() > 0 => {
                let located = assembly.located();
                self.pending_is_not_first();
                Ok(ReceiveStatus::Piece(LocatedPiece { first, ..located }))
            }
            (next, _) => Ok(next),
        }
    }

    /// The message that was found.
    ///
    /// # Panics
    /// If it is text, and the transport changed what it had received of it.
    #[inline]
    pub(super) fn message(&mut self, located: LocatedPiece) -> Message<'_> {
        let kind = located.kind;
        let is_exposed = matches!(located.location, Location::Assembly { was_lent: true });
        let payload = &*self.piece(located).payload;
        match kind {
            Kind::Binary => Message::Binary(payload),
            Kind::Text if is_exposed => Message::Text(revalidated_text(payload)),
            Kind::Text => Message::Text(unchecked_text(payload)),
        }
    }

    /// The message that was found, and its buffer if it has one of its own.
    #[inline]
    pub(super) fn received(&mut self, located: LocatedPiece) -> Received<'_> {
        match located.location {
            Location::Assembly { .. } => self.move_out(located),
            _ => Received::Borrowed(self.message(located)),
        }
    }

    /// The piece that was found.
    #[inline]
    pub(super) fn piece(&mut self, located: LocatedPiece) -> Piece<'_> {
        let LocatedPiece { kind, location, first, last, .. } = located;
        let payload = match location {
            Location::Buffer(range) => &mut self.buf.as_deref_mut().unwrap_or_default()[range],
            Location::PartialFrame(range) => &mut self.partial_frame.bytes_mut()[range],
            Location::Assembly { .. } => {
                self.assembly.as_mut().map(Assembly::hand_out).unwrap_or_default()
            }
        };
        let frame_bytes_left = self.frame_bytes_left;
        Piece { kind, compressed: false, payload, first, last, frame_bytes_left }
    }

    pub(super) fn peer_close(&self) -> Option<CloseFrame<'_>> {
        self.peer_close.as_deref().map(PeerClose::frame)
    }

    /// Gives up all memory: nothing is received any more.
    pub(super) fn clear(&mut self) {
        (self.buf, self.consumed_bytes, self.assembly, self.pending) = (None, 0, None, None);
        self.partial_frame.clear(&self.buffers);
    }

    /// Where the next bytes go. What was consumed is given up, and its buffer with it.
    ///
    /// To be followed by [`put`](Self::put), or by [`put_direct`](Self::put_direct).
    pub(super) fn read_target(&mut self) -> Result<ReadTarget, ReserveError> {
        if let Some(buf) = self.buf.as_ref().filter(|buf| self.consumed_bytes < buf.len()) {
            self.partial_frame.begin(&buf[self.consumed_bytes..], &self.receiver, &self.buffers)?;
        }
        (self.buf, self.consumed_bytes) = (None, 0);
        if !self.partial_frame.is_empty() {
            return Ok(ReadTarget::Pooled);
        }
        self.partial_frame.clear(&self.buffers);
        match &mut self.assembly {
            Some(assembly) if self.frame_bytes_left > 0 => {
                let next = self.frame_bytes_left.min(DIRECT_BYTES_MIN);
                assembly.reserve_capacity(next, Some(self.frame_bytes_left - next))?;
                let bytes =
                    self.frame_bytes_left.min(assembly.spare_capacity()).min(DIRECT_BYTES_MAX);
                Ok(ReadTarget::Direct(assembly.lend(), bytes))
            }
            _ => Ok(ReadTarget::Pooled),
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
            self.consumed_bytes = at;
        }
    }

    /// Takes what was read behind the message that is being assembled, which was `len` bytes before.
    pub(super) fn put_direct(&mut self, bytes: Vec<u8>, len: usize) {
        if let Some(assembly) = &mut self.assembly {
            assembly.put_back(bytes, len);
        }
    }

    fn move_out(&mut self, located: LocatedPiece) -> Received<'_> {
        match self.assembly.take_if(|assembly| assembly.is_movable()) {
            Some(assembly) => Received::Owned(located.kind, assembly.into_bytes()),
            None => Received::Borrowed(self.message(located)),
        }
    }

    /// Whether nothing is to be found before more is read: asked first, because it is so twice for
    /// each message that comes alone. The buffer goes back to the pool then.
    #[inline]
    fn needs_read(&mut self, shared: &Shared) -> bool {
        let has_more = self.buf.as_ref().is_some_and(|buf| self.consumed_bytes < buf.len());
        if has_more || self.pending.is_some() {
            return false;
        }
        (self.buf, self.consumed_bytes) = (None, 0);
        let is_ended = self.peer_close.is_some() || shared.control.failure().is_some();
        self.assembly.is_none() && !is_ended
    }

    /// What is pending is no longer the first of its message.
    fn pending_is_not_first(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.first = false;
        }
    }

    /// Decodes what was read behind the message that is being assembled, and says what there is of it;
    /// none if there is none, or it was handed out.
    #[inline]
    fn assembled(&mut self, shared: &Shared) -> Result<Option<LocatedPiece>, ProtocolError> {
        // It may be in no frame of the peer: a time that is up, or memory that there is not.
        if let Some(failure) = shared.control.failure() {
            return Err(failure);
        }
        let Some(assembly) = &mut self.assembly else { return Ok(None) };
        if assembly.is_handed_out() {
            self.assembly = None;
            return Ok(None);
        }
        let fresh = assembly.undecoded();
        consume_frame(fresh.len());
        if !fresh.is_empty()
            && let Some(Event::Piece(piece)) = self.receiver.decode(&shared.control, fresh)?.event
        {
            self.frame_bytes_left = piece.frame_bytes_left;
            let last = piece.last;
            assembly.mark_decoded(last);
        }
        Ok(Some(assembly.located()))
    }

    /// The piece that is pending, or else the next message or piece of one.
    fn next_decoded(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        match self.pending.take() {
            Some(piece) => Ok(ReceiveStatus::Piece(piece)),
            None => self.decode(shared),
        }
    }

    /// Decodes up to a message or a piece of one. Pings before it are answered.
    #[inline]
    fn decode(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        loop {
            if self.peer_close.is_some() {
                return Ok(ReceiveStatus::Closed);
            }
            if self.buf.as_ref().is_none_or(|buf| self.consumed_bytes >= buf.len()) {
                (self.buf, self.consumed_bytes) = (None, 0);
                return Ok(ReceiveStatus::NeedsRead);
            }
            if !coop::has_budget() {
                return Ok(ReceiveStatus::BudgetExhausted);
            }
            let decoded = match self.partial_frame.is_empty() {
                true => self.decode_buffer(shared)?,
                false => match self.decode_partial_frame(shared) {
                    Ok(decoded) => decoded?,
                    Err(error) => return out_of_memory(shared, error),
                },
            };
            match decoded {
                // A carry may lack more than its header showed.
                DecodeOutcome::Incomplete if self.partial_frame.is_empty() => {
                    return Ok(ReceiveStatus::NeedsRead);
                }
                DecodeOutcome::Incomplete | DecodeOutcome::Control => {}
                DecodeOutcome::Piece(located) => return Ok(ReceiveStatus::Piece(located)),
            }
        }
    }

    #[inline]
    fn decode_buffer(&mut self, shared: &Shared) -> Result<DecodeOutcome, ProtocolError> {
        let bytes = &mut self.buf.as_deref_mut().unwrap_or_default()[self.consumed_bytes..];
        let Decoded { consumed, event } = self.receiver.decode(&shared.control, bytes)?;
        let (outcome, frame_bytes_left) = outcome_of(shared, event, &mut self.peer_close, |len| {
            Location::Buffer(self.consumed_bytes + consumed - len..self.consumed_bytes + consumed)
        });
        self.consumed_bytes += consumed;
        self.frame_bytes_left = frame_bytes_left.unwrap_or(self.frame_bytes_left);
        Ok(outcome)
    }

    /// Puts what was read to the carry, as far as it belongs there.
    fn decode_partial_frame(
        &mut self,
        shared: &Shared,
    ) -> Result<Result<DecodeOutcome, ProtocolError>, ReserveError> {
        let fresh = &self.buf.as_deref().unwrap_or_default()[self.consumed_bytes..];
        self.consumed_bytes += self.partial_frame.append_missing(fresh, &self.receiver)?;
        let at = self.partial_frame.consumed_bytes();
        let decoded = self.receiver.decode(&shared.control, self.partial_frame.unconsumed());
        let Decoded { consumed, event } = match decoded {
            Ok(decoded) => decoded,
            Err(error) => return Ok(Err(error)),
        };
        let is_event = event.is_some();
        let (outcome, frame_bytes_left) = outcome_of(shared, event, &mut self.peer_close, |len| {
            Location::PartialFrame(at + consumed - len..at + consumed)
        });
        self.consumed_bytes -= self.partial_frame.consume(consumed, is_event);
        self.frame_bytes_left = frame_bytes_left.unwrap_or(self.frame_bytes_left);
        Ok(Ok(outcome))
    }

    /// Adds a piece to its message. What of it has no room yet, or takes too long to decompress now, is
    /// pending then.
    fn assemble(
        &mut self,
        shared: &Shared,
        piece: LocatedPiece,
    ) -> Result<ReceiveStatus, ProtocolError> {
        let LocatedPiece { kind, ref location, compressed, last, .. } = piece;
        let bytes = match location {
            Location::Buffer(range) => &self.buf.as_deref().unwrap_or_default()[range.clone()],
            Location::PartialFrame(range) => &self.partial_frame.bytes()[range.clone()],
            Location::Assembly { .. } => unreachable!("a piece is added to it"),
        };
        let assembly = self
            .assembly
            .get_or_insert_with(|| Assembly::new(kind, self.buffers.clone(), &self.account));
        let added = match &mut self.inflater {
            Some(inflater) if compressed => {
                inflater.inflate(kind, bytes, last, assembly).map_err(ReserveError::Fatal)
            }
            _ => assembly
                .push(bytes, self.frame_bytes_left, last)
                .map(|()| InflateProgress::Complete),
        };
        match added {
            Ok(InflateProgress::Complete) => Ok(ReceiveStatus::Piece(assembly.located())),
            Ok(InflateProgress::Partial { consumed, is_out_of_memory }) => {
                self.pending = Some(piece.skip(consumed));
                let next = if is_out_of_memory {
                    ReceiveStatus::OutOfMemory
                } else {
                    ReceiveStatus::BudgetExhausted
                };
                Ok(next)
            }
            Err(error) => {
                self.pending = Some(piece);
                out_of_memory(shared, error)
            }
        }
    }
}

/// What was decoded.
enum DecodeOutcome {
    /// Nothing yet.
    Incomplete,
    /// A control frame, which is seen to.
    Control,
    Piece(LocatedPiece),
}

/// What an event comes to; and how much of its frame is missing, if it is of data. `location` says where a
/// payload of a length is that ends where the event does.
#[inline]
fn outcome_of(
    shared: &Shared,
    event: Option<Event<'_>>,
    peer_close: &mut Option<Box<PeerClose>>,
    location: impl FnOnce(usize) -> Location,
) -> (DecodeOutcome, Option<usize>) {
    let (kind, len, compressed, first, last, frame_bytes_left) = match event {
        None => return (DecodeOutcome::Incomplete, None),
        Some(Event::Text(text)) => (Kind::Text, text.len(), false, true, true, 0),
        Some(Event::Binary(payload)) => (Kind::Binary, payload.len(), false, true, true, 0),
        Some(Event::Piece(piece)) => {
            let Piece { kind, compressed, payload, first, last, frame_bytes_left } = piece;
            // The rest of a compressed frame is not read to where it is decompressed.
            let frame_bytes_left = if compressed { 0 } else { frame_bytes_left };
            (kind, payload.len(), compressed, first, last, frame_bytes_left)
        }
        Some(control) => {
            consume_frame(0);
            match control {
                Event::Ping(_) => shared.queue_replies(),
                Event::Close(frame) => *peer_close = Some(Box::new(frame.into())),
                _ => {}
            }
            return (DecodeOutcome::Control, None);
        }
    };
    consume_frame(len);
    (
        DecodeOutcome::Piece(LocatedPiece {
            kind,
            location: location(len),
            compressed,
            first,
            last,
        }),
        Some(frame_bytes_left),
    )
}

/// Counts the work of decoding.
#[inline]
fn consume_frame(payload_bytes: usize) {
    coop::consume(cost::frame_in(payload_bytes));
}

#[cold]
fn out_of_memory(shared: &Shared, error: ReserveError) -> Result<ReceiveStatus, ProtocolError> {
    match error {
        ReserveError::Retry => Ok(ReceiveStatus::OutOfMemory),
        ReserveError::Fatal(error) => Err(shared.control.fail(error)),
    }
}

impl LocatedPiece {
    /// Whether it is a message, where it was received.
    const fn is_message(&self) -> bool {
        self.first
            && self.last
            && !self.compressed
            && !matches!(self.location, Location::Assembly { .. })
    }

    /// What is put together of a message.
    pub(super) const fn assembled(kind: Kind, last: bool, was_lent: bool) -> Self {
        let location = Location::Assembly { was_lent };
        Self { kind, location, compressed: false, first: true, last }
    }

    /// What follows its first `consumed` bytes.
    fn skip(mut self, consumed: usize) -> Self {
        match &mut self.location {
            Location::Buffer(range) | Location::PartialFrame(range) => range.start += consumed,
            Location::Assembly { .. } => {}
        }
        self
    }
}

/// The text of a message that was checked with no read since.
#[inline]
#[expect(unsafe_code, reason = "to look at it once more takes half as long as all the rest")]
fn unchecked_text(payload: &[u8]) -> &str {
    debug_assert!(str::from_utf8(payload).is_ok());
    // SAFETY: this is a whole message of text, from its first piece to its last, and every byte of it was
    // checked after the last read began (`ReceiveBuffer::message` sends others to `revalidated_text`):
    // - Where it was received, the receiver checked all of it, those bytes included that it had unmasked
    //   before, in the very call that found it.
    // - In the assembly, every piece was checked as it was decoded or decompressed, in order, the last one
    //   for ending with a character. No read began between the first of these checks and now.
    // What was checked is in a buffer that `ReceiveBuffer` owns alone: a buffer of the pool is never lent to a
    // transport again once something was received into it, the carry never is, and an assembly that was
    // lent goes to `revalidated_text`. `ReceiveBuffer::piece` hands out what the application may change; which consumes
    // it, and text has no piece in it that was handed out.
    unsafe { str::from_utf8_unchecked(payload) }
}

/// The text of a message that a transport may have opened and changed, by safe code of its own, since the
/// receiver checked it: it is lent the buffer with all that was received before, to read the rest
/// behind it.
#[cold]
fn revalidated_text(payload: &[u8]) -> &str {
    let checked = simdutf8::basic::from_utf8(payload);
    checked.expect("the transport changed bytes that were received")
}

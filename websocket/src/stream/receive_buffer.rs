//! [`ReceiveBuffer`]: bytes that were read, and the messages in them.

use std::mem;
use std::ops::Range;

use owned_io::coop::{self, cost};
use owned_io::{IoBufMutExt, PoolBuf, Spare};

use super::assembly::{Assembly, ReserveError};
use super::compression::{InflateProgress, Inflater};
use super::partial_frame::PartialFrame;
use super::shared::Shared;
use super::{Message, Received};
use crate::close::PeerClose;
use crate::engine::{Decoded, Event, Piece, Receiver};
use crate::{CloseFrame, MessageKind, ProtocolError};

/// Bytes that were read and not yet consumed, and the message that is being assembled.
///
/// Between two reads it holds no buffer of the pool. A partially received frame is in `parts`.
pub(super) struct ReceiveBuffer {
    receiver: Receiver,
    buf: Option<PoolBuf>,
    /// The number of consumed bytes of `buf`. A consumed buffer is released when more is asked for.
    consumed_bytes: usize,
    /// What is needed for messages that do not arrive whole. It is kept from the first of them on, so
    /// that the others need no allocation. Most connections never have one.
    parts: Option<Box<Parts>>,
    /// How many bytes the current frame lacks, if it arrives in pieces. None of them is in `buf`.
    frame_bytes_left: usize,
    /// The peer's close frame, once it has arrived.
    peer_close: Option<Box<PeerClose>>,
    /// `None`: messages are not compressed.
    inflater: Option<Box<Inflater>>,
}

/// Parts of messages and frames.
struct Parts {
    /// Comes before the unconsumed part of the receive buffer.
    frame: PartialFrame,
    assembly: Option<Assembly>,
    /// A decoded piece that the assembly has not taken completely.
    pending: Option<LocatedPiece>,
    /// Memory for the buffer of a [direct](ReadTarget::Direct) read.
    direct: Option<Box<Spare<Vec<u8>>>>,
}

/// The outcome of looking for the next message or piece.
pub(super) enum ReceiveStatus {
    Piece(LocatedPiece),
    /// More bytes have to be read.
    NeedsRead,
    /// The task's work budget is used up. Other tasks have to run first.
    BudgetExhausted,
    /// Memory has to be released first.
    OutOfMemory,
    /// The peer has closed. Nothing more will come.
    Closed,
}

/// A message or a piece of one, ready to be handed out: its properties, and where its bytes are.
pub(super) struct LocatedPiece {
    kind: MessageKind,
    location: Location,
    /// Whether the bytes still have to be decompressed.
    compressed: bool,
    first: bool,
    last: bool,
}

enum Location {
    /// This range of `buf`.
    Buffer(Range<usize>),
    /// This range of the partial frame.
    PartialFrame(Range<usize>),
    /// The whole assembly. `was_lent`: a transport may have changed the bytes since they were
    /// checked.
    Assembly { was_lent: bool },
}

/// Where the next read puts its bytes.
pub(super) enum ReadTarget {
    /// A buffer of the pool.
    Pooled,
    /// The buffer of the message so far, which [`ReceiveBuffer::lend_direct`] returns. The read
    /// appends at most this many bytes.
    Direct(usize),
}

/// The most bytes of a frame that one read appends to the assembly. Unmasking and checking them
/// takes some 50 µs.
const DIRECT_BYTES_MAX: usize = 256 * 1024;

/// The smallest capacity that is reserved for such a read, if that much is missing. Copying this
/// much costs as much as a read.
const DIRECT_BYTES_MIN: usize = 16 * 1024;

impl ReceiveBuffer {
    pub(super) const fn new(receiver: Receiver, inflater: Option<Box<Inflater>>) -> Self {
        Self {
            receiver,
            buf: None,
            consumed_bytes: 0,
            parts: None,
            frame_bytes_left: 0,
            peer_close: None,
            inflater,
        }
    }

    /// Looks for a whole message, and assembles it from pieces if necessary. Skips the rest of a
    /// message whose first piece was handed out.
    #[inline]
    pub(super) fn next_message(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        match self.next_whole_message(shared) {
            Some(located) => Ok(ReceiveStatus::Piece(located)),
            None => self.next_message_slow(shared),
        }
    }

    /// The next message, if it is one uncompressed frame that has arrived completely, and nothing
    /// before it is left. `None` for anything else and for errors, which
    /// [`next_message_slow`](Self::next_message_slow) reports.
    #[inline(always)]
    fn next_whole_message(&mut self, shared: &Shared) -> Option<LocatedPiece> {
        let buf = self.buf.as_mut()?;
        let has_parts = self.parts.as_ref().is_some_and(|parts| !parts.is_empty());
        if has_parts || shared.control.failure().is_some() {
            return None;
        }
        let at = self.consumed_bytes;
        let (kind, payload) = self.receiver.decode_whole(&shared.control, &mut buf[at..])?;
        consume_frame(payload.len());
        self.consumed_bytes = at + payload.end;
        let location = Location::Buffer(at + payload.start..at + payload.end);
        Some(LocatedPiece { kind, location, compressed: false, first: true, last: true })
    }

    /// Everything that [`next_whole_message`](Self::next_whole_message) does not find, and all errors.
    #[inline(never)]
    fn next_message_slow(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        if self.needs_read(shared) {
            return Ok(ReceiveStatus::NeedsRead);
        }
        match self.assembled(shared)? {
            // The first piece was handed out, and nothing of the rest has been decompressed.
            Some(assembled) if !assembled.first => self.drop_assembly(),
            Some(assembled) if assembled.last => return Ok(ReceiveStatus::Piece(assembled)),
            _ => {}
        }
        loop {
            match self.next_decoded(shared)? {
                ReceiveStatus::Piece(located) if located.is_message() => {
                    return Ok(ReceiveStatus::Piece(located));
                }
                ReceiveStatus::Piece(piece) => {
                    // The first piece was handed out. Compressed pieces are decompressed all the
                    // same, because later messages may refer to them.
                    let is_skipped = !piece.first && self.assembly().is_none();
                    if is_skipped && !piece.compressed {
                        continue;
                    }
                    let next = self.assemble(shared, piece)?;
                    if is_skipped {
                        self.drop_assembly();
                    }
                    match next {
                        ReceiveStatus::Piece(located) if located.first && located.last => {
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

    /// Looks for a piece of a message. The first piece may be what was assembled already.
    pub(super) fn next_piece(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        if let Some(assembled) = self.assembled(shared)?
            && (assembled.last || self.assembly().is_some_and(|assembly| assembly.len() > 0))
        {
            self.pending_is_not_first();
            return Ok(ReceiveStatus::Piece(assembled));
        }
        let mut piece = match self.next_decoded(shared)? {
            ReceiveStatus::Piece(piece) => piece,
            other => return Ok(other),
        };
        if !piece.compressed {
            // The assembly is empty. What follows this piece must not be taken for the message.
            if let Some(empty) = self.assembly() {
                piece.first = empty.is_from_first();
                self.drop_assembly();
            }
            return Ok(ReceiveStatus::Piece(piece));
        }
        match (self.assemble(shared, piece)?, self.assembly()) {
            // What has been decompressed so far is a piece as well.
            (ReceiveStatus::BudgetExhausted | ReceiveStatus::OutOfMemory, Some(assembly))
                if assembly.len() > 0 =>
            {
                let located = assembly.located();
                self.pending_is_not_first();
                Ok(ReceiveStatus::Piece(located))
            }
            (next, _) => Ok(next),
        }
    }

    /// Borrows the message at `located`.
    ///
    /// # Panics
    /// If the message is text and the transport changed its bytes after they were received.
    #[inline]
    pub(super) fn message(&mut self, located: LocatedPiece) -> Message<'_> {
        let kind = located.kind;
        let is_exposed = matches!(located.location, Location::Assembly { was_lent: true });
        let payload = &*self.piece(located).payload;
        match kind {
            MessageKind::Binary => Message::Binary(payload),
            MessageKind::Text if is_exposed => Message::Text(revalidated_text(payload)),
            MessageKind::Text => Message::Text(unchecked_text(payload)),
        }
    }

    /// The message at `located`, moved out if it has a buffer of its own.
    #[inline]
    pub(super) fn received(&mut self, located: LocatedPiece) -> Received<'_> {
        match located.location {
            Location::Assembly { .. } => self.move_out(located),
            _ => Received::Borrowed(self.message(located)),
        }
    }

    /// Borrows the piece at `located`.
    #[inline]
    pub(super) fn piece(&mut self, located: LocatedPiece) -> Piece<'_> {
        let LocatedPiece { kind, location, first, last, .. } = located;
        let frame_bytes_left = self.frame_bytes_left;
        let payload = match location {
            Location::Buffer(range) => &mut self.buf.as_deref_mut().unwrap_or_default()[range],
            Location::PartialFrame(range) => {
                let frame = self.parts.as_mut().map(|parts| parts.frame.bytes_mut());
                &mut frame.unwrap_or_default()[range]
            }
            Location::Assembly { .. } => {
                self.assembly_mut().map(Assembly::hand_out).unwrap_or_default()
            }
        };
        Piece { kind, compressed: false, payload, first, last, frame_bytes_left }
    }

    pub(super) fn peer_close(&self) -> Option<CloseFrame<'_>> {
        self.peer_close.as_deref().map(PeerClose::frame)
    }

    /// Releases all memory. Nothing is received any more.
    pub(super) fn clear(&mut self, shared: &Shared) {
        (self.buf, self.consumed_bytes) = (None, 0);
        if let Some(mut parts) = self.parts.take() {
            parts.frame.clear(&shared.buffers());
        }
    }

    /// Whether bytes were read and not consumed.
    pub(super) fn has_unread(&self) -> bool {
        self.buf.as_ref().is_some_and(|buf| self.consumed_bytes < buf.len())
    }

    /// Where the next read puts its bytes. Releases the buffer, which is consumed or moves to the
    /// partial frame.
    ///
    /// Follow it with [`put`](Self::put) or [`lend_direct`](Self::lend_direct).
    #[inline]
    pub(super) fn read_target(&mut self, shared: &Shared) -> Result<ReadTarget, ReserveError> {
        if self.parts.is_none() && !self.has_unread() {
            (self.buf, self.consumed_bytes) = (None, 0);
            return Ok(ReadTarget::Pooled);
        }
        self.read_target_for_part(shared)
    }

    fn read_target_for_part(&mut self, shared: &Shared) -> Result<ReadTarget, ReserveError> {
        let parts = parts_of(&mut self.parts, shared);
        if let Some(buf) = self.buf.as_ref().filter(|buf| self.consumed_bytes < buf.len()) {
            let rest = &buf[self.consumed_bytes..];
            parts.frame.begin(rest, &self.receiver, &shared.buffers())?;
        }
        (self.buf, self.consumed_bytes) = (None, 0);
        if !parts.frame.is_empty() {
            return Ok(ReadTarget::Pooled);
        }
        parts.frame.clear(&shared.buffers());
        match &mut parts.assembly {
            Some(assembly) if self.frame_bytes_left > 0 => {
                let next = self.frame_bytes_left.min(DIRECT_BYTES_MIN);
                assembly.reserve_capacity(next, Some(self.frame_bytes_left - next))?;
                let bytes =
                    self.frame_bytes_left.min(assembly.spare_capacity()).min(DIRECT_BYTES_MAX);
                Ok(ReadTarget::Direct(bytes))
            }
            _ => Ok(ReadTarget::Pooled),
        }
    }

    /// Takes the buffer of a pooled read. Returns its length; 0 at the end of the stream.
    pub(super) fn put(&mut self, buf: PoolBuf) -> usize {
        self.buf.insert(buf).len()
    }

    /// Takes a buffer whose first `at` bytes are consumed.
    pub(super) fn put_from(&mut self, buf: PoolBuf, at: usize) {
        if at < buf.len() {
            self.put(buf);
            self.consumed_bytes = at;
        }
    }

    /// The buffer for a direct read, which appends at most `bytes`, and the length of the message so far. Follow it with
    /// [`put_direct`](Self::put_direct).
    ///
    /// The future of the read keeps the buffer, so it is boxed: an idle connection has space for that future too.
    pub(super) fn lend_direct(
        &mut self,
        bytes: usize,
        shared: &Shared,
    ) -> (Box<Spare<Vec<u8>>>, usize) {
        let Parts { assembly, direct, .. } = parts_of(&mut self.parts, shared);
        let buf = assembly.as_mut().map(Assembly::lend).unwrap_or_default();
        let len = buf.len();
        let spare = buf.spare().limit(bytes);
        match direct.take() {
            Some(mut memory) => {
                *memory = spare;
                (memory, len)
            }
            None => (Box::new(spare), len),
        }
    }

    /// Takes the buffer of a direct read back. The message was `len` bytes long before.
    pub(super) fn put_direct(&mut self, mut memory: Box<Spare<Vec<u8>>>, len: usize) {
        let Some(parts) = &mut self.parts else { return };
        let bytes = mem::replace(&mut *memory, Vec::new().spare()).into_inner();
        parts.direct = Some(memory);
        if let Some(assembly) = &mut parts.assembly {
            assembly.put_back(bytes, len);
        }
    }

    fn move_out(&mut self, located: LocatedPiece) -> Received<'_> {
        let assembly = self.parts.as_mut().map(|parts| &mut parts.assembly);
        match assembly.and_then(|assembly| assembly.take_if(|assembly| assembly.is_movable())) {
            Some(assembly) => Received::Owned(located.kind, assembly.into_bytes()),
            None => Received::Borrowed(self.message(located)),
        }
    }

    /// Whether more has to be read before anything can be found. Releases a consumed buffer.
    #[inline]
    fn needs_read(&mut self, shared: &Shared) -> bool {
        let has_more = self.buf.as_ref().is_some_and(|buf| self.consumed_bytes < buf.len());
        if has_more || self.parts.as_ref().is_some_and(|parts| parts.pending.is_some()) {
            return false;
        }
        (self.buf, self.consumed_bytes) = (None, 0);
        let is_ended = self.peer_close.is_some() || shared.control.failure().is_some();
        self.assembly().is_none() && !is_ended
    }

    #[inline]
    fn assembly(&self) -> Option<&Assembly> {
        self.parts.as_ref()?.assembly.as_ref()
    }

    #[inline]
    fn has_partial_frame(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| !parts.frame.is_empty())
    }

    fn assembly_mut(&mut self) -> Option<&mut Assembly> {
        self.parts.as_mut()?.assembly.as_mut()
    }

    fn drop_assembly(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.assembly = None;
        }
    }

    /// Marks the pending piece as not the first of its message.
    fn pending_is_not_first(&mut self) {
        let pending = self.parts.as_mut().and_then(|parts| parts.pending.as_mut());
        if let Some(pending) = pending {
            pending.first = false;
        }
    }

    /// Decodes what was read into the assembly, and returns what it holds. `None` if there is no
    /// assembly, or it was handed out.
    #[inline]
    fn assembled(&mut self, shared: &Shared) -> Result<Option<LocatedPiece>, ProtocolError> {
        // The failure may be unrelated to the bytes received: a timeout, or lack of memory.
        if let Some(failure) = shared.control.failure() {
            return Err(failure);
        }
        let Some(parts) = &mut self.parts else { return Ok(None) };
        let Some(assembly) = &mut parts.assembly else { return Ok(None) };
        if assembly.is_handed_out() {
            parts.assembly = None;
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
            if self.frame_bytes_left == 0 && !last {
                assembly.end_frame();
            }
        }
        Ok(Some(assembly.located()))
    }

    /// Returns the pending piece, or decodes the next message or piece.
    fn next_decoded(&mut self, shared: &Shared) -> Result<ReceiveStatus, ProtocolError> {
        match self.parts.as_mut().and_then(|parts| parts.pending.take()) {
            Some(piece) => Ok(ReceiveStatus::Piece(piece)),
            None => self.decode(shared),
        }
    }

    /// Decodes up to the next message or piece. Queues the answers to pings before it.
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
            let decoded = match self.has_partial_frame() {
                false => self.decode_buffer(shared)?,
                true => match self.decode_partial_frame(shared) {
                    Ok(decoded) => decoded?,
                    Err(error) => return out_of_memory(shared, error),
                },
            };
            match decoded {
                // A partial frame may lack more bytes than were appended.
                DecodeOutcome::Incomplete if !self.has_partial_frame() => {
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

    /// Appends the missing bytes to the partial frame, and decodes it.
    fn decode_partial_frame(
        &mut self,
        shared: &Shared,
    ) -> Result<Result<DecodeOutcome, ProtocolError>, ReserveError> {
        let Parts { frame, .. } = parts_of(&mut self.parts, shared);
        let fresh = &self.buf.as_deref().unwrap_or_default()[self.consumed_bytes..];
        self.consumed_bytes += frame.append_missing(fresh, &self.receiver)?;
        let at = frame.consumed_bytes();
        let decoded = self.receiver.decode(&shared.control, frame.unconsumed());
        let Decoded { consumed, event } = match decoded {
            Ok(decoded) => decoded,
            Err(error) => return Ok(Err(error)),
        };
        let is_event = event.is_some();
        let (outcome, frame_bytes_left) = outcome_of(shared, event, &mut self.peer_close, |len| {
            Location::PartialFrame(at + consumed - len..at + consumed)
        });
        self.consumed_bytes -= frame.consume(consumed, is_event);
        self.frame_bytes_left = frame_bytes_left.unwrap_or(self.frame_bytes_left);
        Ok(Ok(outcome))
    }

    /// Adds a piece to its message. The rest becomes pending if there is no memory for it, or if
    /// decompressing it would exceed the work budget.
    fn assemble(
        &mut self,
        shared: &Shared,
        piece: LocatedPiece,
    ) -> Result<ReceiveStatus, ProtocolError> {
        let LocatedPiece { kind, ref location, compressed, first, last } = piece;
        let Parts { frame, assembly, pending, .. } = parts_of(&mut self.parts, shared);
        let bytes = match location {
            Location::Buffer(range) => &self.buf.as_deref().unwrap_or_default()[range.clone()],
            Location::PartialFrame(range) => &frame.bytes()[range.clone()],
            Location::Assembly { .. } => unreachable!("a piece is added to it"),
        };
        let assembly = assembly.get_or_insert_with(|| {
            let bytes_max = self.receiver.message_bytes_max();
            Assembly::new(kind, first, bytes_max, shared.buffers().clone(), &shared.account)
        });
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
                *pending = Some(piece.skip(consumed));
                let next = if is_out_of_memory {
                    ReceiveStatus::OutOfMemory
                } else {
                    ReceiveStatus::BudgetExhausted
                };
                Ok(next)
            }
            Err(error) => {
                *pending = Some(piece);
                out_of_memory(shared, error)
            }
        }
    }
}

impl Parts {
    fn is_empty(&self) -> bool {
        self.assembly.is_none() && self.pending.is_none() && self.frame.is_empty()
    }
}

/// The parts, which are allocated on first use.
fn parts_of<'p>(parts: &'p mut Option<Box<Parts>>, shared: &Shared) -> &'p mut Parts {
    parts.get_or_insert_with(|| {
        let frame = PartialFrame::new(&shared.account);
        Box::new(Parts { frame, assembly: None, pending: None, direct: None })
    })
}

/// The outcome of one decode.
enum DecodeOutcome {
    /// More bytes are needed.
    Incomplete,
    /// A control frame, already handled.
    Control,
    Piece(LocatedPiece),
}

/// Converts an event. Returns the number of bytes its frame lacks too, if it is a data frame.
/// `location` makes a location from the length of the payload, which ends where the event ends.
#[inline]
fn outcome_of(
    shared: &Shared,
    event: Option<Event<'_>>,
    peer_close: &mut Option<Box<PeerClose>>,
    location: impl FnOnce(usize) -> Location,
) -> (DecodeOutcome, Option<usize>) {
    let (kind, len, compressed, first, last, frame_bytes_left) = match event {
        None => return (DecodeOutcome::Incomplete, None),
        Some(Event::Text(text)) => (MessageKind::Text, text.len(), false, true, true, 0),
        Some(Event::Binary(payload)) => (MessageKind::Binary, payload.len(), false, true, true, 0),
        Some(Event::Piece(piece)) => {
            let Piece { kind, compressed, payload, first, last, frame_bytes_left } = piece;
            // The rest of a compressed frame cannot be read into the assembly.
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

/// Charges a decoded frame to the work budget.
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
    /// Whether it is a whole message in the buffer that it was received in.
    const fn is_message(&self) -> bool {
        self.first
            && self.last
            && !self.compressed
            && !matches!(self.location, Location::Assembly { .. })
    }

    /// The content of the assembly.
    pub(super) const fn assembled(
        kind: MessageKind,
        first: bool,
        last: bool,
        was_lent: bool,
    ) -> Self {
        let location = Location::Assembly { was_lent };
        Self { kind, location, compressed: false, first, last }
    }

    /// Skips the first `consumed` bytes.
    fn skip(mut self, consumed: usize) -> Self {
        match &mut self.location {
            Location::Buffer(range) | Location::PartialFrame(range) => range.start += consumed,
            Location::Assembly { .. } => {}
        }
        self
    }
}

/// The text of a message. It was checked, and no read has begun since.
#[inline]
#[expect(unsafe_code, reason = "checking it again would take half as long as everything else")]
fn unchecked_text(payload: &[u8]) -> &str {
    debug_assert!(str::from_utf8(payload).is_ok());
    // SAFETY: this is a whole text message, and every byte of it was checked as UTF-8 after the
    // last read began (`ReceiveBuffer::message` sends others to `revalidated_text`):
    // - In a receive buffer, the receiver checked the whole message in the call that found it. That
    //   includes the bytes that it had unmasked before.
    // - In the assembly, every piece was checked in order when it was decoded or decompressed. The
    //   last one was checked to end with a whole character. No read began between the first of
    //   these checks and now. The assembly begins with the first piece of the message, or with one
    //   that only empty pieces precede: `ReceiveBuffer::next_piece` drops an empty assembly when it
    //   hands out a piece from elsewhere, and `ReceiveBuffer::next_message` drops one that began
    //   with a later piece.
    //
    // `ReceiveBuffer` alone owns the buffer since the check. A pool buffer is never lent to a
    // transport again after something was received into it. The partial frame is never lent. An
    // assembly that was lent goes to `revalidated_text`. `ReceiveBuffer::piece` lets the
    // application change bytes, but that consumes the piece, and such a piece is no part of a text
    // message.
    unsafe { str::from_utf8_unchecked(payload) }
}

/// The text of a message that the transport may have changed after the receiver checked it. The
/// transport is safe code, and was lent the buffer with the bytes received before, to read the rest
/// behind them.
#[cold]
fn revalidated_text(payload: &[u8]) -> &str {
    let checked = simdutf8::basic::from_utf8(payload);
    checked.expect("the transport changed bytes that were received")
}

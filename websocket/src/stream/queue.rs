use std::mem;
use std::ops::ControlFlow;
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use owned_io::coop::{self, cost};
use owned_io::{IoVec, MemoryAccount, Reservation};

use super::compression::{Deflater, FinishedMessage, IMMEDIATE_BYTES_MAX};
use super::shared::Sleep;
use super::{Buffers, EncodedFrame, Unsent};
use crate::engine::{Control, Sender, State};
use crate::frame::{Header, mask};
use crate::{Limit, Part, ProtocolError, compressed_bytes_max};

/// Payloads up to this length, in bytes, are copied behind their headers, however they are given:
/// that is cheaper than a piece of its own in a vectored write.
pub const COPIED_BYTES_MAX: usize = 1024;

/// How many bytes of control frames, in addition to a batch that is being written, may wait because the
/// peer sent pings: 31 of the longest, 2,048 of the shortest. Then the latest pong waits alone
/// (section 5.5.3), so that a peer that sends pings and does not read makes nobody hold more.
const REPLY_BYTES_MAX: usize = 4096;

/// What a queue keeps reserved while it is empty, in bytes: most messages fit, and need not ask.
const RESERVED_BYTES_MIN: usize = 4096;

/// The least room that is made for copied frames, in bytes: a buffer that is used again and again should
/// fit most of them.
const CAPACITY_MIN: usize = 512;

/// Frames that are encoded and not yet written.
pub(super) struct Queue {
    sender: Sender,
    /// Whether payloads are masked: those of a client are.
    masks: bool,
    buffers: Buffers,
    /// Frames in order, up to the payload that is the last piece.
    pieces: Option<Box<IoVec<Bytes>>>,
    /// What comes after `pieces`; while those are empty, all there is.
    copied: Vec<u8>,
    /// Where `copied` goes when it becomes a piece, if it is short: a header, as a rule. Its memory is
    /// free again once that is written.
    header_buf: BytesMut,
    /// How many bytes the batch has that is being written.
    batch_bytes: usize,
    /// How much memory `pieces` and `copied` hold, and what that batch holds.
    held_bytes: usize,
    batch_held_bytes: usize,
    /// For both, and some more: never less than [`RESERVED_BYTES_MIN`], once there was something.
    reservation: Reservation,
    /// Of what is queued behind it, how many bytes are of [replies](Self::push_replies).
    reply_bytes: usize,
    /// None: no message is sent compressed.
    deflater: Option<Box<Deflater>>,
}

/// What is written at once.
pub(super) enum Batch {
    Single(Vec<u8>),
    Vectored(Box<IoVec<Bytes>>),
}

impl Queue {
    pub(super) fn new(
        sender: Sender,
        masks: bool,
        buffers: Buffers,
        account: &MemoryAccount,
        deflater: Option<Box<Deflater>>,
    ) -> Self {
        Self {
            sender,
            masks,
            buffers,
            pieces: None,
            copied: Vec::new(),
            header_buf: BytesMut::new(),
            batch_bytes: 0,
            held_bytes: 0,
            batch_held_bytes: 0,
            reservation: account.reservation(),
            reply_bytes: 0,
            deflater,
        }
    }

    pub(super) fn queued_bytes(&self) -> usize {
        let compressed = self.deflater.as_ref().map_or(0, |deflater| deflater.compressed_bytes());
        self.sender.queued_bytes() + compressed
    }

    /// Copies a frame, or compresses it.
    #[inline]
    pub(super) fn push_copy(
        &mut self,
        control: &Control,
        part: Part,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        if self.compresses(part, payload.len()) {
            return self.compress(control, part, payload);
        }
        self.push_uncompressed(control, part, payload)
    }

    #[inline]
    fn push_uncompressed(
        &mut self,
        control: &Control,
        part: Part,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        self.reserve_capacity(payload.len())?;
        let encoded = self.sender.encode(control, part, payload, &mut self.copied);
        if encoded.is_err() {
            self.release_if_empty();
        }
        coop::consume(cost::frame_out(payload.len()));
        encoded
    }

    /// Queues a frame without copying its payload, unless that is short, or compressed, or has to be masked
    /// and is shared.
    pub(super) fn push_bytes(
        &mut self,
        control: &Control,
        part: Part,
        payload: Bytes,
    ) -> Result<(), Unsent> {
        let payload = match self.compresses(part, payload.len()) {
            false => payload,
            true => match self.compress_bytes(control, part, payload) {
                ControlFlow::Break(pushed) => return pushed,
                ControlFlow::Continue(payload) => payload,
            },
        };
        let is_copied = payload.len() <= COPIED_BYTES_MAX;
        // What others have as well is theirs to answer for.
        let payload_held = if payload.is_unique() { payload.len() } else { 0 };
        if !is_copied && let Err(error) = self.account_piece(payload_held) {
            return Err(Unsent { error, payload });
        }
        let (header, payload) = if is_copied {
            return self.push_copy_or_return(control, part, payload);
        } else if self.masks {
            let mut own = match payload.try_into_mut() {
                Ok(own) => own,
                Err(shared) => return self.push_copy_or_return(control, part, shared),
            };
            let header = self.sender.encode_in_place(control, part, &mut own);
            (header, own.freeze())
        } else {
            (self.sender.encode_header(control, part, payload.len()), payload)
        };
        match header {
            Ok(header) => {
                self.copied.extend_from_slice(&header);
                self.seal_copied();
                self.push_piece(payload);
                coop::consume(cost::frame_out(0));
                Ok(())
            }
            Err(error) => {
                self.held_bytes -= payload_held;
                self.release_if_empty();
                Err(Unsent { error, payload })
            }
        }
    }

    /// Queues a frame without copying it, unless it is short.
    pub(super) fn push_encoded(
        &mut self,
        control: &Control,
        frame: &EncodedFrame,
    ) -> Result<(), ProtocolError> {
        self.finish_compression(control);
        if frame.as_bytes().len() <= COPIED_BYTES_MAX {
            self.reserve_capacity(frame.as_bytes().len())?;
        }
        coop::consume(cost::frame_out(0));
        // The header is the same.
        let encoded = self.sender.encode_header(control, frame.part(), frame.payload_bytes());
        if let Err(error) = encoded {
            self.release_if_empty();
            return Err(error);
        }
        if frame.as_bytes().len() <= COPIED_BYTES_MAX {
            self.copied.extend_from_slice(frame.as_bytes());
        } else {
            self.seal_copied();
            self.push_piece(frame.as_bytes().clone());
        }
        Ok(())
    }

    /// Queues the control frames that are due because the peer sent some, unless too many of them
    /// wait already.
    pub(super) fn push_replies(&mut self, control: &Control) {
        if self.reply_bytes < REPLY_BYTES_MAX {
            let before = self.sender.queued_bytes();
            self.push_control(control);
            self.reply_bytes += self.sender.queued_bytes() - before;
        }
    }

    /// Whether something is to be written even if nobody flushes.
    pub(super) const fn has_replies(&self) -> bool {
        self.reply_bytes > 0
    }

    /// What is to be written next; none if the queue is empty. To be followed by
    /// [`handle_written`](Self::handle_written).
    pub(super) fn take_batch(&mut self, control: &Control) -> Option<Batch> {
        self.push_control(control);
        self.reply_bytes = 0;
        self.batch_bytes = self.sender.queued_bytes();
        if self.batch_bytes == 0 {
            return None;
        }
        self.batch_held_bytes = mem::take(&mut self.held_bytes) + self.copied.capacity();
        if self.pieces.is_some() {
            self.seal_copied();
        }
        Some(match self.pieces.take() {
            Some(pieces) => Batch::Vectored(pieces),
            None => Batch::Single(mem::take(&mut self.copied)),
        })
    }

    /// A batch is written. Its buffers are used again.
    pub(super) fn handle_written(&mut self, control: &Control, batch: Batch, now: Instant) {
        self.sender.handle_written(control, mem::take(&mut self.batch_bytes), now);
        self.batch_held_bytes = 0;
        if self.reservation.bytes() > RESERVED_BYTES_MIN {
            let held = self.held_bytes + self.copied.capacity();
            self.reservation.force(held.max(RESERVED_BYTES_MIN));
        }
        match batch {
            Batch::Single(buf) => self.buffers.give(buf),
            Batch::Vectored(pieces) => self.buffers.give_array(pieces),
        }
    }

    /// Gives up all memory: nothing is written any more.
    pub(super) fn clear(&mut self) {
        (self.pieces, self.copied, self.header_buf) = (None, Vec::new(), BytesMut::new());
        (self.held_bytes, self.batch_held_bytes) = (0, 0);
        self.reservation.force(0);
        self.abandon_long();
    }

    /// Gives up the long message that is being compressed, which is not sent then.
    pub(super) fn abandon_long(&mut self) {
        if let Some(deflater) = &mut self.deflater {
            deflater.abandon();
        }
    }

    /// Whether a long message is being compressed. It comes behind all that is queued, and before all that
    /// is to be queued.
    #[inline]
    pub(super) fn is_compressing(&self) -> bool {
        self.deflater.as_ref().is_some_and(|deflater| deflater.is_under_way())
    }

    /// Compresses the long message until it is queued. Lets others have their turn meanwhile, and has `waker`
    /// woken.
    #[cold]
    pub(super) fn poll_compression(
        &mut self,
        control: &Control,
        sleep: fn(Duration) -> Sleep,
        waker: &Waker,
    ) -> Poll<()> {
        while !self.continue_compression(control) {
            if let Some(deflater) = &mut self.deflater {
                ready!(deflater.poll_pause(sleep, waker));
            }
        }
        Poll::Ready(())
    }

    /// Queues the control frames that are due.
    fn push_control(&mut self, control: &Control) {
        if control.has_due_frames() {
            if self.is_compressing() && control.state() != State::Open {
                return; // a close frame comes behind all messages
            }
            // Not reserved: bounded by `REPLY_BYTES_MAX`, and needed to say why a connection ends.
            if self.copied.capacity() == 0 {
                self.copied = self.buffers.take();
            }
            self.sender.poll_control(control, &mut self.copied);
            self.release_if_empty();
        }
    }

    /// Whether a frame is to be compressed, or has to wait for a message that is being compressed.
    #[inline]
    fn compresses(&self, part: Part, payload_bytes: usize) -> bool {
        self.deflater.as_ref().is_some_and(|deflater| {
            deflater.accepts(part, payload_bytes) || deflater.is_under_way()
        })
    }

    /// Queues a message compressed; as it is if it came out no shorter, and what comes next does not refer
    /// to it.
    #[inline(never)]
    fn compress(
        &mut self,
        control: &Control,
        part: Part,
        message: &[u8],
    ) -> Result<(), ProtocolError> {
        self.finish_compression(control);
        if !self.compresses(part, message.len()) {
            return self.push_copy(control, part, message);
        }
        // Before it is compressed: afterwards there is no way back.
        self.sender.check_frame(control, part, compressed_bytes_max(message.len()))?;
        if message.len() > IMMEDIATE_BYTES_MAX {
            return self.compress_copy(control, part, message);
        }
        self.reserve_capacity(compressed_bytes_max(message.len()))?;
        let mut compressed = self.buffers.take();
        let Self { deflater, buffers, .. } = self;
        let is_sent = deflater
            .as_mut()
            .is_some_and(|deflater| deflater.compress(message, &mut compressed, buffers));
        let Self { sender, copied, .. } = self;
        let encoded = match part {
            Part::Whole(kind) if is_sent => {
                sender.encode_compressed(control, kind, &compressed, copied)
            }
            _ => sender.encode(control, part, message, copied),
        };
        self.buffers.give(compressed);
        encoded
    }

    /// Begins to compress a long message, a copy of it; or queues it as it is, if there is no memory for that.
    fn compress_copy(
        &mut self,
        control: &Control,
        part: Part,
        message: &[u8],
    ) -> Result<(), ProtocolError> {
        let Self { deflater: Some(deflater), buffers, .. } = self else {
            return self.push_uncompressed(control, part, message);
        };
        let (Part::Whole(kind), Some(copy)) = (part, deflater.copy(message)) else {
            return self.push_uncompressed(control, part, message);
        };
        coop::consume(cost::frame_out(message.len()));
        if deflater.begin(kind, copy, message.len(), buffers).is_err() {
            return self.push_uncompressed(control, part, message);
        }
        self.continue_compression(control);
        Ok(())
    }

    /// The same for what is given by reference; it comes back if it is not to be compressed. What is short, or
    /// has to be masked and is shared, is copied.
    #[inline(never)]
    fn compress_bytes(
        &mut self,
        control: &Control,
        part: Part,
        payload: Bytes,
    ) -> ControlFlow<Result<(), Unsent>, Bytes> {
        self.finish_compression(control);
        if !self.compresses(part, payload.len()) {
            return ControlFlow::Continue(payload);
        }
        let is_unique = payload.is_unique();
        if payload.len() <= IMMEDIATE_BYTES_MAX || (self.masks && !is_unique) {
            return ControlFlow::Break(self.push_copy_or_return(control, part, payload));
        }
        let checked = self.sender.check_frame(control, part, compressed_bytes_max(payload.len()));
        if let Err(error) = checked {
            return ControlFlow::Break(Err(Unsent { error, payload }));
        }
        let Self { deflater: Some(deflater), buffers, .. } = self else {
            return ControlFlow::Continue(payload);
        };
        let Part::Whole(kind) = part else { return ControlFlow::Continue(payload) };
        // What others have as well is theirs to answer for.
        let payload_held = if is_unique { payload.len() } else { 0 };
        if let Err(payload) = deflater.begin(kind, payload, payload_held, buffers) {
            return ControlFlow::Continue(payload);
        }
        self.continue_compression(control);
        ControlFlow::Break(Ok(()))
    }

    /// Compresses more of the long message, as far as the task's budget goes: whether it is queued now, or
    /// there is none.
    fn continue_compression(&mut self, control: &Control) -> bool {
        while self.is_compressing() {
            if !coop::has_budget() {
                return false;
            }
            self.compress_piece(control);
        }
        true
    }

    /// Compresses all that is left of the long message, if there is one: something is to be queued behind it.
    #[inline]
    fn finish_compression(&mut self, control: &Control) {
        while self.is_compressing() {
            self.compress_piece(control);
        }
    }

    #[cold]
    fn compress_piece(&mut self, control: &Control) {
        let Self { deflater, buffers, .. } = self;
        let finished = deflater.as_mut().and_then(|deflater| deflater.compress_next(buffers));
        if let Some(finished) = finished {
            self.push_finished(control, finished);
        }
    }

    /// Queues a long message in one frame, compressed or as it is.
    fn push_finished(&mut self, control: &Control, finished: FinishedMessage) {
        let FinishedMessage { kind, is_compressed, mut payload, held_bytes } = finished;
        let header = self.sender.begin_frame(control, Part::Whole(kind), payload.len());
        coop::consume(cost::frame_out(if header.key.is_some() { payload.len() } else { 0 }));
        if let Some(key) = header.key {
            let mut own = payload.try_into_mut().unwrap_or_else(|shared| shared.as_ref().into());
            mask(&mut own, key);
            payload = own.freeze();
        }
        self.seal_copied();
        if self.copied.capacity() == 0 {
            self.copied = self.buffers.take();
        }
        let header = Header { compressed: is_compressed, ..header };
        self.copied.extend_from_slice(&header.encode());
        self.seal_copied();
        self.held_bytes += held_bytes;
        self.push_piece(payload);
        let held = self.held_bytes + self.batch_held_bytes;
        self.reservation.force(held.max(self.reservation.bytes())); // it was reserved until now
    }

    fn push_copy_or_return(
        &mut self,
        control: &Control,
        part: Part,
        payload: Bytes,
    ) -> Result<(), Unsent> {
        self.push_copy(control, part, &payload).map_err(|error| Unsent { error, payload })
    }

    /// Makes room in `copied` for a frame with a payload of so many bytes.
    #[inline]
    fn reserve_capacity(&mut self, payload_bytes: usize) -> Result<(), ProtocolError> {
        if self.copied.capacity() == 0 {
            self.copied = self.buffers.take();
        }
        let len = self.copied.len() + payload_bytes + Header::PADDED_BYTES;
        let capacity = self.copied.capacity();
        let held = self.held_bytes + self.batch_held_bytes + capacity;
        if len <= capacity && held <= self.reservation.bytes() {
            return Ok(());
        }
        self.grow_copied(len)
    }

    #[cold]
    fn grow_copied(&mut self, len: usize) -> Result<(), ProtocolError> {
        let others = self.held_bytes + self.batch_held_bytes;
        if self.copied.is_empty() && self.copied.capacity() < len {
            self.buffers.give(mem::take(&mut self.copied));
            self.copied = self.buffers.take_fitting(len, usize::MAX);
        }
        let mut capacity = self.copied.capacity();
        if capacity < len {
            // Twice as much as there is, or each frame would have it copied once more.
            capacity = len.max(2 * self.copied.len()).max(CAPACITY_MIN);
        }
        if self.reserve_memory(others + capacity).is_err() {
            if self.copied.is_empty() {
                // One that was used before, and may be much larger than this frame.
                self.buffers.give(mem::take(&mut self.copied));
            }
            capacity = len.max(self.copied.capacity());
            self.reserve_memory(others + capacity)?;
        }
        let missing = capacity - self.copied.len();
        self.copied.try_reserve_exact(missing).map_err(|_| self.out_of_memory(capacity))
    }

    /// Makes room for the header of a piece that is not copied, and counts what that holds.
    fn account_piece(&mut self, payload_held: usize) -> Result<(), ProtocolError> {
        self.held_bytes += payload_held;
        let made = self.reserve_capacity(0);
        if made.is_err() {
            self.held_bytes -= payload_held;
            self.release_if_empty();
        }
        made
    }

    fn reserve_memory(&mut self, held: usize) -> Result<(), ProtocolError> {
        let bytes = held.max(RESERVED_BYTES_MIN);
        self.reservation.resize(bytes).map_err(|_| self.out_of_memory(bytes))
    }

    #[cold]
    fn out_of_memory(&self, bytes: usize) -> ProtocolError {
        let max = self.reservation.account().bytes_max() as u64;
        ProtocolError::Limit { limit: Limit::Memory, max, got: bytes as u64 }
    }

    /// Unless there is something in it now.
    fn release_if_empty(&mut self) {
        if self.copied.is_empty() {
            self.buffers.give(mem::take(&mut self.copied));
        }
    }

    /// Makes a piece of what is copied: the header of a large payload, as a rule.
    fn seal_copied(&mut self) {
        if self.copied.len() > COPIED_BYTES_MAX {
            let run = mem::take(&mut self.copied);
            self.held_bytes += run.capacity();
            self.push_piece(run.into());
        } else if !self.copied.is_empty() {
            self.held_bytes += self.copied.len();
            self.header_buf.extend_from_slice(&self.copied);
            let head = self.header_buf.split().freeze();
            self.push_piece(head);
            self.buffers.give(mem::take(&mut self.copied));
        }
    }

    fn push_piece(&mut self, piece: Bytes) {
        self.pieces.get_or_insert_with(|| self.buffers.take_array()).push(piece);
    }
}

#[cfg(test)]
mod tests {
    use owned_io::{MemoryBudget, Pool, PoolConfig};

    use super::*;
    use crate::engine::Engine;
    use crate::{Config, Kind};

    fn queue(engine: fn(Config, Instant) -> Engine, masks: bool) -> (Queue, Control) {
        let Engine { sender, control, .. } = engine(Config::default(), Instant::now());
        let budget = MemoryBudget::new(1 << 20);
        let account = budget.account();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
        (Queue::new(sender, masks, buffers, &account, None), control)
    }

    /// Where the payload of one frame is when it is written.
    fn written_from(queue: &mut Queue, control: &Control, payload: Bytes) -> *const u8 {
        queue.push_bytes(control, Part::Whole(Kind::Binary), payload).unwrap();
        match queue.take_batch(control).unwrap() {
            Batch::Single(bytes) => bytes.as_ptr(),
            Batch::Vectored(pieces) => pieces.bufs()[1].as_ptr(),
        }
    }

    #[test]
    fn a_server_writes_a_large_payload_from_where_it_is() {
        let (mut queue, control) = queue(Engine::server, false);
        let payload = Bytes::from(vec![7; COPIED_BYTES_MAX + 1]);
        let at = payload.as_ptr();
        assert_eq!(written_from(&mut queue, &control, payload.clone()), at);
        assert_ne!(written_from(&mut queue, &control, payload.slice(1..)), at.wrapping_add(1));
    }

    #[test]
    fn a_client_masks_a_large_payload_in_place_if_nobody_else_has_it() {
        let (mut queue, control) = queue(|config, now| Engine::client(config, now, |_| {}), true);
        let payload = Bytes::from(vec![7; COPIED_BYTES_MAX + 1]);
        let at = payload.as_ptr();
        assert_ne!(written_from(&mut queue, &control, payload.clone()), at);
        assert!(payload.iter().all(|byte| *byte == 7), "it is somebody else's");
        assert_eq!(written_from(&mut queue, &control, payload), at);
    }
}

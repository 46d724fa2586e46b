use std::mem;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use owned_io::coop::{self, cost};
use owned_io::{IoVec, MemoryAccount, Reservation};

use super::compression::{Deflater, FinishedMessage, IMMEDIATE_BYTES_MAX};
use super::shared::Sleep;
use super::topic::Segment;
use super::{Buffers, EncodedFrame, Unsent};
use crate::engine::{Control, Sender, State};
use crate::frame::{Header, mask};
use crate::{Fragment, Limit, MessageKind, ProtocolError, compressed_bytes_max};

/// Payloads of at most this many bytes are copied behind their headers, even if they were passed by
/// reference. That is cheaper than another piece of a vectored write.
pub const COPIED_BYTES_MAX: usize = 1024;

/// The most bytes of control frames that may wait behind a batch because the peer sent pings: 31 of
/// the longest, 2,048 of the shortest. After that only the latest pong waits (section 5.5.3). So a
/// peer that sends pings and does not read cannot make the connection hold more.
const REPLY_BYTES_MAX: usize = 4096;

/// What an empty queue keeps reserved, in bytes. Most messages fit, and need no reservation.
const RESERVED_BYTES_MIN: usize = 4096;

/// How much of what a topic has published is copied into one write at most, for a subscriber that is
/// several short segments behind. As many bytes as some backends write without further cost.
const PUBLISHED_COPY_BYTES: usize = 16 * 1024;

/// The smallest buffer that is allocated for copied frames, in bytes. A buffer that is reused
/// should fit most of them.
const CAPACITY_MIN: usize = 512;

/// Frames that are encoded and not yet written.
pub(super) struct Queue {
    sender: Sender,
    buffers: Buffers,
    /// Frames in order. The last piece is a payload that was not copied.
    pieces: Option<Box<IoVec<Bytes>>>,
    /// The frames behind `pieces`, or all of them while there are no pieces.
    copied: Vec<u8>,
    /// The memory of short pieces made from `copied`, most of them headers. It can be reused once
    /// they are written. Allocated on first use: few connections send large payloads by reference.
    header_buf: Option<Box<BytesMut>>,
    /// The number of bytes in the batch that is being written.
    batch_bytes: usize,
    /// How much memory `pieces` and `copied` hold, and how much that batch holds.
    held_bytes: usize,
    batch_held_bytes: usize,
    /// Covers both, and some reserve: at least [`RESERVED_BYTES_MIN`] after the first use.
    reservation: Reservation,
    /// How many of the bytes behind the batch are [replies](Self::push_replies).
    reply_bytes: usize,
    /// `None`: no message is sent compressed.
    deflater: Option<Box<Deflater>>,
}

/// What one write operation writes.
pub(super) enum Batch {
    Single(Vec<u8>),
    Vectored(Box<IoVec<Bytes>>),
    /// What was published in a topic, in memory that its subscribers share. Whether to write it
    /// compressed.
    Published(Rc<Segment>, bool),
}

impl Queue {
    pub(super) fn new(
        sender: Sender,
        buffers: Buffers,
        account: &MemoryAccount,
        deflater: Option<Box<Deflater>>,
    ) -> Self {
        Self {
            sender,
            buffers,
            pieces: None,
            copied: Vec::new(),
            header_buf: None,
            batch_bytes: 0,
            held_bytes: 0,
            batch_held_bytes: 0,
            reservation: account.reservation(),
            reply_bytes: 0,
            deflater,
        }
    }

    pub(super) const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub(super) fn queued_bytes(&self) -> usize {
        let compressed = self.deflater.as_ref().map_or(0, |deflater| deflater.compressed_bytes());
        self.sender.queued_bytes() + compressed
    }

    /// Queues a copy of a frame, compressed if that applies.
    #[inline]
    pub(super) fn push_copy(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        if self.compresses(fragment, payload.len()) {
            return self.compress(control, fragment, payload);
        }
        self.push_uncompressed(control, fragment, payload)
    }

    #[inline]
    fn push_uncompressed(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        self.reserve_capacity(payload.len())?;
        let encoded = self.sender.encode(control, fragment, payload, &mut self.copied);
        if encoded.is_err() {
            self.release_if_empty();
        }
        coop::consume(cost::frame_out(payload.len()));
        encoded
    }

    /// Queues a frame by reference. Copies short payloads, and shared payloads that a client has to
    /// mask. Compresses a message if that applies.
    pub(super) fn push_bytes(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload: Bytes,
    ) -> Result<(), Unsent> {
        let payload = match self.compresses(fragment, payload.len()) {
            false => payload,
            true => match self.compress_bytes(control, fragment, payload) {
                ControlFlow::Break(pushed) => return pushed,
                ControlFlow::Continue(payload) => payload,
            },
        };
        let is_copied = payload.len() <= COPIED_BYTES_MAX;
        let (payload, payload_held) = match is_copied {
            true => (payload, 0),
            false => self.measure(payload),
        };
        if !is_copied && let Err(error) = self.account_piece(payload_held) {
            return Err(Unsent { error, payload });
        }
        let (header, payload) = if is_copied {
            return self.push_copy_or_return(control, fragment, payload);
        } else if self.sender.is_masking() {
            let mut own = match payload.try_into_mut() {
                Ok(own) => own,
                Err(shared) => return self.push_copy_or_return(control, fragment, shared),
            };
            let header = self.sender.encode_in_place(control, fragment, &mut own);
            (header, own.freeze())
        } else {
            (self.sender.encode_header(control, fragment, payload.len()), payload)
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

    /// Queues an encoded frame. Copies it if it is short.
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
        // The header that this returns is part of `frame` already.
        let encoded = self.sender.encode_header(control, frame.fragment(), frame.payload_bytes());
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

    /// Queues the control frames that answer the peer, unless too many are queued already.
    pub(super) fn push_replies(&mut self, control: &Control) {
        if self.reply_bytes < REPLY_BYTES_MAX {
            let before = self.sender.queued_bytes();
            self.push_control(control);
            self.reply_bytes += self.sender.queued_bytes() - before;
        }
    }

    /// Whether there are bytes to write even if nobody flushes.
    pub(super) const fn has_replies(&self) -> bool {
        self.reply_bytes > 0
    }

    /// Takes the next batch to write; `None` if the queue is empty. Follow it with
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

    pub(super) fn deflater(&self) -> Option<&Deflater> {
        self.deflater.as_deref()
    }

    /// Whether whole messages of a topic may be written now, without a copy here: everything queued
    /// before is written, and no message is partly sent or being compressed.
    pub(super) fn accepts_published(&self, control: &Control) -> bool {
        let message = Fragment::Whole(MessageKind::Binary);
        let is_between_messages = self.sender.check_frame(control, message, 0).is_ok();
        is_between_messages && self.queued_bytes() == 0 && !self.is_compressing()
    }

    /// Copies segments of a topic that are short into one batch. `None`: there is no memory for it.
    /// `next` returns the next segment if its length is at most what it is passed.
    pub(super) fn copy_published(
        &mut self,
        first: &[u8],
        mut next: impl FnMut(usize) -> Option<Bytes>,
    ) -> Option<Batch> {
        let mut copy = self.buffers.take_fitting(PUBLISHED_COPY_BYTES, 2 * PUBLISHED_COPY_BYTES);
        if self.reserve_memory(PUBLISHED_COPY_BYTES.max(copy.capacity())).is_err() {
            self.buffers.give(copy);
            return None;
        }
        copy.reserve_exact(PUBLISHED_COPY_BYTES);
        copy.extend_from_slice(first);
        while let Some(segment) = next(PUBLISHED_COPY_BYTES - copy.len()) {
            copy.extend_from_slice(&segment);
        }
        coop::consume(cost::frame_out(copy.len()));
        self.batch_held_bytes = copy.capacity();
        Some(Batch::Single(copy))
    }

    /// A batch was written. Its buffers are reused.
    pub(super) fn handle_written(&mut self, control: &Control, batch: Batch, now: Option<Instant>) {
        self.sender.handle_written_at(control, mem::take(&mut self.batch_bytes), now);
        self.batch_held_bytes = 0;
        if self.reservation.bytes() > RESERVED_BYTES_MIN {
            let held = self.held_bytes + self.copied.capacity();
            self.reservation.force(held.max(RESERVED_BYTES_MIN));
        }
        match batch {
            Batch::Single(buf) => self.buffers.give(buf),
            Batch::Vectored(pieces) => self.buffers.give_array(pieces),
            Batch::Published(..) => {}
        }
    }

    /// Releases all memory. Nothing is written any more.
    pub(super) fn clear(&mut self) {
        (self.pieces, self.copied, self.header_buf) = (None, Vec::new(), None);
        (self.held_bytes, self.batch_held_bytes) = (0, 0);
        self.reservation.force(0);
        self.abandon_long();
    }

    /// Drops the long message that is being compressed. It is not sent.
    pub(super) fn abandon_long(&mut self) {
        if let Some(deflater) = &mut self.deflater {
            deflater.abandon();
        }
    }

    /// Whether a long message is being compressed. It comes after everything queued before, and
    /// before everything queued later.
    #[inline]
    pub(super) fn is_compressing(&self) -> bool {
        self.deflater.as_ref().is_some_and(|deflater| deflater.is_under_way())
    }

    /// Compresses the long message until it is queued. Yields to other tasks, and then has `waker`
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
                return; // a close frame comes after all messages
            }
            // Not reserved: `REPLY_BYTES_MAX` bounds it, and a close frame must always be possible.
            if self.copied.capacity() == 0 {
                self.copied = self.buffers.take_fitting(CAPACITY_MIN, REPLY_BYTES_MAX);
            }
            self.sender.poll_control(control, &mut self.copied);
            self.release_if_empty();
        }
    }

    /// Whether a frame has to be compressed, or has to wait for a message that is being compressed.
    #[inline]
    fn compresses(&self, fragment: Fragment, payload_bytes: usize) -> bool {
        self.deflater.as_ref().is_some_and(|deflater| {
            deflater.accepts(fragment, payload_bytes) || deflater.is_under_way()
        })
    }

    /// Queues a message compressed. Queues it as it is if compression does not make it shorter and
    /// later messages will not refer to it.
    #[inline(never)]
    fn compress(
        &mut self,
        control: &Control,
        fragment: Fragment,
        message: &[u8],
    ) -> Result<(), ProtocolError> {
        self.finish_compression(control);
        if !self.compresses(fragment, message.len()) {
            return self.push_copy(control, fragment, message);
        }
        // Checked before compressing: afterwards the context has changed, and the message must be
        // sent.
        self.sender.check_frame(control, fragment, compressed_bytes_max(message.len()))?;
        if message.len() > IMMEDIATE_BYTES_MAX {
            return self.compress_copy(control, fragment, message);
        }
        self.reserve_capacity(compressed_bytes_max(message.len()))?;
        let mut compressed = self.buffers.take();
        let Self { deflater, buffers, .. } = self;
        let is_sent = deflater
            .as_mut()
            .is_some_and(|deflater| deflater.compress(message, &mut compressed, buffers));
        let Self { sender, copied, .. } = self;
        let encoded = match fragment {
            Fragment::Whole(kind) if is_sent => {
                sender.encode_compressed(control, kind, &compressed, copied)
            }
            _ => sender.encode(control, fragment, message, copied),
        };
        self.buffers.give(compressed);
        encoded
    }

    /// Begins to compress a copy of a long message. Queues it as it is if there is no memory for
    /// that.
    fn compress_copy(
        &mut self,
        control: &Control,
        fragment: Fragment,
        message: &[u8],
    ) -> Result<(), ProtocolError> {
        let Self { deflater: Some(deflater), buffers, .. } = self else {
            return self.push_uncompressed(control, fragment, message);
        };
        let (Fragment::Whole(kind), Some(copy)) = (fragment, deflater.copy(message)) else {
            return self.push_uncompressed(control, fragment, message);
        };
        coop::consume(cost::frame_out(message.len()));
        if deflater.begin(kind, copy, message.len(), buffers).is_err() {
            return self.push_uncompressed(control, fragment, message);
        }
        self.continue_compression(control);
        Ok(())
    }

    /// Like [`compress`](Self::compress), but takes the payload, and returns it if it is not to be
    /// compressed. Copies payloads that are short, or shared and to be masked.
    #[inline(never)]
    fn compress_bytes(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload: Bytes,
    ) -> ControlFlow<Result<(), Unsent>, Bytes> {
        self.finish_compression(control);
        if !self.compresses(fragment, payload.len()) {
            return ControlFlow::Continue(payload);
        }
        let is_unique = payload.is_unique();
        if payload.len() <= IMMEDIATE_BYTES_MAX || (self.sender.is_masking() && !is_unique) {
            return ControlFlow::Break(self.push_copy_or_return(control, fragment, payload));
        }
        let checked =
            self.sender.check_frame(control, fragment, compressed_bytes_max(payload.len()));
        if let Err(error) = checked {
            return ControlFlow::Break(Err(Unsent { error, payload }));
        }
        let Self { deflater: Some(deflater), buffers, .. } = self else {
            return ControlFlow::Continue(payload);
        };
        let Fragment::Whole(kind) = fragment else { return ControlFlow::Continue(payload) };
        // Shared bytes are accounted for by those who share them.
        let payload_held = if is_unique { payload.len() } else { 0 };
        if let Err(payload) = deflater.begin(kind, payload, payload_held, buffers) {
            return ControlFlow::Continue(payload);
        }
        self.continue_compression(control);
        ControlFlow::Break(Ok(()))
    }

    /// Compresses more of the long message, within the task's work budget. Returns whether no
    /// message is left to compress.
    fn continue_compression(&mut self, control: &Control) -> bool {
        while self.is_compressing() {
            if !coop::has_budget() {
                return false;
            }
            self.compress_piece(control);
        }
        true
    }

    /// Compresses the rest of the long message, if there is one, because another frame has to be
    /// queued behind it.
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

    /// Queues a long message in one frame, compressed or not.
    fn push_finished(&mut self, control: &Control, finished: FinishedMessage) {
        let FinishedMessage { kind, is_compressed, mut payload, held_bytes } = finished;
        let header = self.sender.begin_frame(control, Fragment::Whole(kind), payload.len());
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
        self.reservation.force(held.max(self.reservation.bytes())); // as the deflater did
    }

    fn push_copy_or_return(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload: Bytes,
    ) -> Result<(), Unsent> {
        self.push_copy(control, fragment, &payload).map_err(|error| Unsent { error, payload })
    }

    /// Makes room in `copied` for a frame with a payload of `payload_bytes` bytes.
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
            // Doubles the buffer: otherwise each frame would copy all frames before it.
            capacity = len.max(2 * self.copied.len()).max(CAPACITY_MIN);
        }
        if self.reserve_memory(others + capacity).is_err() {
            if self.copied.is_empty() {
                // It was used before, and may be much larger than this frame.
                self.buffers.give(mem::take(&mut self.copied));
            }
            capacity = len.max(self.copied.capacity());
            self.reserve_memory(others + capacity)?;
        }
        let missing = capacity - self.copied.len();
        self.copied.try_reserve_exact(missing).map_err(|_| self.out_of_memory(capacity))
    }

    /// Returns how much memory a payload holds besides. A buffer that a message was received in may
    /// be much larger than the message.
    ///
    /// Finding that out may allocate. So a payload counts by its length while no other is queued.
    /// Its buffer is at most four times as large, see `Assembly::is_movable`.
    fn measure(&self, payload: Bytes) -> (Bytes, usize) {
        if !payload.is_unique() {
            return (payload, 0); // accounted for by those who share it
        }
        if self.held_bytes + self.batch_held_bytes == 0 {
            let held = payload.len();
            return (payload, held);
        }
        match payload.try_into_mut() {
            Ok(own) => {
                let held = own.capacity();
                (own.freeze(), held)
            }
            Err(shared) => (shared, 0),
        }
    }

    /// Makes room for the header of a piece that is not copied, and counts the memory that the
    /// piece holds.
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

    /// Returns `copied` to the shared buffers if it is empty.
    fn release_if_empty(&mut self) {
        if self.copied.is_empty() {
            self.buffers.give(mem::take(&mut self.copied));
        }
    }

    /// Makes a piece of `copied`, which usually is the header of a large payload.
    fn seal_copied(&mut self) {
        if self.copied.len() > COPIED_BYTES_MAX {
            let run = mem::take(&mut self.copied);
            self.held_bytes += run.capacity();
            self.push_piece(run.into());
        } else if !self.copied.is_empty() {
            self.held_bytes += self.copied.len();
            let header_buf = self.header_buf.get_or_insert_default();
            header_buf.extend_from_slice(&self.copied);
            let head = header_buf.split().freeze();
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
    use crate::{Config, MessageKind};

    fn queue(engine: fn(Config, Instant) -> Engine) -> (Queue, Control) {
        let Engine { sender, control, .. } = engine(Config::default(), Instant::now());
        let budget = MemoryBudget::new(1 << 20);
        let account = budget.account();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
        (Queue::new(sender, buffers, &account, None), control)
    }

    #[test]
    fn queued_payloads_count_with_their_buffers() {
        let Engine { sender, control, .. } = Engine::server(Config::default(), Instant::now());
        let budget = MemoryBudget::new(1 << 20);
        let account = budget.account();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
        let mut queue = Queue::new(sender, buffers, &account, None);
        for _ in 0..4 {
            let mut payload = Vec::with_capacity(80_000);
            payload.resize(20_000, 7);
            queue
                .push_bytes(&control, Fragment::Whole(MessageKind::Binary), payload.into())
                .unwrap();
        }
        let held = account.held_bytes();
        assert!(held >= 20_000 + 3 * 80_000, "{held}");
    }

    #[test]
    fn a_pong_holds_no_large_buffer() {
        let Engine { mut receiver, sender, control } =
            Engine::server(Config::default(), Instant::now());
        let budget = MemoryBudget::new(1 << 20);
        let account = budget.account();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
        buffers.give(Vec::with_capacity(200_000));
        let mut queue = Queue::new(sender, buffers, &account, None);
        let mut ping = *b"\x89\x81\0\0\0\0p";
        receiver.decode(&control, &mut ping).unwrap();
        let Some(Batch::Single(batch)) = queue.take_batch(&control) else {
            panic!("a pong is due");
        };
        assert_eq!(batch, b"\x8A\x01p");
        assert!(batch.capacity() <= REPLY_BYTES_MAX, "{}", batch.capacity());
    }

    /// The address that the payload of a frame is written from.
    fn written_from(queue: &mut Queue, control: &Control, payload: Bytes) -> *const u8 {
        queue.push_bytes(control, Fragment::Whole(MessageKind::Binary), payload).unwrap();
        match queue.take_batch(control).unwrap() {
            Batch::Single(bytes) => bytes.as_ptr(),
            Batch::Vectored(pieces) => pieces.bufs()[1].as_ptr(),
            Batch::Published(..) => unreachable!("nobody publishes"),
        }
    }

    #[test]
    fn a_server_writes_a_large_payload_from_where_it_is() {
        let (mut queue, control) = queue(Engine::server);
        let payload = Bytes::from(vec![7; COPIED_BYTES_MAX + 1]);
        let at = payload.as_ptr();
        assert_eq!(written_from(&mut queue, &control, payload.clone()), at);
        assert_ne!(written_from(&mut queue, &control, payload.slice(1..)), at.wrapping_add(1));
    }

    #[test]
    fn a_client_masks_a_large_payload_in_place_if_nobody_else_has_it() {
        let (mut queue, control) = queue(|config, now| Engine::client(config, now, |_| {}));
        let payload = Bytes::from(vec![7; COPIED_BYTES_MAX + 1]);
        let at = payload.as_ptr();
        assert_ne!(written_from(&mut queue, &control, payload.clone()), at);
        assert!(payload.iter().all(|byte| *byte == 7), "shared bytes are unchanged");
        assert_eq!(written_from(&mut queue, &control, payload), at);
    }
}

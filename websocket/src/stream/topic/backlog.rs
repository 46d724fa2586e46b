//! [`Backlog`]: the encoded messages of a topic that some subscriber still needs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use owned_io::MemoryAccount;
use owned_io::coop::{self, cost};

use super::segment::{
    SEGMENT_BYTES, Segment, SharedReservation, add, freeze, header, reserve, sub,
};
use crate::stream::compression::{Deflater, IMMEDIATE_BYTES_MAX};
use crate::stream::{Buffers, Message};
use crate::{Fragment, Limit, ProtocolError};

/// A segment has at most this many bytes, unless it is a single message. Control frames of a connection
/// wait until the segment that is being written ends.
const SEGMENT_FRAMES_BYTES_MAX: usize = 64 * 1024;

/// Frames in the order in which they were published, and how many subscribers have yet to take
/// which of them.
///
/// A subscriber that has taken everything is at the end. Every other one is counted at the segment
/// that it takes next. So a segment is dropped as soon as nobody needs it or a segment before it.
pub(super) struct Backlog {
    /// The most bytes of `segments`, and of what is not yet offered together with `open`.
    kept_bytes_max: usize,
    /// The frames that are published and not sealed.
    open: Vec<u8>,
    open_messages: u64,
    /// The same frames, compressed, if a subscriber wants them.
    compressed: Option<Box<Compressed>>,
    /// Sealed frames, oldest first.
    segments: VecDeque<Rc<Segment>>,
    /// The number of the first of them, counted from the first segment of the topic.
    first: u64,
    /// The bytes of `segments`, uncompressed.
    kept_bytes: usize,
    /// The number of the first segment that has not been offered to each subscriber. It and later
    /// ones are not dropped while a subscriber needs them.
    unoffered: u64,
    /// The part of `kept_bytes` that is in such segments.
    unoffered_bytes: usize,
    /// The memory of `segments`.
    segment_held_bytes: usize,
    /// The number of messages that are sealed, from the first message of the topic.
    sealed_messages: u64,
    /// The number of subscribers at the end.
    at_end: usize,
    reservation: SharedReservation,
}

/// What is compressed once for all subscribers that have agreed on the same settings.
struct Compressed {
    deflater: Deflater,
    open: Vec<u8>,
    subscriber_count: usize,
}

/// Where a subscriber continues.
#[derive(Clone, Copy)]
pub(super) struct Position {
    /// The number of the segment that it takes next.
    segment: u64,
    /// The number of messages before that segment.
    pub(super) messages: u64,
}

impl Backlog {
    pub(super) fn new(account: &MemoryAccount, kept_bytes_max: usize) -> Self {
        Self {
            kept_bytes_max,
            open: Vec::new(),
            open_messages: 0,
            compressed: None,
            segments: VecDeque::new(),
            first: 0,
            kept_bytes: 0,
            unoffered: 0,
            unoffered_bytes: 0,
            segment_held_bytes: 0,
            sealed_messages: 0,
            at_end: 0,
            reservation: Rc::new(RefCell::new(account.reservation())),
        }
    }

    /// The number of messages that were published.
    pub(super) const fn published(&self) -> u64 {
        self.sealed_messages + self.open_messages
    }

    /// How many of them are sealed.
    pub(super) const fn sealed(&self) -> u64 {
        self.sealed_messages
    }

    /// Whether there are frames that are not sealed.
    pub(super) const fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The bytes of the segments that are kept.
    pub(super) const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Whether segments that are no longer kept, but are still being written, hold much memory.
    pub(super) fn is_pinned(&self) -> bool {
        let pinned_bytes =
            self.reservation.borrow().bytes() - self.open_bytes() - self.segment_held_bytes;
        pinned_bytes > self.kept_bytes_max.saturating_mul(2)
    }

    /// Whether there are frames that have not been offered to each subscriber.
    pub(super) const fn has_undelivered(&self) -> bool {
        self.is_open() || self.unoffered_bytes > 0
    }

    /// Whether more than half of the bound is kept.
    pub(super) const fn is_half_full(&self) -> bool {
        self.kept_bytes > self.kept_bytes_max / 2
    }

    /// The number of the segment that is sealed next.
    pub(super) fn end(&self) -> u64 {
        self.first + self.segments.len() as u64
    }

    /// Each subscriber was offered the segments before `end`.
    pub(super) fn handle_offered(&mut self, end: u64) {
        self.unoffered = end;
        let offered = end.saturating_sub(self.first) as usize;
        self.unoffered_bytes =
            self.segments.iter().skip(offered).map(|segment| segment.kept_bytes()).sum();
    }

    /// Whether others need the memory.
    pub(super) fn is_evicted(&self) -> bool {
        self.reservation.borrow().account().is_evicted()
    }

    pub(super) fn account(&self) -> MemoryAccount {
        self.reservation.borrow().account().clone()
    }

    /// Encodes a message, if there is somebody to send it to.
    pub(super) fn publish(
        &mut self,
        message: Message<'_>,
        has_subscribers: bool,
        buffers: &Buffers,
    ) -> Result<(), ProtocolError> {
        let payload = message.as_bytes();
        let header = header(message.kind(), false, payload.len());
        let message_bytes = payload.len().saturating_add(header.len());
        let seals = self.is_open()
            && self.open.len().saturating_add(message_bytes) > SEGMENT_FRAMES_BYTES_MAX;
        let overhead = if seals { SEGMENT_BYTES } else { 0 };
        let sealed = self.unoffered_bytes + self.open.len() + SEGMENT_BYTES;
        let undelivered = sealed.saturating_add(message_bytes).saturating_add(overhead);
        if undelivered > self.kept_bytes_max {
            let (max, got) = (self.kept_bytes_max as u64, undelivered as u64);
            return Err(ProtocolError::Limit { limit: Limit::Queue, max, got });
        }
        if seals {
            self.seal();
        }
        if has_subscribers {
            let len = self.open.len() + message_bytes;
            reserve(&self.reservation, &mut self.open, len, self.kept_bytes_max)?;
            if let Some(compressed) = &mut self.compressed {
                compressed.publish(message, &self.reservation, self.kept_bytes_max, buffers)?;
            }
            self.open.extend_from_slice(&header);
            self.open.extend_from_slice(payload);
            coop::consume(cost::frame_out(payload.len()));
        }
        self.open_messages += 1;
        Ok(())
    }

    /// Makes a segment of the frames that were published since the last call. Returns whether there
    /// were any. Drops the oldest segments beyond the bound, but none that is not yet offered.
    /// [`publish`](Self::publish) bounds those.
    pub(super) fn seal(&mut self) -> bool {
        let messages = std::mem::take(&mut self.open_messages);
        self.sealed_messages += messages;
        if self.open.is_empty() {
            return false;
        }
        let bytes = freeze(&self.reservation, &mut self.open);
        let compressed = self.compressed.as_mut();
        let compressed =
            compressed.map(|compressed| freeze(&self.reservation, &mut compressed.open));
        let held_bytes = bytes.len() + compressed.as_ref().map_or(0, Bytes::len) + SEGMENT_BYTES;
        add(&self.reservation, SEGMENT_BYTES);
        let (waiting, reservation) =
            (Cell::new(std::mem::take(&mut self.at_end)), Rc::clone(&self.reservation));
        let segment = Segment { bytes, compressed, messages, held_bytes, waiting, reservation };
        let kept_bytes = segment.kept_bytes();
        while self.kept_bytes + kept_bytes > self.kept_bytes_max
            && self.first < self.unoffered
            && self.drop_first()
        {}
        self.kept_bytes += kept_bytes;
        self.unoffered_bytes += kept_bytes;
        self.segment_held_bytes += held_bytes;
        self.segments.push_back(Rc::new(segment));
        self.drop_taken();
        true
    }

    /// Compresses from now on for a subscriber whose messages may be compressed, unless others have
    /// agreed on other settings. Returns whether the subscriber is to get compressed messages. Seal
    /// the backlog before.
    pub(super) fn begin_compressed(&mut self, deflater: &Deflater) -> bool {
        if self.compressed.is_none() {
            let shared = deflater.shareable(self.reservation.borrow().account());
            self.compressed = shared.map(|deflater| {
                Box::new(Compressed { deflater, open: Vec::new(), subscriber_count: 0 })
            });
        }
        let compressed = self.compressed.as_mut();
        let shared = compressed.filter(|compressed| deflater.can_share(&compressed.deflater));
        shared.map(|compressed| compressed.subscriber_count += 1).is_some()
    }

    /// A subscriber that got compressed messages is gone.
    pub(super) fn end_compressed(&mut self) {
        let Some(compressed) = &mut self.compressed else { return };
        compressed.subscriber_count -= 1;
        if compressed.subscriber_count == 0 {
            sub(&self.reservation, compressed.open.capacity());
            self.compressed = None;
        }
    }

    /// Adds a subscriber at the end. Seal the backlog before.
    pub(super) fn join(&mut self) -> Position {
        self.at_end += 1;
        Position { segment: self.end(), messages: self.sealed_messages }
    }

    /// Removes a subscriber.
    pub(super) fn leave(&mut self, at: Position) {
        match self.index(at) {
            Some(index) => self.uncount(index),
            None if at.segment < self.first => {} // it was counted at a segment that is dropped
            None => self.at_end -= 1,
        }
        self.drop_taken();
    }

    /// Whether a subscriber is at the end.
    pub(super) fn is_at_end(&self, at: Position) -> bool {
        at.segment >= self.end()
    }

    /// Whether the segment that a subscriber takes next is no longer kept.
    pub(super) const fn is_lagging(&self, at: Position) -> bool {
        at.segment < self.first
    }

    /// Takes the next segment of a subscriber, if it is kept and has at most `bytes_max` bytes.
    pub(super) fn take(
        &mut self,
        at: &mut Position,
        is_compressed: bool,
        bytes_max: usize,
    ) -> Option<Rc<Segment>> {
        let index = self.index(*at)?;
        let segment = Rc::clone(&self.segments[index]);
        if segment.bytes(is_compressed).len() > bytes_max {
            return None;
        }
        self.uncount(index);
        at.segment += 1;
        at.messages += segment.messages;
        match self.segments.get(index + 1) {
            Some(next) => next.waiting.set(next.waiting.get() + 1),
            None => self.at_end += 1,
        }
        self.drop_taken();
        Some(segment)
    }

    /// Drops what is kept, and uses another account. What is published and not sealed remains.
    pub(super) fn clear(&mut self, account: &MemoryAccount) {
        while self.drop_first() {}
        let open_bytes = self.open_bytes();
        sub(&self.reservation, open_bytes);
        self.reservation = Rc::new(RefCell::new(account.reservation()));
        add(&self.reservation, open_bytes);
    }

    fn index(&self, at: Position) -> Option<usize> {
        let index = usize::try_from(at.segment.checked_sub(self.first)?).ok()?;
        (index < self.segments.len()).then_some(index)
    }

    fn uncount(&self, index: usize) {
        let waiting = &self.segments[index].waiting;
        waiting.set(waiting.get() - 1);
    }

    /// Drops segments that nobody needs any more.
    fn drop_taken(&mut self) {
        while self.segments.front().is_some_and(|first| first.waiting.get() == 0) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) -> bool {
        let Some(first) = self.segments.pop_front() else { return false };
        self.kept_bytes -= first.kept_bytes();
        self.segment_held_bytes -= first.held_bytes;
        if self.first >= self.unoffered {
            self.unoffered_bytes -= first.kept_bytes();
        }
        self.first += 1;
        true
    }

    /// The memory that what is not sealed takes.
    fn open_bytes(&self) -> usize {
        self.open.capacity()
            + self.compressed.as_ref().map_or(0, |compressed| compressed.open.capacity())
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        sub(&self.reservation, self.open_bytes());
    }
}

impl Compressed {
    /// Encodes a message, compressed if that makes it shorter. Long messages would take too long.
    fn publish(
        &mut self,
        message: Message<'_>,
        reservation: &SharedReservation,
        bytes_max: usize,
        buffers: &Buffers,
    ) -> Result<(), ProtocolError> {
        let (kind, payload) = (message.kind(), message.as_bytes());
        let mut out = buffers.take();
        let is_compressed = payload.len() <= IMMEDIATE_BYTES_MAX
            && self.deflater.accepts(Fragment::Whole(kind), payload.len())
            && self.deflater.compress(payload, &mut out, buffers);
        let payload = if is_compressed { &out } else { payload };
        let header = header(kind, is_compressed, payload.len());
        let len = self.open.len() + header.len() + payload.len();
        let reserved = reserve(reservation, &mut self.open, len, bytes_max);
        if reserved.is_ok() {
            self.open.extend_from_slice(&header);
            self.open.extend_from_slice(payload);
        }
        buffers.give(out);
        reserved
    }
}

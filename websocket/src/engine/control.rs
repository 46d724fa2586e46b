use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use super::timers::{TimerEvent, Timers};
use crate::frame::{CONTROL_PAYLOAD_BYTES_MAX, Opcode};
use crate::{CloseCode, CloseFrame, Misuse, ProtocolError, StreamConfig, Timeout, Violation};

/// The state that the halves of a connection share: control frames that are due, the closing
/// handshake, the timers.
///
/// All methods take `&self`. A [`Receiver`](super::Receiver) and a [`Sender`](super::Sender) in two
/// tasks of one thread can share it in an `Rc`.
///
/// # Closing (RFC 6455 section 7)
///
/// Either side begins the closing handshake: we with [`close`](Self::close), the peer with a close
/// frame ([`Event::Close`](super::Event::Close)), which is answered with the same code. A receive
/// error or a timeout begins it too, with [the code of the error](ProtocolError::close_code), and
/// waits for no answer. From then on the sender refuses data. Data of the peer may still arrive.
/// Then, when everything is written:
///
/// - a server ends the stream once the state is [`Closed`](State::Closed);
/// - a client whose connection has not failed waits for the server to do so, until
///   [`handle_timeout`](Self::handle_timeout) fails.
#[repr(C)] // the fields that each message uses come first, in as few cache lines as possible
pub struct Control {
    /// If false, no slot has a frame to send.
    has_due_frames: Cell<bool>,
    local_close: Cell<LocalClose>,
    /// Whether the peer's close frame has arrived.
    has_peer_closed: Cell<bool>,
    /// Whether nothing may be sent any more, not even a close frame.
    has_ended: Cell<bool>,
    /// Whether a ping was sent and no pong has arrived since.
    has_unanswered_ping: Cell<bool>,
    failure: Cell<Option<ProtocolError>>,
    timers: Timers,
    pong: ControlSlot,
    ping: ControlSlot,
    /// Our close frame, until it is encoded.
    close: Cell<Option<Box<ControlPayload>>>,
}

/// The state of the closing handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Messages go both ways.
    Open,
    /// One side has sent or queued a close frame, and the other has not answered it.
    Closing,
    /// Both close frames were exchanged, or the connection has failed. Nothing more arrives, and
    /// only what is already encoded is sent.
    Closed,
}

/// The state of our own close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalClose {
    Open,
    /// It is due.
    Queued,
    /// It is encoded, and is the last frame.
    Sent,
}

impl Control {
    pub(super) fn new(config: &StreamConfig, now: Instant) -> Self {
        Self {
            timers: Timers::new(config, now),
            pong: ControlSlot::default(),
            ping: ControlSlot::default(),
            close: Cell::new(None),
            has_due_frames: Cell::new(false),
            local_close: Cell::new(LocalClose::Open),
            has_peer_closed: Cell::new(false),
            failure: Cell::new(None),
            has_ended: Cell::new(false),
            has_unanswered_ping: Cell::new(false),
        }
    }

    /// The state of the closing handshake.
    pub fn state(&self) -> State {
        match self.local_close.get() {
            _ if self.has_ended.get() => State::Closed,
            LocalClose::Open => State::Open,
            LocalClose::Sent if self.has_peer_closed.get() || self.failure.get().is_some() => {
                State::Closed
            }
            LocalClose::Queued | LocalClose::Sent => State::Closing,
        }
    }

    /// Why the connection failed, if it did.
    pub fn failure(&self) -> Option<ProtocolError> {
        self.failure.get()
    }

    /// Queues a ping for the next [`poll_control`](super::Sender::poll_control), in place of one
    /// that is still queued. No ping is sent once the connection closes.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`] for more than 125 bytes.
    pub fn ping(&self, payload: &[u8]) -> Result<(), ProtocolError> {
        self.ping.set(ControlPayload::new(payload)?);
        self.has_due_frames.set(true);
        Ok(())
    }

    /// Begins the closing handshake. The next [`poll_control`](super::Sender::poll_control) encodes
    /// the close frame, which is the last frame. Does nothing if the connection is already closing.
    /// Without a code the reason is left out.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`] if the reason has more than 123 bytes.
    pub fn close(&self, frame: CloseFrame<'_>, now: Instant) -> Result<(), ProtocolError> {
        self.queue_close(ControlPayload::close(frame)?);
        self.timers.advance(now);
        Ok(())
    }

    /// A read begins. Call this before each read.
    ///
    /// The time since bytes last arrived, in which the program did something else, then does not
    /// count towards the [`message_timeout`](crate::StreamConfig::message_timeout) of a partially
    /// received message.
    pub fn handle_read_start(&self, now: Instant) {
        self.timers.handle_read_start(now);
    }

    /// Nothing was read since bytes last arrived, or since the last call of this. That time does
    /// not count towards the message timeout either.
    pub(crate) fn handle_read_pause(&self, now: Instant) {
        self.timers.handle_read_pause(now);
    }

    /// Bytes of the peer have arrived. Call this after each read, before decoding.
    pub fn handle_received(&self, now: Instant) {
        self.timers.handle_received(now);
    }

    /// A write waits for the peer. Call this when the wait begins, and again whenever the peer has
    /// accepted a part. [`Sender::handle_written`](super::Sender::handle_written) and
    /// [`handle_write_failed`](Self::handle_write_failed) end the wait.
    pub fn handle_write_blocked(&self, now: Instant) {
        self.handle_write(Some(now), true);
    }

    /// A write has failed, so no write waits for the peer.
    pub fn handle_write_failed(&self) {
        self.timers.handle_blocked(false);
    }

    /// The stream has ended: the peer sends no more.
    ///
    /// # Errors
    /// The [failure](Self::failure) of the connection, if there is one.
    /// [`Violation::EndedWithoutClose`] if the peer's close frame has not arrived.
    pub fn handle_end(&self) -> Result<(), ProtocolError> {
        self.has_ended.set(true);
        if !self.has_peer_closed.get() && self.failure.get().is_none() {
            self.failure.set(Some(Violation::EndedWithoutClose.into()));
        }
        self.failure.get().map_or(Ok(()), Err)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout). Every other call may change it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.deadline()
    }

    /// Handles what is due at `now`: queues a ping, fails the connection, or does nothing.
    ///
    /// # Errors
    /// [`ProtocolError::Timeout`]. After [`Timeout::Pong`], [`Timeout::Idle`] and
    /// [`Timeout::Message`] a close frame is due. After [`Timeout::Write`] and [`Timeout::Close`]
    /// only shutting the stream down remains.
    pub fn handle_timeout(&self, now: Instant) -> Result<(), ProtocolError> {
        match self.timers.handle_timeout(now) {
            None => Ok(()),
            Some(TimerEvent::Ping) => self.ping(b""),
            Some(TimerEvent::Timeout(timeout)) => {
                self.has_ended.set(timeout == Timeout::Close);
                self.fail(ProtocolError::Timeout(timeout));
                self.timers.advance(now);
                Err(ProtocolError::Timeout(timeout))
            }
        }
    }

    /// A data frame was received, or is sent.
    #[inline]
    pub(crate) fn handle_data(&self) {
        self.timers.handle_data();
    }

    #[inline]
    pub(super) fn handle_message_progress(&self, is_under_way: bool) {
        self.timers.handle_message_progress(is_under_way);
    }

    /// See [`StreamConfig::message_timeout`](crate::StreamConfig::message_timeout).
    pub(crate) const fn message_timeout(&self) -> Option<Duration> {
        self.timers.message_timeout()
    }

    /// When the partially received message times out, if there is one.
    #[inline]
    pub(crate) fn message_deadline(&self) -> Option<Instant> {
        self.timers.message_deadline()
    }

    /// The [`poll_timeout`](Self::poll_timeout) of a half that writes and does not read.
    #[inline]
    pub(crate) fn poll_write_timeout(&self) -> Option<Instant> {
        if self.timers.is_closing() { self.timers.deadline() } else { self.timers.write_deadline() }
    }

    /// Handles the deadline of [`poll_write_timeout`](Self::poll_write_timeout).
    pub(crate) fn handle_write_timeout(&self, now: Instant) -> Result<(), ProtocolError> {
        if self.timers.is_closing() {
            return self.handle_timeout(now);
        }
        Err(self.fail(ProtocolError::Timeout(Timeout::Write)))
    }

    /// Whether the arrival of bytes can make a deadline earlier. It can if a pong was awaited,
    /// because the next ping may be due earlier than that pong.
    #[inline]
    pub(crate) fn awaits_pong(&self) -> bool {
        self.timers.is_awaiting_pong()
    }

    /// The time of a write. Reads the clock only if a deadline depends on it.
    #[inline]
    pub(crate) fn write_time(&self, now: fn() -> Instant) -> Option<Instant> {
        self.timers.needs_write_time().then(now)
    }

    pub(super) fn handle_written(&self, now: Option<Instant>) {
        self.handle_write(now, false);
    }

    /// Makes a pong due. The engine keeps the latest ping only, which suffices (section 5.5.3). The
    /// stream takes each pong at once, as long as it has room for it.
    pub(super) fn handle_ping(&self, payload: &[u8]) {
        if let Ok(payload) = ControlPayload::new(payload) {
            self.pong.set(payload);
            self.has_due_frames.set(true);
        }
    }

    pub(super) fn handle_pong(&self) {
        self.has_unanswered_ping.set(false);
    }

    /// Whether the peer owes a pong. It sends one behind its close frame too, if it receives the
    /// ping before our close frame (section 5.5.2).
    pub(crate) fn has_unanswered_ping(&self) -> bool {
        self.has_unanswered_ping.get()
    }

    pub(super) fn handle_close(&self, frame: CloseFrame<'_>) {
        self.has_peer_closed.set(true);
        self.queue_close(frame.code.map_or(ControlPayload::EMPTY, ControlPayload::code));
    }

    /// Fails the connection with `error`. Returns the first error that it failed with.
    pub(crate) fn fail(&self, error: ProtocolError) -> ProtocolError {
        let failure = self.failure.get().unwrap_or(error);
        self.failure.set(Some(failure));
        match failure.close_code() {
            Some(code) => self.queue_close(ControlPayload::code(code)),
            None => self.has_ended.set(true),
        }
        failure
    }

    /// Whether a control frame may be due.
    #[inline]
    pub(crate) fn has_due_frames(&self) -> bool {
        self.has_due_frames.get()
    }

    /// Takes the next control frame that is due. A close frame is the last.
    pub(super) fn poll_frame(&self) -> Option<(Opcode, ControlPayload)> {
        if self.local_close.get() == LocalClose::Sent || self.has_ended.get() {
            self.has_due_frames.set(false);
            return None;
        }
        if let Some(pong) = self.pong.take() {
            return Some((Opcode::Pong, pong));
        }
        if let Some(close) = self.close.take() {
            self.local_close.set(LocalClose::Sent);
            return Some((Opcode::Close, *close));
        }
        self.has_due_frames.set(false);
        let ping = self.ping.take()?;
        self.has_unanswered_ping.set(true);
        Some((Opcode::Ping, ping))
    }

    fn handle_write(&self, now: Option<Instant>, is_blocked: bool) {
        self.timers.handle_write(now);
        self.timers.handle_blocked(is_blocked);
        // Data queued before the close frame gets its time. A peer that violated the protocol gets
        // no extra time.
        if self.timers.is_closing() && self.failure.get().is_none() {
            self.timers.handle_close_progress();
        }
    }

    fn queue_close(&self, payload: ControlPayload) {
        if self.local_close.get() == LocalClose::Open {
            self.local_close.set(LocalClose::Queued);
            self.close.set(Some(Box::new(payload)));
            self.has_due_frames.set(true);
            self.timers.handle_close();
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timers, local_close, has_peer_closed, failure, .. } = self;
        f.debug_struct("Control")
            .field("timers", timers)
            .field("local_close", local_close)
            .field("has_peer_closed", has_peer_closed)
            .field("failure", failure)
            .finish_non_exhaustive()
    }
}

/// A control frame that may be due. Memory is allocated for the first payload that is not empty, and
/// kept. Most connections never need it, and are smaller this way.
#[derive(Default)]
struct ControlSlot {
    /// `None`: an empty payload.
    payload: Cell<Option<Box<ControlPayload>>>,
    is_full: Cell<bool>,
}

impl ControlSlot {
    fn set(&self, payload: ControlPayload) {
        let mut memory = self.payload.take();
        if let Some(memory) = &mut memory {
            **memory = payload;
        } else if payload.len > 0 {
            memory = Some(Box::new(payload));
        }
        self.payload.set(memory);
        self.is_full.set(true);
    }

    fn take(&self) -> Option<ControlPayload> {
        if !self.is_full.take() {
            return None;
        }
        let memory = self.payload.take();
        let payload = memory.as_deref().copied().unwrap_or(ControlPayload::EMPTY);
        self.payload.set(memory);
        Some(payload)
    }
}

/// The payload of a control frame.
#[derive(Clone, Copy)]
pub(super) struct ControlPayload {
    bytes: [u8; CONTROL_PAYLOAD_BYTES_MAX],
    len: u8,
}

impl ControlPayload {
    const EMPTY: Self = Self { bytes: [0; CONTROL_PAYLOAD_BYTES_MAX], len: 0 };

    fn new(payload: &[u8]) -> Result<Self, Misuse> {
        let mut bytes = Self::EMPTY.bytes;
        let into = bytes.get_mut(..payload.len()).ok_or(Misuse::LongControlFrame)?;
        into.copy_from_slice(payload);
        Ok(Self { bytes, len: payload.len() as u8 })
    }

    fn code(code: CloseCode) -> Self {
        let mut payload = Self { len: 2, ..Self::EMPTY };
        payload.bytes[..2].copy_from_slice(&code.get().to_be_bytes());
        payload
    }

    fn close(frame: CloseFrame<'_>) -> Result<Self, Misuse> {
        let Some(code) = frame.code else { return Ok(Self::EMPTY) };
        let end = 2 + frame.reason.len();
        let mut payload = Self::code(code);
        let reason = payload.bytes.get_mut(2..end).ok_or(Misuse::LongControlFrame)?;
        reason.copy_from_slice(frame.reason.as_bytes());
        payload.len = end as u8;
        Ok(payload)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

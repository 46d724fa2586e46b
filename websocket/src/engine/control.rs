use std::cell::Cell;
use std::fmt;
use std::time::Instant;

use super::timers::{TimerEvent, Timers};
use crate::frame::{CONTROL_PAYLOAD_BYTES_MAX, Opcode};
use crate::{CloseCode, CloseFrame, Misuse, ProtocolError, StreamConfig, Timeout, Violation};

/// What the halves of a connection share: answers that are due, the closing handshake, the timers.
///
/// All through `&self`, so that a [`Receiver`](super::Receiver) and a [`Sender`](super::Sender) in
/// two tasks of one thread can have it in an `Rc`.
///
/// # Closing (RFC 6455 section 7)
///
/// Either side begins: [`close`](Self::close), or the peer's [`Event::Close`](super::Event::Close),
/// which is answered with the same code. An error of the receiver and a timeout begin it too, with
/// [the code of the error](ProtocolError::close_code), and wait for no answer. From then on data is refused,
/// while the peer's may still come. Then, when all is written:
///
/// - a server shuts the stream down once the state is [`Closed`](State::Closed);
/// - a client whose connection has not failed waits for the server to do so, until
///   [`handle_timeout`](Self::handle_timeout) says that it has waited for long enough.
#[repr(C)] // what each message looks at comes first, in as few cache lines as it fits
pub struct Control {
    /// False only if nothing is to be sent of what is in the slots.
    has_due_frames: Cell<bool>,
    local_close: Cell<LocalClose>,
    /// Whether the peer's close frame has come.
    has_peer_closed: Cell<bool>,
    /// Whether nothing is to be sent any more, not even a close frame.
    has_ended: Cell<bool>,
    failure: Cell<Option<ProtocolError>>,
    timers: Timers,
    pong: ControlSlot,
    ping: ControlSlot,
    close: ControlSlot,
}

/// How far a connection is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Messages go both ways.
    Open,
    /// A close frame is on its way from one side or the other, and its answer not yet.
    Closing,
    /// Close frames have gone both ways, or the connection has failed: nothing comes any more, and
    /// nothing goes but what is already encoded.
    Closed,
}

/// How far our own close frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalClose {
    Open,
    /// It is due.
    Queued,
    /// It is encoded, and was the last frame.
    Sent,
}

impl Control {
    pub(super) fn new(config: &StreamConfig, now: Instant) -> Self {
        Self {
            timers: Timers::new(config, now),
            pong: ControlSlot::default(),
            ping: ControlSlot::default(),
            close: ControlSlot::default(),
            has_due_frames: Cell::new(false),
            local_close: Cell::new(LocalClose::Open),
            has_peer_closed: Cell::new(false),
            failure: Cell::new(None),
            has_ended: Cell::new(false),
        }
    }

    /// How far the connection is from its end.
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

    /// Why the connection failed, if it has.
    pub fn failure(&self) -> Option<ProtocolError> {
        self.failure.get()
    }

    /// Sends a ping with this payload at the next [`poll_control`](super::Sender::poll_control). One
    /// that still waits is replaced; none is sent once the connection closes.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`] above 125 bytes.
    pub fn ping(&self, payload: &[u8]) -> Result<(), ProtocolError> {
        self.ping.set(ControlPayload::new(payload)?);
        self.has_due_frames.set(true);
        Ok(())
    }

    /// Begins the closing handshake: the close frame leaves at the next
    /// [`poll_control`](super::Sender::poll_control), and is the last frame. If the connection closes
    /// already, nothing changes. Without a code the reason is left out.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`] if the reason is above 123 bytes.
    pub fn close(&self, frame: CloseFrame<'_>, now: Instant) -> Result<(), ProtocolError> {
        self.queue_close(ControlPayload::close(frame)?);
        self.timers.advance(now);
        Ok(())
    }

    /// A read begins: call it before each, and what passed since bytes came last, in which the program was
    /// busy or waited for something else, does not count as time of the
    /// [message](crate::StreamConfig::message_timeout) that has come in part.
    pub fn handle_read_start(&self, now: Instant) {
        self.timers.handle_read_start(now);
    }

    /// Nothing was read up to `now` since bytes came last, or since this was called last: that does not
    /// count as time of the message either.
    pub(crate) fn handle_read_pause(&self, now: Instant) {
        self.timers.handle_read_pause(now);
    }

    /// Bytes of the peer came: call it after each read, before they are decoded.
    pub fn handle_received(&self, now: Instant) {
        self.timers.handle_received(now);
    }

    /// A write has to wait until the peer takes more: call it then, and again whenever the peer has
    /// taken a part. That is over with [`Sender::handle_written`](super::Sender::handle_written), and
    /// with [`handle_write_failed`](Self::handle_write_failed).
    pub fn handle_write_blocked(&self, now: Instant) {
        self.handle_write(now, true);
    }

    /// A write has failed: nothing waits for the peer to take it any more.
    pub fn handle_write_failed(&self) {
        self.timers.handle_blocked(false);
    }

    /// The stream has ended: the peer will send no more.
    ///
    /// # Errors
    /// The [failure](Self::failure) of the connection, if it has failed;
    /// [`Violation::EndedWithoutClose`] if the peer's close frame did not come before.
    pub fn handle_end(&self) -> Result<(), ProtocolError> {
        self.has_ended.set(true);
        if !self.has_peer_closed.get() && self.failure.get().is_none() {
            self.failure.set(Some(Violation::EndedWithoutClose.into()));
        }
        self.failure.get().map_or(Ok(()), Err)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; it changes with every other
    /// call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.deadline()
    }

    /// Does what is due at `now`, which may be nothing: queues a ping, or fails the connection.
    ///
    /// # Errors
    /// [`ProtocolError::Timeout`]. After [`Timeout::Pong`], [`Timeout::Idle`] and [`Timeout::Message`] a close
    /// frame is to be sent, after [`Timeout::Write`] and [`Timeout::Close`] there is nothing to do but to
    /// shut the stream down.
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

    #[inline]
    pub(super) fn handle_data(&self) {
        self.timers.handle_data();
    }

    #[inline]
    pub(super) fn handle_message_progress(&self, is_under_way: bool) {
        self.timers.handle_message_progress(is_under_way);
    }

    /// When a message that has come in part is late, if one has.
    #[inline]
    pub(crate) fn message_deadline(&self) -> Option<Instant> {
        self.timers.message_deadline()
    }

    /// What [`poll_timeout`](Self::poll_timeout) is to who writes and does not read.
    #[inline]
    pub(crate) fn poll_write_timeout(&self) -> Option<Instant> {
        if self.timers.is_closing() { self.timers.deadline() } else { self.timers.write_deadline() }
    }

    /// To be called when [that](Self::poll_write_timeout) is due.
    pub(crate) fn handle_write_timeout(&self, now: Instant) -> Result<(), ProtocolError> {
        if self.timers.is_closing() {
            return self.handle_timeout(now);
        }
        Err(self.fail(ProtocolError::Timeout(Timeout::Write)))
    }

    /// Whether something may be due earlier than before once bytes of the peer have come: the next ping,
    /// if the peer had more time to answer the last.
    #[inline]
    pub(crate) fn awaits_pong(&self) -> bool {
        self.timers.is_awaiting_pong()
    }

    /// What to tell [`Sender::handle_written`](super::Sender::handle_written): the time, if any deadline
    /// depends on it.
    #[inline]
    pub(crate) fn write_time(&self, now: fn() -> Instant) -> Instant {
        if self.timers.needs_write_time() { now() } else { self.timers.now() }
    }

    pub(super) fn handle_written(&self, now: Instant) {
        self.handle_write(now, false);
    }

    /// To be answered: the latest ping alone (section 5.5.3).
    pub(super) fn handle_ping(&self, payload: &[u8]) {
        if let Ok(payload) = ControlPayload::new(payload) {
            self.pong.set(payload);
            self.has_due_frames.set(true);
        }
    }

    pub(super) fn handle_close(&self, frame: CloseFrame<'_>) {
        self.has_peer_closed.set(true);
        self.queue_close(frame.code.map_or(ControlPayload::EMPTY, ControlPayload::code));
    }

    /// The connection fails with `error`, unless it has failed before; says what with.
    pub(crate) fn fail(&self, error: ProtocolError) -> ProtocolError {
        let failure = self.failure.get().unwrap_or(error);
        self.failure.set(Some(failure));
        match failure.close_code() {
            Some(code) => self.queue_close(ControlPayload::code(code)),
            None => self.has_ended.set(true),
        }
        failure
    }

    /// Whether there may be a control frame to send.
    #[inline]
    pub(crate) fn has_due_frames(&self) -> bool {
        self.has_due_frames.get()
    }

    /// The next control frame that is due. A close frame is the last.
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
            return Some((Opcode::Close, close));
        }
        self.has_due_frames.set(false);
        self.ping.take().map(|ping| (Opcode::Ping, ping))
    }

    fn handle_write(&self, now: Instant, is_blocked: bool) {
        self.timers.handle_write(now);
        self.timers.handle_blocked(is_blocked);
        // What is queued before a close frame takes its time; but who broke the protocol has no claim.
        if self.timers.is_closing() && self.failure.get().is_none() {
            self.timers.handle_close_progress();
        }
    }

    fn queue_close(&self, payload: ControlPayload) {
        if self.local_close.get() == LocalClose::Open {
            self.local_close.set(LocalClose::Queued);
            self.close.set(payload);
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

/// The payload of a control frame that is due, if one is. Its memory is taken when it is first needed,
/// and kept: most connections never need it, and are smaller without.
#[derive(Default)]
struct ControlSlot {
    payload: Cell<Option<Box<ControlPayload>>>,
    is_full: Cell<bool>,
}

impl ControlSlot {
    fn set(&self, payload: ControlPayload) {
        let mut memory = self.payload.take().unwrap_or_default();
        *memory = payload;
        self.payload.set(Some(memory));
        self.is_full.set(true);
    }

    fn take(&self) -> Option<ControlPayload> {
        let memory = self.payload.take();
        let payload = memory.as_deref().copied().filter(|_| self.is_full.take());
        self.payload.set(memory);
        payload
    }
}

/// The payload of a control frame.
#[derive(Clone, Copy)]
pub(super) struct ControlPayload {
    bytes: [u8; CONTROL_PAYLOAD_BYTES_MAX],
    len: u8,
}

impl Default for ControlPayload {
    fn default() -> Self {
        Self::EMPTY
    }
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

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;

use owned_io::backend::Direction;
use owned_io::{BufResult, OwnedRead, Pool, Spare};
use owned_io_websocket::stream::{Error, Message, Received};
use owned_io_websocket::{CloseFrame, ProtocolError, Violation};
use tungstenite::Message as TungsteniteMessage;

use crate::engine::{PeerClose, ReceiveStatus};
use crate::shared::Shared;
use crate::sync_buffers::ReadTarget;

/// The half that receives. It also answers the peer's pings and close frame, and watches the
/// timers.
///
/// All of that happens only while one of its methods is awaited.
///
/// # Cancellation
///
/// Its futures must not be dropped after their first poll and before they are ready. Bytes of the
/// peer may be lost then, and every later call returns [`Error::Interrupted`]. To wait for
/// something else as well, keep the future and use [`owned_io::select`]. To end the wait, use
/// [`Outgoing::shutdown_handle`](crate::Outgoing::shutdown_handle).
pub struct Incoming<H> {
    half: H,
    pool: Pool,
    shared: Rc<Shared>,
    /// The message that was handed out last.
    message: Option<TungsteniteMessage>,
    phase: Phase,
    /// Whether the closing handshake is done.
    is_closing: bool,
    peer_close: Option<Box<PeerClose>>,
    /// Whether a read is in progress. If it is set when a call begins, a read was dropped before it
    /// ended.
    is_reading: bool,
}

/// The most bytes that are read and discarded at once, without a buffer of the pool.
const DISCARDED_BYTES_MAX: usize = 4 * 1024;

#[derive(Clone, Copy)]
enum Phase {
    Open,
    /// Reads have ended. The error is why; `None` after a closing handshake.
    Ended(Option<ProtocolError>),
}

impl<H: OwnedRead> Incoming<H> {
    pub(crate) const fn new(half: H, pool: Pool, shared: Rc<Shared>) -> Self {
        let (message, phase) = (None, Phase::Open);
        let (is_closing, peer_close, is_reading) = (false, None, false);
        Self { half, pool, shared, message, phase, is_closing, peer_close, is_reading }
    }

    /// Waits for the next message. Returns `None` once the connection has closed normally, and on
    /// every later call.
    ///
    /// # Errors
    /// - [`Error::Protocol`]: the connection has failed. The peer was told why, and every later
    ///   call returns the same error.
    /// - [`Error::Io`]: the connection is lost. The exception is
    ///   [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), when all buffers of the pool are in use:
    ///   nothing is lost, and the next call continues.
    ///
    /// # Cancellation
    /// See the [type](Self#cancellation).
    pub async fn receive(&mut self) -> Result<Option<Message<'_>>, Error> {
        self.message = self.receive_next().await?;
        Ok(self.message.as_ref().map(borrow_message))
    }

    /// Returns the next message if it has already been received. Does not wait, and reads nothing.
    /// `None` has many reasons; [`receive`](Self::receive) tells them apart.
    pub fn try_receive(&mut self) -> Option<Message<'_>> {
        self.message = self.try_next();
        self.message.as_ref().map(borrow_message)
    }

    /// Waits for the next message, like [`receive`](Self::receive), and moves it out. That costs
    /// nothing: the message is always [owned](Received::Owned).
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    ///
    /// # Cancellation
    /// See the [type](Self#cancellation).
    pub async fn receive_owned(&mut self) -> Result<Option<Received<'_>>, Error> {
        Ok(self.receive_next().await?.map(move_out))
    }

    /// Returns the next message if it has already been received, and moves it out. See
    /// [`try_receive`](Self::try_receive).
    pub fn try_receive_owned(&mut self) -> Option<Received<'_>> {
        self.try_next().map(move_out)
    }

    /// The peer's close frame, once it has arrived. It has when [`receive`](Self::receive) returns
    /// `None`. If we closed first, it is the answer, usually with our own code.
    pub fn peer_close(&self) -> Option<CloseFrame<'_>> {
        self.peer_close.as_deref().map(PeerClose::frame)
    }

    fn handle_close(&mut self, frame: Option<PeerClose>) {
        self.is_closing = true;
        if let Some(frame) = frame {
            self.peer_close = Some(Box::new(frame));
        }
    }

    fn ended(&self) -> Option<Result<(), Error>> {
        match self.phase {
            _ if self.is_reading => Some(Err(Error::Interrupted)),
            Phase::Open => None,
            Phase::Ended(failure) => Some(failure.map_or(Ok(()), |failure| Err(failure.into()))),
        }
    }

    fn try_next(&mut self) -> Option<TungsteniteMessage> {
        if self.ended().is_some() {
            return None;
        }
        match self.shared.next() {
            ReceiveStatus::Message(message) => Some(message),
            ReceiveStatus::NeedsRead
            | ReceiveStatus::BudgetExhausted
            | ReceiveStatus::OutOfMemory => None,
            ReceiveStatus::Closed(frame) => {
                self.handle_close(frame);
                None
            }
            ReceiveStatus::Failed(failure) => {
                self.shared.fail(failure);
                None
            }
        }
    }

    async fn receive_next(&mut self) -> Result<Option<TungsteniteMessage>, Error> {
        if let Some(ended) = self.ended() {
            return ended.map(|()| None);
        }
        loop {
            let next =
                if self.is_closing { ReceiveStatus::Closed(None) } else { self.shared.next() };
            match next {
                ReceiveStatus::Message(message) => return Ok(Some(message)),
                ReceiveStatus::NeedsRead => self.read_more().await?,
                // Boxed, because they are rarely needed.
                ReceiveStatus::BudgetExhausted => Box::pin(self.shared.yield_now()).await,
                ReceiveStatus::OutOfMemory => Box::pin(self.shared.wait_for_memory()).await,
                ReceiveStatus::Closed(frame) => {
                    self.handle_close(frame);
                    self.phase = Phase::Ended(None);
                    self.shared.end();
                    self.linger().await;
                    return Ok(None);
                }
                ReceiveStatus::Failed(failure) => {
                    self.phase = Phase::Ended(Some(failure));
                    self.shared.fail(failure);
                    match failure.close_code() {
                        Some(_) => self.linger().await,
                        None => self.shared.shut_down(),
                    }
                    return Err(failure.into());
                }
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Error> {
        match self.read().await {
            Ok(_) => Ok(()), // tungstenite decides whether the stream may end here
            Err(_) if self.shared.failure().is_some() => Ok(()), // reported next
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => Err(error.into()),
            Err(error) => {
                self.phase = Phase::Ended(Some(Violation::EndedWithoutClose.into()));
                Err(error.into())
            }
        }
    }

    /// Reads into the buffer. Returns the number of bytes.
    async fn read(&mut self) -> io::Result<usize> {
        let Self { half, pool, shared, is_reading, .. } = self;
        *is_reading = true;
        let read_target = shared.with_buffers(|buffers| buffers.read_target());
        let read = match read_target {
            ReadTarget::Pooled => {
                let mut reading = pin!(half.read_pooled(pool));
                let read = poll_fn(|cx| shared.poll_with_upkeep(reading.as_mut(), cx)).await;
                read.map(|buf| {
                    let n = buf.len();
                    shared.handle_received(&buf);
                    shared.with_buffers(|buffers| buffers.fill_pooled(buf));
                    n
                })
            }
            ReadTarget::Own(spare) => {
                let mut reading = pin!(half.read(spare));
                let read = poll_fn(|cx| shared.poll_with_upkeep(reading.as_mut(), cx)).await;
                let BufResult(read, buf) = read.map_buf(Spare::into_inner);
                read.inspect(|_| {
                    shared.handle_received(&buf);
                    shared.with_buffers(|buffers| buffers.fill(buf));
                })
            }
        };
        *is_reading = false;
        read
    }

    /// Reads bytes that nobody needs; returns their number. An exhausted pool is no reason to close
    /// with bytes unread, so the read then uses a buffer of its own.
    async fn discard(&mut self) -> io::Result<usize> {
        match self.read().await {
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {}
            read => return read,
        }
        let Self { half, shared, is_reading, .. } = self;
        *is_reading = true;
        let mut reading = pin!(half.read(Vec::with_capacity(DISCARDED_BYTES_MAX)));
        let BufResult(read, _) = poll_fn(|cx| shared.poll_with_upkeep(reading.as_mut(), cx)).await;
        *is_reading = false;
        read
    }

    /// Writes what is left, the close frame last. Then waits until the peer ends the stream or the
    /// time is up.
    ///
    /// Closing a socket with unread bytes sends a reset, and the peer might never see what was sent
    /// last.
    async fn linger(&mut self) {
        while self.discard().await.is_ok_and(|n| n > 0) {}
        let shared = &self.shared;
        let flushing = poll_fn(|cx| shared.poll_flush(Direction::Read, cx));
        let mut flushing = pin!(flushing);
        let _ = poll_fn(|cx| shared.poll_with_upkeep(flushing.as_mut(), cx)).await;
        shared.shut_down();
    }
}

fn borrow_message(message: &TungsteniteMessage) -> Message<'_> {
    match message {
        TungsteniteMessage::Text(text) => Message::Text(text),
        TungsteniteMessage::Binary(bytes) => Message::Binary(bytes),
        other => unreachable!("{} bytes of a control frame", other.len()),
    }
}

fn move_out(message: TungsteniteMessage) -> Received<'static> {
    let kind = borrow_message(&message).kind();
    Received::Owned(kind, message.into_data())
}

impl<H> fmt::Debug for Incoming<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

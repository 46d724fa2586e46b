use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use owned_io::ShutdownHandle;
use owned_io::backend::Half;
use owned_io_websocket::stream::{Error, Message, Unsent};
use owned_io_websocket::{CloseFrame, Limit, Part, ProtocolError};

use crate::CopyStats;
use crate::shared::Shared;

/// The half that sends.
///
/// Messages are queued by the `write` methods and leave by [`flush`](Self::flush), a buffer at a time.
/// What was queued since a flush was done is bounded by
/// [`queue_bytes_max`](owned_io_websocket::EngineConfig::queue_bytes_max); tungstenite and the bridge may each have a
/// buffer for as much, which is reserved in the connection's [account](owned_io_websocket::stream#memory).
///
/// # Cancellation
///
/// Dropping one of its futures loses nothing: a write that is under way goes on with the next flush,
/// or while the other half receives.
///
/// # A peer that does not read
///
/// A connection fails whose peer takes nothing of what is written for longer than
/// [`write_timeout`](owned_io_websocket::StreamConfig::write_timeout), while either half is waited for.
pub struct Outgoing {
    shared: Rc<Shared>,
}

impl Outgoing {
    pub(crate) const fn new(shared: Rc<Shared>) -> Self {
        Self { shared }
    }

    /// Queues a message: a copy of it is made, which tungstenite copies into its buffer.
    ///
    /// # Errors
    /// [`Limit::Queue`], [`Limit::Memory`], [`Misuse::SentAfterClose`](owned_io_websocket::Misuse::SentAfterClose), and
    /// [`Misuse::MessageWithinMessage`](owned_io_websocket::Misuse::MessageWithinMessage) after a
    /// [part](Self::write_part). Nothing was queued, and nothing has changed.
    pub fn write(&mut self, message: Message<'_>) -> Result<(), ProtocolError> {
        self.write_part(Part::Whole(message.kind()), message.as_bytes())
    }

    /// Queues a frame, a message or a part of one: a copy of it is made, which tungstenite copies into
    /// its buffer. Text must be UTF-8 over all its parts.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and the other misuses of parts.
    pub fn write_part(&mut self, part: Part, payload: &[u8]) -> Result<(), ProtocolError> {
        self.shared.write(part, Bytes::copy_from_slice(payload))
    }

    /// Queues a frame by reference, which tungstenite copies into its buffer.
    ///
    /// # Errors
    /// As for [`write_part`](Self::write_part); the payload comes back.
    pub fn write_bytes(&mut self, part: Part, payload: Bytes) -> Result<(), Unsent> {
        self.shared.write(part, payload.clone()).map_err(|error| Unsent { error, payload })
    }

    /// Waits until all that is queued is written.
    ///
    /// # Errors
    /// [`Error::Io`]: nothing can be sent any more. What was received can still be read.
    /// [`Error::Protocol`]: that is because of a [timeout](owned_io_websocket::Timeout).
    ///
    /// # Cancellation
    /// Safe, see the [type](Self#cancellation).
    pub async fn flush(&mut self) -> Result<(), Error> {
        let flushed = poll_fn(|cx| self.shared.poll_flush(Half::Write, cx)).await;
        flushed.map_err(|error| match self.shared.failure() {
            Some(failure @ ProtocolError::Timeout(_)) => failure.into(),
            _ => error.into(),
        })
    }

    /// Queues a message and flushes; if the queue is full, or there is no memory, it flushes first.
    ///
    /// # Errors
    /// As for [`write`](Self::write) and [`flush`](Self::flush). [`Limit::Queue`] means that the
    /// message alone exceeds it.
    ///
    /// # Cancellation
    /// The message is queued or not; otherwise safe, see the [type](Self#cancellation).
    pub async fn send(&mut self, message: Message<'_>) -> Result<(), Error> {
        match self.write(message) {
            Err(ProtocolError::Limit { limit: Limit::Queue | Limit::Memory, .. }) => {
                self.flush().await?;
                self.write(message)?;
            }
            result => result?,
        }
        self.flush().await
    }

    /// Waits until what was refused with `error` may be tried again: flushes.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush); and `error` itself, if that makes no room.
    ///
    /// # Cancellation
    /// As for [`flush`](Self::flush).
    pub async fn wait_for_room(&mut self, error: ProtocolError) -> Result<(), Error> {
        match error {
            ProtocolError::Limit { limit: Limit::Queue | Limit::Memory, .. }
                if self.queued_bytes() > 0 =>
            {
                self.flush().await
            }
            error => Err(error.into()),
        }
    }

    /// Queues a ping. The peer answers it, which is not told.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](owned_io_websocket::Misuse::LongControlFrame) above 125 bytes, and as for
    /// [`write`](Self::write).
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        self.shared.ping(payload)
    }

    /// Begins the closing handshake, and waits until the close frame is written, behind all that was
    /// queued before. If the connection closes already, that is left as it is.
    ///
    /// The handshake is done when [`receive`](crate::Incoming::receive) gives none: messages that the
    /// peer had sent before are received until then.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](owned_io_websocket::Misuse::LongControlFrame) if the reason is above 123
    /// bytes; and as for [`flush`](Self::flush).
    ///
    /// # Cancellation
    /// The handshake is begun; otherwise safe, see the [type](Self#cancellation).
    pub async fn close(&mut self, frame: CloseFrame<'_>) -> Result<(), Error> {
        self.begin_close(frame)?;
        self.flush().await
    }

    /// How many bytes were queued since all was written, headers included.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes()
    }

    /// What bytes went through until now, sent and received.
    pub fn copy_stats(&self) -> CopyStats {
        self.shared.copy_stats()
    }

    /// A handle that ends the connection at once, without a closing handshake.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shared.connection.clone()
    }

    /// A handle that begins the closing handshake from elsewhere: when the program ends, say.
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle { connection: Rc::downgrade(&self.shared) }
    }

    pub(crate) fn begin_close(&self, frame: CloseFrame<'_>) -> Result<(), ProtocolError> {
        self.shared.begin_close(frame)
    }
}

/// Begins the closing handshake of a connection that is elsewhere; does not keep it open.
#[derive(Clone)]
pub struct CloseHandle {
    connection: Weak<Shared>,
}

impl CloseHandle {
    /// As [`Outgoing::close`], but waits for nothing: the close frame leaves while either half is
    /// waited for. If the connection is gone already, nothing happens.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](owned_io_websocket::Misuse::LongControlFrame) if the reason is above 123
    /// bytes.
    pub fn close(&self, frame: CloseFrame<'_>) -> Result<(), ProtocolError> {
        self.connection.upgrade().map_or(Ok(()), |connection| connection.begin_close(frame))
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued_bytes = self.queued_bytes();
        f.debug_struct("Outgoing").field("queued_bytes", &queued_bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for CloseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseHandle").finish_non_exhaustive()
    }
}

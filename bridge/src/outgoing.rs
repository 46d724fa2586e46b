use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use owned_io::ShutdownHandle;
use owned_io::backend::Direction;
use owned_io_websocket::stream::{Error, Message, Unsent};
use owned_io_websocket::{CloseFrame, Fragment, Limit, ProtocolError};

use crate::CopyStats;
use crate::shared::Shared;

/// The half that sends.
///
/// The `write` methods queue messages, and [`flush`](Self::flush) writes them, one buffer at a
/// time. [`queue_bytes_max`](owned_io_websocket::EngineConfig::queue_bytes_max) bounds what is
/// queued since the last complete flush. tungstenite and the bridge may each hold a buffer of that
/// size, reserved in the connection's [account](owned_io_websocket::stream#memory).
///
/// # Cancellation
///
/// Dropping a future loses nothing. A write in progress continues with the next flush, or while the
/// other half receives.
///
/// # A peer that does not read
///
/// A connection fails if the peer accepts nothing for longer than
/// [`write_timeout`](owned_io_websocket::StreamConfig::write_timeout) while either half is awaited.
pub struct Outgoing {
    shared: Rc<Shared>,
}

impl Outgoing {
    pub(crate) const fn new(shared: Rc<Shared>) -> Self {
        Self { shared }
    }

    /// Queues a copy of a message, which tungstenite copies into its buffer.
    ///
    /// # Errors
    /// [`Limit::Queue`], [`Limit::Memory`],
    /// [`Misuse::SentAfterClose`](owned_io_websocket::Misuse::SentAfterClose), and
    /// [`Misuse::MessageWithinMessage`](owned_io_websocket::Misuse::MessageWithinMessage) after a
    /// [fragment](Self::write_fragment). Nothing was queued, and nothing has changed.
    pub fn write(&mut self, message: Message<'_>) -> Result<(), ProtocolError> {
        self.write_fragment(Fragment::Whole(message.kind()), message.as_bytes())
    }

    /// Queues a copy of a frame, a message or a part of one, which tungstenite copies into its
    /// buffer. Text must be UTF-8 over all parts together.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and each [`Misuse`](owned_io_websocket::Misuse) of parts.
    pub fn write_fragment(
        &mut self,
        fragment: Fragment,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        self.shared.write(fragment, Bytes::copy_from_slice(payload))
    }

    /// Queues a frame by reference. tungstenite copies it into its buffer.
    ///
    /// # Errors
    /// As for [`write_fragment`](Self::write_fragment). The payload comes back.
    pub fn write_bytes(&mut self, fragment: Fragment, payload: Bytes) -> Result<(), Unsent> {
        self.shared.write(fragment, payload.clone()).map_err(|error| Unsent { error, payload })
    }

    /// Waits until everything queued is written.
    ///
    /// # Errors
    /// Nothing can be sent any more; what was received can still be read.
    ///
    /// - [`Error::Protocol`]: because of a [timeout](owned_io_websocket::Timeout).
    /// - [`Error::Io`]: for any other reason.
    ///
    /// # Cancellation
    /// Safe, see the [type](Self#cancellation).
    pub async fn flush(&mut self) -> Result<(), Error> {
        let flushed = poll_fn(|cx| self.shared.poll_flush(Direction::Write, cx)).await;
        flushed.map_err(|error| match self.shared.failure() {
            Some(failure @ ProtocolError::Timeout(_)) => failure.into(),
            _ => error.into(),
        })
    }

    /// Queues a message and flushes. If there is no room for the message, it [waits for
    /// room](Self::wait_for_room) first.
    ///
    /// # Errors
    /// As for [`write`](Self::write) and [`flush`](Self::flush). [`Limit::Queue`] means that the
    /// message alone exceeds the limit.
    ///
    /// # Cancellation
    /// The message may or may not be queued. Otherwise safe, see the [type](Self#cancellation).
    pub async fn send(&mut self, message: Message<'_>) -> Result<(), Error> {
        while let Err(error) = self.write(message) {
            self.wait_for_room(error).await?;
        }
        self.flush().await
    }

    /// Waits until a write that was refused with `error` may be tried again. Flushes; if the queue
    /// is empty, waits until other connections release memory.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush). Returns `error` itself if it is neither [`Limit::Queue`] nor
    /// [`Limit::Memory`], or if waiting can never help.
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
            ProtocolError::Limit { limit: Limit::Memory, max, got } if got <= max => {
                if let Some(waiting) = self.shared.begin_wait_for_memory() {
                    let mut waiting = pin!(waiting);
                    poll_fn(|cx| {
                        // So that a close or an eviction ends the wait.
                        self.shared.register_write(cx);
                        waiting.as_mut().poll(cx)
                    })
                    .await;
                }
                self.shared.failure().map_or(Ok(()), |failure| Err(failure.into()))
            }
            error => Err(error.into()),
        }
    }

    /// Queues a ping. The peer's pong is not reported.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](owned_io_websocket::Misuse::LongControlFrame) for more than 125
    /// bytes, and as for [`write`](Self::write).
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        self.shared.ping(payload)
    }

    /// Begins the closing handshake, and waits until the close frame is written. Everything queued
    /// is written before it. On a connection that is closing already, only the wait remains.
    ///
    /// The handshake is done when [`receive`](crate::Incoming::receive) returns `None`. Until then
    /// it returns messages that the peer sent before.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](owned_io_websocket::Misuse::LongControlFrame) if the reason has
    /// more than 123 bytes; and as for [`flush`](Self::flush).
    ///
    /// # Cancellation
    /// The handshake has begun. Otherwise safe, see the [type](Self#cancellation).
    pub async fn close(&mut self, frame: CloseFrame<'_>) -> Result<(), Error> {
        self.begin_close(frame)?;
        self.flush().await
    }

    /// The number of bytes queued since the queue was last empty, headers included.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes()
    }

    /// How many bytes were copied and moved so far, in both directions.
    pub fn copy_stats(&self) -> CopyStats {
        self.shared.copy_stats()
    }

    /// Returns a handle that ends the connection at once, without a closing handshake.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shared.connection.clone()
    }

    /// Returns a handle that begins the closing handshake from another task, for example when the
    /// program ends.
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle { connection: Rc::downgrade(&self.shared) }
    }

    pub(crate) fn begin_close(&self, frame: CloseFrame<'_>) -> Result<(), ProtocolError> {
        self.shared.begin_close(frame)
    }
}

/// Begins the closing handshake of a connection that another task owns. Does not keep the
/// connection open.
#[derive(Clone)]
pub struct CloseHandle {
    connection: Weak<Shared>,
}

impl CloseHandle {
    /// Like [`Outgoing::close`], but does not wait. The close frame leaves while either half is
    /// awaited. Does nothing if the connection is gone.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](owned_io_websocket::Misuse::LongControlFrame) if the reason has
    /// more than 123 bytes.
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

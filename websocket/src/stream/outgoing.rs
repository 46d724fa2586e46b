use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, ready};

use bytes::Bytes;
use owned_io::ShutdownHandle;
use owned_io::backend::Half;

use super::shared::Shared;
use super::timer::LazyTimer;
use super::{EncodedFrame, Error, Message, Unsent};
use crate::{CloseFrame, Limit, Part};

/// The half that sends.
///
/// Messages are queued by the `write` methods and leave by [`flush`](Self::flush), as many in one
/// write as there are. What is queued and not yet written is bounded by
/// [`queue_bytes_max`](crate::EngineConfig::queue_bytes_max).
///
/// # Cancellation
///
/// Dropping one of its futures loses nothing: a write that is under way goes on with the next flush,
/// or while the other half receives. The compression of a [long message](Self#long-messages) goes on with the
/// next flush.
///
/// # Long messages
///
/// A message of more than 32 KiB that is to be compressed is compressed by [`flush`](Self::flush), in pieces of
/// 16 KiB. Other tasks have their turn between two pieces, as the [budget](owned_io::coop) says. The message
/// is held until then, and leaves in one frame.
///
/// What is written behind it before a flush is done has it compressed to its end at once. A close frame waits
/// for it. It is sent as it is where there is no memory to compress it with.
///
/// # A peer that does not read
///
/// A connection fails whose peer takes nothing of what is written for longer than
/// [`write_timeout`](crate::StreamConfig::write_timeout), while either half is waited for. To bound how long
/// a flush may take altogether, use [`owned_io::timeout`] with the
/// [`shutdown_handle`](Self::shutdown_handle).
pub struct Outgoing {
    shared: Rc<Shared>,
    /// Made when a flush has to wait for the first time: most have not, and there are many connections.
    timer: Option<Box<LazyTimer>>,
}

impl Outgoing {
    pub(super) const fn new(shared: Rc<Shared>) -> Self {
        Self { shared, timer: None }
    }

    /// Queues a message, a copy of it; compressed, if that was agreed on and it is
    /// [long enough](crate::Config#structfield.deflate).
    ///
    /// # Errors
    /// [`Limit::Queue`], [`Misuse::SentAfterClose`](crate::Misuse::SentAfterClose), and
    /// [`Misuse::MessageWithinMessage`](crate::Misuse::MessageWithinMessage) after a
    /// [part](Self::write_part). Nothing was queued, and nothing has changed.
    #[inline]
    pub fn write(&mut self, message: Message<'_>) -> Result<(), crate::ProtocolError> {
        self.write_part(Part::Whole(message.kind()), message.as_bytes())
    }

    /// Queues a frame, a copy of it: a message, or a part of one that is sent as it comes to be, which
    /// is never compressed. Control frames may leave in between. Text must be UTF-8 over all its parts.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and the other misuses of parts.
    #[inline]
    pub fn write_part(&mut self, part: Part, payload: &[u8]) -> Result<(), crate::ProtocolError> {
        self.shared.queue.borrow_mut().push_copy(&self.shared.control, part, payload)
    }

    /// Queues a frame by reference: for large payloads, and for such as go to many connections. Up
    /// to [`COPIED_BYTES_MAX`](super::COPIED_BYTES_MAX) it is copied all the same.
    ///
    /// A server sends the bytes from where they are. A client has to mask them: in place if nobody
    /// else has them, otherwise it copies them. Where compression was agreed on, a message is compressed
    /// as by [`write`](Self::write), and the bytes are dropped.
    ///
    /// # Errors
    /// As for [`write_part`](Self::write_part); the payload comes back.
    pub fn write_bytes(&mut self, part: Part, payload: Bytes) -> Result<(), Unsent> {
        self.shared.queue.borrow_mut().push_bytes(&self.shared.control, part, payload)
    }

    /// Queues a frame that was encoded before, by reference, so that it can go to many connections; up
    /// to [`COPIED_BYTES_MAX`](super::COPIED_BYTES_MAX) it is copied all the same.
    ///
    /// # Errors
    /// As for [`write_part`](Self::write_part), and
    /// [`Misuse::NotMasked`](crate::Misuse::NotMasked) on a client.
    pub fn write_frame(&mut self, frame: &EncodedFrame) -> Result<(), crate::ProtocolError> {
        self.shared.queue.borrow_mut().push_encoded(&self.shared.control, frame)
    }

    /// Waits until all that is queued is written: in one operation, if the peer takes it and it is
    /// not in more than [`IOV_MAX`](owned_io::IOV_MAX) pieces. Control frames that are due go with
    /// it.
    ///
    /// # Errors
    /// [`Error::Io`]: nothing can be sent any more. What was received can still be read.
    /// [`Error::Protocol`]: that is because of a [timeout](crate::Timeout), or because others needed the
    /// memory that the connection held.
    ///
    /// # Cancellation
    /// Safe, see the [type](Self#cancellation).
    pub async fn flush(&mut self) -> Result<(), Error> {
        let Self { shared, timer } = self;
        let flushed = poll_fn(|cx| {
            loop {
                if let Poll::Ready(flushed) = shared.poll_flush(Half::Write, cx) {
                    return Poll::Ready(flushed);
                }
                let timer = timer.get_or_insert_with(|| {
                    let waker = shared.writer.borrow().waker().clone();
                    Box::new(LazyTimer::new(Half::Write, waker))
                });
                ready!(timer.poll(shared));
            }
        });
        flushed.await.map_err(|error| match shared.control.failure() {
            Some(
                failure @ (crate::ProtocolError::Timeout(_) | crate::ProtocolError::Limit { .. }),
            ) => failure.into(),
            _ => error.into(),
        })
    }

    /// Queues a message and flushes; if there is no room for it, it waits for
    /// [some](Self::wait_for_room).
    ///
    /// # Errors
    /// As for [`write`](Self::write) and [`flush`](Self::flush). [`Limit::Queue`] means that the
    /// message alone exceeds it.
    ///
    /// # Cancellation
    /// The message is queued or not; otherwise safe, see the [type](Self#cancellation).
    pub async fn send(&mut self, message: Message<'_>) -> Result<(), Error> {
        while let Err(error) = self.write(message) {
            self.wait_for_room(error).await?;
        }
        self.flush().await
    }

    /// Waits until what was refused with `error` may be tried again: flushes, and if nothing is queued
    /// waits until others have given memory back.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush); and `error` itself, if it is neither [`Limit::Queue`] nor
    /// [`Limit::Memory`], or if there will never be room.
    ///
    /// # Cancellation
    /// Safe, see the [type](Self#cancellation).
    pub async fn wait_for_room(&mut self, error: crate::ProtocolError) -> Result<(), Error> {
        let is_empty = self.queued_bytes() == 0;
        match error {
            crate::ProtocolError::Limit { limit: Limit::Queue | Limit::Memory, .. }
                if !is_empty =>
            {
                self.flush().await
            }
            crate::ProtocolError::Limit { limit: Limit::Memory, max, got } if got <= max => {
                self.shared.wait_for_memory().await;
                self.shared.control.failure().map_or(Ok(()), |failure| Err(failure.into()))
            }
            error => Err(error.into()),
        }
    }

    /// Queues a ping; one that still waits is replaced. The peer answers it, which is not told:
    /// [`ping_interval`](crate::StreamConfig::ping_interval) is for finding out whether it is there.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](crate::Misuse::LongControlFrame) above 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), crate::ProtocolError> {
        self.shared.control.ping(payload)
    }

    /// Begins the closing handshake, and waits until the close frame is written, behind all that was
    /// queued before. If the connection closes already, that is left as it is.
    ///
    /// The handshake is done when [`receive`](super::Incoming::receive) gives none: messages that the
    /// peer had sent before are received until then.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](crate::Misuse::LongControlFrame) if the reason is above 123
    /// bytes; and as for [`flush`](Self::flush).
    ///
    /// # Cancellation
    /// The handshake is begun; otherwise safe, see the [type](Self#cancellation).
    pub async fn close(&mut self, frame: CloseFrame<'_>) -> Result<(), Error> {
        self.begin_close(frame)?;
        self.flush().await
    }

    /// How many bytes are queued and not yet known to be written, headers included; of a
    /// [long message](Self#long-messages), those that it was compressed to so far.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queue.borrow().queued_bytes()
    }

    /// A handle that ends the connection at once, without a closing handshake.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shared.connection.clone()
    }

    /// A handle that begins the closing handshake from elsewhere: when the program ends, say.
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle { connection: Rc::downgrade(&self.shared) }
    }

    pub(super) fn begin_close(&self, frame: CloseFrame<'_>) -> Result<(), crate::ProtocolError> {
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
    /// [`Misuse::LongControlFrame`](crate::Misuse::LongControlFrame) if the reason is above 123
    /// bytes.
    pub fn close(&self, frame: CloseFrame<'_>) -> Result<(), crate::ProtocolError> {
        self.connection.upgrade().map_or(Ok(()), |connection| connection.begin_close(frame))
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("control", &self.shared.control)
            .field("queued_bytes", &self.queued_bytes())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CloseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseHandle").finish_non_exhaustive()
    }
}

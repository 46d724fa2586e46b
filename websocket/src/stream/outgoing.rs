use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, ready};

use bytes::Bytes;
use owned_io::ShutdownHandle;
use owned_io::backend::Direction;

use super::lazy_timer::LazyTimer;
use super::shared::Shared;
use super::{EncodedFrame, Error, Message, Unsent};
use crate::engine::State;
use crate::{CloseFrame, Fragment, Limit};

/// The half that sends.
///
/// The `write` methods queue messages. [`flush`](Self::flush) writes them, as many as possible in
/// one write. [`queue_bytes_max`](crate::EngineConfig::queue_bytes_max) bounds what is queued and
/// not yet written.
///
/// # Cancellation
///
/// Dropping a future loses nothing. A write in progress continues with the next flush, or while the
/// other half receives. The compression of a [long message](Self#long-messages) continues with the
/// next flush.
///
/// # Long messages
///
/// If compression was negotiated, [`flush`](Self::flush) compresses messages of more than 32 KiB in
/// pieces of 16 KiB. Other tasks can run between two pieces, see the [work
/// budget](owned_io::coop). The message is held until it is compressed, and leaves in one frame.
///
/// Queueing another message before that compresses the rest of it at once. A close frame waits for
/// it. If there is no memory for compression, the message is sent uncompressed.
///
/// # A peer that does not read
///
/// A connection fails if the peer accepts nothing for longer than
/// [`write_timeout`](crate::StreamConfig::write_timeout) while either half is awaited. To bound the
/// duration of a flush as a whole, use [`owned_io::shutdown_after`] with the
/// [`shutdown_handle`](Self::shutdown_handle).
pub struct Outgoing {
    shared: Rc<Shared>,
    /// Created when a flush waits for the first time. Most flushes do not wait, and there are many
    /// connections.
    timer: Option<Box<LazyTimer>>,
}

impl Outgoing {
    pub(super) const fn new(shared: Rc<Shared>) -> Self {
        Self { shared, timer: None }
    }

    /// Queues a copy of a message. It is compressed if that was negotiated and the message has at
    /// least `Deflate::message_bytes_min` bytes.
    ///
    /// # Errors
    /// [`Limit::Queue`], [`Limit::Memory`],
    /// [`Misuse::SentAfterClose`](crate::Misuse::SentAfterClose), and
    /// [`Misuse::MessageWithinMessage`](crate::Misuse::MessageWithinMessage) after a
    /// [fragment](Self::write_fragment). Nothing was queued, and nothing has changed.
    #[inline]
    pub fn write(&mut self, message: Message<'_>) -> Result<(), crate::ProtocolError> {
        self.write_fragment(Fragment::Whole(message.kind()), message.as_bytes())
    }

    /// Queues a copy of a frame: a whole message, or a part of a message that is sent while it is
    /// produced. Parts are never compressed. Control frames may be sent between them. Text must be
    /// UTF-8 over all parts together.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and each [`Misuse`](crate::Misuse) of parts.
    #[inline]
    pub fn write_fragment(
        &mut self,
        fragment: Fragment,
        payload: &[u8],
    ) -> Result<(), crate::ProtocolError> {
        self.shared.queue.borrow_mut().push_copy(&self.shared.control, fragment, payload)?;
        self.shared.stop_waiting_to_send();
        Ok(())
    }

    /// Queues a frame by reference, for large payloads and for payloads that go to many
    /// connections. Payloads of at most [`COPIED_BYTES_MAX`](super::COPIED_BYTES_MAX) bytes are
    /// copied.
    ///
    /// A server sends the bytes in place. A client masks them: in place if nobody shares them, and
    /// otherwise in a copy. If compression was negotiated, a message is compressed as by
    /// [`write`](Self::write), and the bytes are dropped.
    ///
    /// # Errors
    /// As for [`write_fragment`](Self::write_fragment). The payload comes back.
    pub fn write_bytes(&mut self, fragment: Fragment, payload: Bytes) -> Result<(), Unsent> {
        self.shared.queue.borrow_mut().push_bytes(&self.shared.control, fragment, payload)?;
        self.shared.stop_waiting_to_send();
        Ok(())
    }

    /// Queues a frame that was encoded before, by reference, so that it can go to many connections.
    /// Frames of at most [`COPIED_BYTES_MAX`](super::COPIED_BYTES_MAX) bytes are copied.
    ///
    /// # Errors
    /// As for [`write_fragment`](Self::write_fragment), and
    /// [`Misuse::NotMasked`](crate::Misuse::NotMasked) on a client.
    pub fn write_frame(&mut self, frame: &EncodedFrame) -> Result<(), crate::ProtocolError> {
        self.shared.queue.borrow_mut().push_encoded(&self.shared.control, frame)?;
        self.shared.stop_waiting_to_send();
        Ok(())
    }

    /// Waits until everything queued is written. That is one operation if the peer accepts all of
    /// it and it has at most [`IOV_MAX`](owned_io::IOV_MAX) pieces. Control frames that are due are
    /// written too. Messages of a [`Topic`](super::Topic) are not waited for.
    ///
    /// # Errors
    /// Nothing can be sent any more; what was received can still be read.
    ///
    /// - [`Error::Protocol`]: because of a [timeout](crate::Timeout), or because others
    ///   needed the memory that the connection held.
    /// - [`Error::Io`]: for any other reason.
    ///
    /// # Cancellation
    /// Safe, see the [type](Self#cancellation).
    pub async fn flush(&mut self) -> Result<(), Error> {
        let Self { shared, timer } = self;
        let flushed = poll_fn(|cx| {
            loop {
                if let Poll::Ready(flushed) = shared.poll_flush(Direction::Write, cx) {
                    return Poll::Ready(flushed);
                }
                if shared.is_flushed() {
                    return Poll::Ready(Ok(())); // only a topic has more to write
                }
                let timer = timer.get_or_insert_with(|| Box::new(LazyTimer::new(Direction::Write)));
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
    /// is empty, waits until other connections release memory. The
    /// [`message_timeout`](crate::StreamConfig::message_timeout) bounds the time from the first of these
    /// waits until a write succeeds.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush). Returns `error` itself if it is neither [`Limit::Queue`] nor
    /// [`Limit::Memory`], or if waiting can never help. A wait for memory ends with
    /// [`Misuse::SentAfterClose`](crate::Misuse::SentAfterClose) when the connection begins to close.
    ///
    /// # Cancellation
    /// Safe, see the [type](Self#cancellation). A wait that was dropped does not count for the next one.
    pub async fn wait_for_room(&mut self, error: crate::ProtocolError) -> Result<(), Error> {
        let is_empty = self.queued_bytes() == 0;
        match error {
            crate::ProtocolError::Limit { limit: Limit::Queue | Limit::Memory, .. }
                if !is_empty =>
            {
                self.flush().await
            }
            crate::ProtocolError::Limit { limit: Limit::Memory, max, got } if got <= max => {
                let control = &self.shared.control;
                if control.state() != State::Open {
                    self.shared.stop_waiting_to_send();
                    let closed = || crate::Misuse::SentAfterClose.into();
                    return Err(control.failure().unwrap_or_else(closed).into());
                }
                let mut waiting = pin!(self.shared.wait_to_send());
                poll_fn(|cx| {
                    // So that a close or an eviction ends the wait.
                    self.shared.register_task(Direction::Write, cx);
                    waiting.as_mut().poll(cx)
                })
                .await;
                self.shared.control.failure().map_or(Ok(()), |failure| Err(failure.into()))
            }
            error => Err(error.into()),
        }
    }

    /// Queues a ping, in place of one that is still queued. The peer's pong is not reported. To
    /// find out whether the peer is alive, use
    /// [`ping_interval`](crate::StreamConfig::ping_interval).
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](crate::Misuse::LongControlFrame) for more than 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), crate::ProtocolError> {
        self.shared.control.ping(payload)
    }

    /// Begins the closing handshake, and waits until the close frame is written. Everything queued
    /// is written before it. On a connection that is closing already, only the wait remains.
    ///
    /// The handshake is done when [`receive`](super::Incoming::receive) returns `None`. Until then
    /// it returns messages that the peer sent before.
    ///
    /// # Errors
    /// [`Misuse::LongControlFrame`](crate::Misuse::LongControlFrame) if the reason has more than
    /// 123 bytes; and as for [`flush`](Self::flush).
    ///
    /// # Cancellation
    /// The handshake has begun. Otherwise safe, see the [type](Self#cancellation).
    pub async fn close(&mut self, frame: CloseFrame<'_>) -> Result<(), Error> {
        self.begin_close(frame)?;
        self.flush().await
    }

    /// The number of bytes that are queued and not yet known to be written, headers included. A
    /// [long message](Self#long-messages) counts with the bytes that it was compressed to so far.
    /// Messages of a [`Topic`](super::Topic) do not count.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queue.borrow().queued_bytes()
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

    pub(super) const fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    pub(super) fn begin_close(&self, frame: CloseFrame<'_>) -> Result<(), crate::ProtocolError> {
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
    /// [`Misuse::LongControlFrame`](crate::Misuse::LongControlFrame) if the reason has more than
    /// 123 bytes.
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

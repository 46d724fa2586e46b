use std::io;
use std::rc::Rc;

use owned_io::{BufResult, OwnedRead, Pool, coop};

use super::assembly::ReserveError;
use super::read_driver::{ReadDriver, poll_with_upkeep, read_with_upkeep};
use super::receive_buffer::{LocatedPiece, ReadTarget, ReceiveBuffer, ReceiveStatus};
use super::shared::Shared;
use super::{Error, Message, Received};
use crate::CloseFrame;
use crate::engine::Piece;

/// The half that receives. It also answers the peer's pings and close frame, and watches the
/// timers.
///
/// All of that happens only while one of its methods is awaited. Otherwise answers leave with the
/// next [flush](super::Outgoing::flush), which watches only whether the peer accepts data.
///
/// # Cancellation
///
/// Its futures must not be dropped after their first poll and before they are ready. Bytes of the
/// peer may be lost then, and every later call returns [`Error::Interrupted`]. To wait for
/// something else as well, keep the future and use [`owned_io::select`]. To end the wait, use
/// [`Outgoing::shutdown_handle`](super::Outgoing::shutdown_handle).
pub struct Incoming<H> {
    driver: ReadDriver<H>,
    receive_buffer: ReceiveBuffer,
}

impl<H: OwnedRead> Incoming<H> {
    pub(super) fn new(
        half: H,
        shared: Rc<Shared>,
        receive_buffer: ReceiveBuffer,
        pool: Pool,
    ) -> Self {
        Self { driver: ReadDriver::new(half, pool, shared), receive_buffer }
    }

    /// Waits for the next message. Returns `None` once the connection has closed normally (RFC 6455
    /// section 7), and on every later call. A client first waits until the server has ended the
    /// stream. A server does not wait for the client's end, unless something came with the client's
    /// close frame, behind it, or a ping is not answered. It drops the connection, even while the
    /// halves are kept.
    ///
    /// A message in one frame that fits the pool's buffers is borrowed from the buffer it was
    /// received in: nothing is copied or allocated. Other messages are assembled in one buffer,
    /// which grows as bytes arrive. The rest of a frame is read directly into it. Compressed
    /// messages are decompressed into such a buffer too.
    ///
    /// A wait for more bytes holds no buffer of the pool, on a runtime whose pending reads hold
    /// none. A partially received frame is copied for that.
    ///
    /// Other tasks run when this one has used up its [work budget](owned_io::coop), however many
    /// bytes there are to decode. Nothing is read while the connection waits for
    /// [memory](super#memory).
    ///
    /// # Errors
    /// - [`Error::Protocol`]: the connection has failed. The peer was told why, and every later
    ///   call returns the same error.
    /// - [`Error::Io`]: the connection is lost. The exception is
    ///   [`QuotaExceeded`](std::io::ErrorKind::QuotaExceeded), when all buffers of the pool are in
    ///   use: nothing is lost, and the next call continues.
    ///
    /// # Cancellation
    /// See the [type](Self#cancellation).
    pub async fn receive(&mut self) -> Result<Option<Message<'_>>, Error> {
        let located = self.next_located(ReceiveBuffer::next_message).await?;
        Ok(located.map(|located| self.receive_buffer.message(located)))
    }

    /// Returns the next message if it has already been received. Does not wait, and reads nothing.
    /// So all messages of one read can be answered before the answers are flushed once:
    ///
    /// ```
    /// use owned_io::OwnedRead;
    /// use owned_io_websocket::stream::{Error, Incoming, Outgoing};
    ///
    /// async fn echo(
    ///     mut incoming: Incoming<impl OwnedRead>,
    ///     mut outgoing: Outgoing,
    /// ) -> Result<(), Error> {
    ///     while let Some(message) = incoming.receive().await? {
    ///         outgoing.write(message)?;
    ///         while let Some(message) = incoming.try_receive() {
    ///             outgoing.write(message)?;
    ///         }
    ///         outgoing.flush().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// `None` has many reasons. [`receive`](Self::receive) tells them apart.
    #[inline]
    pub fn try_receive(&mut self) -> Option<Message<'_>> {
        let located = self.try_next(ReceiveBuffer::next_message)?;
        Some(self.receive_buffer.message(located))
    }

    /// Waits for the next message, like [`receive`](Self::receive). A large message that was
    /// assembled is moved out, to be kept or to be sent by reference:
    ///
    /// ```
    /// use owned_io::OwnedRead;
    /// use owned_io_websocket::Fragment;
    /// use owned_io_websocket::stream::{Error, Incoming, Outgoing, Received};
    ///
    /// async fn echo(
    ///     mut incoming: Incoming<impl OwnedRead>,
    ///     mut outgoing: Outgoing,
    /// ) -> Result<(), Error> {
    ///     while let Some(message) = incoming.receive_owned().await? {
    ///         match message {
    ///             Received::Borrowed(message) => outgoing.write(message)?,
    ///             Received::Owned(kind, payload) => {
    ///                 outgoing.write_bytes(Fragment::Whole(kind), payload)?;
    ///             }
    ///         }
    ///         outgoing.flush().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// A message is moved out if it is longer than [`COPIED_BYTES_MAX`](super::COPIED_BYTES_MAX)
    /// bytes and its buffer is at most four times as large. From then on the [memory
    /// budget](super#memory) does not count it. Once it is queued it counts again, and towards
    /// [`queue_bytes_max`](crate::EngineConfig::queue_bytes_max).
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    ///
    /// # Cancellation
    /// See the [type](Self#cancellation).
    pub async fn receive_owned(&mut self) -> Result<Option<Received<'_>>, Error> {
        let located = self.next_located(ReceiveBuffer::next_message).await?;
        Ok(located.map(|located| self.receive_buffer.received(located)))
    }

    /// Returns the next message if it has already been received:
    /// [`try_receive`](Self::try_receive), with a large message moved out as by
    /// [`receive_owned`](Self::receive_owned).
    #[inline]
    pub fn try_receive_owned(&mut self) -> Option<Received<'_>> {
        let located = self.try_next(ReceiveBuffer::next_message)?;
        Some(self.receive_buffer.received(located))
    }

    /// Waits for the next piece of a message. This is for messages that are too large to be
    /// assembled; a short message is one piece. Returns `None` once the connection is closed.
    ///
    /// Nothing is copied or allocated, unless the message is compressed. A piece is then what some
    /// of its bytes decompress to. That may be long, and the [memory budget](super#memory) counts
    /// it meanwhile.
    ///
    /// If [`try_receive`](Self::try_receive) has begun to assemble the message, the first piece is
    /// all that was assembled.
    ///
    /// After the [first](Piece::first) piece, call this until the [last](Piece::last) piece.
    /// [`receive`](Self::receive) would skip the rest of the message.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    ///
    /// # Cancellation
    /// See the [type](Self#cancellation).
    pub async fn receive_piece(&mut self) -> Result<Option<Piece<'_>>, Error> {
        let located = self.next_located(ReceiveBuffer::next_piece).await?;
        Ok(located.map(|located| self.receive_buffer.piece(located)))
    }

    /// Returns the next piece if it has already been received, as
    /// [`try_receive`](Self::try_receive) does for messages.
    #[inline]
    pub fn try_receive_piece(&mut self) -> Option<Piece<'_>> {
        let located = self.try_next(ReceiveBuffer::next_piece)?;
        Some(self.receive_buffer.piece(located))
    }

    /// The peer's close frame, once it has arrived. It has when [`receive`](Self::receive) returns
    /// `None`. If we closed first, it is the answer, usually with our own code.
    pub fn peer_close(&self) -> Option<CloseFrame<'_>> {
        self.receive_buffer.peer_close()
    }

    /// Returns what `next` looks for, if it has already been received.
    #[inline]
    fn try_next(
        &mut self,
        next: impl FnOnce(&mut ReceiveBuffer, &Shared) -> Result<ReceiveStatus, crate::ProtocolError>,
    ) -> Option<LocatedPiece> {
        if self.driver.is_ended() || !coop::has_budget() {
            return None;
        }
        match next(&mut self.receive_buffer, &self.driver.shared) {
            Ok(ReceiveStatus::Piece(located)) => Some(located),
            _ => None,
        }
    }

    /// Reads until `next` finds something. Returns `None` once the connection is closed.
    async fn next_located(
        &mut self,
        next: impl Fn(&mut ReceiveBuffer, &Shared) -> Result<ReceiveStatus, crate::ProtocolError>,
    ) -> Result<Option<LocatedPiece>, Error> {
        if let Some(ended) = self.driver.ended() {
            return ended.map(|()| None);
        }
        if !coop::has_budget() {
            self.driver.yield_now().await;
        }
        // What is rare or comes once is boxed, so that a connection that waits for a message is smaller. Reads are not: once
        // warm, a connection allocates nothing for a message.
        loop {
            match next(&mut self.receive_buffer, &self.driver.shared) {
                Ok(ReceiveStatus::Piece(located)) => return Ok(Some(located)),
                Ok(ReceiveStatus::NeedsRead) => {
                    self.driver.watch_message();
                    let read = match self.receive_buffer.read_target(&self.driver.shared) {
                        Ok(ReadTarget::Pooled) => {
                            self.driver.read_pooled().await.map(|buf| self.receive_buffer.put(buf))
                        }
                        Ok(ReadTarget::Direct(missing)) => {
                            // Behind the message so far.
                            let (spare, len) =
                                self.receive_buffer.lend_direct(missing, &self.driver.shared);
                            let BufResult(read, spare) =
                                read_with_upkeep!(self.driver, read(spare));
                            self.receive_buffer.put_direct(spare, len);
                            read
                        }
                        Err(error) => {
                            Box::pin(self.handle_reserve_error(error)).await?;
                            continue;
                        }
                    };
                    self.handle_read(read)?;
                }
                Ok(ReceiveStatus::BudgetExhausted) => self.driver.yield_now().await,
                Ok(ReceiveStatus::OutOfMemory) => Box::pin(self.driver.wait_for_memory()).await,
                Ok(ReceiveStatus::Closed) => {
                    let has_unread = self.receive_buffer.has_unread();
                    self.receive_buffer.clear(&self.driver.shared);
                    Box::pin(self.driver.close(has_unread)).await;
                    return Ok(None);
                }
                Err(error) => {
                    self.receive_buffer.clear(&self.driver.shared);
                    return Err(Box::pin(self.driver.fail(error)).await);
                }
            }
        }
    }

    /// Waits for memory, or fails the connection if there can never be enough.
    #[cold]
    async fn handle_reserve_error(&mut self, error: ReserveError) -> Result<(), Error> {
        match error {
            ReserveError::Retry => {
                self.driver.wait_for_memory().await;
                Ok(())
            }
            ReserveError::Fatal(error) => {
                let failure = self.driver.shared.control.fail(error);
                self.receive_buffer.clear(&self.driver.shared);
                Err(self.driver.fail(failure).await)
            }
        }
    }

    #[inline]
    fn handle_read(&mut self, read: io::Result<usize>) -> Result<(), Error> {
        self.driver.shared.stop_waiting_to_receive();
        let handled = self.driver.handle_read(read);
        if self.driver.is_ended() {
            self.receive_buffer.clear(&self.driver.shared);
        }
        handled
    }
}

impl<H> std::fmt::Debug for Incoming<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

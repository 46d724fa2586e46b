use std::io;
use std::rc::Rc;

use owned_io::{BufResult, IoBufMutExt, OwnedRead, Pool, Spare, coop};

use super::assembly::ReserveError;
use super::read_driver::ReadDriver;
use super::receive_buffer::{LocatedPiece, ReadTarget, ReceiveBuffer, ReceiveStatus};
use super::shared::Shared;
use super::{Error, Message, Received};
use crate::CloseFrame;
use crate::engine::Piece;

/// The half that receives; it answers the peer's pings and close, and watches the time, too.
///
/// All of that happens while one of its methods is waited for. Otherwise answers leave with the next
/// [flush](super::Outgoing::flush), which watches nothing but whether the peer takes what is written.
///
/// # Cancellation
///
/// Its futures must not be dropped between a poll and their end: bytes of the peer may be lost then,
/// and every later call says [`Error::Interrupted`]. To wait for something else meanwhile, keep the
/// future and use [`owned_io::beside`]; to end it, use
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

    /// Waits for the next message; none once the connection is closed as it should be (RFC 6455
    /// section 7), and when it is called after that.
    ///
    /// A message that fits the pool's buffers and comes in one frame is handed out where it was
    /// received: nothing is copied or allocated. Others are put together in one buffer, which grows as their
    /// bytes come, and which the rest of a frame is read into directly; and so are those that come
    /// compressed, as they are decompressed.
    ///
    /// While it waits for more it holds none of the pool's buffers, on a runtime whose pending reads pin
    /// none: the beginning of a frame that has come in part is copied.
    ///
    /// However much there is to decode, other tasks have their turn once this one has used up its
    /// [budget](owned_io::coop). It reads nothing while the [memory](super#memory) for what it has is
    /// used up.
    ///
    /// # Errors
    /// [`Error::Protocol`]: the connection has failed, the peer was told why, and every later call
    /// says the same. [`Error::Io`]: it is lost; but after
    /// [`QuotaExceeded`](std::io::ErrorKind::QuotaExceeded), all buffers of the pool being in use,
    /// receiving again later goes on where this left off.
    ///
    /// # Cancellation
    /// See the [type](Self#cancellation).
    pub async fn receive(&mut self) -> Result<Option<Message<'_>>, Error> {
        let located = self.next_located(ReceiveBuffer::next_message).await?;
        Ok(located.map(|located| self.receive_buffer.message(located)))
    }

    /// The next message, if it is here already: does not wait, and reads nothing. So all the messages
    /// of one read can be answered before the answers are flushed once:
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
    /// None says nothing about why: [`receive`](Self::receive) does.
    #[inline]
    pub fn try_receive(&mut self) -> Option<Message<'_>> {
        let located = self.try_next(ReceiveBuffer::next_message)?;
        Some(self.receive_buffer.message(located))
    }

    /// The same as [`receive`](Self::receive), except that a large message that was put together is
    /// moved out, to be kept or to be sent by reference:
    ///
    /// ```
    /// use owned_io::OwnedRead;
    /// use owned_io_websocket::Part;
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
    ///                 outgoing.write_bytes(Part::Whole(kind), payload)?;
    ///             }
    ///         }
    ///         outgoing.flush().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// That is for messages of more than [`COPIED_BYTES_MAX`](super::COPIED_BYTES_MAX) bytes, unless
    /// the buffer is more than four times as large. Once moved out, a message is no longer reserved in the
    /// [budget](super#memory); once queued, it is again, and counts towards
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

    /// The next message, if it is here already: [`try_receive`](Self::try_receive) of a message as
    /// [`receive_owned`](Self::receive_owned) gives it.
    #[inline]
    pub fn try_receive_owned(&mut self) -> Option<Received<'_>> {
        let located = self.try_next(ReceiveBuffer::next_message)?;
        Some(self.receive_buffer.received(located))
    }

    /// Waits for the next piece of a message, whatever its length: for messages too large to be put
    /// together. A short one is one piece. None once the connection is closed.
    ///
    /// Nothing is copied or allocated, unless the message is compressed: then a piece is what some of its
    /// bytes decompress to, which may be long, and is reserved in the
    /// [budget](super#memory) meanwhile. Of a message that [`try_receive`](Self::try_receive) found
    /// incomplete, the first piece is all that it had put together. Once the [first](Piece::first)
    /// piece of a message was given, this is to be called until the [last](Piece::last) was;
    /// [`receive`](Self::receive) would pass over what is left.
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

    /// The next piece, if it is here already: what [`try_receive`](Self::try_receive) is to
    /// [`receive`](Self::receive).
    #[inline]
    pub fn try_receive_piece(&mut self) -> Option<Piece<'_>> {
        let located = self.try_next(ReceiveBuffer::next_piece)?;
        Some(self.receive_buffer.piece(located))
    }

    /// What the peer closed with, once its close frame has come: which is so when
    /// [`receive`](Self::receive) gives none. If we closed first, that is its answer, as a rule our own code.
    pub fn peer_close(&self) -> Option<CloseFrame<'_>> {
        self.receive_buffer.peer_close()
    }

    /// What `next` looks for, if it is here already.
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

    /// Reads until there is what `next` looks for; none once the connection is closed.
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
        loop {
            match next(&mut self.receive_buffer, &self.driver.shared) {
                Ok(ReceiveStatus::Piece(located)) => return Ok(Some(located)),
                Ok(ReceiveStatus::NeedsRead) => {
                    self.driver.watch_message();
                    let read = match self.receive_buffer.read_target() {
                        Ok(ReadTarget::Pooled) => {
                            self.driver.read_pooled().await.map(|buf| self.receive_buffer.put(buf))
                        }
                        Ok(ReadTarget::Direct(bytes, missing)) => {
                            self.read_direct(bytes, missing).await
                        }
                        Err(error) => {
                            self.handle_reserve_error(error).await?;
                            continue;
                        }
                    };
                    self.handle_read(read)?;
                }
                Ok(ReceiveStatus::BudgetExhausted) => self.driver.yield_now().await,
                Ok(ReceiveStatus::OutOfMemory) => self.driver.wait_for_memory().await,
                Ok(ReceiveStatus::Closed) => {
                    self.receive_buffer.clear();
                    self.driver.close().await;
                    return Ok(None);
                }
                Err(error) => {
                    self.receive_buffer.clear();
                    return Err(self.driver.fail(error).await);
                }
            }
        }
    }

    /// Reads behind what there is of a message.
    async fn read_direct(&mut self, bytes: Vec<u8>, missing: usize) -> io::Result<usize> {
        let Self { driver, receive_buffer } = self;
        let len = bytes.len();
        let spare = bytes.spare().limit(missing);
        let BufResult(read, bytes) = driver.read(spare).await.map_buf(Spare::into_inner);
        receive_buffer.put_direct(bytes, len);
        read
    }

    /// Waits for memory, unless there can never be as much.
    #[cold]
    async fn handle_reserve_error(&mut self, error: ReserveError) -> Result<(), Error> {
        match error {
            ReserveError::Retry => {
                self.driver.wait_for_memory().await;
                Ok(())
            }
            ReserveError::Fatal(error) => {
                let failure = self.driver.shared.control.fail(error);
                self.receive_buffer.clear();
                Err(self.driver.fail(failure).await)
            }
        }
    }

    #[inline]
    fn handle_read(&mut self, read: io::Result<usize>) -> Result<(), Error> {
        self.driver.shared.stop_waiting_for_memory();
        let handled = self.driver.handle_read(read);
        if self.driver.is_ended() {
            self.receive_buffer.clear();
        }
        handled
    }
}

impl<H> std::fmt::Debug for Incoming<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

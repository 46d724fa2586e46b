//! [`AnyIncoming`] and [`AnyOutgoing`]: the methods of a connection's halves as traits.

use std::future::Future;

use bytes::Bytes;
use owned_io::OwnedRead;

use crate::engine::Piece;
use crate::stream::{Error, Incoming, Message, Outgoing, Received, Unsent};
use crate::{CloseFrame, Fragment};

/// A half that receives, of this crate or of another implementation, for services that are written
/// once for both. Each method behaves like the one of [`Incoming`] with the same name, errors and
/// cancellation included.
pub trait AnyIncoming {
    /// A message, or a part of one.
    type Piece<'a>: Into<PieceInfo>
    where
        Self: 'a;

    /// Waits for the next message.
    fn receive(&mut self) -> impl Future<Output = Result<Option<Message<'_>>, Error>>;

    /// Returns the next message if it has already been received.
    fn try_receive(&mut self) -> Option<Message<'_>>;

    /// Waits for the next message, and moves a long one out.
    fn receive_owned(&mut self) -> impl Future<Output = Result<Option<Received<'_>>, Error>>;

    /// Returns the next message if it has already been received, and moves a long one out.
    fn try_receive_owned(&mut self) -> Option<Received<'_>>;

    /// Waits for the next piece of a message.
    fn receive_piece(&mut self) -> impl Future<Output = Result<Option<Self::Piece<'_>>, Error>>;

    /// Returns the next piece if it has already been received.
    fn try_receive_piece(&mut self) -> Option<Self::Piece<'_>>;
}

/// A half that sends, of this crate or of another implementation. Each method behaves like the one
/// of [`Outgoing`] with the same name, errors and cancellation included.
pub trait AnyOutgoing {
    /// Queues a copy of a message.
    ///
    /// # Errors
    /// As for [`write_fragment`](Self::write_fragment).
    fn write(&mut self, message: Message<'_>) -> Result<(), crate::ProtocolError>;

    /// Queues a copy of a frame.
    ///
    /// # Errors
    /// A full queue, a closing connection, or a fragment that may not come next.
    fn write_fragment(
        &mut self,
        fragment: Fragment,
        payload: &[u8],
    ) -> Result<(), crate::ProtocolError>;

    /// Queues a frame by reference.
    ///
    /// # Errors
    /// As for [`write_fragment`](Self::write_fragment). The payload comes back.
    fn write_bytes(&mut self, fragment: Fragment, payload: Bytes) -> Result<(), Unsent>;

    /// Waits until everything queued is written.
    fn flush(&mut self) -> impl Future<Output = Result<(), Error>>;

    /// Queues a message and flushes.
    fn send(&mut self, message: Message<'_>) -> impl Future<Output = Result<(), Error>>;

    /// Waits until a write that was refused with `error` may be tried again.
    fn wait_for_room(
        &mut self,
        error: crate::ProtocolError,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Begins the closing handshake, and waits until the close frame is written.
    fn close(&mut self, frame: CloseFrame<'_>) -> impl Future<Output = Result<(), Error>>;

    /// The number of queued bytes.
    fn queued_bytes(&self) -> usize;
}

/// The size of a piece, and whether it ends its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceInfo {
    /// The length of the piece, in bytes.
    pub bytes: usize,
    /// Whether the message ends with this piece.
    pub last: bool,
}

impl From<Piece<'_>> for PieceInfo {
    fn from(piece: Piece<'_>) -> Self {
        Self { bytes: piece.payload.len(), last: piece.last }
    }
}

/// A message as one piece.
impl From<Message<'_>> for PieceInfo {
    fn from(message: Message<'_>) -> Self {
        Self { bytes: message.as_bytes().len(), last: true }
    }
}

// Always inlined: otherwise return values would pass through memory.
impl<H: OwnedRead> AnyIncoming for Incoming<H> {
    type Piece<'a>
        = Piece<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn receive(&mut self) -> impl Future<Output = Result<Option<Message<'_>>, Error>> {
        Self::receive(self)
    }

    #[inline(always)]
    fn try_receive(&mut self) -> Option<Message<'_>> {
        Self::try_receive(self)
    }

    #[inline(always)]
    fn receive_owned(&mut self) -> impl Future<Output = Result<Option<Received<'_>>, Error>> {
        Self::receive_owned(self)
    }

    #[inline(always)]
    fn try_receive_owned(&mut self) -> Option<Received<'_>> {
        Self::try_receive_owned(self)
    }

    #[inline(always)]
    fn receive_piece(&mut self) -> impl Future<Output = Result<Option<Piece<'_>>, Error>> {
        Self::receive_piece(self)
    }

    #[inline(always)]
    fn try_receive_piece(&mut self) -> Option<Piece<'_>> {
        Self::try_receive_piece(self)
    }
}

impl AnyOutgoing for Outgoing {
    #[inline(always)]
    fn write(&mut self, message: Message<'_>) -> Result<(), crate::ProtocolError> {
        Self::write(self, message)
    }

    #[inline(always)]
    fn write_fragment(
        &mut self,
        fragment: Fragment,
        payload: &[u8],
    ) -> Result<(), crate::ProtocolError> {
        Self::write_fragment(self, fragment, payload)
    }

    #[inline(always)]
    fn write_bytes(&mut self, fragment: Fragment, payload: Bytes) -> Result<(), Unsent> {
        Self::write_bytes(self, fragment, payload)
    }

    #[inline(always)]
    fn flush(&mut self) -> impl Future<Output = Result<(), Error>> {
        Self::flush(self)
    }

    #[inline(always)]
    fn send(&mut self, message: Message<'_>) -> impl Future<Output = Result<(), Error>> {
        Self::send(self, message)
    }

    #[inline(always)]
    fn wait_for_room(
        &mut self,
        error: crate::ProtocolError,
    ) -> impl Future<Output = Result<(), Error>> {
        Self::wait_for_room(self, error)
    }

    #[inline(always)]
    fn close(&mut self, frame: CloseFrame<'_>) -> impl Future<Output = Result<(), Error>> {
        Self::close(self, frame)
    }

    #[inline(always)]
    fn queued_bytes(&self) -> usize {
        Self::queued_bytes(self)
    }
}

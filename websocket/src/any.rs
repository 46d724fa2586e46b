//! [`AnyIncoming`] and [`AnyOutgoing`]: the methods of a connection's halves as traits.

use std::future::Future;

use bytes::Bytes;
use owned_io::OwnedRead;

use crate::engine::Piece;
use crate::stream::{Error, Incoming, Message, Outgoing, Received, Unsent};
use crate::{CloseFrame, Part};

/// A half that receives, of this crate or of another that speaks the protocol: for services that are written
/// once for both. Each method does what that of [`Incoming`] does.
pub trait AnyIncoming {
    /// A message, or a part of one.
    type Piece<'a>: Into<Extent>
    where
        Self: 'a;

    /// Waits for the next message.
    fn receive(&mut self) -> impl Future<Output = Result<Option<Message<'_>>, Error>>;

    /// The next message, if it is here already.
    fn try_receive(&mut self) -> Option<Message<'_>>;

    /// Waits for the next message; a long one is moved out.
    fn receive_owned(&mut self) -> impl Future<Output = Result<Option<Received<'_>>, Error>>;

    /// The next message, if it is here already; a long one is moved out.
    fn try_receive_owned(&mut self) -> Option<Received<'_>>;

    /// Waits for the next piece of a message.
    fn receive_piece(&mut self) -> impl Future<Output = Result<Option<Self::Piece<'_>>, Error>>;

    /// The next piece, if it is here already.
    fn try_receive_piece(&mut self) -> Option<Self::Piece<'_>>;
}

/// A half that sends: what [`AnyIncoming`] is to the other half. Each method does what that of [`Outgoing`]
/// does.
pub trait AnyOutgoing {
    /// Queues a message, a copy of it.
    ///
    /// # Errors
    /// As for [`write_part`](Self::write_part).
    fn write(&mut self, message: Message<'_>) -> Result<(), crate::ProtocolError>;

    /// Queues a frame, a copy of it.
    ///
    /// # Errors
    /// A full queue, a connection that closes, or a part that does not go there.
    fn write_part(&mut self, part: Part, payload: &[u8]) -> Result<(), crate::ProtocolError>;

    /// Queues a frame by reference.
    ///
    /// # Errors
    /// As for [`write_part`](Self::write_part); the payload comes back.
    fn write_bytes(&mut self, part: Part, payload: Bytes) -> Result<(), Unsent>;

    /// Waits until all that is queued is written.
    fn flush(&mut self) -> impl Future<Output = Result<(), Error>>;

    /// Queues a message and flushes.
    fn send(&mut self, message: Message<'_>) -> impl Future<Output = Result<(), Error>>;

    /// Waits until what was refused with `error` may be tried again.
    fn wait_for_room(
        &mut self,
        error: crate::ProtocolError,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Begins the closing handshake, and waits until the close frame is written.
    fn close(&mut self, frame: CloseFrame<'_>) -> impl Future<Output = Result<(), Error>>;

    /// How many bytes are queued.
    fn queued_bytes(&self) -> usize;
}

/// How much of a message a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How long the piece is, in bytes.
    pub bytes: usize,
    /// Whether the message ends with it.
    pub last: bool,
}

impl From<Piece<'_>> for Extent {
    fn from(piece: Piece<'_>) -> Self {
        Self { bytes: piece.payload.len(), last: piece.last }
    }
}

/// A message in one piece.
impl From<Message<'_>> for Extent {
    fn from(message: Message<'_>) -> Self {
        Self { bytes: message.as_bytes().len(), last: true }
    }
}

// Always inlined: what is passed on would otherwise be passed by way of memory.
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
    fn write_part(&mut self, part: Part, payload: &[u8]) -> Result<(), crate::ProtocolError> {
        Self::write_part(self, part, payload)
    }

    #[inline(always)]
    fn write_bytes(&mut self, part: Part, payload: Bytes) -> Result<(), Unsent> {
        Self::write_bytes(self, part, payload)
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

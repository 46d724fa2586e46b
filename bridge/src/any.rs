//! Implements [`AnyIncoming`] and [`AnyOutgoing`] for the halves, for code that takes either
//! implementation.

use std::future::Future;

use bytes::Bytes;
use owned_io::OwnedRead;
use owned_io_websocket::stream::{Error, Message, Received, Unsent};
use owned_io_websocket::{AnyIncoming, AnyOutgoing, CloseFrame, Fragment, ProtocolError};

use crate::{Incoming, Outgoing};

/// Each piece is a whole message.
impl<H: OwnedRead> AnyIncoming for Incoming<H> {
    type Piece<'a>
        = Message<'a>
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
    fn receive_piece(&mut self) -> impl Future<Output = Result<Option<Message<'_>>, Error>> {
        Self::receive(self)
    }

    #[inline(always)]
    fn try_receive_piece(&mut self) -> Option<Message<'_>> {
        Self::try_receive(self)
    }
}

impl AnyOutgoing for Outgoing {
    #[inline(always)]
    fn write(&mut self, message: Message<'_>) -> Result<(), ProtocolError> {
        Self::write(self, message)
    }

    #[inline(always)]
    fn write_fragment(&mut self, fragment: Fragment, payload: &[u8]) -> Result<(), ProtocolError> {
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
    fn wait_for_room(&mut self, error: ProtocolError) -> impl Future<Output = Result<(), Error>> {
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

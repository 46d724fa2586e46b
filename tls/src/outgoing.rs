//! [`Outgoing`]: records that wait to be written to the transport.

use std::collections::TryReserveError;

use owned_io::{IoBufExt, Slice};
use rustls::unbuffered::{EncodeError, EncryptError, InsufficientSizeError};

/// Records that wait to be written, in the order of their encryption.
///
/// Has memory only while it has bytes, or is about to.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// The first `len` bytes are records; the rest is room.
    bytes: Vec<u8>,
    len: usize,
}

/// An error of rustls that may ask for more room.
pub(crate) trait AsksForRoom {
    fn room(&self) -> Option<usize>;
}

impl Outgoing {
    /// Provides room for `room` bytes in `buf`, which may be a used buffer or a new one. It must be empty.
    pub(crate) fn prepare(&mut self, mut buf: Vec<u8>, room: usize) -> Result<(), TryReserveError> {
        if buf.capacity() < room {
            buf.try_reserve_exact(room - buf.len())?;
        }
        self.bytes = buf;
        Ok(())
    }

    /// Frees the [prepared](Self::prepare) room if it was not used.
    pub(crate) fn release_room(&mut self) {
        if self.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// The size of its memory, in bytes.
    pub(crate) const fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Appends what `write` writes into `room` bytes. If `write` asks for more room it is called again.
    pub(crate) fn append<E: AsksForRoom>(
        &mut self,
        mut room: usize,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        // At most two iterations: `write` asks for all the room that it needs.
        loop {
            let needed = self.len + room;
            if self.bytes.len() < needed {
                self.bytes.resize(needed, 0);
            }
            match write(&mut self.bytes[self.len..]) {
                Ok(n) => {
                    self.len += n;
                    return Ok(());
                }
                Err(error) => match error.room() {
                    Some(more) if more > room => room = more,
                    _ => return Err(error),
                },
            }
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The bytes behind the first `len`.
    pub(crate) fn from(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[len..self.len]
    }

    /// Takes all records; `None` if there are none.
    pub(crate) fn take(&mut self) -> Option<Slice<Vec<u8>>> {
        let len = std::mem::take(&mut self.len);
        (len > 0).then(|| std::mem::take(&mut self.bytes).buf_slice(..len))
    }
}

impl AsksForRoom for EncryptError {
    fn room(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            _ => None,
        }
    }
}

impl AsksForRoom for EncodeError {
    fn room(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            _ => None,
        }
    }
}

//! One connection, which echoes when epoll reports it ready.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use peers_common::{AlignedBytes, BUF_BYTES};

/// How many full buffers a connection may echo before the next connection is served.
const ROUNDS_MAX: usize = 16;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
}

/// A stream, and the bytes that were read from it and are not yet written.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buf: AlignedBytes,
    start: usize,
    end: usize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, buf: AlignedBytes::zeroed(BUF_BYTES), start: 0, end: 0 }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn interest(&self) -> Interest {
        if self.start < self.end { Interest::Write } else { Interest::Read }
    }

    /// Echoes until an operation would block, [`ROUNDS_MAX`] is reached, or the stream has ended. Returns false at the
    /// end of the stream. A read that does not fill the buffer is not repeated, because epoll is level-triggered.
    pub(crate) fn echo(&mut self) -> io::Result<bool> {
        for _ in 0..ROUNDS_MAX {
            if self.start == self.end {
                match self.stream.read(&mut self.buf) {
                    Ok(0) => return Ok(false),
                    Ok(n) => (self.start, self.end) = (0, n),
                    Err(error) => return would_block(error),
                }
            }
            while self.start < self.end {
                match self.stream.write(&self.buf[self.start..self.end]) {
                    Ok(n) => self.start += n,
                    Err(error) => return would_block(error),
                }
            }
            if self.end < BUF_BYTES {
                break;
            }
        }
        Ok(true)
    }
}

/// Returns true, to wait for the next event, if the operation would block or was interrupted.
fn would_block(error: io::Error) -> io::Result<bool> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(true),
        _ => Err(error),
    }
}

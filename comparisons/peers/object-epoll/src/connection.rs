//! One connection, which answers requests when epoll reports it ready.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

use peers_common::BUF_BYTES;
use peers_common::objects::Answers;

use crate::zero_copy;

/// How many reads a connection may answer before the next connection is served.
const ROUNDS_MAX: usize = 16;

/// How many answers leave in one write.
const SLICES_MAX: usize = 64;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
}

/// A stream, the requests that were read from it and not yet taken, and the answers that are not yet written.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buf: Vec<u8>,
    /// How many bytes of `buf` were read.
    end: usize,
    /// At most as many as requests fit into `buf`: nothing is read before all have been written.
    answers: VecDeque<&'static [u8]>,
    /// Whether the kernel is asked not to copy answers.
    is_zero_copy: bool,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, is_zero_copy: bool) -> Self {
        Self { stream, buf: vec![0; BUF_BYTES], end: 0, answers: VecDeque::new(), is_zero_copy }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn interest(&self) -> Interest {
        if self.answers.is_empty() { Interest::Read } else { Interest::Write }
    }

    /// Answers until an operation would block, [`ROUNDS_MAX`] is reached, or the stream has ended. Returns false at the
    /// end of the stream. A read that does not fill the buffer is not repeated, because epoll is level-triggered.
    pub(crate) fn answer(&mut self, answers: &Answers) -> io::Result<bool> {
        for _ in 0..ROUNDS_MAX {
            let mut is_full = true;
            if self.answers.is_empty() {
                match self.stream.read(&mut self.buf[self.end..]) {
                    // Also if a request is longer than the buffer.
                    Ok(0) => return Ok(false),
                    Ok(n) => self.end += n,
                    Err(error) => return would_block(error),
                }
                is_full = self.end == BUF_BYTES;
                self.take_requests(answers)?;
            }
            while !self.answers.is_empty() {
                if let Err(error) = self.write() {
                    return would_block(error);
                }
            }
            if !is_full {
                break;
            }
        }
        Ok(true)
    }

    fn take_requests(&mut self, answers: &Answers) -> io::Result<()> {
        let mut start = 0;
        while let Some((len, answer)) = answers.first(&self.buf[start..self.end])? {
            self.answers.push_back(answer);
            start += len;
        }
        self.buf.copy_within(start..self.end, 0);
        self.end -= start;
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = self.answers.len().min(SLICES_MAX);
        for (slice, answer) in slices.iter_mut().zip(&self.answers) {
            *slice = IoSlice::new(answer);
        }
        let slices = &slices[..count];
        let mut written = match self.is_zero_copy {
            true => zero_copy::send(&self.stream, slices)?,
            false => self.stream.write_vectored(slices)?,
        };
        while let Some(answer) = self.answers.front_mut() {
            if written < answer.len() {
                *answer = &answer[written..];
                break;
            }
            written -= answer.len();
            self.answers.pop_front();
        }
        Ok(())
    }
}

/// Returns true, to wait for the next event, if the operation would block or was interrupted.
fn would_block(error: io::Error) -> io::Result<bool> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(true),
        _ => Err(error),
    }
}

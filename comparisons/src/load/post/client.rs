//! [`Client`]: one connection, with at most one request in flight.

use std::io::{self, Read, Write};

use mio::event::Event;
use mio::net::TcpStream;

use super::super::http::{Head, HttpAnswers};
use super::super::transport::Transport;
use super::answer::BODY_BYTES_MAX;

/// A connection. The caller has the request, so that it is there after the connection has ended.
#[derive(Debug)]
pub(super) struct Client {
    stream: Transport,
    /// When it began to connect.
    pub(super) dialed: u64,
    /// Whether an answer has come.
    pub(super) has_answered: bool,
    connected: bool,
    writable: bool,
    /// The peer has ended its side.
    closed: bool,
    in_flight: bool,
    /// How many bytes of the request in flight are sent.
    sent: usize,
    answers: HttpAnswers,
    body: Vec<u8>,
}

/// What epoll says of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    readable: bool,
    writable: bool,
    closed: bool,
}

/// What an event caused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// It is now connected.
    pub(super) connected: bool,
    /// The request is now sent.
    pub(super) sent: bool,
    /// How many bytes arrived.
    pub(super) bytes: u64,
    /// The head of the answer, whose body is [`Client::body`].
    pub(super) answer: Option<Head>,
    /// The server has ended the connection.
    pub(super) ended: bool,
}

/// Why a connection cannot be used any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// It failed: the kind of error.
    Failed(String),
    /// What came is no answer: how.
    Wrong(&'static str),
}

impl Client {
    pub(super) fn new(stream: Transport, dialed: u64) -> Self {
        Self {
            stream,
            dialed,
            has_answered: false,
            connected: false,
            writable: false,
            closed: false,
            in_flight: false,
            sent: 0,
            answers: HttpAnswers::of_any_status(),
            body: Vec::new(),
        }
    }

    pub(super) const fn tcp_mut(&mut self) -> &mut TcpStream {
        self.stream.tcp_mut()
    }

    /// Begins a request. No other one is in flight.
    pub(super) fn start(&mut self) {
        self.in_flight = true;
        self.sent = 0;
        self.body.clear();
    }

    /// Whether any byte of the request in flight is sent.
    pub(super) const fn has_begun(&self) -> bool {
        self.sent > 0
    }

    /// Whether all of the request is sent.
    pub(super) const fn has_sent(&self, request: &[u8]) -> bool {
        self.sent == request.len()
    }

    /// The body of the last answer.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Handles an event, and sends what is left of `request`.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn handle(
        &mut self,
        ready: Ready,
        request: &[u8],
        scratch: &mut [u8],
    ) -> Result<Progress, Problem> {
        self.writable |= ready.writable;
        self.closed |= ready.closed;
        let mut progress = Progress::default();
        if !self.connected && ready.writable {
            self.finish_connecting()?;
            progress.connected = self.connected;
        }
        if self.connected && (ready.readable || ready.closed) {
            self.receive(scratch, &mut progress)?;
        }
        if !progress.ended {
            progress.sent = self.flush(request)?;
        }
        Ok(progress)
    }

    /// Sends what is left of the request in flight until the socket would block. True if all of it is sent now.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn flush(&mut self, request: &[u8]) -> Result<bool, Problem> {
        if !self.connected || !self.writable {
            return Ok(false);
        }
        if let Err(error) = self.stream.push() {
            return self.or_wait(error).map(|()| false);
        }
        if self.stream.is_handshaking() || !self.in_flight || self.sent == request.len() {
            return Ok(false);
        }
        while self.sent < request.len() {
            match self.stream.write(&request[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) => {
                    self.or_wait(error)?;
                    if !self.writable {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// An error that only says that the socket is full is none.
    fn or_wait(&mut self, error: io::Error) -> Result<(), Problem> {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.writable = false,
            io::ErrorKind::Interrupted => {}
            _ => return Err(Problem::Failed(format!("write: {error}"))),
        }
        Ok(())
    }

    fn finish_connecting(&mut self) -> Result<(), Problem> {
        let failed = |error: io::Error| Problem::Failed(format!("connect: {error}"));
        if let Some(error) = self.stream.tcp().take_error().map_err(failed)? {
            return Err(failed(error));
        }
        match self.stream.tcp().peer_addr() {
            Ok(_) => self.connected = true,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    /// Reads until the socket is empty. An answer and its bounds end that: what follows it is an error.
    fn receive(&mut self, scratch: &mut [u8], progress: &mut Progress) -> Result<(), Problem> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => {
                    progress.ended = true;
                    return Ok(());
                }
                Ok(n) => {
                    progress.bytes += n as u64;
                    let answer = self.take(&scratch[..n])?;
                    progress.answer = progress.answer.or(answer);
                    // A short read means that the socket is empty, which saves another read.
                    if self.stream.is_drained(n < scratch.len()) && !self.closed {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The answer is there, whatever comes behind it.
                Err(_) if progress.answer.is_some() => {
                    progress.ended = true;
                    return Ok(());
                }
                Err(error) => return Err(Problem::Failed(format!("read: {error}"))),
            }
        }
    }

    fn take(&mut self, mut got: &[u8]) -> Result<Option<Head>, Problem> {
        if !self.in_flight {
            return Err(Problem::Wrong("more came than was asked for"));
        }
        while let Some((part, is_end)) = self.answers.next(&mut got).map_err(Problem::Wrong)? {
            if self.body.len() + part.len() > BODY_BYTES_MAX {
                return Err(Problem::Wrong("a body that is too long"));
            }
            self.body.extend_from_slice(part);
            if is_end && !got.is_empty() {
                return Err(Problem::Wrong("more came than was asked for"));
            }
            if is_end {
                self.in_flight = false;
                return Ok(Some(self.answers.last_head()));
            }
        }
        Ok(None)
    }
}

impl Ready {
    pub(super) fn of(event: &Event) -> Self {
        Self {
            readable: event.is_readable(),
            writable: event.is_writable() || event.is_error(),
            closed: event.is_read_closed() || event.is_error(),
        }
    }
}

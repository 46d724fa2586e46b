//! [`Subscriber`]: one connection that is pushed to.

use std::io::{self, Read, Write};
use std::mem;

use super::super::frames::{self, Expected, FrameEvent, Frames};
use super::super::transport::Transport;
use super::super::upgrade::{self, Refusal, Upgrade};
use super::feed::{Checker, Pushed};

/// How many reads one event may cause before other connections are handled.
const READS_MAX: usize = 16;

/// The longest message that is pushed, in bytes: that of the longest payload, escaped as JSON, and more.
const MESSAGE_BYTES_MAX: usize = 512 * 1024;

/// A connection and its place among the messages.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) stream: Transport,
    id: u32,
    is_connected: bool,
    /// What has arrived of the answer to the upgrade; none once that is complete.
    upgrading: Option<Vec<u8>>,
    frames: Frames,
    /// A message that has not arrived whole.
    message: Vec<u8>,
    /// Bytes to send: the upgrade, later pongs.
    unsent: Vec<u8>,
    /// The number of the message that comes next.
    pub(super) next: u64,
    /// It reads little at a time, and messages may be missing.
    pub(super) is_slow: bool,
    /// Messages that were missing.
    pub(super) lost: u64,
}

/// Why a connection is over.
#[derive(Debug)]
pub(super) enum Fault {
    /// A failure of this kind.
    Failed(String),
    /// Something else came in place of the next message.
    Wrong(String),
}

/// What came of reading.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) bytes: u64,
    /// Whether there may be more to read. No further event will report it.
    pub(super) is_unfinished: bool,
}

impl Subscriber {
    /// A subscriber whose connect is in progress.
    pub(super) fn new(stream: Transport, id: u32, upgrade: &Upgrade, is_slow: bool) -> Self {
        Self {
            stream,
            id,
            is_connected: false,
            upgrading: Some(Vec::new()),
            frames: Frames::new(Expected::Text),
            message: Vec::new(),
            unsent: upgrade.request(id),
            next: 0,
            is_slow,
            lost: 0,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.upgrading.is_none()
    }

    /// Finishes connecting, and sends what is to be sent.
    pub(super) fn send(&mut self) -> Result<(), Fault> {
        if !self.is_connected {
            if let Some(error) = self.stream.tcp().take_error().map_err(Fault::connect)? {
                return Err(Fault::connect(error));
            }
            match self.stream.tcp().peer_addr() {
                Ok(_) => self.is_connected = true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(Fault::connect(error)),
            }
        }
        match self.stream.push() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            pushed => pushed.map_err(|error| Fault::Failed(format!("write: {error}")))?,
        }
        while !self.unsent.is_empty() && !self.stream.is_handshaking() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Failed(format!("write: {error}"))),
            }
        }
        Ok(())
    }

    /// Reads what is available, a slow one at most once, and calls `delivered` with the number of each message.
    pub(super) fn receive(
        &mut self,
        checker: &mut Checker,
        scratch: &mut [u8],
        mut delivered: impl FnMut(u64),
    ) -> Result<Received, Fault> {
        let mut received = Received::default();
        if !self.is_connected {
            return Ok(received);
        }
        for _ in 0..READS_MAX {
            match self.stream.read(scratch) {
                Ok(0) => return Err(Fault::Failed("closed by the server".to_owned())),
                Ok(n) => {
                    received.bytes += n as u64;
                    self.check(checker, &scratch[..n], &mut delivered)?;
                    // A slow one reads again only when it is its time.
                    if self.is_slow || self.stream.is_drained(n < scratch.len()) {
                        return Ok(received);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(received),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Failed(format!("read: {error}"))),
            }
        }
        received.is_unfinished = true;
        Ok(received)
    }

    fn check(
        &mut self,
        checker: &mut Checker,
        mut got: &[u8],
        delivered: &mut impl FnMut(u64),
    ) -> Result<(), Fault> {
        if let Some(head) = &mut self.upgrading {
            let is_open = upgrade::answer(head, &mut got, self.id, false);
            if !is_open.map_err(Fault::refused)? {
                return Ok(());
            }
            self.upgrading = None;
        }
        while let Some(event) = self.frames.next(&mut got).map_err(|what| self.wrong(what))? {
            match event {
                FrameEvent::Payload(part, true) if self.message.is_empty() => {
                    self.message(checker, part, delivered)?;
                }
                FrameEvent::Payload(part, is_last) => {
                    self.message.extend_from_slice(part);
                    if self.message.len() > MESSAGE_BYTES_MAX {
                        return Err(self.wrong("a message that is too long"));
                    }
                    if is_last {
                        let mut message = mem::take(&mut self.message);
                        self.message(checker, &message, delivered)?;
                        // Its memory is used again.
                        message.clear();
                        self.message = message;
                    }
                }
                FrameEvent::Ping(payload) => self.unsent.extend(frames::pong(&payload)),
                FrameEvent::Pong => {}
                FrameEvent::Close(code) => {
                    let code = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
                    return Err(Fault::Failed(format!("closed by the server with {code}")));
                }
            }
        }
        Ok(())
    }

    fn message(
        &mut self,
        checker: &mut Checker,
        message: &[u8],
        delivered: &mut impl FnMut(u64),
    ) -> Result<(), Fault> {
        let number = match checker.check(self.next, message).map_err(|what| self.wrong(what))? {
            Pushed::Message(number) => number,
            Pushed::LostUpTo(next) if self.is_slow && next > self.next => {
                self.lost += next - self.next;
                self.next = next;
                return Ok(());
            }
            Pushed::LostUpTo(_) => return Err(self.wrong("word of lost messages")),
        };
        if number != self.next {
            if !self.is_slow || number < self.next {
                return Err(self.wrong(&format!("message {number}")));
            }
            self.lost += number - self.next;
        }
        self.next = number + 1;
        delivered(number);
        Ok(())
    }

    fn wrong(&self, what: &str) -> Fault {
        Fault::Wrong(format!("subscriber {}: {what}, in place of message {}", self.id, self.next))
    }
}

impl Fault {
    fn connect(error: io::Error) -> Self {
        Self::Failed(format!("connect: {error}"))
    }

    fn refused(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Refused(status) => Self::Failed(format!("upgrade refused: {status}")),
            Refusal::Wrong(what) => Self::Wrong(what.to_owned()),
        }
    }
}

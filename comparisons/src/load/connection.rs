//! One connection: how far it has sent and how far it has been answered, and no message buffered.

use std::io::{self, Read, Write};
use std::mem;
use std::ops::Range;

use super::exchange::Exchange;
use super::frames::{self, FrameEvent, Frames};
use super::transport::Transport;
use super::upgrade::{self, Refusal, Upgrade};

/// How often one turn may read before others get theirs.
const READS_MAX: usize = 16;

/// The code of a close that nothing is wrong with (RFC 6455 7.4.1).
const NORMAL: u16 = 1000;

/// A place in a stream of messages of equal length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamPosition {
    pub(crate) message: u64,
    pub(crate) offset: u64,
}

impl StreamPosition {
    /// Calls `each` with every part of a message in the next `buf.len()` bytes, and is then behind
    /// them; or at the first part that `each` refuses.
    fn advance<B: Splittable>(
        &mut self,
        mut buf: B,
        message_bytes: u64,
        mut each: impl FnMut(Self, B) -> bool,
    ) -> bool {
        while buf.len() > 0 {
            let left = message_bytes - self.offset;
            let len = left.min(buf.len() as u64) as usize;
            let (part, rest) = buf.cut(len);
            if !each(*self, part) {
                return false;
            }
            self.skip(len as u64, message_bytes);
            buf = rest;
        }
        true
    }

    fn skip(&mut self, bytes: u64, message_bytes: u64) {
        let offset = self.offset + bytes;
        if offset < message_bytes {
            self.offset = offset;
        } else if offset == message_bytes {
            // Most often; a division would take 2 ns, and a message of 16 bytes takes 5 in all.
            *self = Self { message: self.message + 1, offset: 0 };
        } else {
            self.message += offset / message_bytes;
            self.offset = offset % message_bytes;
        }
    }
}

/// A slice, to read or to write, that can be cut in two.
trait Splittable: Sized {
    fn len(&self) -> usize;
    fn cut(self, at: usize) -> (Self, Self);
}

impl Splittable for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Splittable for &mut [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Connecting failed.
    Connect(io::Error),
    /// The peer closed it.
    Closed,
    /// The peer closed it with this code.
    ClosedWith(Option<u16>),
    /// The peer closed it, as it should.
    Ended,
    /// There is no WebSocket: the peer's status line.
    Refused(String),
    /// Reading failed.
    Read(io::Error),
    /// Writing failed.
    Write(io::Error),
    /// Something else came than was expected; where.
    Wrong(StreamPosition),
    /// The peer did what it may not in a WebSocket; in place of which message.
    Violation(&'static str, u64),
    /// More came than was asked for.
    Unsolicited(StreamPosition),
}

/// What one turn of reading brought.
#[derive(Debug)]
pub(crate) struct Received {
    /// The messages whose answers are now complete.
    pub(crate) answered: Range<u64>,
    /// How many bytes came.
    pub(crate) bytes: u64,
    /// Whether there may be more: nobody will say so again.
    pub(crate) unfinished: bool,
}

/// A connection that sends messages as they are released.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Transport,
    id: u32,
    pub(crate) connected: bool,
    writable: bool,
    /// The peer has sent all it will.
    closed: bool,
    /// A close frame or TLS's close_notify was sent, or is to be: nothing more is.
    closing: bool,
    wire: Wire,
    /// What is to be sent before the next message: the request to upgrade, then pongs.
    ahead: Vec<u8>,
    /// The next of them, none if empty.
    pong: Vec<u8>,
    /// So many messages may be sent.
    released: u64,
    /// So many answers are to come then.
    due: u64,
    sent: StreamPosition,
    answered: StreamPosition,
}

#[derive(Debug)]
enum Wire {
    Tcp,
    /// With what has come of the answer, and whether messages are to be compressed.
    Upgrading(Vec<u8>, bool),
    WebSocket(Frames),
}

impl Connection {
    /// One that is still connecting.
    pub(crate) fn new(stream: Transport, id: u32, upgrade: Option<&Upgrade>) -> Self {
        let (wire, ahead) = match upgrade {
            None => (Wire::Tcp, Vec::new()),
            Some(upgrade) => {
                (Wire::Upgrading(Vec::new(), upgrade.is_compressed()), upgrade.request(id))
            }
        };
        Self {
            stream,
            id,
            connected: false,
            writable: false,
            closed: false,
            closing: false,
            wire,
            ahead,
            pong: Vec::new(),
            released: 0,
            due: 0,
            sent: StreamPosition::default(),
            answered: StreamPosition::default(),
        }
    }

    /// What epoll said; both stay true until an operation says otherwise.
    pub(crate) fn ready(&mut self, writable: bool, closed: bool) {
        self.writable |= writable;
        self.closed |= closed;
    }

    /// Whether messages can be exchanged.
    pub(crate) fn is_open(&self) -> bool {
        let is_upgrading = matches!(self.wire, Wire::Upgrading(..));
        self.connected && !self.stream.is_handshaking() && !is_upgrading
    }

    /// Lets one more message be sent, which has so many answers; its number.
    pub(crate) fn release(&mut self, answers: u64) -> u64 {
        self.released += 1;
        self.due += answers;
        self.released - 1
    }

    /// Ends what is sent; whether the peer has to answer that, which it has over WebSocket (RFC 6455
    /// 7.1.2) and over TLS (RFC 8446 6.1).
    pub(crate) fn start_close(&mut self) -> bool {
        if matches!(self.wire, Wire::WebSocket(_)) {
            self.ahead.extend(frames::close(Some(NORMAL)));
            self.closing = true;
        } else {
            self.closing = self.stream.start_close();
        }
        self.closing
    }

    /// Answers to what was released that have not come.
    pub(crate) fn outstanding(&self) -> u64 {
        self.due - self.answered.message
    }

    /// Messages released and not sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.released - self.sent.message
    }

    /// Looks whether connecting has come to its end.
    pub(crate) fn finish_connecting(&mut self) -> Result<(), Fault> {
        if let Some(error) = self.stream.tcp().take_error().map_err(Fault::Connect)? {
            return Err(Fault::Connect(error));
        }
        match self.stream.tcp().peer_addr() {
            Ok(_) => self.connected = true,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            Err(error) => return Err(Fault::Connect(error)),
        }
        Ok(())
    }

    /// Sends what is ahead and what was released, as much at once as `scratch` holds and the socket
    /// takes; how many messages were completed.
    pub(crate) fn flush<E: Exchange>(
        &mut self,
        exchange: &E,
        scratch: &mut [u8],
    ) -> Result<u64, Fault> {
        let message_bytes = exchange.request_bytes();
        let before = self.sent.message;
        if message_bytes == 0 && self.is_open() {
            self.sent.message = self.released;
        }
        if self.connected && self.writable {
            match self.stream.push() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                pushed => pushed.map_err(Fault::Write)?,
            }
        }
        while self.connected && self.writable {
            if self.ahead.is_empty() {
                self.ahead = mem::take(&mut self.pong);
            }
            if self.sent.offset == 0 && !self.ahead.is_empty() {
                self.flush_ahead()?;
                continue;
            }
            if !self.is_open() || self.sent.message == self.released {
                break;
            }
            // What is ahead leaves between two messages.
            let messages =
                if self.ahead.is_empty() { self.released - self.sent.message } else { 1 };
            let left = messages * message_bytes - self.sent.offset;
            let len = left.min(scratch.len() as u64) as usize;
            let mut filled = self.sent;
            filled.advance(&mut scratch[..len], message_bytes, |position, part| {
                exchange.fill(self.id, position.message, position.offset, part);
                true
            });
            match self.stream.write(&scratch[..len]) {
                Ok(n) => self.sent.skip(n as u64, message_bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Write(error)),
            }
        }
        Ok(self.sent.message - before)
    }

    fn flush_ahead(&mut self) -> Result<(), Fault> {
        match self.stream.write(&self.ahead) {
            Ok(n) => drop(self.ahead.drain(..n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::Write(error)),
        }
        Ok(())
    }

    /// Reads what is there and checks it.
    ///
    /// A short read says that there is no more, which saves the read that would say so again;
    /// unless the peer closed, because that is only seen by reading to the end.
    pub(crate) fn receive<E: Exchange>(
        &mut self,
        exchange: &E,
        scratch: &mut [u8],
    ) -> Result<Received, (Received, Fault)> {
        let first = self.answered.message;
        let mut bytes = 0;
        let mut reads = 0;
        let fault = loop {
            if reads == READS_MAX {
                break None;
            }
            match self.stream.read(scratch) {
                // After what TLS itself says: without that it is an error.
                Ok(0) if self.closing && matches!(self.wire, Wire::Tcp) => {
                    break Some(Fault::Ended);
                }
                Ok(0) => break Some(Fault::Closed),
                Ok(n) => {
                    reads += 1;
                    bytes += n as u64;
                    if let Err(fault) = self.check(exchange, &scratch[..n]) {
                        break Some(fault);
                    }
                    if self.stream.is_drained(n < scratch.len()) && !self.closed {
                        reads = 0;
                        break None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    reads = 0;
                    break None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(Fault::Read(error)),
            }
        };
        let answered = first..self.answered.message;
        let received = Received { answered, bytes, unfinished: reads == READS_MAX };
        match fault {
            None => Ok(received),
            Some(fault) => Err((received, fault)),
        }
    }

    fn check<E: Exchange>(&mut self, exchange: &E, mut got: &[u8]) -> Result<(), Fault> {
        if let Wire::Upgrading(head, compressed) = &mut self.wire {
            let compressed = *compressed;
            let answered = upgrade::answer(head, &mut got, self.id, compressed);
            if !answered.map_err(Fault::refused)? {
                return Ok(());
            }
            self.wire = Wire::WebSocket(Frames::new(compressed));
            if exchange.request_bytes() == 0 {
                self.sent.message = self.released;
            }
        }
        let right = match self.wire {
            Wire::WebSocket(_) => self.check_frames(exchange, got),
            _ => Ok(self.check_bytes(exchange, got)),
        };
        let asked = StreamPosition { message: self.sent.message * exchange.answers(), ..self.sent };
        if self.answered > asked || matches!(right, Ok(false)) && self.answered == asked {
            // What nobody asked for is no answer, though it may look like the next.
            self.answered = self.answered.min(asked);
            return Err(Fault::Unsolicited(self.sent));
        }
        if right? { Ok(()) } else { Err(Fault::Wrong(self.answered)) }
    }

    fn check_bytes<E: Exchange>(&mut self, exchange: &E, got: &[u8]) -> bool {
        let id = self.id;
        self.answered.advance(got, exchange.answer_bytes(), |position, part| {
            exchange.matches(id, position.message, position.offset, part)
        })
    }

    fn check_frames<E: Exchange>(&mut self, exchange: &E, mut got: &[u8]) -> Result<bool, Fault> {
        let Wire::WebSocket(frames) = &mut self.wire else { return Ok(true) };
        let answer_bytes = exchange.answer_bytes();
        let answered = &mut self.answered;
        loop {
            if frames.is_between_messages() && !whole_frames(exchange, self.id, answered, &mut got)
            {
                return Ok(false);
            }
            let violation = |what| Fault::Violation(what, answered.message);
            match frames.next(&mut got).map_err(violation)? {
                None => return Ok(true),
                Some(FrameEvent::Payload(part, last)) => {
                    let end = answered.offset + part.len() as u64;
                    if end > answer_bytes
                        || last && end < answer_bytes
                        || !exchange.matches(self.id, answered.message, answered.offset, part)
                    {
                        return Ok(false);
                    }
                    answered.offset = end;
                    if last {
                        *answered = StreamPosition { message: answered.message + 1, offset: 0 };
                    }
                }
                // Only the last ping has to be answered (RFC 6455 5.5.3).
                Some(FrameEvent::Ping(payload)) => self.pong = frames::pong(&payload),
                Some(FrameEvent::Pong) => {}
                Some(FrameEvent::Close(Some(NORMAL) | None)) if self.closing => {
                    return Err(Fault::Ended);
                }
                Some(FrameEvent::Close(code)) => {
                    if self.sent.offset == 0 && self.ahead.is_empty() {
                        // The peer has said why it ends, and ends with or without an answer.
                        let _ = self.stream.write(&frames::close(code));
                    }
                    let expected = code == Some(NORMAL) && exchange.ends_after(answered.message);
                    return Err(if expected { Fault::Ended } else { Fault::ClosedWith(code) });
                }
            }
        }
    }
}

impl Fault {
    fn refused(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Refused(status) => Self::Refused(status),
            Refusal::Wrong(what) => Self::Violation(what, 0),
        }
    }
}

/// Takes answers off `got` that are there in full, each in one frame, as they mostly are; at the
/// first that is wrong it is false.
fn whole_frames<E: Exchange>(
    exchange: &E,
    id: u32,
    answered: &mut StreamPosition,
    got: &mut &[u8],
) -> bool {
    let head = exchange.answer_head();
    let head = head.as_slice();
    let frame_bytes = head.len() + exchange.answer_bytes() as usize;
    while let Some((frame, rest)) = got.split_at_checked(frame_bytes)
        && frame.starts_with(head)
    {
        if !exchange.matches(id, answered.message, 0, &frame[head.len()..]) {
            return false;
        }
        answered.message += 1;
        *got = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_moves_over_messages_and_their_ends() {
        let mut position = StreamPosition { message: 2, offset: 3 };
        let mut parts = Vec::new();
        assert!(position.advance(&[0; 12][..], 5, |at, part| {
            parts.push((at.message, at.offset, part.len()));
            true
        }));
        assert_eq!(parts, [(2, 3, 2), (3, 0, 5), (4, 0, 5)]);
        assert_eq!(position, StreamPosition { message: 5, offset: 0 });
    }

    #[test]
    fn a_place_stays_at_the_part_that_is_refused() {
        let mut position = StreamPosition::default();
        assert!(!position.advance(&[0; 12][..], 5, |at, _| at.message < 1));
        assert_eq!(position, StreamPosition { message: 1, offset: 0 });
    }

    #[test]
    fn a_place_within_a_long_answer_is_not_after_the_request() {
        let answered = StreamPosition { message: 0, offset: 1 << 40 };
        assert!(answered < StreamPosition { message: 1, offset: 0 });
    }
}

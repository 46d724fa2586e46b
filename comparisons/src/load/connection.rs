//! One connection: the positions up to which it has sent and been answered. It buffers no message.

use std::io::{self, Read, Write};
use std::mem;
use std::ops::Range;

use super::exchange::Exchange;
use super::frames::{self, Expected, FrameEvent, Frames};
use super::http::HttpAnswers;
use super::login::{Login, LoginError};
use super::transport::Transport;
use super::upgrade::{self, Refusal, Upgrade};

/// How many reads one event may cause before other connections are handled.
const READS_MAX: usize = 16;

/// The code of a normal close (RFC 6455 7.4.1).
const NORMAL: u16 = 1000;

/// A position in a stream of messages of equal length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamPosition {
    pub(crate) message: u64,
    pub(crate) offset: u64,
}

impl StreamPosition {
    /// Advances over the next `buf.len()` bytes and calls `each` with every part of a message in them. Stops before the
    /// first part that `each` refuses, and is false then.
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
            // The common case. A division would take 2 ns; a message of 16 bytes takes 5 in all.
            *self = Self { message: self.message + 1, offset: 0 };
        } else {
            self.message += offset / message_bytes;
            self.offset = offset % message_bytes;
        }
    }
}

/// A slice, shared or mutable, that can be cut in two.
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
    /// The peer closed it as expected.
    Ended,
    /// The peer refused the upgrade: its status line.
    Refused(String),
    /// The peer refused the login: Iggy's status.
    LoginRefused(u32),
    /// Reading failed.
    Read(io::Error),
    /// Writing failed.
    Write(io::Error),
    /// An answer is wrong; where.
    Wrong(StreamPosition),
    /// The peer violated RFC 6455, or sent no HTTP answer that counts; how, and in place of which message.
    Violation(&'static str, u64),
    /// More arrived than was asked for.
    Unsolicited(StreamPosition),
}

/// The result of handling one readable event.
#[derive(Debug)]
pub(crate) struct Received {
    /// The messages whose answers are now complete.
    pub(crate) answered: Range<u64>,
    /// How many bytes arrived.
    pub(crate) bytes: u64,
    /// Whether there may be more to read. No further event will report it.
    pub(crate) unfinished: bool,
}

/// A connection that sends messages as they are released.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Transport,
    id: u32,
    pub(crate) connected: bool,
    writable: bool,
    /// The peer has ended its side.
    closed: bool,
    /// A close frame or TLS's close_notify is queued or sent: no data follows it.
    closing: bool,
    wire: Wire,
    /// A login that is not answered yet.
    login: Option<Login>,
    /// Bytes to send before the next message: the upgrade request and the login, later pongs.
    ahead: Vec<u8>,
    /// The next pong; empty if there is none.
    pong: Vec<u8>,
    /// How many messages may be sent.
    released: u64,
    /// How many answers these have.
    due: u64,
    sent: StreamPosition,
    answered: StreamPosition,
}

#[derive(Debug)]
enum Wire {
    Tcp,
    /// What has arrived of the answer, and whether messages are to be compressed.
    Upgrading(Vec<u8>, bool),
    WebSocket(Frames),
    Http(HttpAnswers),
}

impl Connection {
    /// A connection whose connect is in progress. With a request to log in, it is open once that is answered. Without
    /// an upgrade, its answers are those of HTTP if `is_http`.
    pub(crate) fn new(
        stream: Transport,
        id: u32,
        upgrade: Option<&Upgrade>,
        login: Option<&[u8]>,
        is_http: bool,
    ) -> Self {
        let mut login = login.map(Login::new);
        let (wire, ahead) = match upgrade {
            None if is_http => (Wire::Http(HttpAnswers::default()), Vec::new()),
            None => (Wire::Tcp, login.as_mut().map(Login::take_request).unwrap_or_default()),
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
            login,
            ahead,
            pong: Vec::new(),
            released: 0,
            due: 0,
            sent: StreamPosition::default(),
            answered: StreamPosition::default(),
        }
    }

    /// Notes an event of epoll. Both flags stay set until an operation would block.
    pub(crate) fn ready(&mut self, writable: bool, closed: bool) {
        self.writable |= writable;
        self.closed |= closed;
    }

    /// Whether messages can be exchanged.
    pub(crate) fn is_open(&self) -> bool {
        let is_upgrading = matches!(self.wire, Wire::Upgrading(..));
        let is_logged_in = self.login.is_none();
        self.connected && !self.stream.is_handshaking() && !is_upgrading && is_logged_in
    }

    /// Permits one more message, which has `answers` answers, and returns its number.
    pub(crate) fn release(&mut self, answers: u64) -> u64 {
        self.released += 1;
        self.due += answers;
        self.released - 1
    }

    /// Starts to close. True if the peer has to answer the close, as over WebSocket (RFC 6455 7.1.2) and over TLS (RFC
    /// 8446 6.1).
    pub(crate) fn start_close(&mut self) -> bool {
        if matches!(self.wire, Wire::WebSocket(_)) {
            self.ahead.extend(frames::close(Some(NORMAL)));
            self.closing = true;
        } else {
            self.closing = self.stream.start_close();
        }
        self.closing
    }

    /// The number of answers so far.
    pub(crate) fn answers(&self) -> u64 {
        self.answered.message
    }

    /// The number of outstanding answers.
    pub(crate) fn outstanding(&self) -> u64 {
        self.due - self.answered.message
    }

    /// The number of messages that were released and not sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.released - self.sent.message
    }

    /// Checks whether the connect has finished.
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

    /// Sends queued control data and released messages until the socket would block, at most `scratch` at once. Returns
    /// how many messages were completed.
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
            // Control data goes between two messages.
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

    /// Reads what is available and checks it.
    ///
    /// A short read means that the socket is empty, which saves another read. If the peer has closed, reading goes on
    /// to the end of stream.
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
                // Over TLS, close_notify came before: otherwise `read` is an error.
                Ok(0) if self.closing && matches!(self.wire, Wire::Tcp | Wire::Http(_)) => {
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
            let expected = if compressed { Expected::CompressedText } else { Expected::Binary };
            self.wire = Wire::WebSocket(Frames::new(expected));
            if exchange.request_bytes() == 0 {
                self.sent.message = self.released;
            }
            self.ahead.extend(self.login.as_mut().map(Login::take_request).unwrap_or_default());
        }
        if !self.check_login(&mut got)? {
            return Ok(());
        }
        let right = match self.wire {
            Wire::WebSocket(_) => self.check_frames(exchange, got),
            Wire::Http(_) => self.check_http(exchange, got),
            _ => Ok(self.check_bytes(exchange, got)),
        };
        let asked = StreamPosition { message: self.sent.message * exchange.answers(), ..self.sent };
        if self.answered > asked || matches!(right, Ok(false)) && self.answered == asked {
            // Unsolicited bytes are no answer, even if they look like the next one.
            self.answered = self.answered.min(asked);
            return Err(Fault::Unsolicited(self.sent));
        }
        if right? { Ok(()) } else { Err(Fault::Wrong(self.answered)) }
    }

    /// Takes the answer to the login off `got`. True once it has been answered, or if there is none.
    fn check_login(&mut self, got: &mut &[u8]) -> Result<bool, Fault> {
        let Some(login) = &mut self.login else { return Ok(true) };
        let is_answered = match &mut self.wire {
            Wire::WebSocket(frames) => loop {
                match frames.next(got).map_err(|what| Fault::Violation(what, 0))? {
                    None => break false,
                    Some(FrameEvent::Payload(mut part, last)) => {
                        let is_answered = login.take(&mut part).map_err(Fault::login)?;
                        if !part.is_empty() || last && !is_answered {
                            let what = "a message that is not the answer to the login";
                            return Err(Fault::Violation(what, 0));
                        }
                        if last {
                            break true;
                        }
                    }
                    Some(FrameEvent::Ping(payload)) => self.pong = frames::pong(&payload),
                    Some(FrameEvent::Pong) => {}
                    Some(FrameEvent::Close(code)) => return Err(Fault::ClosedWith(code)),
                }
            },
            _ => login.take(got).map_err(Fault::login)?,
        };
        if is_answered {
            self.login = None;
        }
        Ok(is_answered)
    }

    fn check_bytes<E: Exchange>(&mut self, exchange: &E, got: &[u8]) -> bool {
        let id = self.id;
        self.answered.advance(got, exchange.answer_bytes(), |position, part| {
            exchange.matches(id, position.message, position.offset, part)
        })
    }

    fn check_http<E: Exchange>(&mut self, exchange: &E, mut got: &[u8]) -> Result<bool, Fault> {
        let Wire::Http(answers) = &mut self.wire else { return Ok(true) };
        let answer_bytes = exchange.answer_bytes();
        let answered = &mut self.answered;
        loop {
            let violation = |what| Fault::Violation(what, answered.message);
            let Some((part, last)) = answers.next(&mut got).map_err(violation)? else {
                // The beginning of an answer that was not asked for is wrong, too.
                return Ok(answers.is_between_answers() || answered.message < self.sent.message);
            };
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
                        // The peer ends with or without our answer to its close.
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

    fn login(error: LoginError) -> Self {
        match error {
            LoginError::Refused(status) => Self::LoginRefused(status),
            LoginError::Wrong(what) => Self::Violation(what, 0),
        }
    }
}

/// The fast path: takes complete answers off `got`, each in one frame. False at the first wrong one.
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
    fn a_position_moves_over_messages_and_their_ends() {
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
    fn a_position_stays_at_the_part_that_is_refused() {
        let mut position = StreamPosition::default();
        assert!(!position.advance(&[0; 12][..], 5, |at, _| at.message < 1));
        assert_eq!(position, StreamPosition { message: 1, offset: 0 });
    }

    #[test]
    fn a_position_within_a_long_answer_is_not_after_the_request() {
        let answered = StreamPosition { message: 0, offset: 1 << 40 };
        assert!(answered < StreamPosition { message: 1, offset: 0 });
    }
}

//! A set of connections on one epoll, all with the same exchange.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::{Events, Interest, Poll, Registry, Token};
use peers_common::{AlignedBytes, SHORT_OF_PAGE_BYTES};

use super::Failure;
use super::connection::{Connection, Fault};
use super::dial::Dialer;
use super::exchange::Exchange;
use super::pace::{Clock, NS_PER_S, ns};

/// The token of everything that is no connection: a timer, another epoll.
pub(crate) const OTHER: Token = Token(usize::MAX);

/// The size of one read and of one write.
const SCRATCH_BYTES: usize = 256 * 1024 - SHORT_OF_PAGE_BYTES;

const EVENTS_MAX: usize = 1024;

/// How many connections are opened at the same time: far fewer than any backlog.
const OPENING_MAX: usize = 64;

/// How often connections that are being opened are checked for their time-out.
const OPENING_CHECK_EVERY: Duration = Duration::from_millis(10);

/// Unsolicited bytes arrive right behind the answers.
const LINGER: Duration = Duration::from_millis(10);

/// Counts of everything so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Connections that were set up.
    pub(crate) opened: u64,
    /// Those that took over 1 s.
    pub(crate) opened_over_1_s: u64,
    /// Connections that failed, by kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Messages.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Released and neither sent nor answered when their connection ended.
    pub(crate) unsent: u64,
    /// Sent and not answered when their connection ended.
    pub(crate) unanswered: u64,
    /// Connections with a wrong answer.
    pub(crate) wrong: u64,
    /// The first of them.
    pub(crate) wrong_answer: Option<String>,
}

impl Tally {
    pub(crate) fn error(&mut self, kind: impl Into<String>) {
        *self.errors.entry(kind.into()).or_insert(0) += 1;
    }

    fn fault(&mut self, index: usize, fault: &Fault) {
        let sentence = match fault {
            Fault::Connect(error) => return self.error(format!("connect: {error}")),
            Fault::Read(error) => return self.error(format!("read: {error}")),
            Fault::Write(error) => return self.error(format!("write: {error}")),
            Fault::Closed => return self.error("closed by the server"),
            Fault::ClosedWith(None) => return self.error("closed by the server without a code"),
            Fault::ClosedWith(Some(code)) => {
                return self.error(format!("closed by the server with {code}"));
            }
            Fault::Ended => return,
            Fault::Refused(status) => return self.error(format!("upgrade refused: {status}")),
            Fault::LoginRefused(status) => {
                return self.error(format!("login refused: status {status}"));
            }
            Fault::Wrong(at) => format!(
                "connection {index}: the answer to message {} is wrong, at byte {} or after",
                at.message, at.offset
            ),
            Fault::Violation(what, message) => {
                format!("connection {index}: {what}, in place of the answer to message {message}")
            }
            Fault::Unsolicited(at) => format!(
                "connection {index}: more came than {} messages and {} bytes, which were sent",
                at.message, at.offset
            ),
        };
        self.error("wrong answer");
        self.wrong(sentence);
    }

    /// Counts something that the server did wrongly.
    pub(crate) fn wrong(&mut self, sentence: String) {
        self.wrong += 1;
        self.wrong_answer.get_or_insert(sentence);
    }

    /// Adds the counts of other connections.
    pub(crate) fn add(&mut self, other: Self) {
        self.opened += other.opened;
        self.opened_over_1_s += other.opened_over_1_s;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_insert(0) += count;
        }
        self.sent += other.sent;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.unsent += other.unsent;
        self.unanswered += other.unanswered;
        self.wrong += other.wrong;
        self.wrong_answer = self.wrong_answer.take().or(other.wrong_answer);
    }

    /// Counts a connection that was set up, in so many nanoseconds.
    pub(crate) fn record_opened(&mut self, ns: u64) {
        self.opened += 1;
        self.opened_over_1_s += u64::from(ns > NS_PER_S);
    }

    /// Requires that a connection was opened, or that one had a wrong answer.
    ///
    /// # Errors
    /// The kinds of errors, if there was none.
    pub(crate) fn require_opened(&self) -> Result<(), Failure> {
        if self.opened > 0 || self.wrong > 0 {
            return Ok(());
        }
        let kinds: Vec<_> = self.errors.iter().map(|(kind, n)| format!("{kind} ({n})")).collect();
        Err(Failure::new(format!("no connection could be opened: {}", kinds.join(", "))))
    }
}

/// When a connection counts as open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It is connected and, if required, upgraded and logged in.
    Connect,
    /// The same, and it sends a first message without waiting for the answer.
    Send,
    /// Its first message is answered: the server has accepted it.
    Answer,
}

/// An event of epoll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyEvent {
    pub(crate) index: usize,
    readable: bool,
    writable: bool,
    closed: bool,
}

/// What the event caused.
#[derive(Debug)]
pub(crate) struct EventOutcome {
    /// The connection is now connected and, if required, upgraded and logged in.
    pub(crate) connected: bool,
    /// The answers that arrived.
    pub(crate) answered: Range<u64>,
    /// How many bytes arrived.
    pub(crate) bytes: u64,
    /// The connection is over, and counted in the tally.
    pub(crate) over: bool,
    /// It is over because the peer closed it as expected.
    pub(crate) ended: bool,
    /// The time of the event, before the answers were checked.
    pub(crate) now: u64,
}

/// The connections. The index of a connection is its number.
#[derive(Debug)]
pub(crate) struct Session<E> {
    pub(crate) exchange: E,
    pub(crate) clock: Clock,
    pub(crate) tally: Tally,
    /// Connections that are not over.
    pub(crate) open: usize,
    /// Outstanding answers on open connections.
    pub(crate) outstanding: u64,
    poll: Poll,
    events: Events,
    connections: Vec<Option<Connection>>,
    /// The scheduled moment of each message in flight on each connection.
    starts: Vec<u64>,
    in_flight: usize,
    first_id: u32,
    read_scratch: AlignedBytes,
    write_scratch: AlignedBytes,
    /// Connections with more to read.
    unfinished: Vec<usize>,
}

impl<E: Exchange> Session<E> {
    /// Room for `count` connections with `in_flight` messages each. Their ids, which messages depend on, start with
    /// `first_id`.
    pub(crate) fn new(
        exchange: E,
        clock: Clock,
        count: usize,
        in_flight: u32,
        first_id: u32,
    ) -> Result<Self, Failure> {
        let in_flight = in_flight as usize;
        let starts = count.checked_mul(in_flight).filter(|slots| *slots <= 1 << 27);
        let starts = starts.ok_or_else(|| {
            Failure::new("connections times messages in flight must not be over 134217728")
        })?;
        let poll = Poll::new().map_err(|error| Failure::new(format!("no epoll: {error}")))?;
        Ok(Self {
            exchange,
            clock,
            tally: Tally::default(),
            open: 0,
            outstanding: 0,
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            connections: (0..count).map(|_| None).collect(),
            starts: vec![0; starts],
            in_flight,
            first_id,
            read_scratch: AlignedBytes::zeroed(SCRATCH_BYTES),
            write_scratch: AlignedBytes::zeroed(SCRATCH_BYTES),
            unfinished: Vec::new(),
        })
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    pub(crate) fn epoll(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// Waits for events and puts them into `ready`. Events of [`OTHER`] only end the wait.
    pub(crate) fn wait(
        &mut self,
        ready: &mut Vec<ReadyEvent>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        ready.clear();
        let timeout = if self.unfinished.is_empty() { timeout } else { Duration::ZERO };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::new(format!("cannot wait for events: {error}"))),
        }
        ready.extend(self.events.iter().filter(|event| event.token() != OTHER).map(|event| {
            let Token(index) = event.token();
            ReadyEvent {
                index,
                readable: event.is_readable(),
                writable: event.is_writable() || event.is_error(),
                closed: event.is_read_closed() || event.is_error(),
            }
        }));
        ready.extend(self.unfinished.drain(..).map(|index| ReadyEvent {
            index,
            readable: true,
            writable: false,
            closed: false,
        }));
        Ok(())
    }

    /// Starts to open a connection. False if that failed.
    pub(crate) fn open(&mut self, index: usize, dialer: &mut Dialer) -> bool {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let opened = dialer.dial().and_then(|mut stream| {
            self.poll.registry().register(stream.tcp_mut(), Token(index), interest)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                let id = self.first_id.wrapping_add(index as u32);
                let (login, is_http) = (self.exchange.login(), self.exchange.is_http());
                self.connections[index] =
                    Some(Connection::new(stream, id, dialer.upgrade(), login, is_http));
                self.open += 1;
            }
            Err(error) => self.tally.fault(index, &Fault::Connect(error)),
        }
        self.connections[index].is_some()
    }

    /// Opens all connections, a few at a time, spread over `ramp`.
    pub(crate) fn open_all(
        &mut self,
        dialer: &mut Dialer,
        patience: Duration,
        ramp: Duration,
        opens: Opening,
    ) -> Result<(), Failure> {
        let count = self.connections.len();
        let (start, ramp) = (self.clock.now(), u128::from(ns(ramp)));
        let due = |index: usize| start + (ramp * index as u128 / count.max(1) as u128) as u64;
        let mut began = vec![0; count];
        let mut opening = vec![false; count];
        let mut opening_count = 0;
        let (mut next, mut oldest) = (0, 0);
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        while next < count || opening_count > 0 {
            let mut now = self.clock.now();
            while next < count && opening_count < OPENING_MAX && now >= due(next) {
                began[next] = now;
                opening[next] = self.open(next, dialer);
                opening_count += usize::from(opening[next]);
                if opening[next] && opens != Opening::Connect {
                    self.release(next, began[next]);
                }
                next += 1;
                now = self.clock.now();
            }
            let soon = if next < count { due(next).saturating_sub(now) } else { u64::MAX };
            self.wait(&mut ready, OPENING_CHECK_EVERY.min(Duration::from_nanos(soon)))?;
            for event in &ready {
                let outcome = self.handle_event(*event);
                let alive = !outcome.over && self.flush(event.index);
                let through = match opens {
                    Opening::Connect | Opening::Send => outcome.connected,
                    Opening::Answer => !outcome.answered.is_empty(),
                };
                if opening[event.index] && (through || !alive) {
                    opening[event.index] = false;
                    opening_count -= 1;
                    if through {
                        self.tally.record_opened(outcome.now - began[event.index]);
                    }
                }
            }
            let now = self.clock.now();
            while oldest < next && (!opening[oldest] || now - began[oldest] > ns(patience)) {
                if opening[oldest] {
                    opening[oldest] = false;
                    opening_count -= 1;
                    self.give_up(oldest, &format!("not open within {} s", patience.as_secs_f64()));
                }
                oldest += 1;
            }
        }
        Ok(())
    }

    /// Permits the next message of a connection, whose scheduled moment is `intended`.
    pub(crate) fn release(&mut self, index: usize, intended: u64) {
        let Some(connection) = &mut self.connections[index] else { return };
        let answers = self.exchange.answers();
        let message = connection.release(answers);
        let slot = self.slot(index, message);
        self.starts[slot] = intended;
        self.outstanding += answers;
    }

    /// The scheduled moment of a message in flight.
    pub(crate) fn started(&self, index: usize, message: u64) -> u64 {
        self.starts[self.slot(index, message)]
    }

    fn slot(&self, index: usize, message: u64) -> usize {
        index * self.in_flight + (message % self.in_flight as u64) as usize
    }

    /// Whether a connection is open and may have another message in flight.
    pub(crate) fn has_room(&self, index: usize) -> bool {
        let connection = self.connections[index].as_ref();
        connection.is_some_and(|c| c.outstanding() < self.in_flight as u64)
    }

    /// Whether a connection has outstanding answers.
    pub(crate) fn has_outstanding(&self, index: usize) -> bool {
        self.connections[index].as_ref().is_some_and(|c| c.outstanding() > 0)
    }

    /// The number of connections, open or not.
    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn is_open(&self, index: usize) -> bool {
        self.connections[index].is_some()
    }

    /// How many answers an open connection has had.
    pub(crate) fn answers(&self, index: usize) -> Option<u64> {
        self.connections[index].as_ref().map(Connection::answers)
    }

    /// Whether a connection's handshake resumed an earlier session.
    pub(crate) fn is_resumed(&self, index: usize) -> bool {
        self.connections[index].as_ref().is_some_and(|c| c.stream.is_resumed())
    }

    /// The open connections without outstanding answers.
    pub(crate) fn answered(&self) -> impl Iterator<Item = usize> {
        let answered = |c: &Connection| c.outstanding() == 0;
        (0..self.connections.len())
            .filter(move |index| self.connections[*index].as_ref().is_some_and(answered))
    }

    /// Sends released messages. False if the connection is over.
    pub(crate) fn flush(&mut self, index: usize) -> bool {
        let Some(connection) = &mut self.connections[index] else { return false };
        match connection.flush(&self.exchange, &mut self.write_scratch) {
            Ok(sent) => {
                self.tally.sent += sent;
                true
            }
            Err(fault) => {
                self.tally.fault(index, &fault);
                self.close(index);
                false
            }
        }
    }

    /// Handles an event, except for sending.
    pub(crate) fn handle_event(&mut self, ready: ReadyEvent) -> EventOutcome {
        let index = ready.index;
        let now = self.clock.now();
        let mut outcome = EventOutcome {
            connected: false,
            answered: 0..0,
            bytes: 0,
            over: false,
            ended: false,
            now,
        };
        let Some(connection) = &mut self.connections[index] else { return outcome };
        connection.ready(ready.writable, ready.closed);
        let was_open = connection.is_open();
        let mut fault = None;
        if !connection.connected && ready.writable {
            fault = connection.finish_connecting().err();
        }
        if connection.connected && (ready.readable || ready.closed) {
            let result = connection.receive(&self.exchange, &mut self.read_scratch);
            let received = match result {
                Ok(received) => received,
                Err((received, error)) => {
                    fault = Some(error);
                    received
                }
            };
            let answers = received.answered.end - received.answered.start;
            self.tally.received += answers;
            self.tally.received_bytes += received.bytes;
            self.outstanding -= answers;
            outcome.answered = received.answered;
            outcome.bytes = received.bytes;
            if received.unfinished && fault.is_none() {
                self.unfinished.push(index);
            }
        }
        outcome.connected = !was_open && connection.is_open();
        if let Some(fault) = fault {
            self.tally.fault(index, &fault);
            self.close(index);
            outcome.over = true;
            outcome.ended = matches!(fault, Fault::Ended);
        }
        outcome
    }

    /// Handles pending events: connections may have ended since the last wait.
    pub(crate) fn catch_up(&mut self) -> Result<(), Failure> {
        let mut ready = Vec::new();
        loop {
            self.wait(&mut ready, Duration::ZERO)?;
            if ready.is_empty() {
                return Ok(());
            }
            for event in &ready {
                self.handle_event(*event);
                self.flush(event.index);
            }
        }
    }

    /// Waits a moment after the last answer for unsolicited bytes.
    pub(crate) fn linger(&mut self) -> Result<(), Failure> {
        let mut ready = Vec::new();
        self.wait(&mut ready, LINGER)?;
        for event in &ready {
            self.handle_event(*event);
        }
        Ok(())
    }

    /// Starts to close a connection. True if the peer has to answer that.
    pub(crate) fn start_close(&mut self, index: usize) -> bool {
        self.connections[index].as_mut().is_some_and(Connection::start_close)
    }

    /// Closes a connection that timed out, and counts it as `kind`.
    pub(crate) fn give_up(&mut self, index: usize, kind: &str) {
        self.tally.error(kind);
        self.close(index);
    }

    /// Closes a connection.
    pub(crate) fn close(&mut self, index: usize) {
        let Some(connection) = self.connections[index].take() else { return };
        let (outstanding, unsent) = (connection.outstanding(), connection.unsent());
        self.open -= 1;
        self.outstanding -= outstanding;
        self.tally.unsent += unsent;
        self.tally.unanswered += outstanding - unsent;
    }

    /// Closes all connections. Those with outstanding answers count as `kind`. The tally is then final.
    pub(crate) fn close_all(&mut self, kind: &str) {
        for index in 0..self.connections.len() {
            match &self.connections[index] {
                Some(connection) if connection.outstanding() > 0 => self.give_up(index, kind),
                _ => self.close(index),
            }
        }
    }
}

//! [`Session`]: a connection without its transport.

use std::io;

use owned_io::coop;

use crate::incoming::{Incoming, whole_records};
use crate::outgoing::Outgoing;
use crate::side::{Connection, Done, RECORD_BYTES_MAX, RECORD_PAYLOAD_BYTES_MAX, Task};
use crate::{Buffers, TlsError};

/// The most bytes that one write takes: four of the largest records. More would save few system calls,
/// and fewer bytes than a socket takes at once would cost some.
pub const WRITE_BYTES_MAX: usize = 4 * RECORD_PAYLOAD_BYTES_MAX;

/// The most bytes that wait for more during a handshake: one of its messages as long as rustls takes it, and
/// a record. Whoever sends one in very short records can send less of it.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024 + RECORD_BYTES_MAX;
/// And after that, when there are keys and tickets for messages: a record, and as much before it.
const INCOMING_BYTES_MAX: usize = 2 * RECORD_BYTES_MAX;

/// The most records that are decrypted at a time, which takes 50 to 100 µs if they are short (2026-11-22); a
/// read of 16 KiB may bring 700 of them. Others have their turn in between.
const RECORDS_MAX: usize = 128;

/// TLS over bytes: received ones in, plaintext out, and the reverse.
pub(crate) struct Session {
    connection: Connection,
    /// Invariant: rustls has seen all of it, and can make nothing of it yet.
    incoming: Incoming,
    /// What was received behind that and is still to be decrypted. Bounded by what one read of the
    /// transport brings: it is read only when there is nothing here.
    undecrypted: Vec<u8>,
    pub(crate) outgoing: Outgoing,
    /// What was decrypted from where on it is still to be read. Bounded by what one read of the
    /// transport brings: it is read only when there is nothing here.
    plain: Vec<u8>,
    plain_at: usize,
    phase: Phase,
    /// Whether we have ended our side.
    is_closed: bool,
    buffers: Buffers,
}

enum Phase {
    Open,
    /// The peer has ended its side.
    Ended,
    /// The stream has ended without a word. What we have to say may arrive, even so.
    Truncated,
    Failed(rustls::Error),
}

/// What there is to be read without the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readable {
    Bytes,
    /// Maybe: there is something to be [decrypted](Session::decrypt).
    Undecrypted,
    End,
    Nothing,
}

impl Session {
    pub(crate) fn new(connection: Connection, buffers: Buffers) -> Self {
        let mut session = Self {
            connection,
            incoming: Incoming::default(),
            undecrypted: Vec::new(),
            outgoing: Outgoing::default(),
            plain: Vec::new(),
            plain_at: 0,
            phase: Phase::Open,
            is_closed: false,
            buffers,
        };
        // A client has something to say first.
        session.advance(&mut [], Task::Nothing, &mut |_| 0);
        session
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.common().is_handshaking()
    }

    /// Takes what was received, and makes of it what can be made now, of [`RECORDS_MAX`] records; what is
    /// behind them waits to be [decrypted](Self::decrypt). Plaintext is offered to `sink`, which says how
    /// much it took; the rest waits, too.
    pub(crate) fn receive(&mut self, mut bytes: &mut [u8], sink: &mut dyn FnMut(&[u8]) -> usize) {
        let mut records_left = RECORDS_MAX;
        // What comes after the end, or after a failure, is of no matter (RFC 8446 6.1).
        while !bytes.is_empty() && matches!(self.phase, Phase::Open) {
            if records_left == 0 {
                self.undecrypted = bytes.to_vec();
                return;
            }
            if self.incoming.is_empty() {
                let (records, record_at) = whole_records(bytes, records_left);
                records_left -= records;
                // The first part of the record behind them shows what is wrong with its header.
                let n = if records_left == 0 { record_at } else { bytes.len() };
                consume(records, n);
                let (next, rest) = std::mem::take(&mut bytes).split_at_mut(n);
                let (consumed, _) = self.advance(next, Task::Nothing, sink);
                self.incoming.start(&next[consumed..], record_at.saturating_sub(consumed));
                bytes = rest;
                continue;
            }
            // The rest of a record is put to what is there of it; what follows need not be moved.
            let n = self.incoming.missing().min(bytes.len());
            consume(1, n);
            let (next, rest) = std::mem::take(&mut bytes).split_at_mut(n);
            self.incoming.push(next);
            self.advance_incoming(Task::Nothing, sink);
            bytes = rest;
            records_left -= 1; // for a header, too
        }
        let bytes_max =
            if self.is_handshaking() { HANDSHAKE_BYTES_MAX } else { INCOMING_BYTES_MAX };
        if self.incoming.len() > bytes_max {
            let bytes_seen = self.incoming.len();
            self.fail(rustls::Error::PeerSentOversizedRecord, bytes_seen);
        }
    }

    /// Goes on with what was [received](Self::receive).
    pub(crate) fn decrypt(&mut self, sink: &mut dyn FnMut(&[u8]) -> usize) {
        let mut bytes = std::mem::take(&mut self.undecrypted);
        self.receive(&mut bytes, sink);
    }

    /// What can be read.
    ///
    /// # Errors
    /// The failure, once all that came before it is read.
    pub(crate) fn readable(&self) -> io::Result<Readable> {
        if self.plain_at < self.plain.len() {
            return Ok(Readable::Bytes);
        }
        match &self.phase {
            Phase::Open if !self.undecrypted.is_empty() => Ok(Readable::Undecrypted),
            Phase::Open => Ok(Readable::Nothing),
            Phase::Ended => Ok(Readable::End),
            Phase::Truncated => Err(TlsError::Truncated.into()),
            Phase::Failed(failure) => Err(TlsError::Protocol(failure.clone()).into()),
        }
    }

    /// Reads what is there, as much as `fill` says that it took.
    pub(crate) fn read(&mut self, fill: impl FnOnce(&[u8]) -> usize) -> usize {
        let n = fill(&self.plain[self.plain_at..]);
        self.plain_at += n;
        if self.plain_at == self.plain.len() {
            (self.plain, self.plain_at) = (Vec::new(), 0);
        }
        n
    }

    /// Encrypts the first of `plain`, and says how many.
    ///
    /// # Errors
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) once our side has ended.
    pub(crate) fn encrypt(&mut self, plain: &[u8]) -> io::Result<usize> {
        let n = plain.len().min(WRITE_BYTES_MAX);
        if self.is_closed || self.has_failed() {
            return Err(io::Error::from_raw_os_error(EPIPE));
        }
        consume(n.div_ceil(RECORD_PAYLOAD_BYTES_MAX), n);
        match self.advance_incoming(Task::Encrypt(&plain[..n]), &mut |_| 0) {
            Done::Yes => Ok(n),
            Done::No => Err(io::Error::from_raw_os_error(EPIPE)),
        }
    }

    /// Ends our side.
    pub(crate) fn close(&mut self) {
        if !self.is_closed && !self.has_failed() {
            self.is_closed = true;
            self.advance_incoming(Task::CloseNotify, &mut |_| 0);
        }
    }

    pub(crate) const fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed(_))
    }

    /// The stream has ended, without a word if there was none before.
    pub(crate) fn handle_end(&mut self) {
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Truncated;
        }
    }

    /// With so many bytes, or fewer, that rustls has seen and may refer to.
    fn fail(&mut self, failure: rustls::Error, bytes_seen: usize) {
        let Self { connection, outgoing, buffers, .. } = self;
        if self.is_closed {
            connection.take_alert(outgoing, buffers); // nothing is to follow `close_notify` (6.1)
        } else {
            connection.alert(&failure, bytes_seen, outgoing, buffers);
        }
        self.phase = Phase::Failed(failure);
        self.incoming = Incoming::default();
    }

    fn advance_incoming(&mut self, task: Task<'_>, sink: &mut dyn FnMut(&[u8]) -> usize) -> Done {
        let (mut bytes, record_at) = self.incoming.take();
        let (consumed, done) = self.advance(&mut bytes, task, sink);
        self.incoming.put(bytes, record_at, consumed);
        done
    }

    /// How many bytes were consumed, and whether the task was done.
    fn advance(
        &mut self,
        bytes: &mut [u8],
        task: Task<'_>,
        sink: &mut dyn FnMut(&[u8]) -> usize,
    ) -> (usize, Done) {
        let Self { connection, outgoing, plain, buffers, .. } = self;
        let mut sink = |payload: &[u8]| {
            if payload.is_empty() {
                return; // a record may have no payload, which is no end of the stream
            }
            let taken = if plain.is_empty() { sink(payload) } else { 0 };
            plain.extend_from_slice(&payload[taken..]);
        };
        let step = connection.advance(bytes, task, &mut sink, outgoing, buffers);
        if step.is_ended {
            self.phase = Phase::Ended;
        }
        match step.result {
            Ok(done) if step.is_ended => (bytes.len(), done),
            Ok(done) => (step.consumed, done),
            Err(error) => {
                self.fail(error, bytes.len());
                (bytes.len(), Done::No)
            }
        }
    }
}

/// Takes from the budget of the running poll what so many records cost, with so many bytes in all: 400 ns and
/// half a nanosecond (2026-11-22).
fn consume(records: usize, bytes: usize) {
    coop::consume(records as u64 * 400 + bytes as u64 / 2);
}

/// The number of Linux, as from the transport.
pub(crate) const EPIPE: i32 = 32;

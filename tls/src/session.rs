//! [`Session`]: a TLS connection without its transport.

use std::collections::TryReserveError;
use std::io;

use owned_io::{MemoryAccount, Reservation, Slice, coop};
use rustls::Error::General;

use crate::incoming::{Incoming, copied, whole_records};
use crate::outgoing::Outgoing;
use crate::side::{
    Connection, Done, RECORD_BYTES_MAX, RECORD_PAYLOAD_BYTES_MAX, Task, encrypted_bytes,
};
use crate::{Buffers, TlsError};

/// The most bytes that one write takes: four records of the largest size. A larger limit would save few system calls;
/// a limit below what a socket takes at once would cost some.
pub const WRITE_BYTES_MAX: usize = 4 * RECORD_PAYLOAD_BYTES_MAX;

/// The least capacity of a buffer for a write, in bytes. Smaller buffers, of alerts, are not kept.
const CAPACITY_MIN: usize = 1024;
/// The most capacity of a buffer that is kept, in bytes. The records of the longest write fit.
const CAPACITY_KEPT_MAX: usize = 96 * 1024;

/// A write takes this many bytes even without a reservation, because otherwise it might never end.
const WRITE_BYTES_MIN: usize = 4 * 1024;

/// The most incomplete bytes during a handshake: the longest message that rustls takes, and a record. A message in very
/// short records can be less long.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024 + RECORD_BYTES_MAX;
/// The most incomplete bytes after the handshake, when messages are key updates and tickets: two records.
const INCOMING_BYTES_MAX: usize = 2 * RECORD_BYTES_MAX;

/// The most records that are decrypted at a time, which takes 50 to 100 µs if they are short (2026-11-22). A read of
/// 16 KiB may bring 700 of them. Other tasks run in between.
const RECORDS_MAX: usize = 128;

/// TLS over bytes: received bytes in, plaintext out, and the reverse.
pub(crate) struct Session {
    connection: Connection,
    /// Invariant: rustls has seen all of these bytes and cannot process them yet.
    incoming: Incoming,
    /// Received bytes behind `incoming` that are not decrypted yet. Bounded by one read of the transport, which is read
    /// only when this is empty.
    undecrypted: Vec<u8>,
    pub(crate) outgoing: Outgoing,
    /// Plaintext, to be read from `plain_at` on. Bounded by one read of the transport, which is read only when this is
    /// empty.
    plain: Vec<u8>,
    plain_at: usize,
    phase: Phase,
    /// Whether we sent `close_notify`.
    is_closed: bool,
    buffers: Buffers,
    /// Reserves everything that is [held](Self::held_bytes), except a write that proceeds at once and fits into the
    /// account's share.
    reservation: Reservation,
    /// The memory of the records that are being written.
    written_bytes: usize,
}

enum Phase {
    Open,
    /// The peer sent `close_notify`.
    Ended,
    /// The stream ended without `close_notify`. Our records may still arrive at the peer.
    Truncated,
    Failed(TlsError),
}

/// What can be read without the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readable {
    Bytes,
    /// Perhaps bytes: there are records to [decrypt](Session::decrypt).
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
            reservation: buffers.account().reservation(),
            buffers,
            written_bytes: 0,
        };
        // A client begins.
        session.advance(&mut [], Task::Nothing, &mut |_| 0);
        session.settle();
        session
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.common().is_handshaking()
    }

    pub(crate) const fn account(&self) -> &MemoryAccount {
        self.reservation.account()
    }

    /// The size of all its byte buffers, in bytes.
    pub(crate) const fn held_bytes(&self) -> usize {
        self.incoming.held_bytes()
            + self.undecrypted.capacity()
            + self.plain.capacity()
            + self.outgoing.held_bytes()
            + self.written_bytes
    }

    /// Whether `bytes` more bytes may be held until the next [`settle`](Self::settle).
    fn reserve(&mut self, bytes: usize) -> bool {
        let needed = self.held_bytes() + bytes;
        needed <= self.reservation.bytes() + self.account().share_bytes_left()
            || self.reservation.resize(needed).is_ok()
    }

    /// Reserves exactly what is held, even without room: [`reserve`](Self::reserve) has found room for all but small
    /// amounts.
    pub(crate) fn settle(&mut self) {
        let held = self.held_bytes();
        if held != self.reservation.bytes() {
            self.reservation.force(held);
        }
    }

    /// Whether there is memory for what may remain of these bytes, and of those before them, when `room` bytes of
    /// plaintext are taken at once. Call it before [`receive`](Self::receive).
    pub(crate) fn has_memory_for(&mut self, bytes: &[u8], room: usize) -> bool {
        let remaining = if self.incoming.is_empty() {
            let (_, records_end) = whole_records(bytes, RECORDS_MAX);
            bytes.len() - records_end + records_end.saturating_sub(room)
        } else {
            2 * (self.incoming.len() + bytes.len()) // it grows by doubling
        };
        self.reserve(remaining)
    }

    /// Takes the records to write. [`handle_written`](Self::handle_written) takes their buffer back.
    pub(crate) fn take_records(&mut self) -> Option<Slice<Vec<u8>>> {
        let held = self.outgoing.held_bytes();
        let records = self.outgoing.take()?;
        self.written_bytes = held;
        Some(records)
    }

    /// The records were written, or never will be.
    pub(crate) fn handle_written(&mut self, buf: Vec<u8>) {
        self.give(buf);
        self.written_bytes = 0;
        self.settle();
    }

    /// Processes received bytes, up to [`RECORDS_MAX`] records. Bytes behind them wait for [`decrypt`](Self::decrypt).
    /// `sink` is offered the plaintext and returns how much it took; the rest waits for [`read`](Self::read).
    pub(crate) fn receive(&mut self, bytes: &mut [u8], sink: &mut dyn FnMut(&[u8]) -> usize) {
        if self.try_receive(bytes, sink).is_err() {
            self.fail(TlsError::OutOfMemory, bytes.len());
        }
        // Parts of messages in whole records take more memory than was reserved.
        let held = self.held_bytes();
        if held != self.reservation.bytes() && self.reservation.resize(held).is_err() {
            self.fail(TlsError::OutOfMemory, bytes.len());
        }
    }

    fn try_receive(
        &mut self,
        mut bytes: &mut [u8],
        sink: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Result<(), TryReserveError> {
        let mut records_left = RECORDS_MAX;
        // Bytes after the end, or after a failure, are ignored (RFC 8446 6.1).
        while !bytes.is_empty() && matches!(self.phase, Phase::Open) {
            if records_left == 0 {
                self.undecrypted = copied(bytes)?;
                return Ok(());
            }
            if self.incoming.is_empty() {
                let (records, record_at) = whole_records(bytes, records_left);
                records_left -= records;
                // The incomplete record behind them is included, so that rustls checks its header.
                let n = if records_left == 0 { record_at } else { bytes.len() };
                consume(records, n);
                let (next, rest) = std::mem::take(&mut bytes).split_at_mut(n);
                let (consumed, _) = self.advance(next, Task::Nothing, sink);
                self.incoming.start(&next[consumed..], record_at.saturating_sub(consumed))?;
                bytes = rest;
                continue;
            }
            // The rest of the record is appended to its first part. Bytes behind it need no copy.
            let n = self.incoming.missing().min(bytes.len());
            consume(1, n);
            let (next, rest) = std::mem::take(&mut bytes).split_at_mut(n);
            self.incoming.push(next)?;
            self.advance_incoming(Task::Nothing, sink);
            bytes = rest;
            records_left -= 1; // also when this completes only a header
        }
        let bytes_max =
            if self.is_handshaking() { HANDSHAKE_BYTES_MAX } else { INCOMING_BYTES_MAX };
        if self.incoming.len() > bytes_max {
            let bytes_seen = self.incoming.len();
            self.fail(TlsError::Protocol(rustls::Error::PeerSentOversizedRecord), bytes_seen);
        }
        Ok(())
    }

    /// Continues with bytes that were [received](Self::receive) before.
    pub(crate) fn decrypt(&mut self, sink: &mut dyn FnMut(&[u8]) -> usize) {
        let mut bytes = std::mem::take(&mut self.undecrypted);
        self.receive(&mut bytes, sink);
    }

    /// What can be read now.
    ///
    /// # Errors
    /// The failure, once all plaintext before it was read.
    pub(crate) fn readable(&self) -> io::Result<Readable> {
        if self.plain_at < self.plain.len() {
            return Ok(Readable::Bytes);
        }
        match &self.phase {
            Phase::Open if !self.undecrypted.is_empty() => Ok(Readable::Undecrypted),
            Phase::Open => Ok(Readable::Nothing),
            Phase::Ended => Ok(Readable::End),
            Phase::Truncated => Err(TlsError::Truncated.into()),
            Phase::Failed(failure) => Err(failure.clone().into()),
        }
    }

    /// Offers plaintext to `fill`, and removes as much as it says that it took.
    pub(crate) fn read(&mut self, fill: impl FnOnce(&[u8]) -> usize) -> usize {
        let n = fill(&self.plain[self.plain_at..]);
        self.plain_at += n;
        if self.plain_at == self.plain.len() {
            (self.plain, self.plain_at) = (Vec::new(), 0);
            self.settle();
        }
        n
    }

    /// Encrypts the first bytes of `plain`, as many as there is memory for, and returns how many. All earlier records
    /// must have been taken.
    ///
    /// # Errors
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) once our side has ended. [`TlsError::Evicted`] and
    /// [`TlsError::OutOfMemory`] if the connection has failed by them.
    pub(crate) fn encrypt(&mut self, plain: &[u8]) -> io::Result<usize> {
        match &self.phase {
            Phase::Failed(memory @ (TlsError::Evicted | TlsError::OutOfMemory)) => {
                return Err(memory.clone().into());
            }
            Phase::Failed(_) => return Err(io::Error::from_raw_os_error(EPIPE)),
            _ if self.is_closed => return Err(io::Error::from_raw_os_error(EPIPE)),
            _ => {}
        }
        let Ok(n) = self.prepare_write(plain.len().min(WRITE_BYTES_MAX)) else {
            self.fail(TlsError::OutOfMemory, 0);
            return Err(TlsError::OutOfMemory.into());
        };
        consume(n.div_ceil(RECORD_PAYLOAD_BYTES_MAX), n);
        match self.advance_incoming(Task::Encrypt(&plain[..n]), &mut |_| 0) {
            Done::Yes => Ok(n),
            Done::No => {
                self.outgoing.release_room();
                self.settle();
                Err(io::Error::from_raw_os_error(EPIPE))
            }
        }
    }

    /// Encrypts the first `len` bytes of `pieces`, or fewer. They are copied together, so that records are as long as
    /// possible. Otherwise like [`encrypt`](Self::encrypt).
    pub(crate) fn encrypt_together(
        &mut self,
        pieces: &[io::IoSlice<'_>],
        len: usize,
    ) -> io::Result<usize> {
        let mut together = Vec::new();
        if together.try_reserve_exact(len).is_err() {
            return self.encrypt(&pieces[0]);
        }
        for piece in pieces {
            let n = piece.len().min(len - together.len());
            together.extend_from_slice(&piece[..n]);
        }
        self.encrypt(&together)
    }

    /// Provides room for the records of a write of `n` bytes, or of fewer, and returns how many.
    fn prepare_write(&mut self, n: usize) -> Result<usize, TryReserveError> {
        let buf = self.buffers.take_initialised();
        let room = encrypted_bytes(n).max(CAPACITY_MIN);
        if self.reserve(room.max(buf.capacity())) {
            self.outgoing.prepare(buf, room)?;
            return Ok(n);
        }
        self.give(buf);
        self.prepare_less(n)
    }

    /// Returns a buffer for a later write. It keeps its length, so its bytes need not be initialised again.
    fn give(&self, buf: Vec<u8>) {
        if (CAPACITY_MIN..=CAPACITY_KEPT_MAX).contains(&buf.capacity()) {
            self.buffers.give(buf);
        }
    }

    #[cold]
    fn prepare_less(&mut self, mut n: usize) -> Result<usize, TryReserveError> {
        let room = |n| encrypted_bytes(n).max(CAPACITY_MIN);
        // At most five iterations, from 64 KiB to 4 KiB.
        while n > WRITE_BYTES_MIN && !self.reserve(room(n)) {
            n = (n / 2).max(WRITE_BYTES_MIN);
        }
        self.outgoing.prepare(Vec::new(), room(n))?;
        self.settle();
        Ok(n)
    }

    /// Fails the connection because others need its memory. It keeps only an alert and what is being written. Returns
    /// whether it held any memory; if not, nothing has happened.
    pub(crate) fn evict(&mut self) -> bool {
        let holds_some = self.held_bytes() > 0 || self.reservation.bytes() > 0;
        if holds_some && !self.has_failed() {
            let bytes_seen = self.incoming.len();
            self.fail(TlsError::Evicted, bytes_seen);
        }
        holds_some
    }

    /// Ends our side.
    pub(crate) fn close(&mut self) {
        if !self.is_closed && !self.has_failed() {
            self.is_closed = true;
            self.advance_incoming(Task::CloseNotify, &mut |_| 0);
            self.settle();
        }
    }

    pub(crate) const fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed(_))
    }

    /// The stream has ended. That is a truncation, unless `close_notify` or a failure came before.
    pub(crate) fn handle_end(&mut self) {
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Truncated;
        }
    }

    /// Fails the connection. rustls has seen at most `bytes_seen` unconsumed bytes and may refer to them.
    pub(crate) fn fail(&mut self, failure: TlsError, bytes_seen: usize) {
        if self.has_failed() {
            return;
        }
        self.incoming = Incoming::default();
        let Self { connection, outgoing, .. } = self;
        match &failure {
            _ if self.is_closed => _ = connection.take_alert(outgoing), // nothing is to follow `close_notify` (6.1)
            TlsError::Protocol(error) => connection.alert(error, bytes_seen, outgoing),
            other => connection.alert(&General(other.to_string()), bytes_seen, outgoing),
        }
        if matches!(failure, TlsError::Evicted | TlsError::OutOfMemory) {
            self.undecrypted = Vec::new();
            (self.plain, self.plain_at) = (Vec::new(), 0);
        }
        self.phase = Phase::Failed(failure);
        self.settle();
    }

    fn advance_incoming(&mut self, task: Task<'_>, sink: &mut dyn FnMut(&[u8]) -> usize) -> Done {
        let (mut bytes, record_at) = self.incoming.take();
        let (consumed, done) = self.advance(&mut bytes, task, sink);
        self.incoming.put(bytes, record_at, consumed);
        done
    }

    /// Returns how many bytes were consumed, and whether the task was done.
    fn advance(
        &mut self,
        bytes: &mut [u8],
        task: Task<'_>,
        sink: &mut dyn FnMut(&[u8]) -> usize,
    ) -> (usize, Done) {
        let Self { connection, outgoing, plain, .. } = self;
        let (bytes_len, mut is_out_of_memory) = (bytes.len(), false);
        let mut sink = |payload: &[u8]| {
            if payload.is_empty() {
                return; // a record without payload is not the end of the stream
            }
            let taken = if plain.is_empty() { sink(payload) } else { 0 };
            // Reserves for all that these bytes may contain, so that it grows only once.
            let fits = payload.len() - taken <= plain.capacity() - plain.len();
            if !fits && plain.try_reserve_exact(bytes_len).is_err() {
                is_out_of_memory = true;
                return;
            }
            plain.extend_from_slice(&payload[taken..]);
        };
        let step = connection.advance(bytes, task, &mut sink, outgoing);
        if step.is_ended {
            self.phase = Phase::Ended;
        }
        match step.result {
            Ok(_) if is_out_of_memory => {
                self.fail(TlsError::OutOfMemory, bytes.len());
                (bytes.len(), Done::No)
            }
            Ok(done) if step.is_ended => (bytes.len(), done),
            Ok(done) => (step.consumed, done),
            Err(error) => {
                self.fail(TlsError::Protocol(error), bytes.len());
                (bytes.len(), Done::No)
            }
        }
    }
}

/// Takes from the budget of the running poll what so many records cost, with so many bytes in all.
fn consume(records: usize, bytes: usize) {
    coop::consume(coop::cost::tls_records(records, bytes));
}

/// The error number of Linux, which the transport would return.
pub(crate) const EPIPE: i32 = 32;

//! [`Connection`]: rustls's state of a connection, of either role, and how it is moved on.

use std::ops::Deref;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncryptError, UnbufferedStatus};
use rustls::{CommonState, Error};

use crate::alert;
use crate::incoming::HEADER_BYTES;
use crate::outgoing::Outgoing;

pub(crate) enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What to do with a connection that application data can be written to.
#[derive(Clone, Copy)]
pub(crate) enum Task<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    CloseNotify,
}

/// What a connection was moved on by.
pub(crate) struct Step {
    /// How many of the first bytes are done with.
    pub(crate) consumed: usize,
    /// Whether the peer has ended its side.
    pub(crate) is_ended: bool,
    pub(crate) result: Result<Done, Error>,
}

/// Whether the task was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Yes,
    /// The handshake is not over, or the connection is closed.
    No,
}

impl Connection {
    /// Makes what it can of `bytes`: plaintext goes to `sink`, records to be sent to `outgoing`. Then
    /// does the task.
    ///
    /// `bytes` must be all that was received and not consumed.
    pub(crate) fn advance(
        &mut self,
        bytes: &mut [u8],
        task: Task<'_>,
        sink: &mut dyn FnMut(&[u8]),
        outgoing: &mut Outgoing,
    ) -> Step {
        match self {
            Self::Client(client) => advance(client, bytes, task, sink, outgoing),
            Self::Server(server) => advance(server, bytes, task, sink, outgoing),
        }
    }

    /// What rustls knows of it.
    pub(crate) fn common(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }

    /// Has the peer told why the connection failed, with `bytes_seen` or fewer that rustls has seen and
    /// may refer to.
    pub(crate) fn alert(&mut self, failure: &Error, bytes_seen: usize, outgoing: &mut Outgoing) {
        if self.take_alert(outgoing) {
            return;
        }
        // rustls has queued none, and has no way to be asked for one that is encrypted, if it has to be.
        // But it has one for bytes that it cannot read: `decode_error`.
        let Some(description) = alert::description(failure) else { return };
        let mut noise = vec![alert::NOISE; bytes_seen + HEADER_BYTES];
        // Each turn but the last takes one of the messages that came before, and were not looked at.
        for _ in 0..ALERT_TRIES_MAX {
            let at = outgoing.len();
            if self.take_record(&mut noise, outgoing) || self.take_alert(outgoing) {
                alert::describe(outgoing.from(at), description);
                return;
            }
        }
    }

    /// Takes out the alert that an error has left, if it has left one.
    pub(crate) fn take_alert(&mut self, outgoing: &mut Outgoing) -> bool {
        let mut is_taken = false;
        // Each turn takes one record. What has failed must not look at its bytes again: it would fail
        // again.
        while self.common().wants_write() && self.take_record(&mut [], outgoing) {
            is_taken = true;
        }
        is_taken
    }

    /// Takes out a record that is there, or that comes of `bytes`.
    fn take_record(&mut self, bytes: &mut [u8], outgoing: &mut Outgoing) -> bool {
        match self {
            Self::Client(client) => take_record(client, bytes, outgoing),
            Self::Server(server) => take_record(server, bytes, outgoing),
        }
    }
}

/// What the two roles have in common: rustls has the function for each, but no name for both.
trait Side: Deref<Target: Deref<Target = CommonState>> {
    type Data;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }
}

fn advance(
    side: &mut impl Side,
    bytes: &mut [u8],
    task: Task<'_>,
    sink: &mut dyn FnMut(&[u8]),
    outgoing: &mut Outgoing,
) -> Step {
    let (mut consumed, mut is_ended) = (0, false);
    // Each turn but the last consumes bytes, or encodes a record that they led to.
    let result = loop {
        let UnbufferedStatus { mut discard, state } = side.process(&mut bytes[consumed..]);
        let done = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut failed = None;
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => {
                            discard += record.discard;
                            sink(record.payload);
                        }
                        Err(error) => failed = Some(Err(error)),
                    }
                }
                failed
            }
            Ok(ConnectionState::EncodeTlsData(mut record)) => {
                let encoded = outgoing.append(0, |room| record.encode(room));
                encoded.is_err().then(|| Err(Error::General("a record without a size".into())))
            }
            // It is among what leaves next, in order.
            Ok(ConnectionState::TransmitTlsData(transmit)) => {
                transmit.done();
                None
            }
            Ok(ConnectionState::PeerClosed) => {
                is_ended = true;
                None
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                let written = match task {
                    Task::Nothing => Ok(()),
                    Task::Encrypt(plain) => outgoing
                        .append(encrypted_bytes(plain.len()), |room| traffic.encrypt(plain, room)),
                    Task::CloseNotify => {
                        outgoing.append(ALERT_BYTES, |room| traffic.queue_close_notify(room))
                    }
                };
                Some(written.map(|()| Done::Yes).map_err(in_protocol))
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Ok(Done::No)),
            Ok(ConnectionState::Closed) => {
                is_ended = true;
                Some(Ok(Done::No))
            }
            // Early data is the one other state, and never agreed to.
            Ok(_) => Some(Err(Error::General("data before the handshake was over".into()))),
            Err(error) => Some(Err(error)),
        };
        consumed += discard;
        if let Some(result) = done {
            break result;
        }
    };
    Step { consumed, is_ended, result }
}

fn take_record(side: &mut impl Side, bytes: &mut [u8], outgoing: &mut Outgoing) -> bool {
    match side.process(bytes).state {
        Ok(ConnectionState::EncodeTlsData(mut record)) => {
            outgoing.append(0, |room| record.encode(room)).is_ok()
        }
        _ => false,
    }
}

/// Payload of the largest record (RFC 8446 5.1).
pub(crate) const RECORD_PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// The largest record that a peer may send, with what encryption may add to it (RFC 5246 6.2.3).
pub(crate) const RECORD_BYTES_MAX: usize = HEADER_BYTES + RECORD_PAYLOAD_BYTES_MAX + 2048;

/// What a record of ours adds to its payload, at most: a header of 5 bytes, 8 of a nonce (TLS 1.2), the type of
/// the content (TLS 1.3), 16 of a tag.
const RECORD_OVERHEAD_BYTES: usize = 32;

/// How often a connection that has failed is tried to be brought to an alert. A record may have 4,000
/// messages, each of which takes rustls some µs to get out of the way; one that has more than these is sent
/// for the work that it makes, and gets no alert.
const ALERT_TRIES_MAX: u32 = 64;

/// An alert, with all else that may have to leave before it: an answer to a key update.
const ALERT_BYTES: usize = 128;

/// Room for `len` bytes in records, as long as no smaller ones were configured.
pub(crate) const fn encrypted_bytes(len: usize) -> usize {
    let records = len.div_ceil(RECORD_PAYLOAD_BYTES_MAX) + 1; // and an answer to a key update
    len + records * RECORD_OVERHEAD_BYTES
}

fn in_protocol(error: EncryptError) -> Error {
    match error {
        EncryptError::EncryptExhausted => Error::EncryptError,
        error => Error::General(error.to_string()),
    }
}

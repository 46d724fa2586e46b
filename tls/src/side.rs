//! [`Connection`]: rustls's state of a connection, of either role, and the loop that advances it.

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

/// What to do when application data can be written.
#[derive(Clone, Copy)]
pub(crate) enum Task<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    CloseNotify,
}

/// The result of advancing a connection.
pub(crate) struct Step {
    /// How many bytes were consumed, from the first on.
    pub(crate) consumed: usize,
    /// Whether the peer sent `close_notify`.
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
    /// Processes `bytes` as far as possible: plaintext goes to `sink`, records to send go to `outgoing`. Then does the
    /// task.
    ///
    /// `bytes` must be all bytes that were received and not consumed.
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

    /// rustls's state that both roles have.
    pub(crate) fn common(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }

    /// Puts an alert about the failure into `outgoing`. rustls has seen at most `bytes_seen` unconsumed bytes and may
    /// refer to them.
    pub(crate) fn alert(&mut self, failure: &Error, bytes_seen: usize, outgoing: &mut Outgoing) {
        if self.take_alert(outgoing) {
            return;
        }
        // rustls has queued no alert, and its interface cannot encrypt one on request. But it makes one,
        // `decode_error`, when it is given bytes that it cannot decode.
        let Some(description) = alert::description(failure) else { return };
        let mut noise = vec![alert::NOISE; bytes_seen + HEADER_BYTES];
        // Each iteration but the last consumes an earlier message that was not processed.
        for _ in 0..ALERT_TRIES_MAX {
            let at = outgoing.len();
            if self.take_record(&mut noise, outgoing) || self.take_alert(outgoing) {
                alert::describe(outgoing.from(at), description);
                return;
            }
        }
    }

    /// Takes out the alert that rustls has queued for an error, if there is one.
    pub(crate) fn take_alert(&mut self, outgoing: &mut Outgoing) -> bool {
        let mut is_taken = false;
        // Each iteration takes one record. No bytes are passed: they would cause the same failure again.
        while self.common().wants_write() && self.take_record(&mut [], outgoing) {
            is_taken = true;
        }
        is_taken
    }

    /// Takes out a record that is queued, or that results from `bytes`.
    fn take_record(&mut self, bytes: &mut [u8], outgoing: &mut Outgoing) -> bool {
        match self {
            Self::Client(client) => take_record(client, bytes, outgoing),
            Self::Server(server) => take_record(server, bytes, outgoing),
        }
    }
}

/// The function that both roles have. rustls has no trait for it.
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
    // Each iteration but the last consumes bytes, or encodes a record that resulted from them.
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
            // The record is in `outgoing` already, in order.
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
                Some(written.map(|()| Done::Yes).map_err(into_error))
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Ok(Done::No)),
            Ok(ConnectionState::Closed) => {
                is_ended = true;
                Some(Ok(Done::No))
            }
            // The only other state is early data, which is never negotiated.
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

/// The payload of the largest record, in bytes (RFC 8446 5.1).
pub(crate) const RECORD_PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// The largest record that a peer may send, in bytes, with the most that encryption may add (RFC 5246 6.2.3).
pub(crate) const RECORD_BYTES_MAX: usize = HEADER_BYTES + RECORD_PAYLOAD_BYTES_MAX + 2048;

/// The most that our records add to their payload, in bytes: a header of 5, a nonce of 8 (TLS 1.2), a content type of
/// 1 (TLS 1.3), a tag of 16.
const RECORD_OVERHEAD_BYTES: usize = 32;

/// How often a failed connection is advanced to get an alert. A record may have 4,000 messages, and rustls needs some µs
/// to consume each. A peer that sends more messages than this in a record wants to cause work, and gets no alert.
const ALERT_TRIES_MAX: u32 = 64;

/// Room for an alert, and for an answer to a key update before it, in bytes.
const ALERT_BYTES: usize = 128;

/// Room for `len` bytes in records, unless a smaller record size was configured.
pub(crate) const fn encrypted_bytes(len: usize) -> usize {
    let records = len.div_ceil(RECORD_PAYLOAD_BYTES_MAX) + 1; // and an answer to a key update
    len + records * RECORD_OVERHEAD_BYTES
}

fn into_error(error: EncryptError) -> Error {
    match error {
        EncryptError::EncryptExhausted => Error::EncryptError,
        error => Error::General(error.to_string()),
    }
}

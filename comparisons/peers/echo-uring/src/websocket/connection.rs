//! One connection: its session, and what is to be sent.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use socket2::SockRef;

use super::session::Session;

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) session: Session,
    /// What the ring is to send after the bytes that it is sending.
    pub(crate) backlog: Vec<u8>,
    /// How many bytes the ring is sending; 0: no send is in flight.
    pub(crate) sending_bytes: usize,
    /// Whether a receive is in flight.
    pub(crate) receiving: bool,
    /// Whether that receive was cancelled.
    pub(crate) cancelled: bool,
    /// Whether the peer sends nothing more.
    pub(crate) peer_ended: bool,
    /// When the stream was shut down for sending.
    pub(crate) shut_at: Option<Instant>,
    /// Whether nothing more is received or sent.
    pub(crate) ended: bool,
    /// The bytes of this connection that [`Server::held_bytes`](super::Server) counts.
    pub(crate) counted_bytes: usize,
}

impl Connection {
    /// One that is received from.
    pub(crate) fn new(stream: TcpStream, now: Instant) -> Self {
        Self {
            stream,
            session: Session::new(now),
            backlog: Vec::new(),
            sending_bytes: 0,
            receiving: true,
            cancelled: false,
            peer_ended: false,
            shut_at: None,
            ended: false,
            counted_bytes: 0,
        }
    }

    /// How many bytes are still to be sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.sending_bytes + self.backlog.len()
    }

    /// Sends `answers` as far as the socket takes them at once. The rest joins the backlog.
    pub(crate) fn send(&mut self, answers: &[u8], now: Instant) {
        if answers.is_empty() || self.ended {
            return;
        }
        let mut sent = 0;
        if self.unsent_bytes() == 0 {
            match self.try_send(answers) {
                Ok(bytes) => {
                    sent = bytes;
                    self.session.sent(sent, now);
                }
                Err(error) if is_temporary(&error) => {}
                Err(_) => return self.end(),
            }
        }
        self.backlog.extend_from_slice(&answers[sent..]);
    }

    /// Ends it. That ends operations that are in flight, too.
    pub(crate) fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.backlog = Vec::new();
        self.ended = true;
    }

    /// The sockets block, because the ring would not wait for others.
    fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        SockRef::from(&self.stream).send_with_flags(bytes, flags)
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

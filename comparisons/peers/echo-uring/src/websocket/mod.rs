//! Echo over WebSocket. What was received is decoded where the kernel has put it. The answers to it are sent by a system
//! call at once; the ring sends what the socket does not take then.

mod connection;
mod session;

use std::io;
use std::net::{Shutdown, TcpListener};
use std::time::{Duration, Instant};

use self::connection::Connection;
use crate::ring::{Completion, Kind, Ring};

/// The buffers of all connections, 64 KiB each. They are free again before the next wait. The kernel uses them in turns,
/// so more of them are more memory that is in no cache. CPU ns per message, medians of 5, with 256, 1,024 and 4,096 of
/// them (2026-11-27, Sapphire Rapids or later under KVM): 235, 259 and 275 for 200 connections with 16 in flight, 4,980,
/// 4,890 and 5,490 for 4,000 connections with 1, where few are too few and receives start again.
const BUFFERS: u16 = 256;

/// How many connections there may be. Later ones are closed.
const CONNECTIONS_MAX: usize = 16_384;

/// How much a connection may have unsent. It is then not read until half of it is sent.
const UNSENT_BYTES_MAX: usize = 1 << 20;

/// How much all connections may hold: partial messages, and what is not sent. One that exceeds it is ended.
const HELD_BYTES_MAX: usize = 256 << 20;

/// How long a peer may take to end the stream after this side has ended it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Server {
    ring: Ring,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    /// The indices of `connections` that are `None`.
    free: Vec<usize>,
    /// The sum of what the connections hold.
    held_bytes: usize,
    /// The answers of the connection that is served now.
    answers: Vec<u8>,
    /// When the last wait has ended.
    now: Instant,
}

impl Server {
    pub(crate) fn new(listener: TcpListener) -> io::Result<Self> {
        Ok(Self {
            ring: Ring::new(BUFFERS)?,
            listener,
            connections: Vec::new(),
            free: Vec::new(),
            held_bytes: 0,
            answers: Vec::new(),
            now: Instant::now(),
        })
    }

    pub(crate) fn run(&mut self) -> io::Result<()> {
        self.ring.accept(&self.listener);
        self.ring.tick();
        let mut completed = Vec::new();
        loop {
            self.ring.submit_and_wait(&mut completed)?;
            self.now = Instant::now();
            for completion in completed.drain(..) {
                match completion.kind {
                    Kind::Receive => self.received(completion),
                    Kind::SendBytes => self.sent(completion),
                    Kind::Accept => self.accepted(completion),
                    Kind::Pause => self.ring.accept(&self.listener),
                    Kind::Tick => self.tick(),
                    // The receive has a completion of its own. Nothing is sent from its buffer.
                    Kind::Cancel | Kind::Send => {}
                }
            }
        }
    }

    fn accepted(&mut self, completion: Completion) {
        let more = completion.more;
        match completion.into_stream() {
            Ok(stream) => {
                if self.connections.len() - self.free.len() < CONNECTIONS_MAX {
                    let index = self.free.pop().unwrap_or(self.connections.len());
                    self.ring.receive(&stream, index);
                    let connection = Some(Connection::new(stream, self.now));
                    if index == self.connections.len() {
                        self.connections.push(connection);
                    } else {
                        self.connections[index] = connection;
                    }
                }
                if !more {
                    self.ring.accept(&self.listener);
                }
            }
            Err(error) => {
                peers_common::print_accept_error(&error);
                if !more {
                    self.ring.pause();
                }
            }
        }
    }

    fn received(&mut self, completion: Completion) {
        let Completion { index, result, buffer, more, .. } = completion;
        if buffer.is_some() {
            self.ring.buffers.take();
        }
        let Some(connection) = &mut self.connections[index] else { return };
        if !more {
            connection.receiving = false;
            connection.cancelled = false;
        }
        match (result.map_err(|error| error.raw_os_error()), buffer) {
            _ if connection.ended => {}
            (Ok(len @ 1..), Some(buffer)) => {
                let received = self.ring.buffers.received_mut(buffer, len);
                match connection.session.receive(received, self.now, &mut self.answers) {
                    Ok(()) => connection.send(&self.answers, self.now),
                    Err(session::Broken) => connection.end(),
                }
                self.answers.clear();
            }
            (Ok(_), _) => connection.peer_ended = true,
            // It was cancelled; or all buffers had been received into, which are free again by now.
            (Err(Some(libc::ECANCELED | libc::ENOBUFS)), _) => {}
            _ => connection.end(),
        }
        if let Some(buffer) = buffer {
            self.ring.buffers.provide(buffer);
        }
        self.advance(index);
    }

    fn sent(&mut self, completion: Completion) {
        let index = completion.index;
        let (bytes, result) = self.ring.sent_bytes(completion);
        let Some(connection) = &mut self.connections[index] else { return };
        connection.sending_bytes = 0;
        if result.is_ok_and(|sent| sent as usize == bytes.len()) {
            connection.session.sent(bytes.len(), self.now);
        } else {
            connection.end(); // the peer has disconnected
        }
        self.advance(index);
    }

    /// Handles the timeouts of all connections.
    fn tick(&mut self) {
        self.ring.tick();
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            let is_late = connection
                .shut_at
                .is_some_and(|at| self.now.saturating_duration_since(at) >= CLOSE_TIMEOUT);
            let is_broken = connection.session.tick(self.now, &mut self.answers).is_err();
            if is_late || is_broken {
                connection.end();
            } else {
                connection.send(&self.answers, self.now);
            }
            self.answers.clear();
            self.advance(index);
        }
    }

    /// Starts the next operations of the connection, or closes it if there are none.
    fn advance(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        let unsent = connection.unsent_bytes();
        let held = connection.session.held_bytes() + unsent;
        self.held_bytes = self.held_bytes - connection.counted_bytes + held;
        connection.counted_bytes = held;
        if connection.ended {
            // Operations that are in flight end.
        } else if self.held_bytes > HELD_BYTES_MAX || connection.peer_ended && unsent == 0 {
            connection.end();
        } else if connection.session.is_over() && unsent == 0 && connection.shut_at.is_none() {
            let _ = connection.stream.shutdown(Shutdown::Write);
            connection.shut_at = Some(self.now);
        } else if connection.sending_bytes == 0 && unsent > 0 {
            let bytes = std::mem::take(&mut connection.backlog);
            connection.sending_bytes = bytes.len();
            connection.session.blocked(self.now);
            self.ring.send_bytes(&connection.stream, bytes, index);
        }
        if connection.receiving {
            if unsent >= UNSENT_BYTES_MAX && !connection.cancelled && !connection.ended {
                connection.cancelled = true;
                self.ring.cancel_receive(index);
            }
        } else if connection.ended {
            if connection.sending_bytes == 0 {
                self.held_bytes -= connection.counted_bytes;
                self.connections[index] = None; // this closes it
                self.free.push(index);
            }
        } else if unsent <= UNSENT_BYTES_MAX / 2 && !connection.peer_ended {
            connection.receiving = true;
            connection.session.resume(self.now);
            self.ring.receive(&connection.stream, index);
        }
    }
}

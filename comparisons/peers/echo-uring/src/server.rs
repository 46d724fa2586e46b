//! The connections, and how they handle completions.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::ring::{Chunk, Completion, Kind, Ring};

/// The buffers of all connections, 64 KiB each. They hold what was received and is not yet sent.
const BUFFERS: u16 = 4096;

/// How many buffers a connection may hold. It is then not read until half of them have been sent.
const HELD_MAX: usize = 32;

struct Connection {
    stream: TcpStream,
    /// The chunks that were received and are not yet sent. The first is being sent if `sending`.
    held: VecDeque<Chunk>,
    /// Whether a receive is in flight.
    receiving: bool,
    /// Whether that receive was cancelled.
    cancelled: bool,
    /// Whether a send is in flight.
    sending: bool,
    /// Whether the connection waits in [`Server::starved`] for a buffer.
    starved: bool,
    /// Whether nothing more will be received.
    ended: bool,
}

pub(crate) struct Server {
    ring: Ring,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    /// The indices of `connections` that are `None`.
    free: Vec<usize>,
    /// The connections whose receive found no buffer, in the order in which they may retry.
    starved: VecDeque<usize>,
}

impl Server {
    pub(crate) fn new(listener: TcpListener) -> io::Result<Self> {
        let (connections, free, starved) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { ring: Ring::new(BUFFERS)?, listener, connections, free, starved })
    }

    pub(crate) fn run(&mut self) -> io::Result<()> {
        self.ring.accept(&self.listener);
        let mut completed = Vec::new();
        loop {
            self.ring.submit_and_wait(&mut completed)?;
            for completion in completed.drain(..) {
                match completion.kind {
                    Kind::Accept => self.accepted(completion),
                    Kind::Pause => self.ring.accept(&self.listener),
                    Kind::Receive => self.received(completion),
                    Kind::Send => self.sent(completion),
                    // The receive has a completion of its own. The others are of WebSocket.
                    Kind::Cancel | Kind::SendBytes | Kind::Tick => {}
                }
            }
            self.retry_starved();
        }
    }

    fn accepted(&mut self, completion: Completion) {
        let more = completion.more;
        match completion.into_stream() {
            Ok(stream) => {
                self.add(stream);
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

    fn add(&mut self, stream: TcpStream) {
        let index = self.free.pop().unwrap_or(self.connections.len());
        self.ring.receive(&stream, index);
        let connection = Connection {
            stream,
            held: VecDeque::new(),
            receiving: true,
            cancelled: false,
            sending: false,
            starved: false,
            ended: false,
        };
        if index == self.connections.len() {
            self.connections.push(Some(connection));
        } else {
            self.connections[index] = Some(connection);
        }
    }

    fn received(&mut self, completion: Completion) {
        let Completion { index, result, buffer, more, .. } = completion;
        let Some(connection) = &mut self.connections[index] else { return };
        if !more {
            connection.receiving = false;
            connection.cancelled = false;
        }
        if buffer.is_some() {
            self.ring.buffers.take();
        }
        match (result, buffer) {
            (Ok(n @ 1..), Some(buffer)) if !connection.ended => {
                connection.held.push_back(Chunk { buffer, start: 0, end: n });
            }
            (result, buffer) => {
                if let Some(buffer) = buffer {
                    self.ring.buffers.provide(buffer);
                }
                match result.map_err(|error| error.raw_os_error()) {
                    Err(Some(libc::ECANCELED)) => {}
                    Err(Some(libc::ENOBUFS)) if !connection.ended => {
                        connection.starved = true;
                        self.starved.push_back(index);
                    }
                    _ => connection.ended = true,
                }
            }
        }
        self.advance(index);
    }

    fn sent(&mut self, completion: Completion) {
        let Some(connection) = &mut self.connections[completion.index] else { return };
        connection.sending = false;
        match (completion.result, connection.held.front_mut()) {
            (Ok(n), Some(chunk)) => {
                chunk.start += n;
                if chunk.start == chunk.end {
                    self.ring.buffers.provide(chunk.buffer);
                    connection.held.pop_front();
                }
            }
            _ => {
                // The peer has disconnected. This ends a receive that is in flight.
                let _ = connection.stream.shutdown(Shutdown::Both);
                connection.ended = true;
                for chunk in connection.held.drain(..) {
                    self.ring.buffers.provide(chunk.buffer);
                }
            }
        }
        self.advance(completion.index);
    }

    /// Starts the next operations of the connection, or closes it if there are none.
    fn advance(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        if let (false, Some(chunk)) = (connection.sending, connection.held.front()) {
            connection.sending = true;
            self.ring.send(&connection.stream, *chunk, index);
        }
        if connection.receiving {
            if connection.held.len() >= HELD_MAX && !connection.cancelled {
                connection.cancelled = true;
                self.ring.cancel_receive(index);
            }
        } else if connection.ended {
            if !connection.sending && !connection.starved {
                self.connections[index] = None; // this closes it
                self.free.push(index);
            }
        } else if !connection.starved && connection.held.len() <= HELD_MAX / 2 {
            connection.receiving = true;
            self.ring.receive(&connection.stream, index);
        }
    }

    /// Lets as many starved connections retry as there are free buffers.
    fn retry_starved(&mut self) {
        for _ in 0..self.ring.buffers.free().min(self.starved.len()) {
            let Some(index) = self.starved.pop_front() else { break };
            if let Some(connection) = &mut self.connections[index] {
                connection.starved = false;
            }
            self.advance(index);
        }
    }
}

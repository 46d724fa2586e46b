//! The connections, and how they handle completions.

use std::io;
use std::net::{TcpListener, TcpStream};

use peers_common::objects::Answers;
use peers_common::zero_copy::Completions;

use crate::connection::Connection;
use crate::message::SLICES_MAX;
use crate::ring::{Completion, Kind, Ring};

/// How many answers a connection may hold. It is then not read until half of them have been sent.
const HELD_MAX: usize = 1024;

pub(crate) struct Server {
    ring: Ring,
    listener: TcpListener,
    answers: Answers,
    connections: Vec<Option<Connection>>,
    /// The indices of `connections` that are `None`.
    free: Vec<usize>,
    /// Sends without a copy whose notifications have come.
    completions: Completions,
    /// How many notifications are to come.
    notifications: u64,
}

impl Server {
    pub(crate) fn new(
        listener: TcpListener,
        answers: Answers,
        is_zero_copy: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            ring: Ring::new(is_zero_copy)?,
            listener,
            answers,
            connections: Vec::new(),
            free: Vec::new(),
            completions: Completions::default(),
            notifications: 0,
        })
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
                    Kind::Send => self.sent(&completion),
                    Kind::Cancel => {} // the receive has a completion of its own
                    Kind::Notification => self.notified(&completion),
                }
            }
            if self.notifications == 0 && self.free.len() == self.connections.len() {
                self.completions.print(env!("CARGO_PKG_NAME"));
            }
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
        let connection = Some(Connection::new(stream));
        if index == self.connections.len() {
            self.connections.push(connection);
        } else {
            self.connections[index] = connection;
        }
    }

    fn received(&mut self, completion: Completion) {
        let Completion { index, result, buffer, more, .. } = completion;
        let Some(connection) = &mut self.connections[index] else { return };
        if !more {
            connection.receiving = false;
            connection.cancelled = false;
        }
        let goes_on = match (result.map_err(|error| error.raw_os_error()), buffer) {
            _ if connection.ended => true,
            (Ok(len @ 1..), Some(buffer)) => {
                let received = self.ring.buffers.received(buffer, len);
                connection.take(received, &self.answers).is_ok()
            }
            // It was cancelled; or all buffers had been received into, which are free again by now.
            (Err(Some(libc::ECANCELED | libc::ENOBUFS)), _) => true,
            _ => false,
        };
        if !goes_on {
            connection.end();
        }
        if let Some(buffer) = buffer {
            self.ring.buffers.provide(buffer);
        }
        self.advance(index);
    }

    fn notified(&mut self, completion: &Completion) {
        self.notifications -= 1;
        self.completions.sends += 1;
        self.completions.copied += u64::from(matches!(completion.result, Ok(1)));
    }

    fn sent(&mut self, completion: &Completion) {
        self.notifications += u64::from(completion.more);
        let Some(connection) = &mut self.connections[completion.index] else { return };
        connection.sending = false;
        let bytes = completion.result.as_ref().map_or(0, |bytes| *bytes as usize);
        if bytes < connection.message.bytes() {
            connection.end(); // the peer has disconnected
        }
        self.advance(completion.index);
    }

    /// Starts the next operations of the connection, or closes it if there are none.
    fn advance(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        if !connection.sending && !connection.answers.is_empty() {
            connection.sending = true;
            let count = connection.answers.len().min(SLICES_MAX);
            connection.message.replace(connection.answers.drain(..count));
            self.ring.send(&connection.stream, &connection.message, index);
        }
        if connection.receiving {
            if connection.answers.len() >= HELD_MAX && !connection.cancelled {
                connection.cancelled = true;
                self.ring.cancel_receive(index);
            }
        } else if connection.ended {
            if !connection.sending {
                self.connections[index] = None; // this closes it
                self.free.push(index);
            }
        } else if connection.answers.len() <= HELD_MAX / 2 {
            connection.receiving = true;
            self.ring.receive(&connection.stream, index);
        }
    }
}

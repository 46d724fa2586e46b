//! One connection: its requests that are not complete, and its answers that are not sent.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};

use peers_common::BUF_BYTES;
use peers_common::objects::Answers;

use crate::message::Message;

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// The beginning of a request.
    partial: Vec<u8>,
    /// What is to be sent after `message`.
    pub(crate) answers: VecDeque<&'static [u8]>,
    pub(crate) message: Message,
    /// Whether a receive is in flight.
    pub(crate) receiving: bool,
    /// Whether that receive was cancelled.
    pub(crate) cancelled: bool,
    /// Whether `message` is in flight.
    pub(crate) sending: bool,
    /// Whether nothing more will be received or sent.
    pub(crate) ended: bool,
}

impl Connection {
    /// One that is received from.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            partial: Vec::new(),
            answers: VecDeque::new(),
            message: Message::new(),
            receiving: true,
            cancelled: false,
            sending: false,
            ended: false,
        }
    }

    /// Queues the answers to the requests in what was received.
    pub(crate) fn take(&mut self, received: &[u8], answers: &Answers) -> io::Result<()> {
        if self.partial.is_empty() {
            let taken = queue(&mut self.answers, received, answers)?;
            self.partial.extend_from_slice(&received[taken..]);
        } else {
            self.partial.extend_from_slice(received);
            let taken = queue(&mut self.answers, &self.partial, answers)?;
            drop(self.partial.drain(..taken));
        }
        if self.partial.len() < BUF_BYTES { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Ends it. That ends operations that are in flight, too.
    pub(crate) fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.answers.clear();
        self.ended = true;
    }
}

/// Queues the answers to all complete requests. Returns how many bytes these have.
fn queue(
    queue: &mut VecDeque<&'static [u8]>,
    requests: &[u8],
    answers: &Answers,
) -> io::Result<usize> {
    let mut taken = 0;
    while let Some((len, answer)) = answers.first(&requests[taken..])? {
        queue.push_back(answer);
        taken += len;
    }
    Ok(taken)
}

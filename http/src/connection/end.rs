//! How an exchange ends, and how a connection does (RFC 9112 sections 9.3 and 9.6).

use std::cell::Cell;
use std::net::Shutdown;
use std::rc::Rc;
use std::{fmt, io};

use owned_io::{ByteStream, Clock, ShutdownHandle};

use super::wait::{Waited, within};
use super::{Connection, Filled, State};
use crate::engine::Wait;
use crate::{Error, Misuse, Refusal};

/// The most bytes that a client may send behind its last request and still be sure to receive the answer. They are
/// discarded.
const DISCARDED_AT_END_BYTES_MAX: usize = 1024 * 1024;

/// The bytes of an answer that refuses a request: its head and one line of text.
const REFUSAL_BYTES_MAX: usize = 512;

/// Ends a connection after its current request. A clone is another handle to the same connection.
#[derive(Clone)]
pub struct EndHandle {
    stream: ShutdownHandle,
    ending: Rc<Ending>,
}

/// What a connection shares with its handles.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Whether the next answer has to be the last one.
    pub(super) is_ending: Cell<bool>,
    /// Whether what the connection waits for is not worth waiting for any more: a request that has not arrived, the
    /// rest of a body whose request was answered, or the client's end.
    pub(super) may_end_now: Cell<bool>,
}

impl EndHandle {
    pub(super) const fn new(stream: ShutdownHandle, ending: Rc<Ending>) -> Self {
        Self { stream, ending }
    }

    /// The answer to the current request says that it is the last one, unless it has begun. Then the connection ends. A
    /// connection without a request still answers one that has arrived, and waits for none: otherwise it ends at once,
    /// even if a part of a head has arrived. So does one that has answered and waits for the rest of the request's
    /// body, or for the client's end.
    pub fn end(&self) {
        self.ending.is_ending.set(true);
        if self.ending.may_end_now.get() {
            self.stream.shutdown(Shutdown::Read);
        }
    }
}

impl fmt::Debug for EndHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndHandle").field("ending", &self.ending).finish_non_exhaustive()
    }
}

impl<C: Clock, S: ByteStream> Connection<C, S> {
    /// Prepares for the next request after an answer. Returns whether there may be one.
    pub(super) async fn end_exchange(&mut self) -> Result<bool, Error> {
        self.is_last |= self.ending.is_ending.get();
        let mut discarded = 0;
        while !self.is_last {
            match self.next_piece(true).await? {
                Some(piece) => discarded += piece.len() as u64,
                None => break,
            }
            // The length was not known when the answer began.
            self.is_last = discarded > self.config.limits.discard_bytes_max;
        }
        if self.is_last {
            self.end().await?;
            return Ok(false);
        }
        self.decoder.next_request();
        self.received.forget_head(&self.buffers);
        self.head_memory.force(0);
        self.timers.handle_next_request();
        self.state = State::Idle;
        Ok(true)
    }

    /// Answers a request that is refused, if it has no answer, and ends the connection.
    pub(super) async fn refuse(&mut self, refusal: Refusal) -> Error {
        let is_head_method = match self.state {
            State::Idle => self.decoder.is_head_method(self.received.unread()),
            _ => self.decoder.is_head_method(self.received.head()),
        };
        if matches!(self.state, State::Idle | State::Request) {
            let date = self.date();
            self.queue.force(REFUSAL_BYTES_MAX);
            self.encoder.refuse(refusal, is_head_method, &date, self.queue.out());
        }
        let _ = self.end().await; // the client may miss the answer
        refusal.into()
    }

    /// Writes the queue, ends the write side, and discards what the client sends until it ends.
    pub(super) async fn end(&mut self) -> Result<(), Error> {
        match self.state {
            State::Ended => return Ok(()),
            State::Answering => {
                self.reset(); // otherwise the client might take a part for the whole
                return Ok(());
            }
            State::Idle | State::Request | State::Answered => {}
        }
        self.write_queue().await?;
        self.state = State::Ended;
        self.received.clear(&self.buffers);
        self.is_interrupted = true;
        let (ending, end) = (self.stream.shutdown(), || self.handle.abort());
        let (_, waited) =
            within::<C, _>(&mut self.timers, &mut self.sleep, Wait::Close, ending, end).await;
        self.is_interrupted = false;
        if waited != Waited::No {
            self.timers.handle_wait_end(C::now(), 0);
        }
        let mut discarded = 0;
        while waited != Waited::TooLong && discarded < DISCARDED_AT_END_BYTES_MAX {
            self.ending.may_end_now.set(true);
            let filled = self.fill(Wait::Close, None).await;
            self.ending.may_end_now.set(false);
            match filled {
                Ok(Filled::Bytes(bytes)) => discarded += bytes,
                Ok(Filled::End | Filled::Late) | Err(_) => break,
            }
            self.received.clear(&self.buffers);
        }
        Ok(())
    }

    /// The client has ended its side within a request.
    pub(super) fn end_within_request(&mut self) -> Error {
        self.reset();
        Error::Io(io::ErrorKind::UnexpectedEof.into())
    }

    /// The program has used the connection wrongly, and the client cannot be answered properly.
    pub(super) fn fail(&mut self, misuse: Misuse) -> Error {
        self.reset();
        misuse.into()
    }

    pub(super) fn reset(&mut self) {
        self.state = State::Ended;
        self.handle.abort();
    }
}

//! What a connection reads: heads, bodies, and the waits for them.

use std::io;
use std::net::Shutdown;
use std::ops::Range;

use owned_io::{BufResult, ByteStream, Clock, IoBufMutExt, OwnedRead, Pool, PoolBuf, Spare, coop};

use super::wait::{Waited, within};
use super::{Connection, FRAME_BYTES_MAX, Filled, State};
use crate::engine::{Encoder, Wait};
use crate::{Error, Misuse, Refusal};

impl<C: Clock, S: ByteStream> Connection<C, S> {
    /// Returns whether there is a request.
    pub(super) async fn read_request(&mut self) -> Result<bool, Error> {
        match self.state {
            State::Idle => {}
            State::Ended => return Ok(false),
            State::Request | State::Answering => return Err(self.fail(Misuse::NotAnswered)),
            State::Answered => {
                if !self.end_exchange().await? {
                    return Ok(false);
                }
            }
        }
        loop {
            coop::yield_if_exhausted::<C>().await;
            match self.decoder.decode_head(self.received.unread()) {
                Ok(Some(head_bytes)) => {
                    coop::consume(coop::cost::request_head(head_bytes));
                    self.received.take_head(head_bytes);
                    (self.state, self.has_continued) = (State::Request, false);
                    return Ok(true);
                }
                Ok(None) => {}
                Err(refusal) => return Err(self.refuse(refusal).await),
            }
            self.write_queue().await?;
            // A line end behind the last body, which some clients send, is no beginning of a head. It earns no time.
            let unread = self.received.unread();
            let wait = if unread.is_empty() { Wait::Idle } else { Wait::Head };
            let has_begun = !unread.iter().all(|byte| b"\r\n".contains(byte));
            if self.ending.is_ending.get() {
                self.handle.shutdown(Shutdown::Read); // a request that has arrived is still read
            }
            let (head_bytes_max, pool) = (self.config.limits.head_bytes_max, self.buffers.pool());
            let prepared = self.received.prepare_for_head(head_bytes_max, pool);
            let buf = prepared.map_err(io::Error::from)?;
            self.ending.may_end_now.set(true);
            let filled = self.fill(wait, buf).await;
            self.ending.may_end_now.set(false);
            match (filled?, has_begun) {
                (Filled::Bytes(_), _) => {}
                (Filled::End, true) if self.ending.is_ending.get() => {
                    self.end().await?;
                    return Ok(false);
                }
                (Filled::Late, true) => return Err(self.refuse(Refusal::HeadLate).await),
                (Filled::End, true) => return Err(self.end_within_request()),
                (Filled::End | Filled::Late, false) => {
                    self.end().await?;
                    return Ok(false);
                }
            }
        }
    }

    /// Returns where in the receive buffer the next piece of the body is. `is_discarded`: the request was answered, and
    /// nobody reads the body. Then the end of either side is the end of the body too, and there is no further request.
    pub(super) async fn next_piece(
        &mut self,
        is_discarded: bool,
    ) -> Result<Option<Range<usize>>, Error> {
        loop {
            if self.decoder.is_body_at_end() {
                return Ok(None);
            }
            coop::yield_if_exhausted::<C>().await;
            let piece = match self.decoder.decode_body(self.received.unread()) {
                Ok(piece) => piece,
                Err(refusal) => return Err(self.refuse(refusal).await),
            };
            coop::consume(coop::cost::body_piece(piece.consumed - piece.content.len()));
            let at = self.received.consume(piece.consumed);
            if !piece.content.is_empty() {
                return Ok(Some(at + piece.content.start..at + piece.content.end));
            }
            if self.decoder.is_body_at_end() {
                return Ok(None);
            }
            self.send_continue();
            self.write_queue().await?;
            let head_bytes_max = self.config.limits.head_bytes_max;
            let head_bytes = self.received.prepare_for_body(head_bytes_max, &self.buffers);
            self.head_memory.force(head_bytes);
            if is_discarded && self.ending.is_ending.get() {
                self.is_last = true;
                return Ok(None);
            }
            self.ending.may_end_now.set(is_discarded);
            let filled = self.fill(Wait::Body, None).await;
            self.ending.may_end_now.set(false);
            match filled? {
                Filled::Bytes(_) => {}
                Filled::End if is_discarded => {
                    self.is_last = true;
                    return Ok(None);
                }
                Filled::End => return Err(self.end_within_request()),
                Filled::Late => return Err(self.refuse(Refusal::BodyLate).await),
            }
        }
    }

    /// Queues `100 Continue` if the client waits for it.
    pub(super) fn send_continue(&mut self) {
        let expects = self.request().is_some_and(|request| request.expects_continue());
        if self.state == State::Request && expects && !self.has_continued {
            self.has_continued = true;
            self.queue.force(FRAME_BYTES_MAX);
            Encoder::encode_continue(self.queue.out());
        }
    }

    /// Reads more bytes behind those of `buf`, or into a buffer of the pool.
    pub(super) async fn fill(&mut self, wait: Wait, buf: Option<PoolBuf>) -> Result<Filled, Error> {
        self.is_interrupted = true;
        // The program may hold what it has read of a body.
        let account = self.queue.reservation().account();
        let reading = read_some(&mut self.stream, buf, self.buffers.pool());
        let reading = account.abort_when_evicted(&self.handle, reading);
        let end = || self.handle.shutdown(Shutdown::Read);
        let (read, waited) =
            within::<C, _>(&mut self.timers, &mut self.sleep, wait, reading, end).await;
        self.is_interrupted = false;
        let (read, buf) = read;
        if let Some(buf) = buf {
            self.received.put(buf);
        }
        if waited != Waited::No {
            let bytes = *read.as_ref().unwrap_or(&0);
            self.timers.handle_wait_end(C::now(), bytes);
        }
        let is_reset = waited != Waited::No && account.is_evicted() && account.held_bytes() > 0;
        match (read, waited) {
            (Ok(0) | Err(_), _) if is_reset => {
                self.state = State::Ended;
                Err(io::Error::from(io::ErrorKind::OutOfMemory).into())
            }
            (_, Waited::TooLong) => Ok(Filled::Late),
            (Ok(0), _) => Ok(Filled::End),
            (Ok(bytes), _) => Ok(Filled::Bytes(bytes)),
            // Nothing was read: there was no buffer to read into. A later call continues.
            (Err(error), _) if error.kind() == io::ErrorKind::QuotaExceeded => Err(error.into()),
            (Err(error), _) => {
                self.state = State::Ended;
                Err(error.into())
            }
        }
    }
}

/// Reads behind the bytes of `buf`, or into a buffer of the pool. The buffer comes back, except after an error with
/// the pool.
async fn read_some(
    stream: &mut impl OwnedRead,
    buf: Option<PoolBuf>,
    pool: &Pool,
) -> (io::Result<usize>, Option<PoolBuf>) {
    match buf {
        None => match stream.read_pooled(pool).await {
            Ok(buf) => (Ok(buf.len()), Some(buf)),
            Err(error) => (Err(error), None),
        },
        Some(buf) => {
            let BufResult(read, buf) = stream.read(buf.spare()).await.map_buf(Spare::into_inner);
            (read, Some(buf))
        }
    }
}

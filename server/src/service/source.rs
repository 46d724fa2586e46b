//! Source: sends the messages that a client asks for.
//!
//! A request is three `u32`, little-endian: the number of messages, the bytes of each, and the messages of a batch.
//! Byte `i` of message `n` is `n + i`, modulo 256. A connection may send many requests, one after the other.

use std::cell::RefCell;
use std::io;
use std::mem;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use owned_io::{
    ByteStream, Clock, IoBufMutExt, IoVec, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt,
    Reservation, Runtime, Spare, coop, shutdown_after,
};

use super::message::{UNRESERVED_BYTES, message_too_long, reset_on_timeout};
use crate::context::{Context, Resources};
use crate::watch::Activity;

/// Messages up to this length, in bytes, are copied into one buffer. That is cheaper than a vectored write with a piece
/// for each. Longer messages are written in place.
const COPIED_BYTES_MAX: usize = 1024;

/// A write is full with this many bytes, about as many as a socket takes without waiting. Larger batches are written in
/// several writes, so they need no more memory.
pub(super) const WRITE_BYTES_MAX: usize = 64 * 1024;

/// Serves one connection until its peer ends it.
///
/// Copied messages are reserved in the connection's account while a request is answered. They take at most half of
/// what is left of its share, and writes are shorter if that is little. So a source never waits for memory, and never
/// holds what others wait for.
///
/// # Errors
/// Errors of the connection. [`InvalidData`](io::ErrorKind::InvalidData) for messages over the limit, and for
/// batches of no messages. [`OutOfMemory`](io::ErrorKind::OutOfMemory) if an allocation fails.
/// [`TimedOut`](io::ErrorKind::TimedOut) if the peer does not read the messages in time, does not complete a request in
/// time, or if the [watch](crate::watch) ended the connection.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> io::Result<()> {
    let activity = ctx.connection.watched();
    let served = answer_requests::<R>(stream, ctx, &activity).await;
    activity.outcome(served)
}

async fn answer_requests<R: Runtime>(
    stream: impl ByteStream,
    ctx: &Context,
    activity: &Activity,
) -> io::Result<()> {
    let Resources { pattern, limits, metrics, .. } = &*ctx.worker;
    let flow = &metrics.traffic.source_tcp;
    let mut reservation = ctx.connection.account().reservation();
    let connection = stream.shutdown_handle();
    let (mut read, mut write) = stream.into_split();
    let mut request_bytes = Vec::with_capacity(Request::BYTES);
    let mut copied = Vec::new();
    let mut pieces = IoVec::new();
    loop {
        request_bytes.clear();
        activity.begin_wait();
        let begun = read.read(request_bytes.spare().limit(Request::BYTES)).await;
        let n;
        (n, request_bytes) = begun.map_buf(Spare::into_inner).into_result()?;
        if n == 0 {
            activity.begin_answer();
            let _ = write.shutdown().await; // the FIN, over TLS behind a close_notify; an error: the peer is gone
            return Ok(());
        }
        let rest = read.read_exact(request_bytes.spare(), Request::BYTES - n);
        let rest = shutdown_after::<R, _>(limits.message_time_max, &connection, rest).await;
        ((), request_bytes) = rest.map_buf(Spare::into_inner).into_result()?;
        let request = Request::parse(&request_bytes, limits.message_bytes_max)?;
        flow.receive(1, Request::BYTES);
        let pattern = pattern.bytes_for::<R>(request.bytes as usize).await?;
        let mut answer = Answer::new(request, pattern);
        if answer.is_copied() {
            let write_bytes_max = answer.reserve_copies(&mut reservation, &mut copied)?;
            while answer.copy(&mut copied, write_bytes_max) {
                activity.begin_answer();
                flow.send(answer.take_added(), copied.len());
                let written = write.write_all(copied);
                let written =
                    shutdown_after::<R, _>(limits.message_time_max, &connection, written).await;
                ((), copied) = reset_on_timeout(written, &connection)?;
                copied.clear();
            }
            if reservation.bytes() > 0 {
                copied = Vec::new();
                reservation.force(0);
            }
        } else {
            while answer.reference(&mut pieces) {
                activity.begin_answer();
                flow.send(answer.take_added(), pieces.bytes_left());
                let written = write.write_all_vectored(pieces);
                let written =
                    shutdown_after::<R, _>(limits.message_time_max, &connection, written).await;
                ((), pieces) = reset_on_timeout(written, &connection)?;
                pieces.clear();
            }
        }
    }
}

/// Bytes that count up from zero, modulo 256. Every message is a part of them. The connections of a worker share them.
/// There are at most twice as many as the longest requested message needs, and as many again in shorter patterns that
/// older connections keep.
#[derive(Clone, Debug, Default)]
pub struct Pattern {
    bytes: Rc<RefCell<Bytes>>,
    /// A longer pattern that is being filled, by all connections that wait for it.
    filling: Rc<RefCell<Vec<u8>>>,
}

/// How much of a pattern is filled before other tasks may run.
const FILLED_AT_ONCE_BYTES: usize = 64 * 1024;

impl Pattern {
    /// Returns bytes that contain every message of up to `len` bytes. Other tasks run while they are filled.
    ///
    /// # Errors
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory) if the allocation fails. The bytes so far are unchanged.
    ///
    /// # Cancellation
    /// Safe. Other connections that wait for the bytes go on filling them.
    pub(super) async fn bytes_for<R: Clock>(&self, len: usize) -> io::Result<Bytes> {
        loop {
            if self.bytes.borrow().len() >= 255 + len {
                return Ok(self.bytes.borrow().clone());
            }
            self.fill_some(len)?;
            coop::yield_if_exhausted::<R>().await;
        }
    }

    fn fill_some(&self, len: usize) -> io::Result<()> {
        let mut filling = self.filling.borrow_mut();
        if filling.capacity() < 255 + len {
            // A connection keeps its first pattern. Powers of two bound the number of patterns.
            let bytes_max = 255 + len.next_power_of_two();
            let missing = bytes_max - filling.len();
            filling.try_reserve_exact(missing)?;
        }
        let end = filling.capacity().min(filling.len() + FILLED_AT_ONCE_BYTES);
        let start = filling.len();
        filling.extend((start..end).map(|i| i as u8));
        coop::consume(coop::cost::source_message(end - start));
        if end == filling.capacity() {
            *self.bytes.borrow_mut() = mem::take(&mut *filling).into();
        }
        Ok(())
    }
}

/// The offset of message `n` in the [`Pattern`].
pub(super) const fn pattern_offset(n: u64) -> usize {
    (n % 256) as usize
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) messages: u32,
    pub(super) bytes: u32,
    pub(super) batch: u32,
}

impl Request {
    const BYTES: usize = 12;

    pub(super) fn parse(request: &[u8], bytes_max: usize) -> io::Result<Self> {
        let (fields, rest) = request.as_chunks();
        let (&[messages, bytes, batch], []) = (fields, rest) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request must be three u32"));
        };
        let [messages, bytes, batch] = [messages, bytes, batch].map(u32::from_le_bytes);
        let request = Self { messages, bytes, batch };
        if request.bytes as usize > bytes_max {
            return Err(message_too_long());
        }
        if request.batch == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a batch must have messages"));
        }
        Ok(request)
    }
}

/// The messages that are still to be sent for a request.
struct Answer {
    request: Request,
    /// The number of the next message.
    next: u32,
    /// What that was at the last [`take_added`](Self::take_added).
    taken: u32,
    len_prefix: Bytes,
    pattern: Bytes,
}

impl Answer {
    fn new(request: Request, pattern: Bytes) -> Self {
        let len_prefix = Bytes::copy_from_slice(&request.bytes.to_le_bytes());
        Self { request, next: 0, taken: 0, len_prefix, pattern }
    }

    /// Whether the messages are short enough to be copied.
    const fn is_copied(&self) -> bool {
        self.request.bytes as usize <= COPIED_BYTES_MAX
    }

    /// The bytes of a copied message with its length.
    const fn copied_bytes(&self) -> usize {
        4 + self.request.bytes as usize
    }

    /// Reserves memory for copies, and allocates it in `out`. Returns how many bytes may be written at once.
    fn reserve_copies(
        &self,
        reservation: &mut Reservation,
        out: &mut Vec<u8>,
    ) -> io::Result<usize> {
        let Request { messages, batch, .. } = self.request;
        let wanted = self.copied_bytes().saturating_mul(messages.min(batch) as usize);
        let room = UNRESERVED_BYTES + reservation.account().share_bytes_left() / 2;
        let bytes = wanted.min(WRITE_BYTES_MAX).min(room);
        reservation.resize(bytes.saturating_sub(UNRESERVED_BYTES))?;
        out.try_reserve_exact(bytes)?;
        Ok(bytes)
    }

    /// Fills `out`, which must be empty, up to the end of the batch, a write of `bytes_max` bytes, or the end of the
    /// poll's budget. Returns false if no message is left.
    fn copy(&mut self, out: &mut Vec<u8>, bytes_max: usize) -> bool {
        let end = self.batch_end();
        while self.next < end && out.len() + self.copied_bytes() <= bytes_max {
            out.extend_from_slice(&self.len_prefix);
            out.extend_from_slice(&self.pattern[self.message()]);
            self.next += 1;
            coop::consume(coop::cost::source_message(self.request.bytes as usize));
            if !coop::has_budget() {
                break; // the write that follows yields
            }
        }
        !out.is_empty()
    }

    /// Like [`copy`](Self::copy), but adds references to the pattern instead of copies.
    fn reference(&mut self, out: &mut IoVec<Bytes>) -> bool {
        let end = self.batch_end();
        while self.next < end && out.bytes_left() < WRITE_BYTES_MAX {
            out.push(self.len_prefix.clone());
            out.push(self.pattern.slice(self.message()));
            self.next += 1;
        }
        !out.bufs().is_empty()
    }

    /// How many messages were added since the last call.
    fn take_added(&mut self) -> u64 {
        u64::from(self.next - mem::replace(&mut self.taken, self.next))
    }

    const fn batch_end(&self) -> u32 {
        let Request { messages, batch, .. } = self.request;
        let end = (self.next - self.next % batch).saturating_add(batch);
        if end < messages { end } else { messages }
    }

    /// The range of the next message in the pattern.
    const fn message(&self) -> Range<usize> {
        let start = pattern_offset(self.next as u64);
        start..start + self.request.bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use owned_io::{Executor, MemoryBudget};
    use owned_io_sim::Sim;

    use super::*;

    fn bytes_for(pattern: &Pattern, len: usize) -> io::Result<Bytes> {
        owned_io_sim::block_on(pattern.bytes_for::<Sim>(len))
    }

    fn answer_to(request: Request) -> Answer {
        let pattern = bytes_for(&Pattern::default(), request.bytes as usize).unwrap();
        Answer::new(request, pattern)
    }

    fn answer(request: Request) -> (Vec<u8>, usize) {
        let (mut all, mut writes) = (Vec::new(), 0);
        let mut answer = answer_to(request);
        let (mut copied, mut pieces) = (Vec::new(), IoVec::new());
        loop {
            coop::refill();
            let is_more = if answer.is_copied() {
                answer.copy(&mut copied, WRITE_BYTES_MAX)
            } else {
                answer.reference(&mut pieces)
            };
            if !is_more {
                return (all, writes);
            }
            assert!(copied.len() <= WRITE_BYTES_MAX);
            all.append(&mut copied);
            pieces.bufs().iter().for_each(|piece| all.extend_from_slice(piece));
            pieces.clear();
            writes += 1;
        }
    }

    fn assert_counts_up(messages: &[u8], bytes: u32) {
        for (n, message) in messages.chunks(4 + bytes as usize).enumerate() {
            assert_eq!(message[..4], bytes.to_le_bytes());
            assert!(message[4..].iter().enumerate().all(|(i, byte)| *byte == (n + i) as u8));
        }
    }

    #[test]
    fn messages_count_up_and_each_batch_is_one_write() {
        let (all, writes) = answer(Request { messages: 5, bytes: 3, batch: 2 });
        assert_eq!(writes, 3);
        assert_eq!(&all[..14], [3, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3]);
        assert_eq!(all.len(), 35);
        for bytes in [1, 255, 256, 1_024, 1_025, 30_000] {
            let (all, writes) = answer(Request { messages: 300, bytes, batch: 7 });
            // A batch of 7 messages of 30,000 bytes needs several writes.
            let expected = if bytes == 30_000 { 42 * 3 + 2 } else { 43 };
            assert_eq!((all.len(), writes), (300 * (4 + bytes as usize), expected));
            assert_counts_up(&all, bytes);
        }
    }

    #[test]
    fn a_long_batch_is_sent_in_several_writes() {
        let (all, writes) = answer(Request { messages: 100_000, bytes: 10, batch: u32::MAX });
        assert_eq!(all.len(), 1_400_000);
        assert!(
            (22..=30).contains(&writes),
            "{writes}: a write ends at its length, or at the budget of a poll"
        );
        assert_counts_up(&all, 10);
        let (all, writes) = answer(Request { messages: 1_025, bytes: 2_000, batch: u32::MAX });
        assert_eq!((all.len(), writes), (1_025 * 2_004, 32));
        assert_counts_up(&all, 2_000);
    }

    #[test]
    fn messages_of_many_lengths_are_parts_of_few_patterns() {
        let pattern = Pattern::default();
        let patterns: Vec<_> = owned_io_sim::block_on(async {
            let mut patterns = Vec::new();
            for len in 0..10_000 {
                patterns.push(pattern.bytes_for::<Sim>(len).await.unwrap());
            }
            patterns
        });
        assert!(patterns.iter().enumerate().all(|(len, pattern)| pattern.len() >= 255 + len));
        let addresses: HashSet<_> = patterns.iter().map(|pattern| pattern.as_ptr()).collect();
        assert!(addresses.len() <= 15, "{}", addresses.len());
    }

    #[test]
    fn a_pattern_that_cannot_be_allocated_is_an_error() {
        let pattern = Pattern::default();
        let short = bytes_for(&pattern, 1).unwrap();
        let error = bytes_for(&pattern, isize::MAX as usize).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(bytes_for(&pattern, 1).unwrap().as_ptr(), short.as_ptr());
    }

    #[test]
    fn a_long_pattern_is_filled_in_pieces() {
        const BYTES: usize = 16 << 20;
        let pattern = Pattern::default();
        let mut polls = 0;
        let all = owned_io_sim::block_on(async {
            // One call is cancelled, and three others share the work.
            let cancelled = pattern.bytes_for::<Sim>(BYTES / 4);
            assert!(poll_once(&mut pin!(cancelled)).await.is_pending());
            let waiting = [(); 3].map(|()| {
                let pattern = pattern.clone();
                Sim::spawn(async move { pattern.bytes_for::<Sim>(BYTES).await.unwrap() })
            });
            let mut own = pin!(pattern.bytes_for::<Sim>(BYTES));
            let bytes = poll_fn(|cx| {
                coop::refill();
                let polled = own.as_mut().poll(cx);
                polls += 1;
                let spent = coop::spent_nanos();
                assert!(spent < 4 * u64::from(coop::POLL_BUDGET_NANOS), "{spent} ns in a poll");
                polled
            })
            .await
            .unwrap();
            let mut all = vec![bytes];
            for waiting in waiting {
                all.push(waiting.await.unwrap());
            }
            all
        });
        assert!(polls > 4, "{polls} polls");
        assert!(all.iter().all(|bytes| bytes.as_ptr() == all[0].as_ptr()), "there are several");
        assert!(all[0].len() >= BYTES + 255);
        assert!(all[0].iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }

    async fn poll_once<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
        coop::refill();
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
    }

    #[test]
    fn copies_stay_within_the_share_of_their_connection() {
        let request = Request { messages: 100_000, bytes: 10, batch: u32::MAX };
        let answer = answer_to(request);
        for (share, expected) in [(160 << 10, WRITE_BYTES_MAX), (8 << 10, 8 << 10), (0, 4 << 10)] {
            let account = MemoryBudget::new(1 << 20).with_shares(1, share).account();
            let (mut reservation, mut out) = (account.reservation(), Vec::new());
            let bytes = answer.reserve_copies(&mut reservation, &mut out).unwrap();
            assert_eq!((bytes, out.capacity()), (expected, expected));
            assert_eq!(account.held_bytes(), expected - UNRESERVED_BYTES);
            assert_eq!(account.budget().common_bytes_held(), 0);
        }
    }

    #[test]
    fn a_request_for_no_messages_writes_nothing_and_bad_requests_are_refused() {
        assert_eq!(answer(Request { messages: 0, bytes: 3, batch: 1 }).1, 0);
        let nonsense = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert!(Request::parse(&nonsense, 10).is_err());
        let long = [1, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0, 0];
        assert!(Request::parse(&long, 10).is_err());
    }
}

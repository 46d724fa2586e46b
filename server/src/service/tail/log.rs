//! Reading on from the log, for a connection that is not at the end, and [`Reader`], which feeds use too.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use iggy_binary_protocol::{WireMessageIterator, WireMessageView};
use owned_io::{Reservation, Runtime, coop};
use owned_io_websocket::stream::{COPIED_BYTES_MAX, Error, Message, Unsent};
use owned_io_websocket::{AnyOutgoing, Fragment};

use super::format::{Format, lost};
use super::{End, Tail, TailOutgoing};
use crate::context::Context;
use crate::iggy::broker::Epoch;
use crate::iggy::broker::tail::{TailError, Tailed};
use crate::iggy::workers::Iggy;
use crate::service::iggy::reserve;
use crate::service::message::UNRESERVED_BYTES;
use crate::service::source::WRITE_BYTES_MAX;

/// The most bytes of messages that are read at once, but one batch at least. It is one write.
pub(super) const READ_BYTES_MAX: usize = 64 * 1024;

/// How long after a read the log is taken to end where it ended then. A feed that begins further behind makes connections
/// wait that have read more already, until it has caught up.
const END_AGE_MAX: Duration = Duration::from_millis(100);

/// The work of going to the next message of a batch, in nanoseconds, as in a poll.
pub(super) const MESSAGE_NANOS: u64 = 10;

/// Sends messages from the log, until the connection can join a feed or begin one, or there is a reason to close.
pub(super) async fn read_on<R: Runtime>(
    tail: &mut Tail,
    outgoing: &mut impl TailOutgoing,
    ctx: &Context,
) -> Result<ControlFlow<End>, Error> {
    let room = ctx.connection.account().reservation();
    let time_max = ctx.worker.limits.message_time_max;
    let mut reader = Reader::new(Rc::clone(&tail.iggy), tail.epoch, room, time_max);
    let mut encoded = Vec::new();
    tail.is_at_end = false;
    // Until it is known that there are messages, a read may wait for them, as long as it takes. It holds nothing meanwhile.
    let mut is_behind = false;
    // Each round sends messages, or ends.
    loop {
        let bytes_max = if is_behind {
            reader.reserve_ahead()
        } else {
            reader.release();
            UNRESERVED_BYTES
        };
        let tailed = match reader.read::<R>(tail.next, bytes_max).await {
            Ok(tailed) => tailed,
            Err(error) => {
                return Ok(ControlFlow::Break(End::Unread { offset: tail.next, error }));
            }
        };
        let read_at = R::now();
        for batch in &tailed.batches {
            for message in WireMessageIterator::new(&batch.bytes, batch.count) {
                coop::yield_if_exhausted::<R>().await;
                coop::consume(MESSAGE_NANOS);
                let Ok(message) = message else {
                    let (offset, error) = (tail.next, TailError::Unreadable);
                    return Ok(ControlFlow::Break(End::Unread { offset, error }));
                };
                if message.offset() < tail.next {
                    continue; // the batch began before what was asked for
                }
                if tail.can_join(&*outgoing, &ctx.worker) {
                    return Ok(ControlFlow::Continue(()));
                }
                let (from, to) = (tail.next, message.offset().min(tailed.lost_until));
                if from < to {
                    if tail.format == Format::Binary {
                        return Ok(ControlFlow::Break(End::Lost { from, to }));
                    }
                    queue_text(&lost(from, to), outgoing).await?;
                }
                tail.next = message.offset();
                let queued = queue::<R>(tail.format, &message, &mut encoded, outgoing, ctx).await?;
                if queued.is_break() {
                    return Ok(queued);
                }
                tail.next = message.offset() + 1;
                if outgoing.queued_bytes() >= WRITE_BYTES_MAX || !coop::has_budget() {
                    outgoing.flush().await?;
                }
            }
        }
        outgoing.flush().await?;
        is_behind = tail.next < tailed.end;
        tail.is_at_end = !is_behind && R::now() - read_at <= END_AGE_MAX;
        if tail.is_at_end || tail.can_join(&*outgoing, &ctx.worker) {
            return Ok(ControlFlow::Continue(()));
        }
    }
}

/// Queues a message, and waits for room and memory if there is none.
async fn queue<R: Runtime>(
    format: Format,
    message: &WireMessageView<'_>,
    encoded: &mut Vec<u8>,
    outgoing: &mut impl AnyOutgoing,
    ctx: &Context,
) -> Result<ControlFlow<End>, Error> {
    let limits = ctx.worker.limits;
    let (pushed, offset) = (format.pushed(message), message.offset());
    let bytes = pushed.bytes();
    if bytes > limits.message_bytes_max {
        return Ok(ControlFlow::Break(End::TooLarge { offset, bytes }));
    }
    let mut room = ctx.connection.account().reservation();
    let is_reserved = bytes <= UNRESERVED_BYTES
        || reserve::<R>(&mut room, bytes, limits.message_time_max).await.is_ok();
    encoded.clear();
    if !is_reserved || encoded.try_reserve_exact(bytes).is_err() {
        return Ok(ControlFlow::Break(End::NoMemory { offset }));
    }
    pushed.encode(encoded);
    drop(room); // the queue reserves the same bytes, before any other connection can
    let flow = &ctx.worker.metrics.traffic.tail_websocket;
    let part = Fragment::Whole(format.kind());
    if bytes <= COPIED_BYTES_MAX {
        while let Err(error) = outgoing.write_fragment(part, encoded) {
            outgoing.wait_for_room(error).await?;
        }
        flow.send(1, bytes);
        return Ok(ControlFlow::Continue(()));
    }
    let mut payload = Bytes::from(std::mem::take(encoded));
    while let Err(Unsent { error, payload: refused, .. }) = outgoing.write_bytes(part, payload) {
        outgoing.wait_for_room(error).await?;
        payload = refused;
    }
    flow.send(1, bytes);
    Ok(ControlFlow::Continue(()))
}

async fn queue_text(text: &str, outgoing: &mut impl AnyOutgoing) -> Result<(), Error> {
    while let Err(error) = outgoing.write(Message::Text(text)) {
        outgoing.wait_for_room(error).await?;
    }
    Ok(())
}

/// Reads a partition, with memory for what it reads.
pub(super) struct Reader {
    iggy: Rc<Iggy>,
    epoch: Epoch,
    /// What was read last.
    room: Reservation,
    /// How long a batch may wait for memory.
    time_max: Duration,
}

impl Reader {
    pub(super) const fn new(
        iggy: Rc<Iggy>,
        epoch: Epoch,
        room: Reservation,
        time_max: Duration,
    ) -> Self {
        Self { iggy, epoch, room, time_max }
    }

    /// Waits for messages from `from` on, and reads at most `bytes_max` bytes of them, or one batch that is longer.
    /// Memory for that one is waited for.
    ///
    /// # Errors
    /// As for [`Iggy::tail`]. [`TooLong`](TailError::TooLong): there is no memory for the batch.
    ///
    /// # Cancellation
    /// Safe.
    pub(super) async fn read<R: Runtime>(
        &mut self,
        from: u64,
        mut bytes_max: usize,
    ) -> Result<Tailed, TailError> {
        // A second round reads one batch. A third one follows if that was removed and the next is longer.
        loop {
            match self.iggy.tail::<R>(self.epoch, from, bytes_max).await {
                Ok(tailed) => {
                    // Some of it may be memory of the log, which was not reserved.
                    self.room.force(tailed.batches.iter().map(|batch| batch.bytes.len()).sum());
                    return Ok(tailed);
                }
                Err(error @ TailError::TooLong(bytes)) if bytes > bytes_max => {
                    let reserved = reserve::<R>(&mut self.room, bytes, self.time_max).await;
                    reserved.map_err(|_| error)?;
                    bytes_max = bytes;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reserves memory for the next read, as much as for the last one at least. Returns how many bytes may be read:
    /// with little memory, what is left of the share.
    fn reserve_ahead(&mut self) -> usize {
        let wanted = self.room.bytes().max(READ_BYTES_MAX);
        if self.room.resize(wanted).is_err() {
            let left = self.room.account().share_bytes_left();
            self.room.force(self.room.bytes() + left);
        }
        self.room.bytes().max(UNRESERVED_BYTES)
    }

    /// What was read is gone.
    pub(super) fn release(&mut self) {
        self.room.force(0);
    }
}

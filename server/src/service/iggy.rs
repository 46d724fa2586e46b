//! Iggy: streams of messages for Iggy's clients, over TCP and over WebSocket. See [`iggy`](crate::iggy).
//!
//! Requests of a connection are answered one after the other, in order. Over WebSocket a binary message has one request
//! or several whole ones; each answer is one message.

use std::io;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iggy_binary_protocol::codes::{PING_CODE, POLL_MESSAGES_CODE, SEND_MESSAGES_CODE};
use owned_io::{
    BufResult, ByteStream, IoBufMutExt, IoVec, MemoryAccount, MemoryWait, OwnedRead, OwnedWrite,
    OwnedWriteExt, Reservation, Runtime, ShutdownHandle, Spare, coop, shutdown_after,
};
use owned_io_websocket::stream::{COPIED_BYTES_MAX, Error, Received, Unsent};
use owned_io_websocket::{AnyIncoming, AnyOutgoing, CloseCode, CloseFrame, Fragment, MessageKind};

use super::message::reset_on_timeout;
use super::websocket::complete_close;
use crate::context::{Context, Resources};
use crate::iggy::Status;
use crate::iggy::answer::error;
use crate::iggy::clients::Transport;
use crate::iggy::frame::{FrameDecoder, Progress, Request};
use crate::iggy::session::{AnswerRoom, Session};
use crate::watch::Activity;

/// The most bytes of messages in the answer to a poll, but one batch at least. As many are reserved while a poll is
/// answered, or what is left of the connection's share, or what one batch needs.
const POLL_BYTES_MAX: usize = 2 << 20;

/// What is reserved for another answer before it is made, in bytes, or what is left of the connection's share. More is
/// reserved for a list that is longer.
const LIST_BYTES: usize = 16 * 1024;

/// What a piece of an answer takes besides its bytes while it is written: its places in two arrays.
const PIECE_BYTES: usize = 48;

/// The most pieces of an answer whose arrays are kept for the next one. Most answers have one or a few, and a connection
/// may be idle after a long one.
const KEPT_PIECES_MAX: usize = 16;

/// From how many missing bytes on the payload of a request is read in place, without a buffer of the pool.
const DIRECT_BYTES_MIN: usize = 16 * 1024;

/// The most bytes that are dropped from a client whose request was refused before the connection is reset.
const DROPPED_BYTES_MAX: usize = 1 << 20;

/// Serves one connection over TCP or TLS until its peer ends it.
///
/// # Errors
/// Errors of the connection. [`InvalidData`](io::ErrorKind::InvalidData) for a length that is not possible or over the
/// limit, after an answer that says so. [`TimedOut`](io::ErrorKind::TimedOut) if a request does not arrive in time, if
/// the peer does not read its answer in time, or if the [watch](crate::watch) ended the connection.
/// [`OutOfMemory`](io::ErrorKind::OutOfMemory) if there is no memory for a request in time.
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the stream ends within a request.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> io::Result<()> {
    let activity = ctx.connection.watched();
    let served = Box::pin(answer_requests::<R>(stream, ctx, &activity)).await;
    activity.outcome(served)
}

async fn answer_requests<R: Runtime>(
    stream: impl ByteStream,
    ctx: &Context,
    activity: &Activity,
) -> io::Result<()> {
    let Resources { pool, limits, .. } = &*ctx.worker;
    let mut session = session(ctx, Transport::Tcp)?;
    let account = ctx.connection.account();
    let mut request_room = account.reservation();
    let connection = stream.shutdown_handle();
    let (mut read, mut write) = stream.into_split();
    let mut decoder = FrameDecoder::new(limits.message_bytes_max);
    let mut deadline: Option<Instant> = None;
    let mut pieces = IoVec::new();
    loop {
        let until = Until { account, connection: &connection, deadline };
        // Either a buffer of the pool, or nothing if the bytes were read into the request.
        let mut buf = None;
        match decoder.take_payload() {
            Some((payload, missing)) if missing >= DIRECT_BYTES_MIN => {
                let read = read.read(payload.spare().limit(missing));
                let BufResult(n, payload) =
                    until.run::<R, _>(read).await.map_buf(Spare::into_inner);
                decoder.put_payload(payload);
                if n? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            taken => {
                if let Some((payload, _)) = taken {
                    decoder.put_payload(payload);
                }
                let bytes = until.run::<R, _>(read.read_pooled(pool)).await?;
                if bytes.is_empty() {
                    if decoder.is_within_request() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    activity.begin_answer();
                    let _ = write.shutdown().await; // the FIN, over TLS behind a close_notify; an error: the peer is gone
                    return Ok(());
                }
                buf = Some(bytes);
            }
        }
        activity.begin_wait();
        let mut left = buf.as_deref().unwrap_or(&[]);
        let mut was_complete = false;
        // Each iteration but the last completes a request, or makes room for more of one.
        loop {
            coop::yield_if_exhausted::<R>().await;
            let request = match decoder.decode(&mut left) {
                Ok(Progress::NeedsBytes) => break,
                Ok(Progress::NeedsRoom(bytes)) => {
                    activity.begin_work();
                    reserve::<R>(&mut request_room, bytes, limits.message_time_max).await?;
                    activity.begin_wait();
                    decoder.make_room(bytes)?;
                    continue;
                }
                Ok(Progress::Complete(request)) => request,
                Err(status) => {
                    drop(buf);
                    activity.begin_answer();
                    error(status).into_iter().for_each(|piece| pieces.push(piece));
                    let written = until.run::<R, _>(write.write_all_vectored(pieces)).await;
                    written.into_result()?;
                    return refuse::<R>(&mut read, &mut write, ctx, &connection).await;
                }
            };
            was_complete = true;
            activity.begin_work();
            let mut answer_room = ReservedRoom::<R>::new(ctx, &request);
            let answer = session.answer::<R>(request, &mut answer_room).await;
            request_room.force(0);
            decoder.set_logged_in(session.is_logged_in());
            answer.into_iter().for_each(|piece| pieces.push(piece));
            answer_room.hold(&pieces);
            activity.begin_answer();
            let deadline = Some(R::now() + limits.message_time_max);
            let until = Until { account, connection: &connection, deadline };
            let written = until.run::<R, _>(write.write_all_vectored(pieces)).await;
            ((), pieces) = reset_on_timeout(written, &connection)?;
            if pieces.bufs().len() > KEPT_PIECES_MAX {
                pieces = IoVec::new();
            } else {
                pieces.clear();
            }
            activity.begin_wait();
        }
        if !decoder.is_within_request() {
            deadline = None;
        } else if was_complete || deadline.is_none() {
            deadline = Some(R::now() + limits.message_time_max);
        }
    }
}

/// Serves one WebSocket until either side closes it.
///
/// A text message is answered by a close as unsupported. A request whose length is over the limit, or whose end is not
/// in its message, is answered by its status and a close.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the peer does not read the
/// answers.
pub async fn serve_websocket<R: Runtime>(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    ctx: &Context,
) -> Result<(), Error> {
    let mut session = session(ctx, Transport::WebSocket)?;
    let answering = async {
        while let Some(message) = incoming.receive_owned().await? {
            let answered = answer_message::<R>(message, outgoing, &mut session, ctx).await?;
            outgoing.flush().await?;
            if let Some(code) = answered {
                outgoing.close(CloseFrame { code: Some(code), reason: "" }).await?;
                while incoming.receive_piece().await?.is_some() {}
                return Ok(());
            }
        }
        Ok(())
    };
    let answered = answering.await;
    complete_close(incoming, outgoing, answered).await
}

/// Answers the requests in a message. Returns the code for a close if it is not as it has to be.
async fn answer_message<R: Runtime>(
    message: Received<'_>,
    outgoing: &mut impl AnyOutgoing,
    session: &mut Session,
    ctx: &Context,
) -> Result<Option<CloseCode>, Error> {
    if message.kind() == MessageKind::Text {
        return Ok(Some(CloseCode::UNSUPPORTED));
    }
    let mut decoder = FrameDecoder::new(ctx.worker.limits.message_bytes_max);
    decoder.set_logged_in(session.is_logged_in());
    let mut request_room = ctx.connection.account().reservation();
    let message = match message {
        Received::Borrowed(message) => Err(message.as_bytes()),
        Received::Owned(_, bytes) => Ok(bytes),
    };
    let owned;
    let mut left = match message {
        Err(borrowed) => borrowed,
        Ok(bytes) => {
            request_room.force(bytes.len()); // it is there already
            match decoder.decode_whole(bytes) {
                Ok(Ok(request)) => {
                    answer::<R>(request, outgoing, session, ctx).await?;
                    return Ok(None);
                }
                Ok(Err(bytes)) => owned = bytes,
                Err(status) => return refuse_message(status, outgoing).await.map(Some),
            }
            &owned
        }
    };
    let (message_room, time_max) = (request_room.bytes(), ctx.worker.limits.message_time_max);
    while !left.is_empty() {
        coop::yield_if_exhausted::<R>().await;
        match decoder.decode(&mut left) {
            Ok(Progress::NeedsBytes) => break,
            Ok(Progress::NeedsRoom(bytes)) => {
                reserve::<R>(&mut request_room, message_room + bytes, time_max).await?;
                decoder.make_room(bytes).map_err(io::Error::from)?;
            }
            Ok(Progress::Complete(request)) => {
                answer::<R>(request, outgoing, session, ctx).await?;
                request_room.force(message_room);
                decoder.set_logged_in(session.is_logged_in());
            }
            Err(status) => return refuse_message(status, outgoing).await.map(Some),
        }
    }
    if decoder.is_within_request() {
        return refuse_message(Status::InvalidCommand, outgoing).await.map(Some);
    }
    Ok(None)
}

async fn answer<R: Runtime>(
    request: Request,
    outgoing: &mut impl AnyOutgoing,
    session: &mut Session,
    ctx: &Context,
) -> Result<(), Error> {
    let mut answer_room = ReservedRoom::<R>::new(ctx, &request);
    if answer_room.is_short() || outgoing.queued_bytes() > LIST_BYTES {
        // What is queued may be what the answer would wait for.
        drop(answer_room);
        outgoing.flush().await?;
        answer_room = ReservedRoom::new(ctx, &request);
    }
    let answer = session.answer::<R>(request, &mut answer_room).await;
    let shared_bytes = answer.iter().filter(|piece| is_shared(piece)).map(Bytes::len).sum();
    let room = answer_room.reservation.bytes();
    answer_room.reservation.force(0); // the queue reserves the same bytes, before any other connection can
    queue(answer, outgoing).await?;
    if shared_bytes > 0 {
        // The next answer waits for this one, because what it shares may be as long again.
        answer_room.reservation.force(room.max(shared_bytes));
        outgoing.flush().await?;
    }
    coop::yield_if_exhausted::<R>().await;
    Ok(())
}

/// Whether the queue of a WebSocket counts nothing of a piece: it does not copy it, and the memory is not the piece's
/// own. Batches that were read together share theirs.
fn is_shared(piece: &Bytes) -> bool {
    piece.len() > COPIED_BYTES_MAX && !piece.is_unique()
}

async fn refuse_message(
    status: Status,
    outgoing: &mut impl AnyOutgoing,
) -> Result<CloseCode, Error> {
    queue(error(status), outgoing).await?;
    Ok(match status {
        Status::InvalidSizeBytes => CloseCode::TOO_LARGE,
        Status::Unauthenticated => CloseCode::POLICY,
        _ => CloseCode::INVALID_DATA,
    })
}

/// Queues the pieces of an answer as one message.
async fn queue(pieces: Vec<Bytes>, outgoing: &mut impl AnyOutgoing) -> Result<(), Error> {
    let last = pieces.len().saturating_sub(1);
    for (n, mut payload) in pieces.into_iter().enumerate() {
        let part = match (n == 0, n == last) {
            (true, true) => Fragment::Whole(MessageKind::Binary),
            (true, false) => Fragment::First(MessageKind::Binary),
            (false, false) => Fragment::Middle,
            (false, true) => Fragment::Last,
        };
        while let Err(Unsent { error, payload: refused, .. }) = outgoing.write_bytes(part, payload)
        {
            outgoing.wait_for_room(error).await?;
            payload = refused;
        }
    }
    Ok(())
}

fn session(ctx: &Context, transport: Transport) -> io::Result<Session> {
    let iggy = ctx.worker.iggy.as_ref().ok_or(io::ErrorKind::Unsupported)?;
    Ok(Session::new(iggy, transport, ctx.connection.peer()))
}

/// Room for the answer to a request. It is given back when it is dropped.
struct ReservedRoom<'a, R> {
    reservation: Reservation,
    is_short: bool,
    ctx: &'a Context,
    runtime: PhantomData<R>,
}

impl<'a, R: Runtime> ReservedRoom<'a, R> {
    fn new(ctx: &'a Context, request: &Request) -> Self {
        let account = ctx.connection.account();
        let mut reservation = account.reservation();
        let bytes = match request.code {
            POLL_MESSAGES_CODE => POLL_BYTES_MAX,
            SEND_MESSAGES_CODE | PING_CODE => 0, // nothing but a status
            _ => LIST_BYTES,
        };
        let is_short = reservation.resize(bytes).is_err();
        if is_short {
            reservation.force(account.share_bytes_left());
        }
        Self { reservation, is_short, ctx, runtime: PhantomData }
    }

    /// Whether there is less than an answer may need.
    const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Reserves what the answer holds until it is written, also what it shares with a log: that may remove it meanwhile.
    fn hold(&mut self, pieces: &IoVec<Bytes>) {
        let bytes = pieces.bytes_left() + pieces.bufs().len() * PIECE_BYTES;
        self.reservation.force(bytes.max(self.reservation.bytes()));
    }
}

impl<R: Runtime> AnswerRoom for ReservedRoom<'_, R> {
    fn bytes(&self) -> usize {
        self.reservation.bytes()
    }

    /// Waits for the memory, as a request does.
    async fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        let time_max = self.ctx.worker.limits.message_time_max;
        let reserved = reserve::<R>(&mut self.reservation, bytes, time_max).await;
        reserved.map_err(|_| Status::CannotReadMessage)
    }
}

/// Reserves memory, and waits for it if there is none, for at most `time_max`.
pub(super) async fn reserve<R: Runtime>(
    reservation: &mut Reservation,
    bytes: usize,
    time_max: Duration,
) -> io::Result<()> {
    let waited = MemoryWait::new(time_max);
    loop {
        let Err(refused) = reservation.resize(bytes) else { return Ok(()) };
        let account = reservation.account();
        match waited.begin(account, R::now(), |time| Box::pin(R::sleep(time))) {
            Some(released) if !account.is_evicted() => released.await,
            _ => return Err(refused.into()),
        }
    }
}

/// What ends an operation on a connection: the time, or that others need the memory that it holds.
#[derive(Clone, Copy)]
struct Until<'a> {
    account: &'a MemoryAccount,
    connection: &'a ShutdownHandle,
    deadline: Option<Instant>,
}

impl Until<'_> {
    /// Runs an operation. It ends with an error soon after it has to.
    async fn run<R: Runtime, T: owned_io::WithError>(
        self,
        operation: impl Future<Output = T>,
    ) -> T {
        let Self { account, connection, deadline } = self;
        // Pinned here: the future of each async function that it is passed to would have room for it.
        let operation = pin!(operation);
        let operation = account.abort_when_evicted(connection, operation);
        let Some(deadline) = deadline else { return operation.await };
        let left = deadline.saturating_duration_since(R::now());
        shutdown_after::<R, _>(left, connection, operation).await
    }
}

/// Ends a connection whose requests cannot be decoded further, so that the client reads the answer before the end.
async fn refuse<R: Runtime>(
    read: &mut impl OwnedRead,
    write: &mut impl OwnedWrite,
    ctx: &Context,
    connection: &ShutdownHandle,
) -> io::Result<()> {
    let refused = io::Error::new(
        io::ErrorKind::InvalidData,
        "a request is announced that is too long, or no request",
    );
    let deadline = Some(R::now() + ctx.worker.limits.linger_time);
    let until = Until { account: ctx.connection.account(), connection, deadline };
    if until.run::<R, _>(write.shutdown()).await.is_err() {
        return Err(refused);
    }
    let mut dropped = 0;
    while dropped < DROPPED_BYTES_MAX {
        match until.run::<R, _>(read.read_pooled(&ctx.worker.pool)).await {
            Ok(buf) if !buf.is_empty() => dropped += buf.len(),
            _ => return Err(refused),
        }
    }
    connection.shutdown(Shutdown::Both);
    Err(refused)
}

//! [`Connection`]: the engine joined to a stream.

mod end;
mod queue;
mod reading;
mod receive;
mod wait;
mod writing;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::{fmt, io};

use bytes::Bytes;
use owned_io::{Buffers, ByteStream, Clock, PoolBuf, Reservation, ShutdownHandle, coop};

pub use self::end::EndHandle;
use self::end::Ending;
use self::queue::{COPIED_BYTES_MAX, Queue};
use self::receive::ReceiveBuffer;
use self::wait::LazySleep;
use crate::engine::{Date, Decoder, Encoder, Exchange, Timers};
use crate::{BodyLength, Config, Error, Misuse, Request, Response};

/// The server's side of a connection: requests in, answers out.
///
/// See [the contract](crate#the-contract) for what all methods have in common. `C` is the runtime.
///
/// ```
/// use owned_io::{ByteStream, Clock};
/// use owned_io_http::{BodyLength, Connection, Error, Response};
///
/// /// Answers one request with its own body, in pieces.
/// async fn echo<C: Clock>(connection: &mut Connection<C, impl ByteStream>) -> Result<(), Error> {
///     connection.begin(&Response::new(200), BodyLength::Chunked).await?;
///     while let Some(piece) = connection.read_body().await? {
///         let piece = piece.to_vec(); // it is a part of the receive buffer
///         connection.write_body(piece).await?;
///     }
///     connection.finish().await
/// }
/// ```
pub struct Connection<C, S> {
    stream: S,
    handle: ShutdownHandle,
    buffers: Buffers,
    config: Config,
    decoder: Decoder,
    encoder: Encoder,
    received: ReceiveBuffer,
    queue: Queue,
    /// What the copy of a head has as its capacity.
    head_memory: Reservation,
    timers: Timers,
    sleep: LazySleep,
    state: State,
    /// Whether the answer to the current request is the last one.
    is_last: bool,
    ending: Rc<Ending>,
    /// Whether `100 Continue` was sent for the current request.
    has_continued: bool,
    /// Whether a read or a write has begun and not ended.
    is_interrupted: bool,
    date: Rc<RefCell<Date>>,
    clock: PhantomData<fn() -> C>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no request.
    Idle,
    /// A request waits for its answer.
    Request,
    /// The head of the answer is queued.
    Answering,
    /// The answer is complete, the body of the request perhaps not.
    Answered,
    /// There is no further request.
    Ended,
}

/// What a connection consists of, for another protocol that continues on it. See [`Connection::into_parts`].
#[derive(Debug)]
pub struct Parts<S> {
    /// The stream.
    pub stream: S,
    /// The buffers that the connection was opened with.
    pub buffers: Buffers,
    /// The head of the last request, and the bytes behind it.
    pub received: PoolBuf,
    /// The length of the head, in bytes.
    pub head_bytes: usize,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    Bytes(usize),
    End,
    Late,
}

impl<C: Clock, S: ByteStream> Connection<C, S> {
    /// The server's side of a new connection. Memory is reserved in the account of `buffers`.
    pub fn new(stream: S, buffers: &Buffers, config: Config) -> Self {
        let mut limits = config.limits;
        limits.head_bytes_max = limits.head_bytes_max.min(buffers.pool().buf_bytes());
        let account = buffers.account();
        Self {
            handle: stream.shutdown_handle(),
            stream,
            decoder: Decoder::new(&limits),
            encoder: Encoder::new(config.server),
            received: ReceiveBuffer::new(),
            queue: Queue::new(
                buffers.clone(),
                account.reservation(),
                limits.queue_bytes_max,
                limits.queue_shared_bytes_max,
            ),
            head_memory: account.reservation(),
            timers: Timers::new(&config.timeouts),
            sleep: LazySleep::new(),
            state: State::Idle,
            is_last: false,
            ending: Rc::default(),
            has_continued: false,
            is_interrupted: false,
            date: buffers.extension(),
            buffers: buffers.clone(),
            config: Config { limits, ..config },
            clock: PhantomData,
        }
    }

    /// Waits for the next request. `None`: the client has ended the connection, or sent nothing for
    /// [`idle`](crate::Timeouts::idle), or the last answer was the last one.
    ///
    /// Before it waits, it writes the queue. It first discards the rest of the last request's body.
    ///
    /// # Errors
    /// - [`Error::Refused`]: the client was told.
    /// - [`Error::Io`]: errors of the stream; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) within a head;
    ///   [`TimedOut`](io::ErrorKind::TimedOut) if the client does not accept answers, and
    ///   [`OutOfMemory`](io::ErrorKind::OutOfMemory) if others need what the connection's memory account holds;
    ///   [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if the pool is exhausted: nothing is lost, call it again
    ///   later.
    /// - [`Misuse::NotAnswered`]: the last request has no complete answer. The connection is reset.
    ///
    /// # Cancellation
    /// Not safe once polled: drop the connection.
    pub async fn next(&mut self) -> Result<Option<Request<'_>>, Error> {
        self.check()?;
        match self.read_request().await? {
            true => Ok(self.request()),
            false => Ok(None),
        }
    }

    /// The request that [`next`](Self::next) has returned, until its next call. `None` if there is none.
    pub fn request(&self) -> Option<Request<'_>> {
        match self.state {
            State::Idle | State::Ended => None,
            _ => Some(self.decoder.request(self.received.head())),
        }
    }

    /// Waits for the next piece of the request's body. `None`: the body is complete.
    ///
    /// The piece is a part of the receive buffer. It has at least one byte, and at most as many as a buffer of the
    /// pool. If the client waits for `100 Continue`, this sends it, unless the answer has begun.
    ///
    /// # Errors
    /// - [`Error::Refused`]: the body is malformed, too long or too slow. If the answer had not begun, the client was
    ///   told. If it had begun and was not finished, the connection is reset.
    /// - [`Error::Io`]: as for [`next`](Self::next).
    /// - [`Misuse::NoRequest`].
    ///
    /// # Cancellation
    /// As for [`next`](Self::next).
    pub async fn read_body(&mut self) -> Result<Option<&[u8]>, Error> {
        self.check()?;
        if matches!(self.state, State::Idle | State::Ended) {
            return Err(Misuse::NoRequest.into());
        }
        let piece = self.next_piece(false).await?;
        Ok(piece.map(|piece| self.received.slice(piece)))
    }

    /// Answers the request. `body` is sent by reference if it is long.
    ///
    /// It queues the answer, and writes the queue if that is [long](crate::Limits::queue_bytes_max). The answer to
    /// HEAD gets the length of `body`, without the body. An answer with status 204 or 304 gets neither.
    ///
    /// # Errors
    /// - [`Misuse::NoRequest`], [`Misuse::Header`]: nothing was queued.
    /// - [`Error::Memory`]: the connection is reset.
    /// - [`Error::Io`]: as for [`next`](Self::next).
    ///
    /// # Cancellation
    /// As for [`next`](Self::next).
    pub async fn respond(
        &mut self,
        response: &Response<'_>,
        body: impl Into<Bytes>,
    ) -> Result<(), Error> {
        let body = body.into();
        self.begin(response, BodyLength::Exact(body.len() as u64)).await?;
        self.write_body(body).await?;
        self.finish().await
    }

    /// Begins an answer whose body follows by [`write_body`](Self::write_body) and [`finish`](Self::finish).
    ///
    /// # Errors
    /// As for [`respond`](Self::respond).
    ///
    /// # Cancellation
    /// As for [`next`](Self::next).
    pub async fn begin(
        &mut self,
        response: &Response<'_>,
        length: BodyLength,
    ) -> Result<(), Error> {
        self.check()?;
        let Some(request) = self.request().filter(|_| self.state == State::Request) else {
            return Err(Misuse::NoRequest.into());
        };
        let (is_head_method, is_http_1_0) = (request.method() == "HEAD", request.is_http_1_0());
        let waits_for_continue = request.expects_continue() && !self.has_continued;
        // A client that waits may send the body or not. Nobody could tell where its next request begins.
        let may_omit_body = waits_for_continue && !self.decoder.is_body_at_end();
        let has_long_rest =
            self.decoder.body_bytes_left_min() > self.config.limits.discard_bytes_max;
        self.is_last =
            request.is_last() || self.ending.is_ending.get() || may_omit_body || has_long_rest;
        let exchange = Exchange { is_head_method, is_last: self.is_last, is_http_1_0 };
        let bytes_max = response.head_bytes_max(self.config.server);
        self.reserve(bytes_max).await?;
        coop::consume(coop::cost::response_head(bytes_max));
        let date = self.date();
        self.encoder.begin(response, length, exchange, &date, self.queue.out())?;
        self.state = State::Answering;
        Ok(())
    }

    /// Queues a piece of the answer's body, by reference if it is long. Writes the queue if that is
    /// [long](crate::Limits::queue_bytes_max). [`flush`](Self::flush) writes it at once.
    ///
    /// In chunks, each piece is one. An empty piece is ignored. So is every piece of an answer that has no body.
    ///
    /// # Errors
    /// - [`Misuse::NotBegun`].
    /// - [`Misuse::BodyTooLong`], [`Error::Memory`]: the connection is reset.
    /// - [`Error::Io`]: as for [`next`](Self::next).
    ///
    /// # Cancellation
    /// As for [`next`](Self::next).
    pub async fn write_body(&mut self, piece: impl Into<Bytes>) -> Result<(), Error> {
        self.check()?;
        if self.state != State::Answering {
            return Err(Misuse::NotBegun.into());
        }
        let piece = piece.into();
        let copied = if piece.len() <= COPIED_BYTES_MAX { piece.len() } else { 0 };
        self.reserve(copied + FRAME_BYTES_MAX).await?;
        coop::consume(coop::cost::body_piece(copied));
        match self.encoder.frame(piece.len(), self.queue.out()) {
            Ok(true) => self.queue.push(piece),
            Ok(false) => {}
            Err(misuse) => return Err(self.fail(misuse)),
        }
        self.write_if_full().await
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// - [`Misuse::NotBegun`].
    /// - [`Misuse::BodyTooShort`], [`Error::Memory`]: the connection is reset.
    /// - [`Error::Io`]: as for [`next`](Self::next).
    ///
    /// # Cancellation
    /// As for [`next`](Self::next).
    pub async fn finish(&mut self) -> Result<(), Error> {
        self.check()?;
        if self.state != State::Answering {
            return Err(Misuse::NotBegun.into());
        }
        self.reserve(FRAME_BYTES_MAX).await?;
        if let Err(misuse) = self.encoder.finish(self.queue.out()) {
            return Err(self.fail(misuse));
        }
        self.state = State::Answered;
        self.write_if_full().await
    }

    /// Writes the queue.
    ///
    /// # Errors
    /// [`Error::Io`]: as for [`next`](Self::next).
    ///
    /// # Cancellation
    /// As for [`next`](Self::next).
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.check()?;
        self.write_queue().await
    }

    /// A handle that ends the connection after the current request: for the handler of the request, and for a server
    /// that drains its connections.
    pub fn end_handle(&self) -> EndHandle {
        EndHandle::new(self.handle.clone(), Rc::clone(&self.ending))
    }

    /// Ends the connection: writes the queue, ends the write side, and waits for the client's end. See
    /// [the contract](crate#the-contract). [`next`](Self::next) calls it after the last answer. An answer that is
    /// not finished resets the connection instead.
    ///
    /// # Errors
    /// [`Error::Io`]: as for [`next`](Self::next). What happens after the queue is written is no error.
    ///
    /// # Cancellation
    /// The connection is dropped.
    pub async fn close(&mut self) -> Result<(), Error> {
        self.check()?;
        self.end().await
    }

    /// Writes the answers to earlier requests, and returns the stream with the head of the current request. Another
    /// protocol answers it and continues: a WebSocket, for example.
    ///
    /// ```
    /// use owned_io::{ByteStream, Clock};
    /// use owned_io_http::{Connection, Parts, Response};
    /// use owned_io_websocket::handshake::{Origins, Request};
    /// use owned_io_websocket::stream::Acceptance;
    /// use owned_io_websocket::{Config, WebSocket};
    ///
    /// /// Answers requests until one opens a WebSocket.
    /// async fn open<C: Clock, S: ByteStream>(
    ///     mut connection: Connection<C, S>,
    ///     buffers: &owned_io::Buffers,
    /// ) -> Result<Option<WebSocket<S>>, Box<dyn std::error::Error>> {
    ///     while let Some(head) = connection.next().await? {
    ///         let (method, target, is_http_1_1) = (head.method(), head.target(), !head.is_http_1_0());
    ///         let upgrade = Request::from_parts(method, target, is_http_1_1, head.headers())
    ///             .and_then(|request| request.upgrade(Origins::Any));
    ///         match upgrade {
    ///             Ok(upgrade) => {
    ///                 let config = Config::default();
    ///                 let acceptance = Acceptance::new(upgrade, None, &[], buffers, &config)?;
    ///                 let Parts { stream, buffers, received, head_bytes } =
    ///                     connection.into_parts().await?;
    ///                 let opening =
    ///                     acceptance.open::<C, S>(stream, received, head_bytes, buffers, config);
    ///                 return Ok(Some(opening.await?));
    ///             }
    ///             Err(refusal) => {
    ///                 let response = Response::new(refusal.status()).with_headers(refusal.headers());
    ///                 connection.respond(&response, refusal.to_string()).await?;
    ///             }
    ///         }
    ///     }
    ///     Ok(None)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`Misuse::NoRequest`]: there is no request, or its answer has begun.
    /// - [`Misuse::BodyNotRead`]: the request has a body.
    /// - [`Error::Io`]: as for [`next`](Self::next); [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if the pool is
    ///   exhausted.
    ///
    /// # Cancellation
    /// The connection is dropped.
    pub async fn into_parts(mut self) -> Result<Parts<S>, Error> {
        self.check()?;
        if self.state != State::Request {
            return Err(Misuse::NoRequest.into());
        }
        if self.decoder.request(self.received.head()).body() != BodyLength::Exact(0) {
            return Err(Misuse::BodyNotRead.into());
        }
        self.write_queue().await?;
        let Self { stream, buffers, received, .. } = self;
        match received.into_head_and_unread(buffers.pool()).map_err(io::Error::from)? {
            Some((received, head_bytes)) => Ok(Parts { stream, buffers, received, head_bytes }),
            None => Err(Misuse::BodyNotRead.into()),
        }
    }

    const fn check(&self) -> Result<(), Error> {
        if self.is_interrupted { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// The most bytes of the framing of a piece, and of `100 Continue`.
const FRAME_BYTES_MAX: usize = 32;

impl<C, S> fmt::Debug for Connection<C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("state", &self.state).finish_non_exhaustive()
    }
}

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use owned_io::{
    ByteStream, Clock, IoBufMutExt, OwnedRead, OwnedWriteExt, Pool, PoolBuf, Random,
    ShutdownHandle, Spare, select, shutdown_after,
};

use super::compression::{self, CompressionSetup};
use super::queue::Queue;
use super::receive_buffer::ReceiveBuffer;
use super::shared::Shared;
use super::{Buffers, Error, Incoming, Outgoing, WebSocket};
use crate::engine::Engine;
use crate::frame::{CONTROL_PAYLOAD_BYTES_MAX, Header};
use crate::handshake::{
    HandshakeError, InvalidHeader, Key, Offer, Origins, Refusal, Request, Response, Upgrade,
    respond,
};
use crate::{Config, HandshakeConfig};

/// The smallest pool buffers that connections can use, in bytes. A control frame must fit.
pub const POOL_BUF_BYTES_MIN: usize = CONTROL_PAYLOAD_BYTES_MAX + Header::BYTES_MAX;

/// The most bytes that a client may send behind a refused request and still be sure to receive the
/// response. They are discarded.
const DISCARDED_BYTES_MAX: usize = 1024 * 1024;

/// Opens the server's side of a connection. Accepts every path and every origin.
///
/// To look at the request first, use [`PendingRequest`].
///
/// # Errors
/// As for [`PendingRequest::read`] and [`PendingRequest::accept`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If the pool's buffers are shorter than [`POOL_BUF_BYTES_MIN`].
pub async fn accept<R: Clock, S: ByteStream>(
    stream: S,
    buffers: &Buffers,
    config: Config,
) -> Result<WebSocket<S>, Error> {
    let pending = PendingRequest::<R, S>::read(stream, buffers, config).await?;
    pending.accept(Origins::Any, None, &[]).await
}

/// Opens the client's side on a connected stream. Returns the subprotocol too, if the server chose
/// one from the offer.
///
/// # Errors
/// - [`Error::NotUpgraded`]: the server did not accept.
/// - [`Error::Io`]: [`TimedOut`](io::ErrorKind::TimedOut) if the server takes longer than
///   [`timeout`](HandshakeConfig::timeout), [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if it
///   ends the stream, and errors of the stream.
/// - [`Error::InvalidHeader`]: the offer cannot be sent, and nothing was sent.
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If the pool's buffers are shorter than [`POOL_BUF_BYTES_MIN`].
pub async fn connect<'o, R: Clock + Random, S: ByteStream>(
    stream: S,
    buffers: &Buffers,
    config: Config,
    offer: &Offer<'o>,
) -> Result<(WebSocket<S>, Option<&'o str>), Error> {
    let (upgraded, protocol) = request_upgrade::<R, S>(stream, buffers, config, offer).await?;
    let engine = Engine::client(upgraded.config, R::now(), R::fill_random);
    Ok((upgraded.open::<R>(engine, false), protocol))
}

/// Performs the client's handshake only, for another implementation of the protocol. Returns the
/// subprotocol too, if the server chose one. Offers no compression.
///
/// # Errors
/// As for [`connect`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If the pool's buffers are shorter than [`POOL_BUF_BYTES_MIN`].
pub async fn upgrade<'o, R: Clock + Random, S: ByteStream>(
    stream: S,
    buffers: &Buffers,
    config: Config,
    offer: &Offer<'o>,
) -> Result<(Upgraded<S>, Option<&'o str>), Error> {
    request_upgrade::<R, S>(stream, buffers, config, &offer.uncompressed()).await
}

async fn request_upgrade<'o, R: Clock + Random, S: ByteStream>(
    mut stream: S,
    buffers: &Buffers,
    config: Config,
    offer: &Offer<'o>,
) -> Result<(Upgraded<S>, Option<&'o str>), Error> {
    let mut random = [0; 16];
    R::fill_random(&mut random);
    let key = Key::new(random);
    let mut request = buffers.take();
    offer.encode(&key, &mut request)?;

    let pool = buffers.pool();
    let head_bytes_max = head_bytes_max(&config.handshake, pool);
    let connection = stream.shutdown_handle();
    let exchange = async {
        let ((), request) = stream.write_all(request).await.into_result()?;
        buffers.give(request);
        read_head(&mut stream, pool, |bytes| {
            Response::decode(bytes, head_bytes_max).map(|head| head.map(|(_, bytes)| bytes))
        })
        .await
    };
    let (head, decoded) =
        shutdown_after::<R, _>(config.handshake.timeout, &connection, exchange).await?;
    decoded?;
    let decoded = Response::decode(&head, head_bytes_max)?;
    let (response, head_bytes) = decoded.ok_or(HandshakeError::Malformed)?;
    let protocol = response.check(offer, &key)?;
    let negotiated = compression::negotiated(&response, offer);
    let buffers = buffers.clone();
    Ok((Upgraded { stream, head, head_bytes, negotiated, buffers, config }, protocol))
}

/// A request that waits for its response.
///
/// ```
/// use owned_io::{ByteStream, Clock};
/// use owned_io_websocket::Config;
/// use owned_io_websocket::handshake::Origins;
/// use owned_io_websocket::stream::{Buffers, Error, PendingRequest, WebSocket};
///
/// /// Opens a connection to `/chat` from our own pages. Answers health checks and returns `None`.
/// async fn admit<R: Clock, S: ByteStream>(
///     stream: S,
///     buffers: &Buffers,
/// ) -> Result<Option<WebSocket<S>>, Error> {
///     let pending = PendingRequest::<R, S>::read(stream, buffers, Config::default()).await?;
///     let request = pending.request();
///     match request.path() {
///         "/chat" => {
///             let origins = Origins::Only(&["https://example.com"]);
///             let supported = &["chat.v2", "chat.v1"];
///             let upgrade = request.upgrade(origins).ok();
///             let protocol = upgrade.and_then(|upgrade| upgrade.choose_protocol(supported));
///             pending.accept(origins, protocol, &[("Server", "me")]).await.map(Some)
///         }
///         "/health" => pending.respond(200, &[], b"fine").await.map(|()| None),
///         _ => pending.respond(404, &[], b"not found").await.map(|()| None),
///     }
/// }
/// ```
pub struct PendingRequest<R, S> {
    stream: S,
    /// The head of the request, and the bytes that came after it.
    head: PoolBuf,
    head_bytes_max: usize,
    buffers: Buffers,
    config: Config,
    runtime: PhantomData<R>,
}

impl<R: Clock, S: ByteStream> PendingRequest<R, S> {
    /// Waits for a client's request.
    ///
    /// # Errors
    /// - [`Error::Refused`]: the head is too large or malformed, or it began and did not end within
    ///   [`timeout`](HandshakeConfig::timeout). The client was told.
    /// - [`Error::Io`]: [`TimedOut`](io::ErrorKind::TimedOut) if no byte came within that time,
    ///   [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the stream ends first, and errors of
    ///   the stream.
    ///
    /// # Cancellation
    /// The connection is dropped.
    ///
    /// # Panics
    /// If the pool's buffers are shorter than [`POOL_BUF_BYTES_MIN`].
    pub async fn read(mut stream: S, buffers: &Buffers, config: Config) -> Result<Self, Error> {
        let pool = buffers.pool();
        let head_bytes_max = head_bytes_max(&config.handshake, pool);
        let connection = stream.shutdown_handle();
        let has_begun = Cell::new(false);
        let reading = read_head(&mut stream, pool, |bytes| {
            has_begun.set(true);
            Request::decode(bytes, head_bytes_max).map(|head| head.map(|(_, bytes)| bytes))
        });
        let Some(read) = read_within::<R, _>(config.handshake.timeout, &connection, reading).await
        else {
            if !has_begun.get() {
                return Err(Error::Io(io::ErrorKind::TimedOut.into()));
            }
            let mut response = Vec::new();
            Refusal::Late.encode(&mut response);
            // A client that does not read the response may miss it.
            let _ = respond_and_close::<R, _>(stream, response, &config.handshake, pool).await;
            return Err(Refusal::Late.into());
        };
        let (head, decoded) = read?;
        let buffers = buffers.clone();
        let runtime = PhantomData;
        let pending = Self { stream, head, head_bytes_max, buffers, config, runtime };
        match decoded {
            Ok(_) => Ok(pending),
            Err(refusal) => Err(pending.refuse(refusal).await),
        }
    }

    /// The request.
    pub fn request(&self) -> Request<'_> {
        self.decoded().0
    }

    /// Accepts the request, with these additional headers. `protocol` must be a subprotocol that
    /// the request offers.
    ///
    /// # Errors
    /// - [`Error::Refused`]: the request does not ask for an upgrade, or its origin is not in
    ///   `origins`. The client was told.
    /// - [`Error::InvalidHeader`]: nothing was sent.
    /// - [`Error::Io`]: as for [`read`](Self::read).
    ///
    /// # Cancellation
    /// The connection is dropped.
    pub async fn accept(
        self,
        origins: Origins<'_>,
        protocol: Option<&str>,
        headers: &[(&str, &str)],
    ) -> Result<WebSocket<S>, Error> {
        Ok(self.accept_with(origins, protocol, headers).await?.serve::<R>())
    }

    /// Like [`accept`](Self::accept), for another implementation of the protocol. Accepts no
    /// compression.
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    ///
    /// # Cancellation
    /// The connection is dropped.
    pub async fn upgrade(
        mut self,
        origins: Origins<'_>,
        protocol: Option<&str>,
        headers: &[(&str, &str)],
    ) -> Result<Upgraded<S>, Error> {
        self.config.handshake = self.config.handshake.uncompressed();
        self.accept_with(origins, protocol, headers).await
    }

    /// Performs the server's handshake.
    async fn accept_with(
        self,
        origins: Origins<'_>,
        protocol: Option<&str>,
        headers: &[(&str, &str)],
    ) -> Result<Upgraded<S>, Error> {
        let (acceptance, head_bytes) = match self.acceptance(origins, protocol, headers) {
            Err(Error::Refused(refusal)) => return Err(self.refuse(refusal).await),
            accepted => accepted?,
        };
        let Self { stream, head, buffers, config, .. } = self;
        acceptance.send::<R, S>(stream, head, head_bytes, buffers, config).await
    }

    /// Checks the request. Returns the response, and the length of the request's head.
    fn acceptance(
        &self,
        origins: Origins<'_>,
        protocol: Option<&str>,
        headers: &[(&str, &str)],
    ) -> Result<(Acceptance, usize), Error> {
        let (request, head_bytes) = self.decoded();
        let upgrade = request.upgrade(origins)?;
        let acceptance = Acceptance::new(upgrade, protocol, headers, &self.buffers, &self.config)?;
        Ok((acceptance, head_bytes))
    }

    /// Responds with this status, these headers and this body, and ends the connection. The body is
    /// plain text, unless a header is `Content-Type`. The response to `HEAD` has the same head, with the length of the body, and no body.
    ///
    /// # Errors
    /// [`Error::InvalidHeader`]: nothing was sent. [`Error::Io`]: as for [`read`](Self::read).
    ///
    /// # Cancellation
    /// The connection is dropped.
    ///
    /// # Panics
    /// If the status does not have three digits.
    pub async fn respond(
        self,
        status: u16,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(), Error> {
        let mut response = Vec::new();
        respond(status, headers, body, &mut response)?;
        self.omit_body_for_head(&mut response);
        Ok(self.respond_and_shut_down(response).await?)
    }

    async fn refuse(self, refusal: Refusal) -> Error {
        let mut response = Vec::new();
        refusal.encode(&mut response);
        self.omit_body_for_head(&mut response);
        let _ = self.respond_and_shut_down(response).await; // the client may miss it
        refusal.into()
    }

    /// A response to `HEAD` has no body (RFC 9110 section 9.3.2). The client would read a body as
    /// the next response.
    fn omit_body_for_head(&self, response: &mut Vec<u8>) {
        if !self.head.starts_with(b"HEAD ") {
            return;
        }
        let body_at = response.windows(4).position(|end| end == b"\r\n\r\n");
        response.truncate(body_at.map_or(response.len(), |at| at + 4));
    }

    async fn respond_and_shut_down(self, response: Vec<u8>) -> io::Result<()> {
        let Self { stream, buffers, config, .. } = self;
        respond_and_close::<R, _>(stream, response, &config.handshake, buffers.pool()).await
    }

    fn decoded(&self) -> (Request<'_>, usize) {
        match Request::decode(&self.head, self.head_bytes_max) {
            Ok(Some(decoded)) => decoded,
            _ => unreachable!("it was decoded before"),
        }
    }
}

impl<R, S> std::fmt::Debug for PendingRequest<R, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingRequest").finish_non_exhaustive()
    }
}

/// The longest head that is read, in bytes.
fn head_bytes_max(config: &HandshakeConfig, pool: &Pool) -> usize {
    assert_fits(pool);
    config.head_bytes_max.min(pool.buf_bytes())
}

fn assert_fits(pool: &Pool) {
    assert!(pool.buf_bytes() >= POOL_BUF_BYTES_MIN, "no control frame fits the pool's buffers");
}

/// Returns the output of `reading`, or `None` if that takes longer than `limit`. Then the read side
/// of `connection` is shut down. The write side stays open for a response.
async fn read_within<R: Clock, T>(
    limit: Duration,
    connection: &ShutdownHandle,
    reading: impl Future<Output = T>,
) -> Option<T> {
    let mut reading = pin!(reading);
    // Most reads do not wait, and need no timer.
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        return Some(read);
    }
    let selected = select(reading.as_mut(), R::sleep(limit)).await;
    if selected.first.is_none() {
        connection.shutdown(Shutdown::Read);
        reading.await; // the kernel still owns its buffer
    }
    selected.first
}

/// Sends `response`, and waits until the client ends the stream or the
/// [`close_timeout`](HandshakeConfig::close_timeout) is up. Closing earlier with unread bytes sends a
/// reset, and the client might never see the response.
async fn respond_and_close<R: Clock, S: ByteStream>(
    mut stream: S,
    response: Vec<u8>,
    config: &HandshakeConfig,
    pool: &Pool,
) -> io::Result<()> {
    let connection = stream.shutdown_handle();
    let writing = async {
        stream.write_all(response).await.into_result()?;
        stream.shutdown().await
    };
    shutdown_after::<R, _>(config.timeout, &connection, writing).await?;
    let reading = async {
        let mut read = 0;
        while read < DISCARDED_BYTES_MAX {
            match stream.read_pooled(pool).await?.len() {
                0 => break,
                bytes => read += bytes,
            }
        }
        Ok(())
    };
    let _ = shutdown_after::<R, io::Result<()>>(config.close_timeout, &connection, reading).await;
    Ok(())
}

/// Reads until `decode` returns the length of a head or an error.
async fn read_head<E>(
    stream: &mut impl OwnedRead,
    pool: &Pool,
    decode: impl Fn(&[u8]) -> Result<Option<usize>, E>,
) -> io::Result<(PoolBuf, Result<usize, E>)> {
    let mut head = stream.read_pooled(pool).await?;
    let mut read = head.len();
    while read > 0 {
        match decode(&head) {
            Ok(None) => {}
            Ok(Some(head_bytes)) => return Ok((head, Ok(head_bytes))),
            Err(error) => return Ok((head, Err(error))),
        }
        (read, head) = stream.read(head.spare()).await.map_buf(Spare::into_inner).into_result()?;
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// The response that accepts an upgrade, before it is sent: for a request that an HTTP server has read.
///
/// The documentation of `Connection::into_parts` of `owned-io-http` has an example.
pub struct Acceptance {
    response: Vec<u8>,
    negotiated: Option<CompressionSetup>,
}

impl Acceptance {
    /// Accepts `upgrade`, with these additional headers, and with compression if `config` and the client allow it.
    /// `protocol` must be a subprotocol that the request offers.
    ///
    /// # Errors
    /// A header cannot be sent.
    ///
    /// # Panics
    /// If the pool's buffers are shorter than [`POOL_BUF_BYTES_MIN`].
    pub fn new(
        mut upgrade: Upgrade<'_>,
        protocol: Option<&str>,
        headers: &[(&str, &str)],
        buffers: &Buffers,
        config: &Config,
    ) -> Result<Self, InvalidHeader> {
        assert_fits(buffers.pool());
        let negotiated = compression::negotiate(&mut upgrade, &config.handshake);
        let mut response = buffers.take();
        upgrade.accept(protocol, headers, &mut response)?;
        Ok(Self { response, negotiated })
    }

    /// Sends the response, and opens the connection. `received` begins with the head of the request, of `head_bytes`
    /// bytes, and has all bytes that were received behind it: they are the beginning of the first frame.
    ///
    /// # Errors
    /// [`Error::Io`]: as for [`PendingRequest::read`].
    ///
    /// # Cancellation
    /// The connection is dropped.
    ///
    /// # Panics
    /// If `received` is shorter than `head_bytes`.
    pub async fn open<R: Clock, S: ByteStream>(
        self,
        stream: S,
        received: PoolBuf,
        head_bytes: usize,
        buffers: Buffers,
        config: Config,
    ) -> Result<WebSocket<S>, Error> {
        let upgraded = self.send::<R, S>(stream, received, head_bytes, buffers, config).await?;
        Ok(upgraded.serve::<R>())
    }

    /// Like [`open`](Self::open), for another implementation of the protocol.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    ///
    /// # Cancellation
    /// The connection is dropped.
    ///
    /// # Panics
    /// As for [`open`](Self::open). If compression was accepted: other implementations have none.
    pub async fn upgrade<R: Clock, S: ByteStream>(
        self,
        stream: S,
        received: PoolBuf,
        head_bytes: usize,
        buffers: Buffers,
        config: Config,
    ) -> Result<Upgraded<S>, Error> {
        assert!(self.negotiated.is_none(), "only this package's engine compresses");
        self.send::<R, S>(stream, received, head_bytes, buffers, config).await
    }

    async fn send<R: Clock, S: ByteStream>(
        self,
        mut stream: S,
        head: PoolBuf,
        head_bytes: usize,
        buffers: Buffers,
        config: Config,
    ) -> Result<Upgraded<S>, Error> {
        let Self { response, negotiated } = self;
        let connection = stream.shutdown_handle();
        let writing = stream.write_all(response);
        let written = shutdown_after::<R, _>(config.handshake.timeout, &connection, writing).await;
        buffers.give(written.into_result()?.1);
        Ok(Upgraded { stream, head, head_bytes, negotiated, buffers, config })
    }
}

impl std::fmt::Debug for Acceptance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptance").finish_non_exhaustive()
    }
}

/// A connection whose opening handshake is done. [`upgrade`], [`PendingRequest::upgrade`] and [`Acceptance::upgrade`]
/// return it for another implementation of the protocol.
pub struct Upgraded<S> {
    /// The connection.
    pub stream: S,
    /// The buffers that it was opened with.
    pub buffers: Buffers,
    /// The configuration that it was opened with.
    pub config: Config,
    /// The head that was read last, and the bytes that came after it.
    head: PoolBuf,
    head_bytes: usize,
    negotiated: Option<CompressionSetup>,
}

impl<S: ByteStream> Upgraded<S> {
    /// The bytes after the head: the beginning of the first frame. Usually empty.
    pub fn received(&self) -> &[u8] {
        &self.head[self.head_bytes..]
    }

    /// Opens the server's side.
    fn serve<R: Clock>(self) -> WebSocket<S> {
        let engine = Engine::server(self.config, R::now());
        self.open::<R>(engine, true)
    }

    fn open<R: Clock>(self, engine: Engine, is_server: bool) -> WebSocket<S> {
        let Self { stream, head, head_bytes, negotiated, buffers, config } = self;
        let Engine { mut receiver, sender, control } = engine;
        // Frames that do not fit the pool's buffers are decoded in pieces.
        receiver.set_whole_frame_bytes_max(buffers.pool().buf_bytes() - Header::BYTES_MAX);
        let account = buffers.account();
        let (inflater, deflater) = negotiated.map_or((None, None), |negotiated| {
            receiver.allow_compressed();
            let (inflater, deflater) =
                negotiated.open(is_server, &config.engine, &buffers, &account);
            (Some(inflater), Some(deflater))
        });
        let connection = stream.shutdown_handle();
        let (read, write) = stream.into_split();
        let queue = Queue::new(sender, buffers.clone(), &account, deflater);
        let mut receive_buffer = ReceiveBuffer::new(receiver, inflater);
        let shared = Shared::new::<R>(control, queue, write, connection, account, is_server);
        let shared = Rc::new(shared);
        receive_buffer.put_from(head, head_bytes);
        let incoming =
            Incoming::new(read, Rc::clone(&shared), receive_buffer, buffers.pool().clone());
        WebSocket { incoming, outgoing: Outgoing::new(shared) }
    }
}

impl<S> std::fmt::Debug for Upgraded<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgraded").finish_non_exhaustive()
    }
}

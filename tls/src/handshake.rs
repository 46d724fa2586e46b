//! [`Acceptor`] and [`Connector`]: the handshake.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use std::{io, mem};

use owned_io::{
    BufResult, ByteStream, Clock, MemoryWait, OwnedRead, OwnedWriteExt, Slice, coop, shutdown_after,
};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};

use crate::memory::{ClockFns, until_granted};
use crate::session::{Readable, Session};
use crate::shared::Shared;
use crate::side::Connection;
use crate::stream::{self, TlsStream};
use crate::{Buffers, TlsError};

/// Accepts TLS connections as a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acceptor {
    /// Certificates, versions, protocols and session resumption.
    pub config: Arc<ServerConfig>,
    /// How long a handshake may take. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long the peer may take to receive the alert of a failed connection and to end the stream. Default 5 s:
    /// enough for two round trips and some lost packets.
    pub close_timeout: Duration,
    /// The answer to a client whose first byte is not TLS. It replaces the alert, which such a client does not
    /// understand. Default: empty, and the client gets the alert.
    pub plain_answer: &'static [u8],
}

/// Opens TLS connections as a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connector {
    /// Trusted roots, versions, protocols and session resumption.
    pub config: Arc<ClientConfig>,
    /// As [`Acceptor::handshake_timeout`].
    pub handshake_timeout: Duration,
    /// As [`Acceptor::close_timeout`].
    pub close_timeout: Duration,
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The content type of a client's first record (RFC 8446 5.1).
const HANDSHAKE: u8 = 22;

impl Acceptor {
    /// The defaults.
    pub const fn new(config: Arc<ServerConfig>) -> Self {
        let (handshake_timeout, close_timeout) = (HANDSHAKE_TIMEOUT, CLOSE_TIMEOUT);
        Self { config, handshake_timeout, close_timeout, plain_answer: &[] }
    }

    /// Performs the server's part of the handshake.
    ///
    /// # Errors
    /// An error with a [`TlsError`] inside if the handshake fails: the peer was told, and `stream` is closed.
    /// [`TimedOut`] if it takes longer than [`handshake_timeout`](Self::handshake_timeout). [`UnexpectedEof`] if the
    /// stream ends first. [`QuotaExceeded`] if all buffers of the pool, or all of the [memory](crate#memory), are in
    /// use. Errors of the stream.
    ///
    /// # Cancellation
    /// The connection is dropped.
    ///
    /// [`TimedOut`]: io::ErrorKind::TimedOut
    /// [`UnexpectedEof`]: io::ErrorKind::UnexpectedEof
    /// [`QuotaExceeded`]: io::ErrorKind::QuotaExceeded
    pub async fn accept<C: Clock, S: ByteStream>(
        &self,
        stream: S,
        buffers: &Buffers,
    ) -> io::Result<TlsStream<S>> {
        let connection = UnbufferedServerConnection::new(Arc::clone(&self.config));
        let connection = Connection::Server(connection.map_err(TlsError::Protocol)?);
        let timeouts = Timeouts { handshake: self.handshake_timeout, close: self.close_timeout };
        open::<C, S>(stream, connection, buffers, timeouts, self.plain_answer).await
    }
}

impl Connector {
    /// The defaults.
    pub const fn new(config: Arc<ClientConfig>) -> Self {
        Self { config, handshake_timeout: HANDSHAKE_TIMEOUT, close_timeout: CLOSE_TIMEOUT }
    }

    /// Performs the client's part of the handshake with the server named `server`, over a connection that is
    /// already open.
    ///
    /// # Errors
    /// As for [`Acceptor::accept`].
    ///
    /// # Cancellation
    /// The connection is dropped.
    pub async fn connect<C: Clock, S: ByteStream>(
        &self,
        stream: S,
        server: ServerName<'static>,
        buffers: &Buffers,
    ) -> io::Result<TlsStream<S>> {
        let connection = UnbufferedClientConnection::new(Arc::clone(&self.config), server);
        let connection = Connection::Client(connection.map_err(TlsError::Protocol)?);
        let timeouts = Timeouts { handshake: self.handshake_timeout, close: self.close_timeout };
        open::<C, S>(stream, connection, buffers, timeouts, &[]).await
    }
}

struct Timeouts {
    handshake: Duration,
    close: Duration,
}

async fn open<C: Clock, S: ByteStream>(
    mut transport: S,
    connection: Connection,
    buffers: &Buffers,
    timeouts: Timeouts,
    plain_answer: &'static [u8],
) -> io::Result<TlsStream<S>> {
    let mut session = Session::new(connection, buffers.clone());
    let account = session.account().clone();
    let handle = transport.shutdown_handle();
    let handshake = async {
        let limit = timeouts.handshake;
        let mut handshake =
            pin!(shake_hands::<C>(&mut transport, &mut session, buffers, limit, plain_answer));
        poll_fn(|cx| {
            account.wake_when_evicted(cx.waker().clone());
            if account.is_evicted() {
                handle.abort();
                return Poll::Ready(Err(TlsError::Evicted.into()));
            }
            handshake.as_mut().poll(cx)
        })
        .await
    };
    if let Err(error) = shutdown_after::<C, _>(timeouts.handshake, &handle, handshake).await {
        let why = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        if why.is_some_and(|why| *why != TlsError::Evicted) {
            let ending = end(&mut transport, buffers);
            let _ = shutdown_after::<C, io::Result<()>>(timeouts.close, &handle, ending).await;
        }
        return Err(error);
    }
    let (read, write) = transport.into_split();
    let (buffers, clock) = (buffers.clone(), ClockFns::of::<C>());
    let shared = Shared::new(session, write, handle, buffers, clock, timeouts.close);
    Ok(stream::stream(read, shared))
}

async fn shake_hands<C: Clock>(
    stream: &mut impl ByteStream,
    session: &mut Session,
    buffers: &Buffers,
    limit: Duration,
    plain_answer: &'static [u8],
) -> io::Result<()> {
    let began = C::now();
    let (account, clock) = (session.account().clone(), ClockFns::of::<C>());
    let (mut is_first, mut work_nanos) = (true, 0);
    // Each iteration but the last takes bytes of the peer. rustls bounds the bytes of a handshake.
    loop {
        let mut written = Ok(());
        if let Some(records) = session.take_records() {
            let mut writing = pin!(stream.write_all(records));
            let BufResult(result, records) = poll_fn(|cx| {
                let polled = writing.as_mut().poll(cx);
                // Only now, because the write would wait for a turn if the budget were used up before it.
                coop::consume(mem::take(&mut work_nanos));
                polled
            })
            .await;
            session.handle_written(Slice::into_inner(records));
            written = result;
        }
        coop::consume(mem::take(&mut work_nanos)); // if nothing was written
        // The failure of the handshake comes before the failure to tell the peer.
        let readable = session.readable()?;
        written?;
        if !session.is_handshaking() {
            return Ok(());
        }
        if readable == Readable::Undecrypted {
            C::sleep(Duration::ZERO).await;
            session.decrypt(&mut |_| 0);
            continue;
        }
        let mut bytes = stream.read_pooled(buffers.pool()).await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if mem::take(&mut is_first) {
            if bytes[0] != HANDSHAKE && !plain_answer.is_empty() {
                stream.write_all(plain_answer).await.into_result()?;
                return Err(TlsError::NotTls.into());
            }
            work_nanos = coop::cost::tls_handshake();
        }
        let is_granted = || session.has_memory_for(&bytes, 0);
        // `limit` ends the connection, which a wait for memory does not notice.
        let wait = MemoryWait::new(limit.saturating_sub(C::now() - began));
        until_granted(&account, clock, wait, is_granted, |_| {}).await?;
        session.receive(&mut bytes, &mut |_| 0);
    }
}

/// Ends our side and waits for the peer to end its own. If the connection were closed with unread bytes, the peer
/// might never see the alert.
async fn end(stream: &mut impl ByteStream, buffers: &Buffers) -> io::Result<()> {
    stream.shutdown().await?;
    read_to_end(stream, buffers).await;
    Ok(())
}

/// Reads and drops what the peer still sends, [`LINGER_BYTES_MAX`] at most.
pub(crate) async fn read_to_end(read: &mut impl OwnedRead, buffers: &Buffers) {
    let mut bytes_left = LINGER_BYTES_MAX;
    while bytes_left > 0
        && let Ok(bytes) = read.read_pooled(buffers.pool()).await
        && !bytes.is_empty()
    {
        bytes_left = bytes_left.saturating_sub(bytes.len());
    }
}

/// The bytes that may be in flight when a peer learns that the connection has failed: the most that Linux lets a
/// socket receive by default (`tcp_rmem`).
const LINGER_BYTES_MAX: usize = 6 * 1024 * 1024;

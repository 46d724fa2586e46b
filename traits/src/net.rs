//! TCP: addresses, options, listeners and connections.

use std::any::Any;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use crate::{ByteStream, coop};

/// A TCP connection.
///
/// # Implementing it
///
/// A backend uses [`Duplex`](crate::backend::Duplex), which implements it. A wrapper forwards the calls:
///
/// ```
/// use std::io;
/// use std::net::SocketAddr;
/// use owned_io::TcpStream;
/// # use owned_io::{BufResult, ByteStream, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool};
/// # use owned_io::{PoolBuf, ShutdownHandle};
///
/// /// A connection that a proxy opened for another client.
/// struct Forwarded<S> { inner: S, client: SocketAddr }
///
/// impl<S: TcpStream> TcpStream for Forwarded<S> {
///     fn local_addr(&self) -> io::Result<SocketAddr> {
///         self.inner.local_addr()
///     }
///     fn peer_addr(&self) -> io::Result<SocketAddr> {
///         Ok(self.client)
///     }
/// }
/// // ... and `ByteStream`, as shown there
/// # impl<S: OwnedRead> OwnedRead for Forwarded<S> {
/// #     async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> { self.inner.read(buf).await }
/// #     async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> { self.inner.read_pooled(pool).await }
/// # }
/// # impl<S: OwnedWrite> OwnedWrite for Forwarded<S> {
/// #     async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> { self.inner.write(buf).await }
/// #     async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
/// #         self.inner.write_vectored(bufs).await
/// #     }
/// #     async fn shutdown(&mut self) -> io::Result<()> { self.inner.shutdown().await }
/// # }
/// # impl<S: ByteStream> ByteStream for Forwarded<S> {
/// #     type ReadHalf = S::ReadHalf;
/// #     type WriteHalf = S::WriteHalf;
/// #     fn into_split(self) -> (S::ReadHalf, S::WriteHalf) { self.inner.into_split() }
/// #     fn shutdown_handle(&self) -> ShutdownHandle { self.inner.shutdown_handle() }
/// # }
/// # owned_io_sim::block_on(async {
/// let (inner, _b) = owned_io_sim::pipe();
/// let stream = Forwarded { inner, client: ([192, 0, 2, 7], 1).into() };
/// assert_eq!(stream.peer_addr().unwrap().ip().to_string(), "192.0.2.7");
/// # });
/// ```
pub trait TcpStream: ByteStream {
    /// The local address.
    ///
    /// # Errors
    /// Those of getsockname(2).
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The peer's address.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) once the connection is closed: reset, or ended by both
    /// sides.
    fn peer_addr(&self) -> io::Result<SocketAddr>;
}

/// Accepts TCP connections.
///
/// # Implementing it
///
/// ```
/// use std::collections::VecDeque;
/// use std::io;
/// use std::net::SocketAddr;
/// use owned_io::{TcpListener, TcpStream};
/// use owned_io_sim::SimStream;
///
/// /// Returns prepared connections, and then waits forever.
/// struct Prepared { streams: VecDeque<SimStream>, addr: SocketAddr }
///
/// impl TcpListener for Prepared {
///     type Stream = SimStream;
///
///     // It never waits with a connection in hand, so a dropped accept loses no client.
///     async fn accept(&mut self) -> io::Result<(SimStream, SocketAddr)> {
///         let Some(stream) = self.streams.pop_front() else { return std::future::pending().await };
///         let peer = stream.peer_addr()?;
///         Ok((stream, peer))
///     }
///     fn local_addr(&self) -> io::Result<SocketAddr> {
///         Ok(self.addr)
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// let (a, _b) = owned_io_sim::pipe();
/// let addr = a.local_addr()?;
/// let (_stream, peer) = Prepared { streams: [a].into(), addr }.accept().await?;
/// assert_eq!(peer.port(), 2);
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
/// ```
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait TcpListener: 'static {
    /// The connections that it accepts.
    type Stream: TcpStream;

    /// Waits for a client, and takes it from the accept queue.
    ///
    /// A listener is fair in both directions. Busy connections do not starve it. It yields to other tasks
    /// after at most [`ACCEPT_BATCH_MAX`] clients, after an error, and when other work has used up the
    /// [budget](crate::coop) of the poll.
    ///
    /// On kernel sockets, and while the task has [budget](crate::coop), the first read of a connection returns at once
    /// what has arrived by then, even if the runtime has not looked for it yet. So a client whose request came with it
    /// does not wait for another turn of a busy worker, if its task is started by
    /// [`spawn_eager`](crate::Executor::spawn_eager).
    ///
    /// # Errors
    /// The listener stays usable after every error.
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted): the client left the queue; accept again.
    /// If [`is_exhaustion`] is true for the error, descriptors or memory are used up. The client is still in
    /// the queue, so wait (100 ms, for example) before the next accept. One exception: if the runtime has no memory to
    /// register the connection of a client, it closes that connection.
    ///
    /// # Cancellation
    /// Safe: a dropped accept has taken no client.
    async fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)>;

    /// The address that it listens on, with the real port if port 0 was requested.
    ///
    /// # Errors
    /// Those of getsockname(2).
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// The most clients that [`accept`](TcpListener::accept) returns before other tasks and completions run.
///
/// 64 accepts take a third of a millisecond. That is more than the [budget](crate::coop) of a poll, which would end
/// a batch after ten clients: a worker with 4,000 busy connections, whose turn takes 40 ms, would accept only 250
/// clients a second.
pub const ACCEPT_BATCH_MAX: u32 = 64;

/// The cost of an accept, in nanoseconds: accept(2), the socket options, the registration and the new task.
const ACCEPT_NANOS: u64 = 5_000;

/// Whether an accept or a connect failed because descriptors or kernel memory are used up (`EMFILE`, `ENFILE`,
/// `ENOBUFS`, `ENOMEM`; accept(2)). Retry after something is closed.
pub fn is_exhaustion(error: &io::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<AddrError>());
    let code = inner.map_or(error, AddrError::cause).raw_os_error();
    matches!(code, Some(ENOMEM | ENFILE | EMFILE | ENOBUFS))
}

/// Decides when a listener has to yield: after [`ACCEPT_BATCH_MAX`] clients in a row, after every error, and
/// when other work has used up the [budget](crate::coop) of the poll. Accepts of earlier polls count as if they were
/// of this poll. So other work may take longer than the budget, by at most the time of one batch.
///
/// Before each accept, call [`must_yield`](Self::must_yield). If it is true, yield so that the runtime polls
/// I/O after a bounded number of yields. After each accept, pass the result through [`count`](Self::count),
/// except `WouldBlock`.
#[derive(Debug, Default)]
pub struct AcceptBudget {
    accepted: u32,
}

impl AcceptBudget {
    /// Whether the listener has to yield before the next accept. If so, a new batch begins.
    pub fn must_yield(&mut self) -> bool {
        let accepts_nanos = i64::from(self.accepted).saturating_mul(ACCEPT_NANOS as i64);
        let is_exhausted = coop::left_nanos().saturating_add(accepts_nanos) <= 0;
        if is_exhausted {
            coop::handle_yield();
        }
        let must_yield = is_exhausted || self.accepted >= ACCEPT_BATCH_MAX;
        if must_yield {
            self.accepted = 0;
        }
        must_yield
    }

    /// Counts an accept and its cost. Returns `outcome`.
    pub fn count<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        coop::consume(ACCEPT_NANOS);
        self.accepted = if outcome.is_ok() { self.accepted + 1 } else { ACCEPT_BATCH_MAX };
        outcome
    }
}

/// How to listen. The defaults are the same on every backend, whatever the defaults of the runtime are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenOptions {
    /// The address. For port 0, the system chooses a free port.
    pub addr: SocketAddr,
    /// The number of connections that may wait to be accepted. Default 1,024. The kernel limits it to
    /// `net.core.somaxconn`. A client that finds the queue full retries after a second.
    pub backlog: u32,
    /// Whether accepted connections send small writes at once (`TCP_NODELAY`). Default true.
    pub nodelay: bool,
    /// How to detect a vanished peer while no sent bytes wait for an acknowledgement. Default:
    /// [`Keepalive::new`]. `None` disables it.
    pub keepalive: Option<Keepalive>,
    /// How long sent bytes may stay unacknowledged, or the peer's receive window closed, before the connection
    /// fails with [`TimedOut`](io::ErrorKind::TimedOut) (`TCP_USER_TIMEOUT`). At most 2^31 - 1 ms. Zero means
    /// `None`.
    ///
    /// Default 120 s, the detection time of [`Keepalive::new`]: this limit also ends the probes (tcp(7)). With
    /// `None`, the retries of the kernel take 15 minutes or more (tcp(7), `tcp_retries2`), and a peer with a
    /// closed window has no time limit.
    pub unacknowledged_max: Option<Duration>,
    /// The receive buffer in the kernel (`SO_RCVBUF`), in bytes. Default: the kernel adapts it, from `net.ipv4.tcp_rmem`.
    /// With a value it does not, and `net.core.rmem_max` (208 KiB on many systems) limits the value. So for connections
    /// that begin with a large window, change `tcp_rmem` instead.
    pub recv_buffer_bytes: Option<u32>,
    /// The send buffer in the kernel (`SO_SNDBUF`), in bytes. Default: the kernel adapts it, from `net.ipv4.tcp_wmem`. With
    /// a value it does not, and `net.core.wmem_max` limits the value.
    pub send_buffer_bytes: Option<u32>,
}

impl ListenOptions {
    /// The defaults, at `addr`.
    pub const fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            backlog: 1024,
            nodelay: true,
            keepalive: Some(Keepalive::new()),
            unacknowledged_max: Some(Keepalive::new().detection_time()),
            recv_buffer_bytes: None,
            send_buffer_bytes: None,
        }
    }
}

/// How to detect a peer that vanished without closing the connection, by a power or network failure
/// (`SO_KEEPALIVE`).
///
/// When nothing has arrived for a while, the kernel sends probes, and the peer's kernel answers them. Neither
/// service sees them. If no answer arrives, reads and writes fail with
/// [`TimedOut`](io::ErrorKind::TimedOut).
///
/// The simulator accepts the options and sends no probes: a vanished peer is detected only when something is
/// sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keepalive {
    /// The idle time before the first probe (`TCP_KEEPIDLE`). Default 60 s: shorter than the usual memory of
    /// address translators on the path. In whole seconds, rounded up, from 1 to 32,767.
    pub idle: Duration,
    /// The time between probes that get no answer (`TCP_KEEPINTVL`). Default 15 s. In whole seconds, rounded
    /// up, from 1 to 32,767.
    pub interval: Duration,
    /// The number of probes without an answer before the connection fails (`TCP_KEEPCNT`). Default 4; from 1 to
    /// 127.
    pub probes: u32,
}

impl Keepalive {
    /// The defaults, which detect a vanished peer after two minutes.
    pub const fn new() -> Self {
        Self { idle: Duration::from_secs(60), interval: Duration::from_secs(15), probes: 4 }
    }

    /// The time from the last bytes of the peer until the connection fails.
    pub const fn detection_time(&self) -> Duration {
        self.idle.saturating_add(self.interval.saturating_mul(self.probes))
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        Self::new()
    }
}

/// How to connect. The defaults are the same on every backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The address to connect to.
    pub addr: SocketAddr,
    /// The time limit of the attempt. Default 30 s, enough for five retries of a lost SYN (tcp(7),
    /// `tcp_syn_retries`).
    pub timeout: Duration,
    /// Whether the connection sends small writes at once (`TCP_NODELAY`). Default true.
    pub nodelay: bool,
    /// The local address, which selects an interface. Default: the kernel chooses.
    pub local_addr: Option<SocketAddr>,
    /// How to detect a vanished peer while no sent bytes wait for an acknowledgement. Default:
    /// [`Keepalive::new`]. `None` disables it.
    pub keepalive: Option<Keepalive>,
    /// How long sent bytes may stay unacknowledged, or the peer's receive window closed, before the connection
    /// fails with [`TimedOut`](io::ErrorKind::TimedOut) (`TCP_USER_TIMEOUT`). At most 2^31 - 1 ms. Zero means
    /// `None`.
    ///
    /// Default 120 s, the detection time of [`Keepalive::new`]: this limit also ends the probes (tcp(7)). With
    /// `None`, the retries of the kernel take 15 minutes or more (tcp(7), `tcp_retries2`), and a peer with a
    /// closed window has no time limit.
    pub unacknowledged_max: Option<Duration>,
    /// The receive buffer in the kernel (`SO_RCVBUF`), in bytes. Default: the kernel adapts it, from `net.ipv4.tcp_rmem`.
    /// With a value it does not, and `net.core.rmem_max` (208 KiB on many systems) limits the value. So for connections
    /// that begin with a large window, change `tcp_rmem` instead.
    pub recv_buffer_bytes: Option<u32>,
    /// The send buffer in the kernel (`SO_SNDBUF`), in bytes. Default: the kernel adapts it, from `net.ipv4.tcp_wmem`. With
    /// a value it does not, and `net.core.wmem_max` limits the value.
    pub send_buffer_bytes: Option<u32>,
}

impl ConnectOptions {
    /// The defaults, to `addr`.
    pub const fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            timeout: Duration::from_secs(30),
            nodelay: true,
            keepalive: Some(Keepalive::new()),
            unacknowledged_max: Some(Keepalive::new().detection_time()),
            local_addr: None,
            recv_buffer_bytes: None,
            send_buffer_bytes: None,
        }
    }
}

/// An address that this process holds, for its workers to listen on.
///
/// [`Tcp::bind`](crate::Tcp::bind) creates it once. Each worker has a clone and [listens](crate::Tcp::listen)
/// on it with its own listener. The address is held until the last clone is dropped.
#[derive(Clone)]
pub struct BoundAddr {
    options: Arc<ListenOptions>,
    /// Keeps the address bound. The backend chooses the type.
    _hold: Arc<dyn Any + Send + Sync>,
}

impl BoundAddr {
    /// For backends. `options.addr` must have the real port. Dropping `hold` must release the address.
    pub fn new(options: ListenOptions, hold: impl Any + Send + Sync) -> Self {
        Self { options: Arc::new(options), _hold: Arc::new(hold) }
    }

    /// The address, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.options.addr
    }

    /// The options, with the real port.
    pub fn options(&self) -> &ListenOptions {
        &self.options
    }
}

impl fmt::Debug for BoundAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundAddr").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why an address could not be used.
///
/// It is the inner error of the [`io::Error`] that [`bind`](crate::Tcp::bind), [`listen`](crate::Tcp::listen)
/// and [`connect`](crate::Tcp::connect) return. Both have the same kind.
#[derive(Debug)]
pub struct AddrError {
    action: &'static str,
    addr: SocketAddr,
    cause: io::Error,
}

impl AddrError {
    /// `action` is the verb in "cannot *listen on* 127.0.0.1:80".
    pub const fn new(action: &'static str, addr: SocketAddr, cause: io::Error) -> Self {
        Self { action, addr, cause }
    }

    /// The address that could not be used.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The error of the system, with its OS error code.
    pub const fn cause(&self) -> &io::Error {
        &self.cause
    }

    fn hint(&self) -> &'static str {
        match self.cause.kind() {
            io::ErrorKind::AddrInUse => {
                "; another socket has it: end that program or choose another port"
            }
            io::ErrorKind::PermissionDenied if self.action == "listen on" => {
                "; ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one"
            }
            io::ErrorKind::AddrNotAvailable => {
                "; no interface has this address, or no local port is free"
            }
            io::ErrorKind::ConnectionRefused => "; nothing listens there",
            io::ErrorKind::TimedOut => "; no answer in the time allowed",
            _ => "",
        }
    }
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, addr, cause } = self;
        write!(f, "cannot {action} {addr}: {cause}{}", self.hint())
    }
}

impl Error for AddrError {
    /// The source of [`cause`](Self::cause). `Display` prints the cause itself.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}

impl From<AddrError> for io::Error {
    fn from(error: AddrError) -> Self {
        Self::new(error.cause.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepting_yields_after_a_batch_and_after_an_error() {
        let mut budget = AcceptBudget::default();
        for _ in 0..3 {
            for _ in 0..ACCEPT_BATCH_MAX {
                coop::refill();
                assert!(!budget.must_yield());
                budget.count(Ok(())).unwrap();
            }
            assert!(budget.must_yield());
        }
        coop::refill();
        budget.count(Ok(())).unwrap();
        budget.count::<()>(Err(io::ErrorKind::ConnectionAborted.into())).unwrap_err();
        assert!(budget.must_yield());
        assert!(!budget.must_yield(), "a new batch has begun");
    }

    #[test]
    fn accepting_yields_once_other_work_has_used_up_the_budget_of_the_poll() {
        let mut budget = AcceptBudget::default();
        coop::refill();
        coop::consume(u64::from(coop::POLL_BUDGET_NANOS) - 1);
        for _ in 0..ACCEPT_BATCH_MAX / 2 {
            assert!(!budget.must_yield(), "accepts have a bound of their own");
            budget.count(Ok(())).unwrap();
        }
        coop::consume(1);
        assert!(budget.must_yield());
    }
}

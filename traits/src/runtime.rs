//! [`Runtime`]: what a service needs of the program that drives it.

use std::future::Future;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use crate::task::{self, JoinHandle, Panicked};
use crate::worker::{self, Worker, WorkersConfig};
use crate::{BoundAddr, ConnectOptions, ListenOptions, TcpListener, TcpStream};

/// An async runtime that runs on one thread: a type without values, whose functions act on the
/// runtime of the calling thread.
///
/// A service generic over `R: Runtime` runs on each of them; which one is decided where `R` is
/// named, once. All functions but [`block_on`](Self::block_on), [`bind`](Self::bind),
/// [`tuned`](Self::tuned) and [`run_workers`](Self::run_workers) are to be called within `block_on`;
/// elsewhere they may panic.
///
/// ```
/// use std::time::Duration;
/// use owned_io::{Pool, PoolConfig, Runtime, TcpListener, ListenOptions, ByteStream, copy};
///
/// /// Echoes on every connection, on whatever runtime.
/// async fn echo<R: Runtime>(mut listener: R::TcpListener) {
///     let pool = Pool::new(PoolConfig::default());
///     loop {
///         let Ok((stream, _peer)) = listener.accept().await else {
///             R::sleep(Duration::from_millis(50)).await; // out of descriptors, say
///             continue;
///         };
///         let pool = pool.clone();
///         drop(R::spawn(async move {
///             let (mut read, mut write) = stream.into_split();
///             copy(&mut read, &mut write, &pool).await
///         }));
///     }
/// }
///
/// # use owned_io::{ConnectOptions, OwnedReadExt, OwnedWriteExt};
/// # use owned_io_sim::Sim;
/// # fn main() -> std::io::Result<()> {
/// Sim::block_on(Default::default(), async {
///     let bound = Sim::bind(ListenOptions::new(([10, 0, 0, 1], 7).into()))?;
///     drop(Sim::spawn(echo::<Sim>(Sim::listen(&bound)?)));
///
///     let mut client = Sim::connect(ConnectOptions::new(bound.local_addr())).await?;
///     client.write_all("hello").await.into_result()?;
///     let ((), answer) = client.read_exact(Vec::with_capacity(5), 5).await.into_result()?;
///     assert_eq!(answer, b"hello");
///     Ok(())
/// })?
/// # }
/// ```
///
/// # Implementing it
///
/// A runtime made of another, whose clock is an hour ahead:
///
/// ```
/// use std::future::Future;
/// use std::io;
/// use std::time::{Duration, Instant, SystemTime};
/// use owned_io::{BoundAddr, Capabilities, ConnectOptions, ListenOptions, Panicked, Runtime};
/// use owned_io_sim::{Config, Sim, SimListener, SimStream};
///
/// struct Ahead;
///
/// impl Runtime for Ahead {
///     const NAME: &'static str = "ahead";
///     const CAPABILITIES: Capabilities = Sim::CAPABILITIES;
///     type Config = Config;
///     type TcpStream = SimStream;
///     type TcpListener = SimListener;
///
///     fn tuned() -> Config {
///         Sim::tuned()
///     }
///     fn block_on<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
///         Sim::block_on(config, future) // which polls `backend::run_main(future)`
///     }
///     fn spawn_detached(future: impl Future<Output = ()> + 'static) {
///         Sim::spawn_detached(future);
///     }
///     fn spawn_blocking<T: Send + 'static>(
///         f: impl FnOnce() -> T + Send + 'static,
///     ) -> impl Future<Output = Result<T, Panicked>> + 'static {
///         Sim::spawn_blocking(f)
///     }
///     fn now() -> Instant {
///         Sim::now() + Duration::from_secs(3600)
///     }
///     fn wall_clock() -> SystemTime {
///         Sim::wall_clock() + Duration::from_secs(3600)
///     }
///     fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static {
///         Sim::sleep(duration)
///     }
///     fn fill_random(bytes: &mut [u8]) {
///         Sim::fill_random(bytes);
///     }
///     fn bind(options: ListenOptions) -> io::Result<BoundAddr> {
///         Sim::bind(options)
///     }
///     fn listen(bound: &BoundAddr) -> io::Result<SimListener> {
///         Sim::listen(bound)
///     }
///     async fn connect(options: ConnectOptions) -> io::Result<SimStream> {
///         Sim::connect(options).await
///     }
/// }
///
/// let seven = Ahead::block_on(Config::default(), async { Ahead::spawn(async { 7 }).await })?;
/// assert_eq!(seven.unwrap(), 7);
/// # Ok::<(), io::Error>(())
/// ```
///
/// # Implementer notes
/// `owned-io-tokio` is the shortest complete implementation on a kernel, `owned-io-sim` the one
/// without. The conformance suite (feature `conformance`) says when yours is done.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait Runtime: Sized + 'static {
    /// How users name it, on a command line say.
    const NAME: &'static str;

    /// What it does where the contract leaves a choice.
    const CAPABILITIES: Capabilities;

    /// How to set the runtime up. Its default is the runtime's own.
    type Config: Clone + Default + Send + 'static;

    /// Its TCP connections.
    type TcpStream: TcpStream;

    /// Its TCP listeners.
    type TcpListener: TcpListener<Stream = Self::TcpStream>;

    /// The settings that serve a loaded server best, where they differ from the runtime's own.
    fn tuned() -> Self::Config;

    /// Runs `future` on this thread, with the tasks it spawns, until it is done.
    ///
    /// Tasks that still run then are dropped with what they hold, and their connections closed,
    /// before this returns; their handles say [`JoinError::Ended`](crate::JoinError::Ended).
    ///
    /// # Errors
    /// When the runtime cannot be set up: then nothing of `future` has run. Where io_uring is not
    /// to be had, the error names the cause and the way out.
    ///
    /// # Panics
    /// When `future` panics, with its panic; and when called within itself.
    ///
    /// # Implementer notes
    /// The body is [`run_main`](crate::backend::run_main), polled within the runtime, on every
    /// backend. See to it that a nested call panics, if the runtime does not.
    fn block_on<F: Future>(config: Self::Config, future: F) -> io::Result<F::Output>;

    /// Starts a task on this thread and returns at once. The task goes on when the handle is
    /// dropped; if it panics, the handle says [`JoinError::Panicked`](crate::JoinError::Panicked), and
    /// nobody else is disturbed.
    fn spawn<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: 'static> + 'static,
    {
        task::spawn::<Self, F>(future)
    }

    /// The part of [`spawn`](Self::spawn) that the runtime does.
    ///
    /// # Implementer notes
    /// `future` never panics. It must run to its end even though nobody holds a handle to it. It
    /// begins each of its polls with a whole [budget of work](crate::coop); one that was not started by
    /// `spawn` does not.
    fn spawn_detached(future: impl Future<Output = ()> + 'static);

    /// Runs `f` on another thread, so that this one's other tasks go on meanwhile.
    ///
    /// That begins when this is called, whether or not the future is ever polled; when all threads
    /// for such closures are busy, as soon as one is free.
    ///
    /// # Errors
    /// [`Panicked`] if `f` panics.
    ///
    /// # Cancellation
    /// Dropping the future abandons the result; an `f` that has started runs to its end.
    fn spawn_blocking<T: Send + 'static>(
        f: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, Panicked>> + 'static;

    /// Runs `config.count` workers, each on a thread and a runtime of its own, until all are done.
    ///
    /// Each worker runs the future that `service` makes for it. A worker that fails, or panics,
    /// stops the others. After the stop signal the workers have
    /// [`drain`](WorkersConfig::drain) to finish; what is not done then is dropped.
    ///
    /// # Errors
    /// The first worker's that failed, with its number: its service's error, the runtime's when it
    /// could not be set up, a panic's message, [`TimedOut`](io::ErrorKind::TimedOut) when it had
    /// not drained by the deadline or its thread did not even notice.
    fn run_workers<F, Fut>(config: WorkersConfig<Self>, service: F) -> io::Result<()>
    where
        F: Fn(Worker) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = io::Result<()>> + 'static,
    {
        worker::run_on_threads(config, service)
    }

    /// The time by the runtime's clock, which never goes back.
    fn now() -> Instant;

    /// The time of day.
    fn wall_clock() -> SystemTime;

    /// Waits until `duration` has passed by [`now`](Self::now) since this was called, or since it was
    /// first polled. A runtime rounds it up to its tick, by at most 2 ms; a busy thread adds to that.
    /// While it waits, other tasks and I/O go on, even for a duration of zero.
    ///
    /// # Cancellation
    /// Safe.
    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static;

    /// Fills `bytes` at random, good enough for keys; repeatable in a simulation.
    fn fill_random(bytes: &mut [u8]);

    /// Takes an address for this process. Nobody can connect before somebody
    /// [listens](Self::listen) on it.
    ///
    /// # Errors
    /// [`AddrError`](crate::AddrError) inside. [`AddrInUse`](io::ErrorKind::AddrInUse) when another
    /// socket listens on the address, even one that would share it (`SO_REUSEPORT`), or holds it as
    /// this does;
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied);
    /// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable).
    fn bind(options: ListenOptions) -> io::Result<BoundAddr>;

    /// Listens on a bound address. Each worker has a listener of its own; the kernel spreads
    /// clients over the listeners.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener>;

    /// Connects to a listener.
    ///
    /// # Errors
    /// [`AddrError`](crate::AddrError) inside.
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused),
    /// [`TimedOut`](io::ErrorKind::TimedOut) after [`ConnectOptions::timeout`], and the rest of
    /// connect(2).
    ///
    /// # Cancellation
    /// Safe: the attempt is given up and its socket closed.
    ///
    /// # Implementer notes
    /// The time is the backend's to watch. Put an `AddrError` into every error: `owned-io-os` has
    /// functions for it.
    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream>;
}

/// What a backend does where the contract leaves it a choice. The conformance suite checks each
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether it needs io_uring, and starts nothing where that is not to be had.
    pub io_uring: bool,
    /// Whether each pending [`read_pooled`](crate::OwnedRead::read_pooled) holds a buffer, however
    /// many there are.
    pub pooled_read_pins_buffer: bool,
    /// What becomes of the bytes that arrive after a pending read was dropped.
    pub dropped_read: DroppedRead,
}

impl Capabilities {
    /// All of them.
    pub const fn new(
        io_uring: bool,
        pooled_read_pins_buffer: bool,
        dropped_read: DroppedRead,
    ) -> Self {
        Self { io_uring, pooled_read_pins_buffer, dropped_read }
    }
}

/// What becomes of the bytes that arrive after a pending read was dropped. Generic code relies on
/// none of it, and drops the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedRead {
    /// The next read gets them.
    LosesNothing,
    /// The dropped read is cancelled; bytes that arrive before the kernel gets to it are lost.
    Cancelled,
    /// The dropped read goes on in the kernel, and eats the next bytes.
    EatsNextBytes,
}

//! What a service needs of the runtime that drives it: [`Clock`], [`Random`], [`Executor`], [`Tcp`],
//! and [`Runtime`] for all of them.

use std::future::Future;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use crate::task::{self, JoinHandle, Panicked};
use crate::worker::{self, Worker, WorkersConfig};
use crate::{BoundAddr, ConnectOptions, ListenOptions, TcpListener, TcpStream};

/// An async runtime that runs on one thread: one name for [`Clock`], [`Random`], [`Executor`] and
/// [`Tcp`].
///
/// A runtime is a type without values. The functions of these traits act on the runtime of the
/// calling thread. A service that is generic over `R: Runtime` runs on each of them; the program
/// names one, once. A protocol asks for what it uses: TLS for a [`Clock`], WebSocket for a `Clock`
/// and [`Random`].
///
/// Every type that has the four traits is a `Runtime`. Nothing will be added to it: what a later
/// version adds (files, Unix sockets, UDP) is one more trait, which a service asks for beside this one.
///
/// Call [`block_on`](Executor::block_on), [`run_workers`](Executor::run_workers),
/// [`tuned`](Executor::tuned) and [`bind`](Tcp::bind) anywhere, and all other functions within
/// `block_on`: elsewhere they may panic.
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
/// // To call functions of a runtime by its own name, import the trait that has them.
/// use owned_io::{Executor, Tcp};
/// use owned_io_sim::Sim;
/// # use owned_io::{ConnectOptions, OwnedReadExt, OwnedWriteExt};
///
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
/// Implement the four traits. The page `docs/adding-a-backend.md` of the repository has the steps.
/// `owned-io-tokio` is the shortest implementation on a kernel, `owned-io-sim` the one without. The
/// conformance suite (feature `conformance`) says when yours is done.
///
/// A runtime made of another overrides what it changes, and has
/// [`forward_runtime!`](crate::forward_runtime) write the rest:
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use owned_io::{Clock, Executor, Random, Tcp, forward_runtime};
/// use owned_io_sim::{Config, Sim};
///
/// /// The simulator, whose clock is an hour ahead.
/// struct Ahead;
///
/// const AHEAD: Duration = Duration::from_secs(3600);
///
/// impl Clock for Ahead {
///     fn now() -> Instant {
///         Sim::now() + AHEAD
///     }
///     fn wall_clock() -> SystemTime {
///         Sim::wall_clock() + AHEAD
///     }
///     forward_runtime!(Clock::{sleep} => Sim);
/// }
/// impl Random for Ahead { forward_runtime!(Random => Sim); }
/// impl Executor for Ahead { forward_runtime!(Executor => Sim); }
/// impl Tcp for Ahead { forward_runtime!(Tcp => Sim); }
///
/// let seven = Ahead::block_on(Config::default(), async { Ahead::spawn(async { 7 }).await })?;
/// assert_eq!(seven.unwrap(), 7);
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Runtime: Clock + Random + Executor + Tcp {}

impl<R: Clock + Random + Executor + Tcp> Runtime for R {}

/// The time, and waiting for it.
pub trait Clock: Sized + 'static {
    /// The time by the runtime's clock, which never goes back.
    fn now() -> Instant;

    /// The time of day.
    fn wall_clock() -> SystemTime;

    /// Waits until `duration` has passed by [`now`](Self::now) since this was called, or since it was
    /// first polled.
    ///
    /// The runtime rounds the time up to the tick of its timers, by at most 2 ms. That bound is for a
    /// runtime that has nothing else to do: what keeps the calling thread busy, and with it the task
    /// that sleeps, adds to it. Where the timers are on another thread of the runtime's, the time that
    /// this thread takes counts as the runtime's, against the 2 ms.
    ///
    /// While it waits, other tasks and I/O go on, even for a duration of zero.
    ///
    /// # Cancellation
    /// Safe.
    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static;
}

/// Random numbers.
pub trait Random: Sized + 'static {
    /// Fills `bytes` at random, good enough for keys; repeatable in a simulation.
    fn fill_random(bytes: &mut [u8]);
}

/// Runs futures, as tasks of one thread; closures that block, on other threads; and workers, each a
/// thread with a runtime of its own.
pub trait Executor: Sized + 'static {
    /// How users name it, on a command line say.
    const NAME: &'static str;

    /// How to set the runtime up. Its default is the runtime's own.
    type Config: Clone + Default + Send + 'static;

    /// The settings that serve a loaded server best, where they differ from the runtime's own.
    fn tuned() -> Self::Config;

    /// Runs `future` on this thread, with the tasks it spawns, until it is done.
    ///
    /// Tasks that still run then are dropped with what they hold, and their connections closed,
    /// before this returns; their handles say [`JoinError::Ended`](crate::JoinError::Ended). They are
    /// dropped within the runtime, so what they hold may call it. This returns soon after, even beside
    /// a task that is always ready.
    ///
    /// # Errors
    /// When the runtime cannot be set up: io_uring is refused, no descriptor is free, too little memory
    /// may be locked. Then nothing of `future` has run. It is never a panic, not even the first time in
    /// a process, when a reactor that all threads share is set up. A runtime that needs nothing of what
    /// is missing runs `future`. Where io_uring is missing, the error names the cause and the way out.
    ///
    /// # Panics
    /// When `future` panics, with its panic; and when called within itself.
    ///
    /// # Implementer notes
    /// The body is [`run_main`](crate::backend::run_main), polled within the runtime, on every
    /// backend. Its documentation says what comes after it. Make a nested call panic, if the runtime
    /// does not.
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
        Self: Clock,
        F: Fn(Worker) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = io::Result<()>> + 'static,
    {
        worker::run_on_threads(config, service)
    }
}

/// TCP connections and listeners.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait Tcp: Sized + 'static {
    /// Its TCP connections.
    type TcpStream: TcpStream;

    /// Its TCP listeners.
    type TcpListener: TcpListener<Stream = Self::TcpStream>;

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
    /// The time is the backend's to watch. Every error has an `AddrError` inside, those of the
    /// runtime's own too, when it registers the socket or waits for it. `owned_io_os::connect` and
    /// `owned_io_os::Listener` do both.
    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream>;
}

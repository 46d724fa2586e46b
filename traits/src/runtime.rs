//! The runtime as traits: [`Clock`], [`Random`], [`Executor`] and [`Tcp`]. [`Runtime`] stands for all of them.

use std::future::Future;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use crate::task::{self, JoinHandle, Panicked};
use crate::worker::{self, Worker, WorkersConfig};
use crate::{BoundAddr, ConnectOptions, ListenOptions, TcpListener, TcpStream};

/// An async runtime that runs on one thread: [`Clock`], [`Random`], [`Executor`] and [`Tcp`].
///
/// A runtime is a type without values. The functions of these traits act on the runtime of the calling thread.
/// A service that is generic over `R: Runtime` runs on every runtime. The program names one, in one place. A
/// protocol requires only what it uses: TLS a [`Clock`], WebSocket a `Clock` and [`Random`].
///
/// Every type that implements the four traits is a `Runtime`. The list is final: files are a further trait, [`Files`],
/// which a service requires in addition to this one. So are Unix sockets or UDP, in a later version.
///
/// [`Files`]: crate::Files
///
/// [`block_on`](Executor::block_on), [`run_workers`](Executor::run_workers), [`tuned`](Executor::tuned) and
/// [`bind`](Tcp::bind) may be called anywhere. All other functions must be called within `block_on`: elsewhere
/// they may panic.
///
/// ```
/// use std::time::Duration;
/// use owned_io::{Pool, PoolConfig, Runtime, TcpListener, ListenOptions, ByteStream, copy};
///
/// /// Echoes on every connection, on any runtime.
/// async fn echo<R: Runtime>(mut listener: R::TcpListener) {
///     let pool = Pool::new(PoolConfig::default());
///     loop {
///         let Ok((stream, _peer)) = listener.accept().await else {
///             R::sleep(Duration::from_millis(50)).await; // for example, out of descriptors
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
/// // To call a function of a runtime by its type, import the trait of the function.
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
/// Implement the four traits. The page `docs/adding-a-backend.md` of the repository lists the steps.
/// `owned-io-tokio` is the shortest implementation with a kernel, `owned-io-sim` is one without. The
/// implementation is complete when it passes the conformance suite (feature `conformance`).
///
/// A wrapper of a runtime implements what it changes. [`forward_runtime!`](crate::forward_runtime) implements
/// the rest:
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

/// The time, and timers.
pub trait Clock: Sized + 'static {
    /// The time of the runtime's monotonic clock.
    fn now() -> Instant;

    /// The time of day.
    fn wall_clock() -> SystemTime;

    /// Waits until `duration` has passed, measured by [`now`](Self::now) from the call or from the first poll.
    ///
    /// The runtime rounds the time up to the tick of its timers, by at most 2 ms. This bound holds for an idle
    /// runtime: work on the calling thread delays the sleeping task further. If the runtime's timers are on
    /// another thread, the delay of that thread counts towards the 2 ms.
    ///
    /// Other tasks and I/O run while it waits, even for a duration of zero: within a bounded number of sleeps of
    /// zero in a row, every ready task is polled, and so is I/O. A longer sleep whose time has passed when it is
    /// first polled may be ready at once, without that.
    ///
    /// # Cancellation
    /// Safe.
    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static;
}

/// Random numbers.
pub trait Random: Sized + 'static {
    /// Fills `bytes` with random bytes that are suitable for keys. A simulation repeats them.
    fn fill_random(bytes: &mut [u8]);
}

/// Runs futures as tasks of one thread, blocking closures on other threads, and workers: threads that each have
/// their own runtime.
pub trait Executor: Sized + 'static {
    /// The name for users, for example on a command line.
    const NAME: &'static str;

    /// The configuration of the runtime. `default()` is the runtime's own default.
    type Config: Clone + Default + Send + 'static;

    /// The configuration for a loaded server. It may differ from the runtime's own default.
    fn tuned() -> Self::Config;

    /// Runs `future` and the tasks that it spawns on this thread, until `future` is done.
    ///
    /// Tasks of [`spawn`](Self::spawn) and [`spawn_eager`](Self::spawn_eager) that are still running are dropped before
    /// this returns, with everything that they hold, and their connections are closed. Their handles return
    /// [`JoinError::Ended`](crate::JoinError::Ended). The tasks are dropped within the runtime, so destructors may
    /// call it. A task that is always ready does not delay the return.
    ///
    /// # Errors
    /// The runtime could not be set up: io_uring is refused, no descriptor is free, or the limit on locked
    /// memory is too low. No part of `future` has run. A failed set-up never panics, not even the first in a
    /// process, when a reactor that all threads share is set up. A runtime that does not need the missing
    /// resource runs `future`. If io_uring is missing, the error names the cause and a remedy.
    ///
    /// # Panics
    /// If `future` panics, with its panic. If called within itself.
    ///
    /// # Implementer notes
    /// On every backend the body is [`run_main`](crate::backend::run_main), polled within the runtime. The
    /// documentation of `run_main` says what to do after it. If the runtime permits a nested call, add a panic.
    fn block_on<F: Future>(config: Self::Config, future: F) -> io::Result<F::Output>;

    /// Starts a task on this thread and returns at once.
    ///
    /// The task continues when the handle is dropped. If it panics, the handle returns
    /// [`JoinError::Panicked`](crate::JoinError::Panicked), and other tasks are not affected.
    fn spawn<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: 'static> + 'static,
    {
        task::spawn::<Self, F>(future)
    }

    /// Like [`spawn`](Self::spawn), but also polls the task once before it returns.
    ///
    /// It is for a task that can often answer at once, such as that of a client that was accepted: its request has
    /// usually arrived. In the queue of the runtime it would wait until all ready tasks have run.
    ///
    /// Other tasks wait during that poll, which is a part of the caller's. Therefore it has a bound: once such polls have
    /// used up [`EAGER_BUDGET_NANOS`](crate::coop::EAGER_BUDGET_NANOS) within one poll of the caller, this behaves like
    /// `spawn`. The same holds within such a poll. The poll has a [budget](crate::coop) of its own, and leaves that of the
    /// caller as it is.
    ///
    /// The task must not need what the caller has borrowed, or locked. The runtime polls it again in its turn, unless it
    /// is done.
    fn spawn_eager<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: 'static> + 'static,
    {
        task::spawn_eager::<Self, F>(future)
    }

    /// The part of [`spawn`](Self::spawn) that depends on the runtime. It starts a task without a handle.
    ///
    /// # Implementer notes
    /// `future` does not panic when `spawn` passes it. It must run to its end although no handle to it exists.
    /// Each of its polls begins with a full [budget of work](crate::coop) if `spawn` passed it.
    ///
    /// [`block_on`](Self::block_on) does not wait for a task that was passed here directly. The runtime is free to
    /// drop it at its end, within the runtime or after it, or to leak it. Only `spawn` promises more.
    fn spawn_detached(future: impl Future<Output = ()> + 'static);

    /// Runs `f` on another thread, so that the tasks of this thread continue.
    ///
    /// The call starts `f`, even if the future is never polled. If all threads for blocking closures are
    /// busy, `f` starts as soon as one is free.
    ///
    /// # Errors
    /// [`Panicked`] if `f` panics.
    ///
    /// # Cancellation
    /// Dropping the future discards the result. If `f` has started, it runs to its end.
    fn spawn_blocking<T: Send + 'static>(
        f: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, Panicked>> + 'static;

    /// Runs `config.count` workers until all are done. Each has its own thread and runtime.
    ///
    /// Each worker runs the future that `service` returns for it. A worker that fails or panics stops the
    /// others. After the stop signal, the workers have [`drain`](WorkersConfig::drain) to finish. A service
    /// that is not done by then is dropped.
    ///
    /// # Errors
    /// The error of the first worker that failed, with its number. It is the error of its service, the error
    /// of a runtime or a thread that could not be set up, the message of a panic, or
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the worker had not drained by the deadline or its thread is
    /// stuck.
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
    /// The connections of this runtime.
    type TcpStream: TcpStream;

    /// The listeners of this runtime.
    type TcpListener: TcpListener<Stream = Self::TcpStream>;

    /// Binds an address for this process. Connections are refused until a worker [listens](Self::listen) on it.
    ///
    /// # Errors
    /// The inner error is an [`AddrError`](crate::AddrError).
    ///
    /// - [`AddrInUse`](io::ErrorKind::AddrInUse): another socket listens on the address, even with
    ///   `SO_REUSEPORT`, or holds it by a `bind` like this.
    /// - [`PermissionDenied`](io::ErrorKind::PermissionDenied).
    /// - [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable).
    fn bind(options: ListenOptions) -> io::Result<BoundAddr>;

    /// Listens on a bound address. Each worker has its own listener, and the kernel distributes clients over
    /// the listeners.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener>;

    /// Connects to a listener.
    ///
    /// # Errors
    /// The inner error is an [`AddrError`](crate::AddrError).
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused),
    /// [`TimedOut`](io::ErrorKind::TimedOut) after [`ConnectOptions::timeout`], and the other errors of
    /// connect(2).
    ///
    /// # Cancellation
    /// Safe: the attempt ends and its socket is closed.
    ///
    /// # Implementer notes
    /// The backend enforces the time limit. Every error has an `AddrError` inside, also the errors of the
    /// runtime itself, when it registers the socket or waits for it. `owned_io_os::connect` and
    /// `owned_io_os::Listener` add it.
    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream>;
}

//! Workers: one thread, one runtime and one service each; started, stopped and drained together.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::task::{CatchPanic, Panicked};
use crate::{Clock, Executor, select};

/// How many workers to run, and how they end.
///
/// ```
/// # use owned_io_sim::Sim;
/// use std::num::NonZeroUsize;
/// use owned_io::{Executor, WorkersConfig};
///
/// let config = WorkersConfig::<Sim>::new(NonZeroUsize::MIN);
/// let stop = config.stop.clone(); // for a signal handler's thread, say
/// Sim::run_workers(config, move |worker| {
///     let stop = stop.clone();
///     async move {
///         stop.stop();
///         worker.stop.stopped().await;
///         Ok(())
///     }
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkersConfig<R: Executor> {
    /// The set-up of each worker's runtime.
    pub runtime: R::Config,
    /// How many workers.
    pub count: NonZeroUsize,
    /// How long a worker may take to finish after the stop signal. Default 10 s: less than the
    /// 30 s after which process supervisors commonly kill.
    pub drain: Duration,
    /// Stops them all.
    pub stop: StopSignal,
}

impl<R: Executor> WorkersConfig<R> {
    /// The defaults, for `count` workers.
    pub fn new(count: NonZeroUsize) -> Self {
        Self {
            runtime: R::Config::default(),
            count,
            drain: Duration::from_secs(10),
            stop: StopSignal::new(),
        }
    }

    /// For wrappers of a runtime: the same workers, on `Inner`.
    pub fn for_runtime<Inner: Executor<Config = R::Config>>(self) -> WorkersConfig<Inner> {
        let Self { runtime, count, drain, stop } = self;
        WorkersConfig { runtime, count, drain, stop }
    }

    /// For backends: the workers to run.
    pub fn workers(&self) -> impl Iterator<Item = Worker> + use<R> {
        let Self { count, drain, .. } = *self;
        let stop = self.stop.clone();
        (0..count.get()).map(move |id| Worker { id, count, stop: stop.clone(), drain })
    }
}

/// What a service is told about the worker it runs on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Worker {
    /// From 0 to `count - 1`.
    pub id: usize,
    /// How many workers there are.
    pub count: NonZeroUsize,
    /// Says when to stop: accept no more, finish what is open, return.
    pub stop: StopSignal,
    /// How long that may take; what is not done then is dropped.
    pub drain: Duration,
}

impl Worker {
    /// For backends that run workers in a way of their own: runs `service` on this worker until it
    /// is done, or until its time to drain is over.
    ///
    /// # Errors
    /// The service's, its panic, or [`TimedOut`](io::ErrorKind::TimedOut); all name the worker.
    pub async fn run<R, F, Fut>(self, service: F) -> io::Result<()>
    where
        R: Clock,
        F: FnOnce(Self) -> Fut,
        Fut: Future<Output = io::Result<()>>,
    {
        let worker = self.clone();
        let mut service = pin!(CatchPanic::new(async { service(worker).await }));
        let deadline = async {
            self.stop.stopped().await;
            R::sleep(self.drain).await;
        };
        let outcome = match select(service.as_mut(), deadline).await.first {
            Some(Ok(outcome)) => outcome,
            Some(Err(panicked)) => Err(panicked.into()),
            None => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "not drained when its time was over"))
            }
        };
        outcome.map_err(|error| worker_error(self.id, error))
    }
}

/// A signal to stop, given once, from any thread, and seen on every thread.
///
/// Clones are the same signal.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    state: Arc<Mutex<StopState>>,
}

#[derive(Debug, Default)]
struct StopState {
    stopped: bool,
    /// Those that wait, by the number of their wait. Bounded by the waits that are pending.
    waiting: BTreeMap<u64, Waker>,
    last_wait: u64,
}

impl StopSignal {
    /// A signal that is not given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the signal. Giving it again does nothing.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    /// Whether it was given.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Waits until it is given.
    ///
    /// # Cancellation
    /// Safe.
    pub fn stopped(&self) -> Stopped<'_> {
        Stopped { signal: self, wait: None }
    }

    fn lock(&self) -> MutexGuard<'_, StopState> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wait for a [`StopSignal`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Stopped<'a> {
    signal: &'a StopSignal,
    wait: Option<u64>,
}

impl Future for Stopped<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let signal = self.signal;
        let mut state = signal.lock();
        if state.stopped {
            return Poll::Ready(());
        }
        // The main future of a worker waits for this beside all else: on some runtimes each wake polls it.
        let known = self.wait.and_then(|wait| state.waiting.get(&wait));
        if known.is_some_and(|known| known.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let wait = *self.wait.get_or_insert_with(|| {
            state.last_wait += 1;
            state.last_wait
        });
        let before = state.waiting.insert(wait, cx.waker().clone());
        drop(state);
        // Not under the lock: it may be the last to hold a future, with a wait of its own.
        drop(before);
        Poll::Pending
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.wait {
            let waker = self.signal.lock().waiting.remove(&wait);
            drop(waker); // not under the lock
        }
    }
}

/// The longest time to drain that the clock has room for.
const DRAIN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How long after the deadline a worker's thread may take to drop what it holds, before it counts
/// as stuck (in a blocking call, or an endless loop).
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// [`Executor::run_workers`] on threads of the operating system.
pub(crate) fn run_on_threads<R, F, Fut>(config: WorkersConfig<R>, service: F) -> io::Result<()>
where
    R: Executor + Clock,
    F: Fn(Worker) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let stop = &config.stop;
    let (done, outcomes) = mpsc::channel();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut running = Vec::new(); // a count that nobody means is the error of the threads, not of this
    let mut first_error = None;
    for worker in config.workers() {
        let id = worker.id;
        let (runtime, service) = (config.runtime.clone(), service.clone());
        let (done, waker) = (done.clone(), waker.clone());
        let thread = thread::Builder::new().name(format!("worker-{id}")).spawn(move || {
            let outcome = run_worker::<R, _, _>(runtime, worker, service);
            // The receiver is gone if this worker was given up as stuck.
            let _ = done.send((id, outcome));
            waker.wake();
        });
        match thread {
            Ok(_) => running.push(id),
            Err(error) => {
                first_error = Some(worker_error(id, error));
                stop.stop();
                break;
            }
        }
    }
    let mut stuck_at = None;
    // Ends at the latest when the workers count as stuck; turns only when something has happened.
    loop {
        for (id, outcome) in outcomes.try_iter() {
            running.retain(|other| *other != id);
            if let Err(error) = outcome {
                first_error.get_or_insert(error);
                stop.stop();
            }
        }
        let Some(&worker) = running.first() else { break };
        let mut stopped = pin!(stop.stopped());
        if stopped.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            thread::park();
            continue;
        }
        let now = Instant::now();
        let drained_in = config.drain.saturating_add(STUCK_AFTER).min(DRAIN_MAX);
        let stuck_at = *stuck_at.get_or_insert_with(|| now + drained_in);
        if now >= stuck_at {
            let stuck = io::Error::new(io::ErrorKind::TimedOut, "its thread is stuck");
            first_error.get_or_insert_with(|| worker_error(worker, stuck));
            break;
        }
        thread::park_timeout(stuck_at - now);
    }
    first_error.map_or(Ok(()), Err)
}

fn run_worker<R, F, Fut>(runtime: R::Config, worker: Worker, service: F) -> io::Result<()>
where
    R: Executor + Clock,
    F: Fn(Worker) -> Fut,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let id = worker.id;
    let run = || R::block_on(runtime, async move { worker.run::<R, _, _>(service).await });
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Err(worker_error(id, error)),
        Err(payload) => Err(worker_error(id, Panicked::new(payload).into())),
    }
}

/// `error`, naming the worker, of the same kind.
fn worker_error(id: usize, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), WorkerError { id, cause: error })
}

#[derive(Debug)]
struct WorkerError {
    id: usize,
    cause: io::Error,
}

impl std::fmt::Display for WorkerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {}: {}", self.id, self.cause)
    }
}

impl std::error::Error for WorkerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Wakes a parked thread.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

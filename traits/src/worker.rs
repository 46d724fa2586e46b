//! Workers: each has one thread, one runtime and one service. They start, stop and drain together.

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

/// The number of workers, their runtime, and how they end.
///
/// ```
/// # use owned_io_sim::Sim;
/// use std::num::NonZeroUsize;
/// use owned_io::{Executor, WorkersConfig};
///
/// let config = WorkersConfig::<Sim>::new(NonZeroUsize::MIN);
/// let stop = config.stop.clone(); // for the thread of a signal handler, for example
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
    /// The configuration of each worker's runtime.
    pub runtime: R::Config,
    /// The number of workers.
    pub count: NonZeroUsize,
    /// The time that a worker has to finish after the stop signal. Default 10 s: less than the 30 s after
    /// which process supervisors usually kill a process.
    pub drain: Duration,
    /// Stops all workers.
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

    /// For wrappers of a runtime: the same workers on the wrapped runtime.
    pub fn for_runtime<Inner: Executor<Config = R::Config>>(self) -> WorkersConfig<Inner> {
        let Self { runtime, count, drain, stop } = self;
        WorkersConfig { runtime, count, drain, stop }
    }

    /// For backends: the workers to start.
    pub fn workers(&self) -> impl Iterator<Item = Worker> + use<R> {
        let Self { count, drain, .. } = *self;
        let stop = self.stop.clone();
        (0..count.get()).map(move |id| Worker { id, count, stop: stop.clone(), drain })
    }
}

/// The worker that a service runs on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Worker {
    /// The number of the worker, from 0 to `count - 1`.
    pub id: usize,
    /// The number of all workers.
    pub count: NonZeroUsize,
    /// The signal to stop: then accept no more clients, finish the open connections, and return.
    pub stop: StopSignal,
    /// The time to finish after the signal. A service that is not done by then is dropped.
    pub drain: Duration,
}

impl Worker {
    /// Runs `service` on this worker until it is done, or until the time to drain is over. It is for backends
    /// with their own implementation of workers.
    ///
    /// # Errors
    /// The error of the service, its panic, or [`TimedOut`](io::ErrorKind::TimedOut). All name the worker.
    pub async fn run<R, F, Fut>(self, service: F) -> io::Result<()>
    where
        R: Clock,
        F: FnOnce(Self) -> Fut,
        Fut: Future<Output = io::Result<()>>,
    {
        let worker = self.clone();
        let mut service = pin!(CatchPanic::new(Box::pin(async { service(worker).await })));
        let deadline = async {
            self.stop.stopped().await;
            R::sleep(self.drain).await;
        };
        let outcome = match select(service.as_mut(), deadline).await.first {
            Some(Ok(outcome)) => outcome,
            Some(Err(panicked)) => Err(panicked.into()),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "not drained by the deadline")),
        };
        outcome.map_err(|error| worker_error(self.id, error))
    }
}

/// A signal to stop. Any thread can send it, once, and every thread sees it.
///
/// A clone is another handle to the same signal.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    state: Arc<Mutex<StopState>>,
}

#[derive(Debug, Default)]
struct StopState {
    stopped: bool,
    /// The wakers, by the id of the wait. Bounded by the number of pending waits.
    waiting: BTreeMap<u64, Waker>,
    last_wait: u64,
}

impl StopSignal {
    /// A signal that was not sent yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the signal. Repeated calls do nothing.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    /// Whether the signal was sent.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Waits until the signal is sent.
    ///
    /// # Cancellation
    /// Safe.
    pub fn stopped(&self) -> Stopped<'_> {
        Stopped { signal: self, wait: None }
    }

    fn lock(&self) -> MutexGuard<'_, StopState> {
        // No code under the lock can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a [`StopSignal`].
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
        // The main future of a worker always waits for this too. On some runtimes each wake polls it, so the
        // unchanged waker is the fast path.
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
        // Not under the lock: the waker may own the last reference to a future, which may own another wait.
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

/// The longest time to drain that the clock can represent.
const DRAIN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Extra time after the drain deadline, in which a worker's thread drops its tasks. After it, the thread counts
/// as stuck in a blocking call or an endless loop. The worker enforces the deadline itself.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// [`Executor::run_workers`] with threads of the operating system.
pub(crate) fn run_on_threads<R, F, Fut>(config: WorkersConfig<R>, service: F) -> io::Result<()>
where
    R: Executor + Clock,
    F: Fn(Worker) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let stop = &config.stop;
    let (done, outcomes) = mpsc::channel();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut running = Vec::new(); // no capacity: a huge count must fail in `spawn`, not here
    let mut first_error = None;
    for worker in config.workers() {
        let id = worker.id;
        let (runtime, service) = (config.runtime.clone(), service.clone());
        let (done, waker) = (done.clone(), waker.clone());
        let thread = thread::Builder::new().name(format!("worker-{id}")).spawn(move || {
            let outcome = run_worker::<R, _, _>(runtime, worker, service);
            // The receiver is gone if this worker was abandoned as stuck.
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
    // Ends at the latest when the workers count as stuck. Each iteration waits for an event.
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

/// Adds the number of the worker to `error`. The kind stays the same.
fn worker_error(id: usize, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), WorkerError { id, cause: error })
}

/// Which worker failed, and why.
///
/// It is the inner error of the [`io::Error`] that [`run_workers`](crate::Executor::run_workers) returns. Both have
/// the same kind.
#[derive(Debug)]
pub struct WorkerError {
    id: usize,
    cause: io::Error,
}

impl WorkerError {
    /// The number of the worker, from 0.
    pub const fn id(&self) -> usize {
        self.id
    }

    /// Why it failed: the error of its service, of its runtime or of its thread, or its panic.
    pub const fn cause(&self) -> &io::Error {
        &self.cause
    }
}

impl std::fmt::Display for WorkerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {}: {}", self.id, self.cause)
    }
}

impl std::error::Error for WorkerError {
    /// The source of [`cause`](Self::cause). `Display` prints the cause itself.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

/// Wakes a parked thread.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

//! [`Sim`]: the runtime.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use owned_io::{
    BoundAddr, Clock, ConnectOptions, DirEntry, Executor, Files, HandOver, ListenOptions, OpenMode,
    Panicked, Random, Tcp, Worker, WorkersConfig,
};

use crate::executor::{self, Shared};
use crate::file::{self, SimFile};
use crate::listener::{self, SimDetached, SimListener};
use crate::stream::SimStream;
use crate::timer::Sleep;
use crate::{connect, host, trace};

/// The simulated runtime.
#[derive(Clone, Copy, Debug)]
pub struct Sim;

/// The settings of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Determines every random choice. Default 0.
    pub seed: u64,
    /// Whether an operation that is dropped while it is pending may complete all the same: a read takes the next
    /// bytes with it, a write is sent. Default false, and true in [`run`](fn@crate::run).
    pub dropped_operations_may_complete: bool,
    /// The simulation panics after this many events, because it probably loops for ever. Default no limit, and 20
    /// million, which take some ten seconds, in [`run`](fn@crate::run).
    pub events_max: u64,
    /// How many events are kept, for [`World::trace`](crate::World::trace) and for the report of a failure. The
    /// report shows the last 60, or all if more are kept than by default. Default 1,024.
    pub trace_records: usize,
    /// Whether another thread may still wake a task when no event is left.
    pub(crate) waits_for_threads: bool,
}

impl Config {
    /// The defaults with this seed.
    pub const fn with_seed(seed: u64) -> Self {
        Self {
            seed,
            dropped_operations_may_complete: false,
            events_max: u64::MAX,
            trace_records: trace::RECORDS_KEPT,
            waits_for_threads: true,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::with_seed(0)
    }
}

impl Clock for Sim {
    fn now() -> Instant {
        executor::current().now()
    }

    fn wall_clock() -> SystemTime {
        // 2025-01-01T00:00:00Z, so that a run repeats, plus the elapsed virtual time.
        const START: Duration = Duration::from_secs(1_735_689_600);
        let world = executor::current();
        let ahead = world.with(|core| core.hosts.get(world.host()).clock_ahead);
        let time = SystemTime::UNIX_EPOCH + START + world.elapsed();
        let by = Duration::from_nanos(ahead.unsigned_abs());
        if ahead < 0 { time - by } else { time + by }
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static {
        Sleep::new(&executor::current(), duration)
    }
}

impl Random for Sim {
    fn fill_random(bytes: &mut [u8]) {
        executor::current().with(|core| core.rng.fill(bytes));
    }
}

impl Executor for Sim {
    const NAME: &'static str = "sim";
    type Config = Config;

    fn tuned() -> Config {
        Config::default()
    }

    fn block_on<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
        Ok(executor::run(&Shared::new(config), future).unwrap_or_else(|panicked| panicked.resume()))
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        executor::current().spawn(Box::pin(future));
    }

    /// Runs `f` at once, on the simulation's own thread. The result comes within a virtual millisecond. See the
    /// deviations in the documentation of the crate.
    fn spawn_blocking<T: Send + 'static>(
        f: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, Panicked>> + 'static {
        let micros = executor::current().with(|core| core.rng.below(1000));
        let output = catch_unwind(AssertUnwindSafe(f)).map_err(Panicked::new);
        async move {
            Self::sleep(Duration::from_micros(micros)).await;
            output
        }
    }

    /// Runs all workers as tasks of one simulation.
    fn run_workers<F, Fut>(config: WorkersConfig<Self>, service: F) -> io::Result<()>
    where
        F: Fn(Worker) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = io::Result<()>> + 'static,
    {
        Self::block_on(config.runtime, run_workers(config, service))?
    }
}

impl Tcp for Sim {
    type TcpStream = SimStream;
    type TcpListener = SimListener;

    fn bind(options: ListenOptions) -> io::Result<BoundAddr> {
        if !executor::is_running() {
            return host::bind_outside(options);
        }
        let world = executor::current();
        world.with(|core| core.hosts.bind(world.host(), options))
    }

    fn listen(bound: &BoundAddr) -> io::Result<SimListener> {
        listener::listen(bound)
    }

    async fn connect(options: ConnectOptions) -> io::Result<SimStream> {
        connect::connect(options).await
    }
}

impl HandOver for Sim {
    type Detached = SimDetached;

    async fn accept_detached(listener: &mut SimListener) -> io::Result<(SimDetached, SocketAddr)> {
        listener.accept_detached().await
    }

    fn adopt(detached: SimDetached) -> io::Result<SimStream> {
        Ok(detached.adopt())
    }
}

impl Files for Sim {
    type File = SimFile;

    async fn open(path: &Path, mode: OpenMode) -> io::Result<SimFile> {
        file::open(path, mode).await
    }

    async fn list_dir(path: &Path) -> io::Result<Vec<DirEntry>> {
        file::on_disk(|disk, _| disk.list(path)).await
    }

    async fn create_dir_all(path: &Path) -> io::Result<()> {
        file::on_disk(|disk, _| disk.create_dir_all(path)).await
    }

    async fn rename(from: &Path, to: &Path) -> io::Result<()> {
        file::on_disk(|disk, _| disk.rename(from, to)).await
    }

    async fn remove_file(path: &Path) -> io::Result<()> {
        file::on_disk(|disk, _| disk.remove_file(path)).await
    }

    async fn remove_dir(path: &Path) -> io::Result<()> {
        file::on_disk(|disk, _| disk.remove_dir(path)).await
    }

    async fn sync_dir(path: &Path) -> io::Result<()> {
        file::on_disk(|disk, now| disk.sync_dir(now, path)).await
    }
}

/// [`Executor::run_workers`] within a simulation: runs all workers on the current host.
///
/// # Errors
/// Those of [`Executor::run_workers`].
///
/// # Panics
/// Outside a simulation.
pub async fn run_workers<F, Fut>(config: WorkersConfig<Sim>, service: F) -> io::Result<()>
where
    F: Fn(Worker) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let mut running = Vec::with_capacity(config.count.get());
    let first_error = Rc::new(RefCell::new(None));
    for worker in config.workers() {
        let (stop, service) = (config.stop.clone(), service.clone());
        let first_error = Rc::clone(&first_error);
        running.push(Sim::spawn(async move {
            if let Err(error) = worker.run::<Sim, _, _>(service).await {
                first_error.borrow_mut().get_or_insert(error);
                stop.stop();
            }
        }));
    }
    for worker in running {
        if let Err(panicked) = worker.await {
            first_error.borrow_mut().get_or_insert_with(|| panicked.into());
        }
    }
    first_error.take().map_or(Ok(()), Err)
}

//! [`Sim`]: the runtime.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use owned_io::{
    AddrError, BoundAddr, Capabilities, ConnectOptions, DroppedRead, ListenOptions, Panicked,
    Runtime, Worker, WorkersConfig,
};

use crate::listener::{self, SimListener};
use crate::stream::SimStream;
use crate::world;

/// The simulated runtime.
#[derive(Clone, Copy, Debug)]
pub struct Sim;

/// How to set a simulation up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Decides every choice. Default 0.
    pub seed: u64,
}

impl Config {
    /// The defaults, and this seed.
    pub const fn with_seed(seed: u64) -> Self {
        Self { seed }
    }
}

impl Runtime for Sim {
    const NAME: &'static str = "sim";
    const CAPABILITIES: Capabilities = Capabilities::new(false, false, DroppedRead::LosesNothing);

    type Config = Config;
    type TcpStream = SimStream;
    type TcpListener = SimListener;

    fn tuned() -> Config {
        Config::default()
    }

    fn block_on<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
        Ok(world::run(config.seed, future))
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        world::current().spawn(Box::pin(future));
    }

    /// On the simulation's own thread, within a millisecond: see the crate's documentation.
    async fn spawn_blocking<T: Send + 'static>(
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let micros = world::current().dice.below(1000) as u64;
        Self::sleep(Duration::from_micros(micros)).await;
        catch_unwind(AssertUnwindSafe(f)).map_err(Panicked::new)
    }

    /// All workers in one simulation, as tasks.
    fn run_workers<F, Fut>(config: WorkersConfig<Self>, service: F) -> io::Result<()>
    where
        F: Fn(Worker) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = io::Result<()>> + 'static,
    {
        Self::block_on(config.runtime, async {
            let mut running = Vec::with_capacity(config.count.get());
            let first_error = Rc::new(RefCell::new(None));
            for worker in config.workers() {
                let (stop, service) = (config.stop.clone(), service.clone());
                let first_error = Rc::clone(&first_error);
                running.push(Self::spawn(async move {
                    if let Err(error) = worker.run::<Self, _, _>(service).await {
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
        })?
    }

    fn now() -> Instant {
        world::current().now()
    }

    fn wall_clock() -> SystemTime {
        // 2025-01-01T00:00:00Z, so that a run repeats, plus the virtual time that has passed.
        const START: Duration = Duration::from_secs(1_735_689_600);
        SystemTime::UNIX_EPOCH + START + world::current().elapsed()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static {
        world::current().sleep(duration)
    }

    fn fill_random(bytes: &mut [u8]) {
        let world = world::current();
        for byte in bytes {
            *byte = world.dice.roll() as u8;
        }
    }

    fn bind(mut options: ListenOptions) -> io::Result<BoundAddr> {
        BOUND.with_borrow_mut(|bound| {
            bound.retain(|_, hold| hold.strong_count() > 0);
            if options.addr.port() == 0 {
                let free = EPHEMERAL_PORTS.into_iter().find(|port| {
                    options.addr.set_port(*port);
                    !bound.contains_key(&options.addr)
                });
                if free.is_none() {
                    let cause = io::ErrorKind::AddrInUse.into();
                    return Err(AddrError::new("listen on", options.addr, cause).into());
                }
            } else if bound.contains_key(&options.addr) {
                let cause = io::ErrorKind::AddrInUse.into();
                return Err(AddrError::new("listen on", options.addr, cause).into());
            }
            let hold = Arc::new(());
            bound.insert(options.addr, Arc::downgrade(&hold));
            Ok(BoundAddr::new(options, hold))
        })
    }

    fn listen(bound: &BoundAddr) -> io::Result<SimListener> {
        Ok(listener::listen(bound))
    }

    async fn connect(options: ConnectOptions) -> io::Result<SimStream> {
        listener::connect(options).await
    }
}

/// The ports that port 0 stands for (RFC 6335 6).
const EPHEMERAL_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

thread_local! {
    /// The addresses in use on this thread. Not part of a world, because binding comes before
    /// running.
    static BOUND: RefCell<BTreeMap<SocketAddr, Weak<()>>> = const { RefCell::new(BTreeMap::new()) };
}

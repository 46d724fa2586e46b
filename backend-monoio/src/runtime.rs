//! [`Monoio`]: the runtime.

use std::future::Future;
use std::time::Duration;
use std::{io, mem};

use io_uring::IoUring;
use monoio::{IoUringDriver, RuntimeBuilder};
use owned_io::backend::run_main;
use owned_io::{BoundAddr, Clock, ConnectOptions, Executor, Files, HandOver, Random, Tcp};
use owned_io_os as os;
use owned_io_os::uring::RingConfig;

use crate::file::MonoioFile;
use crate::local::{self, Entered, Local};
use crate::op;
use crate::socket::{MonoioListener, MonoioStream};
use crate::timers::{self, Sleep};

/// monoio's runtime, on its io_uring driver.
#[derive(Clone, Copy, Debug)]
pub struct Monoio;

/// How to set the runtime up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The ring. Default: monoio's own, 1,024 entries and no flags. The [crate's table](crate#ring-settings) says
    /// which settings can be used.
    pub ring: RingConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self { ring: RingConfig::plain(1024) }
    }
}

/// The fewest entries of a ring of monoio. It raises lower numbers to this one.
const ENTRIES_MIN: u32 = 256;

impl Config {
    /// Refuses settings that no kernel takes, and those that monoio cannot use.
    fn check(&self) -> io::Result<()> {
        self.ring.check()?;
        if self.ring.entries < ENTRIES_MIN {
            return Err(os::uring::invalid("entries: monoio needs at least 256"));
        }
        if self.ring.sqpoll_idle.is_some() {
            return Err(os::uring::invalid(
                "sqpoll_idle: with a polling thread, monoio cannot empty a full submission queue, \
                 and panics",
            ));
        }
        Ok(())
    }
}

/// The longest sleep. monoio panics with longer ones, where it counts milliseconds.
const SLEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Clock for Monoio {
    os::runtime_functions!(Clock);

    async fn sleep(duration: Duration) {
        // monoio's sleep of zero takes a millisecond.
        if duration.is_zero() {
            local::yield_to_ring().await;
        } else {
            op::free_kept();
            Sleep::until(Self::now() + duration.min(SLEEP_MAX)).await;
        }
    }
}

impl Random for Monoio {
    os::runtime_functions!(Random);
}

impl Executor for Monoio {
    const NAME: &'static str = "monoio";
    type Config = Config;

    fn tuned() -> Config {
        let mut ring = RingConfig::plain(4096);
        ring.completion_entries = Some(os::uring::COMPLETION_ENTRIES_TUNED);
        ring.single_issuer = true;
        ring.coop_taskrun = true;
        Config { ring }
    }

    fn block_on<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
        config.check()?;
        let _entered = Entered::new();
        os::uring::probe()?;
        let builder = RuntimeBuilder::<IoUringDriver>::new()
            .uring_builder(ring_builder(config.ring))
            .with_entries(config.ring.entries)
            .enable_timer();
        let mut runtime = builder.build().map_err(os::uring::explain)?;
        let output = runtime.block_on(async {
            Local::start().map_err(os::uring::explain)?;
            timers::begin();
            drop(monoio::spawn(timers::drive()));
            let output = run_main::<Self, _>(future).await;
            timers::end();
            local::settle().await;
            io::Result::Ok(output)
        });
        if op::file::in_flight() > 0 {
            // The kernel still uses buffers that the runtime holds.
            mem::forget(runtime);
            op::file::forget_in_flight();
        } else {
            drop(runtime);
        }
        op::free_kept();
        Ok(output?.unwrap_or_else(|panicked| panicked.resume()))
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        drop(monoio::spawn(future));
    }

    os::runtime_functions!(Executor);
}

impl Tcp for Monoio {
    type TcpStream = MonoioStream;
    type TcpListener = MonoioListener;

    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener> {
        os::Listener::new(bound)
    }

    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream> {
        os::connect::connect(options).await
    }

    os::runtime_functions!(Tcp);
}

impl HandOver for Monoio {
    os::runtime_functions!(HandOver);
}

impl Files for Monoio {
    type File = MonoioFile;

    os::runtime_functions!(Files);
}

fn ring_builder(ring: RingConfig) -> io_uring::Builder {
    let mut builder = IoUring::builder();
    if let Some(entries) = ring.completion_entries {
        builder.setup_cqsize(entries);
    }
    if ring.coop_taskrun {
        builder.setup_coop_taskrun();
    }
    if ring.single_issuer {
        builder.setup_single_issuer();
    }
    if ring.defer_taskrun {
        builder.setup_defer_taskrun();
    }
    builder
}

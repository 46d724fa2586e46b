//! [`TokioUring`]: the runtime.

use std::future::Future;
use std::io;
use std::time::Duration;

use owned_io::backend::run_main;
use owned_io::{BoundAddr, Clock, ConnectOptions, Executor, Files, HandOver, Random, Tcp};
use owned_io_os as os;
use owned_io_os::uring::RingConfig;

use crate::file::TokioUringFile;
use crate::listener::TokioUringListener;
use crate::op;
use crate::socket::TokioUringStream;

/// tokio-uring's runtime.
#[derive(Clone, Copy, Debug)]
pub struct TokioUring;

/// How to set the runtime up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The ring. Default: tokio-uring's own, 256 entries and no flags. The [crate's table](crate#ring-settings) says
    /// which settings can be used.
    pub ring: RingConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self { ring: RingConfig::plain(256) }
    }
}

impl Clock for TokioUring {
    os::runtime_functions!(Clock);

    async fn sleep(duration: Duration) {
        // tokio's sleep of zero is ready at once.
        if duration.is_zero() {
            op::yield_to_ring().await;
        } else {
            tokio::time::sleep(duration).await;
        }
    }
}

impl Random for TokioUring {
    os::runtime_functions!(Random);
}

impl Executor for TokioUring {
    const NAME: &'static str = "tokio-uring";
    type Config = Config;

    fn tuned() -> Config {
        let mut ring = RingConfig::plain(4096);
        ring.completion_entries = Some(os::uring::COMPLETION_ENTRIES_TUNED);
        ring.coop_taskrun = true;
        ring.single_issuer = true;
        Config { ring }
    }

    fn block_on<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
        let builder = builder(&config.ring)?;
        os::uring::probe()?;
        let runtime = tokio_uring::Runtime::new(&builder).map_err(os::uring::explain)?;
        let output = runtime.block_on(async {
            let output = run_main::<Self, _>(future).await;
            op::settle().await;
            output
        });
        op::end(runtime);
        Ok(output.unwrap_or_else(|panicked| panicked.resume()))
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        drop(tokio_uring::spawn(future));
    }

    os::runtime_functions!(Executor);
}

impl Tcp for TokioUring {
    type TcpStream = TokioUringStream;
    type TcpListener = TokioUringListener;

    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener> {
        os::Listener::new(bound)
    }

    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream> {
        os::connect::connect(options).await
    }

    os::runtime_functions!(Tcp);
}

impl HandOver for TokioUring {
    os::runtime_functions!(HandOver);
}

impl Files for TokioUring {
    type File = TokioUringFile;

    os::runtime_functions!(Files);
}

/// Refuses settings that tokio-uring cannot use.
fn builder(ring: &RingConfig) -> io::Result<tokio_uring::Builder> {
    ring.check()?;
    if ring.defer_taskrun {
        return Err(os::uring::invalid(
            "defer_taskrun hangs on tokio-uring: it waits in epoll, and nothing asks the ring for \
             its completions",
        ));
    }
    let mut uring = tokio_uring::uring_builder();
    if ring.coop_taskrun {
        uring.setup_coop_taskrun();
    }
    if ring.single_issuer {
        uring.setup_single_issuer();
    }
    if let Some(entries) = ring.completion_entries {
        uring.setup_cqsize(entries);
    }
    if let Some(idle) = ring.sqpoll_idle {
        // In milliseconds, rounded up; zero would mean the kernel's default of a second.
        let idle_ms = idle.as_nanos().div_ceil(1_000_000).max(1);
        uring.setup_sqpoll(u32::try_from(idle_ms).unwrap_or(u32::MAX));
    }
    let mut builder = tokio_uring::builder();
    builder.entries(ring.entries).uring_builder(&uring);
    Ok(builder)
}

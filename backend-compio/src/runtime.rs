//! [`Compio`]: the runtime.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use compio_driver::ProactorBuilder;
use compio_driver::op::OpCodeFlag;
use compio_runtime::RuntimeBuilder;
use owned_io::backend::run_main;
use owned_io::{BoundAddr, Clock, ConnectOptions, Executor, Files, HandOver, Random, Tcp};
use owned_io_os as os;
use owned_io_os::uring::RingConfig;

use crate::file::CompioFile;
use crate::op;
use crate::socket::{CompioListener, CompioStream};

/// compio's runtime.
#[derive(Clone, Copy, Debug)]
pub struct Compio;

/// How to set the runtime up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The ring. Default: compio's own, 1,024 entries and no flags. The [crate's table](crate#ring-settings) says
    /// which settings can be used.
    pub ring: RingConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self { ring: RingConfig::plain(1024) }
    }
}

/// How many tasks other threads may wake before the worker empties the queue: one for each of 10,000 connections, at
/// 16 bytes each. With compio's own limit of 64, a worker deadlocks when it waits for a thread that wakes more.
const REMOTE_WAKES_MAX: usize = 16_384;

/// The longest sleep: deadlines have to fit an `Instant`.
const SLEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Clock for Compio {
    os::runtime_functions!(Clock);

    async fn sleep(duration: Duration) {
        let deadline = Instant::now() + duration.min(SLEEP_MAX);
        // compio's sleep is ready at once when its time has come.
        if deadline <= Instant::now() {
            op::yield_to_ring().await;
        } else {
            compio_runtime::time::sleep_until(deadline).await;
        }
    }
}

impl Random for Compio {
    os::runtime_functions!(Random);
}

impl Executor for Compio {
    const NAME: &'static str = "compio";
    type Config = Config;

    fn tuned() -> Config {
        let mut ring = RingConfig::plain(4096);
        ring.completion_entries = Some(os::uring::COMPLETION_ENTRIES_TUNED);
        ring.single_issuer = true;
        ring.defer_taskrun = true;
        Config { ring }
    }

    fn block_on<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
        let within = compio_runtime::Runtime::try_with_current(|_| ()).is_ok();
        assert!(!within, "`Compio::block_on` called within itself");
        config.ring.check()?;
        os::uring::probe()?;
        let runtime = builder(&config.ring).build().map_err(os::uring::explain)?;
        // The runtime panics only if the driver drops a buffer whose `Drop` panics.
        let output =
            catch_unwind(AssertUnwindSafe(|| runtime.block_on(run_main::<Self, _>(future))));
        op::end(runtime);
        let output = output.unwrap_or_else(|payload| resume_unwind(payload));
        Ok(output.unwrap_or_else(|panicked| panicked.resume()))
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        compio_runtime::spawn(future).detach();
    }

    os::runtime_functions!(Executor);
}

impl Tcp for Compio {
    type TcpStream = CompioStream;
    type TcpListener = CompioListener;

    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener> {
        os::Listener::new(bound)
    }

    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream> {
        os::connect::connect(options).await
    }

    os::runtime_functions!(Tcp);
}

impl HandOver for Compio {
    os::runtime_functions!(HandOver);
}

impl Files for Compio {
    type File = CompioFile;

    os::runtime_functions!(Files);
}

fn builder(ring: &RingConfig) -> RuntimeBuilder {
    let mut proactor = ProactorBuilder::new();
    proactor
        .capacity(ring.entries)
        .coop_taskrun(ring.coop_taskrun)
        .single_issuer(ring.single_issuer)
        .defer_taskrun(ring.defer_taskrun)
        // Without the flag compio does not notice deferred completions: see the crate's docs.
        .taskrun_flag(ring.coop_taskrun || ring.defer_taskrun)
        // compio otherwise asks for the kernel's operations later, with a ring of its own. Where that fails for lack
        // of a descriptor, it uses blocking threads instead.
        .detect_opcode_support(
            OpCodeFlag::Recv
                | OpCodeFlag::Send
                | OpCodeFlag::SendMsg
                | OpCodeFlag::PollAdd
                | OpCodeFlag::AsyncCancel,
        );
    if let Some(entries) = ring.completion_entries {
        proactor.cqsize(entries);
    }
    if let Some(idle) = ring.sqpoll_idle {
        // In milliseconds, rounded up; zero would mean the kernel's default of a second.
        let idle_ms = idle.as_nanos().div_ceil(1_000_000).max(1);
        let idle_ms = u32::try_from(idle_ms).unwrap_or(u32::MAX);
        proactor.sqpoll_idle(Duration::from_millis(idle_ms.into()));
    }
    let mut builder = RuntimeBuilder::new();
    builder.with_proactor(proactor).sync_queue_size(REMOTE_WAKES_MAX);
    builder
}

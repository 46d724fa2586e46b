//! [`Glommio`]: the runtime.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::time::Duration;

use glommio::timer::Timer;
use glommio::{
    GlommioError, LocalExecutor, LocalExecutorBuilder, Placement, ReactorErrorKind, TaskQueueHandle,
};
use owned_io::backend::run_main;
use owned_io::{BoundAddr, Clock, ConnectOptions, Executor, Files, HandOver, Random, Tcp};
use owned_io_os as os;

use crate::file::GlommioFile;
use crate::listener::GlommioListener;
use crate::op::PolledFd;
use crate::socket::GlommioStream;

/// glommio's executor.
#[derive(Clone, Copy, Debug)]
pub struct Glommio;

/// How to set the executor up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Entries of each of glommio's three rings, a power of two from 2 to 32,768. Default 128, glommio's
    /// own.
    pub ring_entries: u32,
    /// Memory that glommio registers with the rings for direct I/O on files, in bytes. TCP uses none of it. glommio
    /// takes at least 64 KiB. Default 10 MiB, glommio's own.
    pub io_memory_bytes: usize,
    /// How long ready tasks may keep I/O and timers waiting. Default 100 ms, glommio's own. See the crate's
    /// [known limits](crate#known-limits) before you choose less.
    pub preempt_timer: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ring_entries: 128,
            io_memory_bytes: 10 << 20,
            preempt_timer: Duration::from_millis(100),
        }
    }
}

impl Config {
    /// Refuses settings that no kernel takes, and fewer than two entries: glommio's timer needs two, and glommio would
    /// panic.
    fn check(&self) -> io::Result<()> {
        os::uring::RingConfig::plain(self.ring_entries).check()?;
        if self.ring_entries < 2 {
            return Err(os::uring::invalid("ring_entries: glommio needs at least 2"));
        }
        Ok(())
    }
}

/// The longest sleep: deadlines have to fit an `Instant`.
const SLEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Clock for Glommio {
    os::runtime_functions!(Clock);

    async fn sleep(duration: Duration) {
        // glommio's sleep of zero is ready at once.
        if duration.is_zero() {
            yield_to_ring().await;
        } else {
            Timer::new(duration.min(SLEEP_MAX)).await;
        }
    }
}

impl Random for Glommio {
    os::runtime_functions!(Random);
}

impl Executor for Glommio {
    const NAME: &'static str = "glommio";
    type Config = Config;

    fn tuned() -> Config {
        Config { io_memory_bytes: 0, ..Config::default() }
    }

    fn block_on<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
        config.check()?;
        os::uring::probe()?;
        let executor = executor(config)?;
        let output = executor.run(async {
            READY.set(Some(ready_fd()?));
            let output = run_main::<Self, _>(future).await;
            yield_to_ring().await; // the tasks end
            yield_to_ring().await; // the kernel releases the descriptors that they polled
            READY.set(None);
            io::Result::Ok(output)
        });
        drop(executor);
        Ok(output?.unwrap_or_else(|panicked| panicked.resume()))
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        // It goes into a queue. glommio's `spawn_local` would poll it within this call.
        let task = glommio::spawn_local_into(future, TaskQueueHandle::default());
        drop(task.expect("the default queue").detach());
    }

    os::runtime_functions!(Executor);
}

impl Tcp for Glommio {
    type TcpStream = GlommioStream;
    type TcpListener = GlommioListener;

    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener> {
        os::Listener::new(bound)
    }

    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream> {
        os::connect::connect(options).await
    }

    os::runtime_functions!(Tcp);
}

impl HandOver for Glommio {
    os::runtime_functions!(HandOver);
}

impl Files for Glommio {
    type File = GlommioFile;

    os::runtime_functions!(Files);
}

fn executor(config: Config) -> io::Result<LocalExecutor> {
    let builder = LocalExecutorBuilder::new(Placement::Unbound)
        .ring_depth(config.ring_entries as usize)
        .io_memory(config.io_memory_bytes)
        .preempt_timer(config.preempt_timer);
    builder.make().map_err(|error| match error {
        GlommioError::ReactorError(ReactorErrorKind::MemLockLimit(..)) => {
            os::uring::explain(io::Error::from_raw_os_error(libc::ENOMEM))
        }
        error => os::uring::explain(error.into()),
    })
}

thread_local! {
    /// The descriptor of [`ready_fd`], while an executor runs.
    static READY: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// A socket whose peer is closed, so that it is always readable.
fn ready_fd() -> io::Result<OwnedFd> {
    let (ready, closed) = UnixStream::pair()?;
    drop(closed);
    Ok(ready.into())
}

/// Yields until glommio has polled the ring. Other tasks run meanwhile.
///
/// It is not enough that the task wakes itself: glommio polls the ring only when no task is ready, or when the
/// preemption timer has expired.
pub(crate) async fn yield_to_ring() {
    let ready = READY.with_borrow(|ready| ready.as_ref().map(OwnedFd::try_clone));
    match ready.expect("called outside of `Glommio::block_on`") {
        Ok(ready) => {
            let mut ready = PolledFd::new(ready);
            poll_fn(|cx| ready.poll_readable(cx)).await;
        }
        // No descriptor is free. The ready tasks run then, and glommio polls the ring when the timer has expired.
        Err(_) => {
            let mut is_first = true;
            poll_fn(|cx| {
                if std::mem::take(&mut is_first) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
        }
    }
}

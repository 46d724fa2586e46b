//! [`Pool`]: a runtime whose tasks move between threads.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Instant;

use crate::detector::Shared;
use crate::heart::Heart;
use crate::registry::{Registry, next_id};
use crate::stack::ThreadRef;

/// More threads are not watched: a stall would be reported late.
const THREADS_MAX: usize = 1_024;

/// A runtime of several threads, for example tokio's. Its [`heart`](Self::heart) beats in any of them.
///
/// The heart alone sees that the whole runtime stalls, or the thread that drives I/O and timers. It does not see one
/// blocked thread among others that work. For that the runtime tells when a thread starts, parks and unparks:
///
/// ```no_run
/// # fn of(pool: owned_io_stalls::Pool) -> std::io::Result<()> {
/// let [start, stop, park, unpark] = [(); 4].map(|()| pool.clone());
/// let runtime = tokio::runtime::Builder::new_multi_thread()
///     .enable_all()
///     .on_thread_start(move || start.thread_started())
///     .on_thread_stop(move || stop.thread_stopped())
///     .on_thread_park(move || park.thread_parked())
///     .on_thread_unpark(move || unpark.thread_unparked())
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// Then a thread that is not parked and sleeps in one system call for the threshold is a stall of its own. What stays
/// unseen: one thread that computes for long while others take its tasks, which delays what is in its LIFO slot alone.
/// A thread in `block_in_place` is no stall.
#[derive(Debug, Clone)]
pub struct Pool {
    name: Arc<str>,
    shared: Arc<Shared>,
}

/// A thread of a pool.
#[derive(Debug)]
pub(crate) struct PoolThread {
    /// Unique in the process, and never used again.
    pub(crate) id: u64,
    pub(crate) pool: Arc<str>,
    pub(crate) thread: ThreadRef,
    /// Nanoseconds since the detector started at which the thread last unparked.
    active_since: AtomicU64,
    is_parked: AtomicBool,
    /// A thread for blocking work never parks.
    is_worker: AtomicBool,
    pub(crate) is_gone: AtomicBool,
}

impl PoolThread {
    pub(crate) fn is_parked(&self) -> bool {
        self.is_parked.load(Acquire)
    }

    /// Since when a worker has been active: it identifies the period.
    pub(crate) fn active_since(&self) -> Option<u64> {
        (self.is_worker.load(Acquire) && !self.is_parked()).then(|| self.active_since.load(Acquire))
    }
}

thread_local! {
    static THIS: RefCell<Option<Arc<PoolThread>>> = const { RefCell::new(None) };
}

impl Pool {
    pub(crate) fn new(name: &str, shared: Arc<Shared>) -> Self {
        Self { name: name.into(), shared }
    }

    /// A heart for the runtime. A task beats it, as for one thread.
    pub fn heart(&self) -> Heart {
        self.shared.add_heart(&self.name, None)
    }

    /// Watches the calling thread, at most 1,024 in all.
    pub fn thread_started(&self) {
        let thread = Arc::new(PoolThread {
            id: next_id(),
            pool: Arc::clone(&self.name),
            thread: ThreadRef::current(),
            active_since: AtomicU64::new(self.now()),
            is_parked: AtomicBool::new(false),
            is_worker: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        });
        if !self.shared.process.is_current() {
            return;
        }
        if self.threads().add(Arc::clone(&thread), THREADS_MAX) {
            THIS.set(Some(thread));
        } else {
            self.shared.note(format!("threads: more than {THREADS_MAX}"));
        }
    }

    /// The calling thread ends.
    pub fn thread_stopped(&self) {
        if let Some(thread) = THIS.take() {
            thread.is_gone.store(true, Release);
        }
    }

    /// The calling thread waits for work from now on.
    pub fn thread_parked(&self) {
        with_this(|thread| {
            thread.is_worker.store(true, Release);
            thread.is_parked.store(true, Release);
        });
    }

    /// The calling thread has work again.
    pub fn thread_unparked(&self) {
        with_this(|thread| {
            thread.active_since.store(self.now(), Release);
            thread.is_parked.store(false, Release);
        });
    }

    fn threads(&self) -> &Registry<Arc<PoolThread>> {
        &self.shared.pool_threads
    }

    fn now(&self) -> u64 {
        Instant::now().duration_since(self.shared.epoch).as_nanos() as u64
    }
}

fn with_this(f: impl FnOnce(&PoolThread)) {
    THIS.with_borrow(|thread| thread.as_deref().map(f));
}

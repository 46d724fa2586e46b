//! [`Ticker`]: wakes the workers periodically, at no cost in between.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, mem, thread};

use owned_io::{Runtime, StopSignal};

/// Wakes all workers once in a period.
///
/// A runtime with an armed timer reads the clock around each wait for I/O. On a worker with one busy connection that
/// is up to a quarter of the instructions of an echo (2026-11-22). So the program starts a thread that ticks. The
/// default sleeps by the runtime's own clock: it needs no thread, and a simulation repeats.
#[derive(Clone, Debug, Default)]
pub struct Ticker {
    /// The next tick of the thread.
    next: Option<Arc<Mutex<StopSignal>>>,
}

impl Ticker {
    /// Ticks are further apart than a period, by this fraction of it. So a worker that notices a tick late, by up to
    /// as much, still has a whole period until the next one.
    pub(crate) const SLACK: u32 = 16;

    /// Starts a thread that ticks about once in a `period`, until all clones of the ticker are dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(period: Duration) -> io::Result<Self> {
        let next = Arc::new(Mutex::new(StopSignal::new()));
        let ticking = Arc::downgrade(&next);
        thread::Builder::new().name("ticker".to_owned()).spawn(move || {
            loop {
                thread::sleep(period + period / Self::SLACK);
                let Some(next) = ticking.upgrade() else { return };
                let tick = mem::take(&mut *lock(&next));
                tick.stop();
            }
        })?;
        Ok(Self { next: Some(next) })
    }

    /// Waits for the next tick of the thread; without a thread, for `period`.
    pub(crate) async fn tick<R: Runtime>(&self, period: Duration) {
        let Some(next) = &self.next else { return R::sleep(period).await };
        let tick = lock(next).clone();
        tick.stopped().await;
    }
}

fn lock(next: &Mutex<StopSignal>) -> MutexGuard<'_, StopSignal> {
    // No code that can panic runs under the lock.
    next.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The task that fetches an object.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuardArc};
use owned_io::{Clock, Files, Pool, PoolConfig, Runtime, coop, select};
use tracing::warn;

use super::{directory, http};
use crate::log_limit::LogLimit;
use crate::metrics::WorkerMetrics;
use crate::object::{Failure, Fetch, Origin, Transfer};

/// How long an object may wait for a connection to the origin, of which there are 256. Clients that wait
/// longer leave.
pub const WAIT_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the origin may take to answer once it has the request, up to the end of the head: as long as we give clients
/// for theirs. A directory has as long to open a file.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the origin may send nothing of a body: several retransmissions. A read of a file may take as long.
pub const PIECE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long an object may take as a whole: 16 MiB at half a Mbit/s. An origin that sends a byte now and then would
/// otherwise hold a connection for ever.
pub const FETCH_TIME_MAX: Duration = Duration::from_secs(300);

/// What one read of an origin's body brings at most, in bytes.
pub(super) const READ_BYTES_MAX: usize = 64 * 1024 - PoolConfig::SHORT_OF_PAGE_BYTES;

/// How many buffers for reads are kept: 1 MiB.
pub(super) const READS_IDLE_MAX: usize = 16;

/// How many readers are woken before other tasks have their turn.
const WOKEN_MAX: usize = 64;

/// The work of waking a reader, in nanoseconds.
const WAKE_NANOS: u64 = 100;

/// Fetches an object, and wakes its readers.
pub(super) async fn run<R: Runtime + Files>(
    mut fetch: Fetch,
    pool: Pool,
    log: Rc<RefCell<LogLimit>>,
    metrics: Arc<WorkerMetrics>,
) {
    let outcome = ask::<R>(&mut fetch, &pool).await;
    let fetches = &metrics.objects.fetches;
    match outcome {
        Ok(Outcome::Complete) => fetches.complete.add(1),
        Ok(Outcome::Missing) => fetches.missing.add(1),
        Err(failure) => {
            fetches.failed.add(1);
            if let Some(suppressed) = log.borrow_mut().admit(R::now()) {
                warn!(name = fetch.name(), %failure, suppressed, "an object cannot be fetched");
            }
            fetch.fail(failure, R::now());
        }
    }
    wake::<R>(fetch.transfer()).await;
}

/// What the origin has.
pub(super) enum Outcome {
    /// The object.
    Complete,
    /// No such object.
    Missing,
}

async fn ask<R: Runtime + Files>(fetch: &mut Fetch, pool: &Pool) -> Result<Outcome, Failure> {
    let objects = Arc::clone(fetch.objects());
    let permits = objects.connections();
    let permit = match permits.try_acquire_arc() {
        Some(permit) => permit,
        None => {
            let permit = wait::<R>(permits).await?;
            // The cache and this fetch have a handle each. Nobody waits for the object any more, and others may.
            if Arc::strong_count(fetch.transfer()) <= 2 {
                return Err(Failure::Busy);
            }
            permit
        }
    };
    match &objects.config().origin {
        Origin::Http(origin) => http::fetch::<R>(origin, fetch, pool).await,
        Origin::Directory(directory) => {
            directory::fetch::<R>(directory, fetch, &Rc::new(permit)).await
        }
    }
}

/// Waits for a connection to the origin.
async fn wait<R: Clock>(permits: &Arc<Semaphore>) -> Result<SemaphoreGuardArc, Failure> {
    let waiting = pin!(permits.acquire_arc());
    let waited = select(waiting, R::sleep(WAIT_TIME_MAX)).await.first;
    // Permits that are released together wake one waiter (async-lock 3.5). It wakes the next one by releasing another.
    drop(permits.try_acquire());
    waited.ok_or(Failure::Busy)
}

/// Wakes the readers that wait, and lets other tasks run in between.
pub(super) async fn wake<C: Clock>(transfer: &Transfer) {
    // Who begins to wait later has seen the change.
    let mut left = transfer.waiting();
    while left > 0 {
        transfer.wake(WOKEN_MAX);
        coop::consume(left.min(WOKEN_MAX) as u64 * WAKE_NANOS);
        left = left.saturating_sub(WOKEN_MAX);
        coop::yield_if_exhausted::<C>().await;
    }
}

#[cfg(test)]
mod tests {
    use owned_io::Executor;
    use owned_io_sim::Sim;

    use super::*;

    #[test]
    fn connections_that_are_released_together_go_to_as_many_who_wait() {
        owned_io_sim::block_on(async {
            let permits = Arc::new(Semaphore::new(3));
            let held: Vec<_> = (0..3).map(|_| permits.try_acquire_arc().unwrap()).collect();
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let permits = Arc::clone(&permits);
                    Sim::spawn(async move { wait::<Sim>(&permits).await })
                })
                .collect();
            Sim::sleep(WAIT_TIME_MAX / 2).await;
            drop(held);
            let mut granted = Vec::new();
            for waited in waiting {
                granted.push(waited.await.unwrap().expect("nobody else takes one"));
            }
            assert!(permits.try_acquire().is_none());
        });
    }
}

//! Which worker serves an accepted connection, with `--balance least-connections`.
//!
//! The kernel distributes clients over the listeners of the workers by a hash (`SO_REUSEPORT`). With 1,000 connections
//! the fullest of 16 workers has 23 % more than the mean. Here the worker that accepts a connection hands it over to the
//! worker that has the fewest ([`ConnectionCounts`]), through a bounded queue. `cargo run --release -p owned-io-server
//! --example balance` compares the rules.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use owned_io::{HandOver, Receiver, Sender, channel};

use crate::connection_limit::{DetachedPermit, Permit};

/// How many handed-over connections may wait for a worker, for each listener. If the queue is full, the worker that
/// accepted serves the connection itself. Four batches of an accept loop
/// ([`ACCEPT_BATCH_MAX`](owned_io::ACCEPT_BATCH_MAX)) fit, in case a worker has no time slice meanwhile. A queue takes
/// some 30 KB.
const QUEUE_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// The open connections of each worker, and those on their way to it. Clones are the same counters.
#[derive(Clone, Debug)]
pub struct ConnectionCounts {
    workers: Arc<[Count]>,
}

/// Aligned so that it shares no cache line with another count: x86 fetches two lines of 64 bytes together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

/// Added to the count of a worker that has not started: no worker comes to have as many connections.
const WITHHELD: usize = usize::MAX / 2;

/// A connection that is counted at a worker. Dropping it ends that.
#[derive(Debug)]
pub struct Assignment {
    counts: ConnectionCounts,
    worker: usize,
}

impl ConnectionCounts {
    /// No connections.
    pub fn new(workers: NonZeroUsize) -> Self {
        Self { workers: (0..workers.get()).map(|_| Count::default()).collect() }
    }

    /// Counts a connection at the worker that has the fewest. Of several with equally few: at `here`, or else at the
    /// next one after it.
    ///
    /// While no connection ends, no count ever exceeds another by more than 1, however many threads call this.
    pub fn assign(&self, here: usize) -> Assignment {
        let workers = &*self.workers;
        // Another round only if another thread has changed the lowest count meanwhile. If that was an assignment, it
        // has succeeded, so some thread always makes progress.
        loop {
            let from_here = (here..workers.len()).chain(0..here);
            let counted = from_here.map(|worker| (workers[worker].0.load(Relaxed), worker));
            let (count, worker) = counted.min_by_key(|(count, _)| *count).expect("a worker calls");
            let counter = &workers[worker].0;
            if counter.compare_exchange(count, count + 1, Relaxed, Relaxed).is_ok() {
                return Assignment { counts: self.clone(), worker };
            }
        }
    }

    /// Counts a connection at `worker`.
    pub fn assign_to(&self, worker: usize) -> Assignment {
        self.workers[worker].0.fetch_add(1, Relaxed);
        Assignment { counts: self.clone(), worker }
    }

    /// Assigns nothing to `worker` until it is [admitted](Self::admit). A worker that opens a large log starts seconds
    /// after the others.
    fn withhold(&self, worker: usize) {
        self.workers[worker].0.fetch_add(WITHHELD, Relaxed);
    }

    fn admit(&self, worker: usize) {
        self.workers[worker].0.fetch_sub(WITHHELD, Relaxed);
    }

    /// The connections that are counted at each worker.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        self.workers.iter().map(|count| count.0.load(Relaxed))
    }
}

impl Assignment {
    /// The worker.
    pub const fn worker(&self) -> usize {
        self.worker
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.counts.workers[self.worker].0.fetch_sub(1, Relaxed);
    }
}

/// A connection that a worker has accepted, on its way to the worker that serves it. Dropping it closes the connection.
pub(crate) struct HandedOver<R: HandOver> {
    pub(crate) connection: R::Detached,
    pub(crate) peer: SocketAddr,
    pub(crate) permit: DetachedPermit,
    pub(crate) assignment: Assignment,
}

/// The queues between all workers, for each listener.
pub(crate) struct Exchange<R: HandOver> {
    counts: ConnectionCounts,
    /// Of each worker, until it joins: the ends of each listener.
    ends: Vec<Mutex<Option<Vec<Ends<R>>>>>,
}

/// What a worker has of the queues of a listener.
pub(crate) struct Ends<R: HandOver> {
    pub(crate) outgoing: Outgoing<R>,
    pub(crate) incoming: Receiver<HandedOver<R>>,
}

/// Hands connections over to the worker that has the fewest.
pub(crate) struct Outgoing<R: HandOver> {
    worker: usize,
    counts: ConnectionCounts,
    /// One for each worker. All workers share them, so a queue ends when the last worker has dropped this.
    queues: Arc<[Sender<HandedOver<R>>]>,
}

impl<R: HandOver> Exchange<R> {
    pub(crate) fn new(workers: NonZeroUsize, listeners: usize) -> Self {
        let counts = ConnectionCounts::new(workers);
        (0..workers.get()).for_each(|worker| counts.withhold(worker));
        let mut ends: Vec<Vec<Ends<R>>> = (0..workers.get()).map(|_| Vec::new()).collect();
        for _ in 0..listeners {
            let (queues, incoming): (Vec<_>, Vec<_>) =
                (0..workers.get()).map(|_| channel(QUEUE_MAX)).unzip();
            let queues: Arc<[Sender<HandedOver<R>>]> = queues.into();
            for (worker, incoming) in incoming.into_iter().enumerate() {
                let (counts, queues) = (counts.clone(), Arc::clone(&queues));
                let outgoing = Outgoing { worker, counts, queues };
                ends[worker].push(Ends { outgoing, incoming });
            }
        }
        Self { counts, ends: ends.into_iter().map(|ends| Mutex::new(Some(ends))).collect() }
    }

    /// From now on `worker` serves connections of the others. Returns its ends, those of each listener. `None`: the
    /// exchange is closed.
    pub(crate) fn join(&self, worker: usize) -> Option<Vec<Ends<R>>> {
        let ends = self.take(worker)?;
        self.counts.admit(worker);
        Some(ends)
    }

    /// For a worker that drains: workers that have not joined never will. Otherwise the queues would stay open if one of
    /// them has failed.
    pub(crate) fn close(&self) {
        (0..self.ends.len()).for_each(|worker| drop(self.take(worker)));
    }

    fn take(&self, worker: usize) -> Option<Vec<Ends<R>>> {
        self.ends[worker].lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<R: HandOver> Outgoing<R> {
    /// Sends a connection to the worker that has the fewest. The connection comes back if that is this worker, or if the
    /// other one's queue is full or has ended.
    pub(crate) fn hand_over(
        &self,
        connection: R::Detached,
        peer: SocketAddr,
        permit: Permit,
    ) -> Option<HandedOver<R>> {
        let (permit, assignment) = (permit.detach(), self.counts.assign(self.worker));
        let worker = assignment.worker();
        let handed = HandedOver { connection, peer, permit, assignment };
        if worker == self.worker {
            return Some(handed);
        }
        let refused = self.queues[worker].try_send(handed).err()?;
        Some(HandedOver { assignment: self.counts.assign_to(self.worker), ..refused.into_value() })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn counts(workers: usize) -> ConnectionCounts {
        ConnectionCounts::new(NonZeroUsize::new(workers).unwrap())
    }

    fn spread(counts: &ConnectionCounts) -> usize {
        counts.counts().max().unwrap() - counts.counts().min().unwrap()
    }

    /// A hash may bring all of them to one worker.
    #[test]
    fn connections_are_even_whoever_accepts_them() {
        for workers in [1, 2, 3, 16, 64] {
            let counts = counts(workers);
            let assigned: Vec<_> = (0..1_000).map(|_| counts.assign(workers - 1)).collect();
            assert!(spread(&counts) <= 1, "{counts:?}");
            drop(assigned);
            assert_eq!(counts.counts().sum::<usize>(), 0);
        }
    }

    #[test]
    fn a_worker_keeps_what_it_accepts_if_none_has_fewer() {
        let counts = counts(4);
        let here: Vec<_> = (0..4).map(|worker| counts.assign(worker)).collect();
        assert_eq!(here.iter().map(Assignment::worker).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let moved = [counts.assign_to(2), counts.assign_to(3)];
        let next: Vec<_> = (0..2).map(|_| counts.assign(3)).collect();
        assert_eq!(next.iter().map(Assignment::worker).collect::<Vec<_>>(), [0, 1]);
        drop((here, moved, next));
    }

    #[test]
    fn a_worker_that_has_not_started_gets_none() {
        let counts = counts(2);
        counts.withhold(1);
        let early: Vec<_> = (0..3).map(|_| counts.assign(0)).collect();
        assert!(early.iter().all(|assigned| assigned.worker() == 0));
        counts.admit(1);
        let later: Vec<_> = (0..3).map(|_| counts.assign(0)).collect();
        assert!(later.iter().all(|assigned| assigned.worker() == 1));
    }

    #[test]
    fn connections_are_even_while_all_workers_accept_at_once() {
        const EACH: usize = 2_000;
        let counts = counts(4);
        thread::scope(|scope| {
            let assign = |here| {
                let counts = &counts;
                scope.spawn(move || (0..EACH).map(|_| counts.assign(here)).collect::<Vec<_>>())
            };
            // Half of the workers accept everything.
            let assigning = [assign(0), assign(1)];
            let assigned = assigning.map(|thread| thread.join().unwrap());
            assert!(counts.counts().all(|count| count == 2 * EACH / 4), "{counts:?}");
            drop(assigned);
        });
    }
}

//! [`JobLoop`]: a future that executes the jobs of a [`WriteDriver`](super::WriteDriver).

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::JobSlot;

/// Executes one job at a time.
pub(super) trait JobRunner<J, D> {
    /// Starts a job. The last one is done.
    fn start(&mut self, job: J);

    /// Waits for the job.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<D>;

    /// Whether a job has started or progressed since the last call.
    fn take_progress(&self) -> bool;
}

/// A future that executes jobs, and the slot that passes them.
pub(super) struct JobLoop<F, J, D> {
    future: Pin<Box<F>>,
    slot: JobSlot<J, D>,
}

impl<F, J, D> JobLoop<F, J, D> {
    pub(super) fn new(work: impl FnOnce(JobSlot<J, D>) -> F) -> Self {
        let slot = JobSlot::new();
        Self { future: Box::pin(work(slot.handle())), slot }
    }
}

impl<F: Future<Output = Infallible>, J, D> JobRunner<J, D> for JobLoop<F, J, D> {
    #[inline]
    fn start(&mut self, job: J) {
        self.slot.start(job);
    }

    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<D> {
        let Poll::Pending = self.future.as_mut().poll(cx);
        self.slot.take_done().map_or(Poll::Pending, Poll::Ready)
    }

    #[inline]
    fn take_progress(&self) -> bool {
        self.slot.take_progress()
    }
}

/// A loop that gets the half with each job, and returns it with the result.
type HalfLoop<F, H, J, D> = JobLoop<F, (H, J), (H, D)>;

/// Takes a [`JobLoop`] from a pool for each job.
pub(super) struct PooledRunner<H, W, F, J, D> {
    /// `None` during a job.
    half: Option<H>,
    /// `None` between two jobs.
    job_loop: Option<HalfLoop<F, H, J, D>>,
    pool: Rc<LoopPool<W, F, H, J, D>>,
    work: W,
}

impl<H, W, F, J, D> PooledRunner<H, W, F, J, D> {
    pub(super) const fn new(half: H, pool: Rc<LoopPool<W, F, H, J, D>>, work: W) -> Self {
        // A loop that captured something would take it along to the next connection.
        const { assert!(size_of::<W>() == 0, "`work` captures something") };
        Self { half: Some(half), job_loop: None, pool, work }
    }
}

impl<H, W, F, J, D> JobRunner<J, D> for PooledRunner<H, W, F, J, D>
where
    W: Fn(JobSlot<(H, J), (H, D)>) -> F,
    F: Future<Output = Infallible>,
{
    fn start(&mut self, job: J) {
        let half = self.half.take().expect("the last job is done");
        let reused = self.pool.loops.borrow_mut().pop();
        let job_loop = reused.unwrap_or_else(|| JobLoop::new(&self.work));
        self.job_loop.insert(job_loop).start((half, job));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<D> {
        let Some(job_loop) = &mut self.job_loop else { return Poll::Pending };
        let (half, done) = ready!(job_loop.poll(cx));
        self.half = Some(half);
        self.pool.put(self.job_loop.take());
        Poll::Ready(done)
    }

    fn take_progress(&self) -> bool {
        self.job_loop.as_ref().is_some_and(JobLoop::take_progress)
    }
}

/// Runs no job any more: the half is gone.
pub(super) struct NoRunner;

impl<J, D> JobRunner<J, D> for NoRunner {
    fn start(&mut self, _: J) {}

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<D> {
        Poll::Pending
    }

    fn take_progress(&self) -> bool {
        false
    }
}

/// The loops of a worker that run no job. The most recently used is last, so that few are in the CPU cache.
pub(super) struct LoopPool<W, F, H, J, D> {
    loops: RefCell<Vec<HalfLoop<F, H, J, D>>>,
    /// Loops of different `work` are never mixed.
    work: PhantomData<fn() -> W>,
}

/// The most loops of one kind that are kept: as many connections of a completion runtime can write at the same time
/// without an allocation. One of a WebSocket takes some 600 bytes.
const LOOPS_MAX: usize = 1024;

impl<W, F, H, J, D> LoopPool<W, F, H, J, D> {
    fn put(&self, job_loop: Option<HalfLoop<F, H, J, D>>) {
        let mut loops = self.loops.borrow_mut();
        if loops.len() < LOOPS_MAX {
            loops.extend(job_loop);
        }
    }
}

impl<W, F, H, J, D> Default for LoopPool<W, F, H, J, D> {
    fn default() -> Self {
        Self { loops: RefCell::default(), work: PhantomData }
    }
}

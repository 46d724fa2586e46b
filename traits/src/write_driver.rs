//! [`WriteDriver`]: a write that both halves of a connection can drive.

mod half_wakers;
mod job_loop;

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::{io, mem};

use crate::Buffers;
use half_wakers::HalfWakers;
use job_loop::{JobLoop, JobRunner, NoRunner, PooledRunner};

/// Executes one write job at a time, in a separate future that owns the write half.
///
/// It is for protocols whose read half also sends, for example an answer to a ping, or an alert. The future
/// lives as long as the connection, so a cancelled caller does not drop a write. Each half that is polled
/// drives the current write, so a write that one half started delays neither half.
///
/// ```
/// use std::convert::Infallible;
/// use std::future::poll_fn;
/// use std::io;
/// use owned_io::backend::{JobSlot, Direction, WriteDriver};
/// use owned_io::{OwnedReadExt, OwnedWrite, OwnedWriteExt};
///
/// async fn work(mut half: impl OwnedWrite, slot: JobSlot<Vec<u8>, io::Result<()>>) -> Infallible {
///     loop {
///         let job = slot.next().await;
///         let written = half.write_all(job).await.into_result();
///         slot.finish(written.map(drop));
///     }
/// }
///
/// # owned_io_sim::block_on(async {
/// let (near, mut far) = owned_io_sim::pipe();
/// let mut writer = WriteDriver::new(|slot| work(near, slot));
/// writer.start(b"hello".to_vec());
/// poll_fn(|cx| writer.poll(Direction::Write, cx)).await?;
/// assert_eq!(far.read_exact(Vec::with_capacity(5), 5).await.into_result()?.1, b"hello");
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
/// ```
///
/// With [`with_half`](Self::with_half), an idle connection has no such future.
pub struct WriteDriver<J, D> {
    runner: Box<dyn JobRunner<J, D>>,
    wakers: HalfWakers,
    is_busy: bool,
    /// Whether each half waits for the current job.
    is_awaited: [bool; 2],
}

/// The half that waits for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The read half.
    Read,
    /// The write half.
    Write,
}

/// Passes jobs from a [`WriteDriver`] to its future, and results back. It has space for one of each.
pub struct JobSlot<J, D>(Rc<SlotState<J, D>>);

struct SlotState<J, D> {
    job: Cell<Option<J>>,
    done: Cell<Option<D>>,
    /// Whether a job has started or progressed since [`WriteDriver::take_progress`].
    has_progressed: Cell<bool>,
}

impl<J: 'static, D: 'static> WriteDriver<J, D> {
    /// Creates a driver. `work` takes each job from the slot and executes it.
    pub fn new<F>(work: impl FnOnce(JobSlot<J, D>) -> F) -> Self
    where
        F: Future<Output = Infallible> + 'static,
    {
        Self::with_runner(Box::new(JobLoop::new(work)))
    }

    /// Creates a driver whose future is there only during a job. Drivers of the same `work`, and of the same `buffers`,
    /// share such futures: after a job, the next driver with one uses the future again. So `work` does not keep `half`.
    /// It gets the half with each job, and returns it with the result.
    ///
    /// `work` is a function, or a closure that captures nothing.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use std::io;
    /// use owned_io::backend::{JobSlot, WriteDriver};
    /// use owned_io::{Buffers, OwnedWrite, OwnedWriteExt};
    ///
    /// type Slot<H> = JobSlot<(H, Vec<u8>), (H, io::Result<()>)>;
    ///
    /// async fn work<H: OwnedWrite>(slot: Slot<H>) -> Infallible {
    ///     loop {
    ///         let (mut half, job) = slot.next().await;
    ///         let written = half.write_all(job).await.into_result();
    ///         slot.finish((half, written.map(drop)));
    ///     }
    /// }
    ///
    /// fn driver(
    ///     half: impl OwnedWrite + 'static,
    ///     buffers: &Buffers,
    /// ) -> WriteDriver<Vec<u8>, io::Result<()>> {
    ///     WriteDriver::with_half(half, buffers, work)
    /// }
    /// ```
    pub fn with_half<H, W, F>(half: H, buffers: &Buffers, work: W) -> Self
    where
        H: 'static,
        W: Fn(JobSlot<(H, J), (H, D)>) -> F + 'static,
        F: Future<Output = Infallible> + 'static,
    {
        Self::with_runner(Box::new(PooledRunner::new(half, buffers.extension(), work)))
    }

    fn with_runner(runner: Box<dyn JobRunner<J, D>>) -> Self {
        Self { runner, wakers: HalfWakers::new(), is_busy: false, is_awaited: [false; 2] }
    }

    /// Whether a job is unfinished.
    pub const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Starts a job. Call it only if the driver is not [busy](Self::is_busy), and [`poll`](Self::poll) afterwards.
    pub fn start(&mut self, job: J) {
        self.runner.start(job);
        self.is_busy = true;
    }

    /// Takes the write half out, to be dropped where the driver is not borrowed: the drop may wake the halves. The driver
    /// must not be [busy](Self::is_busy), and a job that is started later never ends.
    pub fn take_half(&mut self) -> impl Sized + use<J, D> {
        mem::replace(&mut self.runner, Box::new(NoRunner))
    }

    /// Whether a job has started or [progressed](JobSlot::progress) since the last call.
    pub fn take_progress(&self) -> bool {
        self.runner.take_progress()
    }

    /// Waits for the current job, and drives it.
    #[inline(always)]
    pub fn poll(&mut self, direction: Direction, cx: &Context<'_>) -> Poll<D> {
        self.register(direction, cx); // before the poll, which may wake it at once
        self.poll_registered(direction)
    }

    /// Like [`poll`](Self::poll), for a half whose task was [registered](Self::register) just before.
    #[inline(always)]
    pub fn poll_registered(&mut self, direction: Direction) -> Poll<D> {
        let done = self.poll_job();
        self.is_awaited[direction as usize] = done.is_pending();
        if done.is_ready() {
            self.wake_awaiting();
        }
        done
    }

    /// Drives the current job for a task that does not wait for it, and registers no task. The halves that were
    /// registered before are woken when the job can continue.
    pub fn drive(&mut self) -> Poll<D> {
        let done = self.poll_job();
        if done.is_ready() {
            self.wake_awaiting();
        }
        done
    }

    #[inline(always)]
    fn poll_job(&mut self) -> Poll<D> {
        let done = self.runner.poll(&mut Context::from_waker(self.wakers.waker()));
        self.is_busy &= done.is_pending();
        done
    }

    /// Wakes the halves that wait for the job that is done.
    #[inline(always)]
    fn wake_awaiting(&mut self) {
        for half in [Direction::Read, Direction::Write] {
            if mem::take(&mut self.is_awaited[half as usize]) {
                self.wakers.wake(half);
            }
        }
    }

    /// Registers the task of a half. It is woken when the current job can continue, and by
    /// [`waker`](Self::waker). Returns whether that is another waker now: one that was passed on before does not wake
    /// this task.
    #[inline]
    pub fn register(&mut self, direction: Direction, cx: &Context<'_>) -> bool {
        self.wakers.register(direction, cx.waker())
    }

    /// Wakes the registered tasks of both halves. If there are two, later registrations count too, and otherwise another
    /// waker may be needed for them, see [`register`](Self::register).
    pub const fn waker(&self) -> &Waker {
        self.wakers.waker()
    }

    /// Makes [`waker`](Self::waker) one that stays the same, so that all later registrations count. That takes some memory
    /// for each connection.
    pub fn lasting_waker(&mut self) -> &Waker {
        self.wakers.share();
        self.wakers.waker()
    }
}

impl<J, D> std::fmt::Debug for WriteDriver<J, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteDriver").field("is_busy", &self.is_busy).finish_non_exhaustive()
    }
}

impl<J, D> JobSlot<J, D> {
    fn new() -> Self {
        let (job, done, has_progressed) = (Cell::new(None), Cell::new(None), Cell::new(false));
        Self(Rc::new(SlotState { job, done, has_progressed }))
    }

    fn handle(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    fn start(&self, job: J) {
        self.0.job.set(Some(job));
        self.0.has_progressed.set(true);
    }

    fn take_done(&self) -> Option<D> {
        self.0.done.take()
    }

    fn take_progress(&self) -> bool {
        self.0.has_progressed.take()
    }

    /// Waits for the next job.
    pub async fn next(&self) -> J {
        poll_fn(|_| self.0.job.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Reports that a part of the job is done.
    pub fn progress(&self) {
        self.0.has_progressed.set(true);
    }

    /// Reports the result of the job.
    pub fn finish(&self, done: D) {
        self.0.done.set(Some(done));
    }
}

impl<J, D> std::fmt::Debug for JobSlot<J, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobSlot").finish_non_exhaustive()
    }
}

/// A copy of an I/O error that can be returned repeatedly. An [`io::Error`] cannot be cloned.
#[derive(Clone, Copy, Debug)]
pub struct StickyError {
    os_error: Option<i32>,
    kind: io::ErrorKind,
}

impl From<&io::Error> for StickyError {
    fn from(error: &io::Error) -> Self {
        Self { os_error: error.raw_os_error(), kind: error.kind() }
    }
}

impl From<StickyError> for io::Error {
    fn from(StickyError { os_error, kind }: StickyError) -> Self {
        os_error.map_or_else(|| kind.into(), Self::from_raw_os_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryBudget, Pool, PoolConfig};

    /// A half whose writes wait until it is true.
    type Gate = Rc<Cell<bool>>;

    thread_local! {
        /// How many futures were created.
        static CREATED: Cell<u32> = const { Cell::new(0) };
    }

    async fn work(slot: JobSlot<(Gate, u8), (Gate, u8)>) -> Infallible {
        loop {
            let (gate, job) = slot.next().await;
            poll_fn(|_| if gate.get() { Poll::Ready(()) } else { Poll::Pending }).await;
            slot.finish((gate, job));
        }
    }

    fn driver(buffers: &Buffers) -> (WriteDriver<u8, u8>, Gate) {
        let gate = Gate::default();
        let counted = |slot| {
            CREATED.set(CREATED.get() + 1);
            work(slot)
        };
        (WriteDriver::with_half(Rc::clone(&gate), buffers, counted), gate)
    }

    fn buffers() -> Buffers {
        Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(0))
    }

    #[test]
    fn drivers_use_one_future_after_the_other() {
        let buffers = buffers();
        let [(mut first, first_gate), (mut second, second_gate)] =
            [(); 2].map(|()| driver(&buffers));
        first_gate.set(true);
        second_gate.set(true);
        for job in 0..3 {
            for driver in [&mut first, &mut second] {
                driver.start(job);
                assert_eq!(driver.drive(), Poll::Ready(job));
                assert!(!driver.is_busy());
            }
        }
        assert_eq!(CREATED.get(), 1);
    }

    #[test]
    fn drivers_that_are_busy_at_once_have_a_future_each() {
        let buffers = buffers();
        let mut drivers = [1, 2, 3].map(|job| (driver(&buffers), job));
        for ((driver, _), job) in &mut drivers {
            driver.start(*job);
            assert!(driver.drive().is_pending());
            assert!(driver.take_progress() && !driver.take_progress());
        }
        assert_eq!(CREATED.get(), 3);
        for ((driver, gate), job) in &mut drivers {
            assert!(driver.drive().is_pending() && driver.is_busy());
            gate.set(true);
            assert_eq!(driver.drive(), Poll::Ready(*job));
        }
    }

    #[test]
    fn a_future_that_was_dropped_during_a_job_is_not_used_again() {
        let buffers = buffers();
        let (mut dropped, gate) = driver(&buffers);
        dropped.start(1);
        assert!(dropped.drive().is_pending());
        drop(dropped);
        assert_eq!(Rc::strong_count(&gate), 1, "the half is gone");
        let (mut next, gate) = driver(&buffers);
        gate.set(true);
        next.start(2);
        assert_eq!(next.drive(), Poll::Ready(2));
        assert_eq!(CREATED.get(), 2);
    }
}

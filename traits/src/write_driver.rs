//! [`WriteDriver`]: writing that either half of a connection can drive.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::{io, mem};

/// Does one job at a time, in a future of its own, which has the write half: for protocols whose reading
/// half has something to send, too.
///
/// That future lives as long as the connection, so nobody who waits for a write drops it by giving up, and
/// a write that one half has begun is carried on by whichever half is polled: an answer to a ping, or an
/// alert, holds up neither the half that has it to send nor the other.
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
pub struct WriteDriver<J, D> {
    task: Pin<Box<dyn Future<Output = Infallible>>>,
    slot: JobSlot<J, D>,
    is_busy: bool,
    /// Which halves wait for the job to be done.
    is_awaited: [bool; 2],
    /// The halves' wakers, those that are in `wakers`: so that there is nothing to lock as long as
    /// each half waits in one task.
    registered: [Option<Waker>; 2],
    wakers: Arc<Wakers>,
    /// Wakes `wakers`.
    waker: Waker,
}

/// Who waits for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The half that reads.
    Read,
    /// The half that writes.
    Write,
}

/// Where a [`WriteDriver`] and its future meet: jobs are left here, and what became of them.
pub struct JobSlot<J, D>(Rc<SlotState<J, D>>);

struct SlotState<J, D> {
    job: Cell<Option<J>>,
    done: Cell<Option<D>>,
    /// Whether a job has begun, or some of it was done, since that was asked.
    has_progressed: Cell<bool>,
}

/// Wakes both halves: each of which may wait in a task of its own, or not at all.
#[derive(Default)]
struct Wakers {
    /// The first alone, where both are the same.
    halves: Mutex<[Option<Waker>; 2]>,
}

impl<J: 'static, D: 'static> WriteDriver<J, D> {
    /// One whose jobs `work` does, each as it comes.
    pub fn new<F>(work: impl FnOnce(JobSlot<J, D>) -> F) -> Self
    where
        F: Future<Output = Infallible> + 'static,
    {
        let (job, done, has_progressed) = (Cell::new(None), Cell::new(None), Cell::new(false));
        let slot = Rc::new(SlotState { job, done, has_progressed });
        let wakers = Arc::<Wakers>::default();
        Self {
            task: Box::pin(work(JobSlot(Rc::clone(&slot)))),
            slot: JobSlot(slot),
            is_busy: false,
            is_awaited: [false; 2],
            registered: [None, None],
            waker: Waker::from(Arc::clone(&wakers)),
            wakers,
        }
    }

    /// Whether there is a job that is not done.
    pub const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Takes a job: when it is not [busy](Self::is_busy), and to be followed by [`poll`](Self::poll).
    pub fn start(&mut self, job: J) {
        self.slot.0.job.set(Some(job));
        self.slot.0.has_progressed.set(true);
        self.is_busy = true;
    }

    /// Whether a job has begun, or [some of it was done](JobSlot::progress), since this was asked last.
    pub fn take_progress(&self) -> bool {
        self.slot.0.has_progressed.take()
    }

    /// Waits for the job that was started.
    #[inline(always)]
    pub fn poll(&mut self, direction: Direction, cx: &Context<'_>) -> Poll<D> {
        self.register(direction, cx); // before, because it may be woken at once
        let Poll::Pending = self.task.as_mut().poll(&mut Context::from_waker(&self.waker));
        let Some(done) = self.slot.0.done.take() else {
            self.is_awaited[direction as usize] = true;
            return Poll::Pending;
        };
        self.is_busy = false;
        for other in [Direction::Read, Direction::Write] {
            let is_awaited = mem::take(&mut self.is_awaited[other as usize]);
            if is_awaited
                && other != direction
                && let Some(waker) = &self.registered[other as usize]
            {
                waker.wake_by_ref();
            }
        }
        Poll::Ready(done)
    }

    /// Has `half` woken from now on: when there is something to poll, and by
    /// [`waker`](Self::waker).
    #[inline]
    pub fn register(&mut self, direction: Direction, cx: &Context<'_>) {
        let registered = &self.registered[direction as usize];
        if !registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.update_waker(direction, cx.waker());
        }
    }

    /// Wakes both halves, whichever tasks they are in by then.
    pub const fn waker(&self) -> &Waker {
        &self.waker
    }

    #[cold]
    fn update_waker(&mut self, direction: Direction, waker: &Waker) {
        self.registered[direction as usize] = Some(waker.clone());
        let [read, write] = &self.registered;
        let is_same = read.as_ref().zip(write.as_ref()).is_some_and(|(a, b)| a.will_wake(b));
        *self.wakers.lock() = [read.clone(), write.clone().filter(|_| !is_same)];
    }
}

impl<J, D> std::fmt::Debug for WriteDriver<J, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteDriver").field("is_busy", &self.is_busy).finish_non_exhaustive()
    }
}

impl<J, D> JobSlot<J, D> {
    /// Waits for the next job.
    pub async fn next(&self) -> J {
        poll_fn(|_| self.0.job.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Says that some of the job is done, and not yet all.
    pub fn progress(&self) {
        self.0.has_progressed.set(true);
    }

    /// Says what became of the job.
    pub fn finish(&self, done: D) {
        self.0.done.set(Some(done));
    }
}

impl<J, D> std::fmt::Debug for JobSlot<J, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobSlot").finish_non_exhaustive()
    }
}

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, [Option<Waker>; 2]> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let halves = self.lock().clone();
        halves.into_iter().flatten().for_each(Waker::wake);
    }
}

/// An I/O error that is told again and again, which an [`io::Error`] cannot be.
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

//! [`Writer`]: a write that either half of a connection can drive.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::{io, mem};

use crate::{BufResult, IoBuf, OwnedWrite, Slice};

/// Writes one batch at a time, in a future of its own: for protocols whose reading half has something to
/// send, too.
///
/// That future lives as long as the connection, so nobody who waits for a write drops it by giving up, and
/// a write that one half has begun is carried on by whichever half is polled: an answer to a ping, or an
/// alert, holds up neither the half that has it to send nor the other.
pub struct Writer<B> {
    task: Pin<Box<dyn Future<Output = Infallible>>>,
    desk: Rc<Desk<B>>,
    is_busy: bool,
    /// Which halves wait for the job to be done.
    is_awaited: [bool; 2],
    /// The halves' wakers, those that are in `wakers`: so that there is nothing to lock as long as
    /// each half waits in one task.
    known: [Option<Waker>; 2],
    wakers: Arc<Wakers>,
    /// Wakes `wakers`.
    waker: Waker,
}

/// Who waits for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The half that reads.
    Read,
    /// The half that writes.
    Write,
}

/// What a [`Writer`] is to do.
#[derive(Debug)]
pub enum Job<B> {
    /// All of this batch.
    Write(B),
    /// [`OwnedWrite::shutdown`].
    Shutdown,
}

/// How a job went.
#[derive(Debug)]
pub struct Done<B> {
    /// An error of the write half; [`WriteZero`](io::ErrorKind::WriteZero) if it takes no more.
    pub result: io::Result<()>,
    /// What was written, unless that was a shutdown.
    pub batch: Option<B>,
}

/// What a [`Writer`] writes: a buffer, or whatever writes itself.
pub trait Batch: Sized + 'static {
    /// Writes all of it, and says so with each write after the first.
    fn write_all(
        self,
        half: &mut impl OwnedWrite,
        progress: impl Fn(),
    ) -> impl Future<Output = BufResult<(), Self>>;
}

/// Where the writer and its future meet.
struct Desk<B> {
    job: Cell<Option<Job<B>>>,
    done: Cell<Option<Done<B>>>,
    /// Whether a job has begun, or some of it was written, since that was asked.
    has_moved: Cell<bool>,
}

/// Wakes both halves: each of which may wait in a task of its own, or not at all.
#[derive(Default)]
struct Wakers {
    /// The first alone, where both are the same.
    halves: Mutex<[Option<Waker>; 2]>,
}

impl<B: Batch> Writer<B> {
    /// One that writes to `half`.
    pub fn new(half: impl OwnedWrite + 'static) -> Self {
        let (job, done, has_moved) = (Cell::new(None), Cell::new(None), Cell::new(false));
        let desk = Rc::new(Desk { job, done, has_moved });
        let wakers = Arc::<Wakers>::default();
        Self {
            task: Box::pin(work(half, Rc::clone(&desk))),
            desk,
            is_busy: false,
            is_awaited: [false; 2],
            known: [None, None],
            waker: Waker::from(Arc::clone(&wakers)),
            wakers,
        }
    }

    /// Whether there is a job that is not done.
    pub const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Takes a job: when it is not [busy](Self::is_busy), and to be followed by [`poll`](Self::poll).
    pub fn start(&mut self, job: Job<B>) {
        self.desk.job.set(Some(job));
        self.desk.has_moved.set(true);
        self.is_busy = true;
    }

    /// Whether a job has begun, or some of it was written, since this was asked last.
    pub fn has_moved(&self) -> bool {
        self.desk.has_moved.take()
    }

    /// Waits for the job that was started.
    #[inline(always)]
    pub fn poll(&mut self, half: Half, cx: &Context<'_>) -> Poll<Done<B>> {
        self.register(half, cx); // before, because it may be woken at once
        let Poll::Pending = self.task.as_mut().poll(&mut Context::from_waker(&self.waker));
        let Some(done) = self.desk.done.take() else {
            self.is_awaited[half as usize] = true;
            return Poll::Pending;
        };
        self.is_busy = false;
        for other in [Half::Read, Half::Write] {
            let is_awaited = mem::take(&mut self.is_awaited[other as usize]);
            if is_awaited
                && other != half
                && let Some(waker) = &self.known[other as usize]
            {
                waker.wake_by_ref();
            }
        }
        Poll::Ready(done)
    }

    /// Has `half` woken from now on: when there is something to poll, and by
    /// [`waker`](Self::waker).
    #[inline]
    pub fn register(&mut self, half: Half, cx: &Context<'_>) {
        let known = &self.known[half as usize];
        if !known.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.register_anew(half, cx.waker());
        }
    }

    /// Wakes both halves, whichever tasks they are in by then.
    pub const fn waker(&self) -> &Waker {
        &self.waker
    }

    #[cold]
    fn register_anew(&mut self, half: Half, waker: &Waker) {
        self.known[half as usize] = Some(waker.clone());
        let [read, write] = &self.known;
        let is_same = read.as_ref().zip(write.as_ref()).is_some_and(|(a, b)| a.will_wake(b));
        *self.wakers.lock() = [read.clone(), write.clone().filter(|_| !is_same)];
    }
}

impl<B> std::fmt::Debug for Writer<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("is_busy", &self.is_busy).finish_non_exhaustive()
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

async fn work<B: Batch>(mut half: impl OwnedWrite, desk: Rc<Desk<B>>) -> Infallible {
    loop {
        let job = poll_fn(|_| desk.job.take().map_or(Poll::Pending, Poll::Ready)).await;
        let (result, batch) = match job {
            Job::Write(batch) => {
                let progress = || desk.has_moved.set(true);
                let BufResult(result, batch) = batch.write_all(&mut half, progress).await;
                (result, Some(batch))
            }
            Job::Shutdown => (half.shutdown().await, None),
        };
        desk.done.set(Some(Done { result, batch }));
    }
}

/// Not by [`OwnedWriteExt::write_all`](crate::OwnedWriteExt::write_all): that is a layer more, which an
/// idle connection, whose writer waits for its first job, would be larger for.
impl<B: IoBuf> Batch for B {
    async fn write_all(
        mut self,
        half: &mut impl OwnedWrite,
        progress: impl Fn(),
    ) -> BufResult<(), Self> {
        let mut written;
        BufResult(written, self) = half.write(self).await;
        let mut at = 0;
        loop {
            match written {
                Ok(n) if at + n == self.buf_len() => return BufResult(Ok(()), self),
                Ok(0) => return BufResult(Err(io::ErrorKind::WriteZero.into()), self),
                Ok(n) => at += n,
                Err(error) => return BufResult(Err(error), self),
            }
            progress();
            let rest = half.write(self.buf_slice(at..)).await;
            BufResult(written, self) = rest.map_buf(Slice::into_inner);
        }
    }
}

/// An I/O error that is told again and again, which an [`io::Error`] cannot be.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    os_error: Option<i32>,
    kind: io::ErrorKind,
}

impl From<&io::Error> for Broken {
    fn from(error: &io::Error) -> Self {
        Self { os_error: error.raw_os_error(), kind: error.kind() }
    }
}

impl From<Broken> for io::Error {
    fn from(Broken { os_error, kind }: Broken) -> Self {
        os_error.map_or_else(|| kind.into(), Self::from_raw_os_error)
    }
}

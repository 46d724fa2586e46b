//! [`Writer`]: a write that either half can drive.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use owned_io::{BufResult, IoBuf, OwnedWrite, OwnedWriteExt, Slice};

/// Does one job at a time, in a future of its own.
///
/// That lives as long as the connection, so nobody who waits for a write drops it by giving up, and no
/// record is torn. The half that reads has an alert to send when the connection fails, whatever the
/// other half is about then.
pub(crate) struct Writer {
    task: Pin<Box<dyn Future<Output = Infallible>>>,
    desk: Rc<Desk>,
    is_busy: bool,
    /// The halves' wakers, those that are in `wakers`: so that there is nothing to lock as long as
    /// each half waits in one task.
    known: [Option<Waker>; 2],
    wakers: Arc<Wakers>,
    /// Wakes `wakers`.
    waker: Waker,
}

/// Who waits for a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Reading,
    Writing,
}

pub(crate) enum Job {
    /// Some of a buffer.
    Write(Slice<Vec<u8>>),
    Shutdown,
}

/// How a job went.
pub(crate) enum Done {
    /// And the buffer.
    Written(io::Result<()>, Vec<u8>),
    Shutdown(io::Result<()>),
}

/// Where the writer and its future meet.
#[derive(Default)]
struct Desk {
    job: Cell<Option<Job>>,
    done: Cell<Option<Done>>,
}

/// Wakes both halves: each of which may wait in a task of its own, or not at all.
#[derive(Default)]
struct Wakers {
    /// The first alone, where both are the same.
    halves: Mutex<[Option<Waker>; 2]>,
}

impl Writer {
    pub(crate) fn new(half: impl OwnedWrite + 'static) -> Self {
        let desk = Rc::<Desk>::default();
        let wakers = Arc::<Wakers>::default();
        Self {
            task: Box::pin(work(half, Rc::clone(&desk))),
            desk,
            is_busy: false,
            known: [None, None],
            waker: Waker::from(Arc::clone(&wakers)),
            wakers,
        }
    }

    pub(crate) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// To be called when the writer is not busy, and followed by [`poll`](Self::poll).
    pub(crate) fn start(&mut self, job: Job) {
        self.desk.job.set(Some(job));
        self.is_busy = true;
    }

    /// Waits for the job that was started.
    pub(crate) fn poll(&mut self, half: Half, cx: &Context<'_>) -> Poll<Done> {
        self.register(half, cx.waker()); // before, because it may be woken at once
        let Poll::Pending = self.task.as_mut().poll(&mut Context::from_waker(&self.waker));
        let Some(done) = self.desk.done.take() else { return Poll::Pending };
        self.is_busy = false;
        // It may have waited for this job too, and nobody else would wake it.
        let other = match half {
            Half::Reading => Half::Writing,
            Half::Writing => Half::Reading,
        };
        if let Some(waker) = self.known[other as usize].take() {
            *self.wakers.lock() = self.known.clone();
            waker.wake();
        }
        Poll::Ready(done)
    }

    fn register(&mut self, half: Half, waker: &Waker) {
        let known = &self.known[half as usize];
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.register_anew(half, waker);
        }
    }

    #[cold]
    fn register_anew(&mut self, half: Half, waker: &Waker) {
        self.known[half as usize] = Some(waker.clone());
        let [reading, writing] = &self.known;
        let is_same = reading.as_ref().zip(writing.as_ref()).is_some_and(|(a, b)| a.will_wake(b));
        *self.wakers.lock() = [reading.clone(), writing.clone().filter(|_| !is_same)];
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

async fn work(mut half: impl OwnedWrite, desk: Rc<Desk>) -> Infallible {
    loop {
        let job = poll_fn(|_| desk.job.take().map_or(Poll::Pending, Poll::Ready)).await;
        desk.done.set(Some(match job {
            Job::Write(records) => {
                // As a rule one write does. `write_all` comes at a price, even so.
                let BufResult(written, records) = half.write(records).await;
                let BufResult(result, records) = match written {
                    Ok(n) if n == records.buf_len() => BufResult(Ok(()), records),
                    Ok(n) => {
                        half.write_all(records.buf_slice(n..)).await.map_buf(Slice::into_inner)
                    }
                    Err(error) => BufResult(Err(error), records),
                };
                Done::Written(result, records.into_inner())
            }
            Job::Shutdown => Done::Shutdown(half.shutdown().await),
        }));
    }
}

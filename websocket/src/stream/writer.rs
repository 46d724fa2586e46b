//! [`Writer`]: a write that either half can drive.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::{io, mem};

use owned_io::{BufResult, IoBuf, OwnedWrite, Slice};

use super::queue::Batch;

/// Writes one batch at a time, in a future of its own.
///
/// That lives as long as the connection, so nobody who waits for a write drops it by giving up, and
/// a write that one half has begun is carried on by whichever half is polled: an answer to a ping
/// holds up neither the half that read the ping nor the one that has something to send.
pub(crate) struct Writer {
    task: Pin<Box<dyn Future<Output = Infallible>>>,
    desk: Rc<Desk>,
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
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Incoming,
    Outgoing,
}

pub(crate) enum Job {
    Write(Batch),
    Shutdown,
}

/// How a job went, and the batch that was written.
pub(crate) struct Done {
    pub(crate) result: io::Result<()>,
    pub(crate) batch: Option<Batch>,
}

/// Where the writer and its future meet.
#[derive(Default)]
struct Desk {
    job: Cell<Option<Job>>,
    done: Cell<Option<Done>>,
    /// Whether a job has begun, or some of it was written, since that was asked.
    has_moved: Cell<bool>,
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
            is_awaited: [false; 2],
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
        self.desk.has_moved.set(true);
        self.is_busy = true;
    }

    /// Whether a job has begun, or some of it was written, since this was asked last.
    pub(crate) fn has_moved(&self) -> bool {
        self.desk.has_moved.take()
    }

    /// Waits for the job that was started. Inlined, although a bridge has another use of it.
    #[inline(always)]
    pub(crate) fn poll(&mut self, half: Half, cx: &Context<'_>) -> Poll<Done> {
        self.register(half, cx); // before, because it may be woken at once
        let Poll::Pending = self.task.as_mut().poll(&mut Context::from_waker(&self.waker));
        let Some(done) = self.desk.done.take() else {
            self.is_awaited[half as usize] = true;
            return Poll::Pending;
        };
        self.is_busy = false;
        for other in [Half::Incoming, Half::Outgoing] {
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
    pub(crate) fn register(&mut self, half: Half, cx: &Context<'_>) {
        let known = &self.known[half as usize];
        if !known.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.register_anew(half, cx.waker());
        }
    }

    /// Wakes both halves, whichever tasks they are in by then.
    pub(crate) const fn waker(&self) -> &Waker {
        &self.waker
    }

    #[cold]
    fn register_anew(&mut self, half: Half, waker: &Waker) {
        self.known[half as usize] = Some(waker.clone());
        let [incoming, outgoing] = &self.known;
        let is_same = incoming.as_ref().zip(outgoing.as_ref()).is_some_and(|(a, b)| a.will_wake(b));
        *self.wakers.lock() = [incoming.clone(), outgoing.clone().filter(|_| !is_same)];
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

/// As `write_all` and `write_all_vectored` do it, but tells of each write; and an idle connection, whose
/// writer waits for its first job, is smaller for it.
async fn work(mut half: impl OwnedWrite, desk: Rc<Desk>) -> Infallible {
    loop {
        let job = poll_fn(|_| desk.job.take().map_or(Poll::Pending, Poll::Ready)).await;
        let (result, batch) = match job {
            Job::Write(Batch::One(buf)) => {
                let BufResult(mut written, mut buf) = half.write(buf).await;
                let mut at = 0;
                let result = loop {
                    match written {
                        Ok(n) if at + n == buf.len() => break Ok(()),
                        Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                        Ok(n) => at += n,
                        Err(error) => break Err(error),
                    }
                    desk.has_moved.set(true);
                    let rest = half.write(buf.buf_slice(at..)).await;
                    BufResult(written, buf) = rest.map_buf(Slice::into_inner);
                };
                (result, Some(Batch::One(buf)))
            }
            Job::Write(Batch::Many(mut array)) => {
                let mut bufs = mem::take(&mut *array);
                let result = loop {
                    if bufs.bytes_left() == 0 {
                        break Ok(());
                    }
                    let written;
                    BufResult(written, bufs) = half.write_vectored(bufs).await;
                    match written {
                        Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                        Ok(_) => desk.has_moved.set(true),
                        Err(error) => break Err(error),
                    }
                };
                *array = bufs;
                (result, Some(Batch::Many(array)))
            }
            Job::Shutdown => (half.shutdown().await, None),
        };
        desk.done.set(Some(Done { result, batch }));
    }
}

//! Tasks: [`JoinHandle`] and the catching of panics, the same on every runtime.

use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::{fmt, io};

use crate::Runtime;

/// Waits for a task's output.
///
/// Dropping it detaches the task, which goes on.
#[derive(Debug)]
#[must_use = "dropping it detaches the task; say so with `drop` or `let _`"]
pub struct JoinHandle<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

#[derive(Debug)]
enum Slot<T> {
    Running(Option<Waker>),
    Done(Result<T, Panicked>),
    Taken,
}

/// Starts `future` as a task of `R` whose panic stays its own.
pub(crate) fn spawn<R: Runtime, F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    let slot = Rc::new(RefCell::new(Slot::Running(None)));
    R::spawn_detached(Task { future: CatchPanic::new(future), slot: Rc::clone(&slot) });
    JoinHandle { slot }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Panicked>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.borrow_mut();
        if let Slot::Running(waker) = &mut *slot {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Done(output) => Poll::Ready(output),
            Slot::Running(_) | Slot::Taken => panic!("JoinHandle polled after it was ready"),
        }
    }
}

/// The task itself. Dropped before it is done (its runtime has ended), it counts as panicked, so
/// that nobody waits for it for ever.
struct Task<F: Future> {
    future: CatchPanic<F>,
    slot: Rc<RefCell<Slot<F::Output>>>,
}

impl<F: Future> Task<F> {
    fn finish(&self, output: Result<F::Output, Panicked>) {
        let before = std::mem::replace(&mut *self.slot.borrow_mut(), Slot::Done(output));
        if let Slot::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<F: Future> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.future).poll(cx).map(|output| self.finish(output))
    }
}

impl<F: Future> Drop for Task<F> {
    fn drop(&mut self) {
        if self.future.is_running() {
            let ended = self.future.drop_future().err();
            self.finish(Err(ended.unwrap_or_else(|| Panicked::new(Box::new("the runtime has ended")))));
        }
    }
}

/// A future whose panic is its output. What it holds is dropped before it is ready, and a panic
/// while that is dropped is its output too.
pub(crate) struct CatchPanic<F> {
    /// Boxed once, so that it can be dropped in place and is not copied into the task's frame.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> CatchPanic<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)) }
    }

    const fn is_running(&self) -> bool {
        self.future.is_some()
    }

    fn drop_future(&mut self) -> Result<(), Panicked> {
        let future = self.future.take();
        catch_unwind(AssertUnwindSafe(|| drop(future))).map_err(Panicked::new)
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, Panicked>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.future.as_mut().expect("polled after it was ready");
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        let output = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(Panicked::new(payload)),
        };
        let dropped = self.drop_future();
        Poll::Ready(output.and_then(|output| dropped.map(|()| output)))
    }
}

/// A task, or a blocking closure, that panicked instead of returning.
pub struct Panicked {
    payload: Box<dyn Any + Send>,
}

impl Panicked {
    /// For backends: from what [`catch_unwind`] caught.
    pub fn new(payload: Box<dyn Any + Send>) -> Self {
        Self { payload }
    }

    /// What was panicked with, as for [`std::panic::resume_unwind`].
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload
    }

    /// The panic's message, where it was a string.
    pub fn message(&self) -> &str {
        if let Some(message) = self.payload.downcast_ref::<&'static str>() {
            message
        } else if let Some(message) = self.payload.downcast_ref::<String>() {
            message
        } else {
            "no message"
        }
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.message())
    }
}

impl fmt::Debug for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panicked").field(&self.message()).finish()
    }
}

impl Error for Panicked {}

impl From<Panicked> for io::Error {
    /// Keeps the message; the payload cannot be shared between threads, as an `io::Error` must.
    fn from(panicked: Panicked) -> Self {
        Self::other(panicked.to_string())
    }
}

//! Tasks: [`JoinHandle`] and the handling of panics, the same on every runtime.

use std::any::Any;
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::mem::{replace, take};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::{fmt, io};

use pin_project_lite::pin_project;

use crate::{Clock, Executor, coop, deadline};

/// Waits for the output of a task.
///
/// Dropping it detaches the task, which continues. While it is kept, so is the memory of the task's future, also when the
/// task is done.
#[must_use = "dropping it detaches the task; say so with `drop`"]
pub struct JoinHandle<T> {
    task: Rc<dyn Join<T>>,
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.poll_join(cx)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// Runs the main future, then drops the tasks of [`Executor::spawn`] that are still running. Every backend
/// calls it. `C` is the clock of its runtime, by which the [deadlines](crate::Deadline) of the runtime pass meanwhile.
///
/// Without it, the runtimes treat such tasks differently. monoio and glommio leak waiting tasks with their
/// connections. Others resume them in the next `block_on`, or drop them when they can no longer be woken.
///
/// Call it inside the runtime, as the body of [`Executor::block_on`]. If the runtime leaks tasks, or leaves
/// their operations in the kernel, let it run twice more afterwards. Two sleeps of zero do that, if a sleep of
/// zero polls I/O. In the first, each task is polled once more and completes. In the second, the kernel releases
/// the operations of the tasks. Do not wait until no task is ready: a task that was passed to
/// [`spawn_detached`](Executor::spawn_detached) directly is not ended here, and may always be ready. The runtime is
/// free to drop or to leak it. Finally resume the panic, if there was one.
///
/// # Errors
/// [`Panicked`] if `future` panicked.
pub async fn run_main<C: Clock, F: Future>(future: F) -> Result<F::Output, Panicked> {
    coop::forget_last_task();
    let mut deadlines = deadline::drive::<C>(); // the tasks that end may still have some
    let _tasks = EndTasks { outer: RUNNING.with_borrow_mut(|running| take(&mut running.tasks)) };
    let mut future = pin!(CatchPanic::new(Box::pin(future))); // boxed: this future has space for it once, not twice
    poll_fn(|cx| {
        coop::begin_poll(coop::MAIN_TASK);
        deadlines.poll(cx);
        future.as_mut().poll(cx)
    })
    .await
}

/// Forgets the tasks of this thread's runtime, so that [`run_main`] does not end them. A canary needs it.
#[cfg(feature = "conformance")]
pub(crate) fn forget_tasks() {
    let tasks = RUNNING.with_borrow_mut(|running| take(&mut running.tasks));
    drop(tasks); // the runtime still has them
}

/// Starts `future` as a task of `R` and catches its panic.
pub(crate) fn spawn<R: Executor, F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    let (poller, handle) = Poller::new(future);
    R::spawn_detached(poller);
    handle
}

/// Like [`spawn`], but polls the task once, if the running poll may still do that. A task that is done then never enters
/// the queue of the runtime.
pub(crate) fn spawn_eager<R: Executor, F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    let (poller, handle) = Poller::new(future);
    // A waker that wakes nobody suffices: the runtime polls the task again, with its own waker.
    let mut cx = Context::from_waker(Waker::noop());
    let polled = coop::poll_eagerly(poller.id, || poller.task.poll(&mut cx));
    // Polled first. In the queue already, it could be dropped during this poll: a simulated host that stops drops its tasks.
    if polled.is_none_or(|polled| polled.is_pending()) {
        R::spawn_detached(poller);
    }
    handle
}

thread_local! {
    /// The unfinished tasks of this thread's runtime.
    static RUNNING: RefCell<Running> = const { RefCell::new(Running::new()) };
}

/// Bounded by the number of tasks.
struct Running {
    tasks: BTreeMap<u64, Rc<dyn End>>,
    /// Ids begin behind [`coop::MAIN_TASK`].
    last_id: u64,
}

impl Running {
    const fn new() -> Self {
        Self { tasks: BTreeMap::new(), last_id: coop::MAIN_TASK }
    }

    fn insert(&mut self, task: Rc<dyn End>) -> u64 {
        self.last_id += 1;
        self.tasks.insert(self.last_id, task);
        self.last_id
    }
}

/// Ends the tasks of a runtime when its main future is done, or dropped.
struct EndTasks {
    /// The tasks of an outer runtime, if this one runs within its poll (a simulation in a test, for example).
    outer: BTreeMap<u64, Rc<dyn End>>,
}

impl Drop for EndTasks {
    fn drop(&mut self) {
        // A task may spawn another while it is dropped. The loop ends that one too.
        while let Some((_, task)) = RUNNING.with_borrow_mut(|running| running.tasks.pop_first()) {
            task.end();
        }
        coop::forget_last_task();
        // Ids are never reused, so a task that is dropped late removes no other task.
        RUNNING.with_borrow_mut(|running| running.tasks = take(&mut self.outer));
    }
}

/// It is always in an `Rc`, together with its future: a poll then looks at little memory.
#[repr(C)] // the state is last, because no poll of the task but the last one uses it
struct Task<F: Future> {
    /// Wakes the [`Poller`].
    poller: RefCell<Option<Waker>>,
    future: RefCell<CatchPanic<F>>,
    state: RefCell<State<F::Output>>,
}

enum State<T> {
    Running(Option<Waker>),
    Done(Result<T, JoinError>),
    Taken,
}

/// A task as its [`JoinHandle`] sees it.
trait Join<T> {
    fn poll_join(&self, cx: &Context<'_>) -> Poll<Result<T, JoinError>>;
}

impl<F: Future> Join<F::Output> for Task<F> {
    fn poll_join(&self, cx: &Context<'_>) -> Poll<Result<F::Output, JoinError>> {
        let mut state = self.state.borrow_mut();
        if let State::Running(waker) = &mut *state {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match replace(&mut *state, State::Taken) {
            State::Done(output) => Poll::Ready(output),
            State::Running(_) | State::Taken => panic!("JoinHandle polled after it was ready"),
        }
    }
}

/// A task as [`run_main`] sees it.
trait End {
    /// Drops the future of the task if it is not done. Wakes the task's handle and the runtime.
    fn end(&self);
}

impl<F: Future> End for Task<F> {
    fn end(&self) {
        let mut future = self.future.borrow_mut();
        if Self::pinned(&mut future).is_running() {
            let dropped = Self::pinned(&mut future).drop_future();
            drop(future);
            self.finish(Err(dropped.map_or_else(JoinError::Panicked, |()| JoinError::Ended)));
        }
        if let Some(poller) = self.poller.take() {
            poller.wake();
        }
    }
}

impl<F: Future> Task<F> {
    /// Ready when the task is done or was ended.
    #[inline]
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut future = self.future.borrow_mut();
        if Self::pinned(&mut future).is_running() {
            let output = ready!(Self::pinned(&mut future).poll(cx));
            drop(future);
            self.finish(output.map_err(JoinError::Panicked));
        }
        Poll::Ready(())
    }

    /// The only access to the future.
    fn pinned<'f>(future: &'f mut RefMut<'_, CatchPanic<F>>) -> Pin<&'f mut CatchPanic<F>> {
        // SAFETY: the future is never moved, and is dropped where it is. Its task is created in an `Rc` and only used by
        // handles to that. Nothing here replaces the future or moves it out of its cell, and nobody else sees the cell.
        unsafe { Pin::new_unchecked(future) }
    }

    fn finish(&self, output: Result<F::Output, JoinError>) {
        let before = self.state.replace(State::Done(output));
        if let State::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// The future that the runtime polls. It is ready when the task is done or was ended.
struct Poller<F: Future> {
    task: Rc<Task<F>>,
    id: u64,
}

impl<F: Future<Output: 'static> + 'static> Poller<F> {
    /// The poller and the handle of a new task, which is in the list of running tasks from now on.
    fn new(future: F) -> (Self, JoinHandle<F::Output>) {
        let task = Rc::new(Task {
            future: RefCell::new(CatchPanic::new(future)),
            state: RefCell::new(State::Running(None)),
            poller: RefCell::default(),
        });
        let id = RUNNING.with_borrow_mut(|running| running.insert(Rc::clone(&task) as Rc<dyn End>));
        (Self { task: Rc::clone(&task), id }, JoinHandle { task })
    }
}

impl<F: Future> Future for Poller<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        coop::begin_poll(self.id);
        let mut waker = self.task.poller.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        self.task.poll(cx)
    }
}

impl<F: Future> Drop for Poller<F> {
    fn drop(&mut self) {
        // The runtime no longer polls it. If the runtime drops its tasks, this one may not be done.
        self.task.poller.take();
        self.task.end();
        // The list is gone while the locals of the thread are destroyed.
        drop(RUNNING.try_with(|running| running.borrow_mut().tasks.remove(&self.id)));
        // If no handle is left, this drops the output of the task.
        let output =
            (Rc::strong_count(&self.task) == 1).then(|| self.task.state.replace(State::Taken));
        drop(catch_unwind(AssertUnwindSafe(|| drop(output))));
    }
}

pin_project! {
    /// A future that catches a panic and returns it as its output. It drops the inner future before it is ready,
    /// and also catches a panic of that drop.
    pub(crate) struct CatchPanic<F> {
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future> CatchPanic<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self { future: Some(future) }
    }

    /// By a pinned reference: a shared one would invalidate the references of the future to itself.
    fn is_running(self: Pin<&mut Self>) -> bool {
        self.project().future.as_pin_mut().is_some()
    }

    fn drop_future(self: Pin<&mut Self>) -> Result<(), Panicked> {
        let mut future = self.project().future;
        catch_unwind(AssertUnwindSafe(|| future.set(None))).map_err(Panicked::new)
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, Panicked>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.as_mut().project().future;
        let future = future.as_pin_mut().expect("polled after it was ready");
        let polled = catch_unwind(AssertUnwindSafe(|| future.poll(cx)));
        let output = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(Panicked::new(payload)),
        };
        let dropped = self.drop_future();
        Poll::Ready(output.and_then(|output| dropped.map(|()| output)))
    }
}

/// Why a task has no output. The [`JoinHandle`] returns it.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The task panicked, or a value that it held panicked when the end of the runtime dropped it.
    Panicked(Panicked),
    /// The runtime has ended and dropped the task.
    Ended,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(panicked) => panicked.fmt(f),
            Self::Ended => f.write_str("the runtime has ended"),
        }
    }
}

impl Error for JoinError {}

impl From<JoinError> for io::Error {
    /// Keeps the message of a panic, but not its payload.
    fn from(error: JoinError) -> Self {
        Self::other(error.to_string())
    }
}

/// A task, or a blocking closure, that panicked instead of returning.
pub struct Panicked {
    payload: Box<dyn Any + Send>,
}

impl Panicked {
    /// For backends. `payload` is the error of [`catch_unwind`].
    pub fn new(payload: Box<dyn Any + Send>) -> Self {
        Self { payload }
    }

    /// Resumes the panic.
    ///
    /// # Panics
    /// Always.
    pub fn resume(self) -> ! {
        resume_unwind(self.payload)
    }

    /// The message of the panic, if it was a string.
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
    /// Keeps the message, but not the payload, which is not `Sync` as an `io::Error` must be.
    fn from(panicked: Panicked) -> Self {
        Self::other(panicked.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// How [`Faulty`] ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fate {
        Done,
        Panics,
        Waits,
    }

    /// Panics when it is dropped.
    struct Faulty(Fate);

    impl Future for Faulty {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            match self.0 {
                Fate::Done => Poll::Ready(()),
                Fate::Panics => panic!("polled"),
                Fate::Waits => Poll::Pending,
            }
        }
    }

    impl Drop for Faulty {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn wait_once() {
        let mut has_waited = false;
        poll_fn(|_| match replace(&mut has_waited, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    #[test]
    fn a_future_may_refer_to_itself() {
        let (poller, handle) = Poller::new(async {
            let values = [1, 2, 3];
            let last = &values[2];
            wait_once().await;
            *last
        });
        let mut poller = Box::pin(poller);
        assert!(poll(poller.as_mut()).is_pending());
        assert!(poll(poller.as_mut()).is_ready());
        drop(poller);
        assert_eq!(poll(pin!(handle)).map(Result::unwrap), Poll::Ready(3));
    }

    #[test]
    fn a_panic_ends_the_task_also_if_the_drop_panics() {
        for fate in [Fate::Done, Fate::Panics, Fate::Waits] {
            let (poller, handle) = Poller::new(Faulty(fate));
            let mut poller = Box::pin(poller);
            assert_eq!(poll(poller.as_mut()).is_pending(), fate == Fate::Waits);
            drop(poller); // the runtime drops the task
            let outcome = poll(pin!(handle));
            let is_panic = matches!(outcome, Poll::Ready(Err(JoinError::Panicked(_))));
            assert!(is_panic, "{fate:?}: {outcome:?}");
        }
    }

    #[test]
    fn a_task_that_is_dropped_before_it_is_polled_has_ended() {
        let (poller, handle) = Poller::new(pending::<()>());
        drop(poller);
        assert!(matches!(poll(pin!(handle)), Poll::Ready(Err(JoinError::Ended))));
    }
}

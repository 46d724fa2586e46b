//! Tasks: [`JoinHandle`] and the catching of panics, the same on every runtime.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::mem::{replace, take};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::{fmt, io};

use crate::{Executor, coop};

/// Waits for a task's output.
///
/// Dropping it detaches the task, which goes on.
#[must_use = "dropping it detaches the task; say so with `drop`"]
pub struct JoinHandle<T> {
    task: Rc<dyn Join<T>>,
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.poll_join(cx)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// For backends, all of them: runs the main future, then drops the tasks that [`Executor::spawn`]
/// started and that still run, whatever the runtime would do with them: monoio and glommio leak
/// those that wait, with their connections; others resume them in the next `block_on`, or drop them
/// when waking is no longer possible.
///
/// Call it inside the runtime, as the body of [`Executor::block_on`]. Where the runtime leaks tasks, or
/// leaves their operations in the kernel, let it run twice more afterwards: two sleeps of zero do that,
/// where a sleep of zero polls I/O. In the first, each task is woken once more and finds that it is
/// done; in the second, the kernel lets go of what the tasks polled. Do not run until no task is ready:
/// one that was given to [`spawn_detached`](Executor::spawn_detached) directly is not ended here, and may
/// be ready for ever. Then resume the panic, if there was one.
///
/// # Errors
/// [`Panicked`] when `future` did.
pub async fn run_main<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let _tasks = EndTasks { outer: RUNNING.with_borrow_mut(|running| take(&mut running.tasks)) };
    let mut future = pin!(CatchPanic::new(future));
    poll_fn(|cx| {
        coop::refill();
        future.as_mut().poll(cx)
    })
    .await
}

/// Forgets the tasks of this thread's runtime, so that [`run_main`] does not end them: for a canary.
#[cfg(feature = "conformance")]
pub(crate) fn forget_tasks() {
    let tasks = RUNNING.with_borrow_mut(|running| take(&mut running.tasks));
    drop(tasks); // the runtime has them too
}

/// Starts `future` as a task of `R` whose panic stays its own.
pub(crate) fn spawn<R: Executor, F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    let task = Rc::new(Task {
        future: RefCell::new(CatchPanic::new(future)),
        state: RefCell::new(State::Running(None)),
        poller: RefCell::default(),
    });
    let id = RUNNING.with_borrow_mut(|running| running.insert(Rc::clone(&task) as Rc<dyn End>));
    R::spawn_detached(Poller { task: Rc::clone(&task), id });
    JoinHandle { task }
}

thread_local! {
    /// The tasks of this thread's runtime that are not done.
    static RUNNING: RefCell<Running> = const { RefCell::new(Running::new()) };
}

/// Bounded by the number of tasks.
struct Running {
    tasks: BTreeMap<u64, Rc<dyn End>>,
    last_id: u64,
}

impl Running {
    const fn new() -> Self {
        Self { tasks: BTreeMap::new(), last_id: 0 }
    }

    fn insert(&mut self, task: Rc<dyn End>) -> u64 {
        self.last_id += 1;
        self.tasks.insert(self.last_id, task);
        self.last_id
    }
}

/// Ends the tasks of a runtime when its main future is done, or dropped.
struct EndTasks {
    /// Those of a runtime within whose poll this one runs (a simulation in a test, say).
    outer: BTreeMap<u64, Rc<dyn End>>,
}

impl Drop for EndTasks {
    fn drop(&mut self) {
        // A task may spawn another while it is dropped; that one is in the list then.
        while let Some((_, task)) = RUNNING.with_borrow_mut(|running| running.tasks.pop_first()) {
            task.end();
        }
        // Numbers are never given twice, so what is dropped late removes nobody else.
        RUNNING.with_borrow_mut(|running| running.tasks = take(&mut self.outer));
    }
}

struct Task<F: Future> {
    future: RefCell<CatchPanic<F>>,
    state: RefCell<State<F::Output>>,
    /// Wakes what the runtime polls.
    poller: RefCell<Option<Waker>>,
}

enum State<T> {
    Running(Option<Waker>),
    Done(Result<T, JoinError>),
    Taken,
}

/// What a [`JoinHandle`] knows of its task.
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

/// What [`run_main`] knows of a task.
trait End {
    /// Drops what the task holds, unless it is done; whoever waits for it learns that it was ended,
    /// and so does the runtime.
    fn end(&self);
}

impl<F: Future> End for Task<F> {
    fn end(&self) {
        let mut future = self.future.borrow_mut();
        if future.is_running() {
            let dropped = future.drop_future();
            drop(future);
            self.finish(Err(dropped.map_or_else(JoinError::Panicked, |()| JoinError::Ended)));
        }
        if let Some(poller) = self.poller.take() {
            poller.wake();
        }
    }
}

impl<F: Future> Task<F> {
    fn finish(&self, output: Result<F::Output, JoinError>) {
        let before = self.state.replace(State::Done(output));
        if let State::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// What the runtime polls: ready when the task is done or was ended.
struct Poller<F: Future> {
    task: Rc<Task<F>>,
    id: u64,
}

impl<F: Future> Future for Poller<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        coop::refill();
        let mut future = self.task.future.borrow_mut();
        if future.is_running() {
            let mut waker = self.task.poller.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            let output = ready!(Pin::new(&mut *future).poll(cx));
            drop(future);
            self.task.finish(output.map_err(JoinError::Panicked));
        }
        Poll::Ready(())
    }
}

impl<F: Future> Drop for Poller<F> {
    fn drop(&mut self) {
        // Nobody is left to be woken. Dropped before it is done where the runtime drops its tasks.
        self.task.poller.take();
        self.task.end();
        // Not there any more while a thread's locals are destroyed.
        drop(RUNNING.try_with(|running| running.borrow_mut().tasks.remove(&self.id)));
        // The last to know of a task that nobody waits for: its output is dropped here.
        let output =
            (Rc::strong_count(&self.task) == 1).then(|| self.task.state.replace(State::Taken));
        drop(catch_unwind(AssertUnwindSafe(|| drop(output))));
    }
}

/// A future whose panic is its output. What it holds is dropped before it is ready, and a panic
/// while that is dropped is its output too.
pub(crate) struct CatchPanic<F> {
    /// Boxed, so that it can be dropped in place without being pinned in what holds it.
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

/// Why a task has no output: what its [`JoinHandle`] says.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// It panicked; or what it held did, when the end of the runtime dropped it.
    Panicked(Panicked),
    /// Its runtime has ended, and dropped it.
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
    /// Keeps the message of a panic, not its payload.
    fn from(error: JoinError) -> Self {
        Self::other(error.to_string())
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

    /// Goes on panicking with it.
    ///
    /// # Panics
    /// Always.
    pub fn resume(self) -> ! {
        resume_unwind(self.payload)
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

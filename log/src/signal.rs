//! [`Signal`] and [`Reply`]: how the tasks of a partition wait for each other.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::Error;

/// Wakes all tasks that wait for a condition, which each of them checks again.
#[derive(Default)]
pub(crate) struct Signal {
    /// One for each task that waits.
    wakers: RefCell<BTreeMap<u64, Waker>>,
    last_key: Cell<u64>,
}

impl Signal {
    pub(crate) fn notify(&self) {
        let wakers = self.wakers.take();
        wakers.into_values().for_each(Waker::wake);
    }

    /// Waits until `ready` returns something. It is asked now and after each [`notify`](Self::notify).
    pub(crate) async fn wait_until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        self.last_key.set(self.last_key.get() + 1);
        let waiting = Waiting { signal: self, key: self.last_key.get() };
        poll_fn(|cx| {
            if let Some(value) = ready() {
                return Poll::Ready(value);
            }
            let replaced = self.wakers.borrow_mut().insert(waiting.key, cx.waker().clone());
            drop(replaced); // outside the borrow: it may run code of a task
            Poll::Pending
        })
        .await
    }
}

/// Removes the waker of a task that waits no more.
struct Waiting<'a> {
    signal: &'a Signal,
    key: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let removed = self.signal.wakers.borrow_mut().remove(&self.key);
        drop(removed);
    }
}

/// The answer to a request of the writer task. Dropping it answers that the log is closed.
pub(crate) struct Reply<T>(Rc<Answer<T>>);

/// Waits for a [`Reply`].
pub(crate) struct Answered<T>(Rc<Answer<T>>);

struct Answer<T> {
    value: RefCell<Option<Result<T, Error>>>,
    given: Signal,
}

pub(crate) fn reply<T>() -> (Reply<T>, Answered<T>) {
    let answer = Rc::new(Answer { value: RefCell::new(None), given: Signal::default() });
    (Reply(Rc::clone(&answer)), Answered(answer))
}

impl<T> Reply<T> {
    pub(crate) fn give(self, value: Result<T, Error>) {
        *self.0.value.borrow_mut() = Some(value);
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.0.value.borrow_mut().get_or_insert_with(|| Err(Error::closed()));
        self.0.given.notify();
    }
}

impl<T> Answered<T> {
    pub(crate) async fn wait(self) -> Result<T, Error> {
        self.0.given.wait_until(|| self.0.value.take()).await
    }
}

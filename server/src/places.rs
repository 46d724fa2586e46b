//! How many connections a worker may serve at once, and which of the places are taken.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

/// The connections that a worker may serve at once, over all its listeners.
#[derive(Clone, Debug)]
pub struct Places {
    shared: Rc<Shared>,
}

/// A place that is taken; free again when dropped.
#[derive(Debug)]
pub struct Place {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    free: Cell<usize>,
    all: usize,
    /// Those that wait for a place, or for all places to be free: a listener each, and the worker.
    waiting: RefCell<Vec<Waker>>,
}

impl Places {
    /// So many free places.
    pub fn new(count: usize) -> Self {
        let shared = Shared { free: Cell::new(count), all: count, waiting: RefCell::default() };
        Self { shared: Rc::new(shared) }
    }

    /// Waits for `next`, but only while a place is free, and takes that place once `next` is ready.
    ///
    /// Nobody has the place meanwhile: a listener without clients keeps none from the others.
    pub async fn take_for<F: Future>(&self, next: F) -> (Place, F::Output) {
        let mut next = pin!(next);
        poll_fn(|cx| {
            // Each time: the last place may have been taken since.
            ready!(self.poll_until(cx, |shared| shared.free.get() > 0));
            let output = ready!(next.as_mut().poll(cx));
            self.shared.free.set(self.shared.free.get() - 1);
            Poll::Ready((Place { shared: Rc::clone(&self.shared) }, output))
        })
        .await
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.shared.all - self.shared.free.get()
    }

    /// Waits until no place is taken.
    pub async fn all_free(&self) {
        poll_fn(|cx| self.poll_until(cx, |shared| shared.free.get() == shared.all)).await;
    }

    fn poll_until(&self, cx: &Context<'_>, condition: impl Fn(&Shared) -> bool) -> Poll<()> {
        if condition(&self.shared) {
            return Poll::Ready(());
        }
        let mut waiting = self.shared.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.free.set(self.shared.free.get() + 1);
        for waker in self.shared.waiting.take() {
            waker.wake();
        }
    }
}

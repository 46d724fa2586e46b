//! How many connections a worker may serve at once, and which of the places are taken.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

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

    /// Waits for a free place and takes it.
    pub async fn take(&self) -> Place {
        self.wait_until(|shared| shared.free.get() > 0).await;
        self.shared.free.set(self.shared.free.get() - 1);
        Place { shared: Rc::clone(&self.shared) }
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.shared.all - self.shared.free.get()
    }

    /// Waits until no place is taken.
    pub async fn all_free(&self) {
        self.wait_until(|shared| shared.free.get() == shared.all).await;
    }

    async fn wait_until(&self, condition: impl Fn(&Shared) -> bool) {
        poll_fn(|cx| {
            if condition(&self.shared) {
                return Poll::Ready(());
            }
            let mut waiting = self.shared.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
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

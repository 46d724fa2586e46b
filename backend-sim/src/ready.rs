//! [`Ready`]: the tasks that were woken. [`Round`]: the tasks that are polled next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use std::thread::{self, Thread};

use crate::rng::Rng;
use crate::slab::Key;

/// The tasks that were woken. It is shared with wakers, which may live on other threads.
pub(crate) struct Ready {
    /// Bounded by the number of tasks: each is in the list at most once.
    woken: Mutex<Vec<Arc<TaskWaker>>>,
    thread: Thread,
}

pub(crate) struct TaskWaker {
    pub(crate) key: Key,
    queued: AtomicBool,
    /// Weak, because `Ready` holds the wakers of woken tasks, and some may be left when it is dropped.
    ready: Weak<Ready>,
}

impl Ready {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { woken: Mutex::default(), thread: thread::current() })
    }

    pub(crate) fn push_new(self: &Arc<Self>, key: Key) {
        let queued = AtomicBool::new(false);
        Arc::new(TaskWaker { key, queued, ready: Arc::downgrade(self) }).wake();
    }

    /// Puts back tasks that were taken and not polled.
    pub(crate) fn push_again(&self, tasks: impl Iterator<Item = Arc<TaskWaker>>) {
        self.lock().extend(tasks);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<TaskWaker>>> {
        // No code that runs under the lock can panic.
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tasks that were ready when the round began. Each is polled once before any is polled again, as on every
/// runtime. Within a round the order is random, so that no code can rely on it.
#[derive(Default)]
pub(crate) struct Round {
    left: Vec<Arc<TaskWaker>>,
}

impl Round {
    pub(crate) const fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Begins the next round with the tasks that are ready now. The last round must be over.
    pub(crate) fn begin(&mut self, ready: &Ready) {
        std::mem::swap(&mut self.left, &mut *ready.lock());
    }

    /// Takes a random task of those that are left.
    pub(crate) fn take(&mut self, rng: &mut Rng) -> Option<Arc<TaskWaker>> {
        match self.left.len() {
            0 | 1 => self.left.pop(),
            len => Some(self.left.swap_remove(rng.index(len))),
        }
    }
}

impl TaskWaker {
    /// Says that the task is about to be polled: a wake from now on queues it again.
    pub(crate) fn mark_polled(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(ready) = self.ready.upgrade()
            && !self.queued.swap(true, Ordering::AcqRel)
        {
            ready.lock().push(self);
            ready.thread.unpark();
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // No clone if the task is queued already.
        if !self.queued.load(Ordering::Acquire) {
            Arc::clone(self).wake();
        }
    }
}

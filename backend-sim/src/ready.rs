//! [`Ready`]: the tasks that were woken, and [`Round`]: whose turn it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use std::thread::{self, Thread};

use crate::dice::Dice;
use crate::slab::Key;

/// The tasks that were woken. Shared with wakers, which may live on other threads.
pub(crate) struct Ready {
    /// Bounded by the number of tasks: each is in here at most once.
    woken: Mutex<Vec<Arc<TaskWaker>>>,
    thread: Thread,
}

pub(crate) struct TaskWaker {
    pub(crate) key: Key,
    queued: AtomicBool,
    /// Not kept alive: it holds the wakers of the tasks that were woken, and may end with some.
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

    /// Those that were taken, and had no turn.
    pub(crate) fn push_again(&self, tasks: impl Iterator<Item = Arc<TaskWaker>>) {
        self.lock().extend(tasks);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<TaskWaker>>> {
        // No code that can panic runs under the lock.
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tasks that were ready when it began. Each has its turn before any has another, as on every runtime;
/// within the round they run in no order that code could rely on.
#[derive(Default)]
pub(crate) struct Round {
    left: Vec<Arc<TaskWaker>>,
}

impl Round {
    pub(crate) const fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// After the last: with those that are ready now.
    pub(crate) fn begin(&mut self, ready: &Ready) {
        std::mem::swap(&mut self.left, &mut *ready.lock());
    }

    /// Any of those that are left.
    pub(crate) fn take(&mut self, dice: &mut Dice) -> Option<Arc<TaskWaker>> {
        match self.left.len() {
            0 | 1 => self.left.pop(),
            len => Some(self.left.swap_remove(dice.index(len))),
        }
    }
}

impl TaskWaker {
    /// Woken again from now on, it is to have another.
    pub(crate) fn has_its_turn(&self) {
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
        // Without a clone for one that is queued already.
        if !self.queued.load(Ordering::Acquire) {
            Arc::clone(self).wake();
        }
    }
}

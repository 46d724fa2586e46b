//! [`HalfWakers`]: the wakers of the halves of a connection, and one for both.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use super::Direction;

/// The tasks in which the halves were last polled.
pub(super) enum HalfWakers {
    /// One task, which is registered for the marked halves. It is woken directly.
    Single { task: Option<Waker>, is_registered: [bool; 2] },
    /// Two tasks, or an owner that needs a lasting waker. Few connections have that.
    Shared(Box<SharedWaker>),
}

/// A waker that wakes both halves, later registered tasks too.
pub(super) struct SharedWaker {
    /// Copies of the wakers in `wakers`. They avoid the lock while the tasks of the halves stay the same.
    tasks: [Option<Waker>; 2],
    wakers: Arc<Wakers>,
    /// Wakes `wakers`.
    waker: Waker,
}

/// Wakes the tasks of both halves. They may be the same task, different tasks, or none.
#[derive(Default)]
struct Wakers {
    /// Only the first, if both wake the same task.
    halves: Mutex<[Option<Waker>; 2]>,
}

impl HalfWakers {
    /// No task.
    pub(super) const fn new() -> Self {
        Self::Single { task: None, is_registered: [false; 2] }
    }

    /// Registers the task of a half. Returns whether [`waker`](Self::waker) is another one than before.
    #[inline]
    pub(super) fn register(&mut self, direction: Direction, waker: &Waker) -> bool {
        let half = direction as usize;
        let (task, is_registered_half) = match self {
            Self::Single { task, is_registered } => (&*task, is_registered[half]),
            Self::Shared(shared) => (&shared.tasks[half], true),
        };
        let is_known =
            is_registered_half && task.as_ref().is_some_and(|task| task.will_wake(waker));
        !is_known && self.update(direction, waker)
    }

    /// Wakes the tasks that are registered now. A [shared](Self::share) one wakes those that are registered later, too.
    #[inline]
    pub(super) const fn waker(&self) -> &Waker {
        match self {
            Self::Single { task: Some(task), .. } => task,
            Self::Single { task: None, .. } => Waker::noop(),
            Self::Shared(shared) => &shared.waker,
        }
    }

    /// Wakes the task of one half, if it is registered.
    #[inline]
    pub(super) fn wake(&self, direction: Direction) {
        let half = direction as usize;
        let task = match self {
            Self::Single { task, is_registered } => task.as_ref().filter(|_| is_registered[half]),
            Self::Shared(shared) => shared.tasks[half].as_ref(),
        };
        task.map(Waker::wake_by_ref);
    }

    /// Makes [`waker`](Self::waker) one that stays the same.
    #[cold]
    pub(super) fn share(&mut self) -> &mut SharedWaker {
        if let Self::Single { task, is_registered } = self {
            let tasks =
                is_registered.map(|is_registered_half| task.clone().filter(|_| is_registered_half));
            *self = Self::Shared(Box::new(SharedWaker::new(tasks)));
        }
        match self {
            Self::Shared(shared) => shared,
            Self::Single { .. } => unreachable!("it was replaced"),
        }
    }

    #[cold]
    fn update(&mut self, direction: Direction, waker: &Waker) -> bool {
        let half = direction as usize;
        match self {
            Self::Single { task, is_registered } => {
                let is_other_registered = is_registered[1 - half];
                let will_wake = |other| task.as_ref().is_some_and(|task| task.will_wake(other));
                if will_wake(waker) {
                    is_registered[half] = true;
                    return false;
                }
                // The first poll of an eager task registers a waker that wakes nobody.
                if is_other_registered && !will_wake(Waker::noop()) {
                    self.share().set(direction, waker);
                    return true;
                }
                is_registered[half] = true;
                is_registered[1 - half] = false;
                let before = task.replace(waker.clone());
                drop(before);
                true
            }
            Self::Shared(shared) => {
                shared.set(direction, waker);
                false
            }
        }
    }
}

impl SharedWaker {
    fn new(tasks: [Option<Waker>; 2]) -> Self {
        let wakers = Arc::<Wakers>::default();
        let new = Self { tasks, waker: Waker::from(Arc::clone(&wakers)), wakers };
        new.publish();
        new
    }

    fn set(&mut self, direction: Direction, waker: &Waker) {
        self.tasks[direction as usize] = Some(waker.clone());
        self.publish();
    }

    /// Copies `tasks` to `wakers`.
    fn publish(&self) {
        let [read, write] = &self.tasks;
        let is_same = read.as_ref().zip(write.as_ref()).is_some_and(|(a, b)| a.will_wake(b));
        let halves = [read.clone(), write.clone().filter(|_| !is_same)];
        let before = mem::replace(&mut *self.wakers.lock(), halves);
        drop(before); // without the lock
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Task {
        fn new() -> (Arc<Self>, Waker) {
            let task = Arc::<Self>::default();
            (Arc::clone(&task), Waker::from(task))
        }

        fn take_count(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    /// Miri may give clones of a waker different vtables, and then `will_wake` is false.
    #[cfg(not(miri))]
    #[test]
    fn both_halves_in_one_task_need_no_other_waker() {
        let ((task, waker), mut wakers) = (Task::new(), HalfWakers::new());
        assert!(wakers.register(Direction::Read, &waker), "it is new");
        assert!(!wakers.register(Direction::Write, &waker));
        assert!(!wakers.register(Direction::Read, &waker));
        assert!(wakers.waker().will_wake(&waker));
        for half in [Direction::Read, Direction::Write] {
            wakers.wake(half);
            assert_eq!(task.take_count(), 1);
        }
        wakers.share();
        wakers.waker().wake_by_ref();
        assert_eq!(task.take_count(), 1, "once, as both are one task");
    }

    /// As above about Miri.
    #[cfg(not(miri))]
    #[test]
    fn a_waker_that_wakes_nobody_does_not_count_as_another_task() {
        let ((task, waker), mut wakers) = (Task::new(), HalfWakers::new());
        for half in [Direction::Read, Direction::Write] {
            wakers.register(half, Waker::noop());
        }
        assert!(wakers.register(Direction::Read, &waker));
        assert!(wakers.waker().will_wake(&waker), "it needs no other waker");
        wakers.wake(Direction::Write);
        assert_eq!(task.take_count(), 0, "that half has not been polled by this task");
        assert!(!wakers.register(Direction::Write, &waker));
        wakers.wake(Direction::Write);
        assert_eq!(task.take_count(), 1);
    }

    #[test]
    fn a_half_that_was_not_polled_is_not_woken() {
        let ((task, waker), mut wakers) = (Task::new(), HalfWakers::new());
        wakers.register(Direction::Write, &waker);
        wakers.wake(Direction::Read);
        assert_eq!(task.take_count(), 0);
    }

    #[test]
    fn a_half_that_moves_to_another_task_takes_its_waker_along() {
        let ((old, old_waker), (new, new_waker)) = (Task::new(), Task::new());
        let mut wakers = HalfWakers::new();
        wakers.register(Direction::Read, &old_waker);
        assert!(wakers.register(Direction::Read, &new_waker));
        wakers.waker().wake_by_ref();
        assert_eq!((old.take_count(), new.take_count()), (0, 1));
    }

    #[test]
    fn two_tasks_share_a_waker_that_stays() {
        let ((read, read_waker), (write, write_waker)) = (Task::new(), Task::new());
        let mut wakers = HalfWakers::new();
        wakers.register(Direction::Read, &read_waker);
        assert!(wakers.register(Direction::Write, &write_waker), "it wakes both");
        let waker = wakers.waker().clone();
        waker.wake_by_ref();
        assert_eq!((read.take_count(), write.take_count()), (1, 1));
        wakers.wake(Direction::Write);
        assert_eq!((read.take_count(), write.take_count()), (0, 1));
        assert!(!wakers.register(Direction::Write, &read_waker), "it is the same");
        waker.wake_by_ref();
        assert_eq!(write.take_count(), 0, "it is not registered any more");
    }

    #[test]
    fn a_shared_waker_wakes_those_that_are_registered_later() {
        let ((task, waker), mut wakers) = (Task::new(), HalfWakers::new());
        wakers.share();
        let shared = wakers.waker().clone();
        assert!(!wakers.register(Direction::Read, &waker));
        shared.wake_by_ref();
        assert_eq!(task.take_count(), 1);
    }
}

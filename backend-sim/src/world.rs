//! The simulated world of a thread: its tasks, clock, dice and network names.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::{self, Rc};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use owned_io::backend::run_main;

use crate::listener::AcceptQueue;

/// What one poll of a task takes by the virtual clock, so that timers are reached even while some
/// task is always ready.
const POLL_TAKES: Duration = Duration::from_micros(1);

/// How long, by the real clock, a world with nothing left to do waits for a wake from another
/// thread before it says that it never comes.
const DEADLOCK_AFTER: Duration = Duration::from_secs(10);

/// What a timer set for this time waits for. The clock does not go there.
const NEVER: Duration = Duration::MAX;

thread_local! {
    static CURRENT: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// Runs `future`, and the tasks it spawns, in a world of its own until it is done.
///
/// # Panics
/// Within itself; and when nothing is left that could ever wake `future`.
pub(crate) fn run<F: Future>(seed: u64, future: F) -> F::Output {
    let world = Rc::new(World::new(seed));
    CURRENT.with_borrow_mut(|current| {
        assert!(current.is_none(), "a simulation runs on this thread already");
        *current = Some(Rc::clone(&world));
    });
    let _leave = Leave(Rc::clone(&world));
    world.run(run_main(future)).unwrap_or_else(|panicked| panicked.resume())
}

/// The world that runs on this thread.
///
/// # Panics
/// Outside a simulation.
pub(crate) fn current() -> Rc<World> {
    CURRENT.with_borrow(Clone::clone).expect("called outside of a simulation (Sim::block_on)")
}

/// Drops the tasks while the world can still be reached, then leaves it; on a panic too.
struct Leave(Rc<World>);

impl Drop for Leave {
    fn drop(&mut self) {
        // A task may spawn another while it is dropped.
        while let Some((_, task)) = self.0.take_first_task() {
            drop(task);
        }
        CURRENT.with_borrow_mut(|current| *current = None);
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;
type TaskId = u64;

/// The future given to [`run`]; spawned tasks count from 1.
const MAIN: TaskId = 0;

pub(crate) struct World {
    pub(crate) dice: Dice,
    seed: u64,
    started: Instant,
    /// Virtual time since `started`.
    elapsed: Cell<Duration>,
    /// Those that wait; the one that is polled is taken out, because it may spawn.
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    last_task: Cell<TaskId>,
    ready: Arc<Ready>,
    timers: RefCell<BTreeMap<TimerKey, Waker>>,
    last_timer: Cell<u64>,
    pub(crate) listeners: RefCell<BTreeMap<SocketAddr, Vec<rc::Weak<AcceptQueue>>>>,
}

/// When, then in the order they were set.
type TimerKey = (Duration, u64);

impl World {
    fn new(seed: u64) -> Self {
        Self {
            dice: Dice { state: Cell::new(seed) },
            seed,
            started: Instant::now(),
            elapsed: Cell::default(),
            tasks: RefCell::default(),
            last_task: Cell::new(MAIN),
            ready: Arc::new(Ready { woken: Mutex::default(), thread: thread::current() }),
            timers: RefCell::default(),
            last_timer: Cell::default(),
            listeners: RefCell::default(),
        }
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        let mut main = pin!(future);
        self.ready.push_new(MAIN);
        loop {
            self.fire_timers();
            let Some(woken) = self.ready.take(&self.dice) else {
                self.wait_for_event();
                continue;
            };
            self.elapsed.set(self.elapsed.get() + POLL_TAKES);
            let id = woken.id;
            let waker = Waker::from(woken);
            let mut cx = Context::from_waker(&waker);
            if id == MAIN {
                if let Poll::Ready(output) = main.as_mut().poll(&mut cx) {
                    return output;
                }
                continue;
            }
            let task = self.tasks.borrow_mut().remove(&id);
            if let Some(mut task) = task
                && task.as_mut().poll(&mut cx).is_pending()
            {
                self.tasks.borrow_mut().insert(id, task);
            }
        }
    }

    /// Nothing is ready: goes to the time of the next timer, or else waits for another thread.
    fn wait_for_event(&self) {
        let next = self.timers.borrow().keys().next().copied();
        if let Some((when, _)) = next.filter(|(when, _)| *when < NEVER) {
            self.elapsed.set(when);
            return;
        }
        let gave_up = Instant::now() + DEADLOCK_AFTER;
        while self.ready.is_empty() {
            let left = gave_up.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "deadlock: no task is ready, no timer is set, and no other thread woke one in \
                 {DEADLOCK_AFTER:?} (seed {})",
                self.seed,
            );
            thread::park_timeout(left);
        }
    }

    fn fire_timers(&self) {
        loop {
            let mut timers = self.timers.borrow_mut();
            let Some(first) =
                timers.first_entry().filter(|timer| timer.key().0 <= self.elapsed.get())
            else {
                return;
            };
            let waker = first.remove();
            drop(timers);
            waker.wake();
        }
    }

    pub(crate) fn spawn(&self, task: Task) {
        let id = self.last_task.get() + 1;
        self.last_task.set(id);
        self.tasks.borrow_mut().insert(id, task);
        self.ready.push_new(id);
    }

    fn take_first_task(&self) -> Option<(TaskId, Task)> {
        self.tasks.borrow_mut().pop_first()
    }

    pub(crate) fn now(&self) -> Instant {
        self.started + self.elapsed.get()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    pub(crate) fn sleep(self: Rc<Self>, duration: Duration) -> Sleep {
        let when = self.elapsed.get().saturating_add(duration);
        Sleep { world: self, when, key: None }
    }
}

/// Waits for the virtual clock. A sleep of zero still gives every ready task its turn.
pub(crate) struct Sleep {
    world: Rc<World>,
    when: Duration,
    key: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = Rc::clone(&self.world);
        let key = match self.key {
            Some(key) if world.elapsed.get() >= key.0 => return Poll::Ready(()),
            Some(key) => key,
            None => {
                world.last_timer.set(world.last_timer.get() + 1);
                (self.when, world.last_timer.get())
            }
        };
        self.key = Some(key);
        world.timers.borrow_mut().insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.world.timers.borrow_mut().remove(&key);
        }
    }
}

/// The tasks that were woken. Shared with wakers, which may live on other threads.
struct Ready {
    /// Bounded by the number of tasks: each is in here at most once.
    woken: Mutex<Vec<Arc<TaskWaker>>>,
    thread: Thread,
}

impl Ready {
    fn push_new(self: &Arc<Self>, id: TaskId) {
        let queued = AtomicBool::new(false);
        Arc::new(TaskWaker { id, queued, ready: Arc::downgrade(self) }).wake();
    }

    /// Any of them: tasks run in no order that code could rely on.
    fn take(&self, dice: &Dice) -> Option<Arc<TaskWaker>> {
        let mut woken = self.lock();
        if woken.is_empty() {
            return None;
        }
        let any = dice.below(woken.len());
        let task = woken.swap_remove(any);
        // Woken again from now on, it is to be polled again.
        task.queued.store(false, Ordering::Release);
        Some(task)
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<TaskWaker>>> {
        // No code that can panic runs under the lock.
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    id: TaskId,
    queued: AtomicBool,
    /// Not kept alive: it holds the wakers of the tasks that were woken, and may end with some.
    ready: Weak<Ready>,
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
}

/// SplitMix64 (Steele, Lea, Flood 2014): ten lines that stay the same for ever, so that a seed
/// means the same run in every version.
pub(crate) struct Dice {
    state: Cell<u64>,
}

impl Dice {
    pub(crate) fn roll(&self) -> u64 {
        let state = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound - 1`; `bound` is not zero.
    pub(crate) fn below(&self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// All of `most`, or, half the time, any smaller part that is not nothing.
    pub(crate) fn part_of(&self, most: usize) -> usize {
        if most <= 1 || self.one_in(2) { most } else { 1 + self.below(most) }
    }
}

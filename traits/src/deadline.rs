//! [`Deadline`]: a coarse timer. All deadlines of a runtime share one timer of the runtime.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::Clock;

/// A timer for limits of time, of which each connection has some: an idle connection holds an entry of 32 bytes in an
/// ordered map, and no timer of the runtime.
///
/// A deadline is never early. It is late by at most a tick: a [`TICKS_MIN`](Self::TICKS_MIN)th of the time that it is set
/// for, but at least a millisecond and at most [`TICK_MAX`](Self::TICK_MAX). The runtime's own timer and work on the
/// thread add to that, as they do to a [sleep](Clock::sleep). Deadlines in one tick pass together.
///
/// Setting it takes a time that is logarithmic in the number of deadlines. So a protocol does not set it with each
/// message. It lets the deadline pass, looks at when the last message came, and sets it for the rest.
///
/// ```
/// use std::future::poll_fn;
/// use std::time::Duration;
/// use owned_io::{Clock, Deadline};
/// use owned_io_sim::Sim;
///
/// # owned_io_sim::block_on(async {
/// let mut deadline = Deadline::new();
/// let start = Sim::now();
/// poll_fn(|cx| {
///     if !deadline.is_set() {
///         deadline.set(Duration::from_secs(30), cx.waker());
///     }
///     deadline.poll_passed(cx)
/// })
/// .await;
/// let late = Sim::now() - start - Duration::from_secs(30);
/// assert!(late <= Deadline::TICK_MAX + Duration::from_millis(2));
/// # });
/// ```
pub struct Deadline {
    deadlines: Rc<Deadlines>,
    id: u64,
    /// When it passes, in milliseconds since [`Deadlines::start`]. [`NEVER`]: it is not set.
    due: u64,
}

/// How many deadlines are woken before other tasks run: some 100 µs of work. All connections of a worker may have been
/// idle for the same time.
const FIRED_MAX: usize = 1_024;

/// No deadline is later: that is 584 million years.
const NEVER: u64 = u64::MAX;

impl Deadline {
    /// The time that a deadline is set for has at least as many ticks.
    pub const TICKS_MIN: u32 = 64;

    /// The longest tick: long deadlines wake their worker at most eight times a second, however many there are.
    pub const TICK_MAX: Duration = Duration::from_millis(128);

    /// A deadline that is not set.
    ///
    /// # Panics
    /// If called outside of [`block_on`](crate::Executor::block_on).
    #[expect(clippy::new_without_default, reason = "it belongs to a runtime")]
    pub fn new() -> Self {
        let deadlines = CURRENT.with_borrow(Clone::clone).expect("called outside of `block_on`");
        let id = deadlines.last_id.get() + 1;
        deadlines.last_id.set(id);
        Self { deadlines, id, due: NEVER }
    }

    /// Whether it is set. It may have passed.
    pub const fn is_set(&self) -> bool {
        self.due != NEVER
    }

    /// Whether it is set and has passed. This does not read the clock. It is true when its waker is woken.
    #[inline]
    pub fn has_passed(&self) -> bool {
        self.due <= self.deadlines.reached.get()
    }

    /// Sets it, within its runtime: after the end of [`block_on`](crate::Executor::block_on) it never passes. It passes when `left` has passed from now on, and then wakes `waker`. Replaces what was set before.
    pub fn set(&mut self, left: Duration, waker: &Waker) {
        self.clear();
        self.due = self.deadlines.due_after(left);
        self.deadlines.register((self.due, self.id), waker);
    }

    /// Ends the wait, if it is set.
    pub fn clear(&mut self) {
        let key = (mem::replace(&mut self.due, NEVER), self.id);
        if key.0 != NEVER {
            // The waker may be the last of its task, which is then dropped here. Nothing is borrowed any more.
            let waker = self.deadlines.waiting.borrow_mut().remove(&key);
            drop(waker);
        }
    }

    /// Waits until it [has passed](Self::has_passed). Then it is not set any more. One that is not set never passes.
    ///
    /// # Cancellation
    /// Safe: it stays set.
    pub fn poll_passed(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.has_passed() {
            self.clear();
            return Poll::Ready(());
        }
        if self.is_set() {
            self.deadlines.replace_waker(&(self.due, self.id), cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadline").field("is_set", &self.is_set()).finish_non_exhaustive()
    }
}

thread_local! {
    /// The deadlines of this thread's runtime.
    static CURRENT: RefCell<Option<Rc<Deadlines>>> = const { RefCell::new(None) };
}

/// The deadlines of a runtime. No code of others runs while `waiting` is borrowed: wakers are called and dropped
/// outside.
struct Deadlines {
    now: fn() -> Instant,
    start: Instant,
    /// All deadlines up to here have passed, in milliseconds since `start`.
    reached: Cell<u64>,
    /// Those that have not passed, with their ids. Bounded by the number of deadlines, which their tasks own.
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    last_id: Cell<u64>,
    /// When the timer of the [`Driver`] fires.
    armed: Cell<u64>,
    /// Wakes the task of the driver.
    driver: RefCell<Option<Waker>>,
}

impl Deadlines {
    /// The tick at or after the time that is `left` from now.
    fn due_after(&self, left: Duration) -> u64 {
        let tick_max = Deadline::TICK_MAX.as_millis() as u64;
        let passed = (self.now)().saturating_duration_since(self.start);
        let millis = passed.saturating_add(left).as_nanos().div_ceil(1_000_000);
        let tick = (left.as_millis() / u128::from(Deadline::TICKS_MIN)).max(1);
        // Powers of two, so that deadlines of different ticks fire together.
        let tick = u64::try_from(tick).map_or(tick_max, |tick| (1 << tick.ilog2()).min(tick_max));
        let millis = u64::try_from(millis).unwrap_or(NEVER);
        millis.checked_next_multiple_of(tick).unwrap_or(NEVER).min(NEVER - 1)
    }

    fn register(&self, key: (u64, u64), waker: &Waker) {
        let waker = waker.clone();
        self.waiting.borrow_mut().insert(key, waker);
        if key.0 < self.armed.get() {
            self.armed.set(key.0);
            let driver = self.driver.borrow().clone();
            driver.iter().for_each(Waker::wake_by_ref);
        }
    }

    fn replace_waker(&self, key: &(u64, u64), waker: &Waker) {
        let is_other = |registered: &Waker| !registered.will_wake(waker);
        if self.waiting.borrow().get(key).is_some_and(is_other) {
            let waker = waker.clone();
            let mut waiting = self.waiting.borrow_mut();
            let before = waiting.get_mut(key).map(|registered| mem::replace(registered, waker));
            drop(waiting);
            drop(before);
        }
    }

    /// The first deadline.
    fn first(&self) -> u64 {
        self.waiting.borrow().first_key_value().map_or(NEVER, |((due, _), _)| *due)
    }

    /// Wakes those whose time has come, at most [`FIRED_MAX`].
    fn fire(&self) {
        let passed = (self.now)().saturating_duration_since(self.start).as_millis();
        let reached = u64::try_from(passed).unwrap_or(NEVER).min(NEVER - 1);
        self.reached.set(reached.max(self.reached.get()));
        for _ in 0..FIRED_MAX {
            let Some(waker) = self.take_due(reached) else { return };
            waker.wake();
        }
    }

    /// Takes the first one if it is due.
    fn take_due(&self, reached: u64) -> Option<Waker> {
        let mut waiting = self.waiting.borrow_mut();
        let first = waiting.first_entry()?;
        (first.key().0 <= reached).then(|| first.remove())
    }
}

/// Drives the deadlines of a runtime, as a part of its main task. So they need no task of their own, which a simulated
/// host could take with it when it stops.
pub(crate) struct Driver<S> {
    deadlines: Rc<Deadlines>,
    /// Those of an outer runtime, if this one runs within its poll.
    outer: Option<Rc<Deadlines>>,
    sleep: fn(Duration) -> S,
    /// The timer of the runtime, and when it fires.
    timer: Option<(u64, Pin<Box<S>>)>,
    /// What the timer wakes.
    waker: Option<(Arc<TimerWaker>, Waker)>,
}

/// Wakes the main task, and records that the timer has fired. Without it, each poll of the main task would poll the timer.
struct TimerWaker {
    main: Waker,
    has_fired: AtomicBool,
}

/// Begins to drive the deadlines of the runtime on this thread.
pub(crate) fn drive<C: Clock>() -> Driver<impl Future<Output = ()>> {
    let deadlines = Rc::new(Deadlines {
        now: C::now,
        start: C::now(),
        reached: Cell::new(0),
        waiting: RefCell::default(),
        last_id: Cell::new(0),
        armed: Cell::new(NEVER),
        driver: RefCell::default(),
    });
    let outer = CURRENT.replace(Some(Rc::clone(&deadlines)));
    Driver { deadlines, outer, sleep: C::sleep, timer: None, waker: None }
}

impl<S: Future<Output = ()>> Driver<S> {
    /// Wakes the deadlines whose time has come. Call it in each poll of the main task.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &Context<'_>) {
        let waker = self.waker.as_ref().filter(|(timer, _)| timer.main.will_wake(cx.waker()));
        let is_quiet = waker.is_some_and(|(timer, _)| !timer.has_fired.load(Ordering::Acquire));
        let fires_at = self.timer.as_ref().map_or(NEVER, |(fires_at, _)| *fires_at);
        if !is_quiet || fires_at != self.deadlines.armed.get() {
            self.poll_slow(cx);
        }
    }

    #[cold]
    fn poll_slow(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|(timer, _)| timer.main.will_wake(cx.waker())) {
            let main = cx.waker().clone();
            self.deadlines.driver.replace(Some(main.clone()));
            let timer = Arc::new(TimerWaker { main, has_fired: AtomicBool::new(false) });
            self.waker = Some((Arc::clone(&timer), Waker::from(timer)));
        }
        let Some((fired, waker)) = &self.waker else { return };
        fired.has_fired.store(false, Ordering::Release);
        // Each round but the last waits for a timer, whose time has come.
        loop {
            let first = self.deadlines.first();
            // A timer that fires early is kept: whoever set its deadline has cleared it, and often sets it again.
            let is_late = self.timer.as_ref().is_none_or(|(fires_at, _)| *fires_at > first);
            if first == NEVER {
                self.timer = None;
            } else if is_late {
                let passed = (self.deadlines.now)().saturating_duration_since(self.deadlines.start);
                let left = Duration::from_millis(first).saturating_sub(passed);
                self.timer = Some((first, Box::pin((self.sleep)(left))));
            }
            let timer = self.timer.as_mut();
            self.deadlines.armed.set(timer.as_ref().map_or(NEVER, |(fires_at, _)| *fires_at));
            let Some((_, sleep)) = timer else { return };
            if sleep.as_mut().poll(&mut Context::from_waker(waker)).is_pending() {
                return;
            }
            self.timer = None;
            self.deadlines.fire();
        }
    }
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        // An error: the thread ends.
        let inner = CURRENT.try_with(|current| current.replace(self.outer.take()));
        drop(inner);
        // A deadline may outlive the runtime. Its wakers may not.
        self.deadlines.armed.set(0);
        let driver = self.deadlines.driver.take();
        drop(driver);
    }
}

impl Wake for TimerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_fired.store(true, Ordering::Release);
        self.main.wake_by_ref();
    }
}

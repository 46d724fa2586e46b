//! [`Sleep`]: the sleeps of a runtime, which share one timer of monoio.
//!
//! A timer of monoio takes 640 bytes that are aligned to 128 (0.2.4), and each idle connection has one. Here a sleep is an
//! entry of 40 bytes in a tree.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use owned_io::select;

thread_local! {
    /// The sleeps of the runtime on this thread.
    static TIMERS: RefCell<Timers> = const { RefCell::new(Timers::new()) };
}

/// Bounded by the number of sleeps, which their tasks own. Wakers are called and dropped while it is not borrowed: that runs
/// code of others.
struct Timers {
    /// By time, and in the order of their registration.
    waiting: BTreeMap<(Instant, u64), Waker>,
    last_id: u64,
    /// When the timer of [`drive`] fires.
    armed: Option<Instant>,
    /// The task of `drive`.
    driver: Option<Waker>,
    has_ended: bool,
}

impl Timers {
    const fn new() -> Self {
        let waiting = BTreeMap::new();
        Self { waiting, last_id: 0, armed: None, driver: None, has_ended: false }
    }

    /// Returns the driver if it has to wake earlier than it would, and the waker that was registered before.
    fn register(&mut self, due: Instant, id: &mut u64, waker: &Waker) -> [Option<Waker>; 2] {
        if *id == 0 {
            self.last_id += 1;
            *id = self.last_id;
        }
        let replaced = self.waiting.insert((due, *id), waker.clone());
        if self.armed.is_some_and(|at| at <= due) {
            return [None, replaced];
        }
        self.armed = Some(due);
        [self.driver.clone(), replaced]
    }

    fn has_waker(&self, due: Instant, id: u64, waker: &Waker) -> bool {
        self.waiting.get(&(due, id)).is_some_and(|registered| registered.will_wake(waker))
    }

    /// Takes the first sleep whose time has come.
    fn take_due(&mut self, now: Instant) -> Option<Waker> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

/// Waits until a time has come.
pub(crate) struct Sleep {
    due: Instant,
    /// 0 before it is registered.
    id: u64,
}

impl Sleep {
    pub(crate) const fn until(due: Instant) -> Self {
        Self { due, id: 0 }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            return Poll::Ready(());
        }
        let Self { due, ref mut id } = *self;
        let registered = TIMERS.with_borrow_mut(|timers| {
            (!timers.has_waker(due, *id, cx.waker())).then(|| timers.register(due, id, cx.waker()))
        });
        if let Some([Some(driver), _]) = registered {
            driver.wake();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // An error: the thread ends.
        let waker = TIMERS.try_with(|timers| {
            (self.id != 0).then(|| timers.borrow_mut().waiting.remove(&(self.due, self.id)))
        });
        drop(waker); // which may be the last of its task
    }
}

/// Wakes the sleeps of this thread when their time has come, until the runtime [ends](end).
pub(crate) async fn drive() {
    loop {
        let first = TIMERS.with_borrow_mut(|timers| {
            timers.armed = timers.waiting.keys().next().map(|(due, _)| *due);
            timers.armed
        });
        let mut rearmed = pin!(wait_for_change(first));
        match first {
            Some(due) => {
                select(rearmed, monoio::time::sleep_until(due.into())).await;
            }
            None => rearmed.as_mut().await,
        }
        if TIMERS.with_borrow(|timers| timers.has_ended) {
            return;
        }
        let now = Instant::now();
        // Each round takes one of those that were registered before `now`.
        while let Some(waker) = TIMERS.with_borrow_mut(|timers| timers.take_due(now)) {
            waker.wake();
        }
    }
}

/// Waits until the first time is another than `first`, or the runtime ends.
async fn wait_for_change(first: Option<Instant>) {
    poll_fn(|cx| {
        let (is_other, replaced) = TIMERS.with_borrow_mut(|timers| {
            let replaced = timers.driver.replace(cx.waker().clone());
            (timers.has_ended || timers.armed != first, replaced)
        });
        drop(replaced);
        if is_other { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Begins with no sleeps. A runtime that ended on this thread has left some if it leaks its tasks.
pub(crate) fn begin() {
    drop(TIMERS.replace(Timers::new()));
}

/// Ends [`drive`], which returns when it is polled next. Sleeps that are left are never woken.
pub(crate) fn end() {
    let driver = TIMERS.with_borrow_mut(|timers| {
        timers.has_ended = true;
        mem::take(&mut timers.driver)
    });
    if let Some(driver) = driver {
        driver.wake();
    }
}

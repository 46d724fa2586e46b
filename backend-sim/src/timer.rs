//! [`Sleep`], and the timers that implement it.

use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::core::{Core, Event, Time};
use crate::executor::Shared;
use crate::queue::TIME_MAX;
use crate::slab::{Key, Slab};

/// Cancelled timers stay in the queue until their time. When they outnumber the live ones by this many, they are
/// removed. So the queue is at most about twice as long as necessary.
const CANCELLED_SPARE: usize = 1024;

/// The timers of a simulation.
pub(crate) struct Timers {
    waiting: Slab<Waker>,
    /// How many timers in the queue were cancelled.
    cancelled: usize,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { waiting: Slab::new(), cancelled: 0 }
    }
}

impl Core {
    fn set_timer(&mut self, when: Time, waker: Waker) -> Key {
        let key = self.timers.waiting.insert(waker);
        self.queue.push(when, Event::Timer(key));
        key
    }

    /// Wakes the task of a timer that is due.
    pub(crate) fn fire_timer(&mut self, key: Key) {
        match self.timers.waiting.remove(key) {
            Some(waker) => self.woken.push(waker),
            None => self.timers.cancelled -= 1,
        }
    }

    fn cancel_timer(&mut self, key: Key) {
        let Some(waker) = self.timers.waiting.remove(key) else { return };
        self.dropped.push(waker);
        self.timers.cancelled += 1;
        if self.timers.cancelled > self.timers.waiting.len() + CANCELLED_SPARE {
            let waiting = &self.timers.waiting;
            self.queue.retain(|event| match event {
                Event::Timer(key) => waiting.get(*key).is_some(),
                _ => true,
            });
            self.timers.cancelled = 0;
        }
    }
}

/// Waits for the virtual clock. A sleep of zero still lets every ready task be polled.
pub(crate) struct Sleep {
    /// Weak, because a sleep may be in a task, which the simulation owns.
    world: Weak<Shared>,
    /// `None` is never.
    when: Option<Time>,
    timer: Option<Key>,
}

impl Sleep {
    pub(crate) fn new(world: &Rc<Shared>, duration: Duration) -> Self {
        let now = world.core.borrow().now;
        let when = u64::try_from(duration.as_nanos()).ok().and_then(|nanos| now.checked_add(nanos));
        let when = when.filter(|when| *when < TIME_MAX);
        Self { world: Rc::downgrade(world), when, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (Some(when), Some(world)) = (self.when, self.world.upgrade()) else {
            return Poll::Pending;
        };
        world.with(|core| {
            let Some(key) = self.timer else {
                self.timer = Some(core.set_timer(when, cx.waker().clone()));
                return Poll::Pending;
            };
            if core.now >= when {
                return Poll::Ready(());
            }
            if let Some(waker) = core.timers.waiting.get_mut(key)
                && !waker.will_wake(cx.waker())
            {
                let before = std::mem::replace(waker, cx.waker().clone());
                core.dropped.push(before);
            }
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(key), Some(world)) = (self.timer, self.world.upgrade()) {
            world.with(|core| core.cancel_timer(key));
        }
    }
}

//! [`Sleep`] and the timers behind it.

use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::core::{Core, Event, Time};
use crate::executor::Shared;
use crate::queue::TIME_MAX;
use crate::slab::{Key, Slab};

/// Timers that were given up stay in the queue until their time; when there are more of them than of
/// the others, by this many, they are swept out. So the queue is at most twice as long as it must be.
const GIVEN_UP_SPARE: usize = 1024;

/// Those that wait for their time.
pub(crate) struct Timers {
    waiting: Slab<Waker>,
    /// In the queue, but not waiting any more.
    given_up: usize,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { waiting: Slab::new(), given_up: 0 }
    }
}

impl Core {
    fn set_timer(&mut self, when: Time, waker: Waker) -> Key {
        let key = self.timers.waiting.insert(waker);
        self.queue.push(when, Event::Timer(key));
        key
    }

    /// Its time has come.
    pub(crate) fn fire_timer(&mut self, key: Key) {
        match self.timers.waiting.remove(key) {
            Some(waker) => self.woken.push(waker),
            None => self.timers.given_up -= 1,
        }
    }

    fn give_timer_up(&mut self, key: Key) {
        let Some(waker) = self.timers.waiting.remove(key) else { return };
        self.dropped.push(waker);
        self.timers.given_up += 1;
        if self.timers.given_up > self.timers.waiting.len() + GIVEN_UP_SPARE {
            let waiting = &self.timers.waiting;
            self.queue.retain(|event| match event {
                Event::Timer(key) => waiting.get(*key).is_some(),
                _ => true,
            });
            self.timers.given_up = 0;
        }
    }
}

/// Waits for the virtual clock. A sleep of zero still gives every ready task its turn.
pub(crate) struct Sleep {
    /// Not kept alive: a sleep may be in a task, which is in the world.
    world: Weak<Shared>,
    /// None is never.
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
            world.with(|core| core.give_timer_up(key));
        }
    }
}

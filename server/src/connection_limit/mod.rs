//! [`ConnectionLimit`]: how many connections may be served at once, in total and for each address.

mod per_address;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use owned_io_stalls::{Counted, Gauge};

pub use per_address::{AddressLimit, AddressPermit};

/// The limit on the connections that all workers together serve at once.
///
/// Any worker may use any permit. The kernel spreads clients over the listeners of the workers by chance, and
/// a client cannot change queues: with permits of its own, a worker that has none left would keep clients
/// waiting while another worker has some.
#[derive(Clone, Debug)]
pub struct SharedConnectionLimit {
    shared: Arc<Shared>,
    addresses: AddressLimit,
}

/// The limit as one worker uses it, over all its listeners. Clones are the same limit.
#[derive(Clone, Debug)]
pub struct ConnectionLimit {
    limit: SharedConnectionLimit,
    local: Rc<Local>,
    /// Counts waits for a permit while they last.
    pauses: Option<Gauge>,
}

/// Permission to serve one connection, in use by one worker. Dropping it releases it.
#[derive(Debug)]
pub struct Permit {
    detached: DetachedPermit,
    _in_use: InUse,
}

/// A [`Permit`] that is in use by no worker: it can be sent to another one. Dropping it releases it.
#[derive(Debug)]
pub struct DetachedPermit {
    shared: Arc<Shared>,
    /// Set once the client's address is known.
    address: Option<AddressPermit>,
}

/// One of the permits that a worker uses.
#[derive(Debug)]
struct InUse(Rc<Local>);

#[derive(Debug, Default)]
struct Shared {
    free: AtomicUsize,
    all: usize,
    /// Tasks that wait for a permit, or for the release of all permits. At most one for each listener of each
    /// worker.
    waiting: Mutex<Vec<Waker>>,
    /// How often a listener began to wait for a permit.
    waits: AtomicU64,
}

/// The permits of this worker.
#[derive(Debug, Default)]
struct Local {
    in_use: Cell<usize>,
    /// Tasks that wait until none is in use: the worker's own.
    waiting: RefCell<Vec<Waker>>,
}

impl SharedConnectionLimit {
    /// At most `count` connections, of which one address may have as many as `addresses` allows.
    pub fn new(count: usize, addresses: AddressLimit) -> Self {
        let shared = Shared { free: AtomicUsize::new(count), all: count, ..Shared::default() };
        Self { shared: Arc::new(shared), addresses }
    }

    /// How many permits there are.
    pub fn count(&self) -> usize {
        self.shared.all
    }

    /// How often a listener began to wait because no permit was free, over all workers.
    pub fn waits(&self) -> u64 {
        self.shared.waits.load(Ordering::Relaxed)
    }

    /// Waits until no worker has a permit in use.
    pub async fn all_released(&self) {
        poll_fn(|cx| {
            // Registered first: the last permit may be released between the check and the registration.
            register(&mut self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner), cx);
            if self.shared.free.load(Ordering::Acquire) == self.shared.all {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// The limit for one worker.
    pub fn for_worker(&self) -> ConnectionLimit {
        ConnectionLimit { limit: self.clone(), local: Rc::default(), pauses: None }
    }
}

impl ConnectionLimit {
    /// At most `count` connections, from any address. No other worker shares this limit.
    pub fn new(count: usize) -> Self {
        SharedConnectionLimit::new(count, AddressLimit::default()).for_worker()
    }

    /// The same limit. Its waits for a permit are counted in `pauses` while they last.
    #[must_use]
    pub fn with_pauses(self, pauses: Option<Gauge>) -> Self {
        Self { pauses, ..self }
    }

    /// Waits for a client by polling `accept`, but only while a permit is free. Returns the permit together
    /// with the client.
    ///
    /// The permit is not held in the meantime, so a listener without clients withholds none from the others.
    pub async fn acquire<F: Future>(&self, accept: F) -> (Permit, F::Output) {
        let mut accept = pin!(accept);
        let mut waiting: Option<Option<Counted>> = None;
        poll_fn(|cx| {
            // Taken before the poll, because another worker may want the last permit too. Dropped, and so
            // released, if no client is there.
            let Poll::Ready(permit) = self.poll_permit(cx) else {
                waiting.get_or_insert_with(|| {
                    self.limit.shared.waits.fetch_add(1, Ordering::Relaxed);
                    self.pauses.as_ref().map(Gauge::count)
                });
                return Poll::Pending;
            };
            waiting = None;
            let output = ready!(accept.as_mut().poll(cx));
            Poll::Ready((permit, output))
        })
        .await
    }

    /// Counts the permit for the client's address. False if that address has as many as it may.
    pub fn assign(&self, permit: &mut Permit, client: IpAddr) -> bool {
        permit.detached.address = self.limit.addresses.acquire(client);
        permit.detached.address.is_some()
    }

    /// Lets this worker use a permit of another one.
    pub fn adopt(&self, detached: DetachedPermit) -> Permit {
        Permit { detached, _in_use: InUse::new(&self.local) }
    }

    /// How many permits this worker uses.
    pub fn in_use(&self) -> usize {
        self.local.in_use.get()
    }

    /// Waits until this worker uses no permit.
    pub async fn all_released(&self) {
        poll_fn(|cx| {
            if self.local.in_use.get() == 0 {
                return Poll::Ready(());
            }
            register(&mut self.local.waiting.borrow_mut(), cx);
            Poll::Pending
        })
        .await;
    }

    fn poll_permit(&self, cx: &Context<'_>) -> Poll<Permit> {
        let shared = &self.limit.shared;
        if !shared.try_take() {
            register(&mut shared.waiting.lock().unwrap_or_else(PoisonError::into_inner), cx);
            // A permit may have been released before the task was registered.
            if !shared.try_take() {
                return Poll::Pending;
            }
        }
        Poll::Ready(self.adopt(DetachedPermit { shared: Arc::clone(shared), address: None }))
    }
}

impl Permit {
    /// Ends the use by this worker, so that another one can [adopt](ConnectionLimit::adopt) the permit.
    pub fn detach(self) -> DetachedPermit {
        self.detached
    }
}

impl InUse {
    fn new(local: &Rc<Local>) -> Self {
        local.in_use.set(local.in_use.get() + 1);
        Self(Rc::clone(local))
    }
}

impl Shared {
    fn try_take(&self) -> bool {
        let one_less = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }
}

/// Adds the task's waker, unless it is there already.
fn register(waiting: &mut Vec<Waker>, cx: &Context<'_>) {
    if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
        waiting.push(cx.waker().clone());
    }
}

impl Drop for DetachedPermit {
    fn drop(&mut self) {
        self.shared.free.fetch_add(1, Ordering::AcqRel);
        let waiting = std::mem::take(
            &mut *self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner),
        );
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let Self(local) = self;
        local.in_use.set(local.in_use.get() - 1);
        if local.in_use.get() == 0 {
            local.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use super::*;

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// A client of one worker is served even if only another worker has released permits.
    #[test]
    fn any_worker_may_use_any_permit() {
        let shared = SharedConnectionLimit::new(2, AddressLimit::default());
        let (first, second) = (shared.for_worker(), shared.for_worker());
        let cx = &mut Context::from_waker(Waker::noop());
        let acquire =
            |limit: &ConnectionLimit, cx: &mut Context<'_>| match pin!(limit.acquire(async {}))
                .poll(cx)
            {
                Poll::Ready((permit, ())) => Some(permit),
                Poll::Pending => None,
            };
        let permits = [acquire(&first, cx).unwrap(), acquire(&first, cx).unwrap()];
        assert_eq!((first.in_use(), second.in_use()), (2, 0));
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        assert_eq!(shared.waits(), 0);
        assert!(acquire(&second, &mut Context::from_waker(&waker)).is_none());
        assert_eq!((shared.waits(), shared.count()), (1, 2));
        drop(permits);
        assert!(woken.0.load(Ordering::SeqCst), "a released permit wakes any worker");
        let _permit = acquire(&second, cx).unwrap();
        assert_eq!((first.in_use(), second.in_use()), (0, 1));
        // Waiting for a client holds no permit.
        assert!(pin!(first.acquire(pending::<()>())).poll(cx).is_pending());
        assert!(acquire(&second, cx).is_some());
    }

    #[test]
    fn a_permit_that_is_handed_over_is_in_use_by_one_worker_at_most() {
        let shared = SharedConnectionLimit::new(1, AddressLimit::new(1));
        let (first, second) = (shared.for_worker(), shared.for_worker());
        let cx = &mut Context::from_waker(Waker::noop());
        let Poll::Ready((mut permit, ())) = pin!(first.acquire(async {})).poll(cx) else {
            panic!("there is a permit");
        };
        let client = IpAddr::from([192, 0, 2, 1]);
        assert!(first.assign(&mut permit, client));
        let detached = permit.detach();
        assert_eq!((first.in_use(), second.in_use()), (0, 0));
        assert!(pin!(first.acquire(async {})).poll(cx).is_pending(), "nobody else may use it");
        let permit = second.adopt(detached);
        assert_eq!((first.in_use(), second.in_use()), (0, 1));
        assert!(pin!(shared.all_released()).poll(cx).is_pending());
        drop(permit);
        assert!(pin!(shared.all_released()).poll(cx).is_ready());
        let Poll::Ready((mut permit, ())) = pin!(first.acquire(async {})).poll(cx) else {
            panic!("the permit is free");
        };
        assert!(first.assign(&mut permit, client), "so is the place of the address");
        drop(permit.detach());
        assert!(pin!(shared.all_released()).poll(cx).is_ready(), "a dropped one is released, too");
    }
}

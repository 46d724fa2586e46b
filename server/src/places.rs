//! How many connections may be served at once, and which of the places are taken.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use crate::per_address::{Counted, PerAddress};

/// The connections that may be served at once, by all workers together.
///
/// The kernel spreads clients over the listeners of the workers by chance. Were the places a worker's own, a
/// client could wait behind one that is full while another has room, because a client cannot change queues;
/// so any worker may take any place.
#[derive(Clone, Debug)]
pub struct SharedPlaces {
    shared: Arc<Shared>,
    addresses: PerAddress,
}

#[derive(Debug)]
struct Shared {
    free: AtomicUsize,
    all: usize,
    /// Those that wait for a place, or for all: at most one for each listener of each worker.
    waiting: Mutex<Vec<Waker>>,
}

/// The same as a worker sees it, over all its listeners.
#[derive(Clone, Debug)]
pub struct Places {
    places: SharedPlaces,
    own: Rc<Own>,
}

/// What this worker has taken.
#[derive(Debug, Default)]
struct Own {
    taken: Cell<usize>,
    /// Those that wait until it is none: the worker.
    waiting: RefCell<Vec<Waker>>,
}

/// A place that is taken; free again when dropped.
#[derive(Debug)]
pub struct Place {
    shared: Arc<Shared>,
    own: Rc<Own>,
    /// By whose address.
    client: Option<Counted>,
}

impl SharedPlaces {
    /// So many free places, of which one address may take so many as `addresses` allows.
    pub fn new(count: usize, addresses: PerAddress) -> Self {
        let shared =
            Shared { free: AtomicUsize::new(count), all: count, waiting: Mutex::default() };
        Self { shared: Arc::new(shared), addresses }
    }

    /// Waits until no worker has taken any.
    pub async fn all_free(&self) {
        poll_fn(|cx| {
            keep(&mut self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner), cx);
            if self.shared.free.load(Ordering::Acquire) == self.shared.all {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// For a worker.
    pub fn of_worker(&self) -> Places {
        Places { places: self.clone(), own: Rc::default() }
    }
}

impl Places {
    /// So many free places, which no other worker shares, for clients from anywhere.
    pub fn new(count: usize) -> Self {
        SharedPlaces::new(count, PerAddress::default()).of_worker()
    }

    /// Waits for `next`, but only while a place is free, and takes that place once `next` is ready.
    ///
    /// Nobody has the place meanwhile: a listener without clients keeps none from the others.
    pub async fn take_for<F: Future>(&self, next: F) -> (Place, F::Output) {
        let mut next = pin!(next);
        poll_fn(|cx| {
            // Taken first, and given back if nobody comes: another worker may want the last one, too.
            let place = ready!(self.poll_take(cx));
            let output = ready!(next.as_mut().poll(cx));
            Poll::Ready((place, output))
        })
        .await
    }

    /// Says whose place it is; false if that address has as many as it may.
    pub fn give_to(&self, place: &mut Place, client: IpAddr) -> bool {
        place.client = self.places.addresses.count(client);
        place.client.is_some()
    }

    /// How many this worker has taken.
    pub fn taken(&self) -> usize {
        self.own.taken.get()
    }

    /// Waits until this worker has taken none.
    pub async fn all_free(&self) {
        poll_fn(|cx| {
            if self.own.taken.get() == 0 {
                return Poll::Ready(());
            }
            keep(&mut self.own.waiting.borrow_mut(), cx);
            Poll::Pending
        })
        .await;
    }

    fn poll_take(&self, cx: &Context<'_>) -> Poll<Place> {
        let shared = &self.places.shared;
        if !shared.take() {
            keep(&mut shared.waiting.lock().unwrap_or_else(PoisonError::into_inner), cx);
            // One may have come free before it was known that somebody waits.
            if !shared.take() {
                return Poll::Pending;
            }
        }
        self.own.taken.set(self.own.taken.get() + 1);
        let (shared, own) = (Arc::clone(shared), Rc::clone(&self.own));
        Poll::Ready(Place { shared, own, client: None })
    }
}

impl Shared {
    fn take(&self) -> bool {
        let one_less = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }
}

/// Has the task woken with the others, once.
fn keep(waiting: &mut Vec<Waker>, cx: &Context<'_>) {
    if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
        waiting.push(cx.waker().clone());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.free.fetch_add(1, Ordering::AcqRel);
        let waiting = std::mem::take(
            &mut *self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner),
        );
        waiting.into_iter().for_each(Waker::wake);
        self.own.taken.set(self.own.taken.get() - 1);
        if self.own.taken.get() == 0 {
            self.own.waiting.take().into_iter().for_each(Waker::wake);
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

    /// A client that comes to one worker is served though only another has had places.
    #[test]
    fn any_worker_may_take_any_place() {
        let shared = SharedPlaces::new(2, PerAddress::default());
        let (first, second) = (shared.of_worker(), shared.of_worker());
        let cx = &mut Context::from_waker(Waker::noop());
        let take = |places: &Places, cx: &mut Context<'_>| match pin!(places.take_for(async {}))
            .poll(cx)
        {
            Poll::Ready((place, ())) => Some(place),
            Poll::Pending => None,
        };
        let taken = [take(&first, cx).unwrap(), take(&first, cx).unwrap()];
        assert_eq!((first.taken(), second.taken()), (2, 0));
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        assert!(take(&second, &mut Context::from_waker(&waker)).is_none());
        drop(taken);
        assert!(woken.0.load(Ordering::SeqCst), "it waits for any place");
        let _place = take(&second, cx).unwrap();
        assert_eq!((first.taken(), second.taken()), (0, 1));
        // Who waits for a client has none.
        assert!(pin!(first.take_for(pending::<()>())).poll(cx).is_pending());
        assert!(take(&second, cx).is_some());
    }
}

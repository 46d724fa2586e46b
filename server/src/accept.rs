//! The accept loop: as many connections as there are places, and no end to it but the stop signal.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use owned_io::{
    ByteStream, Runtime, ShutdownHandle, StopSignal, TcpListener, beside, is_exhaustion,
};
use tracing::{debug, warn};

/// How long to wait when descriptors or memory are used up. Short enough that clients are taken
/// again within 200 ms of there being some; long enough that asking costs nothing.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Serves each connection of `listener` by `serve`, in a task of its own, until `stop` is given.
///
/// A connection that fails, or whose task panics, ends alone. Only the listener's end is an error.
///
/// # Errors
/// Those of accept(2) that mean the listener is of no more use.
pub async fn accept_loop<R, S, Fut>(
    mut listener: R::TcpListener,
    places: Places,
    stop: &StopSignal,
    serve: S,
) -> io::Result<()>
where
    R: Runtime,
    S: Fn(R::TcpStream) -> Fut,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let mut is_exhausted = false;
    loop {
        let next = async {
            let place = places.take().await;
            (place, listener.accept().await)
        };
        // An accept that is dropped has taken nobody.
        let Some((place, accepted)) = beside(pin!(next), stop.stopped()).await.pinned else {
            return Ok(());
        };
        match accepted {
            Ok((stream, peer)) => {
                if std::mem::take(&mut is_exhausted) {
                    warn!("accepting again");
                }
                let handle = stream.shutdown_handle();
                let connection = serve(stream);
                drop(R::spawn(async move {
                    let _place = place.hold(handle);
                    if let Err(error) = connection.await {
                        debug!(%peer, %error, "connection ended");
                    }
                }));
            }
            Err(error) if is_exhaustion(&error) => {
                if !std::mem::replace(&mut is_exhausted, true) {
                    warn!(%error, "cannot accept: clients wait until connections end");
                }
                R::sleep(BACK_OFF).await;
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The connections that a worker may serve at once, over all its listeners.
#[derive(Clone, Debug)]
pub struct Places {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    free: Cell<usize>,
    all: usize,
    /// Those that wait for a place, or for all places to be free: a listener each, and the worker.
    waiting: RefCell<Vec<Waker>>,
    /// What is open, by the number of its place.
    open: RefCell<std::collections::BTreeMap<u64, ShutdownHandle>>,
    last_id: Cell<u64>,
}

/// A place that is taken; free again when dropped.
#[derive(Debug)]
pub struct Place {
    shared: Rc<Shared>,
    id: u64,
}

impl Places {
    /// So many free places.
    pub fn new(count: usize) -> Self {
        let shared = Shared {
            free: Cell::new(count),
            all: count,
            waiting: RefCell::default(),
            open: RefCell::default(),
            last_id: Cell::new(0),
        };
        Self { shared: Rc::new(shared) }
    }

    /// Waits for a free place and takes it.
    pub async fn take(&self) -> Place {
        self.wait_until(|shared| shared.free.get() > 0).await;
        self.shared.free.set(self.shared.free.get() - 1);
        self.shared.last_id.set(self.shared.last_id.get() + 1);
        Place { shared: Rc::clone(&self.shared), id: self.shared.last_id.get() }
    }

    /// Waits until no connection is open.
    pub async fn all_free(&self) {
        self.wait_until(|shared| shared.free.get() == shared.all).await;
    }

    /// Shuts the read side of every open connection down: each sees the end of its stream, answers
    /// what it has, and ends.
    pub fn end_reading(&self) {
        for handle in self.shared.open.borrow().values() {
            handle.shutdown(std::net::Shutdown::Read);
        }
    }

    async fn wait_until(&self, condition: impl Fn(&Shared) -> bool) {
        poll_fn(|cx| {
            if condition(&self.shared) {
                return Poll::Ready(());
            }
            let mut waiting = self.shared.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Place {
    /// Remembers how to end the connection that has this place.
    #[must_use]
    pub fn hold(self, handle: ShutdownHandle) -> Self {
        self.shared.open.borrow_mut().insert(self.id, handle);
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.open.borrow_mut().remove(&self.id);
        self.shared.free.set(self.shared.free.get() + 1);
        for waker in self.shared.waiting.take() {
            waker.wake();
        }
    }
}

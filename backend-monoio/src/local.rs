//! [`Local`]: what a running runtime keeps next to monoio's own state, so that its tasks can yield and end.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use monoio::net::TcpStream;
use rustix::fs::{Mode, OFlags};

use crate::op;

thread_local! {
    /// The state of the runtime on this thread.
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// The state of one call of `block_on`.
pub(crate) struct Local {
    /// A socket whose peer is closed: always readable.
    ready: TcpStream,
    /// See [`placeholder`].
    placeholder: Rc<OwnedFd>,
}

impl Local {
    /// Creates the state for the runtime that polls the calling future.
    pub(crate) fn start() -> io::Result<()> {
        let (ready, _closed) = UnixStream::pair()?;
        // monoio can poll any descriptor, but only its streams offer that.
        let ready = TcpStream::from_std(OwnedFd::from(ready).into())?;
        let placeholder =
            Rc::new(rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
        LOCAL.set(Some(Rc::new(Self { ready, placeholder })));
        Ok(())
    }
}

/// A descriptor that nothing can be read from or written to, and whose close never waits. There is none outside of
/// `block_on`.
pub(crate) fn placeholder() -> Option<Rc<OwnedFd>> {
    let local = LOCAL.try_with(|local| local.borrow().clone()).ok()??;
    Some(Rc::clone(&local.placeholder))
}

/// Yields until the runtime has polled the ring, after all ready tasks have run.
///
/// It is not enough that the task wakes itself: monoio then polls that task again at once, and nothing else.
pub(crate) async fn yield_to_ring() {
    let local = LOCAL.with_borrow(Clone::clone).expect("called outside of `Monoio::block_on`");
    // The result does not matter: the ring has been polled.
    let _ = local.ready.readable(true).await;
}

/// How long [`settle`] waits for reads and writes of files. A disk needs milliseconds, unless it hangs.
const FILES_SETTLE_MAX: Duration = Duration::from_secs(2);

/// Lets the operations in the kernel end, after the tasks were dropped and their connections shut down.
///
/// When a runtime of monoio is dropped, it leaks each waiting task, with the ring and all that the task holds.
pub(crate) async fn settle() {
    yield_to_ring().await; // the tasks end, and the kernel processes their shutdowns
    yield_to_ring().await; // the kernel closes the descriptors that operations held
    // monoio would free the buffers of the reads and writes of files that still run.
    let until = Instant::now() + FILES_SETTLE_MAX;
    while op::file::in_flight() > 0 && Instant::now() < until {
        monoio::time::sleep(Duration::from_millis(1)).await;
    }
    op::free_kept(); // while the runtime is there
}

/// A guard for the one runtime of this thread. It lives from before the runtime is built until after it is dropped,
/// also when that panics.
pub(crate) struct Entered(());

impl Entered {
    /// # Panics
    /// When the thread has a runtime already.
    pub(crate) fn new() -> Self {
        let is_first = LOCAL.with_borrow(Option::is_none);
        assert!(is_first, "`Monoio::block_on` called within itself");
        Self(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        LOCAL.set(None);
    }
}

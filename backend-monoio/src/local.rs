//! [`Local`]: what a running runtime keeps beside monoio's own, so that its tasks can yield, and end.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use monoio::net::TcpStream;

thread_local! {
    /// That of the runtime on this thread.
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// What belongs to one call of `block_on`.
pub(crate) struct Local {
    /// A socket whose peer is closed: always readable.
    ready: TcpStream,
}

impl Local {
    /// Makes one, for the runtime that polls this.
    pub(crate) fn start() -> io::Result<()> {
        let (ready, _closed) = UnixStream::pair()?;
        // monoio polls any descriptor; only its streams are open to others.
        let ready = TcpStream::from_std(OwnedFd::from(ready).into())?;
        LOCAL.set(Some(Rc::new(Self { ready })));
        Ok(())
    }
}

/// Waits until the ring has been asked for completions, with nothing left to run.
///
/// Not by waking itself: monoio runs a task that does so again at once, and nothing else.
pub(crate) async fn yield_to_ring() {
    let local = LOCAL.with_borrow(Clone::clone).expect("called outside of `Monoio::block_on`");
    // Whatever the kernel answers, it was asked.
    let _ = local.ready.readable(true).await;
}

/// Lets what was left in the kernel end: after the tasks were dropped, and their connections shut
/// down.
///
/// monoio leaks a task that waits when its runtime is dropped, with its ring and what it holds.
pub(crate) async fn settle() {
    yield_to_ring().await; // the tasks find that they are done, and the kernel works off their shutdowns
    yield_to_ring().await; // the kernel closes what was held until then
}

/// Says that a runtime is on this thread, from before it is built until after it is dropped, however
/// that comes about.
pub(crate) struct Entered(());

impl Entered {
    /// # Panics
    /// When one is there already.
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

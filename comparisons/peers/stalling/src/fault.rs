//! The faults, as far as they are the same on each runtime.

use std::future::{Future, poll_fn};
use std::hint;
use std::io::{self, Write};
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use futures_lite::future;

use crate::host::Host;
use crate::record::Event;

/// A pending operation is dropped after so long ([`Fault::DropAccept`], [`Fault::DropRead`]).
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// [`Fault::Greedy`] answers in pieces of so many bytes, a write for each, as a server does whose messages are small.
/// So a server is slower than any client.
pub(crate) const MESSAGE_BYTES: usize = 2;

/// The size of its buffer.
pub(crate) const GREEDY_BUF_BYTES: usize = 64 << 10;

/// What the server does wrong. Each name is that of an option of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// Nothing but what is wrong with a plain accept loop.
    None,
    /// A failed accept is repeated at once.
    AcceptSpin,
    /// The event loop sleeps in the kernel.
    Block,
    /// The event loop computes.
    Compute,
    /// A task on the event loop is always ready.
    YieldLoop,
    /// The event loop writes to standard error, which may be a pipe that nobody reads.
    BlockedLog,
    /// A pending accept is dropped after a time, and begun again.
    DropAccept,
    /// A connection is dropped, with its pending read, when it was silent for a time.
    DropRead,
    /// A connection that the client has closed is kept open.
    KeepClosed,
    /// What is to be sent is queued without a limit.
    IgnoreBackPressure,
    /// A connection does not yield while it has something to read, and each message is a write.
    Greedy,
}

impl Fault {
    /// Whether it is in the event loop itself: [`on_event_loop`] then makes it. All others are in the accept loop or in
    /// the tasks of connections, and these ask [`Host::has`].
    fn is_on_event_loop(self) -> bool {
        matches!(self, Self::Block | Self::Compute | Self::YieldLoop | Self::BlockedLog)
    }

    /// Whether a server with several threads can have it.
    pub(crate) fn is_on_any_thread(self) -> bool {
        matches!(self, Self::None | Self::Block | Self::Compute)
    }
}

/// A task on the event loop that waits for the time of the fault, and makes those that need nothing of the runtime.
pub(crate) async fn on_event_loop<S: Future>(host: Arc<Host>, sleep: impl Fn(Duration) -> S) {
    sleep(host.until_fault()).await;
    host.recorder.record(Event::FaultBegan);
    if host.args.fault.is_on_event_loop() {
        stall(&host).await;
    } else {
        sleep(host.until_fault_ends()).await;
    }
    host.recorder.record(Event::FaultEnded);
}

async fn stall(host: &Host) {
    match host.args.fault {
        Fault::Block => thread::sleep(host.until_fault_ends()),
        Fault::Compute => {
            while !host.until_fault_ends().is_zero() {
                hint::spin_loop();
            }
        }
        Fault::YieldLoop => always_ready(host).await,
        Fault::BlockedLog => fill_log(host),
        _ => {}
    }
}

/// A task that wakes itself each time it is polled, until the fault is over.
async fn always_ready(host: &Host) {
    poll_fn(|context| {
        if host.until_fault_ends().is_zero() {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Writes lines until the fault is over. A full pipe blocks the event loop until somebody reads.
fn fill_log(host: &Host) {
    let line = [b'.'; 1024];
    while !host.until_fault_ends().is_zero() {
        if io::stderr().write_all(&line).is_err() {
            return;
        }
    }
}

/// What `operation` gives; none after [`PATIENCE`]: then it has been dropped while it was pending.
pub(crate) async fn or_drop<T, S: Future>(
    operation: impl Future<Output = T>,
    sleep: impl Fn(Duration) -> S,
) -> Option<T> {
    let operation = async { Some(operation.await) };
    let timeout = async {
        sleep(PATIENCE).await;
        None
    };
    future::or(operation, timeout).await
}

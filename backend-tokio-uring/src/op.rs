//! Operations on the ring: each owns what the kernel uses for it until the kernel has let go.
//!
//! Submitted as raw entries, because tokio-uring's own sockets send READ and WRITE: those raise
//! SIGPIPE, and allocate for each vectored write.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue, types};
use owned_io::{BufResult, IoBuf, IoBufMut, IoVec, TRANSFER_BYTES_MAX};
use owned_io_os as os;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

/// Receives into `buf`, which has room, from its start; sets its exact length.
pub(crate) async fn recv<B: IoBufMut>(fd: &Rc<OwnedFd>, mut buf: B) -> BufResult<usize, B> {
    let capacity = transfer_len(buf.buf_capacity());
    let entry = opcode::Recv::new(target(fd), buf.buf_mut_ptr(), capacity).build();
    // SAFETY: 1. It writes to the buffer's memory, `capacity` bytes at most; that memory is the
    // buffer's, and stays where it is while the buffer moves (rule 2 of `IoBufMut`). 2. and 3. The
    // descriptor and the buffer are held.
    let op = unsafe { submit(entry, (Rc::clone(fd), buf)) };
    let (result, (_fd, mut buf)) = op.await;
    if let Ok(n) = result {
        // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
        unsafe { buf.set_buf_len(n) };
    }
    BufResult(result, buf)
}

/// Sends the first bytes of `buf`, which is not empty.
pub(crate) async fn send<B: IoBuf>(fd: &Rc<OwnedFd>, buf: B) -> BufResult<usize, B> {
    let len = transfer_len(buf.buf_len());
    let send = opcode::Send::new(target(fd), buf.buf_ptr(), len);
    let entry = send.flags(libc::MSG_NOSIGNAL).build();
    // SAFETY: 1. It reads `len` initialised bytes, which stay where they are while the buffer moves
    // (rule 2 of `IoBuf`). 2. and 3. The descriptor and the buffer are held.
    let op = unsafe { submit(entry, (Rc::clone(fd), buf)) };
    let (result, (_fd, buf)) = op.await;
    BufResult(result, buf)
}

/// Sends the next pieces of `bufs`, of which some are left, and advances by what was sent.
///
/// `message` holds what describes them to the kernel, and gets it back for the next time.
pub(crate) async fn send_vectored<B: IoBuf>(
    fd: &Rc<OwnedFd>,
    mut bufs: IoVec<B>,
    message: &MessageCell,
) -> BufResult<usize, IoVec<B>> {
    let mut header = message.0.take().unwrap_or_default();
    let pieces = bufs.as_io_slices();
    let described = Rc::get_mut(&mut header).expect("put back by who had it");
    described.0.msg_iov = pieces.as_ptr().cast_mut().cast();
    described.0.msg_iovlen = pieces.len();
    let send = opcode::SendMsg::new(target(fd), Rc::as_ptr(&header).cast());
    let entry = send.flags(libc::MSG_NOSIGNAL as u32).build();
    // SAFETY: 1. It reads the header, which is on the heap (in an `Rc`: to move a box would claim its
    // contents anew), and whose only field is the message; and through it the pieces, which are an
    // array of `iovec` (`IoSlice` has its layout) over initialised bytes. Array and bytes stay where
    // they are while the `IoVec` moves, and nobody changes it meanwhile. 2. and 3. The descriptor,
    // the header and the `IoVec` are held.
    let op = unsafe { submit(entry, (Rc::clone(fd), header, bufs)) };
    let (result, (_fd, header, back)) = op.await;
    message.0.set(Some(header));
    bufs = back;
    let result = result.and_then(os::check_written);
    if let Ok(n) = result {
        bufs.advance(n);
    }
    BufResult(result, bufs)
}

/// Waits until a receive would not have to wait; holds no buffer.
pub(crate) async fn readable(fd: &Rc<OwnedFd>) -> io::Result<()> {
    let entry = opcode::PollAdd::new(target(fd), libc::POLLIN as u32).build();
    // SAFETY: 1. It uses no memory. 2. The descriptor is held. 3. Nothing else is used.
    let op = unsafe { submit(entry, Rc::clone(fd)) };
    op.await.0.map(drop)
}

/// Registers a descriptor with tokio's reactor, which the ring is on too.
pub(crate) fn register(fd: Rc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Rc<OwnedFd>>> {
    // SAFETY: the `Rc` keeps it open, and nothing puts another one in its place.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Waits until the ring has been round once: what was submitted before is with the kernel, and the
/// completions there were have been seen. Other tasks have their turn meanwhile.
///
/// tokio's `yield_now` does not do: tokio-uring enters the ring only when the thread parks, which
/// it never does while a task yields again and again.
///
/// For the same reason a task that wakes itself holds the ring up, so not for longer than
/// [`YIELD_MAX`]: timers go on even then.
pub(crate) async fn yield_to_ring() {
    let _ = tokio::time::timeout(YIELD_MAX, nop()).await;
}

/// Lets what was left in the kernel end: after the tasks were dropped, and their connections shut
/// down.
pub(crate) async fn settle() {
    let rounds = async {
        nop().await; // the kernel works off what the shutdowns have ended
        nop().await; // and the completions that came of it are seen
    };
    let _ = tokio::time::timeout(SETTLE_MAX, rounds).await;
}

/// How long a turn may take: tokio's tick.
const YIELD_MAX: Duration = Duration::from_millis(1);

/// How long the end may take: 16,000 pending reads took 73 ms (Linux 6.18).
const SETTLE_MAX: Duration = Duration::from_millis(500);

async fn nop() {
    // SAFETY: 1. to 3. It does nothing, with nothing.
    let op = unsafe { submit(opcode::Nop::new().build(), ()) };
    // It cannot fail, and nothing would follow from it if it did.
    let _ = op.await;
}

/// Drops `runtime`, and then what its operations held.
///
/// tokio-uring drops what the operations in the kernel hold first, and cancels them after that
/// (`Driver::drop`), so that the kernel could write to freed memory in between. Usually there are
/// none left; there is one when a stream outlives the runtime in which a read of it was dropped.
pub(crate) fn end(runtime: tokio_uring::Runtime) {
    let outer = KEPT.replace(Some(Vec::new()));
    let ended = catch_unwind(AssertUnwindSafe(|| drop(runtime)));
    let kept = KEPT.replace(outer);
    if let Err(payload) = ended {
        mem::forget(kept); // nobody knows whether they were cancelled
        resume_unwind(payload);
    }
}

thread_local! {
    /// While a runtime is dropped: what its operations held. Bounded by their number.
    static KEPT: RefCell<Option<Vec<Box<dyn Any>>>> = const { RefCell::new(None) };
}

/// What an operation holds.
struct Held<D: 'static>(Option<D>);

impl<D> Drop for Held<D> {
    fn drop(&mut self) {
        let mut data = self.0.take();
        // When the thread's locals are gone, its runtimes are gone too.
        let _ = KEPT.try_with(|kept| {
            if let Some(kept) = &mut *kept.borrow_mut() {
                kept.extend(data.take().map(|data| Box::new(data) as Box<dyn Any>));
            }
        });
    }
}

/// The output of an operation: how many bytes, or whatever else it counts, and what it held.
struct Output<D>(PhantomData<D>);

impl<D: 'static> OneshotOutputTransform for Output<D> {
    type Output = (io::Result<usize>, D);
    type StoredData = Held<D>;

    fn transform_oneshot_output(self, mut held: Held<D>, entry: cqueue::Entry) -> Self::Output {
        let result = entry.result();
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        (result, held.0.take().expect("taken only here and on drop"))
    }
}

/// A `msghdr` that the vectored writes of a connection use one after the other. The first makes it.
#[derive(Default)]
pub(crate) struct MessageCell(Cell<Option<Rc<Message>>>);

/// A `msghdr` without name and control data.
#[repr(transparent)]
struct Message(libc::msghdr);

impl Default for Message {
    fn default() -> Self {
        // SAFETY: all zeroes is such a message, without pieces.
        Self(unsafe { mem::zeroed() })
    }
}

impl std::fmt::Debug for MessageCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageCell").finish_non_exhaustive()
    }
}

/// Hands `entry` to the ring. Dropping what this returns does not cancel it: `data` is then held
/// until it has completed.
///
/// # Safety
///
/// 1. Whatever memory `entry` points to stays valid for it, and where it is, until `data` is
///    dropped, however often `data` is moved.
/// 2. The descriptor that `entry` names stays open until `data` is dropped.
/// 3. `entry` completes once (no multishot, no zero copy), and uses nothing after that.
///
/// # Panics
/// Outside a runtime of tokio-uring.
unsafe fn submit<D: Unpin + 'static>(
    entry: squeue::Entry,
    data: D,
) -> InFlightOneshot<Held<D>, Output<D>> {
    UnsubmittedOneshot::new(Held(Some(data)), Output(PhantomData), entry).submit()
}

fn target(fd: &Rc<OwnedFd>) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn transfer_len(len: usize) -> u32 {
    len.min(TRANSFER_BYTES_MAX) as u32
}

//! Operations on the ring. Each owns what the kernel uses until the kernel is done with it.
//!
//! They are submitted as raw entries. tokio-uring's own sockets send READ and WRITE, which raise SIGPIPE, and they
//! allocate for each vectored write.

pub(crate) mod file;

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
use owned_io::{BufResult, IoBuf, IoBufMut, IoVec, TRANSFER_BYTES_MAX, coop};
use owned_io_os as os;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

/// Receives into `buf` from its start, and sets its exact length. `buf` has capacity.
pub(crate) async fn recv<B: IoBufMut>(fd: &Rc<OwnedFd>, mut buf: B) -> BufResult<usize, B> {
    let capacity = buf.buf_capacity().min(TRANSFER_BYTES_MAX) as u32;
    let entry = opcode::Recv::new(target(fd), buf.buf_mut_ptr(), capacity).build();
    // SAFETY: 1. It writes at most `capacity` bytes to the buffer's memory, which stays where it is while the buffer
    // moves (rule 2 of `IoBufMut`). 2. and 3. The descriptor and the buffer are held.
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
    let len = buf.buf_len().min(coop::write_bytes_max()) as u32;
    let send = opcode::Send::new(target(fd), buf.buf_ptr(), len);
    let entry = send.flags(libc::MSG_NOSIGNAL).build();
    // SAFETY: 1. It reads `len` initialised bytes, which stay where they are while the buffer moves
    // (rule 2 of `IoBuf`). 2. and 3. The descriptor and the buffer are held.
    let op = unsafe { submit(entry, (Rc::clone(fd), buf)) };
    let (result, (_fd, buf)) = op.await;
    BufResult(result, buf)
}

/// Sends the next pieces of `bufs`, and advances by the bytes sent. `bufs` is not empty.
///
/// `message` has the header that describes them to the kernel, and gets it back for the next write.
pub(crate) async fn send_vectored<B: IoBuf>(
    fd: &Rc<OwnedFd>,
    mut bufs: IoVec<B>,
    message: &MessageCell,
) -> BufResult<usize, IoVec<B>> {
    let mut header = message.0.take().unwrap_or_default();
    let pieces = bufs.as_io_slices_within(coop::write_bytes_max());
    let described = Rc::get_mut(&mut header).expect("no other write uses it");
    described.0.msg_iov = pieces.as_ptr().cast_mut().cast();
    described.0.msg_iovlen = pieces.len();
    let send = opcode::SendMsg::new(target(fd), Rc::as_ptr(&header).cast());
    let entry = send.flags(libc::MSG_NOSIGNAL as u32).build();
    // SAFETY: 1. It reads the header, whose only field is the message. The header is on the heap, in an `Rc`: moving a
    // `Box` would invalidate the pointer to its contents. Through the header it reads the pieces, an array of `iovec`
    // (`IoSlice` has its layout) over initialised bytes. Array and bytes stay where they are while the `IoVec` moves,
    // and nothing changes them meanwhile. 2. and 3. The descriptor, the header and the `IoVec` are held.
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

/// Waits until a receive need not wait. Holds no buffer.
pub(crate) async fn readable(fd: &Rc<OwnedFd>) -> io::Result<()> {
    let entry = opcode::PollAdd::new(target(fd), libc::POLLIN as u32).build();
    // SAFETY: 1. It uses no memory. 2. The descriptor is held. 3. Nothing else is used.
    let op = unsafe { submit(entry, Rc::clone(fd)) };
    op.await.0.map(drop)
}

/// Registers a descriptor with tokio's reactor, with which the ring is registered too.
pub(crate) fn register(fd: Rc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Rc<OwnedFd>>> {
    // SAFETY: the `Rc` keeps the descriptor open, and nothing puts another one in its place.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Yields until the runtime has polled the ring: earlier submissions are in the kernel, and the completions that
/// were there have been seen. Other tasks run meanwhile.
///
/// tokio's `yield_now` is not enough: tokio-uring enters the ring only when the thread parks, which it never does
/// while a task yields again and again.
///
/// A task that wakes itself again and again keeps the ring from being entered for the same reason. So this waits at
/// most [`YIELD_MAX`]. Timers fire even then.
pub(crate) async fn yield_to_ring() {
    let _ = tokio::time::timeout(YIELD_MAX, nop()).await;
}

/// Lets the operations in the kernel end, after the tasks were dropped and their connections shut down.
pub(crate) async fn settle() {
    let rounds = async {
        nop().await; // the kernel ends the operations of the connections that were shut down
        nop().await; // their completions are seen
    };
    let _ = tokio::time::timeout(SETTLE_MAX, rounds).await;
}

/// How long a yield may take: one tick of tokio's timers.
const YIELD_MAX: Duration = Duration::from_millis(1);

/// How long [`settle`] may take. 16,000 pending reads took 73 ms (Linux 6.18).
const SETTLE_MAX: Duration = Duration::from_millis(500);

async fn nop() {
    // SAFETY: 1. to 3. It uses no memory and no descriptor.
    let op = unsafe { submit(opcode::Nop::new().build(), ()) };
    // A NOP cannot fail, and a failure would not matter.
    let _ = op.await;
}

/// Drops `runtime`, and then what its operations held.
///
/// tokio-uring first drops what the operations in the kernel hold, and then cancels them (`Driver::drop`). The kernel
/// could write to freed memory in between. Usually no operation is left. One is left when a stream outlives the
/// runtime in which a read of it was dropped.
pub(crate) fn end(runtime: tokio_uring::Runtime) {
    let outer = KEPT.replace(Some(Vec::new()));
    let ended = catch_unwind(AssertUnwindSafe(|| drop(runtime)));
    let kept = KEPT.replace(outer);
    if let Err(payload) = ended {
        mem::forget(kept); // it is unknown whether they were cancelled
        resume_unwind(payload);
    }
}

thread_local! {
    /// What the operations of a runtime held, while the runtime is dropped. The number of operations bounds it.
    static KEPT: RefCell<Option<Vec<Box<dyn Any>>>> = const { RefCell::new(None) };
}

/// What an operation holds.
struct Held<D: 'static>(Option<D>);

impl<D> Drop for Held<D> {
    fn drop(&mut self) {
        let mut data = self.0.take();
        // When the thread's locals are gone, its runtimes are gone.
        let _ = KEPT.try_with(|kept| {
            if let Some(kept) = &mut *kept.borrow_mut() {
                kept.extend(data.take().map(|data| Box::new(data) as Box<dyn Any>));
            }
        });
    }
}

/// The output of an operation: its result (a number of bytes, mostly), and what it held.
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

/// A `msghdr` that the vectored writes of a connection use one after the other. The first write allocates it.
#[derive(Default)]
pub(crate) struct MessageCell(Cell<Option<Rc<Message>>>);

/// A `msghdr` without name and control data.
#[repr(transparent)]
struct Message(libc::msghdr);

impl Default for Message {
    fn default() -> Self {
        // SAFETY: a message of zeroes is such a message, without pieces.
        Self(unsafe { mem::zeroed() })
    }
}

impl std::fmt::Debug for MessageCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageCell").finish_non_exhaustive()
    }
}

/// Submits `entry` to the ring. Dropping the future does not cancel the operation: `data` is then held until the
/// operation has completed.
///
/// # Safety
///
/// 1. The memory that `entry` points to stays valid, and where it is, until `data` is dropped, however often `data`
///    is moved.
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

//! Operations on the ring. Each owns what the kernel uses until the kernel is done with it.
//!
//! They are compio's own, except the vectored write. compio's allocates an array of pieces for each write, and
//! [`IoVec`] has that array already.

pub(crate) mod file;

use std::cell::Cell;
use std::future::Future;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;
use std::{io, slice};

use compio_buf::{IntoInner, SetLen};
use compio_driver::op::{Interest, PollOnce, Recv, RecvFlags, Send, SendFlags};
use compio_driver::{Extra, OpCode, OpEntry};
use compio_runtime::{Runtime, submit};
use io_uring::{opcode, types};
use owned_io::{BufResult, IoBuf, IoBufExt, IoBufMut, IoVec, TRANSFER_BYTES_MAX, coop};
use owned_io_os as os;

/// Receives into `buf` from its start, and sets its exact length. `buf` has capacity.
pub(crate) async fn recv<B: IoBufMut>(fd: &Rc<OwnedFd>, buf: B) -> BufResult<usize, B> {
    let op = Recv::new(Rc::clone(fd), Reading(buf), RecvFlags::empty());
    let (result, Tracked(op)) = submit(Tracked(op)).await.into();
    let Reading(mut buf) = op.into_inner();
    let result = result.map_err(os_error);
    if let Ok(n) = result {
        // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
        unsafe { buf.set_buf_len(n) };
    }
    BufResult(result, buf)
}

/// Sends the first bytes of `buf`, which is not empty.
pub(crate) async fn send<B: IoBuf>(fd: &Rc<OwnedFd>, buf: B) -> BufResult<usize, B> {
    let writing = Writing { buf, bytes_max: coop::write_bytes_max() };
    let op = Send::new(Rc::clone(fd), writing, SendFlags::NOSIGNAL);
    let (result, Tracked(op)) = submit(Tracked(op)).await.into();
    let Writing { buf, .. } = op.into_inner();
    BufResult(result.map_err(os_error), buf)
}

/// Sends the next pieces of `bufs`, and advances by the bytes sent. `bufs` is not empty.
pub(crate) async fn send_vectored<B: IoBuf>(
    fd: &Rc<OwnedFd>,
    bufs: IoVec<B>,
) -> BufResult<usize, IoVec<B>> {
    // SAFETY: a message of zeroes has no name, no pieces and no control data.
    let message: libc::msghdr = unsafe { mem::zeroed() };
    let bytes_max = coop::write_bytes_max();
    let op = SendVectored { fd: Rc::clone(fd), bufs, bytes_max, message };
    let (result, Tracked(op)) = submit(Tracked(op)).await.into();
    let mut bufs = op.bufs;
    let result = result.map_err(os_error).and_then(os::check_written);
    if let Ok(n) = result {
        bufs.advance(n);
    }
    BufResult(result, bufs)
}

/// Waits until a receive or an accept need not wait. Holds no buffer.
pub(crate) async fn readable(fd: &Rc<OwnedFd>) -> io::Result<()> {
    let op = PollOnce::new(Rc::clone(fd), Interest::Readable);
    submit(Tracked(op)).await.0.map(drop)
}

/// Waits until a send need not wait, or an attempt to connect has ended.
pub(crate) async fn writable(fd: &Rc<OwnedFd>) -> io::Result<()> {
    let op = PollOnce::new(Rc::clone(fd), Interest::Writable);
    submit(Tracked(op)).await.0.map(drop)
}

/// Yields until the runtime has polled the ring: earlier submissions are in the kernel, and the completions that
/// were there have been seen. Other tasks run meanwhile.
///
/// It is not enough that the task wakes itself: compio polls such a task up to 61 times before it enters the ring.
pub(crate) async fn yield_to_ring() {
    // A NOP cannot fail, and a failure would not matter.
    let _ = submit(Nop).await;
}

/// Ends `runtime` once nothing is left in the kernel. The tasks were dropped before.
///
/// compio closes the ring and then frees the buffers. close(2) does not promise to wait until the kernel is done with
/// them, and before Linux 6.17 it does not wait. Operations may be in flight although the tasks are gone: for a
/// moment those that were dropped with the tasks, and those of a future that outlives the runtime, which also holds
/// the driver. So all operations are cancelled first. If that does not end them, the driver is leaked, with
/// everything that they use.
///
/// # Panics
/// With the panic of a buffer that the driver drops, or of a value that a task of compio's own holds.
pub(crate) fn end(runtime: Runtime) {
    // It keeps the driver until the operations that outlive the runtime have been counted.
    let driver = ManuallyDrop::new(runtime.enter(|| submit(Nop)));
    let settled = catch_unwind(AssertUnwindSafe(|| settle(&runtime)));
    // This drops the tasks that were spawned by compio itself, not through the contract.
    let ended = catch_unwind(AssertUnwindSafe(|| drop(runtime)));
    // What is left stays for ever, and does not count for the next runtime.
    RUNTIME_ID.set(RUNTIME_ID.get() + 1);
    if IN_FLIGHT.take() == 0 {
        drop(ManuallyDrop::into_inner(driver));
    }
    if let Err(payload) = settled.and(ended) {
        resume_unwind(payload);
    }
}

/// Cancels the operations in flight, and waits until they have ended.
fn settle(runtime: &Runtime) {
    let (mut idle, mut panicked) = (0, None);
    // On a ring with DEFER_TASKRUN a round ends some 40 operations, however many are cancelled. A cancellation of all
    // passes each of them that has not ended, so there is another one only after a round that ended none.
    let mut is_cancelling = true;
    // Each round ends an operation, or counts towards the limit.
    while IN_FLIGHT.get() > 0 && idle < IDLE_ROUNDS_MAX {
        let before = IN_FLIGHT.get();
        let round = || {
            runtime.enter(|| {
                let mut cancel = pin!(is_cancelling.then(|| submit(CancelAll)));
                if let Some(cancel) = cancel.as_mut().as_pin_mut() {
                    // This puts it into the ring, if there is a ring.
                    let _ = cancel.poll(&mut Context::from_waker(Waker::noop()));
                }
                runtime.poll_with(Some(SETTLE_WAIT));
            });
        };
        // The driver drops the buffer of a dropped operation, which may panic.
        panicked = catch_unwind(AssertUnwindSafe(round)).err().or(panicked);
        is_cancelling = IN_FLIGHT.get() >= before;
        idle = if is_cancelling { idle + 1 } else { 0 };
    }
    if let Some(payload) = panicked {
        resume_unwind(payload);
    }
}

/// How long a round waits for cancelled operations to end. The kernel needs microseconds.
const SETTLE_WAIT: Duration = Duration::from_millis(1);

/// The number of rounds without progress after which `settle` gives up. A kernel before 5.19 cannot cancel all
/// operations, and leaves those of a connection that outlives the runtime.
const IDLE_ROUNDS_MAX: u32 = 4;

thread_local! {
    /// How many operations of this thread's runtime the kernel may still work on.
    static IN_FLIGHT: Cell<usize> = const { Cell::new(0) };

    /// How many runtimes have ended on this thread.
    static RUNTIME_ID: Cell<u64> = const { Cell::new(0) };
}

/// An operation that counts as in flight from its beginning until it has completed or is dropped.
struct Tracked<T>(T);

/// What the driver keeps next to a [`Tracked`] operation. The operation is moved more often.
#[derive(Default)]
struct Control<C> {
    inner: C,
    in_flight: InFlight,
}

// SAFETY: everything is passed on to the operation, whose entry is valid until it is completed.
unsafe impl<T: OpCode> OpCode for Tracked<T> {
    type Control = Control<T::Control>;

    unsafe fn init(&mut self, control: &mut Self::Control) {
        // SAFETY: the caller promises that the whole of this, and the control, stays where it is.
        unsafe { self.0.init(&mut control.inner) }
    }

    fn create_entry(&mut self, control: &mut Self::Control) -> OpEntry {
        self.0.create_entry(&mut control.inner)
    }

    unsafe fn set_result(
        &mut self,
        control: &mut Self::Control,
        result: &io::Result<usize>,
        extra: &Extra,
    ) {
        control.in_flight.end();
        // SAFETY: the caller promises that these are the operation's.
        unsafe { self.0.set_result(&mut control.inner, result, extra) }
    }
}

/// One operation in the count of a runtime, until it ends.
struct InFlight {
    runtime: Option<u64>,
}

impl Default for InFlight {
    fn default() -> Self {
        IN_FLIGHT.set(IN_FLIGHT.get() + 1);
        Self { runtime: Some(RUNTIME_ID.get()) }
    }
}

impl InFlight {
    fn end(&mut self) {
        if self.runtime.take() == Some(RUNTIME_ID.get()) {
            IN_FLIGHT.set(IN_FLIGHT.get() - 1);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end();
    }
}

/// A buffer that compio reads into. compio sees all of its memory, from the start.
struct Reading<B>(B);

impl<B: IoBuf> compio_buf::IoBuf for Reading<B> {
    fn as_init(&self) -> &[u8] {
        let bytes = self.0.buf_bytes();
        &bytes[..bytes.len().min(TRANSFER_BYTES_MAX)] // no more than `as_uninit`
    }
}

impl<B: IoBufMut> SetLen for Reading<B> {
    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: 1. and 2. The caller promises the same, and `as_uninit` is not longer than the
        // capacity.
        unsafe { self.0.set_buf_len(len) }
    }
}

impl<B: IoBufMut> compio_buf::IoBufMut for Reading<B> {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let capacity = self.0.buf_capacity().min(TRANSFER_BYTES_MAX);
        // SAFETY: that many bytes from the pointer on may be written (rule 1 of `IoBufMut`), and
        // the borrow of `self` keeps everybody else away from them.
        unsafe { slice::from_raw_parts_mut(self.0.buf_mut_ptr().cast(), capacity) }
    }
}

/// A buffer that compio writes from. compio sees its initialised bytes, at most `bytes_max`.
struct Writing<B> {
    buf: B,
    bytes_max: usize,
}

impl<B: IoBuf> compio_buf::IoBuf for Writing<B> {
    fn as_init(&self) -> &[u8] {
        let bytes = self.buf.buf_bytes();
        &bytes[..bytes.len().min(self.bytes_max)]
    }
}

/// `SENDMSG` of the next pieces, at most `bytes_max` bytes.
struct SendVectored<B> {
    fd: Rc<OwnedFd>,
    bufs: IoVec<B>,
    bytes_max: usize,
    message: libc::msghdr,
}

// SAFETY: the entry is valid until the operation completes. It names the descriptor, which the operation holds. It
// points to the message, which does not move: compio puts the operation on the heap before it asks for the entry, and
// takes it out when the operation has completed. The message points to the pieces, an array of `iovec` (`IoSlice` has
// its layout) over initialised bytes. Array and bytes keep their address, and nothing changes them meanwhile.
unsafe impl<B: IoBuf> OpCode for SendVectored<B> {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let pieces = self.bufs.as_io_slices_within(self.bytes_max);
        self.message.msg_iov = pieces.as_ptr().cast_mut().cast();
        self.message.msg_iovlen = pieces.len();
        let fd = types::Fd(self.fd.as_raw_fd());
        let send = opcode::SendMsg::new(fd, &raw const self.message);
        send.flags(libc::MSG_NOSIGNAL as u32).build().into()
    }
}

/// `NOP`.
struct Nop;

// SAFETY: the entry is valid until the operation is completed: it points to nothing.
unsafe impl OpCode for Nop {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        opcode::Nop::new().build().into()
    }
}

/// `ASYNC_CANCEL` of all operations in the ring.
struct CancelAll;

// SAFETY: the entry is valid until the operation is completed: it points to nothing.
unsafe impl OpCode for CancelAll {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        opcode::AsyncCancel2::new(types::CancelBuilder::any().all()).build().into()
    }
}

/// The error with its OS code. compio replaces ENOBUFS, which it takes to mean its own buffers.
fn os_error(error: io::Error) -> io::Error {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::ResourceBusy, None) => io::Error::from_raw_os_error(libc::ENOBUFS),
        _ => error,
    }
}

#[cfg(test)]
mod tests;

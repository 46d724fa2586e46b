//! Operations on the ring: each owns what the kernel uses for it until the kernel has let go.
//!
//! They are compio's own, except the vectored write: compio's allocates an array of pieces for each
//! one, and [`IoVec`] has that array already.

use std::cell::Cell;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::slice;
use std::time::Duration;

use compio_buf::{IntoInner, SetLen};
use compio_driver::op::{Interest, PollOnce, Recv, RecvFlags, Send, SendFlags};
use compio_driver::{OpCode, OpEntry};
use compio_runtime::{Runtime, submit};
use io_uring::{opcode, types};
use owned_io::{BufResult, IoBuf, IoBufExt, IoBufMut, IoVec, TRANSFER_BYTES_MAX};
use owned_io_os as os;

/// Receives into `buf`, which has room, from its start; sets its exact length.
pub(crate) async fn recv<B: IoBufMut>(fd: &Rc<OwnedFd>, buf: B) -> BufResult<usize, B> {
    let op = Recv::new(Held::new(fd), Reading(buf), RecvFlags::empty());
    let (result, Reading(mut buf)) = submit(op).await.into_inner().into();
    let result = result.map_err(os_error);
    if let Ok(n) = result {
        // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
        unsafe { buf.set_buf_len(n) };
    }
    BufResult(result, buf)
}

/// Sends the first bytes of `buf`, which is not empty.
pub(crate) async fn send<B: IoBuf>(fd: &Rc<OwnedFd>, buf: B) -> BufResult<usize, B> {
    let op = Send::new(Held::new(fd), Writing(buf), SendFlags::NOSIGNAL);
    let (result, Writing(buf)) = submit(op).await.into_inner().into();
    BufResult(result.map_err(os_error).and_then(os::check_written), buf)
}

/// Sends the next pieces of `bufs`, of which some are left, and advances by what was sent.
pub(crate) async fn send_vectored<B: IoBuf>(
    fd: &Rc<OwnedFd>,
    bufs: IoVec<B>,
) -> BufResult<usize, IoVec<B>> {
    // SAFETY: all zeroes is a message without name, pieces or control data.
    let message: libc::msghdr = unsafe { mem::zeroed() };
    let op = SendPieces { fd: Held::new(fd), bufs, message };
    let (result, SendPieces { mut bufs, .. }) = submit(op).await.into();
    let result = result.map_err(os_error).and_then(os::check_written);
    if let Ok(n) = result {
        bufs.advance(n);
    }
    BufResult(result, bufs)
}

/// Waits until a receive, or an accept, would not have to wait; holds no buffer.
pub(crate) async fn readable(fd: &Rc<OwnedFd>) -> io::Result<()> {
    submit(PollOnce::new(Held::new(fd), Interest::Readable)).await.0.map(drop)
}

/// Waits until a send would not have to wait, or a connect has ended.
pub(crate) async fn writable(fd: &Rc<OwnedFd>) -> io::Result<()> {
    submit(PollOnce::new(Held::new(fd), Interest::Writable)).await.0.map(drop)
}

/// Waits until the ring has been round once: what was submitted before is with the kernel, and the
/// completions there were have been seen. Other tasks have their turn meanwhile.
///
/// Waking oneself does not do: compio polls such a task up to 61 times before it enters the ring.
pub(crate) async fn turn() {
    // It cannot fail, and nothing would follow from it if it did.
    let _ = submit(Nothing).await;
}

/// Lets what was left in the kernel end: after the tasks were dropped, and their connections shut
/// down.
///
/// Otherwise compio would close the ring and then free the buffers, and nothing says that close(2)
/// waits until the kernel has let go of them.
pub(crate) fn settle(runtime: &Runtime) {
    let mut idle = 0;
    // Each turn ends an operation, or counts towards the limit.
    while HELD.get() > 0 && idle < IDLE_TURNS_MAX {
        let before = HELD.get();
        runtime.enter(|| runtime.poll_with(Some(TURN)));
        idle = if HELD.get() < before { 0 } else { idle + 1 };
    }
}

/// How long to wait for what a cancellation or a shutdown ends. It takes the kernel microseconds.
const TURN: Duration = Duration::from_millis(1);

/// After how many turns in which nothing ended no more is waited for. Something that does not end
/// was leaked, or belongs to a connection that outlives the runtime.
const IDLE_TURNS_MAX: u32 = 4;

thread_local! {
    /// How many operations of this thread hold a descriptor.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// A descriptor, as an operation holds it: open, and counted, until the operation has ended.
struct Held(Rc<OwnedFd>);

impl Held {
    fn new(fd: &Rc<OwnedFd>) -> Self {
        HELD.set(HELD.get() + 1);
        Self(Rc::clone(fd))
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// A buffer that compio reads into: all of its memory, from the start.
struct Reading<B>(B);

impl<B: IoBuf> compio_buf::IoBuf for Reading<B> {
    fn as_init(&self) -> &[u8] {
        self.0.buf_bytes()
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

/// A buffer that compio writes from: its initialised bytes.
struct Writing<B>(B);

impl<B: IoBuf> compio_buf::IoBuf for Writing<B> {
    fn as_init(&self) -> &[u8] {
        let bytes = self.0.buf_bytes();
        &bytes[..bytes.len().min(TRANSFER_BYTES_MAX)]
    }
}

/// `SENDMSG` of the next pieces.
struct SendPieces<B> {
    fd: Held,
    bufs: IoVec<B>,
    message: libc::msghdr,
}

// SAFETY: the entry is valid until the operation is completed. It names the descriptor, which is
// held. It points to the message, which does not move: compio has put the operation on the heap
// before it asks for the entry, and takes it out when it is completed. The message points to the
// pieces, an array of `iovec` (`IoSlice` has its layout) over initialised bytes; array and bytes
// keep their address, and nobody changes them meanwhile.
unsafe impl<B: IoBuf> OpCode for SendPieces<B> {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let pieces = self.bufs.as_io_slices();
        self.message.msg_iov = pieces.as_ptr().cast_mut().cast();
        self.message.msg_iovlen = pieces.len();
        let fd = types::Fd(self.fd.as_fd().as_raw_fd());
        let send = opcode::SendMsg::new(fd, &raw const self.message);
        send.flags(libc::MSG_NOSIGNAL as u32).build().into()
    }
}

/// `NOP`.
struct Nothing;

// SAFETY: the entry is valid until the operation is completed: it points to nothing.
unsafe impl OpCode for Nothing {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        opcode::Nop::new().build().into()
    }
}

/// The error with its OS code. compio replaces ENOBUFS, which to it means its own buffers.
fn os_error(error: io::Error) -> io::Error {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::ResourceBusy, None) => io::Error::from_raw_os_error(libc::ENOBUFS),
        _ => error,
    }
}

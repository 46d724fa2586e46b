//! What monoio's operations ask for that only unsafe code can give: buffers of its own traits, and
//! the stream that its halves share.

use std::cell::UnsafeCell;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::{fmt, ptr};

use monoio::io::{OwnedReadHalf, OwnedWriteHalf};
use monoio::net::{TcpListener, TcpStream};
use owned_io::{IoBuf, IoBufMut, TRANSFER_BYTES_MAX};

/// A buffer to be read into, as monoio sees it.
pub(crate) struct Reading<B>(pub(crate) B);

// SAFETY: monoio writes `bytes_total` bytes from `write_ptr` on, while it owns the buffer and moves
// it. `IoBufMut` promises that this many may be written there (1) and that they stay where they are
// until the buffer is dropped (2); the length is cut, never stretched.
unsafe impl<B: IoBufMut> monoio::buf::IoBufMut for Reading<B> {
    fn write_ptr(&mut self) -> *mut u8 {
        self.0.buf_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.0.buf_capacity().min(TRANSFER_BYTES_MAX)
    }

    unsafe fn set_init(&mut self, len: usize) {
        // SAFETY: 1. The caller's `len` is at most `bytes_total`, which is within the capacity.
        // 2. The caller has initialised that many.
        unsafe { self.0.set_buf_len(len) }
    }
}

/// A buffer to be written, as monoio sees it.
pub(crate) struct Writing<B>(pub(crate) B);

// SAFETY: monoio reads `bytes_init` bytes from `read_ptr` on, while it owns the buffer and moves it.
// `IoBuf` promises that this many are initialised (1) and stay where and as they are until the
// buffer is dropped (2); the length is cut, never stretched.
unsafe impl<B: IoBuf> monoio::buf::IoBuf for Writing<B> {
    fn read_ptr(&self) -> *const u8 {
        self.0.buf_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.0.buf_len().min(TRANSFER_BYTES_MAX)
    }
}

/// The stream that monoio's halves share, and its descriptor, which is open as long as this exists.
pub(crate) struct Shared {
    tcp: Rc<UnsafeCell<TcpStream>>,
    fd: RawFd,
}

impl Shared {
    /// What `half` shares with its other half.
    pub(crate) fn new(half: &OwnedReadHalf<TcpStream>) -> Self {
        let tcp = Rc::clone(&half.0);
        // SAFETY: the Rc keeps the stream alive, and nobody refers to it mutably: the halves do
        // only while one of their methods runs, and this is none of them.
        let fd = unsafe { &*tcp.get() }.as_raw_fd();
        Self { tcp, fd }
    }

    /// Waits until there is something to read, or the read side has ended.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        // SAFETY: as in `writable`.
        unsafe { &*self.tcp.get() }.readable(true).await
    }

    /// Waits until something can be written, or the write side has ended.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        // SAFETY: the Rc keeps the stream alive as long as `self` is borrowed. When the reference is
        // made and first used, nobody refers to the stream mutably: monoio's halves do only while
        // one of their methods runs. They may do so while this future waits, but then it does not
        // use its reference any more: at its first poll it takes the descriptor and makes the
        // operation, which is all that it looks at later.
        unsafe { &*self.tcp.get() }.writable(true).await
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `tcp` has it open, and nothing takes it out of there.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// monoio's write half, but one that does not shut the write side down when it is dropped: to drop
/// one half of ours does nothing.
#[derive(Debug)]
pub(crate) struct NativeWriteHalf(ManuallyDrop<OwnedWriteHalf<TcpStream>>);

impl NativeWriteHalf {
    pub(crate) const fn new(half: OwnedWriteHalf<TcpStream>) -> Self {
        Self(ManuallyDrop::new(half))
    }
}

impl Deref for NativeWriteHalf {
    type Target = OwnedWriteHalf<TcpStream>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for NativeWriteHalf {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for NativeWriteHalf {
    fn drop(&mut self) {
        // SAFETY: valid to be read, like every field; and not read twice, because the half, which is
        // never dropped itself, is used no more.
        drop(unsafe { ptr::read(&raw const self.0.0) });
    }
}

/// The descriptor of a listener.
pub(crate) fn listener_fd(tcp: &TcpListener) -> BorrowedFd<'_> {
    // SAFETY: the listener has it open while it is borrowed.
    unsafe { BorrowedFd::borrow_raw(tcp.as_raw_fd()) }
}

//! The unsafe code that monoio's operations need: buffers with monoio's traits, and a stream that is read and
//! written at the same time.

pub(crate) mod file;
mod held;

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::{fmt, io};

use monoio::io::{AsyncReadRent, AsyncWriteRent};
use monoio::net::TcpStream;
use owned_io::{IoBuf, IoBufMut, TRANSFER_BYTES_MAX, coop};

use held::Held;
pub(crate) use held::free_kept;

/// A buffer to be read into, as monoio sees it.
pub(crate) struct Reading<B: 'static>(Held<B>);

impl<B> Reading<B> {
    pub(crate) const fn new(buf: B) -> Self {
        Self(Held::new(buf))
    }

    pub(crate) fn into_inner(self) -> B {
        self.0.into_inner()
    }
}

// SAFETY: monoio writes `bytes_total` bytes from `write_ptr` on, while it owns the buffer and moves
// it. `IoBufMut` promises that this many may be written there (1) and that they stay where they are
// until the buffer is dropped (2); the length is cut, never stretched.
unsafe impl<B: IoBufMut> monoio::buf::IoBufMut for Reading<B> {
    fn write_ptr(&mut self) -> *mut u8 {
        self.0.get_mut().buf_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.0.get_ref().buf_capacity().min(TRANSFER_BYTES_MAX)
    }

    unsafe fn set_init(&mut self, len: usize) {
        // SAFETY: 1. The caller's `len` is at most `bytes_total`, which is within the capacity.
        // 2. The caller has initialised that many.
        unsafe { self.0.get_mut().set_buf_len(len) }
    }
}

/// A buffer to be written by one write, as monoio sees it: at most `bytes_max` of its bytes.
pub(crate) struct Writing<B: 'static> {
    held: Held<B>,
    bytes_max: usize,
}

impl<B> Writing<B> {
    /// Of a write that begins in this poll.
    pub(crate) fn new(buf: B) -> Self {
        Self { held: Held::new(buf), bytes_max: coop::write_bytes_max() }
    }

    pub(crate) fn into_inner(self) -> B {
        self.held.into_inner()
    }
}

// SAFETY: monoio reads `bytes_init` bytes from `read_ptr` on, while it owns the buffer and moves it.
// `IoBuf` promises that this many are initialised (1) and stay where and as they are until the
// buffer is dropped (2); the length is cut, never stretched.
unsafe impl<B: IoBuf> monoio::buf::IoBuf for Writing<B> {
    fn read_ptr(&self) -> *const u8 {
        self.held.get_ref().buf_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.held.get_ref().buf_len().min(self.bytes_max)
    }
}

/// A descriptor in a stream of monoio, whose operations work on any descriptor.
pub(crate) struct Tcp {
    tcp: UnsafeCell<TcpStream>,
    fd: RawFd,
}

impl Tcp {
    /// # Errors
    /// monoio's. `fd` is closed then.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let tcp = TcpStream::from_std(fd.into())?;
        let fd = tcp.as_raw_fd();
        Ok(Self { tcp: UnsafeCell::new(tcp), fd })
    }

    /// Receives into `buf`, which has room, from its start; sets its exact length. Begins at once.
    pub(crate) fn recv<B: IoBufMut>(
        &self,
        buf: Reading<B>,
    ) -> impl Future<Output = (io::Result<usize>, Reading<B>)> {
        free_kept();
        // SAFETY: no other reference to the stream is used while this one is. Only these methods make one,
        // on one thread, and monoio's functions use it only until they have made their operation. The
        // operation has its own share of the descriptor, and its future does not use the stream.
        unsafe { &mut *self.tcp.get() }.read(buf)
    }

    /// Sends the first bytes of `buf`, which is not empty. Begins at once.
    pub(crate) fn send<B: IoBuf>(
        &self,
        buf: Writing<B>,
    ) -> impl Future<Output = (io::Result<usize>, Writing<B>)> {
        free_kept();
        // SAFETY: as in `recv`.
        unsafe { &mut *self.tcp.get() }.write(buf)
    }

    /// Waits until something can be read or accepted, or the read side has ended.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        free_kept();
        // SAFETY: as in `recv`. The operation is made at the first poll, which follows at once.
        unsafe { &*self.tcp.get() }.readable(true).await
    }

    /// Waits until something can be written, or the write side has ended.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        free_kept();
        // SAFETY: as in `readable`.
        unsafe { &*self.tcp.get() }.writable(true).await
    }
}

impl AsFd for Tcp {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `tcp` has it open, and nothing takes it out of there.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tcp").field("fd", &self.fd).finish_non_exhaustive()
    }
}

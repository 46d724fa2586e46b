//! Files on monoio's ring, and the buffers of their reads and writes, with monoio's traits. The buffers are counted,
//! because the end of a runtime has to wait for them.

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use monoio::fs::File;
use owned_io::{FILE_TRANSFER_BYTES_MAX, IoBuf, IoBufMut};
use rustix::io::{DupFlags, dup3};

use super::{Held, free_kept};
use crate::local;

/// A file of monoio, which closes its descriptor. When it is dropped, the descriptor no longer refers to the file.
///
/// monoio closes by an operation that it gives up at once, behind the last operation of the file. The kernel does not
/// execute such a close if it has to wait, as on overlayfs and NFS: the descriptor, and a lock of the file, would stay
/// for ever. So the descriptor is made to refer to a placeholder first, which never waits.
///
/// Operations that the kernel works on hold the file themselves. Those that it does not know yet fail.
#[derive(Debug)]
pub(crate) struct RingFile(File);

impl RingFile {
    /// # Errors
    /// monoio's. `fd` is closed then.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        File::from_std(fd.into()).map(Self)
    }

    /// monoio's file, for an operation that begins.
    pub(crate) fn for_operation(&self) -> &File {
        free_kept();
        &self.0
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        // Outside of the runtime monoio calls close(2).
        let Some(placeholder) = local::placeholder() else { return };
        // SAFETY: the file owns the descriptor, and has it open until this returns. No operation is made meanwhile.
        // This second owner never closes it.
        let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.0.as_raw_fd()) });
        // If it fails, which it has no reason to, monoio closes the file itself.
        let _ = dup3(&*placeholder, &mut fd, DupFlags::CLOEXEC);
    }
}

/// A buffer to be read into, as monoio sees it.
pub(crate) struct Reading<B: 'static> {
    buf: Held<B>,
    _in_flight: InFlight,
}

impl<B> Reading<B> {
    pub(crate) fn new(buf: B) -> Self {
        Self { buf: Held::new(buf), _in_flight: InFlight::new() }
    }

    pub(crate) fn into_inner(self) -> B {
        self.buf.into_inner()
    }
}

// SAFETY: monoio writes `bytes_total` bytes from `write_ptr` on, while it owns the buffer and moves it. `IoBufMut`
// promises that this many may be written there (1) and that they stay where they are until the buffer is dropped (2);
// the length is cut, never stretched.
unsafe impl<B: IoBufMut> monoio::buf::IoBufMut for Reading<B> {
    fn write_ptr(&mut self) -> *mut u8 {
        self.buf.get_mut().buf_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.buf.get_ref().buf_capacity().min(FILE_TRANSFER_BYTES_MAX)
    }

    unsafe fn set_init(&mut self, len: usize) {
        // SAFETY: 1. The caller's `len` is at most `bytes_total`, which is within the capacity. 2. The caller has
        // initialised that many.
        unsafe { self.buf.get_mut().set_buf_len(len) }
    }
}

/// A buffer to be written, as monoio sees it.
pub(crate) struct Writing<B: 'static> {
    buf: Held<B>,
    _in_flight: InFlight,
}

impl<B> Writing<B> {
    pub(crate) fn new(buf: B) -> Self {
        Self { buf: Held::new(buf), _in_flight: InFlight::new() }
    }

    pub(crate) fn into_inner(self) -> B {
        self.buf.into_inner()
    }
}

// SAFETY: monoio reads `bytes_init` bytes from `read_ptr` on, while it owns the buffer and moves it. `IoBuf` promises
// that this many are initialised (1) and stay where and as they are until the buffer is dropped (2); the length is
// cut, never stretched.
unsafe impl<B: IoBuf> monoio::buf::IoBuf for Writing<B> {
    fn read_ptr(&self) -> *const u8 {
        self.buf.get_ref().buf_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.buf.get_ref().buf_len().min(FILE_TRANSFER_BYTES_MAX)
    }
}

/// How many buffers of files the kernel may still use.
pub(crate) fn in_flight() -> usize {
    IN_FLIGHT.get()
}

/// Forgets those that are left: they leak with their runtime.
pub(crate) fn forget_in_flight() {
    IN_FLIGHT.set(0);
}

thread_local! {
    static IN_FLIGHT: Cell<usize> = const { Cell::new(0) };
}

/// Counts a buffer. monoio keeps that of a dropped operation until the kernel is done with it.
struct InFlight(());

impl InFlight {
    fn new() -> Self {
        IN_FLIGHT.set(IN_FLIGHT.get() + 1);
        Self(())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        IN_FLIGHT.set(IN_FLIGHT.get().saturating_sub(1));
    }
}

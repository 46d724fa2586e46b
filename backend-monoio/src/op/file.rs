//! Buffers of reads and writes of files, with monoio's traits. They are counted, because the end of a runtime has to
//! wait for them.

use std::cell::Cell;

use owned_io::{FILE_TRANSFER_BYTES_MAX, IoBuf, IoBufMut};

/// A buffer to be read into, as monoio sees it.
pub(crate) struct Reading<B> {
    pub(crate) buf: B,
    _in_flight: InFlight,
}

impl<B> Reading<B> {
    pub(crate) fn new(buf: B) -> Self {
        Self { buf, _in_flight: InFlight::new() }
    }
}

// SAFETY: monoio writes `bytes_total` bytes from `write_ptr` on, while it owns the buffer and moves it. `IoBufMut`
// promises that this many may be written there (1) and that they stay where they are until the buffer is dropped (2);
// the length is cut, never stretched.
unsafe impl<B: IoBufMut> monoio::buf::IoBufMut for Reading<B> {
    fn write_ptr(&mut self) -> *mut u8 {
        self.buf.buf_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.buf.buf_capacity().min(FILE_TRANSFER_BYTES_MAX)
    }

    unsafe fn set_init(&mut self, len: usize) {
        // SAFETY: 1. The caller's `len` is at most `bytes_total`, which is within the capacity. 2. The caller has
        // initialised that many.
        unsafe { self.buf.set_buf_len(len) }
    }
}

/// A buffer to be written, as monoio sees it.
pub(crate) struct Writing<B> {
    pub(crate) buf: B,
    _in_flight: InFlight,
}

impl<B> Writing<B> {
    pub(crate) fn new(buf: B) -> Self {
        Self { buf, _in_flight: InFlight::new() }
    }
}

// SAFETY: monoio reads `bytes_init` bytes from `read_ptr` on, while it owns the buffer and moves it. `IoBuf` promises
// that this many are initialised (1) and stay where and as they are until the buffer is dropped (2); the length is
// cut, never stretched.
unsafe impl<B: IoBuf> monoio::buf::IoBuf for Writing<B> {
    fn read_ptr(&self) -> *const u8 {
        self.buf.buf_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.buf.buf_len().min(FILE_TRANSFER_BYTES_MAX)
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

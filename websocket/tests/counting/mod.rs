//! An allocator that counts, for the programs that assert how often it is asked, and for how much.
#![allow(dead_code, reason = "each test program uses a part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// How often this thread has asked for memory so far.
pub(crate) fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// How many bytes this thread has asked for and not given back.
pub(crate) fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

/// The most there was of that since this was asked last.
pub(crate) fn peak_bytes() -> isize {
    PEAK_BYTES.replace(LIVE_BYTES.get())
}

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: each method is the system allocator's, called with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get() + layout.size() as isize);
        PEAK_BYTES.set(PEAK_BYTES.get().max(LIVE_BYTES.get()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

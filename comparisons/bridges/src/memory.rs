//! An allocator that counts the allocations of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The memory that a thread has allocated.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// The number of allocations.
    pub(crate) allocations: u64,
    /// The peak of the bytes in use, less those at the start.
    pub(crate) peak_bytes: i64,
}

/// Starts to count on this thread.
pub(crate) fn start() {
    COUNTS.set(Counts::new());
}

/// The allocations of this thread since [`start`].
pub(crate) fn counted() -> Memory {
    let Counts { allocations, peak_bytes, .. } = COUNTS.get();
    Memory { allocations, peak_bytes }
}

#[derive(Clone, Copy)]
struct Counts {
    allocations: u64,
    live_bytes: i64,
    peak_bytes: i64,
}

impl Counts {
    const fn new() -> Self {
        Self { allocations: 0, live_bytes: 0, peak_bytes: 0 }
    }
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts::new()) };
}

fn count(allocations: u64, bytes: i64) {
    let mut counts = COUNTS.get();
    counts.allocations += allocations;
    counts.live_bytes += bytes;
    counts.peak_bytes = counts.peak_bytes.max(counts.live_bytes);
    COUNTS.set(counts);
}

struct Counting;

// SAFETY: each method calls the system allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, new_size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

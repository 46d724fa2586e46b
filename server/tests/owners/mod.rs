//! An allocator that tells the memory of a server from that of its clients, which run in the same simulation.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::{Future, poll_fn};

/// The bytes that the server has allocated on this thread, and nobody has freed.
pub(crate) fn server_bytes() -> isize {
    SERVER_BYTES.get()
}

/// Calls `f`. What it allocates is the server's, or is not.
pub(crate) fn with_owner<T>(is_server: bool, f: impl FnOnce() -> T) -> T {
    let before = IS_SERVER.replace(is_server);
    let output = f();
    IS_SERVER.set(before);
    output
}

/// Runs `future`. What it allocates is the server's, or is not. So is the future itself, boxed: as the argument of an
/// asynchronous function it would count twice.
pub(crate) fn owned_by_server<F: Future>(
    is_server: bool,
    future: F,
) -> impl Future<Output = F::Output> {
    let mut future = with_owner(is_server, || Box::pin(future));
    poll_fn(move |cx| with_owner(is_server, || future.as_mut().poll(cx)))
}

struct Owners;

thread_local! {
    static IS_SERVER: Cell<bool> = const { Cell::new(false) };
    static SERVER_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The bytes before each allocation, of which the last says whose it is. They keep its alignment.
const fn prefix_bytes(layout: Layout) -> usize {
    if layout.align() > 16 { layout.align() } else { 16 }
}

/// The layout with the prefix. None if it would be too large.
fn with_prefix(layout: Layout) -> Option<Layout> {
    let bytes = layout.size().checked_add(prefix_bytes(layout))?;
    Layout::from_size_align(bytes, layout.align()).ok()
}

// SAFETY: each allocation is one of the system allocator with a prefix. What is returned is behind the prefix: it has
// the size and the alignment of `layout`, and nobody else uses the prefix. Nothing here allocates or panics.
unsafe impl GlobalAlloc for Owners {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(prefixed) = with_prefix(layout) else { return std::ptr::null_mut() };
        // SAFETY: the layout has at least the bytes of the prefix.
        let start = unsafe { System.alloc(prefixed) };
        if start.is_null() {
            return start;
        }
        let is_server = IS_SERVER.get();
        if is_server {
            SERVER_BYTES.set(SERVER_BYTES.get() + layout.size() as isize);
        }
        let bytes = start.wrapping_add(prefix_bytes(layout));
        // SAFETY: the byte is the last of the prefix, which is within the allocation.
        unsafe { bytes.wrapping_sub(1).write(is_server.into()) };
        bytes
    }

    unsafe fn dealloc(&self, bytes: *mut u8, layout: Layout) {
        let Some(prefixed) = with_prefix(layout) else { return };
        // SAFETY: `alloc` returned `bytes`, behind a prefix whose last byte it wrote.
        if unsafe { bytes.wrapping_sub(1).read() } != 0 {
            SERVER_BYTES.set(SERVER_BYTES.get() - layout.size() as isize);
        }
        // SAFETY: `alloc` returned `bytes` for this layout, so the allocation begins where its prefix does.
        unsafe { System.dealloc(bytes.wrapping_sub(prefix_bytes(layout)), prefixed) };
    }
}

#[global_allocator]
static OWNERS: Owners = Owners;

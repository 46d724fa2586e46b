//! The thread that is watched allocates nothing for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use owned_io_stalls::{Config, Detector};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: each call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `ptr` came from the same allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_heart_that_beats_allocates_nothing() {
    let detector = Detector::start(Config::default()).unwrap();
    let (heart, gauge) = (detector.watch_current_thread("beats"), detector.gauge("queue", None));
    let context = &mut Context::from_waker(Waker::noop());
    let before = ALLOCATIONS.get();
    let until = Instant::now() + Duration::from_secs(1); // so that the watchdog looks meanwhile
    let mut ticks = 0_u64;
    while Instant::now() < until {
        heart.beat();
        gauge.set(ticks);
        let mut tick = pin!(heart.tick());
        ticks += u64::from(tick.as_mut().poll(context) == Poll::Ready(()));
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

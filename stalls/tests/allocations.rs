//! What allocates while all is well: nothing on the thread that is watched, and a bounded amount on the watchdog's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use owned_io_stalls::{Config, Detector};

/// Counts the allocations of each thread, and those of the watchdog for the others to read.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// How often the watchdog may allocate in a second when it does not look: once in a second it reads the counters of the
/// heart's thread. If each wake allocated, these would be twice as many.
const WAKING_MAX: u64 = 16;
/// How often it may allocate for a look, which keeps what it saw.
const LOOK_MAX: u64 = 40;
/// How many bytes more it may have after some looks: those that are kept differ by some strings.
const GROWTH_MAX: i64 = 4_096;

/// What the watchdog has allocated: how often, and how many bytes it has now.
static WATCHDOG_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static WATCHDOG_BYTES: AtomicI64 = AtomicI64::new(0);

/// Whether the calling thread is the watchdog, by its name. It allocates nothing.
fn is_watchdog() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, the last of them a 0.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"stalls\0")
}

// SAFETY: each call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        if is_watchdog() {
            WATCHDOG_ALLOCATIONS.fetch_add(1, Relaxed);
            WATCHDOG_BYTES.fetch_add(layout.size() as i64, Relaxed);
        }
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if is_watchdog() {
            WATCHDOG_BYTES.fetch_sub(layout.size() as i64, Relaxed);
        }
        // SAFETY: the caller keeps the contract of `dealloc`, and `ptr` came from the same allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a second of a healthy program takes of the watchdog: allocations, and bytes more than before.
fn watch(look_interval: Duration) -> (u64, i64) {
    const SECONDS: u64 = 2;
    let mut config = Config::default();
    config.look_interval = look_interval;
    let detector = Detector::start(config).unwrap();
    let (heart, gauge) = (detector.watch_current_thread("beats"), detector.gauge("queue", None));
    let context = &mut Context::from_waker(Waker::noop());
    let mut ticks = 0_u64;
    let mut beat_for = |seconds| {
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            heart.beat();
            gauge.set(ticks);
            let mut tick = pin!(heart.tick());
            ticks += u64::from(tick.as_mut().poll(context) == Poll::Ready(()));
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    beat_for(2); // until the evidence has all its looks, if there are any
    let before = ALLOCATIONS.get();
    let (allocations, bytes) = (WATCHDOG_ALLOCATIONS.load(Relaxed), WATCHDOG_BYTES.load(Relaxed));
    beat_for(SECONDS);
    assert_eq!(ALLOCATIONS.get(), before, "a beat allocates nothing");
    let allocations = WATCHDOG_ALLOCATIONS.load(Relaxed) - allocations;
    (allocations / SECONDS, WATCHDOG_BYTES.load(Relaxed) - bytes)
}

/// On a machine that is busy with other work the heart may be late, and the watchdog then reads more. So the best of
/// some attempts counts.
fn watch_calm(look_interval: Duration, most: u64) {
    const ATTEMPTS: usize = 5;
    let mut found = Vec::new();
    while found.len() < ATTEMPTS {
        let (allocations, grown) = watch(look_interval);
        println!(
            "looks each {look_interval:?}: {allocations} allocations a second, {grown} bytes more"
        );
        if allocations <= most && grown.abs() <= GROWTH_MAX {
            return;
        }
        found.push((allocations, grown));
    }
    panic!("more than {most} allocations a second, or {GROWTH_MAX} bytes: {found:?}");
}

#[test]
fn what_allocates_while_a_heart_beats() {
    watch_calm(Duration::from_secs(3_600), WAKING_MAX);
    watch_calm(Duration::from_millis(100), WAKING_MAX + 10 * LOOK_MAX);
}

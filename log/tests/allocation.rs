//! Allocations that fail: they are errors of the read, and the log goes on. In the simulation.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::error::Error as _;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use owned_io_log::{ErrorKind, Partition, PartitionConfig, ReadFrom};
use owned_io_sim::Sim;

/// The long batches, in bytes.
const LONG: usize = 1 << 20;

#[test]
fn a_read_without_memory_is_refused_and_the_log_goes_on() {
    owned_io_sim::block_on(async {
        let log = log_of(&[LONG]).await;
        fail(LONG..2 * LONG);
        let refused = log.read(ReadFrom::Offset(0), LONG).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io);
        assert!(refused.path().is_some_and(|path| path.ends_with("00000000000000000000.log")));
        let source = refused.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::OutOfMemory));
        fail(0..0);
        let found = log.read(ReadFrom::Offset(0), LONG).await.unwrap();
        assert_eq!(found[0].bytes, vec![7; LONG]);
    });
}

/// The batches share the memory of the read then.
#[test]
fn a_read_without_memory_for_a_copy_is_answered() {
    owned_io_sim::block_on(async {
        let log = log_of(&[100_000, LONG]).await;
        fail(100_000..100_001);
        let found = log.read(ReadFrom::Offset(0), LONG).await.unwrap();
        fail(0..0);
        assert_eq!(found.len(), 1, "there is no room for the second");
        assert_eq!(found[0].bytes, vec![7; 100_000]);
    });
}

/// A log with a batch of each of these lengths, and none of them in memory.
async fn log_of(lens: &[usize]) -> Partition<Sim> {
    let mut config = PartitionConfig::default();
    config.cache_bytes_max = 0;
    let (log, _) = common::open::<Sim>(&common::scratch::<Sim>(), config).await;
    for len in lens {
        log.append(1, |_| [Bytes::from(vec![7; *len])]).await.unwrap();
    }
    log
}

thread_local! {
    /// The sizes of allocations that fail.
    static FAILING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Lets allocations of these sizes fail from now on.
fn fail(sizes: Range<usize>) {
    FAILING.set((sizes.start, sizes.end));
}

struct Failing;

// SAFETY: what is returned is the system allocator's, or null. Nothing here allocates or panics.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (start, end) = FAILING.get();
        if (start..end).contains(&layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of this method, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, bytes: *mut u8, layout: Layout) {
        // SAFETY: `alloc` returned `bytes`, which are of `System`, for this layout.
        unsafe { System.dealloc(bytes, layout) };
    }
}

#[global_allocator]
static FAILING_ALLOCATOR: Failing = Failing;

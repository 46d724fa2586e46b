//! The buffers that the kernel receives into (io_uring_register_buf_ring(3)).

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use peers_common::BUF_BYTES;

/// How many buffers there are; a power of two. Of their 64 MiB only what has been received into is
/// backed by memory.
pub(crate) const BUFFERS: u16 = 4096;

/// The one group of buffers there is.
pub(crate) const GROUP: u16 = 0;

/// What the kernel needs the ring to be aligned to.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// A ring of free buffers that the kernel takes from and this process gives back to. The memory of
/// both is leaked: the kernel may write to it for as long as the process lives.
pub(crate) struct Buffers {
    entries: *mut BufRingEntry,
    bytes: *mut u8,
    /// Where the next entry goes; counts on, and wraps.
    tail: u16,
    /// How many the kernel has.
    free: usize,
}

impl Buffers {
    pub(crate) fn register(ring: &IoUring) -> io::Result<Self> {
        let pages = (usize::from(BUFFERS) * size_of::<BufRingEntry>()).div_ceil(size_of::<Page>());
        let entries: *mut BufRingEntry = vec![Page([0; 4096]); pages].leak().as_mut_ptr().cast();
        let bytes = vec![0; usize::from(BUFFERS) * BUF_BYTES].leak().as_mut_ptr();
        let mut buffers = Self { entries, bytes, tail: 0, free: 0 };
        for id in 0..BUFFERS {
            buffers.give(id);
        }
        // SAFETY: `entries` is the address of as many zeroed entries, page-aligned, never freed.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, 0)?;
        }
        Ok(buffers)
    }

    /// How many the kernel has left to receive into.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Counts one that the kernel has filled.
    pub(crate) fn take(&mut self) {
        self.free -= 1;
    }

    /// Hands one to the kernel. It must have been taken, and no send may be under way from it.
    pub(crate) fn give(&mut self, id: u16) {
        let slot = usize::from(self.tail % BUFFERS);
        // SAFETY: `slot` is less than the number of entries. The kernel reads this one only once
        // the tail says so; of the first one's bytes it reads the tail, which is not written here.
        let entry = unsafe { &mut *self.entries.wrapping_add(slot) };
        entry.set_addr(self.address(id) as u64);
        entry.set_len(BUF_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        self.free += 1;
        // SAFETY: `entries` is the address of the ring's first entry, which is initialised.
        let tail = unsafe { BufRingEntry::tail(self.entries) };
        // SAFETY: it is aligned and lives for ever; this thread alone writes it, and the kernel
        // reads it as an atomic.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release); // after the entry
    }

    /// Where a buffer is. Only the kernel reads and writes its bytes.
    pub(crate) fn address(&self, id: u16) -> *mut u8 {
        self.bytes.wrapping_add(usize::from(id) * BUF_BYTES)
    }
}

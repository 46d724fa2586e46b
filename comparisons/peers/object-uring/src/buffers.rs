//! The buffers that the kernel receives into (io_uring_register_buf_ring(3)).

use std::sync::atomic::{AtomicU16, Ordering};
use std::{io, slice};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use peers_common::{AlignedBytes, BUF_BYTES, BUF_STRIDE_BYTES};

/// The number of buffers, which is a power of two. Of their 256 MiB only the pages that were received into use memory.
pub(crate) const BUFFERS: u16 = 4096;

/// The only buffer group.
pub(crate) const GROUP: u16 = 0;

/// The alignment that the kernel requires of the ring.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// A ring of free buffers. The kernel takes buffers from it, and this process returns them. The memory of the ring and
/// of the buffers is leaked, because the kernel may write to it until the process ends.
pub(crate) struct Buffers {
    entries: *mut BufRingEntry,
    bytes: *mut u8,
    /// The index of the next entry, which wraps.
    tail: u16,
}

impl Buffers {
    pub(crate) fn register(ring: &IoUring) -> io::Result<Self> {
        let pages = (usize::from(BUFFERS) * size_of::<BufRingEntry>()).div_ceil(size_of::<Page>());
        let entries: *mut BufRingEntry = vec![Page([0; 4096]); pages].leak().as_mut_ptr().cast();
        let bytes = AlignedBytes::zeroed(usize::from(BUFFERS) * BUF_STRIDE_BYTES);
        let bytes = Box::leak(Box::new(bytes)).as_mut_ptr();
        let mut buffers = Self { entries, bytes, tail: 0 };
        for id in 0..BUFFERS {
            buffers.provide(id);
        }
        // SAFETY: `entries` is the address of `BUFFERS` entries, page-aligned, never freed.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, 0)?;
        }
        Ok(buffers)
    }

    /// What the kernel has received into a buffer that it has not been provided again.
    pub(crate) fn received(&self, id: u16, len: u32) -> &[u8] {
        let len = (len as usize).min(BUF_BYTES);
        // SAFETY: the buffer has so many bytes, which are initialised and never freed. The kernel writes to them only
        // after `provide`, which needs this borrow to have ended.
        unsafe { slice::from_raw_parts(self.address(id), len) }
    }

    /// Provides a buffer to the kernel, which must have received into it.
    pub(crate) fn provide(&mut self, id: u16) {
        let slot = usize::from(self.tail % BUFFERS);
        // SAFETY: `slot` is less than the number of entries. The kernel reads this entry only after
        // the tail was advanced. The tail is in the first entry, in bytes that are not written here.
        let entry = unsafe { &mut *self.entries.wrapping_add(slot) };
        entry.set_addr(self.address(id) as u64);
        entry.set_len(BUF_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `entries` is the address of the ring's first entry, which is initialised.
        let tail = unsafe { BufRingEntry::tail(self.entries) };
        // SAFETY: it is aligned and never freed. This thread alone writes it, and the kernel reads
        // it as an atomic.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release); // the entry is written before the tail
    }

    /// The address of a buffer.
    fn address(&self, id: u16) -> *mut u8 {
        self.bytes.wrapping_add(usize::from(id) * BUF_STRIDE_BYTES)
    }
}

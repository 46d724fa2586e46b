use std::ops::{Deref, DerefMut};

use super::BUF_BYTES;

/// A buffer that begins at a cache line, as those of this project's server do: see `owned_io::Pool::ALIGN`. Only the pages
/// that are written to use memory.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        const ALIGN: usize = 64;
        let bytes = vec![0; BUF_BYTES + ALIGN - 1];
        let addr = bytes.as_ptr().addr();
        Self { bytes, start: addr.next_multiple_of(ALIGN) - addr }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..BUF_BYTES]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..BUF_BYTES]
    }
}

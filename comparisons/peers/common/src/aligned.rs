use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes that begin at a cache line, as the receive buffers of this project's server do. `owned_io::Pool::ALIGN` says why.
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBytes {
    /// The alignment, in bytes.
    pub const ALIGN: usize = 64;

    /// `len` zeroes. Only pages that are written use memory, if the block is fresh from the kernel.
    pub fn zeroed(len: usize) -> Self {
        let mut bytes = vec![0; len + Self::ALIGN - 1];
        let addr = bytes.as_ptr().addr();
        let start = addr.next_multiple_of(Self::ALIGN) - addr;
        bytes.truncate(start + len);
        Self { bytes, start }
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut new = Self::zeroed(bytes.len());
        new.copy_from_slice(bytes);
        new
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBytes").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_cache_line() {
        let all: Vec<_> = (1..100).map(AlignedBytes::zeroed).collect();
        for (len, bytes) in (1..).zip(&all) {
            assert!(bytes.as_ptr().addr().is_multiple_of(AlignedBytes::ALIGN));
            assert_eq!(**bytes, vec![0; len]);
        }
        assert_eq!(*AlignedBytes::from(&b"bytes"[..]), *b"bytes");
    }
}

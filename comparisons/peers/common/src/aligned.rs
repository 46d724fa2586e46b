use std::ops::{Deref, DerefMut};

/// Bytes that begin at a cache line, as the buffers of this project's server do. `owned_io::Pool::ALIGN` says why. Only
/// the pages that are written to use memory.
#[derive(Debug)]
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBytes {
    /// The alignment, in bytes.
    pub const ALIGN: usize = 64;

    /// No bytes yet. `capacity` bytes can be added without a move.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes = Vec::<u8>::with_capacity(capacity + Self::ALIGN - 1);
        let addr = bytes.as_ptr().addr();
        let start = addr.next_multiple_of(Self::ALIGN) - addr;
        bytes.resize(start, 0);
        Self { bytes, start }
    }

    /// `len` zeroes.
    pub fn zeroed(len: usize) -> Self {
        let mut new = Self::with_capacity(len);
        new.bytes.resize(new.start + len, 0);
        new
    }

    /// Adds bytes at the end.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes.capacity() - self.bytes.len(), "more than the capacity");
        self.bytes.extend_from_slice(bytes);
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut new = Self::with_capacity(bytes.len());
        new.extend_from_slice(bytes);
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

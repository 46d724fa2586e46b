//! [`Ledger`]: counts the bytes that objects take.

use std::collections::TryReserveError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// What a block takes beyond its bytes: its owner, its reference count, and its place in lists.
pub(super) const BLOCK_OVERHEAD_BYTES: usize = 128;

/// Counts the bytes that objects take, over all workers. They count until the last reader has dropped them, whether
/// the cache still has the object or not.
#[derive(Debug)]
pub(super) struct Ledger {
    held: AtomicUsize,
    max: usize,
}

/// Bytes that count until it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    ledger: Arc<Ledger>,
    bytes: usize,
}

/// The bytes of a block, and their charge.
struct Charged {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl Ledger {
    /// With room for `max` bytes.
    pub(super) const fn new(max: usize) -> Self {
        Self { held: AtomicUsize::new(0), max }
    }

    /// The bytes that count.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Charges bytes, if there is room for them.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        // Nothing else is published by the number.
        let charged = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|held| *held <= self.max)
        });
        charged.ok().map(|_| Charge { ledger: Arc::clone(self), bytes })
    }
}

impl Charge {
    /// Copies `parts` into a block, which has this charge from now on.
    ///
    /// # Errors
    /// The allocation fails.
    pub(super) fn block(self, parts: &[&[u8]]) -> Result<Bytes, TryReserveError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(parts.iter().map(|part| part.len()).sum())?;
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        Ok(Bytes::from_owner(Charged { bytes, _charge: self }))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_counts_until_its_last_reader_has_dropped_it() {
        let ledger = Arc::new(Ledger::new(100));
        let block = ledger.charge(60).unwrap().block(&[b"abc", b"de"]).unwrap();
        assert_eq!(&block[..], b"abcde");
        assert!(ledger.charge(41).is_none());
        let small = ledger.charge(40).unwrap();
        let part = block.slice(1..3);
        drop((block, small));
        assert_eq!(ledger.held_bytes(), 60);
        drop(part);
        assert_eq!(ledger.held_bytes(), 0);
        assert!(ledger.charge(usize::MAX).is_none());
    }
}

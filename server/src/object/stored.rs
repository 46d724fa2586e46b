//! [`Stored`]: an object that has arrived. [`Head`]: what its origin says about it.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Lifetime;
use super::ledger::Charge;

/// The bytes of a block, unless the length of chunks asks for others: as many as one write passes to the kernel, with
/// room for a head before it.
pub const BLOCK_BYTES: usize = owned_io::TRANSFER_BYTES_MAX - 4 * 1024;

/// What the origin says about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its length, if that is known before it has arrived.
    pub length: Option<u64>,
    /// The headers that clients get, in order. At most [`FORWARDED_MAX`](super::response::FORWARDED_MAX).
    pub headers: Vec<(&'static str, Box<str>)>,
    /// The strong entity tag of the origin, with its quotes.
    pub etag: Option<Box<str>>,
    /// How old the answer was when it arrived, in seconds.
    pub age: u64,
}

/// An object that has arrived as a whole.
pub struct Stored {
    head: Arc<Head>,
    etag: Box<str>,
    bytes: u64,
    /// Each has the same length but the last.
    blocks: Vec<Bytes>,
    block_bytes: usize,
    /// When it arrived at the origin's cache, or at ours.
    generated_at: Instant,
    arrived_at: Instant,
    lifetime: Lifetime,
    /// For what it takes beyond its blocks.
    _charge: Charge,
}

impl Stored {
    #[expect(
        clippy::too_many_arguments,
        reason = "these are its fields, and one function has them"
    )]
    pub(super) fn new(
        head: Arc<Head>,
        etag: Box<str>,
        bytes: u64,
        blocks: Vec<Bytes>,
        block_bytes: usize,
        arrived_at: Instant,
        lifetime: Lifetime,
        charge: Charge,
    ) -> Self {
        let age = Duration::from_secs(head.age);
        let generated_at = arrived_at.checked_sub(age).unwrap_or(arrived_at);
        Self {
            head,
            etag,
            bytes,
            blocks,
            block_bytes,
            generated_at,
            arrived_at,
            lifetime,
            _charge: charge,
        }
    }

    /// What the origin says about it.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// Its strong entity tag, with its quotes: the origin's, or one that is made of its bytes.
    pub fn etag(&self) -> &str {
        &self.etag
    }

    /// Its length.
    pub const fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes from `at` to the end of their block. `None` at the end of the object.
    pub fn read(&self, at: u64) -> Option<Bytes> {
        let at = usize::try_from(at).ok()?;
        let block = self.blocks.get(at / self.block_bytes)?;
        let from = at % self.block_bytes;
        (from < block.len()).then(|| block.slice(from..))
    }

    /// Its age in seconds (RFC 9111 section 5.1).
    pub fn age(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.generated_at).as_secs()
    }

    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.arrived_at) < self.lifetime.fresh
    }

    /// Whether it may be used, fresh or not.
    pub(super) fn is_usable(&self, now: Instant) -> bool {
        let Lifetime { fresh, stale } = self.lifetime;
        now.saturating_duration_since(self.arrived_at) < fresh + stale
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// The bytes of a block, so that it consists of whole chunks: about [`BLOCK_BYTES`], or one chunk if that is longer.
pub(super) fn block_bytes(chunk_bytes: Option<NonZeroUsize>) -> usize {
    let chunk = chunk_bytes.map_or(BLOCK_BYTES, NonZeroUsize::get);
    chunk * (BLOCK_BYTES / chunk).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ledger::Ledger;

    #[test]
    fn a_block_consists_of_whole_chunks() {
        let bytes = |chunk| block_bytes(NonZeroUsize::new(chunk));
        assert_eq!(bytes(0), BLOCK_BYTES);
        assert_eq!(bytes(4_096), BLOCK_BYTES);
        assert_eq!(bytes(50_000), 100_000);
        assert_eq!(bytes(1_345_292), 1_345_292);
    }

    #[test]
    fn each_byte_is_found_in_its_block() {
        let now = Instant::now();
        let lifetime = Lifetime { fresh: Duration::from_secs(2), stale: Duration::from_secs(3) };
        let charge = Arc::new(Ledger::new(1)).charge(1).unwrap();
        let blocks = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"de")];
        let head = Arc::new(Head { age: 7, ..Head::default() });
        let stored = Stored::new(head, "\"1\"".into(), 5, blocks, 3, now, lifetime, charge);
        for (at, rest) in [(0, "abc"), (2, "c"), (3, "de"), (4, "e")] {
            assert_eq!(stored.read(at).unwrap(), rest);
        }
        assert_eq!((stored.read(5), stored.read(6), stored.read(u64::MAX)), (None, None, None));
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(stored.age(after(2)), 9);
        assert_eq!([1, 2, 4].map(|it| stored.is_fresh(after(it))), [true, false, false]);
        assert_eq!([2, 4, 5].map(|it| stored.is_usable(after(it))), [true, true, false]);
    }
}

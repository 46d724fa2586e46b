//! [`Observer`]: learns what a log does, for metrics.

use std::fmt::Debug;
use std::time::Duration;

/// Learns of each write and each sync of a [`Partition`](crate::Partition) or a [`Journal`](crate::Journal), for metrics.
///
/// The writer of the log calls it, on the thread of the log, between its I/O. It must return soon, and must not use the
/// log.
pub trait Observer: Debug {
    /// A group of batches was written, by one write.
    fn wrote(&self, group: Group) {
        let _ = group;
    }

    /// A sync has ended, after `time`. If it has failed, the log takes nothing more.
    fn synced(&self, time: Duration, is_ok: bool) {
        let _ = (time, is_ok);
    }
}

/// The batches of one write. With [`SyncPolicy::Batch`](crate::SyncPolicy::Batch) one sync serves them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// The batches. There is at least one.
    pub batches: usize,
    /// Their messages.
    pub messages: u64,
    /// The bytes that were written, with the headers of the batches.
    pub bytes: u64,
}

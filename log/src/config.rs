//! [`PartitionConfig`], and what else a caller chooses.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The settings of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionConfig {
    /// When an append is acknowledged. Default [`SyncPolicy::Batch`].
    pub sync: SyncPolicy,
    /// A segment takes no more batches beyond this length, in bytes. Default 128 MiB: opening a partition that was not
    /// closed reads its last segment, which takes a fraction of a second then. A short one is always read.
    pub segment_bytes: u64,
    /// The largest payload of a batch, in bytes. Default 16 MiB. It is at most 1 GiB, whatever is set.
    pub batch_bytes_max: usize,
    /// The most bytes that appends leave waiting to be written. Further appends wait. Default 16 MiB. One batch may
    /// exceed it, and so a partition holds at most this and one batch. Each part of a batch counts 256 bytes more, for
    /// what the partition keeps beside it.
    pub queue_bytes_max: usize,
    /// The most bytes of recent batches in memory, which reads return without I/O. Default 4 MiB. Each batch counts 256
    /// bytes more. Batches below 16 KiB are copied. A larger one is kept as it came, with the whole buffer that it is a
    /// slice of; one of several parts is not kept.
    pub cache_bytes_max: usize,
    /// The most segments besides the last one whose files stay open for further reads: those that were read last.
    /// Default 16. A partition has this many descriptors, two for the lock and the last segment, and one for each read
    /// that runs.
    pub open_segments_max: usize,
    /// The most segments besides the last one whose index stays in memory: those that were read last, and at least
    /// those whose files are open. Default 64. Each takes up to 12 KiB. A read in another segment first reads the
    /// headers of all its batches.
    pub indexes_max: usize,
}

impl Default for PartitionConfig {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::Batch,
            segment_bytes: 128 * 1024 * 1024,
            batch_bytes_max: 16 * 1024 * 1024,
            queue_bytes_max: 16 * 1024 * 1024,
            cache_bytes_max: 4 * 1024 * 1024,
            open_segments_max: 16,
            indexes_max: 64,
        }
    }
}

/// The largest payload that the format permits.
const BATCH_BYTES_MAX: usize = 1024 * 1024 * 1024;

impl PartitionConfig {
    pub(crate) fn batch_limit(&self) -> usize {
        self.batch_bytes_max.min(BATCH_BYTES_MAX)
    }
}

/// When an append is acknowledged.
///
/// On a command line it is `never`, `batch`, or `interval:MS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// When the operating system has it. The end of the process loses nothing. A segment is synced when it is full. A
    /// loss of power loses the end of the last segment, from the first batch on that the system has not written.
    Never,
    /// When it is on the disk. One sync serves all who wait.
    Batch,
    /// When the operating system has it. It is synced within about this time. A loss of power loses the end of the log,
    /// at most what was appended in this time and during one sync.
    Interval(Duration),
}

impl fmt::Display for SyncPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Batch => f.write_str("batch"),
            Self::Interval(interval) => write!(f, "interval:{}", interval.as_millis()),
        }
    }
}

impl FromStr for SyncPolicy {
    type Err = ParseSyncPolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("interval:")) {
            ("never", _) => Ok(Self::Never),
            ("batch", _) => Ok(Self::Batch),
            (_, Some(millis)) => {
                let millis = millis.parse().map_err(|_| ParseSyncPolicyError)?;
                if millis == 0 {
                    return Err(ParseSyncPolicyError);
                }
                Ok(Self::Interval(Duration::from_millis(millis)))
            }
            _ => Err(ParseSyncPolicyError),
        }
    }
}

/// A text that is no [`SyncPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseSyncPolicyError;

impl fmt::Display for ParseSyncPolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected never, batch, or interval:MS with a number of milliseconds above 0")
    }
}

impl std::error::Error for ParseSyncPolicyError {}

/// What [`Partition::trim`](crate::Partition::trim) keeps. Whole segments are removed, and never the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The oldest segments are removed until the log has at most this many bytes.
    pub bytes_max: Option<u64>,
    /// Segments whose newest batch is older are removed.
    pub age_max: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        let interval = SyncPolicy::Interval(Duration::from_millis(250));
        for policy in [SyncPolicy::Never, SyncPolicy::Batch, interval] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for text in ["", "always", "interval", "interval:", "interval:0", "interval:-1", "batch "] {
            assert_eq!(text.parse::<SyncPolicy>(), Err(ParseSyncPolicyError), "{text:?}");
        }
    }
}

//! [`Memory`]: how the memory that peers can make a worker hold is divided.

use owned_io::{MemoryBudget, Pool, PoolConfig};

/// The memory of one worker for all its connections, in bytes.
///
/// | part | size | for |
/// |---|---|---|
/// | buffers | one for each connection that there may be, and 256 more | what one read brings, until it is answered |
/// | shares | half of the rest, the same for each connection | frames received in part, short queues |
/// | common part | the other half, first come, first served | long messages, long queues |
///
/// So each connection can always receive. What the worker itself needs is extra, and does not depend on what
/// peers do: some 5 KB for each connection, and up to 64 MiB for buffers that are kept for reuse, the patterns
/// that [`source`](crate::service::source) sends, and compressors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The whole.
    pub bytes_max: usize,
    /// The connections that there may be.
    pub connections_max: usize,
    /// The length of each receive buffer, in bytes.
    pub buf_bytes: usize,
}

/// The greatest length of receive buffers, in bytes, with the [`PoolConfig::SHORT_OF_PAGE_BYTES`] by which each is shorter. One
/// read receives many frames that a peer sends at once, and messages that fit are handed out in place.
///
/// Compared with 16 KiB, 16 echoes of 1 KiB took 0.6 of the time, and 16 echoes of 16 KiB a third. 128 KiB were no faster
/// (2026-11-22). On a Xeon, 16 echoes of 16 KiB took 1.07 of the CPU with 128 KiB on tokio, and 0.83 on monoio (2026-11-29). A sink
/// of 1 MB on io_uring took up to three times as long with 16 KiB, and an echo over TCP of 16 times 16 KiB in flight takes 0.55
/// to 0.61 of the CPU on each runtime: one read of 16 KiB in a turn keeps the receive window shut.
const BUF_BYTES_MAX: usize = 64 * 1024;

/// The least length of receive buffers, in bytes, with the [`PoolConfig::SHORT_OF_PAGE_BYTES`] by which each is shorter. The head
/// of a request with cookies fits.
const BUF_BYTES_MIN: usize = 4 * 1024;

/// How many free buffers are kept, and how many may be held by reads that wait: 16 MiB of the longest.
const IDLE_MAX: usize = 256;

impl Memory {
    /// Divides `bytes_max` for at most `connections_max` connections. None if that is less than
    /// [`least`](Self::least).
    pub fn divide(bytes_max: usize, connections_max: usize) -> Option<Self> {
        // A quarter is for buffers.
        let buf_bytes = bytes_max / 4 / connections_max.saturating_add(IDLE_MAX);
        let buf_bytes = buf_bytes.min(BUF_BYTES_MAX);
        let buf_bytes = (buf_bytes + 1).next_power_of_two() / 2;
        (buf_bytes >= BUF_BYTES_MIN).then(|| {
            let buf_bytes = buf_bytes - PoolConfig::SHORT_OF_PAGE_BYTES;
            Self { bytes_max, connections_max, buf_bytes }
        })
    }

    /// The fewest bytes that can be divided among `connections_max` connections.
    pub const fn least(connections_max: usize) -> usize {
        (4 * BUF_BYTES_MIN).saturating_mul(connections_max.saturating_add(IDLE_MAX))
    }

    /// The most connections among which `bytes_max` can be divided.
    pub const fn connections_that_fit(bytes_max: usize) -> usize {
        (bytes_max / (4 * BUF_BYTES_MIN)).saturating_sub(IDLE_MAX)
    }

    /// The budget for what connections hold beyond the buffers. Each connection has one account in it.
    pub fn budget(self) -> MemoryBudget {
        let rest = self.bytes_max - self.buf_bytes * (self.connections_max + IDLE_MAX);
        MemoryBudget::new(rest).with_shares(self.connections_max, rest / 2)
    }

    /// The pool of receive buffers.
    pub fn receive_pool(self) -> Pool {
        let mut config = PoolConfig::default();
        config.buf_bytes = self.buf_bytes;
        // Any worker may get all connections. Over TLS a connection has a second buffer while it decrypts, and
        // reads that wait hold some.
        config.leased_max = self.connections_max + IDLE_MAX;
        config.idle_max = IDLE_MAX;
        Pool::new(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_together_do_not_exceed_the_whole() {
        assert_eq!(Memory::divide(1, 1), None);
        for connections_max in [1, 100, 16_000, 32_000, 1 << 20] {
            let least = Memory::least(connections_max);
            assert_eq!(Memory::divide(least - 1, connections_max), None);
            assert_eq!(Memory::connections_that_fit(least), connections_max);
            for bytes_max in [least, 2 * least, 7 * least, 6 << 30] {
                let Some(memory) = Memory::divide(bytes_max, connections_max) else { continue };
                let budget = memory.budget();
                let buffers = memory.buf_bytes * (connections_max + IDLE_MAX);
                assert!(budget.bytes_max() + buffers <= bytes_max, "{memory:?}");
                assert!(buffers <= bytes_max / 4, "{memory:?}");
                // The connection's share always has room for what one read brings.
                assert!(budget.share_bytes() >= memory.buf_bytes, "{memory:?}");
                let whole = memory.buf_bytes + PoolConfig::SHORT_OF_PAGE_BYTES;
                assert!((BUF_BYTES_MIN..=BUF_BYTES_MAX).contains(&whole));
            }
        }
        assert_eq!(Memory::divide(6 << 30, 16_000).unwrap().buf_bytes, 65_440);
    }
}

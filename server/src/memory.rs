//! How the memory that the peers of a worker can make it hold is divided.

use owned_io::{MemoryBudget, Pool, PoolConfig};

/// Memory of one worker, in bytes, for all its connections.
///
/// | part | size | for |
/// |---|---|---|
/// | buffers | as many as there may be connections, and 256 more | what one read brings, and what is left of it while an answer is written |
/// | shares | half of the rest, the same for each connection | frames that came in part, small queues |
/// | common | the other half, first come, first served | long messages, long queues |
///
/// So each connection can always receive. What the worker itself needs comes on top, and does not depend on
/// what peers do: some 5 KB for each connection, and up to 64 MiB of buffers that are kept to be used again,
/// patterns that [`source`](crate::service::source) sends, and compressors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub bytes_max: usize,
    /// How many connections there may be.
    pub connections_max: usize,
    /// How long each buffer is that is read into.
    pub buf_bytes: usize,
}

/// The longest buffers that are read into, in bytes: many frames that a peer sends at once come in one read,
/// and those of up to this length are handed out where they are. 16 echoes of 1 KiB took 0.6 of the time that
/// they took with buffers of 16 KiB, 16 of 16 KiB a third; with 128 KiB they took as long. A sink of 1 MB on
/// io_uring took up to three times as long with 16 KiB as with these.
const BUF_BYTES_MAX: usize = 64 * 1024;

/// The shortest: a head of a request, with cookies, fits.
const BUF_BYTES_MIN: usize = 4 * 1024;

/// How many are kept, and held by reads that wait: with the longest, 16 MiB.
const IDLE_MAX: usize = 256;

/// The longest for echo over TCP, which has one for each connection that is being answered.
const ECHO_BUF_BYTES_MAX: usize = 16 * 1024;

impl Memory {
    /// The division of `bytes_max` for at most so many connections; none if that is too little: less than
    /// [`least`](Self::least).
    pub fn divide(bytes_max: usize, connections_max: usize) -> Option<Self> {
        // A quarter for buffers, if they need not be shorter than the shortest for that.
        let buf_bytes = bytes_max / 4 / connections_max.saturating_add(IDLE_MAX);
        let buf_bytes = buf_bytes.min(BUF_BYTES_MAX);
        let buf_bytes = (buf_bytes + 1).next_power_of_two() / 2;
        (buf_bytes >= BUF_BYTES_MIN).then_some(Self { bytes_max, connections_max, buf_bytes })
    }

    /// The least that can be divided among so many connections, in bytes.
    pub const fn least(connections_max: usize) -> usize {
        (4 * BUF_BYTES_MIN).saturating_mul(connections_max.saturating_add(IDLE_MAX))
    }

    /// Among how many connections so many bytes can be divided.
    pub const fn connections_that_fit(bytes_max: usize) -> usize {
        (bytes_max / (4 * BUF_BYTES_MIN)).saturating_sub(IDLE_MAX)
    }

    /// What all connections may hold beyond the buffers, each in one account.
    pub fn budget(self) -> MemoryBudget {
        let rest = self.bytes_max - self.buf_bytes * (self.connections_max + IDLE_MAX);
        MemoryBudget::new(rest).with_shares(self.connections_max, rest / 2)
    }

    /// The buffers that messages and frames are received into.
    pub fn frames(self) -> Pool {
        self.pool(self.buf_bytes)
    }

    /// The buffers of echo over TCP.
    pub fn echo(self) -> Pool {
        self.pool(self.buf_bytes.min(ECHO_BUF_BYTES_MAX))
    }

    fn pool(self, buf_bytes: usize) -> Pool {
        let mut config = PoolConfig::default();
        config.buf_bytes = buf_bytes;
        // Any worker may come to have all connections. Over TLS a connection has a second one while it
        // decrypts, and reads that wait have some.
        config.leased_max = self.connections_max + IDLE_MAX;
        config.idle_max = IDLE_MAX;
        Pool::new(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_together_are_no_more_than_there_is() {
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
                // What a read brings always has room in the connection's share.
                assert!(budget.share_bytes() >= memory.buf_bytes, "{memory:?}");
                assert!((BUF_BYTES_MIN..=BUF_BYTES_MAX).contains(&memory.buf_bytes));
            }
        }
        assert_eq!(Memory::divide(6 << 30, 16_000).unwrap().buf_bytes, BUF_BYTES_MAX);
    }
}

//! [`BufferGrowth`]: the sizes of a bridge's buffers.

/// The sizes of the buffers between tungstenite and the connection, one for each direction.
///
/// What does not fit into the write buffer stays in tungstenite's own buffer. Each time the bridge
/// takes a part of that, tungstenite moves the rest to the front. So a message many times as long as
/// the bridge's buffer is copied many times. A write buffer grows to what it has to hold. A read
/// buffer grows after a read has filled it, to at most 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferGrowth {
    /// One size, held as long as the connection, see [`FIXED`](Self::FIXED).
    Fixed {
        /// The size, in bytes.
        bytes: usize,
    },
    /// Grows in steps. Shrinks to one step when all is consumed and it is larger than four steps,
    /// see [`LINEAR`](Self::LINEAR).
    Linear {
        /// The size of a step, in bytes.
        step_bytes: usize,
        /// The largest size, in bytes.
        bytes_max: usize,
    },
    /// Doubles. Taken from the worker's
    /// [`Buffers`](owned_io_websocket::stream::Buffers) when needed, and returned when all is
    /// consumed, see [`EXPONENTIAL`](Self::EXPONENTIAL). After a read that filled its buffer, the
    /// next read holds a buffer while it waits.
    Exponential {
        /// The largest size, in bytes.
        bytes_max: usize,
    },
}

impl BufferGrowth {
    /// 8 KiB, as bridges usually have.
    pub const FIXED: Self = Self::Fixed { bytes: 8 * 1024 };
    /// From 128 KiB up to 64 MB.
    pub const LINEAR: Self = Self::Linear { step_bytes: 128 * 1024, bytes_max: 64_000_000 };
    /// Up to 64 MiB.
    pub const EXPONENTIAL: Self = Self::Exponential { bytes_max: 64 << 20 };

    /// The largest size of a buffer, in bytes.
    pub(crate) const fn bytes_max(self) -> usize {
        match self {
            Self::Fixed { bytes } => bytes,
            Self::Linear { bytes_max, .. } | Self::Exponential { bytes_max } => bytes_max,
        }
    }

    /// The size of a buffer that has to hold `needed` bytes, which are at most
    /// [`bytes_max`](Self::bytes_max).
    pub(crate) fn capacity_for(self, needed: usize) -> usize {
        let capacity = match self {
            Self::Fixed { bytes } => bytes,
            Self::Linear { step_bytes, .. } => needed.next_multiple_of(step_bytes),
            Self::Exponential { .. } => needed.checked_next_power_of_two().unwrap_or(usize::MAX),
        };
        capacity.min(self.bytes_max())
    }

    /// Whether a buffer of this capacity is kept when all of it is consumed.
    pub(crate) const fn keeps(self, capacity: usize) -> bool {
        match self {
            Self::Fixed { .. } => true,
            Self::Linear { step_bytes, .. } => capacity <= step_bytes.saturating_mul(4),
            Self::Exponential { .. } => false,
        }
    }

    /// # Panics
    /// If the buffers could hold no bytes.
    pub(crate) const fn assert_valid(self) {
        assert!(self.bytes_max() > 0, "a buffer of a bridge needs at least one byte");
        if let Self::Linear { step_bytes, .. } = self {
            assert!(step_bytes > 0, "the step of a linear growth needs at least one byte");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_follow_the_growth() {
        let fixed = BufferGrowth::Fixed { bytes: 10 };
        assert_eq!([1, 10].map(|needed| fixed.capacity_for(needed)), [10, 10]);
        assert!(fixed.keeps(10));
        let linear = BufferGrowth::Linear { step_bytes: 10, bytes_max: 65 };
        let sizes = [1, 10, 11, 60, 61, 65].map(|needed| linear.capacity_for(needed));
        assert_eq!(sizes, [10, 10, 20, 60, 65, 65]);
        assert_eq!([10, 40, 50].map(|capacity| linear.keeps(capacity)), [true, true, false]);
        let exponential = BufferGrowth::Exponential { bytes_max: 100 };
        assert_eq!([1, 3, 33, 65].map(|needed| exponential.capacity_for(needed)), [1, 4, 64, 100]);
        assert!(!exponential.keeps(1));
    }
}

//! [`SyncBuffers`]: the stream that tungstenite reads from and writes to.

use std::io::{self, Read, Write};

use owned_io::{Buffers, IoBufMutExt, PoolBuf, Spare};

use crate::BufferGrowth;

/// The most bytes of one read, however far a buffer may grow. Kernels hold a few MiB for a socket.
/// It also bounds how much a service can receive at once.
pub(crate) const FILL_BYTES_MAX: usize = 1024 * 1024;

/// A stream of two buffers. Reads and writes never wait: if there are no bytes or no room, they
/// return [`WouldBlock`](io::ErrorKind::WouldBlock). The bridge fills one buffer and writes the
/// other.
pub(crate) struct SyncBuffers {
    growth: BufferGrowth,
    buffers: Buffers,
    inbound: Inbound,
    /// The number of consumed bytes of `inbound`.
    consumed_bytes: usize,
    /// The size of the next read, in bytes.
    fill_bytes: usize,
    /// Whether the peer has ended the stream.
    is_ended: bool,
    /// `None` while it is being written.
    outbound: Option<Vec<u8>>,
    /// The most bytes that `outbound` takes.
    outbound_bytes_max: usize,
    copy_stats: CopyStats,
}

/// How many bytes were copied between tungstenite and the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyStats {
    /// Bytes copied between the buffers of tungstenite and those of the bridge, in both directions.
    pub copied_bytes: u64,
    /// Bytes that tungstenite moved to the front of its buffer after the bytes before them were
    /// taken. A byte counts each time that it is moved.
    pub moved_bytes: u64,
}

/// Received bytes.
enum Inbound {
    Own(Vec<u8>),
    Pooled(PoolBuf),
}

/// Where the next read puts its bytes.
pub(crate) enum ReadTarget {
    Own(Spare<Vec<u8>>),
    /// A buffer of the pool, taken when there is something to read.
    Pooled,
}

impl SyncBuffers {
    pub(crate) fn new(growth: BufferGrowth, buffers: Buffers) -> Self {
        growth.assert_valid();
        let mut new = Self {
            growth,
            buffers,
            inbound: Inbound::Own(Vec::new()),
            consumed_bytes: 0,
            fill_bytes: 0,
            is_ended: false,
            outbound: Some(Vec::new()),
            outbound_bytes_max: growth.bytes_max(),
            copy_stats: CopyStats::default(),
        };
        new.fill_bytes = new.base_bytes();
        new
    }

    /// The initial size of a buffer, in bytes.
    pub(crate) fn base_bytes(&self) -> usize {
        let base_bytes = match self.growth {
            BufferGrowth::Fixed { bytes } => bytes,
            BufferGrowth::Linear { step_bytes, bytes_max } => step_bytes.min(bytes_max),
            BufferGrowth::Exponential { .. } => self.buffers.pool().buf_bytes(),
        };
        base_bytes.min(FILL_BYTES_MAX)
    }

    pub(crate) const fn copy_stats(&self) -> CopyStats {
        self.copy_stats
    }

    /// Where the next read puts its bytes. Call it when all is consumed.
    pub(crate) fn read_target(&mut self) -> ReadTarget {
        let is_pooled = matches!(self.growth, BufferGrowth::Exponential { .. });
        if is_pooled && self.fill_bytes <= self.buffers.pool().buf_bytes() {
            return ReadTarget::Pooled;
        }
        let mut buf = match std::mem::replace(&mut self.inbound, Inbound::Own(Vec::new())) {
            Inbound::Own(buf) if !is_pooled => buf,
            _ => self.buffers.take(),
        };
        buf.clear();
        if buf.capacity() < self.fill_bytes {
            buf.reserve_exact(self.fill_bytes);
        }
        ReadTarget::Own(buf.spare().limit(self.fill_bytes))
    }

    /// Takes the bytes that were read into the [`read_target`](Self::read_target). No bytes: the
    /// stream has ended.
    pub(crate) fn fill(&mut self, buf: Vec<u8>) {
        self.handle_filled(buf.len());
        self.inbound = Inbound::Own(buf);
    }

    /// Takes the bytes of a pooled read. No bytes: the stream has ended.
    pub(crate) fn fill_pooled(&mut self, buf: PoolBuf) {
        self.handle_filled(buf.len());
        self.inbound = Inbound::Pooled(buf);
    }

    /// Takes what has to be written, if anything. Nothing more can be taken until the buffer is
    /// [given back](Self::give_back).
    pub(crate) fn take_outbound(&mut self) -> Option<Vec<u8>> {
        self.outbound.take_if(|buf| !buf.is_empty())
    }

    /// From now on, [`take_outbound`](Self::take_outbound) returns at most this many bytes, and at
    /// most what the growth allows.
    pub(crate) fn set_outbound_bytes_max(&mut self, bytes: usize) {
        self.outbound_bytes_max = bytes.min(self.growth.bytes_max());
    }

    /// Takes a buffer back after it was written.
    pub(crate) fn give_back(&mut self, buf: Vec<u8>) {
        self.outbound = Some(self.after_use(buf));
    }

    /// A read that filled its buffer probably left more to read, so the next one gets a larger
    /// buffer.
    fn handle_filled(&mut self, n: usize) {
        (self.consumed_bytes, self.is_ended) = (0, n == 0);
        let was_full = n == self.fill_bytes;
        self.fill_bytes = match self.growth {
            BufferGrowth::Linear { .. } if !self.growth.keeps(self.fill_bytes) => self.base_bytes(),
            BufferGrowth::Linear { step_bytes, .. } if was_full => self.fill_bytes + step_bytes,
            BufferGrowth::Fixed { .. } | BufferGrowth::Linear { .. } => self.fill_bytes,
            BufferGrowth::Exponential { .. } if was_full => self.fill_bytes * 2,
            BufferGrowth::Exponential { .. } => self.base_bytes(),
        };
        self.fill_bytes = self.fill_bytes.min(self.growth.bytes_max()).min(FILL_BYTES_MAX);
    }

    /// Keeps, returns or drops a buffer when all of it is consumed.
    fn after_use(&self, mut buf: Vec<u8>) -> Vec<u8> {
        buf.clear();
        match self.growth {
            _ if self.growth.keeps(buf.capacity()) => buf,
            BufferGrowth::Exponential { .. } => {
                self.buffers.give(buf);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

impl Read for SyncBuffers {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let received = match &self.inbound {
            Inbound::Own(buf) => &buf[..],
            Inbound::Pooled(buf) => buf,
        };
        let left = &received[self.consumed_bytes..];
        if left.is_empty() {
            return if self.is_ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let n = left.len().min(out.len());
        out[..n].copy_from_slice(&left[..n]);
        self.consumed_bytes += n;
        self.copy_stats.copied_bytes += n as u64;
        if self.consumed_bytes == received.len() {
            let used = std::mem::replace(&mut self.inbound, Inbound::Own(Vec::new()));
            self.consumed_bytes = 0;
            if let Inbound::Own(buf) = used {
                self.inbound = Inbound::Own(self.after_use(buf));
            }
        }
        Ok(n)
    }
}

impl Write for SyncBuffers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let growth = self.growth;
        let Some(buf) = &mut self.outbound else { return Err(io::ErrorKind::WouldBlock.into()) };
        let n = bytes.len().min(self.outbound_bytes_max.saturating_sub(buf.len()));
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if buf.capacity() == 0 && matches!(growth, BufferGrowth::Exponential { .. }) {
            *buf = self.buffers.take();
        }
        let needed = buf.len() + n;
        if buf.capacity() < needed {
            buf.reserve_exact(growth.capacity_for(needed) - buf.len());
        }
        buf.extend_from_slice(&bytes[..n]);
        self.copy_stats.copied_bytes += n as u64;
        self.copy_stats.moved_bytes += (bytes.len() - n) as u64; // tungstenite moves the rest
        Ok(n)
    }

    /// Does nothing: the bridge writes the buffer.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use owned_io::{IoBufMut, MemoryBudget, Pool, PoolConfig};

    use super::*;

    fn new_buffers(growth: BufferGrowth) -> SyncBuffers {
        let mut config = PoolConfig::default();
        config.buf_bytes = 256;
        SyncBuffers::new(growth, Buffers::new(Pool::new(config), MemoryBudget::new(0)))
    }

    /// Simulates a read of `n` bytes and consumes them. Returns how many bytes it could have read.
    fn fill(sync_buffers: &mut SyncBuffers, n: usize) -> usize {
        let room = match sync_buffers.read_target() {
            ReadTarget::Pooled => {
                let mut buf = sync_buffers.buffers.pool().take().unwrap();
                let room = buf.buf_capacity();
                assert_eq!(buf.buf_fill(&vec![1; n.min(room)]), n.min(room));
                sync_buffers.fill_pooled(buf);
                room
            }
            ReadTarget::Own(mut spare) => {
                let room = spare.buf_capacity();
                assert_eq!(spare.buf_fill(&vec![1; n.min(room)]), n.min(room));
                sync_buffers.fill(spare.into_inner());
                room
            }
        };
        let mut bytes = vec![0; n.min(room)];
        sync_buffers.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 1));
        assert_eq!(sync_buffers.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        room
    }

    #[test]
    fn reads_grow_while_they_fill_their_buffer_and_shrink() {
        let rooms = |growth, reads: [usize; 7]| {
            let mut sync_buffers = new_buffers(growth);
            reads.map(|n| fill(&mut sync_buffers, n))
        };
        let all = usize::MAX;
        let fixed = rooms(BufferGrowth::Fixed { bytes: 10 }, [all, 3, all, all, all, 1, 1]);
        assert_eq!(fixed, [10; 7]);
        let linear = BufferGrowth::Linear { step_bytes: 10, bytes_max: 65 };
        let grown = rooms(linear, [all, 3, all, all, all, 1, 1]);
        assert_eq!(grown, [10, 20, 20, 30, 40, 50, 10]);
        let exponential = BufferGrowth::Exponential { bytes_max: 1000 };
        let grown = rooms(exponential, [all, all, all, 1, all, 1, 1]);
        assert_eq!(grown, [256, 512, 1000, 1000, 256, 512, 256]);
    }

    #[test]
    fn the_end_of_the_stream_comes_after_what_was_received() {
        let mut sync_buffers = new_buffers(BufferGrowth::FIXED);
        assert_eq!(sync_buffers.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        fill(&mut sync_buffers, 3);
        sync_buffers.fill(Vec::new());
        assert_eq!(sync_buffers.read(&mut [0; 5]).unwrap(), 0);
    }

    #[test]
    fn writes_are_taken_up_to_the_limit_and_not_while_they_are_written() {
        let linear = BufferGrowth::Linear { step_bytes: 10, bytes_max: 65 };
        for growth in
            [BufferGrowth::Fixed { bytes: 65 }, linear, BufferGrowth::Exponential { bytes_max: 65 }]
        {
            let mut sync_buffers = new_buffers(growth);
            assert!(sync_buffers.take_outbound().is_none(), "nothing is written");
            assert_eq!(sync_buffers.write(&[1; 15]).unwrap(), 15);
            assert_eq!(sync_buffers.write(&[2; 60]).unwrap(), 50);
            assert_eq!(sync_buffers.write(&[3]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let written = sync_buffers.take_outbound().unwrap();
            assert_eq!(written, [&[1; 15][..], &[2; 50]].concat());
            assert_eq!(sync_buffers.write(&[3]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            sync_buffers.give_back(written);
            let kept = sync_buffers.outbound.as_ref().unwrap().capacity();
            assert_eq!(kept > 0, growth == BufferGrowth::Fixed { bytes: 65 });
            assert_eq!(sync_buffers.write(&[4; 10]).unwrap(), 10);
            let small = sync_buffers.take_outbound().unwrap();
            sync_buffers.give_back(small);
            let kept = sync_buffers.outbound.as_ref().unwrap().capacity();
            assert_eq!(kept > 0, !matches!(growth, BufferGrowth::Exponential { .. }));
        }
    }
}

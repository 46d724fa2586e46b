//! The input, the checks and the clock of the codec benchmarks. The input is masked frames in chunks of 64 KiB.

mod cpu_time;
mod ratios;

use std::io::{self, Read, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

pub use cpu_time::{CpuTime, cpu_time};
use owned_io_websocket::frame::{Header, Opcode, mask};
use peers_common::AlignedBytes;
pub use ratios::{is_bench, ratio};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes that one read returns.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// About how many bytes of frames there are before they repeat: several chunks, few enough for the caches.
const WIRE_BYTES: usize = 1024 * 1024;

/// Frames from a client, all of one size, and the messages in them.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Whole frames.
    pub bytes: Vec<u8>,
    /// The messages that a codec has to decode from them.
    pub tally: Tally,
}

/// The messages that a codec has decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of messages.
    pub messages: usize,
    /// The bytes of payload in all messages.
    pub bytes: usize,
    /// A checksum of the first and the last byte of each message, in order.
    pub checksum: u32,
}

impl Tally {
    /// Adds a message.
    #[inline]
    pub fn add(&mut self, payload: &[u8]) {
        self.messages += 1;
        self.add_part(payload);
    }

    /// Adds the bytes of a part of a message, without counting a message.
    #[inline]
    pub fn add_part(&mut self, payload: &[u8]) {
        self.bytes += payload.len();
        if let (Some(first), Some(last)) = (payload.first(), payload.last()) {
            self.checksum =
                self.checksum.rotate_left(5) ^ u32::from(*first) ^ (u32::from(*last) << 8);
        }
    }
}

impl Wire {
    /// Messages of `len` bytes. Text is ASCII.
    pub fn new(opcode: Opcode, len: usize) -> Self {
        let (mut bytes, mut tally) = (Vec::new(), Tally::default());
        while bytes.len() + len + Header::BYTES_MAX <= WIRE_BYTES {
            let number = tally.messages as u8;
            let key = [number, 0x5A, 0xC3, 0x99];
            let header = Header {
                fin: true,
                compressed: false,
                opcode,
                key: Some(key),
                payload_bytes: len as u64,
            };
            bytes.extend_from_slice(&header.encode());
            let start = bytes.len();
            bytes.extend((0..len).map(|at| b'a' + (at as u8 ^ number) % 26));
            tally.add(&bytes[start..]);
            mask(&mut bytes[start..], key);
        }
        Self { bytes, tally }
    }
}

/// A connection on which the frames of a [`Wire`] arrive repeatedly. It counts and discards what is written.
#[derive(Debug)]
pub struct Connection {
    /// Aligned like the buffers it is copied to. In the kernel the source most often begins at a page; here it does not.
    wire: AlignedBytes,
    at: usize,
    /// How many bytes were written.
    pub written: usize,
}

impl Connection {
    /// A connection on which `wire` arrives.
    pub fn new(wire: &Wire) -> Self {
        Self { wire: AlignedBytes::from(&*wire.bytes), at: 0, written: 0 }
    }

    /// The rest of the present chunk, `max` bytes at most.
    #[inline]
    pub fn next(&mut self, max: usize) -> &[u8] {
        if self.at == self.wire.len() {
            self.at = 0;
        }
        let start = self.at;
        let chunk_end = (start / CHUNK_BYTES + 1) * CHUNK_BYTES;
        self.at = self.wire.len().min(chunk_end).min(start + max);
        &self.wire[start..self.at]
    }
}

impl Read for Connection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.next(buf.len());
        buf[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = self.next(buf.remaining());
        buf.put_slice(bytes);
        Poll::Ready(Ok(()))
    }
}

impl Write for Connection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.written += buf.len();
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().written += buf.len();
        Poll::Ready(Ok(buf.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The output of a future that never waits.
///
/// # Panics
/// If the future waits.
pub fn expect_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the connection is always ready"),
    }
}

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use owned_io::{Buffers, ByteStream, Clock};

use crate::polled::Polled;

/// A connection as hyper's [`Read`] and [`Write`].
///
/// The [documentation of the crate](crate#what-an-operation-promises) says what each operation promises. A write goes on
/// while writes and flushes are polled. hyper does that, and a user of an upgraded connection flushes what is written.
pub struct HyperIo {
    polled: Polled,
}

impl HyperIo {
    /// Adapts `stream`. It reads into the pool of `buffers`, and reserves what it writes in their account. `C` is the
    /// clock of its runtime, which limits how long a write waits for memory.
    pub fn new<C: Clock>(stream: impl ByteStream, buffers: &Buffers) -> Self {
        Self { polled: Polled::new::<C>(stream, buffers) }
    }
}

impl Read for HyperIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // It drives no write: hyper polls the flush of what it wrote. A read that finds the write done would wake the task
        // of the flush, which is this one, for one more poll.
        let len_max = buf.remaining();
        let put = |bytes: &[u8]| buf.put_slice(bytes);
        self.polled.poll_read(len_max, cx, put).map_ok(|_| ())
    }
}

impl Write for HyperIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.polled.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.polled.poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.polled.poll_write(bufs, cx)
    }
}

impl fmt::Debug for HyperIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperIo").finish_non_exhaustive()
    }
}

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};
use owned_io::{Buffers, ByteStream, Clock};

use crate::polled::Polled;

/// A connection as the [`AsyncRead`] and [`AsyncWrite`] of futures.
///
/// The [documentation of the crate](crate#what-an-operation-promises) says what each operation promises.
pub struct FuturesIo {
    polled: Polled,
}

impl FuturesIo {
    /// Adapts `stream`. It reads into the pool of `buffers`, and reserves what it writes in their account. `C` is the
    /// clock of its runtime, which limits how long a write waits for memory.
    pub fn new<C: Clock>(stream: impl ByteStream, buffers: &Buffers) -> Self {
        Self { polled: Polled::new::<C>(stream, buffers) }
    }
}

impl AsyncRead for FuturesIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let len_max = buf.len();
        let put = |bytes: &[u8]| buf[..bytes.len()].copy_from_slice(bytes);
        self.polled.poll_read_and_drive_write(len_max, cx, put)
    }
}

impl AsyncWrite for FuturesIo {
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

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.polled.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.polled.poll_write(bufs, cx)
    }
}

impl fmt::Debug for FuturesIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuturesIo").finish_non_exhaustive()
    }
}

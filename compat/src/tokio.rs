use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use owned_io::{Buffers, ByteStream, Clock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::polled::Polled;

/// A connection as tokio's [`AsyncRead`] and [`AsyncWrite`].
///
/// The [documentation of the crate](crate#what-an-operation-promises) says what each operation promises.
pub struct TokioIo {
    polled: Polled,
}

impl TokioIo {
    /// Adapts `stream`. It reads into the pool of `buffers`, and reserves what it writes in their account. `C` is the
    /// clock of its runtime, which limits how long a write waits for memory.
    pub fn new<C: Clock>(stream: impl ByteStream, buffers: &Buffers) -> Self {
        Self { polled: Polled::new::<C>(stream, buffers) }
    }
}

impl AsyncRead for TokioIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len_max = buf.remaining();
        let put = |bytes: &[u8]| buf.put_slice(bytes);
        self.polled.poll_read_and_drive_write(len_max, cx, put).map_ok(|_| ())
    }
}

impl AsyncWrite for TokioIo {
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

impl fmt::Debug for TokioIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioIo").finish_non_exhaustive()
    }
}

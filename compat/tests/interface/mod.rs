//! What the adapters have in common, for tests that each of them must pass.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use owned_io::{Buffers, ByteStream, Clock, MemoryBudget, Pool, PoolConfig, select};
use owned_io_compat::{FuturesIo, HyperIo, TokioIo};
use owned_io_sim::Sim;

/// The most that is accepted before the stream has taken it.
pub(crate) const ACCEPTED_BYTES_MAX: usize = 64 * 1024;

/// The most that is on its way between the ends of a pipe of the simulator.
pub(crate) const PIPE_BYTES_MAX: usize = 64 * 1024;

pub(crate) fn buffers() -> Buffers {
    buffers_of(MemoryBudget::new(1 << 20))
}

pub(crate) fn buffers_of(budget: MemoryBudget) -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), budget)
}

/// Whether `operation` waits for longer than a tenth of a second. Drops it.
pub(crate) async fn is_waiting(operation: impl Future) -> bool {
    select(pin!(operation), Sim::sleep(Duration::from_millis(100))).await.first.is_none()
}

pub(crate) trait Adapter: 'static {
    fn adapt(stream: impl ByteStream, buffers: &Buffers) -> Self;
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    async fn read_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while at < buf.len() {
            match self.read(&mut buf[at..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_parts(&[IoSlice::new(bytes)]).await
    }

    async fn write_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, parts)).await
    }

    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = self.write(bytes).await?;
            assert_ne!(n, 0, "a write of bytes returns zero");
            bytes = &bytes[n..];
        }
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_shutdown(cx)).await
    }
}

impl Adapter for FuturesIo {
    fn adapt(stream: impl ByteStream, buffers: &Buffers) -> Self {
        Self::new::<Sim>(stream, buffers)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        futures_lite::AsyncRead::poll_read(Pin::new(self), cx, buf)
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match parts {
            [only] => futures_lite::AsyncWrite::poll_write(Pin::new(self), cx, only),
            _ => futures_lite::AsyncWrite::poll_write_vectored(Pin::new(self), cx, parts),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures_lite::AsyncWrite::poll_flush(Pin::new(self), cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures_lite::AsyncWrite::poll_close(Pin::new(self), cx)
    }
}

impl Adapter for HyperIo {
    fn adapt(stream: impl ByteStream, buffers: &Buffers) -> Self {
        Self::new::<Sim>(stream, buffers)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = hyper::rt::ReadBuf::new(buf);
        ready!(hyper::rt::Read::poll_read(Pin::new(self), cx, buf.unfilled()))?;
        Poll::Ready(Ok(buf.filled().len()))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        assert!(hyper::rt::Write::is_write_vectored(self));
        match parts {
            [only] => hyper::rt::Write::poll_write(Pin::new(self), cx, only),
            _ => hyper::rt::Write::poll_write_vectored(Pin::new(self), cx, parts),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        hyper::rt::Write::poll_flush(Pin::new(self), cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        hyper::rt::Write::poll_shutdown(Pin::new(self), cx)
    }
}

impl Adapter for TokioIo {
    fn adapt(stream: impl ByteStream, buffers: &Buffers) -> Self {
        Self::new::<Sim>(stream, buffers)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = tokio::io::ReadBuf::new(buf);
        ready!(tokio::io::AsyncRead::poll_read(Pin::new(self), cx, &mut buf))?;
        Poll::Ready(Ok(buf.filled().len()))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        assert!(tokio::io::AsyncWrite::is_write_vectored(self));
        match parts {
            [only] => tokio::io::AsyncWrite::poll_write(Pin::new(self), cx, only),
            _ => tokio::io::AsyncWrite::poll_write_vectored(Pin::new(self), cx, parts),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_flush(Pin::new(self), cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_shutdown(Pin::new(self), cx)
    }
}

/// Makes a test of each generic function for each adapter.
macro_rules! for_each_adapter {
    ($($test:ident)*) => {
        mod futures {
            $(#[test] fn $test() { super::$test::<owned_io_compat::FuturesIo>(); })*
        }
        mod hyper {
            $(#[test] fn $test() { super::$test::<owned_io_compat::HyperIo>(); })*
        }
        mod tokio {
            $(#[test] fn $test() { super::$test::<owned_io_compat::TokioIo>(); })*
        }
    };
}
pub(crate) use for_each_adapter;

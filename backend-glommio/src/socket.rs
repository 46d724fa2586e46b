//! [`GlommioSocket`]: a descriptor that is registered with glommio's reactor.
//!
//! It implements [`os::Socket`] itself. glommio waits only within the reads and writes of its own streams, so
//! the readiness family of [`owned_io_os`] would take two system calls more for each wait.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use owned_io::{BufResult, IoBuf, IoBufExt, IoBufMut, IoVec, Pool, PoolBuf, coop};
use owned_io_os as os;

use crate::op::Tcp;
use crate::runtime::{Glommio, yield_to_ring};

/// A TCP connection on glommio.
pub type GlommioStream = os::Stream<GlommioSocket>;

/// The half of a [`GlommioStream`] that reads.
pub type GlommioReadHalf = os::ReadHalf<GlommioSocket>;

/// The half of a [`GlommioStream`] that writes.
pub type GlommioWriteHalf = os::WriteHalf<GlommioSocket>;

/// The socket of a [`GlommioStream`].
#[derive(Debug)]
pub struct GlommioSocket {
    tcp: Tcp,
}

impl AsFd for GlommioSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl os::Socket for GlommioSocket {
    type Clock = Glommio;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { tcp: Tcp::new(fd) })
    }

    async fn connected(&self) -> io::Result<()> {
        poll_fn(|cx| self.tcp.poll_connected(cx)).await
    }

    async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        // A receive of nothing would wait for data.
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        let result = within_budget(|cx| self.tcp.poll_read(cx, &mut buf)).await;
        BufResult(result, buf)
    }

    fn read_pooled(&self, pool: &Pool) -> impl Future<Output = io::Result<PoolBuf>> {
        let tcp = &self.tcp;
        // Each attempt takes a buffer. The buffer goes back when the attempt has to wait.
        within_budget(move |cx| match pool.take() {
            Ok(mut buf) => tcp.poll_read_pooled(cx, &mut buf).map_ok(|_| buf),
            // Only a reader that has something to read gets this error.
            Err(exhausted) => tcp.poll_readable(cx).map(|ready| ready.and(Err(exhausted.into()))),
        })
    }

    async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        let write = |cx: &mut Context<'_>| match os::try_write(self.as_fd(), buf.buf_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.tcp.poll_write(cx, buf.buf_bytes())
            }
            result => Poll::Ready(result),
        };
        let result = within_budget(write).await;
        BufResult(result.and_then(os::check_written), buf)
    }

    async fn write_vectored<B: IoBuf>(&self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        let write = |cx: &mut Context<'_>| match os::try_write_vectored(self.as_fd(), &mut bufs) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // glommio waits only by writing.
                let pieces = bufs.as_io_slices_within(coop::write_bytes_max());
                let written = self.tcp.poll_write(cx, &pieces[0]);
                written.map_ok(|n| {
                    bufs.advance(n);
                    n
                })
            }
            result => Poll::Ready(result),
        };
        let result = within_budget(write).await;
        BufResult(result.and_then(os::check_written), bufs)
    }
}

impl Drop for GlommioSocket {
    fn drop(&mut self) {
        // A poll in the ring keeps the descriptor open until the reactor runs next.
        os::end(self.as_fd());
    }
}

/// Polls an operation to its end. If the task has used up its [budget](coop), other tasks and I/O run first:
/// glommio itself counts no work, and would serve only a connection that always has bytes to read.
fn within_budget<T>(
    mut operation: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> impl Future<Output = T> {
    let mut yielding = None;
    poll_fn(move |cx| {
        if yielding.is_some() || !coop::has_budget() {
            ready!(poll_yield(&mut yielding, cx));
        }
        operation(cx)
    })
}

/// A yield in progress. It is boxed because it is rare: inline, it would make every operation larger.
type Yielding = Option<Pin<Box<dyn Future<Output = ()>>>>;

#[cold]
#[inline(never)]
fn poll_yield(yielding: &mut Yielding, cx: &mut Context<'_>) -> Poll<()> {
    let begin = || -> Pin<Box<dyn Future<Output = ()>>> {
        coop::handle_yield(); // before the poll that continues, which knows whether another task ran in between
        Box::pin(yield_to_ring())
    };
    ready!(yielding.get_or_insert_with(begin).as_mut().poll(cx));
    *yielding = None;
    Poll::Ready(())
}

//! [`TokioStream`]: a socket registered with tokio's reactor.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use owned_io::{
    BufResult, ByteStream, ConnectOptions, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool,
    PoolBuf, ShutdownHandle, ShutdownTarget, TcpStream,
};
use owned_io_os as os;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// A TCP connection on tokio.
#[derive(Debug)]
pub struct TokioStream {
    socket: Rc<Socket>,
}

/// The half of a [`TokioStream`] that reads.
#[derive(Debug)]
pub struct TokioReadHalf {
    socket: Rc<Socket>,
}

/// The half of a [`TokioStream`] that writes.
#[derive(Debug)]
pub struct TokioWriteHalf {
    socket: Rc<Socket>,
}

impl TokioStream {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Rc::new(Socket { fd: AsyncFd::new(fd)? }) })
    }

    pub(crate) async fn connect(options: ConnectOptions) -> io::Result<Self> {
        let stream = Self::new(os::connect::begin(&options)?)?;
        match tokio::time::timeout(options.timeout, stream.socket.fd.writable()).await {
            Ok(ready) => drop(ready?),
            Err(_elapsed) => return Err(os::connect::timed_out(&options)),
        }
        os::connect::finish(stream.socket.fd.as_fd(), &options)?;
        Ok(stream)
    }
}

impl OwnedRead for TokioStream {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.socket.read(buf).await
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.socket.read_pooled(pool).await
    }
}

impl OwnedWrite for TokioStream {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.socket.write(buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        self.socket.write_vectored(bufs).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        os::shutdown(self.socket.fd.as_fd(), Shutdown::Write)
    }
}

impl ByteStream for TokioStream {
    type ReadHalf = TokioReadHalf;
    type WriteHalf = TokioWriteHalf;

    fn into_split(self) -> (TokioReadHalf, TokioWriteHalf) {
        let read = TokioReadHalf { socket: Rc::clone(&self.socket) };
        (read, TokioWriteHalf { socket: self.socket })
    }

    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Socket> = Rc::downgrade(&self.socket);
        ShutdownHandle::new(target)
    }
}

impl TcpStream for TokioStream {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        os::connect::local_addr(self.socket.fd.as_fd())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        os::connect::peer_addr(self.socket.fd.as_fd())
    }
}

impl OwnedRead for TokioReadHalf {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.socket.read(buf).await
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.socket.read_pooled(pool).await
    }
}

impl OwnedWrite for TokioWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.socket.write(buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        self.socket.write_vectored(bufs).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        os::shutdown(self.socket.fd.as_fd(), Shutdown::Write)
    }
}

/// What a stream, its halves and its shutdown handles share. Closed when the halves are dropped.
#[derive(Debug)]
struct Socket {
    fd: AsyncFd<OwnedFd>,
}

impl Socket {
    async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        let result = poll_fn(|cx| {
            let capacity = buf.buf_capacity();
            poll_ready(cx, &self.fd, AsyncFd::poll_read_ready, capacity, || {
                os::try_read(self.fd.as_fd(), &mut buf)
            })
        })
        .await;
        BufResult(result, buf)
    }

    async fn read_pooled(&self, pool: &Pool) -> io::Result<PoolBuf> {
        // A buffer is taken for each attempt, and an attempt made only when epoll says so.
        poll_fn(|cx| {
            let mut buf = None;
            let result = poll_ready(cx, &self.fd, AsyncFd::poll_read_ready, pool.buf_bytes(), || {
                let buf = buf.insert(pool.take()?);
                os::try_read(self.fd.as_fd(), buf)
            });
            result.map_ok(|_| buf.expect("what was read is in a buffer"))
        })
        .await
    }

    async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let len = buf.buf_len();
        if len == 0 {
            return BufResult(Ok(0), buf);
        }
        let result = poll_fn(|cx| {
            poll_ready(cx, &self.fd, AsyncFd::poll_write_ready, len, || {
                os::try_write(self.fd.as_fd(), &buf)
            })
        })
        .await;
        BufResult(result, buf)
    }

    async fn write_vectored<B: IoBuf>(&self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        let len = bufs.bytes_left();
        if len == 0 {
            return BufResult(Ok(0), bufs);
        }
        let result = poll_fn(|cx| {
            poll_ready(cx, &self.fd, AsyncFd::poll_write_ready, len, || {
                os::try_write_vectored(self.fd.as_fd(), &mut bufs)
            })
        })
        .await;
        BufResult(result, bufs)
    }
}

impl ShutdownTarget for Socket {
    fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection is gone, and then there is nothing to shut down.
        let _ = os::shutdown(self.fd.as_fd(), how);
    }
}

/// Tries `transfer`, which asks for `asked` bytes, whenever `poll` says that `fd` is ready, until it
/// does not have to wait.
///
/// A transfer that was short has emptied, or filled, the kernel's buffer: readiness is cleared at
/// once, which saves the attempt that would only be told to wait. New bytes make epoll, which is
/// edge-triggered here, report anew (epoll(7), question 9).
fn poll_ready<'a>(
    cx: &mut Context<'_>,
    fd: &'a AsyncFd<OwnedFd>,
    poll: PollReady<'a>,
    asked: usize,
    mut transfer: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        let mut ready = ready!(poll(fd, cx))?;
        match transfer() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            result => {
                if result.as_ref().is_ok_and(|n| 0 < *n && *n < asked) {
                    ready.clear_ready();
                }
                return Poll::Ready(result);
            }
        }
    }
}

/// [`AsyncFd::poll_read_ready`] or [`AsyncFd::poll_write_ready`].
type PollReady<'a> = fn(
    &'a AsyncFd<OwnedFd>,
    &mut Context<'_>,
) -> Poll<io::Result<AsyncFdReadyGuard<'a, OwnedFd>>>;

//! [`TokioStream`]: a socket registered with tokio's reactor.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, ConnectOptions, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf,
    ShutdownHandle, TRANSFER_BYTES_MAX, coop,
};
use owned_io_os as os;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A TCP connection on tokio.
pub type TokioStream = Duplex<TokioReadHalf, TokioWriteHalf>;

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

/// What the halves and their shutdown handles share. Closed when the halves are dropped.
#[derive(Debug)]
struct Socket {
    tcp: TcpStream,
}

pub(crate) fn stream(tcp: TcpStream) -> TokioStream {
    let socket = Rc::new(Socket { tcp });
    Duplex::new(TokioReadHalf { socket: Rc::clone(&socket) }, TokioWriteHalf { socket })
}

pub(crate) async fn connect(options: ConnectOptions) -> io::Result<TokioStream> {
    let fd: OwnedFd = os::connect::begin(&options)?;
    let tcp = TcpStream::from_std(fd.into())?;
    match tokio::time::timeout(options.timeout, tcp.writable()).await {
        Ok(writable) => writable?,
        Err(_elapsed) => return Err(os::connect::timed_out(&options)),
    }
    os::connect::finish(tcp.as_fd(), &options)?;
    Ok(stream(tcp))
}

impl OwnedRead for TokioReadHalf {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        let capacity = buf.buf_capacity();
        if capacity == 0 {
            return BufResult(Ok(0), buf);
        }
        let tcp = &self.socket.tcp;
        let result = poll_fn(|cx| {
            poll_io(cx, tcp, Interest::READABLE, capacity, || os::try_read(tcp.as_fd(), &mut buf))
        })
        .await;
        BufResult(result, buf)
    }

    fn read_pooled(&mut self, pool: &Pool) -> impl Future<Output = io::Result<PoolBuf>> {
        let tcp = &self.socket.tcp;
        // A buffer is taken for each attempt, and an attempt made only when epoll says so.
        poll_fn(move |cx| {
            let mut buf = None;
            let result = poll_io(cx, tcp, Interest::READABLE, pool.buf_bytes(), || {
                os::try_read_pooled(tcp.as_fd(), pool).map(|read| buf.insert(read).len())
            });
            result.map_ok(|_| buf.expect("what was read is in a buffer"))
        })
    }
}

impl OwnedWrite for TokioWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        let len = buf.buf_len();
        if len == 0 {
            return BufResult(Ok(0), buf);
        }
        let tcp = &self.socket.tcp;
        let result = poll_fn(|cx| {
            poll_io(cx, tcp, Interest::WRITABLE, len, || os::try_write(tcp.as_fd(), &buf))
        })
        .await;
        BufResult(result, buf)
    }

    async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        let len = bufs.bytes_next();
        let tcp = &self.socket.tcp;
        let result = poll_fn(|cx| {
            poll_io(cx, tcp, Interest::WRITABLE, len, || {
                os::try_write_vectored(tcp.as_fd(), &mut bufs)
            })
        })
        .await;
        BufResult(result, bufs)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        os::shutdown(self.socket.tcp.as_fd(), Shutdown::Write)
    }
}

impl Endpoint for TokioWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Socket> = Rc::downgrade(&self.socket);
        ShutdownHandle::new(target)
    }
}

impl TcpEndpoint for TokioWriteHalf {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.tcp.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.tcp.peer_addr()
    }
}

impl ShutdownTarget for Socket {
    fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection is gone, and then there is nothing to shut down.
        let _ = os::shutdown(self.tcp.as_fd(), how);
    }

    fn abort(&self) {
        let _ = os::abort(self.tcp.as_fd());
    }
}

/// Tries `transfer`, which asks for `asked` bytes, whenever epoll says that it can be done, until it
/// does not have to wait.
///
/// A short transfer has emptied, or filled, the kernel's buffer. Readiness is cleared then, which
/// saves the attempt that would only find that out. New bytes make epoll, which is edge-triggered
/// here, report anew (epoll(7), question 9).
fn poll_io(
    cx: &mut Context<'_>,
    tcp: &TcpStream,
    interest: Interest,
    asked: usize,
    mut transfer: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    // Each round but the last ends with readiness cleared; bounded by tokio's budget for a task.
    loop {
        ready!(if interest.is_readable() {
            tcp.poll_read_ready(cx)
        } else {
            tcp.poll_write_ready(cx)
        })?;
        // Not before: what has to wait yields anyway.
        if !coop::has_budget() {
            return poll_yield(cx);
        }
        match transfer() {
            Ok(n) => {
                if 0 < n && n < asked.min(TRANSFER_BYTES_MAX) {
                    clear_readiness(tcp, interest);
                }
                return Poll::Ready(Ok(n));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                clear_readiness(tcp, interest);
            }
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// Ends the task's turn: it is polled again once tokio has asked for I/O and has run the other tasks.
#[cold]
#[inline(never)]
fn poll_yield<T>(cx: &mut Context<'_>) -> Poll<T> {
    // Its first poll is all there is to it: it puts the waker behind those of the driver.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
    coop::handle_yield();
    Poll::Pending
}

/// Nothing new is lost by it: epoll is asked by this thread only, and not while a task is polled.
fn clear_readiness(tcp: &TcpStream, interest: Interest) {
    let would_block = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
    let _ = tcp.try_io(interest, would_block);
}

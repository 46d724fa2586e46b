//! [`GlommioStream`]: a socket registered with glommio's reactor.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, Clock, ConnectOptions, IoBuf, IoBufExt, IoBufMut, IoVec, OwnedRead, OwnedWrite,
    Pool, PoolBuf, ShutdownHandle, beside, coop,
};
use owned_io_os as os;

use crate::op::Tcp;
use crate::runtime::{Glommio, turn};

/// A TCP connection on glommio.
pub type GlommioStream = Duplex<GlommioReadHalf, GlommioWriteHalf>;

/// The half of a [`GlommioStream`] that reads.
#[derive(Debug)]
pub struct GlommioReadHalf {
    socket: Rc<Socket>,
}

/// The half of a [`GlommioStream`] that writes.
#[derive(Debug)]
pub struct GlommioWriteHalf {
    socket: Rc<Socket>,
}

/// What the halves and their shutdown handles share. Closed when the halves are dropped.
#[derive(Debug)]
struct Socket {
    tcp: Tcp,
}

pub(crate) fn stream(fd: OwnedFd) -> GlommioStream {
    of_socket(Rc::new(Socket::new(fd)))
}

fn of_socket(socket: Rc<Socket>) -> GlommioStream {
    Duplex::new(GlommioReadHalf { socket: Rc::clone(&socket) }, GlommioWriteHalf { socket })
}

impl Socket {
    fn new(fd: OwnedFd) -> Self {
        Self { tcp: Tcp::new(fd) }
    }
}

pub(crate) async fn connect(options: ConnectOptions) -> io::Result<GlommioStream> {
    let socket = Rc::new(Socket::new(os::connect::begin(&options)?));
    let connected = pin!(poll_fn(|cx| socket.tcp.poll_connected(cx)));
    match beside(connected, Glommio::sleep(options.timeout)).await.pinned {
        None => return Err(os::connect::timed_out(&options)),
        Some(Err(error)) => return Err(os::connect::failed(&options, error)),
        Some(Ok(())) => socket.tcp.with_fd(|fd| os::connect::finish(fd, &options))?,
    }
    Ok(of_socket(socket))
}

impl OwnedRead for GlommioReadHalf {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        // A receive of nothing would wait for data.
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        let tcp = &self.socket.tcp;
        let result = spend(|cx| tcp.poll_read(cx, &mut buf)).await;
        BufResult(result, buf)
    }

    fn read_pooled(&mut self, pool: &Pool) -> impl Future<Output = io::Result<PoolBuf>> {
        let tcp = &self.socket.tcp;
        // One buffer taken, where there would be one for each attempt.
        let mut waiting = None;
        spend(move |cx| {
            if let Some(mut buf) = waiting.take().or_else(|| pool.take_to_wait()) {
                let polled = tcp.poll_read_pooled(cx, &mut buf);
                if polled.is_pending() {
                    waiting = Some(buf);
                    return Poll::Pending;
                }
                return polled.map_ok(|_| buf);
            }
            // A buffer is taken for each attempt, and goes back when that has to wait.
            match pool.take() {
                Ok(mut buf) => tcp.poll_read_pooled(cx, &mut buf).map_ok(|_| buf),
                // Said only to those for whom there is something to read.
                Err(exhausted) => {
                    tcp.poll_readable(cx).map(|ready| ready.and(Err(exhausted.into())))
                }
            }
        })
    }
}

impl OwnedWrite for GlommioWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        let tcp = &self.socket.tcp;
        let write = |cx: &mut Context<'_>| match tcp.with_fd(|fd| os::try_write(fd, &buf)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tcp.poll_write(cx, buf.buf_bytes())
            }
            result => Poll::Ready(result),
        };
        let result = spend(write).await;
        BufResult(result.and_then(os::check_written), buf)
    }

    async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        let tcp = &self.socket.tcp;
        let write = |cx: &mut Context<'_>| {
            match tcp.with_fd(|fd| os::try_write_vectored(fd, &mut bufs)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // glommio has no other way to wait than to write.
                    let written = tcp.poll_write(cx, &bufs.as_io_slices()[0]);
                    written.map_ok(|n| {
                        bufs.advance(n);
                        n
                    })
                }
                result => Poll::Ready(result),
            }
        };
        let result = spend(write).await;
        BufResult(result.and_then(os::check_written), bufs)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.socket.tcp.with_fd(|fd| os::shutdown(fd, Shutdown::Write))
    }
}

impl Endpoint for GlommioWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Socket> = Rc::downgrade(&self.socket);
        ShutdownHandle::new(target)
    }
}

impl TcpEndpoint for GlommioWriteHalf {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.tcp.with_fd(os::connect::local_addr)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.tcp.with_fd(os::connect::peer_addr)
    }
}

impl ShutdownTarget for Socket {
    fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection is gone, and then there is nothing to shut down.
        let _ = self.tcp.with_fd(|fd| os::shutdown(fd, how));
    }

    fn abort(&self) {
        let _ = self.tcp.with_fd(os::abort);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The ring has a poll of the descriptor, which keeps it open until the reactor's next turn.
        self.tcp.with_fd(os::end);
    }
}

/// Waits for an operation, after other tasks and I/O had their turn if the task has used up its
/// [budget](coop). glommio itself counts no work: a connection that always has bytes to read would be
/// the only one served.
fn spend<T>(mut operation: impl FnMut(&mut Context<'_>) -> Poll<T>) -> impl Future<Output = T> {
    let mut yielding = None;
    poll_fn(move |cx| {
        if yielding.is_some() || !coop::has_budget() {
            ready!(poll_yield(&mut yielding, cx));
        }
        operation(cx)
    })
}

/// Boxed, because it is rare: otherwise each operation would be that much larger.
type Yielding = Option<Pin<Box<dyn Future<Output = ()>>>>;

#[cold]
#[inline(never)]
fn poll_yield(yielding: &mut Yielding, cx: &mut Context<'_>) -> Poll<()> {
    ready!(yielding.get_or_insert_with(|| Box::pin(turn())).as_mut().poll(cx));
    *yielding = None;
    coop::handle_yield();
    Poll::Ready(())
}

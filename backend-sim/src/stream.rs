//! [`SimStream`]: an end of a connection, and its operations as a kernel performs them.

use std::future::poll_fn;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{
    fmt,
    io::{self, IoSlice},
};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf, ShutdownHandle, coop,
};

use crate::connection::{BUFFER_BYTES, End, Side, Socket};
use crate::core::Core;
use crate::errno::{ECONNRESET, error};
use crate::executor::{self, Shared};
use crate::pending::{PendingPooledRead, PendingRead, PendingWrite, Pieces, Single};
use crate::timer::Sleep;

/// How long a read takes on a host whose reads are slow.
const SLOW_READ_TAKES: Duration = Duration::from_millis(10);

/// Both ends of a connection within a host, without a listener.
///
/// # Panics
/// Outside a simulation.
pub fn pipe() -> (SimStream, SimStream) {
    let world = executor::current();
    let host = world.host();
    let connection = world.with(|core| {
        let ends = [1, 2].map(|port| {
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            End::new(host, addr, 2 * BUFFER_BYTES)
        });
        core.connect_ends(ends)
    });
    let end = |side| stream(&world, Socket { connection, side });
    (end(Side::Client), end(Side::Server))
}

/// The stream that [`pipe`] and [`Sim::connect`](owned_io::Tcp::connect) return.
pub type SimStream = Duplex<SimReadHalf, SimWriteHalf>;

/// The read half of a [`SimStream`].
#[derive(Debug)]
pub struct SimReadHalf {
    end: Rc<StreamEnd>,
}

/// The write half of a [`SimStream`].
#[derive(Debug)]
pub struct SimWriteHalf {
    end: Rc<StreamEnd>,
}

pub(crate) fn stream(world: &Rc<Shared>, socket: Socket) -> SimStream {
    let end = Rc::new(StreamEnd { world: Rc::downgrade(world), socket });
    Duplex::new(SimReadHalf { end: Rc::clone(&end) }, SimWriteHalf { end })
}

impl OwnedRead for SimReadHalf {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        let held = PendingRead::new(&self.end, buf);
        self.end.begin_reading().await;
        self.end.readable().await;
        let mut buf = held.give_back();
        let result = self.end.try_with(|core, socket| core.read(socket, &mut buf));
        coop::consume_transfer(buf.buf_len());
        BufResult(result, buf)
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        let pending = PendingPooledRead::new(&self.end, pool.buf_bytes());
        self.end.begin_reading().await;
        self.end.readable().await;
        pending.finish();
        let mut buf = pool.take()?;
        self.end.try_with(|core, socket| core.read(socket, &mut buf))?;
        coop::consume_transfer(buf.len());
        Ok(buf)
    }
}

impl OwnedWrite for SimWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        let BufResult(result, Single(buf)) = self.end.write(Single(buf)).await;
        BufResult(result, buf)
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        let BufResult(result, mut bufs) = self.end.write(bufs).await;
        if let Ok(n) = result {
            bufs.advance(n);
        }
        BufResult(result, bufs)
    }

    /// Finds no room with a probability of 1 in 4.
    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let write = |core: &mut Core, socket| {
            if core.rng.one_in(4) {
                return Poll::Pending;
            }
            core.write(socket, &[IoSlice::new(bytes)], Waker::noop())
        };
        match self.end.with(write) {
            Some(Poll::Ready(result)) => {
                coop::consume_transfer(*result.as_ref().unwrap_or(&0));
                result
            }
            Some(Poll::Pending) => Err(io::ErrorKind::WouldBlock.into()),
            None => Err(error(ECONNRESET)),
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.end.try_with(|core, socket| {
            core.check_connected(socket)?;
            core.shut_down(socket, Shutdown::Write);
            Ok(())
        })
    }
}

impl Endpoint for SimWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<StreamEnd> = Rc::downgrade(&self.end);
        ShutdownHandle::new(target)
    }
}

impl TcpEndpoint for SimWriteHalf {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.end.try_with(|core, socket| core.addr(socket))
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.end.try_with(|core, socket| {
            core.check_connected(socket)?;
            core.addr(Socket { side: !socket.side, ..socket })
        })
    }
}

/// What the halves share. It closes the connection when it is dropped.
pub(crate) struct StreamEnd {
    /// Weak, because a stream may be in a task, which the simulation owns.
    world: Weak<Shared>,
    socket: Socket,
}

impl StreamEnd {
    /// Calls `f`, unless the simulation is gone.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Core, Socket) -> T) -> Option<T> {
        let world = self.world.upgrade()?;
        Some(world.with(|core| f(core, self.socket)))
    }

    fn try_with<T>(&self, f: impl FnOnce(&mut Core, Socket) -> io::Result<T>) -> io::Result<T> {
        self.with(f).unwrap_or_else(|| Err(error(ECONNRESET)))
    }

    /// Yields once with a probability of 1 in 4, so that an operation that could complete at once does so later.
    /// Also yields when the task has used up its budget.
    async fn begin(&self) {
        let mut later = self.with(|core, _| core.rng.one_in(4)).unwrap_or(false);
        poll_fn(|cx| {
            if std::mem::take(&mut later) || !coop::has_budget() {
                cx.waker().wake_by_ref();
                coop::handle_yield();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    async fn begin_reading(&self) {
        if self.with(|core, socket| core.is_slow(socket)).unwrap_or(false) {
            // Rare, so it is boxed instead of part of every read's future.
            Box::pin(Sleep::new(&executor::current(), SLOW_READ_TAKES)).await;
        }
        self.begin().await;
    }

    async fn readable(&self) {
        let poll = |cx: &mut Context<'_>| {
            let polled = self.with(|core, socket| core.poll_readable(socket, cx.waker()));
            polled.unwrap_or(Poll::Ready(()))
        };
        poll_fn(poll).await;
    }

    async fn write<P: Pieces>(&self, pieces: P) -> BufResult<usize, P> {
        let held = PendingWrite::new(self, pieces);
        self.begin().await;
        let poll = |cx: &mut Context<'_>| {
            let write = |core: &mut Core, socket| {
                held.get().with(|pieces| core.write(socket, pieces, cx.waker()))
            };
            self.with(write).unwrap_or_else(|| Poll::Ready(Err(error(ECONNRESET))))
        };
        let result = poll_fn(poll).await;
        coop::consume_transfer(*result.as_ref().unwrap_or(&0));
        BufResult(result, held.give_back())
    }
}

impl ShutdownTarget for StreamEnd {
    fn shutdown(&self, how: Shutdown) {
        self.with(|core, socket| core.shut_down(socket, how));
    }

    fn drops_cleanly(&self) -> bool {
        self.with(|core, socket| core.drops_cleanly(socket)).unwrap_or(false)
    }

    fn abort(&self) {
        self.with(Core::abort);
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        self.with(|core, socket| core.close(socket));
    }
}

impl fmt::Debug for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

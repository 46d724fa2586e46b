//! [`SimStream`]: two directions of bytes in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget};
use owned_io::{
    BufResult, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf, ShutdownHandle,
};

use crate::world::{self, World};

/// Bytes under way in one direction, send and receive buffer together, when no option says
/// otherwise: about what Linux starts with.
const BUFFER_BYTES: usize = 64 * 1024;

/// Two ends of a connection that nobody had to listen for.
///
/// # Panics
/// Outside a simulation.
pub fn pipe() -> (SimStream, SimStream) {
    let addr = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    connected(&world::current(), addr(1), addr(2), BufferBytes::default())
}

/// What [`pipe`] and [`Sim::connect`](owned_io::Runtime::connect) make.
pub type SimStream = Duplex<SimReadHalf, SimWriteHalf>;

/// The half of a [`SimStream`] that reads.
#[derive(Debug)]
pub struct SimReadHalf {
    end: Rc<End>,
}

/// The half of a [`SimStream`] that writes.
#[derive(Debug)]
pub struct SimWriteHalf {
    end: Rc<End>,
}

/// Options for each direction, from the end that receives.
#[derive(Default)]
pub(crate) struct BufferBytes {
    pub(crate) to_client: Option<u32>,
    pub(crate) to_server: Option<u32>,
}

/// Client's end and server's end of a new connection.
pub(crate) fn connected(
    world: &Rc<World>,
    client: SocketAddr,
    server: SocketAddr,
    bytes: BufferBytes,
) -> (SimStream, SimStream) {
    let lane = |bytes: Option<u32>| {
        let capacity = bytes.map_or(BUFFER_BYTES, |bytes| (bytes as usize).max(1));
        Rc::new(RefCell::new(Lane { capacity, ..Lane::default() }))
    };
    let (to_client, to_server) = (lane(bytes.to_client), lane(bytes.to_server));
    let end = |incoming: &_, outgoing: &_, local, peer| {
        let end = Rc::new(End {
            world: Rc::downgrade(world),
            incoming: Rc::clone(incoming),
            outgoing: Rc::clone(outgoing),
            local,
            peer,
        });
        Duplex::new(SimReadHalf { end: Rc::clone(&end) }, SimWriteHalf { end })
    };
    (end(&to_client, &to_server, client, server), end(&to_server, &to_client, server, client))
}

impl OwnedRead for SimReadHalf {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.end.read(buf).await
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.end.read_pooled(pool).await
    }
}

impl OwnedWrite for SimWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.end.write(buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        self.end.write_vectored(bufs).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.end.check_connected()?;
        self.end.shutdown(Shutdown::Write);
        Ok(())
    }
}

impl Endpoint for SimWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<End> = Rc::downgrade(&self.end);
        ShutdownHandle::new(target)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.end.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.end.check_connected()?;
        Ok(self.end.peer)
    }
}

/// One end of a connection; closed when dropped.
#[derive(Debug)]
struct End {
    /// Not kept alive: a stream may be in a task, which is in the world.
    world: Weak<World>,
    incoming: Rc<RefCell<Lane>>,
    outgoing: Rc<RefCell<Lane>>,
    local: SocketAddr,
    peer: SocketAddr,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Lane {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// The writer has ended it: after `bytes` comes the end of the stream.
    write_ended: bool,
    /// The reader has shut it: after `bytes` comes the end of the stream, for the reader alone.
    read_ended: bool,
    /// The reader is gone: what is written goes nowhere.
    reader_gone: bool,
    /// The connection was reset.
    reset: bool,
    /// Told to the reader once, after `bytes`; then the stream has ended.
    reset_untold: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl End {
    async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        self.maybe_yield().await;
        let result = poll_fn(|cx| self.poll_read(cx, &mut buf)).await;
        BufResult(result, buf)
    }

    async fn read_pooled(&self, pool: &Pool) -> io::Result<PoolBuf> {
        self.maybe_yield().await;
        poll_fn(|cx| self.incoming.borrow_mut().poll_readable(cx)).await;
        let mut buf = pool.take()?;
        poll_fn(|cx| self.poll_read(cx, &mut buf)).await?;
        Ok(buf)
    }

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut impl IoBufMut) -> Poll<io::Result<usize>> {
        let mut lane = self.incoming.borrow_mut();
        if lane.poll_readable(cx).is_pending() {
            return Poll::Pending;
        }
        // After the bytes that came before it, as on Linux.
        if lane.bytes.is_empty() && std::mem::take(&mut lane.reset_untold) {
            return Poll::Ready(Err(io::Error::from_raw_os_error(ECONNRESET)));
        }
        let (next, _) = lane.bytes.as_slices();
        let most = next.len().min(buf.buf_capacity());
        let n = buf.buf_fill(&next[..self.part_of(most)]);
        lane.bytes.drain(..n);
        wake(&mut lane.writer);
        Poll::Ready(Ok(n))
    }

    async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        self.maybe_yield().await;
        let result = poll_fn(|cx| self.poll_write(cx, &[buf.buf_bytes()])).await;
        BufResult(result, buf)
    }

    async fn write_vectored<B: IoBuf>(&self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        self.maybe_yield().await;
        let result = poll_fn(|cx| self.poll_write(cx, bufs.as_io_slices())).await;
        if let Ok(n) = result {
            bufs.advance(n);
        }
        BufResult(result, bufs)
    }

    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        pieces: &[impl std::ops::Deref<Target = [u8]>],
    ) -> Poll<io::Result<usize>> {
        let mut lane = self.outgoing.borrow_mut();
        if lane.write_ended || lane.reader_gone {
            return Poll::Ready(Err(io::Error::from_raw_os_error(EPIPE)));
        }
        let room = lane.capacity - lane.bytes.len();
        if room == 0 {
            lane.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let all = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let n = self.part_of(all.min(room));
        let mut left = n;
        for piece in pieces {
            let taken = left.min(piece.len());
            lane.bytes.extend(&piece[..taken]);
            left -= taken;
        }
        wake(&mut lane.reader);
        Poll::Ready(Ok(n))
    }

    /// As Linux has it: there is no peer once the connection was reset, or ended from both sides.
    fn check_connected(&self) -> io::Result<()> {
        let (incoming, outgoing) = (self.incoming.borrow(), self.outgoing.borrow());
        if incoming.reset || incoming.write_ended && outgoing.write_ended {
            return Err(io::Error::from_raw_os_error(ENOTCONN));
        }
        Ok(())
    }

    /// One time in four an operation that could be done at once is done a little later.
    async fn maybe_yield(&self) {
        let mut later = self.world.upgrade().is_some_and(|world| world.dice.one_in(4));
        poll_fn(|cx| {
            if std::mem::take(&mut later) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    fn part_of(&self, most: usize) -> usize {
        self.world.upgrade().map_or(most, |world| world.dice.part_of(most))
    }
}

impl ShutdownTarget for End {
    fn shutdown(&self, how: Shutdown) {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            let mut lane = self.incoming.borrow_mut();
            lane.read_ended = true;
            wake(&mut lane.reader);
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.outgoing.borrow_mut().end_writing();
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut outgoing = self.outgoing.borrow_mut();
        let mut incoming = self.incoming.borrow_mut();
        incoming.reader_gone = true;
        wake(&mut incoming.writer);
        // Unread bytes: the peer must learn that they were not seen (RFC 2525 2.17).
        outgoing.reset = !incoming.bytes.is_empty();
        outgoing.reset_untold = outgoing.reset && !outgoing.write_ended;
        outgoing.end_writing();
    }
}

impl Lane {
    fn poll_readable(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.bytes.is_empty() && !self.write_ended && !self.read_ended {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn end_writing(&mut self) {
        self.write_ended = true;
        wake(&mut self.reader);
        wake(&mut self.writer);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

// The numbers of Linux, so that errors look alike on every backend.
const EPIPE: i32 = 32;
const ECONNRESET: i32 = 104;
const ENOTCONN: i32 = 107;

//! The readiness family: streams and listeners for runtimes that report when a descriptor is ready, and
//! leave reading and writing to the caller.
//!
//! A backend implements [`Readiness`] for its registered socket. Then it names its types:
//!
//! - `type MyStream = readiness::Stream<MySocket>`
//! - `type MyListener = readiness::Listener<MySocket>`

use std::cell::Cell;
use std::fmt::Debug;
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use owned_io::{
    BufResult, Clock, IoBuf, IoBufExt, IoBufMut, IoVec, Pool, PoolBuf, TRANSFER_BYTES_MAX, coop,
    select,
};

use crate::{ListenSocket, Socket, try_read, try_read_pooled, try_write, try_write_vectored};

/// A TCP connection.
pub type Stream<S> = crate::Stream<ReadinessSocket<S>>;

/// The half of a [`Stream`] that reads.
pub type ReadHalf<S> = crate::ReadHalf<ReadinessSocket<S>>;

/// The half of a [`Stream`] that writes.
pub type WriteHalf<S> = crate::WriteHalf<ReadinessSocket<S>>;

/// A TCP listener.
pub type Listener<S> = crate::Listener<ReadinessSocket<S>>;

/// A direction in which a socket can be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes can be read, a client can be accepted, or the read side has ended.
    Read,
    /// Bytes can be written, an attempt to connect has ended, or the write side has ended.
    Write,
}

/// A non-blocking socket that is registered with a reactor.
///
/// It remembers the reactor's report until the report is cleared. So a ready socket is read again and again
/// without asking the reactor.
///
/// One task at a time waits for each direction. The halves of a stream need no more.
///
/// Dropping it closes the socket.
pub trait Readiness: AsFd + Debug + Sized + 'static {
    /// The runtime's clock. [`sleep`](Clock::sleep) limits how long a connect takes. A listener yields by a
    /// sleep of zero.
    type Clock: Clock;

    /// Registers a socket for both directions. It connects, is connected, or listens. It is not ready until
    /// the reactor reports it.
    ///
    /// # Errors
    /// The runtime's. `fd` is closed then.
    fn register(fd: OwnedFd) -> io::Result<Self>;

    /// Ready once the reactor has reported `interest` after the last [`clear_ready`](Self::clear_ready), and
    /// from then on. Otherwise the task is woken when the reactor reports it.
    ///
    /// # Errors
    /// The runtime's, when it shuts down for example.
    fn poll_ready(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<()>>;

    /// Clears the report: the last attempt has read all there was, or has filled the kernel's buffer.
    ///
    /// The reactor must report what arrives after that attempt. Whether it does depends on its kind:
    ///
    /// - Level-triggered, and it remembers its reports: it always does.
    /// - Edge-triggered, and it remembers its reports (tokio): it does if only this thread polls it, and never
    ///   during the poll of a task.
    /// - It reports once and forgets (async-io): keep a flag for each direction, which `poll_ready` sets and this
    ///   clears. Such a reactor asks the kernel again for each report, so it counts as level-triggered.
    ///
    /// [`check`] tests it.
    fn clear_ready(&self, interest: Interest);

    /// Wakes the running task so that it is polled after the other ready tasks. The reactor is polled within a
    /// bounded number of such yields. Waking the task is enough if the executor polls the reactor after a fixed
    /// number of polls of tasks.
    fn poll_yield(cx: &mut Context<'_>);
}

/// The [`Socket`] and [`ListenSocket`] over a [`Readiness`].
#[derive(Debug)]
pub struct ReadinessSocket<S> {
    socket: S,
    /// Whether nothing was read yet. Then a read is tried without asking the reactor. A client that was accepted has
    /// often sent its request, and the reactor reports it only after it is polled again.
    is_new: Cell<bool>,
    /// Whether the last write left room in the kernel's buffer. Then the next one is tried without asking the
    /// reactor. That saves 80 of 1,180 instructions of an echo on tokio.
    has_room: Cell<bool>,
}

impl<S: AsFd> AsFd for ReadinessSocket<S> {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: Readiness> Socket for ReadinessSocket<S> {
    type Clock = S::Clock;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        S::register(fd).map(Self::new)
    }

    async fn connected(&self) -> io::Result<()> {
        poll_fn(|cx| self.socket.poll_ready(cx, Interest::Write)).await
    }

    async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        let capacity = buf.buf_capacity();
        if capacity == 0 {
            return BufResult(Ok(0), buf);
        }
        let result = poll_fn(|cx| {
            let asked = capacity.min(TRANSFER_BYTES_MAX);
            self.poll_io(cx, Interest::Read, asked, || try_read(self.as_fd(), &mut buf))
        })
        .await;
        BufResult(result, buf)
    }

    fn read_pooled(&self, pool: &Pool) -> impl Future<Output = io::Result<PoolBuf>> {
        // Each attempt takes a buffer. All but the first are made only when the reactor reports something to read.
        poll_fn(move |cx| {
            let mut buf = None;
            let asked = pool.buf_bytes().min(TRANSFER_BYTES_MAX);
            let result = self.poll_io(cx, Interest::Read, asked, || {
                try_read_pooled(self.as_fd(), pool).map(|read| buf.insert(read).len())
            });
            result.map_ok(|_| buf.expect("what was read is in a buffer"))
        })
    }

    async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let len = buf.buf_len();
        if len == 0 {
            return BufResult(Ok(0), buf);
        }
        let result = poll_fn(|cx| {
            let asked = len.min(coop::write_bytes_max());
            self.poll_io(cx, Interest::Write, asked, || try_write(self.as_fd(), buf.buf_bytes()))
        })
        .await;
        BufResult(result, buf)
    }

    async fn write_vectored<B: IoBuf>(&self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        let result = poll_fn(|cx| {
            let pieces = bufs.as_io_slices_within(coop::write_bytes_max());
            let asked: usize = pieces.iter().map(|piece| piece.len()).sum();
            self.poll_io(cx, Interest::Write, asked, || try_write_vectored(self.as_fd(), &mut bufs))
        })
        .await;
        BufResult(result, bufs)
    }
}

impl<S: Readiness> ReadinessSocket<S> {
    const fn new(socket: S) -> Self {
        Self { socket, is_new: Cell::new(true), has_room: Cell::new(true) }
    }

    /// Tries `transfer` each time the reactor reports `interest`, until the result is not `WouldBlock`. The first read,
    /// and a write that is likely to find room, are tried before any report. `transfer` asks for `asked` bytes.
    ///
    /// A short transfer has emptied or filled the kernel's buffer. So it clears the report, which saves the
    /// attempt that would only find that out. epoll reports new bytes again, also when it is edge-triggered
    /// (epoll(7), question 9).
    fn poll_io(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        asked: usize,
        mut transfer: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        // Each round but the last clears the report. What the reactor reported before this poll bounds the
        // rounds: it is not polled meanwhile.
        loop {
            let is_likely = match interest {
                Interest::Read => self.is_new.replace(false),
                Interest::Write => self.has_room.get(),
            };
            if !is_likely {
                ready!(self.socket.poll_ready(cx, interest))?;
            }
            // Checked only now, because an operation that has to wait yields anyway.
            if !coop::has_budget() {
                return Self::poll_yield(cx);
            }
            match transfer() {
                Ok(n) => {
                    let is_short = 0 < n && n < asked;
                    if is_short {
                        self.socket.clear_ready(interest);
                    }
                    if interest == Interest::Write {
                        self.has_room.set(!is_short);
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.clear_ready(interest);
                    if interest == Interest::Write {
                        self.has_room.set(false);
                    }
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Ends the running poll of a task that has used up its [budget](coop).
    #[cold]
    #[inline(never)]
    fn poll_yield<T>(cx: &mut Context<'_>) -> Poll<T> {
        S::poll_yield(cx);
        coop::handle_yield();
        Poll::Pending
    }
}

impl<S: Readiness> ListenSocket for ReadinessSocket<S> {
    type Socket = Self;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        S::register(fd).map(Self::new)
    }

    async fn readable(&mut self) -> io::Result<()> {
        self.socket.clear_ready(Interest::Read);
        poll_fn(|cx| self.socket.poll_ready(cx, Interest::Read)).await
    }
}

/// Checks that a socket remembers a report until it is cleared, and is ready again afterwards. The conformance
/// suite cannot see that, because a stream whose socket forgets only asks the reactor more often. A backend calls
/// this in a test, within `block_on`.
///
/// # Errors
/// Those of [`register`](Readiness::register) and [`poll_ready`](Readiness::poll_ready), and those of the sockets.
///
/// # Panics
/// If the socket does something else.
pub async fn check<S: Readiness>() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut peer = TcpStream::connect(listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    let socket = S::register(stream.into())?;

    expect_ready(&socket, Interest::Write, "the connection is new").await?;
    expect_pending(&socket, "nothing was sent").await?;
    for _ in 0..3 {
        peer.write_all(b"x")?;
        expect_ready(&socket, Interest::Read, "a byte was sent").await?;
        let read = try_read(socket.as_fd(), &mut Vec::with_capacity(8))?;
        assert_eq!(read, 1, "the bytes that can be read");
        expect_ready(&socket, Interest::Read, "the report is not cleared").await?;
        socket.clear_ready(Interest::Read);
        expect_pending(&socket, "the report is cleared").await?;
        expect_ready(&socket, Interest::Write, "only the other direction is cleared").await?;
    }
    Ok(())
}

/// Panics unless `socket` is ready soon, and stays ready while the reactor is polled.
async fn expect_ready<S: Readiness>(socket: &S, interest: Interest, when: &str) -> io::Result<()> {
    /// Long enough for a busy machine.
    const SOON: Duration = Duration::from_secs(5);
    let mut ready = pin!(poll_fn(|cx| socket.poll_ready(cx, interest)));
    match select(ready.as_mut(), S::Clock::sleep(SOON)).await.first {
        Some(ready) => ready?,
        None => panic!(
            "expected {interest:?} to be ready within {SOON:?}, because {when}; seen: it waits"
        ),
    }
    for _ in 0..3 {
        let is_ready = poll_once(socket, interest).await?;
        assert!(is_ready, "expected {interest:?} to stay ready, because {when}; seen: it waits");
        S::Clock::sleep(A_WHILE).await;
    }
    Ok(())
}

/// Panics unless `socket` is not ready to be read, and stays so while the reactor is polled.
async fn expect_pending<S: Readiness>(socket: &S, when: &str) -> io::Result<()> {
    for _ in 0..3 {
        let is_ready = poll_once(socket, Interest::Read).await?;
        assert!(!is_ready, "expected a wait for bytes, because {when}; seen: it is ready");
        S::Clock::sleep(A_WHILE).await;
    }
    Ok(())
}

/// Polls once. Returns whether it is ready.
async fn poll_once<S: Readiness>(socket: &S, interest: Interest) -> io::Result<bool> {
    poll_fn(|cx| match socket.poll_ready(cx, interest) {
        Poll::Ready(outcome) => Poll::Ready(outcome.map(|()| true)),
        Poll::Pending => Poll::Ready(Ok(false)),
    })
    .await
}

/// Long enough for a runtime to poll its reactor.
const A_WHILE: Duration = Duration::from_millis(10);

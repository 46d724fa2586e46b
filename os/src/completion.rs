//! The completion family: streams and listeners for runtimes whose reads and writes are operations of a
//! ring, which own their buffers until they complete.
//!
//! A backend implements [`Completion`] for its socket, which holds a [`SharedFd`] or something like it. Then
//! it names its types:
//!
//! - `type MyStream = completion::Stream<MySocket>`
//! - `type MyListener = completion::Listener<MySocket>`

use std::cell::Cell;
use std::fmt::Debug;
use std::io;
use std::net::Shutdown;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use owned_io::{
    BufResult, Clock, IoBuf, IoBufExt, IoBufMut, IoVec, Pool, PoolBuf, TRANSFER_BYTES_MAX, coop,
};

use crate::{
    ListenSocket, Socket, check_written, shutdown, try_read, try_read_pooled, try_write,
    try_write_vectored,
};

/// A TCP connection.
pub type Stream<S> = crate::Stream<CompletionSocket<S>>;

/// The half of a [`Stream`] that reads.
pub type ReadHalf<S> = crate::ReadHalf<CompletionSocket<S>>;

/// The half of a [`Stream`] that writes.
pub type WriteHalf<S> = crate::WriteHalf<CompletionSocket<S>>;

/// A TCP listener.
pub type Listener<S> = crate::Listener<CompletionSocket<S>>;

/// A socket whose operations go through a ring.
///
/// Each operation lets other tasks and I/O run: it completes only after the runtime has polled its ring. So
/// no operation asks for the [budget](owned_io::coop). A read that is likely to find bytes is tried without an operation,
/// within the budget, and so are the first writes of a connection and long ones.
///
/// Dropping a connected socket closes it, even while the kernel still works on an operation that was dropped
/// or forgotten. [`SharedFd`] does that. Once a listening socket is dropped, clients are refused, likewise.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait Completion: AsFd + Debug + Sized + 'static {
    /// The runtime's clock. [`sleep`](Clock::sleep) limits how long a connect takes. A listener yields by a
    /// sleep of zero.
    type Clock: Clock;

    /// Takes a non-blocking socket that connects, is connected, or listens.
    ///
    /// # Errors
    /// The runtime's. `fd` is closed then.
    fn register(fd: OwnedFd) -> io::Result<Self>;

    /// Receives into `buf` from its start, and sets its exact length. `buf` has capacity. Receives at most
    /// [`TRANSFER_BYTES_MAX`] bytes.
    async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B>;

    /// Sends the first bytes of `buf`, which is not empty, and raises no SIGPIPE. Sends at most
    /// [`coop::write_bytes_max`] bytes.
    async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B>;

    /// Sends the next pieces of `bufs`, which is not empty, advances by the bytes sent, and raises no
    /// SIGPIPE.
    ///
    /// # Errors
    /// The kernel's, and those of [`check_written`]. After [`WouldBlock`](io::ErrorKind::WouldBlock) the caller
    /// tries again.
    async fn send_vectored<B: IoBuf>(&self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>>;

    /// Waits until a receive or an accept need not wait. Holds no buffer.
    async fn readable(&self) -> io::Result<()>;

    /// Waits until a send need not wait, or an attempt to connect has ended.
    async fn writable(&self) -> io::Result<()>;
}

/// How many writes of a new connection are tried without an operation: two of a TLS handshake, the answer to an upgrade, and
/// that to the first message. A newcomer then does not wait until the busy ones have had their turn.
///
/// Later writes of less than [`LONG_WRITE_BYTES`] are operations: the runtime submits those of a turn with one system call. On
/// compio and monoio, with messages of 200 B over 64 connections, that takes 0.89 to 0.92 of the CPU of tried writes, and 0.60
/// to 0.90 of their p99. With one connection the CPU is 1.04 to 1.05, with 4,000 it is 0.99 to 1.09
/// (`comparisons/record/2026-11-28-writes-and-congestion-control.md`).
const EAGER_WRITES: u8 = 4;

/// The least length of a long write, in bytes. Each is tried without an operation. As an operation, the kernel would copy its
/// bytes only after all other tasks of the turn have filled their buffers. By then they have left the caches, and that costs
/// more than the system call that an operation saves.
///
/// Compared with operations, on a Xeon with 2 MiB of L2 a core and with 64 connections, CPU is 0.86 to 0.91 for 1 KiB over
/// WebSocket and for 16 KiB over TCP, 16 in flight each, and 0.83 to 0.86 for 16 KiB over WebSocket, one in flight. With 16 in
/// flight, where the socket is often full, it is 1.01 to 1.03. p99 is 0.69 to 0.95 over WebSocket, but for one row of 1.19, and
/// 1.09 to 1.11 over TCP (`comparisons/record/2026-11-29-long-writes`). On a Zen 3, 16 KiB over WebSocket, 16 in flight, took 1.00
/// to 1.05 of the CPU and 0.77 to 0.81 of the p99 on earlier code. Other thresholds were not measured.
const LONG_WRITE_BYTES: usize = 8 * 1024;

/// The [`Socket`] and [`ListenSocket`] over a [`Completion`].
#[derive(Debug)]
pub struct CompletionSocket<S> {
    socket: S,
    /// Whether nothing was read yet, or the last read has filled its buffer. Then the next one is tried without an
    /// operation, which would complete only after the runtime has polled its ring. A client that was accepted has often
    /// sent its request, and a full buffer has often left bytes behind.
    expects_data: Cell<bool>,
    /// How many of the next writes are tried without an operation.
    eager_writes_left: Cell<u8>,
}

impl<S> CompletionSocket<S> {
    const fn new(socket: S) -> Self {
        Self { socket, expects_data: Cell::new(true), eager_writes_left: Cell::new(EAGER_WRITES) }
    }

    /// Whether a read is tried without an operation.
    fn tries_to_read(&self) -> bool {
        self.expects_data.replace(false) && coop::has_budget()
    }

    /// Records whether a read has filled `buf`.
    fn record_read(&self, result: &io::Result<usize>, buf: &impl IoBufMut) {
        let asked = buf.buf_capacity().min(TRANSFER_BYTES_MAX);
        self.expects_data.set(result.as_ref().is_ok_and(|n| *n == asked));
    }

    /// Records whether a pooled read has filled its buffer.
    fn record_pooled(&self, read: io::Result<PoolBuf>) -> io::Result<PoolBuf> {
        let buf = read?;
        self.record_read(&Ok(buf.len()), &buf);
        Ok(buf)
    }

    /// Whether a write of so many bytes is tried without an operation.
    fn tries_to_write(&self, bytes: usize) -> bool {
        let left = self.eager_writes_left.get();
        self.eager_writes_left.set(left.saturating_sub(1));
        (left > 0 || bytes >= LONG_WRITE_BYTES) && coop::has_budget()
    }
}

impl<S: AsFd> AsFd for CompletionSocket<S> {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: Completion> Socket for CompletionSocket<S> {
    type Clock = S::Clock;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        S::register(fd).map(Self::new)
    }

    fn connected(&self) -> impl Future<Output = io::Result<()>> {
        self.socket.writable()
    }

    async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        // A receive of nothing would wait for data.
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        if self.tries_to_read() {
            let result = try_read(self.as_fd(), &mut buf);
            if !would_block(&result) {
                self.record_read(&result, &buf);
                return BufResult(result, buf);
            }
        }
        let BufResult(result, buf) = self.socket.recv(buf).await;
        self.record_read(&result, &buf);
        BufResult(result, buf)
    }

    async fn read_pooled(&self, pool: &Pool) -> io::Result<PoolBuf> {
        if self.tries_to_read() {
            let result = try_read_pooled(self.as_fd(), pool);
            if !would_block(&result) {
                return self.record_pooled(result);
            }
        }
        // This takes one operation. Waiting without a buffer takes one and a system call.
        if let Some(buf) = pool.take_for_waiting_read() {
            let BufResult(result, buf) = self.socket.recv(buf).await;
            return self.record_pooled(result.map(|_| buf));
        }
        // Each round but the last waits. It was woken for nothing: another reader took the bytes, or there
        // were none (a wrong checksum).
        loop {
            self.socket.readable().await?;
            let result = try_read_pooled(self.as_fd(), pool);
            if !would_block(&result) {
                return self.record_pooled(result);
            }
        }
    }

    async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        if self.tries_to_write(buf.buf_len()) {
            let result = try_write(self.as_fd(), buf.buf_bytes());
            if !would_block(&result) {
                return BufResult(result, buf);
            }
        }
        let BufResult(result, buf) = self.socket.send(buf).await;
        BufResult(result.and_then(check_written), buf)
    }

    async fn write_vectored<B: IoBuf>(&self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        if self.tries_to_write(bufs.bytes_left()) {
            let result = try_write_vectored(self.as_fd(), &mut bufs);
            if !would_block(&result) {
                return BufResult(result, bufs);
            }
        }
        // Each round waits in the ring.
        loop {
            let BufResult(result, back) = self.socket.send_vectored(bufs).await;
            bufs = back;
            // SENDMSG on a non-blocking socket, unlike SEND, gives up when something else wakes it while the
            // send buffer is full: bytes to read, for example (Linux 6.18).
            if !would_block(&result) {
                return BufResult(result, bufs);
            }
        }
    }
}

impl<S: Completion> ListenSocket for CompletionSocket<S> {
    type Socket = Self;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        S::register(fd).map(Self::new)
    }

    fn readable(&mut self) -> impl Future<Output = io::Result<()>> {
        self.socket.readable()
    }
}

fn would_block<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// The descriptor of a socket. The operations in the kernel share it, and nothing else may.
///
/// An operation that was dropped keeps the descriptor open until it is cancelled or completes. One that was
/// forgotten keeps it open for ever. So when a `SharedFd` is dropped while an operation shares it, it shuts the
/// socket down. That ends the connection and with it the operation; a listener refuses clients.
///
/// Without an operation nothing is shut down, because closing ends the connection. Closing also resets a
/// connection with unread bytes; after a shutdown the peer would see a clean end.
#[derive(Debug)]
pub struct SharedFd(Rc<OwnedFd>);

impl From<OwnedFd> for SharedFd {
    fn from(fd: OwnedFd) -> Self {
        Self(Rc::new(fd))
    }
}

impl Deref for SharedFd {
    type Target = Rc<OwnedFd>;

    #[inline]
    fn deref(&self) -> &Rc<OwnedFd> {
        &self.0
    }
}

impl Drop for SharedFd {
    fn drop(&mut self) {
        if Rc::strong_count(&self.0) > 1 {
            // It fails only when the connection is gone. Then there is nothing to shut down.
            let _ = shutdown(self.0.as_fd(), Shutdown::Both);
        }
    }
}

//! [`MonoioSocket`]: a descriptor whose operations go through monoio's ring.

use std::cell::Cell;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use owned_io::{BufResult, IoBuf, IoBufMut, IoVec};
use owned_io_os as os;
use owned_io_os::completion::{self, Completion};

use crate::op::{Reading, Tcp, Writing};
use crate::runtime::Monoio;

/// A TCP connection on monoio.
pub type MonoioStream = completion::Stream<MonoioSocket>;

/// The half of a [`MonoioStream`] that reads.
pub type MonoioReadHalf = completion::ReadHalf<MonoioSocket>;

/// The half of a [`MonoioStream`] that writes.
pub type MonoioWriteHalf = completion::WriteHalf<MonoioSocket>;

/// A TCP listener on monoio.
pub type MonoioListener = completion::Listener<MonoioSocket>;

/// The socket of a [`MonoioStream`] or a [`MonoioListener`].
#[derive(Debug)]
pub struct MonoioSocket {
    tcp: Tcp,
    /// Operations that were begun and have not completed. Dropped and forgotten ones stay counted: the
    /// kernel may hold the descriptor for them.
    in_flight: Cell<u32>,
}

impl AsFd for MonoioSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl Completion for MonoioSocket {
    type Clock = Monoio;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { tcp: Tcp::new(fd)?, in_flight: Cell::new(0) })
    }

    async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        self.operation_begins();
        let (result, buf) = self.tcp.recv(Reading::new(buf)).await;
        self.operation_ends();
        BufResult(result, buf.into_inner())
    }

    async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.operation_begins();
        let (result, buf) = self.tcp.send(Writing::new(buf)).await;
        self.operation_ends();
        BufResult(result, buf.into_inner())
    }

    /// Calls `sendmsg` once the ring reports that it need not wait. monoio's own vectored write is a
    /// `WRITEV`, which raises SIGPIPE.
    ///
    /// To call `sendmsg` first would save an operation and a poll. No difference was found, with messages
    /// of 2 KiB to 1 MB (`comparisons/record/2026-11-28-full-run`).
    async fn send_vectored<B: IoBuf>(&self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        let result = match self.writable().await {
            Ok(()) => os::try_write_vectored(self.as_fd(), &mut bufs),
            Err(error) => Err(error),
        };
        BufResult(result, bufs)
    }

    async fn readable(&self) -> io::Result<()> {
        self.operation_begins();
        let readable = self.tcp.readable().await;
        self.operation_ends();
        readable
    }

    async fn writable(&self) -> io::Result<()> {
        self.operation_begins();
        let writable = self.tcp.writable().await;
        self.operation_ends();
        writable
    }
}

impl MonoioSocket {
    /// Counts an operation of the ring, until [it ends](Self::operation_ends). These two are no function that takes the
    /// operation: its future would be in there twice, and each waiting connection has one.
    fn operation_begins(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// An operation has completed.
    fn operation_ends(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }
}

impl Drop for MonoioSocket {
    fn drop(&mut self) {
        // A dropped or forgotten operation holds the descriptor until the kernel is done with it. The
        // shutdown ends the connection now, and with it the operation. A listener refuses clients then.
        // Without an operation, monoio closes the descriptor through its ring: one poll of the ring later at
        // best.
        if self.in_flight.get() > 0 {
            // It fails only when the connection is gone. Then there is nothing to shut down.
            let _ = os::shutdown(self.as_fd(), Shutdown::Both);
        } else {
            os::end(self.as_fd());
        }
    }
}

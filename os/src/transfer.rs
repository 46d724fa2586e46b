//! Reads and writes on a socket that return at once.
//!
//! They use rustix, which makes system calls inline. The functions of libc are cancellation points of threads, which
//! costs about fifty instructions for each call in a process with several threads.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::slice;

use owned_io::{IoBuf, IoBufMut, IoVec, Pool, PoolBuf, TRANSFER_BYTES_MAX, coop};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, connect_unspec, recv, send, sendmsg};
use socket2::SockRef;

/// Receives what has arrived into `buf` from its start, and sets its exact length. `buf` has capacity. Zero is the
/// end of the stream.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when nothing has arrived, and those of recv(2). The length of `buf`
/// does not change then.
pub fn try_read(fd: BorrowedFd<'_>, buf: &mut impl IoBufMut) -> io::Result<usize> {
    let capacity = buf.buf_capacity().min(TRANSFER_BYTES_MAX);
    // SAFETY: `capacity` bytes from the pointer on may be written while `buf` is borrowed.
    let room: &mut [MaybeUninit<u8>] =
        unsafe { slice::from_raw_parts_mut(buf.buf_mut_ptr().cast(), capacity) };
    let (_, n) = recv(fd, room, RecvFlags::DONTWAIT)?;
    // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
    unsafe { buf.set_buf_len(n) };
    coop::consume_transfer(n);
    Ok(n)
}

/// Receives what has arrived into a buffer of `pool`. The buffer is empty at the end of the stream.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when nothing has arrived, even if the pool is exhausted; those of
/// recv(2); [`PoolExhausted`](owned_io::PoolExhausted). So only a reader that has something to read is told that the
/// pool is exhausted.
#[inline]
pub fn try_read_pooled(fd: BorrowedFd<'_>, pool: &Pool) -> io::Result<PoolBuf> {
    match pool.take() {
        Ok(mut buf) => try_read(fd, &mut buf).map(|_| buf),
        Err(exhausted) => try_peek(fd).and_then(|_| Err(exhausted.into())),
    }
}

/// Whether bytes have arrived (true) or the end of the stream has (false). The bytes stay in the kernel.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when neither has arrived, and those of recv(2).
pub fn try_peek(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let (_, n) = recv(fd, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(n > 0)
}

/// Writes as many of `bytes` as the kernel takes now: at least one. There is at least one.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when it takes none, and those of send(2).
pub fn try_write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let bytes = &bytes[..bytes.len().min(coop::write_bytes_max())];
    let n = send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    let n = check_written(n)?;
    coop::consume_transfer(n);
    Ok(n)
}

/// Writes as many bytes of `bufs` as the kernel takes now, and advances by them. `bufs` is not empty.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when it takes none, and those of sendmsg(2). `bufs` does not advance
/// then.
pub fn try_write_vectored<B: IoBuf>(fd: BorrowedFd<'_>, bufs: &mut IoVec<B>) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let pieces = bufs.as_io_slices_within(coop::write_bytes_max());
    let n = sendmsg(fd, pieces, &mut SendAncillaryBuffer::default(), flags)?;
    let n = check_written(n)?;
    coop::consume_transfer(n);
    bufs.advance(n);
    Ok(n)
}

/// Turns a write that took none of the bytes into an error.
///
/// # Errors
/// [`WriteZero`](io::ErrorKind::WriteZero) when `n` is zero.
pub fn check_written(n: usize) -> io::Result<usize> {
    if n == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(n) }
}

/// Shuts the given side down (shutdown(2)).
///
/// # Errors
/// [`NotConnected`](io::ErrorKind::NotConnected) when the connection is gone.
pub fn shutdown(fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
    SockRef::from(&fd).shutdown(how)
}

/// Resets a connection, even while others hold its descriptor. The queued bytes of both directions are discarded,
/// and all who wait for the socket are woken (`tcp_disconnect` in net/ipv4/tcp.c). Closing with `SO_LINGER` of
/// zero does the same, but only when the last operation releases the descriptor.
///
/// # Errors
/// Those of connect(2) to `AF_UNSPEC`.
pub fn abort(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(connect_unspec(fd)?)
}

/// Ends a dropped connection whose descriptor the runtime keeps open for a moment: shuts it down in both directions.
///
/// A connection with unread bytes is not shut down. Closing its descriptor resets it. After a shutdown the peer would
/// see a clean end instead.
pub fn end(fd: BorrowedFd<'_>) {
    if !try_peek(fd).unwrap_or(false) {
        // It fails only when the connection is gone. Then there is nothing to shut down.
        let _ = shutdown(fd, Shutdown::Both);
    }
}

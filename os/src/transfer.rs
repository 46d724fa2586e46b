//! Reads and writes on a socket that return at once.
//!
//! By rustix, whose system calls are made in place: libc's are cancellation points of its threads,
//! which costs some fifty instructions each where there are several threads.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::slice;

use owned_io::{IoBuf, IoBufExt, IoBufMut, IoVec, Pool, PoolBuf, TRANSFER_BYTES_MAX, coop};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, connect_unspec, recv, send, sendmsg};
use socket2::SockRef;

/// What has arrived, into `buf`, which has capacity, from its start; sets its exact length. Zero is
/// the end of the stream.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when nothing has, and those of recv(2); the length is
/// as it was then.
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

/// What has arrived, into a buffer of `pool`; empty at the end of the stream.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when nothing has, even if the pool is exhausted; those of
/// recv(2); [`PoolExhausted`](owned_io::PoolExhausted), which is thus said only to those for whom there
/// is something to read.
#[inline]
pub fn try_read_pooled(fd: BorrowedFd<'_>, pool: &Pool) -> io::Result<PoolBuf> {
    match pool.take() {
        Ok(mut buf) => try_read(fd, &mut buf).map(|_| buf),
        Err(exhausted) => try_peek(fd).and_then(|_| Err(exhausted.into())),
    }
}

/// Whether bytes have arrived (true) or the end of the stream has; leaves them where they are.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when neither has, and those of recv(2).
pub fn try_peek(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let (_, n) = recv(fd, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(n > 0)
}

/// Hands the kernel as many bytes of `buf`, which is not empty, as it takes now: at least one.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when it takes none, and those of send(2).
pub fn try_write(fd: BorrowedFd<'_>, buf: &impl IoBuf) -> io::Result<usize> {
    let bytes = buf.buf_bytes();
    let bytes = &bytes[..bytes.len().min(TRANSFER_BYTES_MAX)];
    let n = send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    coop::consume_transfer(n);
    check_written(n)
}

/// Hands the kernel as many bytes of `bufs`, of which some are left, as it takes now, and advances
/// by them.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when it takes none, and those of sendmsg(2); nothing
/// is advanced then.
pub fn try_write_vectored<B: IoBuf>(fd: BorrowedFd<'_>, bufs: &mut IoVec<B>) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let n = sendmsg(fd, bufs.as_io_slices(), &mut SendAncillaryBuffer::default(), flags)?;
    let n = check_written(n)?;
    coop::consume_transfer(n);
    bufs.advance(n);
    Ok(n)
}

/// A write of bytes that were there, of which the transport took none, is an error.
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

/// Resets a connection, whoever holds its descriptor: what is queued in either direction is thrown away,
/// and whoever waits for the socket is woken (`tcp_disconnect` in net/ipv4/tcp.c). Closing after
/// `SO_LINGER` at zero does the same, but only once the last operation lets go of the descriptor.
///
/// # Errors
/// Those of connect(2) to `AF_UNSPEC`.
pub fn abort(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(connect_unspec(fd)?)
}

/// Ends a connection that is closed, but whose descriptor the runtime keeps open for a little while:
/// shuts it down both ways. Only where bytes were left unread is that left to closing, which resets
/// the connection then; after a shutdown the peer would see a clean end.
pub fn end(fd: BorrowedFd<'_>) {
    if !try_peek(fd).unwrap_or(false) {
        // It fails only when the connection is gone, and then there is nothing to shut down.
        let _ = shutdown(fd, Shutdown::Both);
    }
}

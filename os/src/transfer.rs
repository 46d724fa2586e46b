//! Reads and writes on a socket that return at once.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd};

use owned_io::{IoBuf, IoBufMut, IoVec, TRANSFER_BYTES_MAX};
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
    let n = unsafe {
        libc::recv(fd.as_raw_fd(), buf.buf_mut_ptr().cast(), capacity, libc::MSG_DONTWAIT)
    };
    let n = transferred(n)?;
    // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
    unsafe { buf.set_buf_len(n) };
    Ok(n)
}

/// Whether bytes have arrived (true) or the end of the stream has; leaves them where they are.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when neither has, and those of recv(2).
pub fn try_peek(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let n = SockRef::from(&fd).recv_with_flags(&mut [MaybeUninit::uninit()], flags)?;
    Ok(n > 0)
}

/// Hands the kernel as many bytes of `buf`, which is not empty, as it takes now: at least one.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when it takes none, and those of send(2).
pub fn try_write(fd: BorrowedFd<'_>, buf: &impl IoBuf) -> io::Result<usize> {
    let len = buf.buf_len().min(TRANSFER_BYTES_MAX);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `len` initialised bytes are at the pointer while `buf` is borrowed.
    let n = unsafe { libc::send(fd.as_raw_fd(), buf.buf_ptr().cast(), len, flags) };
    transferred(n).and_then(check_written)
}

/// Hands the kernel as many bytes of `bufs`, of which some are left, as it takes now, and advances
/// by them.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when it takes none, and those of sendmsg(2); nothing
/// is advanced then.
pub fn try_write_vectored<B: IoBuf>(fd: BorrowedFd<'_>, bufs: &mut IoVec<B>) -> io::Result<usize> {
    let pieces = bufs.as_io_slices();
    // SAFETY: all zeroes is a message without name, pieces or control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the pieces are `iovec`s of initialised bytes, which stay as long as `bufs` is
    // borrowed, and sendmsg only reads them.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
    let n = transferred(n).and_then(check_written)?;
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

/// Ends a connection that is closed, but whose descriptor the runtime keeps open for a little while:
/// shuts it down both ways. Only where bytes were left unread is that left to closing, which resets
/// the connection then; after a shutdown the peer would see a clean end.
pub fn end(fd: BorrowedFd<'_>) {
    if !try_peek(fd).unwrap_or(false) {
        // It fails only when the connection is gone, and then there is nothing to shut down.
        let _ = shutdown(fd, Shutdown::Both);
    }
}

fn transferred(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

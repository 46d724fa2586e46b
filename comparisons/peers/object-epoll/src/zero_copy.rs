//! Sends that do not copy (<https://docs.kernel.org/networking/msg_zerocopy.html>).
//!
//! Answers are neither changed nor freed, so nothing waits for a completion. Completions are read all the same, because
//! they use up the memory of the socket for such things (`net.core.optmem_max`), and epoll reports them until then.
//! Over loopback the kernel copies each packet when it delivers it, and says so in the completion.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::{self, offset_of};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use peers_common::zero_copy::Completions;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// `SO_EE_ORIGIN_ZEROCOPY` of `linux/errqueue.h`.
const ORIGIN_ZERO_COPY: u8 = 5;

/// `SO_EE_CODE_ZEROCOPY_COPIED` of `linux/errqueue.h`.
const CODE_COPIED: u8 = 1;

/// The control message of a completion. The address that it ends with is not read.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    error: libc::sock_extended_err,
    address: [u8; 64],
}

// The data of a control message are where `CMSG_DATA` would look for them.
// SAFETY: it calculates a length, and has no conditions.
const _: () = assert!(offset_of!(Control, error) == unsafe { libc::CMSG_LEN(0) } as usize);

/// Allows sends without a copy on all connections that the listener accepts: they inherit the option.
pub(crate) fn enable(listener: &TcpListener) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    let fd = listener.as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel reads `len` bytes of `on`, which lives as long as this call.
    let result = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends without a copy. Returns how many bytes the socket took.
///
/// # Errors
/// Those of sendmsg(2). One of them is ENOBUFS: more pages are in flight than the process may lock.
pub(crate) fn send(stream: &TcpStream, slices: &[IoSlice<'static>]) -> io::Result<usize> {
    let flags = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY.cast_unsigned());
    Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags)?)
}

/// Reads and counts one message of the socket's error queue. It may be about several sends. Returns false if there is
/// none.
pub(crate) fn read_completion(
    stream: &TcpStream,
    completions: &mut Completions,
) -> io::Result<bool> {
    // SAFETY: both consist of integers and of pointers that may be null, so zero is a value of each.
    let (mut message, mut control): (libc::msghdr, Control) = unsafe { mem::zeroed() };
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    let (fd, flags) = (stream.as_raw_fd(), libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    // SAFETY: the descriptor is open. The message has no address and no slices, and `control` has as many bytes as it
    // says. Both live as long as this call, and whatever the kernel writes there is a value of their integers.
    if unsafe { libc::recvmsg(fd, &raw mut message, flags) } < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == ErrorKind::WouldBlock { Ok(false) } else { Err(error) };
    }
    let error = &control.error;
    if error.ee_origin == ORIGIN_ZERO_COPY {
        // The numbers of the first and of the last send, which wrap.
        let sends = u64::from(error.ee_data.wrapping_sub(error.ee_info)) + 1;
        completions.sends += sends;
        if error.ee_code & CODE_COPIED != 0 {
            completions.copied += sends;
        }
    }
    Ok(true)
}

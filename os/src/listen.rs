//! Listening sockets: bound once for the process, listened on by each worker, drained on accept.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use owned_io::{AddrError, BoundAddr, Keepalive, ListenOptions};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// Takes an address for this process; see [`Runtime::bind`](owned_io::Runtime::bind).
///
/// The socket that holds it is never listened on. It is bound without `SO_REUSEPORT`, so that any
/// other socket at the address is a conflict, and only then made to share it with the listeners,
/// which are bound with. `SO_REUSEADDR` is on while it binds, so that connections in TIME_WAIT do
/// not keep a restarted server out, and off afterwards, so that nobody else binds beside it.
///
/// # Errors
/// [`AddrError`] inside.
pub fn bind(mut options: ListenOptions) -> io::Result<BoundAddr> {
    let hold = || {
        let socket = new_socket(options.addr)?;
        socket.set_reuse_address(true)?;
        socket.bind(&options.addr.into())?;
        socket.set_reuse_address(false)?;
        socket.set_reuse_port(true)?;
        let addr = local_addr(&socket)?;
        Ok((socket, addr))
    };
    let (socket, addr) =
        hold().map_err(|error| AddrError::new("listen on", options.addr, error))?;
    options.addr = addr;
    Ok(BoundAddr::new(options, socket))
}

/// A non-blocking socket that listens on `bound`, beside those of other workers.
///
/// # Errors
/// [`AddrError`] inside.
pub fn listen(bound: &BoundAddr) -> io::Result<OwnedFd> {
    let options = bound.options();
    let listen = || {
        let socket = new_socket(options.addr)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        set_buffers(&socket, options.recv_buffer_bytes, options.send_buffer_bytes)?;
        // Inherited by what it accepts, all of these.
        socket.set_tcp_nodelay(options.nodelay)?;
        notice_who_is_gone(&socket, options.keepalive, options.unacknowledged_max)?;
        socket.bind(&options.addr.into())?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(socket.into())
    };
    listen().map_err(|error| AddrError::new("listen on", options.addr, error).into())
}

/// Takes the next client from the accept queue; its socket does not block.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when there is none, and those of accept(2).
pub fn try_accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let accept = |addr: *mut libc::sockaddr_storage, len: *mut libc::socklen_t| {
        // SAFETY: `addr` and `len` are those of a `sockaddr_storage`, which fits every address.
        let fd = unsafe { libc::accept4(listener.as_raw_fd(), addr.cast(), len, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: accept4 fills in the address, and sets its length, whenever it succeeds.
    let (stream, addr) = unsafe { SockAddr::try_init(|addr, len| accept(addr.cast(), len)) }?;
    let addr = addr.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    Ok((stream, addr))
}

pub(crate) fn new_socket(addr: SocketAddr) -> io::Result<Socket> {
    // `Socket::new` sets CLOEXEC.
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

pub(crate) fn set_buffers(socket: &Socket, recv: Option<u32>, send: Option<u32>) -> io::Result<()> {
    // Before listen or connect, because the window scale is settled by the handshake (tcp(7)).
    if let Some(bytes) = recv {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = send {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    Ok(())
}

pub(crate) fn notice_who_is_gone(
    socket: &Socket,
    keepalive: Option<Keepalive>,
    unacknowledged_max: Option<Duration>,
) -> io::Result<()> {
    /// `MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL` and `MAX_TCP_KEEPCNT` of Linux (include/net/tcp.h).
    const SECONDS_MAX: u64 = 32_767;
    const PROBES_MAX: u32 = 127;
    let whole = |time: Duration| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        Duration::from_secs(seconds.clamp(1, SECONDS_MAX))
    };
    if let Some(Keepalive { idle, interval, probes, .. }) = keepalive {
        let options = TcpKeepalive::new().with_time(whole(idle)).with_interval(whole(interval));
        socket.set_tcp_keepalive(&options.with_retries(probes.clamp(1, PROBES_MAX)))?;
    }
    if let Some(limit) = unacknowledged_max {
        // Of the kernel's clock; it is an `int` there.
        socket.set_tcp_user_timeout(Some(limit.min(Duration::from_millis(i32::MAX as u64))))?;
    }
    Ok(())
}

fn local_addr(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use socket2::SockRef;

    use super::*;

    #[test]
    fn options_reach_the_listener_and_what_it_accepts() {
        let mut options = ListenOptions::new(([127, 0, 0, 1], 0).into());
        options.recv_buffer_bytes = Some(32 * 1024);
        for nodelay in [true, false] {
            options.nodelay = nodelay;
            let bound = bind(options.clone()).unwrap();
            let listener = listen(&bound).unwrap();
            let client = std::net::TcpStream::connect(bound.local_addr()).unwrap();
            let (server, peer) = try_accept(listener.as_fd()).unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            let server = SockRef::from(&server);
            assert_eq!(server.tcp_nodelay().unwrap(), nodelay);
            // The kernel doubles it, for its own bookkeeping (socket(7)).
            assert_eq!(server.recv_buffer_size().unwrap(), 64 * 1024);
            assert!(server.nonblocking().unwrap());
        }
    }

    #[test]
    fn the_backlog_is_what_was_asked_for() {
        let mut options = ListenOptions::new(([127, 0, 0, 1], 0).into());
        options.backlog = 3;
        let bound = bind(options).unwrap();
        let _listener = listen(&bound).unwrap();
        let connect = || {
            let timeout = Duration::from_millis(200);
            std::net::TcpStream::connect_timeout(&bound.local_addr(), timeout)
        };
        // The queue takes one more than the backlog; the next SYN is dropped.
        let waiting: Vec<_> = (0..4).map(|_| connect().unwrap()).collect();
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(waiting);
    }
}

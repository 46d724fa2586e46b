//! Connects without blocking. The backend's socket waits for the end of the attempt.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::pin;

use owned_io::{AddrError, Clock, ConnectOptions, select};
use socket2::SockRef;

use crate::listen::{new_socket, set_buffers, set_dead_peer_detection};
use crate::stream::{Socket, Stream, stream};

/// Connects; see [`Tcp::connect`](owned_io::Tcp::connect).
///
/// # Errors
/// The inner error is an [`AddrError`].
///
/// # Cancellation
/// Safe: the attempt ends and its socket is closed.
pub async fn connect<S: Socket>(options: ConnectOptions) -> io::Result<Stream<S>> {
    let socket = connected(&options).await;
    socket.map(stream).map_err(|error| AddrError::new("connect to", options.addr, error).into())
}

async fn connected<S: Socket>(options: &ConnectOptions) -> io::Result<S> {
    let socket = S::register(begin(options)?)?;
    let timeout = S::Clock::sleep(options.timeout);
    match select(pin!(socket.connected()), timeout).await.first {
        None => return Err(io::ErrorKind::TimedOut.into()),
        Some(connected) => connected?,
    }
    finish(socket.as_fd())?;
    Ok(socket)
}

/// A non-blocking socket that has begun to connect. Once it is writable, see [`finish`].
fn begin(options: &ConnectOptions) -> io::Result<OwnedFd> {
    let socket = new_socket(options.addr)?;
    socket.set_tcp_nodelay(options.nodelay)?;
    set_dead_peer_detection(&socket, options.keepalive, options.unacknowledged_max)?;
    set_buffers(&socket, options.recv_buffer_bytes, options.send_buffer_bytes)?;
    if let Some(local) = options.local_addr {
        socket.bind(&local.into())?;
    }
    match socket.connect(&options.addr.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// The result of the attempt.
fn finish(fd: BorrowedFd<'_>) -> io::Result<()> {
    let error = SockRef::from(&fd).take_error().unwrap_or_else(Some);
    error.map_or(Ok(()), Err)
}

/// The local address.
///
/// # Errors
/// Those of getsockname(2).
pub fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    SockRef::from(&fd).local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// The peer's address.
///
/// # Errors
/// Those of getpeername(2).
pub fn peer_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    SockRef::from(&fd).peer_addr()?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn options_reach_the_socket() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut options = ConnectOptions::new(listener.local_addr().unwrap());
        options.recv_buffer_bytes = Some(32 * 1024);
        options.local_addr = Some(([127, 0, 0, 2], 0).into());
        for nodelay in [true, false] {
            options.nodelay = nodelay;
            let fd = begin(&options).unwrap();
            let (_server, peer) = listener.accept().unwrap();
            finish(fd.as_fd()).unwrap();
            assert_eq!(peer, local_addr(fd.as_fd()).unwrap());
            assert_eq!(peer.ip().to_string(), "127.0.0.2");
            let socket = SockRef::from(&fd);
            assert_eq!(socket.tcp_nodelay().unwrap(), nodelay);
            // The kernel doubles it, for its own bookkeeping (socket(7)).
            assert_eq!(socket.recv_buffer_size().unwrap(), 64 * 1024);
            assert!(socket.nonblocking().unwrap());
        }
    }
}

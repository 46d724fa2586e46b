//! Listening sockets. The process binds an address once, each worker listens on it.

use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;
use std::{io, slice, thread};

use owned_io::{AddrError, BoundAddr, Keepalive, ListenOptions};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, TcpKeepalive, Type};

/// Binds an address for this process; see [`Tcp::bind`](owned_io::Tcp::bind).
///
/// The socket that holds the address accepts no client. It is bound without `SO_REUSEPORT`, so any other socket at
/// the address is a conflict. It gets `SO_REUSEPORT` afterwards, to share the address with the listeners, which are
/// bound with it. It is bound without `SO_REUSEADDR` too: if several processes bind at the same moment, the kernel
/// then accepts only one of them. But such a bind fails while connections of an earlier server are in TIME_WAIT. So
/// after a failure the address is taken over. If another process tries the same, this blocks the thread for less than
/// a millisecond before each of at most eight further attempts.
///
/// # Errors
/// The inner error is an [`AddrError`].
pub fn bind(mut options: ListenOptions) -> io::Result<BoundAddr> {
    let hold = || {
        let socket = match hold_alone(options.addr) {
            // For port 0 the kernel has searched for a free port. Another attempt would not do better.
            Err(error) if is_in_use(&error) && options.addr.port() != 0 => {
                hold_despite_time_wait(options.addr)?
            }
            held => held?,
        };
        let addr = local_addr(&socket)?;
        Ok((socket, addr))
    };
    let (socket, addr) = hold().map_err(|error| listen_error(options.addr, error))?;
    options.addr = addr;
    Ok(BoundAddr::new(options, socket))
}

fn hold_alone(addr: SocketAddr) -> io::Result<Socket> {
    let socket = new_socket(addr)?;
    socket.bind(&addr.into())?;
    socket.set_reuse_port(true)?; // shared with our listeners, and with those of our user
    Ok(socket)
}

/// Holds an address at which connections of an earlier server linger. That takes `SO_REUSEADDR`.
///
/// With `SO_REUSEADDR` several sockets may bind, but only one of them may listen. So this one listens
/// until `SO_REUSEADDR` is off again. From then on no other socket can bind or listen. Meanwhile a filter drops every
/// packet for it. A client that connects in these microseconds tries again after a second, as TCP does, and finds
/// the real listener.
fn hold_despite_time_wait(addr: SocketAddr) -> io::Result<Socket> {
    let drop_all = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    let mut retries_left = LISTEN_RETRIES_MAX;
    loop {
        let socket = new_socket(addr)?;
        socket.set_reuse_address(true)?;
        socket.attach_filter(slice::from_ref(&drop_all))?;
        socket.bind(&addr.into())?; // fails if another one listens, or holds it
        match socket.listen(0) {
            Ok(()) => {
                socket.set_reuse_address(false)?;
                socket.set_reuse_port(true)?;
                socket.shutdown(Shutdown::Read)?; // it no longer listens, and stays bound
                return Ok(socket);
            }
            // The kernel may refuse both of two sockets that begin to listen within the same microsecond: each
            // is marked as listening before either is checked.
            Err(error) if is_in_use(&error) && retries_left > 0 => {
                retries_left -= 1;
                drop(socket);
                thread::sleep(random_below_a_millisecond());
            }
            Err(error) => return Err(error),
        }
    }
}

/// How often to try again to listen alone. Each time the thread sleeps for less than a millisecond first.
const LISTEN_RETRIES_MAX: u32 = 8;

fn random_below_a_millisecond() -> Duration {
    let mut random = [0; 2];
    crate::fill_random(&mut random);
    Duration::from_micros(u64::from(u16::from_ne_bytes(random)) % 1000)
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// A non-blocking socket that listens on `bound`, next to those of other workers.
///
/// # Errors
/// The inner error is an [`AddrError`].
pub fn listen(bound: &BoundAddr) -> io::Result<OwnedFd> {
    let options = bound.options();
    let listen = || {
        let socket = new_socket(options.addr)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        set_buffers(&socket, options.recv_buffer_bytes, options.send_buffer_bytes)?;
        // Accepted sockets inherit all of these.
        socket.set_tcp_nodelay(options.nodelay)?;
        set_dead_peer_detection(&socket, options.keepalive, options.unacknowledged_max)?;
        socket.bind(&options.addr.into())?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(socket.into())
    };
    listen().map_err(|error| listen_error(options.addr, error))
}

/// The error of an attempt to listen.
pub(crate) fn listen_error(addr: SocketAddr, error: io::Error) -> io::Error {
    AddrError::new("listen on", addr, error).into()
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
        // SAFETY: the kernel has just made it. Nothing else owns it.
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
    // This comes before listen and connect, because the handshake fixes the window scale (tcp(7)).
    if let Some(bytes) = recv {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = send {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    Ok(())
}

pub(crate) fn set_dead_peer_detection(
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
        // In milliseconds; the kernel's type is `int`.
        socket.set_tcp_user_timeout(Some(limit.min(Duration::from_millis(i32::MAX as u64))))?;
    }
    Ok(())
}

fn local_addr(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
            let client = TcpStream::connect(bound.local_addr()).unwrap();
            let (server, peer) = try_accept(listener.as_fd()).unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            let server = SockRef::from(&server);
            assert_eq!(server.tcp_nodelay().unwrap(), nodelay);
            // The kernel doubles it, for its own bookkeeping (socket(7)).
            assert_eq!(server.recv_buffer_size().unwrap(), 64 * 1024);
            assert!(server.nonblocking().unwrap());
        }
    }

    /// A free address. With `lingers` a connection in TIME_WAIT is there.
    fn free_addr(lingers: bool) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        if lingers {
            let client = TcpStream::connect(addr).unwrap();
            drop(listener.accept().unwrap()); // the end that closes first lingers
            drop(client);
        }
        addr
    }

    #[test]
    fn of_two_concurrent_binds_one_gets_the_address() {
        const ROUNDS: usize = 300;
        for lingers in [false, true] {
            let addr = free_addr(lingers);
            let (started, end) = (AtomicUsize::new(0), Barrier::new(2));
            let bind_and_listen = || {
                let outcomes = (1..=ROUNDS).map(|round| {
                    // A barrier would wake one thread long after the other.
                    started.fetch_add(1, Ordering::SeqCst);
                    while started.load(Ordering::SeqCst) < 2 * round {
                        std::hint::spin_loop();
                    }
                    let bound = bind(ListenOptions::new(addr));
                    let listeners = bound.and_then(|bound| {
                        let listeners = [listen(&bound)?, listen(&bound)?];
                        Ok((bound, listeners))
                    });
                    end.wait(); // neither lets go before both have tried
                    match listeners {
                        Ok(_) => true,
                        Err(error) if is_in_use(&error) => false,
                        Err(error) => panic!("{error}"),
                    }
                });
                outcomes.collect::<Vec<_>>()
            };
            let (ours, theirs) = thread::scope(|scope| {
                let other = scope.spawn(bind_and_listen);
                (bind_and_listen(), other.join().unwrap())
            });
            let both = ours.iter().zip(&theirs).filter(|(ours, theirs)| **ours && **theirs);
            assert_eq!(both.count(), 0, "of {ROUNDS} rounds, lingers: {lingers}");
            let neither = ours.iter().zip(&theirs).filter(|(ours, theirs)| !**ours && !**theirs);
            assert_eq!(neither.count(), 0, "of {ROUNDS} rounds, lingers: {lingers}");
        }
    }

    #[test]
    fn no_client_connects_while_an_address_is_taken_over() {
        const ROUNDS: usize = 2_000;
        let addr = free_addr(true);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let (mut connected, timeout) = (0, Duration::from_millis(1));
                while !is_over.load(Ordering::Relaxed) {
                    connected += u32::from(TcpStream::connect_timeout(&addr, timeout).is_ok());
                }
                connected
            });
            for _ in 0..ROUNDS {
                drop(hold_despite_time_wait(addr).unwrap());
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(client.join().unwrap(), 0, "clients that nobody will ever accept");
        });
    }

    #[test]
    fn the_backlog_is_what_was_asked_for() {
        let mut options = ListenOptions::new(([127, 0, 0, 1], 0).into());
        options.backlog = 3;
        let bound = bind(options).unwrap();
        let _listener = listen(&bound).unwrap();
        let connect = || {
            let timeout = Duration::from_millis(200);
            TcpStream::connect_timeout(&bound.local_addr(), timeout)
        };
        // The queue takes one more than the backlog; the next SYN is dropped.
        let waiting: Vec<_> = (0..4).map(|_| connect().unwrap()).collect();
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(waiting);
    }
}

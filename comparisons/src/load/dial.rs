//! Opens connections: local addresses, and the limit of open files.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use mio::net::TcpStream;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ClientConfig;
use socket2::{Domain, Protocol, Socket, Type};

use super::Failure;
use super::options::Target;
use super::transport::Transport;
use super::upgrade::Upgrade;

/// Connections from one local address. It has some 28,000 ports; those used in the last minute are reserved.
const PER_SOURCE: usize = 20_000;

/// The most local addresses, from 127.0.0.2 on: the last byte stays below 255.
const SOURCES_MAX: usize = 250;

/// Open files besides connections.
const FILES_SPARE: usize = 32;

/// Opens connections to one address, from several local ones if there are many connections on this machine.
///
/// With few connections the kernel chooses the address: finding a free port for a given address, among those
/// reserved since earlier runs, takes it a millisecond.
#[derive(Debug)]
pub(crate) struct Dialer {
    target: SocketAddr,
    upgrade: Option<Upgrade>,
    tls: Option<Arc<ClientConfig>>,
    sources: usize,
    next: usize,
}

impl Dialer {
    /// For so many connections in all.
    ///
    /// # Errors
    /// When there is no certificate to trust where one was named.
    pub(crate) fn new(target: &Target, connections: usize) -> Result<Self, Failure> {
        let upgrade = target.upgrade();
        let loopback = matches!(target.addr.ip(), IpAddr::V4(ip) if ip.is_loopback());
        let wanted = connections.div_ceil(PER_SOURCE);
        let sources = if loopback && wanted > 1 { wanted.min(SOURCES_MAX) } else { 0 };
        let tls = target.tls()?;
        Ok(Self { target: target.addr, upgrade, tls, sources, next: 0 })
    }

    /// The same with another upgrade.
    pub(crate) fn with_upgrade(self, upgrade: Upgrade) -> Self {
        Self { upgrade: Some(upgrade), ..self }
    }

    /// Begins to connect.
    pub(crate) fn dial(&mut self) -> io::Result<Transport> {
        self.dial_with(None)
    }

    /// The same, with a receive buffer of so many bytes (the kernel doubles it) if that is given.
    pub(crate) fn dial_with(&mut self, receive_bytes: Option<usize>) -> io::Result<Transport> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(self.target), kind, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        if let Some(bytes) = receive_bytes {
            // Before it connects: the window that it offers depends on it.
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(source) = self.source() {
            socket.bind(&SocketAddr::V4(source).into())?;
        }
        match socket.connect(&self.target.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Transport::new(TcpStream::from_std(socket.into()), self.tls.as_ref())
    }

    /// The upgrade that a connection needs before it is a WebSocket.
    pub(crate) fn upgrade(&self) -> Option<&Upgrade> {
        self.upgrade.as_ref()
    }

    fn source(&mut self) -> Option<SocketAddrV4> {
        let index = self.next.checked_rem(self.sources)?;
        self.next += 1;
        Some(SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2 + index as u8), 0))
    }
}

/// Raises the limit of open files as far as allowed.
///
/// # Errors
/// When that is too little for so many connections.
pub(crate) fn make_room(connections: usize) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // After a refusal the old limit stays; it is checked next.
    let _ = setrlimit(Resource::Nofile, raised);
    let allowed = getrlimit(Resource::Nofile).current;
    let needed = (connections + FILES_SPARE) as u64;
    match allowed {
        Some(allowed) if allowed < needed => Err(Failure::new(format!(
            "{connections} connections need {needed} open files and the limit is {allowed}: \
             raise the hard limit (ulimit -Hn) or ask for fewer"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialer(target: &str, connections: usize) -> Dialer {
        let addr = target.parse().expect("an address");
        let (websocket, tls, core, json, server_pid) = (None, None, None, None, None);
        let (tls_resume, perf, compressed) = (false, None, false);
        let target = Target {
            addr,
            websocket,
            tls,
            tls_resume,
            core,
            json,
            server_pid,
            windows: false,
            perf,
            compressed,
        };
        Dialer::new(&target, connections).expect("no certificate is needed")
    }

    fn sources(target: &str, connections: usize) -> usize {
        dialer(target, connections).sources
    }

    #[test]
    fn only_loopback_has_other_local_addresses() {
        assert_eq!(sources("127.0.0.1:7", 20_000), 0);
        assert_eq!(sources("127.0.0.1:7", 200_000), 10);
        assert_eq!(sources("127.0.0.1:7", usize::MAX), 250);
        assert_eq!(sources("192.0.2.1:7", 100_000), 0);
        assert_eq!(sources("[::1]:7", 100_000), 0);
    }

    #[test]
    fn they_are_taken_in_turn() {
        let mut dialer = dialer("127.0.0.1:7", 50_000);
        let ips: Vec<u8> =
            (0..4).map(|_| dialer.source().expect("loopback").ip().octets()[3]).collect();
        assert_eq!(ips, [2, 3, 4, 2]);
    }
}

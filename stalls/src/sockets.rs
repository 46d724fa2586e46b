//! Asks the kernel for the TCP sockets of the network namespace.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::proc::socket::{Socket, parse, request};

/// More sockets are left out: 256 datagrams hold some 50,000.
pub(crate) const DATAGRAMS_MAX: usize = 256;

/// Both families of TCP sockets.
pub(crate) const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];

/// A socket to the kernel that stays open.
#[derive(Debug)]
pub(crate) struct SocketDiag {
    is_allowed: bool,
    socket: Option<OwnedFd>,
    buf: Vec<u8>,
    /// Whether sockets were left out of an answer, once.
    pub(crate) has_left_out: bool,
}

impl SocketDiag {
    /// `is_allowed`: as in [`Config`](crate::Config::netlink).
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self { is_allowed, socket: None, buf: Vec::new(), has_left_out: false }
    }

    /// All TCP sockets of `families` in one of `states`, with an extension as in [`request`].
    pub(crate) fn sockets(
        &mut self,
        families: &[i32],
        states: &[u8],
        extension: Option<u8>,
    ) -> io::Result<Vec<Socket>> {
        if !self.is_allowed {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "Config::netlink is off"));
        }
        let mut sockets = Vec::new();
        let asked = families.iter().try_for_each(|family| {
            self.ask(&request(*family as u8, states, extension), &mut sockets)
        });
        if asked.is_err() {
            self.socket = None; // it may have the rest of an answer
        }
        asked.map(|()| sockets)
    }

    fn ask(&mut self, request: &[u8], sockets: &mut Vec<Socket>) -> io::Result<()> {
        let socket = match &self.socket {
            Some(socket) => socket,
            None => self.socket.insert(socket_with(
                AddressFamily::NETLINK,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC,
                Some(SOCK_DIAG),
            )?),
        };
        sendto(socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        self.buf.resize(32 * 1024, 0);
        for _ in 0..DATAGRAMS_MAX {
            // A dump is answered at once; DONTWAIT in case a kernel does not.
            let (count, _) = recv(socket, &mut self.buf[..], RecvFlags::DONTWAIT)?;
            if !parse(&self.buf[..count], sockets).map_err(io::Error::from_raw_os_error)? {
                return Ok(());
            }
        }
        self.socket = None;
        self.has_left_out = true;
        Ok(())
    }
}

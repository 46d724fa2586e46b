//! Asks the kernel for the TCP sockets of the network namespace.

use std::io;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::proc::socket::{Socket, parse, request};

/// More sockets are left out: 256 datagrams hold some 50,000.
const DATAGRAMS_MAX: usize = 256;

/// All TCP sockets in one of `states`.
pub(crate) fn sockets(states: &[u8]) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(SOCK_DIAG),
        )?;
        sendto(
            &socket,
            &request(family as u8, states),
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        let mut bytes = vec![0; 32 * 1024];
        for _ in 0..DATAGRAMS_MAX {
            // A dump is answered at once; DONTWAIT in case a kernel does not.
            let (count, _) = recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
            if !parse(&bytes[..count], &mut sockets).map_err(io::Error::from_raw_os_error)? {
                break;
            }
        }
    }
    Ok(sockets)
}

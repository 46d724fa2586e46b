//! Sockets by `sock_diag`: the request for them and what the kernel answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a connection whose task has not closed it: the peer has.
pub const CLOSE_WAIT: u8 = 8;
/// The state of a connection.
pub const ESTABLISHED: u8 = 1;
/// The state of a listener.
pub const LISTEN: u8 = 10;

const HEADER: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_AND_DUMP: u16 = 0x301;

/// One TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// Its state, as in the constants.
    pub state: u8,
    /// Its local address.
    pub local: SocketAddr,
    /// A listener: connections that wait for accept. A connection: bytes that nobody has read.
    pub receive_queue: u32,
    /// A listener: its backlog. A connection: bytes that the peer has not acknowledged.
    pub send_queue: u32,
    /// Its inode, as in the links of `/proc/self/fd`. 0: it belongs to no descriptor.
    pub inode: u32,
}

/// The request for all TCP sockets of a family (`AF_INET` or `AF_INET6`) that are in one of `states`.
pub fn request(family: u8, states: &[u8]) -> [u8; 72] {
    let mut request = [0; 72];
    request[..4].copy_from_slice(&72_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST_AND_DUMP.to_ne_bytes());
    request[HEADER] = family;
    request[HEADER + 1] = 6; // TCP
    let mask = states.iter().fold(0_u32, |mask, state| mask | 1 << state);
    request[HEADER + 4..HEADER + 8].copy_from_slice(&mask.to_ne_bytes());
    request
}

/// Adds the sockets of one datagram. Whether more datagrams follow.
///
/// # Errors
/// The number of the kernel's error.
pub fn parse(mut bytes: &[u8], sockets: &mut Vec<Socket>) -> Result<bool, i32> {
    while bytes.len() >= HEADER {
        let length = u32_at(bytes, 0) as usize;
        let Some(body) = bytes.get(HEADER..length) else { return Ok(false) };
        match u16::from_ne_bytes([bytes[4], bytes[5]]) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => {
                return Err(if body.len() < 4 {
                    0
                } else {
                    (u32_at(body, 0) as i32).wrapping_neg()
                });
            }
            SOCK_DIAG_BY_FAMILY => sockets.extend(parse_socket(body)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// An `inet_diag_msg`.
fn parse_socket(body: &[u8]) -> Option<Socket> {
    if body.len() < 72 {
        return None;
    }
    let port = u16::from_be_bytes([body[4], body[5]]);
    let ip: IpAddr = match i32::from(body[0]) {
        libc::AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(&body[8..12]).ok()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(&body[8..24]).ok()?).into(),
        _ => return None,
    };
    Some(Socket {
        state: body[1],
        local: SocketAddr::new(ip, port),
        receive_queue: u32_at(body, 56),
        send_queue: u32_at(body, 60),
        inode: u32_at(body, 68),
    })
}

/// The number at an offset that the caller has checked.
fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn a_listener_and_the_end() {
        let mut body = [0; 72];
        (body[0], body[1]) = (libc::AF_INET as u8, LISTEN);
        body[4..6].copy_from_slice(&7007_u16.to_be_bytes());
        body[8..12].copy_from_slice(&[127, 0, 0, 1]);
        body[56..60].copy_from_slice(&5_u32.to_ne_bytes());
        body[60..64].copy_from_slice(&128_u32.to_ne_bytes());
        body[68..72].copy_from_slice(&99_u32.to_ne_bytes());
        let mut bytes = message(SOCK_DIAG_BY_FAMILY, &body);
        let mut sockets = Vec::new();
        assert_eq!(parse(&bytes, &mut sockets), Ok(true));
        let local = ([127, 0, 0, 1], 7007).into();
        assert_eq!(
            sockets,
            [Socket { state: LISTEN, local, receive_queue: 5, send_queue: 128, inode: 99 }]
        );

        bytes.extend(message(NLMSG_DONE, &[0; 4]));
        assert_eq!(parse(&bytes, &mut sockets), Ok(false));
        for cut in 0..bytes.len() {
            let _ = parse(&bytes[..cut], &mut Vec::new()); // no panic
        }
        assert_eq!(parse(&message(NLMSG_ERROR, &(-2_i32).to_ne_bytes()), &mut sockets), Err(2));
        assert_eq!(parse(&[0; 64], &mut sockets), Ok(false)); // a length of 0 does not loop
    }
}

//! Sockets by `sock_diag`: the request for them and what the kernel answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a connection whose task has not closed it: the peer has.
pub const CLOSE_WAIT: u8 = 8;
/// The state of a connection.
pub const ESTABLISHED: u8 = 1;
/// The state of a listener.
pub const LISTEN: u8 = 10;

/// An extension of a request: the figures of a socket's memory, and what it dropped.
pub const SOCKET_MEMORY: u8 = 7;
/// An extension of a request: `tcp_info`.
pub const TCP_INFO: u8 = 2;

const HEADER: usize = 16;
/// The length of an `inet_diag_msg`. Attributes follow it.
const BODY: usize = 72;
/// The length of an `nlattr`, and what attributes are aligned to.
const ATTRIBUTE_HEADER: usize = 4;
/// `SK_MEMINFO_DROPS` times the length of a `u32`.
const DROPS_AT: usize = 8 * 4;
/// Where `tcp_info` (linux/tcp.h) has `tcpi_bytes_acked` and `tcpi_bytes_received`, since Linux 4.1.
const BYTES_ACKED_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;
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
    /// Packets that it dropped. Of a listener: connection requests, nearly all because its accept queue was full. The
    /// counter wraps around. `None`: not asked for ([`SOCKET_MEMORY`]), or an old kernel.
    pub dropped: Option<u32>,
    /// Bytes that it has received, and bytes sent that the peer has acknowledged. `None`: not asked for ([`TCP_INFO`]).
    pub received_and_acked: Option<(u64, u64)>,
}

/// Whether a connection with the local address `local` came to a listener at `listener`.
pub fn is_at(listener: SocketAddr, local: SocketAddr) -> bool {
    let [came_to, listens] = [local.ip(), listener.ip()].map(|ip| ip.to_canonical());
    let is_any = listens.is_unspecified() && (listens.is_ipv6() || came_to.is_ipv4());
    listener.port() == local.port() && (is_any || listens == came_to)
}

/// Whether they are the same, but for the scope of an IPv6 address, which `sock_diag` does not have in it.
pub fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

/// The request for all TCP sockets of a family (`AF_INET` or `AF_INET6`) that are in one of `states`. `extension`: what
/// the kernel adds to each, as in the constants.
pub fn request(family: u8, states: &[u8], extension: Option<u8>) -> [u8; 72] {
    let mut request = [0; 72];
    request[..4].copy_from_slice(&72_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST_AND_DUMP.to_ne_bytes());
    request[HEADER] = family;
    request[HEADER + 1] = 6; // TCP
    request[HEADER + 2] = extension.map_or(0, |number| 1 << (number - 1));
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

/// An `inet_diag_msg`, and the attributes behind it.
fn parse_socket(body: &[u8]) -> Option<Socket> {
    if body.len() < BODY {
        return None;
    }
    let port = u16::from_be_bytes([body[4], body[5]]);
    let ip: IpAddr = match i32::from(body[0]) {
        libc::AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(&body[8..12]).ok()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(&body[8..24]).ok()?).into(),
        _ => return None,
    };
    let memory = attribute(body, SOCKET_MEMORY);
    let info = attribute(body, TCP_INFO);
    Some(Socket {
        state: body[1],
        local: SocketAddr::new(ip, port),
        receive_queue: u32_at(body, 56),
        send_queue: u32_at(body, 60),
        inode: u32_at(body, 68),
        dropped: memory.filter(|it| it.len() >= DROPS_AT + 4).map(|it| u32_at(it, DROPS_AT)),
        received_and_acked: info
            .and_then(|it| Some((u64_at(it, BYTES_RECEIVED_AT)?, u64_at(it, BYTES_ACKED_AT)?))),
    })
}

/// The attribute of that number behind an `inet_diag_msg`.
fn attribute(body: &[u8], number: u8) -> Option<&[u8]> {
    let mut rest = body.get(BODY..)?;
    while rest.len() >= ATTRIBUTE_HEADER {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let value = rest.get(ATTRIBUTE_HEADER..length)?; // none if the length is below its own
        if u16::from_ne_bytes([rest[2], rest[3]]) == u16::from(number) {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(ATTRIBUTE_HEADER)..)?;
    }
    None
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
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

    fn attribute(number: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((ATTRIBUTE_HEADER + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(u16::from(number).to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(ATTRIBUTE_HEADER), 0);
        bytes
    }

    #[test]
    fn a_connection_comes_to_the_listener_of_its_local_address() {
        let at =
            |listener: &str, local: &str| is_at(listener.parse().unwrap(), local.parse().unwrap());
        assert!(at("127.0.0.1:80", "127.0.0.1:80"));
        assert!(!at("127.0.0.1:80", "127.0.0.1:81") && !at("127.0.0.1:80", "127.0.0.2:80"));
        assert!(at("0.0.0.0:80", "127.0.0.1:80") && !at("0.0.0.0:80", "[::1]:80"));
        assert!(at("[::]:80", "[::1]:80") && at("[::]:80", "[::ffff:127.0.0.1]:80"));
        assert!(at("127.0.0.1:80", "[::ffff:127.0.0.1]:80"));
    }

    #[test]
    fn a_request_asks_for_its_extension() {
        let asked = |extension| request(libc::AF_INET as u8, &[LISTEN], extension)[HEADER + 2];
        assert_eq!((asked(None), asked(Some(TCP_INFO)), asked(Some(SOCKET_MEMORY))), (0, 2, 64));
    }

    #[test]
    fn a_listener_and_the_end() {
        let mut body = [0; BODY];
        (body[0], body[1]) = (libc::AF_INET as u8, LISTEN);
        body[4..6].copy_from_slice(&7007_u16.to_be_bytes());
        body[8..12].copy_from_slice(&[127, 0, 0, 1]);
        body[56..60].copy_from_slice(&5_u32.to_ne_bytes());
        body[60..64].copy_from_slice(&128_u32.to_ne_bytes());
        body[68..72].copy_from_slice(&99_u32.to_ne_bytes());
        let memory: Vec<u8> = (1..=9_u32).flat_map(u32::to_ne_bytes).collect();
        let body = [&body[..], &attribute(1, b"x"), &attribute(SOCKET_MEMORY, &memory)].concat();
        let mut bytes = message(SOCK_DIAG_BY_FAMILY, &body);
        let mut sockets = Vec::new();
        assert_eq!(parse(&bytes, &mut sockets), Ok(true));
        let local = ([127, 0, 0, 1], 7007).into();
        let expected = Socket {
            state: LISTEN,
            local,
            receive_queue: 5,
            send_queue: 128,
            inode: 99,
            dropped: Some(9),
            received_and_acked: None,
        };
        assert_eq!(sockets, [expected]);

        bytes.extend(message(NLMSG_DONE, &[0; 4]));
        assert_eq!(parse(&bytes, &mut sockets), Ok(false));
        for cut in 0..bytes.len() {
            let _ = parse(&bytes[..cut], &mut Vec::new()); // no panic
        }
        assert_eq!(parse(&message(NLMSG_ERROR, &(-2_i32).to_ne_bytes()), &mut sockets), Err(2));
        assert_eq!(parse(&[0; 64], &mut sockets), Ok(false)); // a length of 0 does not loop
    }

    #[test]
    fn what_a_connection_has_received_and_sent() {
        let mut body = vec![0; BODY];
        body[0] = libc::AF_INET6 as u8;
        let mut info = vec![0; BYTES_RECEIVED_AT];
        info[BYTES_ACKED_AT..].copy_from_slice(&7_u64.to_ne_bytes());
        let counted = |body: &[u8], info: &[u8]| {
            let body = [body, &attribute(TCP_INFO, info)].concat();
            parse_socket(&body).unwrap().received_and_acked
        };
        assert_eq!(counted(&body, &info), None); // an old kernel's is shorter
        info.extend(5_u64.to_ne_bytes());
        assert_eq!(counted(&body, &info), Some((5, 7)));
        body.extend([0; 8]); // an attribute with a length of 0
        assert_eq!(counted(&body, &info), None);
    }
}

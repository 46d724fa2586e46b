//! Connections, inspected now and then: what is the same at two inspections.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::Looker;
use crate::evidence::CountedConnections;
use crate::proc::socket;
use crate::sockets::FAMILIES;

/// Figures of an inspection of connections, as in [`Look`](crate::evidence::Look).
#[derive(Default, Clone)]
pub(super) struct Connections {
    pub(super) close_wait: Option<u64>,
    pub(super) close_wait_old: Option<u64>,
    pub(super) unread: Option<u64>,
    pub(super) never_served: Option<u64>,
    pub(super) counted: Vec<CountedConnections>,
}

impl Looker {
    /// Keeps the most that the program has counted since the last inspection. What closes just before the next one is
    /// among them.
    pub(super) fn count_connections(&mut self) {
        let counted_max = &mut self.counted_max;
        self.counted_listeners.map(|listener| {
            if let Some(most) = counted_max.get_mut(&listener.addr) {
                *most = listener.gauge.load().max(*most);
            }
        });
    }

    /// Connections that are the same at two inspections.
    pub(super) fn inspect_connections(&mut self) {
        let states = [socket::ESTABLISHED, socket::CLOSE_WAIT];
        let Ok(connections) = self.diag.sockets(&FAMILIES, &states, None) else { return };
        let mut close_wait = HashSet::new();
        let mut unread = HashSet::new();
        let mut accepted = HashMap::new();
        for connection in
            connections.iter().filter(|socket| self.own_inodes.contains(&socket.inode))
        {
            if let Some(listener) = listener_of(connection, &self.listening_at) {
                accepted.insert(connection.inode, listener);
                // Of outgoing connections, a pool finds out that one was closed when it takes it the next time.
                if is_closed_by_peer_alone(connection) {
                    close_wait.insert(connection.inode);
                }
            }
            if connection.state == socket::ESTABLISHED && connection.receive_queue > 0 {
                unread.insert(connection.inode);
            }
        }
        let unread_old: HashSet<u32> = unread.intersection(&self.unread).copied().collect();
        let waiting = unread_old.iter().filter(|inode| accepted.contains_key(*inode)).copied();
        let never_served = self.never_served(&waiting.collect());
        let known_before = |inode: &u32| {
            let is_served = never_served.as_ref().is_some_and(|waiting| !waiting.contains(inode));
            self.accepted.contains(inode) && is_served
        };
        let old: Vec<SocketAddr> = accepted
            .iter()
            .filter(|(inode, _)| known_before(inode))
            .map(|(_, listener)| *listener)
            .collect();
        let counted = self.counted_max.iter().map(|(listener, most)| CountedConnections {
            addr: *listener,
            open: old.iter().filter(|at| socket::is_same(*listener, **at)).count() as u64,
            counted_max: *most,
        });
        let is_comparing = std::mem::replace(&mut self.is_comparing, true);
        let compared = |count: usize| is_comparing.then_some(count as u64);
        self.connections = Connections {
            close_wait: Some(close_wait.len() as u64),
            close_wait_old: compared(close_wait.intersection(&self.close_wait).count()),
            unread: compared(unread_old.len()),
            never_served: never_served.as_ref().and_then(|waiting| compared(waiting.len())),
            counted: counted.collect(),
        };
        self.accepted = accepted.into_keys().collect();
        (self.close_wait, self.unread) = (close_wait, unread);
        let now = self.counted_listeners.map(|listener| (listener.addr, listener.gauge.load()));
        self.counted_max = now.into_iter().collect();
    }

    /// Which of the connections `unread` were never served. The kernel is asked only if there may be some: it needs the
    /// lock of each connection to answer. `None`: it does not answer.
    fn never_served(&mut self, unread: &HashSet<u32>) -> Option<HashSet<u32>> {
        if unread.is_empty() {
            return Some(HashSet::new());
        }
        let extension = Some(socket::TCP_INFO);
        let connections = self.diag.sockets(&FAMILIES, &[socket::ESTABLISHED], extension).ok()?;
        let is_one = |connection: &&socket::Socket| {
            unread.contains(&connection.inode) && is_never_served(connection)
        };
        Some(connections.iter().filter(is_one).map(|connection| connection.inode).collect())
    }

    /// Forgets what was seen of connections: a stalled event loop neither reads nor closes any.
    pub(crate) fn forget_connections(&mut self) {
        self.connections = Connections::default();
        self.is_comparing = false;
        self.close_wait.clear();
        self.unread.clear();
        self.accepted.clear();
        self.counted_max.clear();
    }
}

/// The address of the listener that a connection came to. The kernel prefers one with the very address to one at all
/// addresses.
fn listener_of(connection: &socket::Socket, listening_at: &[SocketAddr]) -> Option<SocketAddr> {
    let is_meant = |addr: &&SocketAddr| {
        addr.is_ipv4() == connection.local.is_ipv4() && socket::is_at(**addr, connection.local)
    };
    let is_exact = |addr: &&SocketAddr| !addr.ip().to_canonical().is_unspecified();
    listening_at.iter().filter(is_meant).max_by_key(is_exact).copied()
}

/// Whether the peer has sent, and this process has neither read a byte of the connection nor sent one.
fn is_never_served(socket: &socket::Socket) -> bool {
    let is_untouched = |(received, acked): (u64, u64)| {
        received == u64::from(socket.receive_queue) && acked == 0 && socket.send_queue == 0
    };
    socket.received_and_acked.is_some_and(is_untouched)
}

/// Whether the peer has closed, and this process neither closes nor sends. A client that has only closed its side for
/// writing, and reads slowly, is served: bytes for it wait in the send queue.
fn is_closed_by_peer_alone(socket: &socket::Socket) -> bool {
    socket.state == socket::CLOSE_WAIT && socket.send_queue == 0
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::super::tests::looker;
    use super::*;
    use crate::evidence::Look;
    use crate::gauge::{CountedListener, Gauge};

    fn socket(state: u8, send_queue: u32) -> socket::Socket {
        socket::Socket {
            state,
            local: ([127, 0, 0, 1], 80).into(),
            receive_queue: 1,
            send_queue,
            inode: 1,
            dropped: None,
            received_and_acked: None,
        }
    }

    #[test]
    fn a_half_closed_connection_that_is_served_is_not_counted() {
        assert!(is_closed_by_peer_alone(&socket(socket::CLOSE_WAIT, 0)));
        assert!(!is_closed_by_peer_alone(&socket(socket::CLOSE_WAIT, 1)));
        assert!(!is_closed_by_peer_alone(&socket(socket::ESTABLISHED, 0)));
    }

    /// Others in this process may be closed by their peers meanwhile, but not as many.
    #[test]
    fn an_outgoing_connection_that_its_peer_closed_is_not_counted() {
        const CONNECTIONS: u64 = 40;
        let mut looker = looker();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let connect = || -> (Vec<TcpStream>, Vec<TcpStream>) {
            let pair = |_| (TcpStream::connect(addr).unwrap(), listener.accept().unwrap().0);
            (0..CONNECTIONS).map(pair).unzip()
        };
        let (outgoing, accepted) = connect();
        let mut close_wait = || {
            looker.connections_inspected = None;
            looker.look(true).close_wait.unwrap()
        };
        for stream in &accepted {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let of_outgoing = close_wait();
        drop((outgoing, accepted));
        assert!(of_outgoing < CONNECTIONS / 2, "{of_outgoing}");
        let (outgoing, _accepted) = connect();
        drop(outgoing);
        let of_accepted = close_wait();
        assert!(of_accepted >= CONNECTIONS, "{of_accepted}");
    }

    #[test]
    fn a_connection_of_which_a_byte_was_read_or_sent_is_served() {
        let counted = |received_and_acked, send_queue| socket::Socket {
            received_and_acked,
            ..socket(socket::ESTABLISHED, send_queue)
        };
        assert!(is_never_served(&counted(Some((1, 0)), 0)));
        assert!(!is_never_served(&counted(Some((2, 0)), 0)), "a byte was read");
        assert!(!is_never_served(&counted(Some((1, 1)), 0)), "a byte was sent");
        assert!(!is_never_served(&counted(Some((1, 0)), 1)), "a byte is on its way");
        assert!(!is_never_served(&counted(None, 0)), "the kernel does not say");
    }

    /// Otherwise what was found would be over before the next inspection.
    #[test]
    fn each_look_has_the_last_inspection_of_connections() {
        let mut looker = looker();
        looker.look(false);
        looker.connections = Connections {
            close_wait: Some(20),
            close_wait_old: Some(19),
            unread: Some(2),
            never_served: Some(1),
            counted: Vec::new(),
        };
        let found = |look: Look| {
            [look.close_wait, look.close_wait_old, look.unread_connections, look.never_served]
        };
        for _ in 0..20 {
            assert_eq!(found(looker.look(false)), [20, 19, 2, 1].map(Some));
        }
        looker.forget_connections();
        assert_eq!(found(looker.look(false)), [None; 4]);
    }

    /// Nothing is known to be over before there is something to compare with.
    #[test]
    fn the_first_inspection_compares_nothing() {
        let mut looker = looker();
        let inspect = |looker: &mut Looker| {
            looker.connections_inspected = None;
            let look = looker.look(false);
            [look.close_wait_old, look.unread_connections, look.never_served].map(|it| it.is_some())
        };
        assert_eq!(inspect(&mut looker), [false; 3]);
        assert_eq!(inspect(&mut looker), [true; 3]);
        looker.forget_connections();
        assert_eq!(inspect(&mut looker), [false; 3]);
    }

    #[test]
    fn a_connection_has_one_listener() {
        let [any, any_v6, one] = ["0.0.0.0:80", "[::]:80", "127.0.0.1:80"]
            .map(|addr| addr.parse::<SocketAddr>().unwrap());
        let of = |local: &str, listening_at: &[SocketAddr]| {
            let mut connection = socket(socket::ESTABLISHED, 0);
            connection.local = local.parse().unwrap();
            listener_of(&connection, listening_at)
        };
        assert_eq!(of("127.0.0.1:80", &[any, any_v6]), Some(any));
        assert_eq!(of("127.0.0.1:80", &[any_v6, one, any]), Some(one));
        assert_eq!(of("127.0.0.2:80", &[any_v6, one, any]), Some(any));
        assert_eq!(of("[::ffff:127.0.0.1]:80", &[any, one, any_v6]), Some(any_v6));
        assert_eq!(of("127.0.0.1:80", &[any_v6]), None, "its connections have IPv6 addresses");
        assert_eq!(of("127.0.0.1:81", &[any, any_v6, one]), None);
    }

    /// What closes shortly before an inspection was counted at a look before.
    #[test]
    fn the_most_that_the_program_counted_since_the_last_inspection() {
        let mut looker = looker();
        let inspect = |looker: &mut Looker| {
            looker.connections_inspected = None;
            let counted = looker.look(false).counted;
            counted.first().map(|listener| listener.counted_max)
        };
        assert_eq!(inspect(&mut looker), None);
        let gauge = Gauge::new("connections", None);
        let listener = CountedListener { addr: ([127, 0, 0, 1], 80).into(), gauge: gauge.clone() };
        assert!(looker.counted_listeners.add(listener, 1));
        gauge.set(5);
        assert_eq!(inspect(&mut looker), None, "it did not count all the time");
        gauge.set(7);
        looker.look(false);
        gauge.set(1);
        assert_eq!(inspect(&mut looker), Some(7));
        assert_eq!(inspect(&mut looker), Some(1));
        looker.forget_connections();
        assert_eq!(inspect(&mut looker), None);
    }
}

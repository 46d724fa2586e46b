//! Listeners of the process, and their accept queues.

use super::Looker;
use crate::evidence::{Listener, Look};
use crate::proc::socket;
use crate::sockets::{DATAGRAMS_MAX, FAMILIES};

pub(super) const LISTENERS_MAX: usize = 64;

impl Looker {
    /// `is_new`: descriptors were inspected, so there may be listeners of a family that had none before.
    pub(super) fn look_at_listeners(&mut self, look: &mut Look, is_new: bool) {
        let families = if is_new { &FAMILIES[..] } else { &self.families };
        let extension = Some(socket::SOCKET_MEMORY);
        let sockets = self.diag.sockets(families, &[socket::LISTEN], extension).unwrap_or_default();
        let own = |socket: &&socket::Socket| self.own_inodes.contains(&socket.inode);
        let listening_at = &mut self.listening_at;
        listening_at.clear();
        for socket in sockets.iter().filter(own) {
            // Each worker may have a listener at the same address.
            if listening_at.len() < LISTENERS_MAX && !listening_at.contains(&socket.local) {
                listening_at.push(socket.local);
            }
        }
        look.listeners = sockets
            .iter()
            .filter(own)
            .take(LISTENERS_MAX)
            .map(|socket| Listener {
                addr: socket.local,
                inode: socket.inode,
                queue: socket.receive_queue,
                backlog: socket.send_queue,
                dropped: socket.dropped,
            })
            .collect();
        if sockets.iter().filter(own).count() > LISTENERS_MAX {
            self.note_left_out("listeners", LISTENERS_MAX);
        }
        if self.diag.has_left_out {
            self.note_left_out("sockets of the network namespace, in datagrams", DATAGRAMS_MAX);
        }
        if is_new {
            let has = |family: &i32| {
                look.listeners.iter().any(|it| it.addr.is_ipv6() == (*family == libc::AF_INET6))
            };
            self.families = FAMILIES.into_iter().filter(has).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::looker;
    use super::*;

    /// A server with two listeners for each of 40 cores has 80.
    #[test]
    fn more_listeners_than_are_looked_at_are_told_once() {
        let mut looker = looker();
        looker.unseen.clear();
        let listen = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _listeners: Vec<_> = (0..=LISTENERS_MAX).map(listen).collect();
        assert_eq!(looker.look(false).listeners.len(), LISTENERS_MAX);
        looker.look(false);
        assert_eq!(looker.unseen, ["listeners: more than 64"]);
    }
}

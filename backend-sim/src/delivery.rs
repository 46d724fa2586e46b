//! What is under way on a connection: bytes, the end, resets; what is lost and sent again.

use std::ops::Deref;
use std::time::Duration;

use crate::connection::{Incoming, Side, Socket};
use crate::core::{Core, Event, Time, after};
use crate::errno::{ECONNRESET, EPIPE, ETIMEDOUT};
use crate::link::Arrival;
use crate::slab::Key;
use crate::trace::What;

/// How long until what was lost is sent again: at first (`TCP_RTO_MIN`), and at most (`TCP_RTO_MAX`).
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(120);

/// How often it is sent again before the connection is given up: together with the times above, after
/// 924.6 s (tcp(7), `tcp_retries2`).
const RETRIES_MAX: u8 = 15;

/// How long whoever ends a connection first keeps its port from being used again (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT: Duration = Duration::from_secs(60);

impl Core {
    /// So many bytes leave for `socket`.
    pub(crate) fn transmit(&mut self, socket: Socket, bytes: u32) {
        let Socket { connection: key, side } = socket;
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, sender) = connection.ends(side);
        let (from, to) = (sender.host, end.host);
        if from == to {
            self.arrive(key, side, bytes);
            return;
        }
        let at = self.links.arrival_of(from, to, bytes as usize, self.now, &mut self.dice);
        end.incoming.arrives_by = end.incoming.arrives_by.max(at);
        let at = end.incoming.arrives_by;
        self.queue.push(at, Event::Arrive { connection: key, side, bytes });
    }

    /// Ends the direction that `socket` writes: behind its bytes.
    pub(crate) fn end_direction(&mut self, socket: Socket) {
        if let Some(connection) = self.connections.get_mut(socket.connection) {
            connection.first_to_end.get_or_insert(socket.side);
        }
        self.transmit(Socket { side: !socket.side, ..socket }, 0);
    }

    /// Zero bytes are the end.
    pub(crate) fn arrive(&mut self, key: Key, side: Side, bytes: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let number = connection.number;
        let (end, sender) = connection.ends(side);
        let (from, to) = (sender.host, end.host);
        if end.incoming.is_stuck {
            return self.get_stuck(key, side, bytes, self.now);
        }
        let again_at = match self.arrival(from, to) {
            Arrival::Now => return self.deliver(key, side, bytes, bytes == 0),
            Arrival::Held(until) => until,
            Arrival::Lost => {
                self.record(to, What::Lost, number, bytes);
                after(self.now, RETRY_MIN)
            }
        };
        self.get_stuck(key, side, bytes, again_at);
    }

    /// What has not come to this end is sent again at a time; what follows waits behind it.
    fn get_stuck(&mut self, key: Key, side: Side, bytes: u32, again_at: Time) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let incoming = &mut connection.ends(side).0.incoming;
        incoming.stuck = incoming.stuck.saturating_add(bytes);
        incoming.is_end_stuck |= bytes == 0;
        if !std::mem::replace(&mut incoming.is_stuck, true) {
            incoming.tries = 0;
            self.queue.push(again_at, Event::Retransmit { connection: key, side });
        }
    }

    pub(crate) fn retransmit(&mut self, key: Key, side: Side) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let number = connection.number;
        let (end, sender) = connection.ends(side);
        let (from, to) = (sender.host, end.host);
        let Incoming { stuck: bytes, is_end_stuck: has_end, tries, .. } = end.incoming;
        if sender.is_reset || !self.hosts.get(from).is_up {
            return; // nobody is left who would send it
        }
        if tries == RETRIES_MAX {
            return self.fail(Socket { connection: key, side: !side }, ETIMEDOUT);
        }
        self.record(from, What::Retransmitted, number, bytes);
        let arrival = self.arrival(from, to);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let incoming = &mut connection.ends(side).0.incoming;
        let again_at = match arrival {
            Arrival::Now => {
                incoming.is_stuck = false;
                incoming.is_end_stuck = false;
                incoming.stuck = 0;
                return self.deliver(key, side, bytes, has_end);
            }
            Arrival::Held(until) => until,
            Arrival::Lost => {
                incoming.tries += 1;
                after(self.now, retry_after(incoming.tries))
            }
        };
        self.queue.push(again_at, Event::Retransmit { connection: key, side });
    }

    fn deliver(&mut self, key: Key, side: Side, bytes: u32, has_end: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let number = connection.number;
        let (end, sender) = connection.ends(side);
        let (host, sender_host) = (end.host, sender.host);
        if !end.is_open || end.is_reset {
            // An end that was closed in order knows of the other's end, and takes no bytes.
            if bytes > 0 || end.is_reset {
                self.send_reset(Socket { connection: key, side: !side }, Some(bytes));
            }
            return;
        }
        end.incoming.arrived += bytes;
        end.incoming.has_ended |= has_end;
        let unseen = end.incoming.unseen_read.min(end.incoming.arrived);
        if unseen > 0 {
            end.incoming.unseen_read = 0;
        }
        self.woken.extend(end.reader.take());
        if bytes > 0 {
            self.record(host, What::Arrived, number, bytes);
        }
        if has_end {
            self.record(host, What::EndArrived, number, 0);
        }
        if unseen > 0 {
            self.read_unseen(Socket { connection: key, side }, unseen, host == sender_host);
        }
    }

    /// A read that nobody waits for any more takes bytes.
    fn read_unseen(&mut self, socket: Socket, bytes: u32, at_once: bool) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let number = connection.number;
        let (end, _) = connection.ends(socket.side);
        let host = end.host;
        end.incoming.bytes.drain(..bytes as usize);
        end.incoming.arrived -= bytes;
        self.record(host, What::HappenedUnseen, number, bytes);
        self.has_read(socket, at_once, bytes);
    }

    /// A read of so many bytes was dropped while it was pending: it may go on.
    pub(crate) fn drop_read(&mut self, socket: Socket, capacity: usize) {
        if !self.config.dropped_may_happen || self.dice.one_in(2) {
            return;
        }
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let (end, peer) = connection.ends(socket.side);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        let at_once = end.host == peer.host;
        match end.incoming.arrived.min(capacity) {
            0 => end.incoming.unseen_read = capacity,
            arrived => self.read_unseen(socket, arrived, at_once),
        }
    }

    /// Whether a write that was dropped while it was pending happens, and how much of it.
    pub(crate) fn drop_write(&mut self, socket: Socket, bytes: usize) -> Option<usize> {
        if bytes == 0 || !self.config.dropped_may_happen || self.dice.one_in(2) {
            return None;
        }
        let end = &self.connections.get(socket.connection)?.ends[socket.side as usize];
        let takes = !end.is_write_shut && !end.is_reset && end.error == 0;
        takes.then(|| self.dice.part_of(bytes.min(UNSEEN_WRITE_MAX)))
    }

    /// It does, though there is no room yet.
    pub(crate) fn write_unseen<P: Deref<Target = [u8]>>(
        &mut self,
        socket: Socket,
        pieces: &[P],
        n: usize,
    ) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let number = connection.number;
        let (end, peer) = connection.ends(socket.side);
        let host = end.host;
        peer.expect(pieces, n, &mut self.spares);
        self.record(host, What::HappenedUnseen, number, n as u32);
        self.transmit(Socket { side: !socket.side, ..socket }, n as u32);
    }

    /// The writer of this side learns that there is room.
    pub(crate) fn release(&mut self, key: Key, side: Side) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, peer) = connection.ends(side);
        let (to, from) = (end.host, peer.host);
        let again_at = match self.arrival(from, to) {
            Arrival::Now => {
                let Some(connection) = self.connections.get_mut(key) else { return };
                let (end, peer) = connection.ends(side);
                peer.incoming.unreleased -= peer.incoming.releasing;
                peer.incoming.releasing = 0;
                peer.incoming.release_tries = 0;
                self.woken.extend(end.writer.take());
                return;
            }
            Arrival::Held(until) => until,
            Arrival::Lost => {
                // The writer asks again and again (RFC 9293 3.8.6.1), and gives up like with data.
                let Some(connection) = self.connections.get_mut(key) else { return };
                let (_, peer) = connection.ends(side);
                peer.incoming.release_tries += 1;
                let tries = peer.incoming.release_tries;
                if tries > RETRIES_MAX {
                    return self.fail(Socket { connection: key, side }, ETIMEDOUT);
                }
                after(self.now, retry_after(tries))
            }
        };
        self.queue.push(again_at, Event::Release { connection: key, side });
    }

    /// Tells `socket` that there is no other end, perhaps because it sent so many bytes there; behind what
    /// was sent to it before.
    pub(crate) fn send_reset(&mut self, socket: Socket, answers: Option<u32>) {
        let Socket { connection: key, side } = socket;
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, peer) = connection.ends(side);
        let (from, to) = (peer.host, end.host);
        if from == to {
            return self.reset_arrives(key, side, answers);
        }
        let at = self.links.arrival_of_news(from, to, self.now, &mut self.dice);
        end.incoming.arrives_by = end.incoming.arrives_by.max(at);
        let at = end.incoming.arrives_by;
        self.queue.push(at, reset(key, side, answers));
    }

    pub(crate) fn reset_arrives(&mut self, key: Key, side: Side, answers: Option<u32>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let number = connection.number;
        let (end, peer) = connection.ends(side);
        if !end.is_open || end.is_reset {
            return;
        }
        let (from, to) = (peer.host, end.host);
        // As `tcp_reset` of Linux has it.
        let code = if end.incoming.has_ended { EPIPE } else { ECONNRESET };
        match (self.arrival(from, to), answers) {
            (Arrival::Now, _) => {}
            (Arrival::Held(until), _) => return self.queue.push(until, reset(key, side, answers)),
            // It is not sent again, but what it answers is: nobody has acknowledged that.
            (Arrival::Lost, Some(bytes)) => {
                let again_at = after(self.now, RETRY_MIN);
                return self.get_stuck(key, !side, bytes, again_at);
            }
            (Arrival::Lost, None) => return,
        }
        self.record(to, What::ResetArrived, number, 0);
        self.fail(Socket { connection: key, side }, code);
    }

    /// The connection is over for `socket`, which learns why; what has arrived can still be read.
    pub(crate) fn fail(&mut self, socket: Socket, code: i32) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let (end, _) = connection.ends(socket.side);
        end.is_reset = true;
        end.error = code;
        end.incoming.abandon();
        self.woken.extend(end.reader.take());
        self.woken.extend(end.writer.take());
    }

    /// Forgets a connection that neither end has any more.
    pub(crate) fn free_if_closed(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.ends.iter().any(|end| end.is_open) {
            return;
        }
        let [client, server] = &connection.ends;
        let waits = connection.first_to_end == Some(Side::Client)
            && !client.is_reset
            && client.host != server.host;
        if let Some(destination) = connection.lease {
            let (host, port) = (client.host, client.addr.port());
            if waits {
                let at = after(self.now, TIME_WAIT);
                self.queue.push(at, Event::PortFree { host, port, destination });
            } else {
                self.hosts.get_mut(host).ports.free(destination, port);
            }
        }
        self.connections.remove(key);
    }
}

fn reset(connection: Key, side: Side, answers: Option<u32>) -> Event {
    let (bytes, is_answer) = (answers.unwrap_or_default(), answers.is_some());
    Event::Reset { connection, side, bytes, is_answer }
}

/// The most of a dropped write that happens, in bytes: it is not limited by the room there is.
const UNSEEN_WRITE_MAX: usize = 64 * 1024;

/// How long until the next of so many tries.
fn retry_after(tries: u8) -> Duration {
    RETRY_MAX.min(RETRY_MIN * (1 << tries.min(10)))
}

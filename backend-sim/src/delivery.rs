//! Segments in flight on a connection: bytes, the end, resets; loss and retransmission.

use std::ops::Deref;
use std::time::Duration;

use crate::connection::{Incoming, Side, Socket};
use crate::core::{Core, Event, Time, after};
use crate::errno::{ECONNRESET, EPIPE, ETIMEDOUT};
use crate::link::Arrival;
use crate::slab::Key;
use crate::trace::TraceKind;

/// How long until a lost segment is sent again: at first (`TCP_RTO_MIN`), and at most (`TCP_RTO_MAX`).
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(120);

/// How often a segment is sent again before the connection fails. With the times above that is after 924.6 s
/// (tcp(7), `tcp_retries2`).
const RETRIES_MAX: u8 = 15;

/// How long the end that ended a connection first keeps its port from being used again (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT: Duration = Duration::from_secs(60);

impl Core {
    /// Sends `bytes` bytes towards `socket`.
    pub(crate) fn transmit(&mut self, socket: Socket, bytes: u32) {
        let Socket { connection: key, side } = socket;
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, sender) = connection.ends(side);
        let (from, to) = (sender.host, end.host);
        if from == to {
            self.arrive(key, side, bytes);
            return;
        }
        let at = self.links.arrival_of_data(from, to, bytes as usize, self.now, &mut self.rng);
        end.incoming.arrives_by = end.incoming.arrives_by.max(at);
        let at = end.incoming.arrives_by;
        self.queue.push(at, Event::Arrive { connection: key, side, bytes });
    }

    /// Ends the direction that `socket` writes, behind its bytes.
    pub(crate) fn end_direction(&mut self, socket: Socket) {
        if let Some(connection) = self.connections.get_mut(socket.connection) {
            connection.first_to_end.get_or_insert(socket.side);
        }
        self.transmit(Socket { side: !socket.side, ..socket }, 0);
    }

    /// A segment arrives; zero bytes are the end of the stream.
    pub(crate) fn arrive(&mut self, key: Key, side: Side, bytes: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let number = connection.number;
        let (end, sender) = connection.ends(side);
        let (from, to) = (sender.host, end.host);
        if end.incoming.is_retransmitting {
            return self.await_retransmission(key, side, bytes, self.now);
        }
        let again_at = match self.arrival(from, to) {
            Arrival::Now => return self.deliver(key, side, bytes, bytes == 0),
            Arrival::Held(until) => until,
            Arrival::Lost => {
                self.record(to, TraceKind::Lost, number, bytes);
                after(self.now, RETRY_MIN)
            }
        };
        self.await_retransmission(key, side, bytes, again_at);
    }

    /// Bytes towards this end were lost. They are sent again at `again_at`; later bytes wait behind them.
    fn await_retransmission(&mut self, key: Key, side: Side, bytes: u32, again_at: Time) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let incoming = &mut connection.ends(side).0.incoming;
        incoming.lost_bytes = incoming.lost_bytes.saturating_add(bytes);
        incoming.is_end_lost |= bytes == 0;
        if !std::mem::replace(&mut incoming.is_retransmitting, true) {
            incoming.tries = 0;
            self.queue.push(again_at, Event::Retransmit { connection: key, side });
        }
    }

    pub(crate) fn retransmit(&mut self, key: Key, side: Side) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let number = connection.number;
        let (end, sender) = connection.ends(side);
        let (from, to) = (sender.host, end.host);
        let Incoming { lost_bytes: bytes, is_end_lost: has_end, tries, .. } = end.incoming;
        if sender.is_reset || !self.hosts.get(from).is_up {
            return; // nobody is left to send it
        }
        if tries == RETRIES_MAX {
            return self.fail(Socket { connection: key, side: !side }, ETIMEDOUT);
        }
        self.record(from, TraceKind::Retransmitted, number, bytes);
        let arrival = self.arrival(from, to);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let incoming = &mut connection.ends(side).0.incoming;
        let again_at = match arrival {
            Arrival::Now => {
                incoming.is_retransmitting = false;
                incoming.is_end_lost = false;
                incoming.lost_bytes = 0;
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
            // An end that was closed in order accepts the other's end of stream, but no bytes.
            if bytes > 0 || end.is_reset {
                self.send_reset(Socket { connection: key, side: !side }, Some(bytes));
            }
            return;
        }
        end.incoming.arrived += bytes;
        end.incoming.has_ended |= has_end;
        let unseen = end.incoming.dropped_read_bytes.min(end.incoming.arrived);
        if unseen > 0 {
            end.incoming.dropped_read_bytes = 0;
        }
        self.woken.extend(end.reader.take());
        if bytes > 0 {
            self.record(host, TraceKind::Arrived, number, bytes);
        }
        if has_end {
            self.record(host, TraceKind::EndArrived, number, 0);
        }
        if unseen > 0 {
            self.complete_dropped_read(
                Socket { connection: key, side },
                unseen,
                host == sender_host,
            );
        }
    }

    /// A dropped read takes bytes.
    fn complete_dropped_read(&mut self, socket: Socket, bytes: u32, at_once: bool) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let number = connection.number;
        let (end, _) = connection.ends(socket.side);
        let host = end.host;
        end.incoming.bytes.drain(..bytes as usize);
        end.incoming.arrived -= bytes;
        self.record(host, TraceKind::DroppedOperation, number, bytes);
        self.has_read(socket, at_once, bytes);
    }

    /// A read of up to `capacity` bytes was dropped while it was pending. It may complete all the same.
    pub(crate) fn drop_read(&mut self, socket: Socket, capacity: usize) {
        if !self.config.dropped_operations_may_complete || self.rng.one_in(2) {
            return;
        }
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let (end, peer) = connection.ends(socket.side);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        let at_once = end.host == peer.host;
        match end.incoming.arrived.min(capacity) {
            0 => end.incoming.dropped_read_bytes = capacity,
            arrived => self.complete_dropped_read(socket, arrived, at_once),
        }
    }

    /// A write was dropped while it was pending. Returns how many bytes of it are sent all the same, if any.
    pub(crate) fn drop_write(&mut self, socket: Socket, bytes: usize) -> Option<usize> {
        if bytes == 0 || !self.config.dropped_operations_may_complete || self.rng.one_in(2) {
            return None;
        }
        let end = &self.connections.get(socket.connection)?.ends[socket.side as usize];
        let takes = !end.is_write_shut && !end.is_reset && end.error == 0;
        takes.then(|| self.rng.part_of(bytes.min(DROPPED_WRITE_BYTES_MAX)))
    }

    /// Sends the bytes of a dropped write, although there is no room yet.
    pub(crate) fn complete_dropped_write<P: Deref<Target = [u8]>>(
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
        self.record(host, TraceKind::DroppedOperation, number, n as u32);
        self.transmit(Socket { side: !socket.side, ..socket }, n as u32);
    }

    /// The writer of `side` learns that there is room.
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
                // The writer probes again and again (RFC 9293 3.8.6.1), and gives up as it does with data.
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

    /// Sends a reset to `socket`, behind everything sent to it before. `answers` is how many bytes it answers, if it
    /// is an answer.
    pub(crate) fn send_reset(&mut self, socket: Socket, answers: Option<u32>) {
        let Socket { connection: key, side } = socket;
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, peer) = connection.ends(side);
        let (from, to) = (peer.host, end.host);
        if from == to {
            return self.reset_arrives(key, side, answers);
        }
        let at = self.links.arrival_of_control(from, to, self.now, &mut self.rng);
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
        // As `tcp_reset` of Linux does.
        let code = if end.incoming.has_ended { EPIPE } else { ECONNRESET };
        match (self.arrival(from, to), answers) {
            (Arrival::Now, _) => {}
            (Arrival::Held(until), _) => return self.queue.push(until, reset(key, side, answers)),
            // A reset is not sent again. The segment that it answers is, because it was not acknowledged.
            (Arrival::Lost, Some(bytes)) => {
                let again_at = after(self.now, RETRY_MIN);
                return self.await_retransmission(key, !side, bytes, again_at);
            }
            (Arrival::Lost, None) => return,
        }
        self.record(to, TraceKind::ResetArrived, number, 0);
        self.fail(Socket { connection: key, side }, code);
    }

    /// The connection fails for `socket`. Bytes that have arrived can still be read.
    pub(crate) fn fail(&mut self, socket: Socket, code: i32) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let (end, _) = connection.ends(socket.side);
        end.is_reset = true;
        end.error = code;
        end.incoming.abandon();
        self.woken.extend(end.reader.take());
        self.woken.extend(end.writer.take());
    }

    /// Removes a connection if both ends are closed.
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

/// The most bytes of a dropped write that are sent. The room in the buffers does not limit it.
const DROPPED_WRITE_BYTES_MAX: usize = 64 * 1024;

/// How long until the next try, after `tries` tries.
fn retry_after(tries: u8) -> Duration {
    RETRY_MAX.min(RETRY_MIN * (1 << tries.min(10)))
}

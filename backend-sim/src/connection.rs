//! [`Connection`]: both ends of a TCP connection, and its operations.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::{Deref, Not};
use std::task::{Poll, Waker};

use owned_io::{IoBufMut, IoBufMutExt};

use crate::core::{Core, Event, Time, keep_memory};
use crate::errno::{ECONNRESET, ENOTCONN, EPIPE, error};
use crate::host::HostId;
use crate::slab::Key;
use crate::trace::TraceKind;

/// The default size of the send buffer and of the receive buffer of each end, in bytes: about what Linux starts
/// with.
pub(crate) const BUFFER_BYTES: u32 = 32 * 1024;

/// The most that a read returns on a host whose reads are slow, in bytes.
const SLOW_READ_BYTES: usize = 16;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Not for Side {
    type Output = Self;

    fn not(self) -> Self {
        if self == Self::Client { Self::Server } else { Self::Client }
    }
}

/// Identifies an end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) connection: Key,
    pub(crate) side: Side,
}

/// There may be a million of these, so an idle connection holds no bytes and no memory for bytes.
pub(crate) struct Connection {
    /// For the trace.
    pub(crate) number: u32,
    pub(crate) ends: [End; 2],
    /// The accept queue in which the server's end waits, or has a reserved slot.
    pub(crate) queue: Option<Key>,
    /// The number of the destination under which the client's host holds the port.
    pub(crate) lease: Option<u32>,
    /// Which end ended first: it keeps its port for a while.
    pub(crate) first_to_end: Option<Side>,
    /// How often the server has sent the answer to the SYN again.
    pub(crate) establish_tries: u8,
}

/// One end, and the direction of bytes towards it.
pub(crate) struct End {
    pub(crate) addr: SocketAddr,
    pub(crate) incoming: Incoming,
    pub(crate) reader: Option<Waker>,
    /// Waits for room in the other end's `incoming`.
    pub(crate) writer: Option<Waker>,
    /// The error that the next operation returns, once; 0 is none.
    pub(crate) error: i32,
    pub(crate) host: HostId,
    /// A stream or an accept queue owns it.
    pub(crate) is_open: bool,
    pub(crate) has_descriptor: bool,
    /// Nothing more arrives from the other end.
    pub(crate) is_reset: bool,
    /// This end caused the reset: a read does not even return the end of the stream.
    pub(crate) is_aborted: bool,
    pub(crate) is_read_shut: bool,
    pub(crate) is_write_shut: bool,
}

/// The bytes towards an end: first those that have arrived, then those in flight.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) bytes: VecDeque<u8>,
    /// How many of `bytes` have arrived.
    pub(crate) arrived: u32,
    /// The other end's send buffer and this end's receive buffer together.
    pub(crate) capacity: u32,
    /// Bytes that were read, which the writer does not know yet.
    pub(crate) unreleased: u32,
    /// The part of `unreleased` in the segment that tells the writer.
    pub(crate) releasing: u32,
    /// Bytes that were lost, or are behind lost ones, and will be sent again.
    pub(crate) lost_bytes: u32,
    /// Bytes sent to an end that keeps nothing any more. They fill the buffers until the sender learns that.
    pub(crate) abandoned: u32,
    /// A dropped read that is still in progress takes up to this many bytes.
    pub(crate) dropped_read_bytes: u32,
    pub(crate) read_at: Time,
    /// Nothing that was sent so far arrives later than this.
    pub(crate) arrives_by: Time,
    pub(crate) tries: u8,
    pub(crate) release_tries: u8,
    pub(crate) is_retransmitting: bool,
    pub(crate) is_end_lost: bool,
    pub(crate) has_ended: bool,
}

impl Connection {
    /// The end of `side`, then the other end.
    pub(crate) const fn ends(&mut self, side: Side) -> (&mut End, &mut End) {
        let [client, server] = &mut self.ends;
        if matches!(side, Side::Client) { (client, server) } else { (server, client) }
    }
}

impl End {
    pub(crate) fn new(host: HostId, addr: SocketAddr, capacity: u32) -> Self {
        Self {
            addr,
            incoming: Incoming { capacity, ..Incoming::default() },
            reader: None,
            writer: None,
            error: 0,
            host,
            is_open: true,
            has_descriptor: false,
            is_reset: false,
            is_aborted: false,
            is_read_shut: false,
            is_write_shut: false,
        }
    }

    /// Puts the first `n` bytes of `pieces` in flight towards this end.
    pub(crate) fn expect<P: Deref<Target = [u8]>>(
        &mut self,
        pieces: &[P],
        n: usize,
        spares: &mut Vec<VecDeque<u8>>,
    ) {
        let incoming = &mut self.incoming;
        if !self.is_open || self.is_reset {
            incoming.abandoned = incoming.abandoned.saturating_add(n as u32);
            return;
        }
        if incoming.bytes.capacity() == 0 {
            incoming.bytes = spares.pop().unwrap_or_default();
        }
        append(&mut incoming.bytes, pieces, n);
    }
}

impl Incoming {
    fn room(&self) -> usize {
        let taken = self.bytes.len() + self.unreleased as usize + self.abandoned as usize;
        (self.capacity as usize).saturating_sub(taken)
    }

    /// Discards the bytes in flight.
    pub(crate) fn abandon(&mut self) {
        let arrived = self.arrived as usize;
        let under_way = self.bytes.len() - arrived;
        self.abandoned = self.abandoned.saturating_add(under_way as u32);
        self.bytes.truncate(arrived);
    }
}

impl Core {
    /// Ready when a read would not wait.
    pub(crate) fn poll_readable(&mut self, socket: Socket, waker: &Waker) -> Poll<()> {
        let Some(connection) = self.connections.get_mut(socket.connection) else {
            return Poll::Ready(());
        };
        let (end, _) = connection.ends(socket.side);
        let is_over = end.incoming.has_ended || end.is_reset || end.is_read_shut;
        if end.incoming.arrived > 0 || end.error != 0 || is_over {
            return Poll::Ready(());
        }
        wait(&mut end.reader, waker, &mut self.dropped);
        Poll::Pending
    }

    /// Reads bytes that have arrived; the end of the stream if there are none.
    pub(crate) fn read(&mut self, socket: Socket, buf: &mut impl IoBufMut) -> io::Result<usize> {
        let Some(connection) = self.connections.get_mut(socket.connection) else {
            return Err(error(ECONNRESET));
        };
        let number = connection.number;
        let (end, peer) = connection.ends(socket.side);
        let (host, peer_host) = (end.host, peer.host);
        let incoming = &mut end.incoming;
        if incoming.arrived == 0 {
            // As on Linux, the error comes after the bytes, and does not come after the end.
            let code = if incoming.has_ended { 0 } else { std::mem::take(&mut end.error) };
            let code = if code == 0 && end.is_aborted { ENOTCONN } else { code };
            if code != 0 {
                self.record(host, TraceKind::Failed, number, code as u32);
                return Err(error(code));
            }
            buf.buf_clear();
            self.record(host, TraceKind::ReadEnd, number, 0);
            return Ok(0);
        }
        let (next, _) = incoming.bytes.as_slices();
        let most = next.len().min(incoming.arrived as usize).min(buf.buf_capacity());
        let is_slow = self.hosts.get(host).slow_until > self.now;
        let most = if is_slow { most.min(SLOW_READ_BYTES) } else { most };
        let n = buf.buf_fill(&next[..self.rng.part_of(most)]);
        incoming.bytes.drain(..n);
        incoming.arrived -= n as u32;
        if incoming.bytes.is_empty() {
            keep_memory(&mut incoming.bytes, &mut self.spares);
        }
        self.record(host, TraceKind::Read, number, n as u32);
        self.has_read(socket, host == peer_host, n as u32);
        Ok(n)
    }

    pub(crate) fn is_slow(&self, socket: Socket) -> bool {
        self.connections.get(socket.connection).is_some_and(|connection| {
            let host = connection.ends[socket.side as usize].host;
            self.hosts.get(host).slow_until > self.now
        })
    }

    /// Writes a part of `pieces`, at least one byte, when there is room.
    pub(crate) fn write<P: Deref<Target = [u8]>>(
        &mut self,
        socket: Socket,
        pieces: &[P],
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        let Some(connection) = self.connections.get_mut(socket.connection) else {
            return Poll::Ready(Err(error(ECONNRESET)));
        };
        let number = connection.number;
        let (end, peer) = connection.ends(socket.side);
        let (host, peer_host) = (end.host, peer.host);
        let code = match std::mem::take(&mut end.error) {
            0 if end.is_write_shut || end.is_reset => EPIPE,
            code => code,
        };
        if code != 0 {
            self.record(host, TraceKind::Failed, number, code as u32);
            return Poll::Ready(Err(error(code)));
        }
        let incoming = &mut peer.incoming;
        if incoming.releasing == 0
            && self.links.has_heard_of(incoming.read_at, peer_host, host, self.now)
        {
            incoming.unreleased = 0;
        }
        let room = incoming.room();
        if room == 0 {
            wait(&mut end.writer, waker, &mut self.dropped);
            if incoming.unreleased > 0 {
                self.plan_release(socket);
            }
            return Poll::Pending;
        }
        let all = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
        let n = self.rng.part_of(all.min(room));
        peer.expect(pieces, n, &mut self.spares);
        self.record(host, TraceKind::Wrote, number, n as u32);
        self.transmit(Socket { side: !socket.side, ..socket }, n as u32);
        Poll::Ready(Ok(n))
    }

    /// Ends the write side, the read side, or both.
    pub(crate) fn shut_down(&mut self, socket: Socket, how: Shutdown) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let number = connection.number;
        let (end, _) = connection.ends(socket.side);
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            end.is_read_shut = true;
            self.woken.extend(end.reader.take());
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) && !end.is_write_shut {
            end.is_write_shut = true;
            self.woken.extend(end.writer.take());
            let (host, is_reset) = (end.host, end.is_reset);
            self.record(host, TraceKind::ShutDown, number, 0);
            if !is_reset {
                self.end_direction(socket);
            }
        }
    }

    /// Resets the connection: this end learns it at once, the other by a segment. Bytes of both directions are
    /// discarded.
    pub(crate) fn abort(&mut self, socket: Socket) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let number = connection.number;
        let (end, _) = connection.ends(socket.side);
        if end.is_reset {
            return;
        }
        let host = end.host;
        end.is_write_shut = true;
        end.is_aborted = true;
        end.incoming.abandon();
        end.incoming.bytes.clear();
        end.incoming.arrived = 0;
        keep_memory(&mut end.incoming.bytes, &mut self.spares);
        self.record(host, TraceKind::Aborted, number, 0);
        self.fail(socket, ECONNRESET);
        self.send_reset(Socket { side: !socket.side, ..socket }, None);
    }

    /// As on Linux: there is no peer once the connection was reset, or ended by both sides.
    pub(crate) fn check_connected(&self, socket: Socket) -> io::Result<()> {
        let connection = self.connections.get(socket.connection);
        let end = connection.map(|connection| &connection.ends[socket.side as usize]);
        match end {
            None => Err(error(ENOTCONN)),
            Some(end) if end.is_reset || end.incoming.has_ended && end.is_write_shut => {
                Err(error(ENOTCONN))
            }
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn addr(&self, socket: Socket) -> io::Result<SocketAddr> {
        let connection = self.connections.get(socket.connection);
        let connection = connection.ok_or_else(|| error(ENOTCONN))?;
        Ok(connection.ends[socket.side as usize].addr)
    }

    /// Whether [`close`](Self::close) would not reset the connection now.
    pub(crate) fn drops_cleanly(&self, socket: Socket) -> bool {
        let connection = self.connections.get(socket.connection);
        connection
            .is_none_or(|connection| connection.ends[socket.side as usize].incoming.arrived == 0)
    }

    /// The stream is dropped. Its bytes in flight still arrive. If bytes were unread, the connection is reset (RFC
    /// 2525 2.17).
    pub(crate) fn close(&mut self, socket: Socket) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let number = connection.number;
        let (end, _) = connection.ends(socket.side);
        if !end.is_open {
            return;
        }
        end.is_open = false;
        let has_unread = end.incoming.arrived > 0;
        let is_silent = end.is_reset || end.is_write_shut && !has_unread;
        let was_write_shut = std::mem::replace(&mut end.is_write_shut, true);
        let (host, has_descriptor) = (end.host, std::mem::take(&mut end.has_descriptor));
        self.clear_end(socket);
        if has_descriptor {
            self.hosts.get_mut(host).close_descriptor();
        }
        self.record(host, TraceKind::Closed, number, 0);
        if !is_silent {
            if has_unread {
                self.send_reset(Socket { side: !socket.side, ..socket }, None);
            } else if !was_write_shut {
                self.end_direction(socket);
            }
        }
        self.free_if_closed(socket.connection);
    }

    /// Frees the bytes and wakers of an end that is closed.
    pub(crate) fn clear_end(&mut self, socket: Socket) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let (end, _) = connection.ends(socket.side);
        self.dropped.extend(end.reader.take());
        self.dropped.extend(end.writer.take());
        let incoming = &mut end.incoming;
        incoming.abandon();
        incoming.bytes.clear();
        incoming.arrived = 0;
        keep_memory(&mut incoming.bytes, &mut self.spares);
    }

    /// Bytes were read. The writer learns it at once, or by a segment.
    pub(crate) fn has_read(&mut self, socket: Socket, at_once: bool, bytes: u32) {
        let Some(connection) = self.connections.get_mut(socket.connection) else { return };
        let (end, peer) = connection.ends(socket.side);
        if at_once {
            self.woken.extend(peer.writer.take());
            return;
        }
        end.incoming.unreleased += bytes;
        end.incoming.read_at = self.now;
        if peer.writer.is_some() {
            self.plan_release(Socket { side: !socket.side, ..socket });
        }
    }

    /// Sends the writer `socket` a segment that says how much was read so far.
    fn plan_release(&mut self, socket: Socket) {
        let Socket { connection: key, side } = socket;
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, peer) = connection.ends(side);
        if peer.incoming.releasing == 0 {
            peer.incoming.releasing = peer.incoming.unreleased;
            let event = Event::Release { connection: key, side };
            let (from, to) = (peer.host, end.host);
            self.send(from, to, event);
        }
    }
}

/// Stores `waker` in `slot`, unless the waker there wakes the same task.
pub(crate) fn wait(slot: &mut Option<Waker>, waker: &Waker, dropped: &mut Vec<Waker>) {
    if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
        dropped.extend(slot.replace(waker.clone()));
    }
}

/// Appends the first `n` bytes of all pieces together.
fn append<P: Deref<Target = [u8]>>(bytes: &mut VecDeque<u8>, pieces: &[P], n: usize) {
    let mut left = n;
    for piece in pieces {
        let taken = left.min(piece.len());
        bytes.extend(&piece[..taken]);
        left -= taken;
        if left == 0 {
            return;
        }
    }
}

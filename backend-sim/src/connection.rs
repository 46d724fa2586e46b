//! [`Connection`]: both ends of a TCP connection, and what its operations do.

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
use crate::trace::What;

/// What each end's send buffer and receive buffer hold when no option says otherwise, in bytes: about
/// what Linux starts with.
pub(crate) const BUFFER_BYTES: u32 = 32 * 1024;

/// The most that a read gives on a host whose reads are slow, in bytes.
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

/// An end of a connection, as a stream knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) connection: Key,
    pub(crate) side: Side,
}

/// A million of these have to fit in: a connection that is idle holds no bytes and no memory for them.
pub(crate) struct Connection {
    /// For the trace.
    pub(crate) number: u32,
    pub(crate) ends: [End; 2],
    /// The accept queue that the server's end waits in, or is to.
    pub(crate) queue: Option<Key>,
    /// The destination by which the client's host knows whose port this is.
    pub(crate) lease: Option<u32>,
    /// Who ended first: that end remembers the connection for a while.
    pub(crate) first_to_end: Option<Side>,
    /// How often the server said in vain that it has the client.
    pub(crate) establish_tries: u8,
}

/// One end, and the direction that comes to it.
pub(crate) struct End {
    pub(crate) addr: SocketAddr,
    pub(crate) incoming: Incoming,
    pub(crate) reader: Option<Waker>,
    /// Waits for room in the other end's `incoming`.
    pub(crate) writer: Option<Waker>,
    /// Told to the next operation, once; 0 is none.
    pub(crate) error: i32,
    pub(crate) host: HostId,
    /// A stream has it, or an accept queue.
    pub(crate) is_open: bool,
    pub(crate) has_descriptor: bool,
    /// It will see nothing more of the other.
    pub(crate) is_reset: bool,
    /// It was this end that did it: there is not even an end of the stream to be read.
    pub(crate) is_aborted: bool,
    pub(crate) is_read_shut: bool,
    pub(crate) is_write_shut: bool,
}

/// What comes to an end: first what is there to be read, then what is on its way.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) bytes: VecDeque<u8>,
    /// How many of them are there.
    pub(crate) arrived: u32,
    /// What the other's send buffer and this end's receive buffer hold together.
    pub(crate) capacity: u32,
    /// Read, which the other end has not learnt yet.
    pub(crate) unreleased: u32,
    /// The part of it that it is about to learn.
    pub(crate) releasing: u32,
    /// Lost, or behind what was lost; sent again when it is time.
    pub(crate) stuck: u32,
    /// Sent to an end that keeps nothing any more: it fills the buffers until its sender learns that.
    pub(crate) abandoned: u32,
    /// A read that was dropped goes on, and takes so many bytes.
    pub(crate) unseen_read: u32,
    pub(crate) read_at: Time,
    /// Nothing that was sent before arrives later than this.
    pub(crate) arrives_by: Time,
    pub(crate) tries: u8,
    pub(crate) release_tries: u8,
    pub(crate) is_stuck: bool,
    pub(crate) is_end_stuck: bool,
    pub(crate) has_ended: bool,
}

impl Connection {
    /// The end of `side`, then the other.
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

    /// The first `n` bytes of `pieces` are on their way to it.
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

    /// What is on its way is not waited for any more.
    pub(crate) fn abandon(&mut self) {
        let arrived = self.arrived as usize;
        let under_way = self.bytes.len() - arrived;
        self.abandoned = self.abandoned.saturating_add(under_way as u32);
        self.bytes.truncate(arrived);
    }
}

impl Core {
    /// Waits until a read need not.
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

    /// Reads what is there; the end of the stream if nothing is.
    pub(crate) fn read(&mut self, socket: Socket, buf: &mut impl IoBufMut) -> io::Result<usize> {
        let Some(connection) = self.connections.get_mut(socket.connection) else {
            return Err(error(ECONNRESET));
        };
        let number = connection.number;
        let (end, peer) = connection.ends(socket.side);
        let (host, peer_host) = (end.host, peer.host);
        let incoming = &mut end.incoming;
        if incoming.arrived == 0 {
            // The error comes after the bytes, and not after the end, as on Linux.
            let code = if incoming.has_ended { 0 } else { std::mem::take(&mut end.error) };
            let code = if code == 0 && end.is_aborted { ENOTCONN } else { code };
            if code != 0 {
                self.record(host, What::Failed, number, code as u32);
                return Err(error(code));
            }
            buf.buf_clear();
            self.record(host, What::ReadEnd, number, 0);
            return Ok(0);
        }
        let (next, _) = incoming.bytes.as_slices();
        let most = next.len().min(incoming.arrived as usize).min(buf.buf_capacity());
        let is_slow = self.hosts.get(host).slow_until > self.now;
        let most = if is_slow { most.min(SLOW_READ_BYTES) } else { most };
        let n = buf.buf_fill(&next[..self.dice.part_of(most)]);
        incoming.bytes.drain(..n);
        incoming.arrived -= n as u32;
        if incoming.bytes.is_empty() {
            keep_memory(&mut incoming.bytes, &mut self.spares);
        }
        self.record(host, What::Read, number, n as u32);
        self.has_read(socket, host == peer_host, n as u32);
        Ok(n)
    }

    pub(crate) fn is_slow(&self, socket: Socket) -> bool {
        self.connections.get(socket.connection).is_some_and(|connection| {
            let host = connection.ends[socket.side as usize].host;
            self.hosts.get(host).slow_until > self.now
        })
    }

    /// Writes a part of `pieces`, at least a byte, when there is room.
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
            self.record(host, What::Failed, number, code as u32);
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
        let n = self.dice.part_of(all.min(room));
        peer.expect(pieces, n, &mut self.spares);
        self.record(host, What::Wrote, number, n as u32);
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
            self.record(host, What::ShutDown, number, 0);
            if !is_reset {
                self.end_direction(socket);
            }
        }
    }

    /// Both ends learn that the connection is over, this one at once; nothing is left to be read or sent.
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
        self.record(host, What::Aborted, number, 0);
        self.fail(socket, ECONNRESET);
        self.send_reset(Socket { side: !socket.side, ..socket }, None);
    }

    /// As Linux has it: there is no peer once the connection was reset, or ended from both sides.
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

    /// The stream is gone: its bytes that are under way still arrive; unread ones make it a reset (RFC
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
        self.record(host, What::Closed, number, 0);
        if !is_silent {
            if has_unread {
                self.send_reset(Socket { side: !socket.side, ..socket }, None);
            } else if !was_write_shut {
                self.end_direction(socket);
            }
        }
        self.free_if_closed(socket.connection);
    }

    /// What an end that is closed holds no more.
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

    /// What was read is news to the writer; at once, or when it gets there.
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

    /// The writer `socket` is to learn what was read so far.
    fn plan_release(&mut self, socket: Socket) {
        let Socket { connection: key, side } = socket;
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, peer) = connection.ends(side);
        if peer.incoming.releasing == 0 {
            peer.incoming.releasing = peer.incoming.unreleased;
            let news = Event::Release { connection: key, side };
            let (from, to) = (peer.host, end.host);
            self.send(from, to, news);
        }
    }
}

/// Keeps `waker` where the one that is to be woken is kept.
pub(crate) fn wait(place: &mut Option<Waker>, waker: &Waker, dropped: &mut Vec<Waker>) {
    if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
        dropped.extend(place.replace(waker.clone()));
    }
}

/// Adds the first `n` bytes of all pieces.
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

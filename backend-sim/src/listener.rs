//! [`SimListener`]: an accept queue under an address.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use owned_io::backend::AcceptBudget;
use owned_io::{AddrError, BoundAddr, TcpListener};

use crate::connection::{BUFFER_BYTES, Connection, End, Side, Socket, wait};
use crate::core::{Core, Event, after};
use crate::errno::{ECONNABORTED, EMFILE, error};
use crate::executor::{self, Shared};
use crate::host::HostId;
use crate::link::Arrival;
use crate::slab::{Key, Slab};
use crate::stream::{SimStream, stream};
use crate::timer::Sleep;
use crate::trace::TraceKind;

/// How long until the server answers a SYN again, if the handshake is not complete. The time doubles with each
/// try.
const SYN_ACK_RETRY: Duration = Duration::from_secs(1);

/// How often the server answers again before it forgets the client (tcp(7), `tcp_synack_retries`).
const SYN_ACK_RETRIES_MAX: u8 = 5;

/// A listener in the simulated network.
pub struct SimListener {
    world: Weak<Shared>,
    queue: Key,
    /// Keeps the address bound as long as the listener exists.
    bound: BoundAddr,
    accept_budget: AcceptBudget,
}

/// The listeners of all hosts.
pub(crate) struct Listeners {
    pub(crate) by_addr: BTreeMap<(HostId, SocketAddr), Vec<Key>>,
    pub(crate) queues: Slab<AcceptQueue>,
}

/// The accept queue of one listener.
pub(crate) struct AcceptQueue {
    pub(crate) host: HostId,
    pub(crate) addr: SocketAddr,
    pub(crate) waiting: VecDeque<Key>,
    /// How many slots are reserved for connections whose handshake is not complete.
    reserved: usize,
    /// As on Linux, the queue holds one more than this.
    backlog: usize,
    recv_buffer_bytes: u32,
    send_buffer_bytes: u32,
    acceptor: Option<Waker>,
}

impl TcpListener for SimListener {
    type Stream = SimStream;

    async fn accept(&mut self) -> io::Result<(SimStream, SocketAddr)> {
        let (detached, peer) = self.accept_detached().await?;
        Ok((detached.adopt(), peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.bound.local_addr())
    }
}

impl SimListener {
    pub(crate) async fn accept_detached(&mut self) -> io::Result<(SimDetached, SocketAddr)> {
        let world = executor::current();
        if self.accept_budget.must_yield() {
            Sleep::new(&world, Duration::ZERO).await;
        }
        let accepted = poll_fn(|cx| world.with(|core| core.accept(self.queue, cx.waker()))).await;
        let accepted = accepted.map(|(socket, peer)| (SimDetached { socket }, peer));
        self.accept_budget.count(accepted)
    }
}

/// A connection that was accepted and that no worker has adopted. It belongs to its simulation.
#[derive(Debug)]
pub struct SimDetached {
    socket: Socket,
}

impl SimDetached {
    pub(crate) fn adopt(self) -> SimStream {
        let stream = stream(&executor::current(), self.socket);
        std::mem::forget(self); // the stream closes the socket
        stream
    }
}

impl Drop for SimDetached {
    fn drop(&mut self) {
        // It may be dropped after its simulation, with what the workers share.
        if executor::is_running() {
            executor::current().with(|core| core.close(self.socket));
        }
    }
}

impl std::fmt::Debug for SimListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimListener").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        if let Some(world) = self.world.upgrade() {
            world.with(|core| core.end_listening(self.queue, true));
        }
    }
}

pub(crate) fn listen(bound: &BoundAddr) -> io::Result<SimListener> {
    let world = executor::current();
    let host = world.host();
    let options = bound.options();
    let queue = AcceptQueue {
        host,
        addr: options.addr,
        waiting: VecDeque::new(),
        reserved: 0,
        backlog: options.backlog as usize,
        recv_buffer_bytes: options.recv_buffer_bytes.unwrap_or(BUFFER_BYTES),
        send_buffer_bytes: options.send_buffer_bytes.unwrap_or(BUFFER_BYTES),
        acceptor: None,
    };
    let queue = world.with(|core| {
        let now = core.now;
        if !core.hosts.get_mut(host).open_descriptor(now) {
            return Err(AddrError::new("listen on", options.addr, error(EMFILE)).into());
        }
        Ok::<_, io::Error>(core.listeners.add(queue))
    })?;
    Ok(SimListener {
        world: Rc::downgrade(&world),
        queue,
        bound: bound.clone(),
        accept_budget: AcceptBudget::default(),
    })
}

impl Listeners {
    pub(crate) const fn new() -> Self {
        Self { by_addr: BTreeMap::new(), queues: Slab::new() }
    }

    fn add(&mut self, queue: AcceptQueue) -> Key {
        let addr = (queue.host, queue.addr);
        let key = self.queues.insert(queue);
        self.by_addr.entry(addr).or_default().push(key);
        key
    }

    /// The listeners at `addr`, then those at the unspecified address with the same port.
    fn at(&self, host: HostId, addr: SocketAddr) -> impl Iterator<Item = Key> {
        let unspecified: IpAddr = if addr.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let wildcard = SocketAddr::new(unspecified, addr.port());
        let exact = self.by_addr.get(&(host, addr)).into_iter().flatten();
        exact.chain(self.by_addr.get(&(host, wildcard)).into_iter().flatten()).copied()
    }
}

/// The outcome of a SYN that arrives at a host.
pub(crate) enum SynOutcome {
    /// Nobody listens there.
    Refused,
    QueueFull,
    /// A connection with a reserved slot in the accept queue.
    Reserved(Key),
}

impl Core {
    /// A SYN arrives: reserves a slot at a random listener of those at `server`.
    pub(crate) fn admit_syn(
        &mut self,
        (client_host, client): (HostId, SocketAddr),
        (host, server): (HostId, SocketAddr),
        (recv_bytes, send_bytes): (u32, u32),
        lease: Option<u32>,
    ) -> SynOutcome {
        let count = self.listeners.at(host, server).count();
        if count == 0 {
            return SynOutcome::Refused;
        }
        let any = if count == 1 { 0 } else { self.rng.index(count) };
        let Some(key) = self.listeners.at(host, server).nth(any) else {
            return SynOutcome::Refused;
        };
        let Some(queue) = self.listeners.queues.get_mut(key) else { return SynOutcome::Refused };
        if queue.waiting.len() + queue.reserved > queue.backlog {
            return SynOutcome::QueueFull;
        }
        queue.reserved += 1;
        let to_client = recv_bytes.saturating_add(queue.send_buffer_bytes).max(1);
        let to_server = queue.recv_buffer_bytes.saturating_add(send_bytes).max(1);
        let ends = [End::new(client_host, client, to_client), End::new(host, server, to_server)];
        let connection = self.connect_ends(ends);
        if let Some(made) = self.connections.get_mut(connection) {
            made.queue = Some(key);
            made.lease = lease;
        }
        SynOutcome::Reserved(connection)
    }

    pub(crate) fn connect_ends(&mut self, ends: [End; 2]) -> Key {
        self.connections_made += 1;
        let number = self.connections_made;
        self.connections.insert(Connection {
            number,
            ends,
            queue: None,
            lease: None,
            first_to_end: None,
            establish_tries: 0,
        })
    }

    /// The last segment of the handshake arrives at the server, or is lost.
    pub(crate) fn establish(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else { return };
        let (number, tries) = (connection.number, connection.establish_tries);
        let [client, server] = &connection.ends;
        let (from, to) = (client.host, server.host);
        let Some(queue_key) = connection.queue else { return };
        let is_lost = match self.arrival(from, to) {
            Arrival::Now => false,
            Arrival::Lost => true,
            Arrival::Held(until) => return self.queue.push(until, Event::Established(key)),
        };
        let Some(queue) = self.listeners.queues.get_mut(queue_key) else {
            return self.reject(key, !is_lost);
        };
        if is_lost && tries < SYN_ACK_RETRIES_MAX {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.establish_tries += 1;
            }
            let at = after(self.now, SYN_ACK_RETRY * (1 << tries));
            return self.queue.push(at, Event::Established(key));
        }
        queue.reserved -= 1;
        if is_lost {
            return self.reject(key, false);
        }
        let before = queue.waiting.len();
        queue.waiting.push_back(key);
        self.woken.extend(queue.acceptor.take());
        self.record(to, TraceKind::Queued, number, before as u32);
    }

    /// Whether the server still has a slot for a connection whose handshake is not complete.
    pub(crate) fn has_reservation(&self, connection: Key) -> bool {
        let queue = self.connections.get(connection).and_then(|connection| connection.queue);
        queue.is_some_and(|queue| self.listeners.queues.get(queue).is_some())
    }

    /// An attempt was cancelled before its connection was established: frees the slot.
    pub(crate) fn release_reservation(&mut self, connection: Key) {
        let Some(connection) = self.connections.remove(connection) else { return };
        let queue = connection.queue.and_then(|queue| self.listeners.queues.get_mut(queue));
        if let Some(queue) = queue {
            queue.reserved -= 1;
        }
    }

    fn accept(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<(Socket, SocketAddr)>> {
        let Some(queue) = self.listeners.queues.get_mut(key) else {
            return Poll::Pending; // its host is down, and so is the task that waits
        };
        let host = queue.host;
        let Some(connection) = queue.waiting.front().copied() else {
            wait(&mut queue.acceptor, waker, &mut self.dropped);
            return Poll::Pending;
        };
        if !self.hosts.get_mut(host).open_descriptor(self.now) {
            self.record(host, TraceKind::Failed, 0, EMFILE as u32);
            return Poll::Ready(Err(error(EMFILE)));
        }
        queue.waiting.pop_front();
        let Some(accepted) = self.connections.get_mut(connection) else {
            self.hosts.get_mut(host).close_descriptor();
            return Poll::Ready(Err(error(ECONNABORTED)));
        };
        accepted.queue = None;
        let number = accepted.number;
        let (end, client) = accepted.ends(Side::Server);
        end.has_descriptor = true;
        let (is_reset, peer) = (end.is_reset, client.addr);
        let socket = Socket { connection, side: Side::Server };
        // If the client is gone, either accept(2) reports it or the first read does.
        if is_reset && self.rng.one_in(2) {
            self.record(host, TraceKind::Failed, number, ECONNABORTED as u32);
            self.close(socket);
            return Poll::Ready(Err(error(ECONNABORTED)));
        }
        self.record(host, TraceKind::Accepted, number, 0);
        Poll::Ready(Ok((socket, peer)))
    }

    /// A listener is dropped. `sends_resets`: its waiting clients get resets, as they do unless the host is down.
    pub(crate) fn end_listening(&mut self, key: Key, sends_resets: bool) {
        let Some(queue) = self.listeners.queues.remove(key) else { return };
        let addr = (queue.host, queue.addr);
        if let Some(keys) = self.listeners.by_addr.get_mut(&addr) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.listeners.by_addr.remove(&addr);
            }
        }
        self.dropped.extend(queue.acceptor);
        self.hosts.get_mut(queue.host).close_descriptor();
        if sends_resets {
            for connection in queue.waiting {
                self.reject(connection, true);
            }
        }
    }

    /// The server no longer has a socket for a client. The client gets a reset now, or when it sends something.
    fn reject(&mut self, key: Key, sends_reset: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (end, _) = connection.ends(Side::Server);
        end.is_open = false;
        end.is_reset = true;
        end.is_write_shut = true;
        self.clear_end(Socket { connection: key, side: Side::Server });
        if sends_reset {
            self.send_reset(Socket { connection: key, side: Side::Client }, None);
        }
        self.free_if_closed(key);
    }
}

//! [`SimListener`]: an accept queue under an address.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use owned_io::backend::Turn;
use owned_io::{AddrError, BoundAddr, ConnectOptions, TcpListener};

use crate::stream::{BufferBytes, SimStream, connected};
use crate::world::{self, World};

// The numbers of Linux, so that errors look alike on every backend.
const ETIMEDOUT: i32 = 110;
const ECONNREFUSED: i32 = 111;

/// When a client tries again after its SYN was dropped (RFC 6298 2.1, and Linux).
const SYN_RETRY: Duration = Duration::from_secs(1);

/// A listener in the simulated network.
#[derive(Debug)]
pub struct SimListener {
    queue: Rc<AcceptQueue>,
    /// A listener holds its address even when nobody else does any more.
    bound: BoundAddr,
    turn: Turn,
}

/// Connections that wait to be accepted.
#[derive(Debug)]
pub(crate) struct AcceptQueue {
    waiting: RefCell<VecDeque<(SimStream, SocketAddr)>>,
    /// As Linux counts: one more than the backlog fits in.
    backlog: usize,
    recv_buffer_bytes: Option<u32>,
    acceptor: RefCell<Option<Waker>>,
}

impl TcpListener for SimListener {
    type Stream = SimStream;

    async fn accept(&mut self) -> io::Result<(SimStream, SocketAddr)> {
        if self.turn.is_over() {
            world::current().sleep(Duration::ZERO).await;
        }
        let client = poll_fn(|cx| {
            if let Some(client) = self.queue.waiting.borrow_mut().pop_front() {
                return Poll::Ready(client);
            }
            *self.queue.acceptor.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.turn.count(Ok(client))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.bound.local_addr())
    }
}

pub(crate) fn listen(bound: &BoundAddr) -> SimListener {
    let options = bound.options();
    let queue = Rc::new(AcceptQueue {
        waiting: RefCell::default(),
        backlog: options.backlog as usize,
        recv_buffer_bytes: options.recv_buffer_bytes,
        acceptor: RefCell::default(),
    });
    let world = world::current();
    let mut listeners = world.listeners.borrow_mut();
    let here = listeners.entry(options.addr).or_default();
    here.retain(|queue| queue.strong_count() > 0);
    here.push(Rc::downgrade(&queue));
    SimListener { queue, bound: bound.clone(), turn: Turn::default() }
}

pub(crate) async fn connect(options: ConnectOptions) -> io::Result<SimStream> {
    let failed = |code| {
        let cause = io::Error::from_raw_os_error(code);
        io::Error::from(AddrError::new("connect to", options.addr, cause))
    };
    let world = world::current();
    let deadline = world.elapsed().saturating_add(options.timeout);
    let client = options.local_addr.unwrap_or_else(|| client_addr(&world, options.addr));
    // Bounded by the deadline.
    loop {
        let queue = pick_listener(&world, options.addr).ok_or_else(|| failed(ECONNREFUSED))?;
        if queue.waiting.borrow().len() <= queue.backlog {
            let bytes = BufferBytes {
                to_client: options.recv_buffer_bytes,
                to_server: queue.recv_buffer_bytes,
            };
            let (ours, theirs) = connected(&world, client, options.addr, bytes);
            queue.waiting.borrow_mut().push_back((theirs, client));
            if let Some(acceptor) = queue.acceptor.borrow_mut().take() {
                acceptor.wake();
            }
            return Ok(ours);
        }
        drop(queue);
        let left = deadline.saturating_sub(world.elapsed());
        Rc::clone(&world).sleep(left.min(SYN_RETRY)).await;
        if world.elapsed() >= deadline {
            return Err(failed(ETIMEDOUT));
        }
    }
}

/// Any of the listeners at `addr`, or at its port of every address.
fn pick_listener(world: &World, addr: SocketAddr) -> Option<Rc<AcceptQueue>> {
    let listeners = world.listeners.borrow();
    let unspecified = SocketAddr::new(
        if addr.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() },
        addr.port(),
    );
    let open: Vec<_> = [addr, unspecified]
        .iter()
        .filter_map(|addr| listeners.get(addr))
        .flatten()
        .filter_map(Weak::upgrade)
        .collect();
    if open.is_empty() { None } else { Some(Rc::clone(&open[world.dice.below(open.len())])) }
}

/// An address of the client's own, as the kernel would choose one.
fn client_addr(world: &World, server: SocketAddr) -> SocketAddr {
    SocketAddr::new(server.ip(), 32_768 + (world.dice.roll() % 28_232) as u16)
}

//! [`Listener`]: drains the accept queue, and waits when it is empty.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use owned_io::backend::AcceptBudget;
use owned_io::{BoundAddr, Clock, TcpListener};

use crate::stream::{Socket, Stream, adopt};
use crate::{connect, listen};

/// A listening socket, and how its runtime waits for clients.
///
/// Once it is dropped, clients are refused, even while the kernel still works on a wait that was dropped or
/// forgotten.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait ListenSocket: AsFd + Debug + Sized + 'static {
    /// The socket of a client.
    type Socket: Socket;

    /// Takes a non-blocking socket that listens.
    ///
    /// # Errors
    /// The runtime's. `fd` is closed then.
    fn register(fd: OwnedFd) -> io::Result<Self>;

    /// Waits until a client may be in the accept queue. The queue was empty just before.
    ///
    /// # Errors
    /// Those of waiting. None of them ends the listener.
    ///
    /// # Cancellation
    /// Safe.
    async fn readable(&mut self) -> io::Result<()>;
}

/// A TCP listener.
#[derive(Debug)]
pub struct Listener<L> {
    socket: L,
    accept_budget: AcceptBudget,
}

impl<L: ListenSocket> Listener<L> {
    /// Listens on `bound`, next to the listeners of other workers.
    ///
    /// # Errors
    /// The inner error is an [`AddrError`](owned_io::AddrError).
    pub fn new(bound: &BoundAddr) -> io::Result<Self> {
        let socket = L::register(listen::listen(bound)?)
            .map_err(|error| listen::listen_error(bound.local_addr(), error))?;
        Ok(Self { socket, accept_budget: AcceptBudget::default() })
    }

    /// [`accept`](TcpListener::accept) for any worker, which [adopts](crate::adopt) the connection.
    ///
    /// # Errors
    /// Those of `accept`, without those of the registration with the runtime.
    ///
    /// # Cancellation
    /// Safe: a dropped accept has taken no client.
    pub async fn accept_detached(&mut self) -> io::Result<(OwnedFd, SocketAddr)> {
        self.yield_if_due().await;
        let accepted = self.next().await;
        self.accept_budget.count(accepted)
    }

    async fn yield_if_due(&mut self) {
        if self.accept_budget.must_yield() {
            <L::Socket as Socket>::Clock::sleep(Duration::ZERO).await;
        }
    }

    async fn next(&mut self) -> io::Result<(OwnedFd, SocketAddr)> {
        // Each round but the last waits. A round finds no client only if one left the queue after the wait.
        loop {
            match listen::try_accept(self.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.readable().await?;
                }
                accepted => return accepted,
            }
        }
    }
}

impl<L: ListenSocket> TcpListener for Listener<L> {
    type Stream = Stream<L::Socket>;

    async fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)> {
        self.yield_if_due().await;
        let accepted = self.next().await;
        let accepted = accepted.and_then(|(fd, peer)| Ok((adopt(fd)?, peer)));
        self.accept_budget.count(accepted)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        connect::local_addr(self.socket.as_fd())
    }
}

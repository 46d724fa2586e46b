//! Connecting: an attempt, its SYN, and the answer.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use owned_io::{AddrError, ConnectOptions};

use crate::connection::{BUFFER_BYTES, Side, Socket, wait};
use crate::core::{Core, Event, Time, after};
use crate::errno::{EADDRNOTAVAIL, ECONNREFUSED, EMFILE, ETIMEDOUT, error};
use crate::executor::{self, Shared};
use crate::host::HostId;
use crate::link::Arrival;
use crate::listener::SynOutcome;
use crate::slab::Key;
use crate::stream::{SimStream, stream};
use crate::timer::Sleep;
use crate::trace::TraceKind;

/// How long until a SYN without an answer is sent again. The time doubles with each try (RFC 6298 2.1 and 5.5).
const SYN_RETRY: Duration = Duration::from_secs(1);

/// How often a SYN is sent again. The attempt fails after 127 s (tcp(7), `tcp_syn_retries`).
const SYN_RETRIES_MAX: u8 = 6;

/// An attempt to connect.
pub(crate) struct Attempt {
    pub(crate) from: HostId,
    to: HostId,
    client: SocketAddr,
    server: SocketAddr,
    lease: Option<u32>,
    recv_buffer_bytes: u32,
    send_buffer_bytes: u32,
    tries: u8,
    sent_at: Time,
    state: State,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
enum State {
    Trying,
    /// The server has a slot for the connection; the client does not know yet.
    Answered(Key),
    Connected(Key),
    Failed(i32),
}

pub(crate) async fn connect(options: ConnectOptions) -> io::Result<SimStream> {
    let failed = |code| io::Error::from(AddrError::new("connect to", options.addr, error(code)));
    let world = executor::current();
    let begun = world.with(|core| core.begin_connecting(world.host(), &options));
    let mut trying =
        ConnectGuard { world: Rc::clone(&world), attempt: Some(begun.map_err(failed)?) };
    let mut timeout = pin!(Sleep::new(&world, options.timeout));
    let outcome = poll_fn(|cx| {
        let attempt = trying.attempt.expect("until it is taken");
        match world.with(|core| core.poll_attempt(attempt, cx.waker())) {
            Poll::Pending => timeout.as_mut().poll(cx).map(|()| Err(ETIMEDOUT)),
            ready => ready,
        }
    });
    let socket = outcome.await.map_err(failed)?;
    trying.attempt = None;
    Ok(stream(&world, socket))
}

/// Cancels the attempt when it is dropped.
struct ConnectGuard {
    world: Rc<Shared>,
    attempt: Option<Key>,
}

impl Drop for ConnectGuard {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt {
            self.world.with(|core| core.cancel_attempt(attempt));
        }
    }
}

impl Core {
    fn begin_connecting(&mut self, from: HostId, options: &ConnectOptions) -> Result<Key, i32> {
        let to = self.hosts.resolve(from, options.addr.ip());
        let local_ip = options.local_addr.map(|addr| addr.ip());
        let has_local_addr = local_ip.is_none_or(|ip| self.hosts.has_addr(from, ip));
        let now = self.now;
        let host = self.hosts.get_mut(from);
        // Within a host, both ends have the address that was asked for.
        let ip = if from == to { options.addr.ip() } else { host.ip() };
        let mut client = options.local_addr.unwrap_or_else(|| SocketAddr::new(ip, 0));
        if client.ip().is_unspecified() {
            client.set_ip(ip);
        }
        if !has_local_addr {
            self.record(from, TraceKind::Failed, 0, EADDRNOTAVAIL as u32);
            return Err(EADDRNOTAVAIL);
        }
        if !host.open_descriptor(now) {
            self.record(from, TraceKind::Failed, 0, EMFILE as u32);
            return Err(EMFILE);
        }
        let mut lease = None;
        if client.port() == 0 {
            let Some((port, destination)) = host.ports.take(options.addr, &mut self.rng) else {
                host.close_descriptor();
                self.record(from, TraceKind::Failed, 0, EADDRNOTAVAIL as u32);
                return Err(EADDRNOTAVAIL);
            };
            client.set_port(port);
            lease = Some(destination);
        }
        let attempt = self.attempts.insert(Attempt {
            from,
            to,
            client,
            server: options.addr,
            lease,
            recv_buffer_bytes: options.recv_buffer_bytes.unwrap_or(BUFFER_BYTES),
            send_buffer_bytes: options.send_buffer_bytes.unwrap_or(BUFFER_BYTES),
            tries: 0,
            sent_at: 0,
            state: State::Trying,
            waker: None,
        });
        self.send_syn(attempt);
        Ok(attempt)
    }

    fn poll_attempt(&mut self, key: Key, waker: &Waker) -> Poll<Result<Socket, i32>> {
        // Its host is down, and so is the task that waits.
        let Some(attempt) = self.attempts.get_mut(key) else { return Poll::Pending };
        match attempt.state {
            State::Failed(code) => Poll::Ready(Err(code)),
            State::Connected(connection) => {
                self.attempts.remove(key);
                if let Some(made) = self.connections.get_mut(connection) {
                    made.ends(Side::Client).0.has_descriptor = true;
                }
                Poll::Ready(Ok(Socket { connection, side: Side::Client }))
            }
            State::Trying | State::Answered(_) => {
                wait(&mut attempt.waker, waker, &mut self.dropped);
                Poll::Pending
            }
        }
    }

    pub(crate) fn cancel_attempt(&mut self, key: Key) {
        let Some(attempt) = self.attempts.remove(key) else { return };
        self.dropped.extend(attempt.waker);
        self.hosts.get_mut(attempt.from).close_descriptor();
        let mut lease = attempt.lease;
        match attempt.state {
            State::Connected(connection) => {
                lease = None; // the connection's
                self.close(Socket { connection, side: Side::Client });
            }
            State::Answered(connection) => self.release_reservation(connection),
            State::Trying | State::Failed(_) => {}
        }
        if let Some(destination) = lease {
            let ports = &mut self.hosts.get_mut(attempt.from).ports;
            ports.free(destination, attempt.client.port());
        }
    }

    /// For the first time, or again; or gives up.
    pub(crate) fn send_syn(&mut self, key: Key) {
        let Some(attempt) = self.attempts.get_mut(key) else { return };
        if attempt.tries > SYN_RETRIES_MAX {
            if let State::Answered(connection) = attempt.state {
                self.release_reservation(connection);
            }
            return self.end_attempt(key, State::Failed(ETIMEDOUT));
        }
        attempt.tries += 1;
        attempt.sent_at = self.now;
        let (from, to, tries) = (attempt.from, attempt.to, attempt.tries);
        let port = attempt.server.port();
        self.record(from, TraceKind::SynSent, port.into(), tries.into());
        self.send(from, to, Event::Syn(key));
    }

    pub(crate) fn syn_arrives(&mut self, key: Key) {
        let Some(attempt) = self.attempts.get(key) else { return };
        let &Attempt { from, to, client, server, lease, state, .. } = attempt;
        let buffers = (attempt.recv_buffer_bytes, attempt.send_buffer_bytes);
        let port = server.port().into();
        match self.arrival(from, to) {
            Arrival::Lost => return self.try_again(key),
            Arrival::Held(until) => return self.queue.push(until, Event::Syn(key)),
            Arrival::Now => {}
        }
        match state {
            State::Trying => {}
            State::Answered(connection) if self.has_reservation(connection) => {
                return self.send(to, from, Event::SynAck(key));
            }
            // The server was down meanwhile, or its listener is gone: it knows nothing of earlier SYNs.
            State::Answered(connection) => {
                self.release_reservation(connection);
                self.set_state(key, State::Trying);
            }
            State::Connected(_) | State::Failed(_) => return,
        }
        match self.admit_syn((from, client), (to, server), buffers, lease) {
            SynOutcome::Refused => {
                self.record(to, TraceKind::Refused, port, 0);
                self.send(to, from, Event::Refused(key));
            }
            SynOutcome::QueueFull => {
                self.record(to, TraceKind::SynDropped, port, 0);
                self.try_again(key);
            }
            SynOutcome::Reserved(connection) => {
                self.set_state(key, State::Answered(connection));
                self.send(to, from, Event::SynAck(key));
            }
        }
    }

    pub(crate) fn syn_ack_arrives(&mut self, key: Key) {
        let Some(attempt) = self.attempts.get(key) else { return };
        let (from, to) = (attempt.from, attempt.to);
        let State::Answered(connection) = attempt.state else { return };
        match self.arrival(to, from) {
            Arrival::Lost => return self.try_again(key),
            Arrival::Held(until) => return self.queue.push(until, Event::SynAck(key)),
            Arrival::Now => {}
        }
        let number = self.connections.get(connection).map_or(0, |made| made.number);
        self.end_attempt(key, State::Connected(connection));
        self.record(from, TraceKind::Connected, number, 0);
        self.send(from, to, Event::Established(connection));
    }

    pub(crate) fn refusal_arrives(&mut self, key: Key) {
        let Some(attempt) = self.attempts.get(key) else { return };
        let (from, to) = (attempt.from, attempt.to);
        match self.arrival(to, from) {
            Arrival::Lost => self.try_again(key),
            Arrival::Held(until) => self.queue.push(until, Event::Refused(key)),
            Arrival::Now => self.end_attempt(key, State::Failed(ECONNREFUSED)),
        }
    }

    /// The SYN had no answer: schedules the next one.
    fn try_again(&mut self, key: Key) {
        let Some(attempt) = self.attempts.get_mut(key) else { return };
        let at = after(attempt.sent_at, SYN_RETRY * (1 << (attempt.tries - 1))).max(self.now);
        self.queue.push(at, Event::SynRetry(key));
    }

    fn set_state(&mut self, key: Key, state: State) {
        if let Some(attempt) = self.attempts.get_mut(key) {
            attempt.state = state;
        }
    }

    fn end_attempt(&mut self, key: Key, state: State) {
        if let Some(attempt) = self.attempts.get_mut(key) {
            attempt.state = state;
            self.woken.extend(attempt.waker.take());
        }
    }
}

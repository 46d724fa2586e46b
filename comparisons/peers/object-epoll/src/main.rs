//! Objects over HTTP on epoll itself: one thread, level-triggered, no runtime. It sends answers that were prepared
//! before, and reads no header of a request: the limit.

#![deny(unsafe_code)]

mod connection;
#[expect(unsafe_code, reason = "the kernel takes and writes raw memory")]
mod zero_copy;

use std::io;
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Instant;

use connection::{Connection, Interest};
use peers_common::objects::Answers;
use peers_common::zero_copy::Completions;
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::net::{SocketFlags, accept_with};

/// How many events one system call may fetch.
const EVENTS_MAX: usize = 1024;

/// How many clients are accepted before connections are served.
const ACCEPTS_MAX: usize = 64;

/// How many messages about sends are read when a connection ends. The kernel merges those that follow each other.
const COMPLETIONS_MAX: usize = 64;

/// The data of the listener's events. The data of a connection's events is its index.
const LISTENER: u64 = u64::MAX;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::ZeroCopyObjects, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let answers = Answers::prepare(&args.objects, args.chunk_bytes)?;
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    if args.zero_copy {
        zero_copy::enable(&listener)?;
    }
    let mut server = Server {
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        listener,
        answers,
        zero_copy: args.zero_copy.then(Completions::default),
        accept_again: None,
        connections: Vec::new(),
        free: Vec::new(),
    };
    let data = EventData::new_u64(LISTENER);
    epoll::add(&server.epoll, &server.listener, data, EventFlags::IN)?;
    peers_common::print_service("object", server.listener.local_addr()?);
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        let timeout = server.timeout();
        match epoll::wait(&server.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => server.accept()?,
                index => server.answer(index as usize, event.flags),
            }
        }
        server.resume_accepting()?;
    }
}

struct Server {
    epoll: OwnedFd,
    listener: TcpListener,
    answers: Answers,
    /// The sends without a copy that are complete. `None`: sends copy.
    zero_copy: Option<Completions>,
    /// When to accept again after a failure. Until then the listener's events are off.
    accept_again: Option<Instant>,
    connections: Vec<Option<Connection>>,
    /// The indices of `connections` that are `None`.
    free: Vec<usize>,
}

impl Server {
    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTS_MAX {
            let accepted =
                match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                    Ok(stream) => self.add(stream),
                    Err(rustix::io::Errno::AGAIN) => break,
                    Err(error) => Err(error.into()),
                };
            if let Err(error) = accepted {
                peers_common::print_accept_error(&error);
                self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                self.set_listener_events(EventFlags::empty())?;
                break;
            }
        }
        Ok(())
    }

    fn add(&mut self, stream: OwnedFd) -> io::Result<()> {
        let index = self.free.last().copied().unwrap_or(self.connections.len());
        epoll::add(&self.epoll, &stream, EventData::new_u64(index as u64), EventFlags::IN)?;
        let connection = Some(Connection::new(stream.into(), self.zero_copy.is_some()));
        if self.free.pop().is_some() {
            self.connections[index] = connection;
        } else {
            self.connections.push(connection);
        }
        Ok(())
    }

    /// Serves a connection that is ready. An error ends this connection only. A batch has at most one event for each
    /// connection, so none is left for a connection that has ended.
    fn answer(&mut self, index: usize, flags: EventFlags) {
        let Some(connection) = &mut self.connections[index] else { return };
        if let Some(completions) = &mut self.zero_copy
            && flags.contains(EventFlags::ERR)
        {
            // One, because epoll is level-triggered. If it fails, the read or the write below says why.
            let found = zero_copy::read_completion(connection.stream(), completions);
            if found.unwrap_or(false) && flags == EventFlags::ERR {
                return;
            }
        }
        let before = connection.interest();
        let alive = connection.answer(&self.answers).and_then(|alive| {
            let after = connection.interest();
            if alive && after != before {
                let flags = match after {
                    Interest::Read => EventFlags::IN,
                    Interest::Write => EventFlags::OUT,
                };
                let data = EventData::new_u64(index as u64);
                epoll::modify(&self.epoll, connection.stream(), data, flags)?;
            }
            Ok(alive)
        });
        if !alive.unwrap_or(false) {
            self.end(index);
        }
    }

    /// Ends a connection. A client that has read everything has acknowledged it, so that all its sends are complete.
    fn end(&mut self, index: usize) {
        let ended = self.connections[index].take();
        self.free.push(index);
        // Dropping it closes the descriptor, which removes it from epoll.
        let (Some(completions), Some(connection)) = (&mut self.zero_copy, ended) else { return };
        for _ in 0..COMPLETIONS_MAX {
            match zero_copy::read_completion(connection.stream(), completions) {
                Ok(true) => {}
                Ok(false) | Err(_) => break,
            }
        }
        if self.free.len() == self.connections.len() {
            completions.print(env!("CARGO_PKG_NAME"));
        }
    }

    fn resume_accepting(&mut self) -> io::Result<()> {
        if self.accept_again.is_some_and(|at| at <= Instant::now()) {
            self.accept_again = None;
            self.set_listener_events(EventFlags::IN)?;
        }
        Ok(())
    }

    fn set_listener_events(&self, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags)?)
    }

    fn timeout(&self) -> Option<Timespec> {
        let left = self.accept_again?.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }
}

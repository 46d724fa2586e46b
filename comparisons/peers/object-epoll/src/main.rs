//! Objects over HTTP on epoll itself: one thread, level-triggered, no runtime. It sends answers that were prepared
//! before, and reads no header of a request: the limit.

#![forbid(unsafe_code)]

mod connection;

use std::io;
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Instant;

use connection::{Connection, Interest};
use peers_common::objects::Answers;
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

/// The data of the listener's events. The data of a connection's events is its index.
const LISTENER: u64 = u64::MAX;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Objects, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let answers = Answers::prepare(&args.objects, args.chunk_bytes)?;
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let mut server = Server {
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        listener,
        answers,
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
                index => server.answer(index as usize),
            }
        }
        server.resume_accepting()?;
    }
}

struct Server {
    epoll: OwnedFd,
    listener: TcpListener,
    answers: Answers,
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
        let connection = Some(Connection::new(stream.into()));
        if self.free.pop().is_some() {
            self.connections[index] = connection;
        } else {
            self.connections.push(connection);
        }
        Ok(())
    }

    /// Serves a connection that is ready. An error ends this connection only. A batch has at most one event for each
    /// connection, so none is left for a connection that has ended.
    fn answer(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
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
            self.connections[index] = None; // this closes the descriptor, which removes it from epoll
            self.free.push(index);
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

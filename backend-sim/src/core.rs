//! [`Core`]: the state of a simulation except its tasks, and the events that change it.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::connect::Attempt;
use crate::connection::{Connection, Side};
use crate::file::LateWrite;
use crate::host::{HostId, Hosts};
use crate::link::Links;
use crate::listener::Listeners;
use crate::plan::FaultPlan;
use crate::queue::{Queue, TIME_MAX};
use crate::rng::Rng;
use crate::runtime::Config;
use crate::slab::{Key, Slab};
use crate::timer::Timers;
use crate::trace::{Trace, TraceKind};

/// Nanoseconds of virtual time since the simulation began.
pub(crate) type Time = u64;

/// The time `duration` after `now`. A time that does not fit saturates to [`TIME_MAX`], which never comes.
pub(crate) fn after(now: Time, duration: Duration) -> Time {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(TIME_MAX);
    now.saturating_add(nanos).min(TIME_MAX)
}

/// How many drained byte queues are kept for reuse, of up to [`SPARE_BYTES_MAX`] each: 16 MiB at most.
const SPARES_MAX: usize = 256;

/// The largest byte queue that is kept for reuse, in bytes: the default buffers of a connection.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// The network, the clock and the scheduled events. No code of a task runs while this is borrowed:
/// [`Shared::with`](crate::executor::Shared::with) wakes, drops and starts tasks after the borrow has ended.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) queue: Queue,
    pub(crate) timers: Timers,
    pub(crate) hosts: Hosts,
    pub(crate) links: Links,
    pub(crate) connections: Slab<Connection>,
    pub(crate) connections_made: u32,
    pub(crate) attempts: Slab<Attempt>,
    pub(crate) listeners: Listeners,
    /// Writes to files that were dropped and still happen.
    pub(crate) late_writes: Slab<LateWrite>,
    pub(crate) plan: FaultPlan,
    /// Empty byte queues, for reuse.
    pub(crate) spares: Vec<VecDeque<u8>>,
    pub(crate) woken: Vec<Waker>,
    /// Wakers to drop after the borrow: dropping one may run code of a task.
    pub(crate) dropped: Vec<Waker>,
    pub(crate) actions: Vec<Action>,
}

/// Something that happens at a certain time. `side` is the end that it happens to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Timer(Key),
    /// `bytes` bytes arrive; zero bytes are the end of the stream.
    Arrive {
        connection: Key,
        side: Side,
        bytes: u32,
    },
    /// Bytes that were lost on the way to this end are sent again.
    Retransmit {
        connection: Key,
        side: Side,
    },
    /// This end learns that the other end has read.
    Release {
        connection: Key,
        side: Side,
    },
    /// A reset arrives: the other end does not exist. With `is_answer` it answers `bytes` bytes that this
    /// end sent, or, if that is zero, its end of the stream.
    Reset {
        connection: Key,
        side: Side,
        bytes: u32,
        is_answer: bool,
    },
    /// The SYN of an attempt to connect arrives.
    Syn(Key),
    /// The SYN is sent again.
    SynRetry(Key),
    /// The answer to the SYN arrives.
    SynAck(Key),
    Refused(Key),
    /// The last segment of the handshake arrives at the server.
    Established(Key),
    PortFree {
        host: HostId,
        port: u16,
        destination: u32,
    },
    /// The fault with this index in the plan.
    Fault(u32),
    Resume(HostId),
    Restart(HostId),
    /// A write to a file that was dropped happens.
    LateWrite(Key),
}

/// Work for the executor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// The paused tasks of a host go on.
    Resume(HostId),
    /// The tasks of a host are dropped.
    DropTasks(HostId),
    StartService(HostId),
}

impl Core {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            now: 0,
            rng: Rng::new(config.seed),
            trace: Trace::new(config.trace_records),
            queue: Queue::new(),
            timers: Timers::new(),
            hosts: Hosts::new(),
            links: Links::new(),
            connections: Slab::new(),
            connections_made: 0,
            attempts: Slab::new(),
            listeners: Listeners::new(),
            late_writes: Slab::new(),
            plan: FaultPlan::new(),
            spares: Vec::with_capacity(SPARES_MAX),
            woken: Vec::new(),
            dropped: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Handles all events that are due.
    pub(crate) fn fire_due(&mut self) {
        while let Some(event) = self.queue.pop_due(self.now) {
            self.handle(event);
        }
    }

    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Timer(key) => self.fire_timer(key),
            Event::Arrive { connection, side, bytes } => self.arrive(connection, side, bytes),
            Event::Retransmit { connection, side } => self.retransmit(connection, side),
            Event::Release { connection, side } => self.release(connection, side),
            Event::Reset { connection, side, bytes, is_answer } => {
                self.reset_arrives(connection, side, is_answer.then_some(bytes));
            }
            Event::Syn(attempt) => self.syn_arrives(attempt),
            Event::SynRetry(attempt) => self.send_syn(attempt),
            Event::SynAck(attempt) => self.syn_ack_arrives(attempt),
            Event::Refused(attempt) => self.refusal_arrives(attempt),
            Event::Established(connection) => self.establish(connection),
            Event::PortFree { host, port, destination } => {
                self.hosts.get_mut(host).ports.free(destination, port);
            }
            Event::Fault(index) => self.apply_fault(index as usize),
            Event::Resume(host) => self.actions.push(Action::Resume(host)),
            Event::Restart(host) => self.restart(host),
            Event::LateWrite(key) => self.finish_late_write(key),
        }
    }

    /// Sends a control segment (no data) from one host to another. Within a host it arrives at once.
    pub(crate) fn send(&mut self, from: HostId, to: HostId, event: Event) {
        if from == to {
            self.handle(event);
        } else {
            let at = self.links.arrival_of_control(from, to, self.now, &mut self.rng);
            self.queue.push(at, event);
        }
    }

    pub(crate) fn record(&mut self, host: HostId, kind: TraceKind, subject: u32, amount: u32) {
        self.trace.record(self.now, host, kind, subject, amount);
    }
}

/// Keeps the memory of an empty byte queue for reuse.
pub(crate) fn keep_memory(bytes: &mut VecDeque<u8>, spares: &mut Vec<VecDeque<u8>>) {
    if bytes.capacity() == 0 {
        return;
    }
    let mut bytes = std::mem::take(bytes);
    if spares.len() < SPARES_MAX && bytes.capacity() <= SPARE_BYTES_MAX {
        bytes.clear();
        spares.push(bytes);
    }
}

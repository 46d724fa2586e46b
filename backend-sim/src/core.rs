//! [`Core`]: all that a simulation knows but its tasks, and what happens in it.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::connect::Attempt;
use crate::connection::{Connection, Side};
use crate::dice::Dice;
use crate::host::{HostId, Hosts};
use crate::link::Links;
use crate::listener::Listeners;
use crate::plan::Plan;
use crate::queue::{Queue, TIME_MAX};
use crate::runtime::Config;
use crate::slab::{Key, Slab};
use crate::timer::Timers;
use crate::trace::{Trace, What};

/// Nanoseconds of virtual time since the simulation began.
pub(crate) type Time = u64;

/// The time `duration` after `now`; what does not fit is never.
pub(crate) fn after(now: Time, duration: Duration) -> Time {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(TIME_MAX);
    now.saturating_add(nanos).min(TIME_MAX)
}

/// Drained queues of bytes that are kept for others: of up to [`SPARE_BYTES_MAX`] each, 16 MiB at most.
const SPARES_MAX: usize = 256;

/// What a queue of bytes may hold to be kept, in bytes: the default buffers of a connection.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// The network, the clock, and what is to happen. No code of a task runs while it is borrowed: what is to
/// be woken, dropped or started is handed out by [`Shared::with`](crate::executor::Shared::with).
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) dice: Dice,
    pub(crate) trace: Trace,
    pub(crate) queue: Queue,
    pub(crate) timers: Timers,
    pub(crate) hosts: Hosts,
    pub(crate) links: Links,
    pub(crate) connections: Slab<Connection>,
    pub(crate) connections_made: u32,
    pub(crate) attempts: Slab<Attempt>,
    pub(crate) listeners: Listeners,
    pub(crate) plan: Plan,
    /// Queues of bytes that hold none, for those that are to.
    pub(crate) spares: Vec<VecDeque<u8>>,
    pub(crate) woken: Vec<Waker>,
    /// To be dropped where that may run code of a task.
    pub(crate) dropped: Vec<Waker>,
    pub(crate) actions: Vec<Action>,
}

/// What happens at a time. `side` is the end that it happens to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Timer(Key),
    /// So many bytes arrive; zero is the end of the stream.
    Arrive {
        connection: Key,
        side: Side,
        bytes: u32,
    },
    /// What was lost on its way to this end is sent again.
    Retransmit {
        connection: Key,
        side: Side,
    },
    /// This end learns that the other has read.
    Release {
        connection: Key,
        side: Side,
    },
    /// This end learns that there is no other end; if `is_answer`, because it sent so many bytes there,
    /// or, if they are none, the end of the stream.
    Reset {
        connection: Key,
        side: Side,
        bytes: u32,
        is_answer: bool,
    },
    /// Of an attempt to connect: its SYN arrives, or is sent again, or its answer arrives.
    Syn(Key),
    SynAgain(Key),
    SynAck(Key),
    Refused(Key),
    /// The server learns that the client has its answer.
    Established(Key),
    PortFree {
        host: HostId,
        port: u16,
        destination: u32,
    },
    /// The fault of this place in the plan.
    Fault(u32),
    Resume(HostId),
    Restart(HostId),
}

/// What the executor is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// The tasks of a host that are paused may go on.
    Resume(HostId),
    /// The tasks of a host are no more.
    DropTasks(HostId),
    StartService(HostId),
}

impl Core {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            now: 0,
            dice: Dice::new(config.seed),
            trace: Trace::new(config.trace_records),
            queue: Queue::new(),
            timers: Timers::new(),
            hosts: Hosts::new(),
            links: Links::new(),
            connections: Slab::new(),
            connections_made: 0,
            attempts: Slab::new(),
            listeners: Listeners::new(),
            plan: Plan::new(),
            spares: Vec::with_capacity(SPARES_MAX),
            woken: Vec::new(),
            dropped: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Lets happen all that is due.
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
            Event::SynAgain(attempt) => self.send_syn(attempt),
            Event::SynAck(attempt) => self.syn_ack_arrives(attempt),
            Event::Refused(attempt) => self.refusal_arrives(attempt),
            Event::Established(connection) => self.establish(connection),
            Event::PortFree { host, port, destination } => {
                self.hosts.get_mut(host).ports.free(destination, port);
            }
            Event::Fault(index) => self.strike(index as usize),
            Event::Resume(host) => self.actions.push(Action::Resume(host)),
            Event::Restart(host) => self.restart(host),
        }
    }

    /// Sends what is no data from one host to another; within a host it arrives at once.
    pub(crate) fn send(&mut self, from: HostId, to: HostId, event: Event) {
        if from == to {
            self.handle(event);
        } else {
            let at = self.links.arrival_of_news(from, to, self.now, &mut self.dice);
            self.queue.push(at, event);
        }
    }

    pub(crate) fn record(&mut self, host: HostId, what: What, subject: u32, amount: u32) {
        self.trace.record(self.now, host, what, subject, amount);
    }
}

/// Keeps the memory of a queue of bytes that is empty.
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

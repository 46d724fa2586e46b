//! [`Evidence`]: what the detector saw of one stall at one moment. A verdict depends on nothing else.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use crate::proc::ring::Ring;
pub use crate::proc::thread::Syscall;
pub use crate::stack::{Frame, Stack};

/// What the detector saw. Everything that it could not see is absent, and `unseen` says why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Evidence {
    /// How late the heartbeat is, in milliseconds. `None`: all hearts beat, and something else is wrong.
    pub late_ms: Option<u64>,
    /// How late a heartbeat must be to count as a stall, in milliseconds.
    pub threshold_ms: u64,
    /// The threads of the stalled loop: one, or at most 16 of a runtime of several threads.
    pub threads: Vec<Thread>,
    /// What was seen from outside in the last seconds, the oldest first: at most 8 looks.
    pub looks: Vec<Look>,
    /// What could not be read, and why.
    pub unseen: Vec<String>,
}

/// One thread during the stall.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Thread {
    /// The name of the thread.
    pub name: String,
    /// Its number.
    pub tid: u32,
    /// Its state at this moment as the kernel names it: `R` running or waiting for a CPU, `S` and `D` blocked.
    pub state: Option<char>,
    /// The time that the following figures cover. It began when the heart was late by half the threshold; if nobody
    /// looked then, up to a second before.
    pub window_ms: u64,
    /// How long it ran on a CPU.
    pub ran_ms: Option<u64>,
    /// How long it was runnable and waited for a CPU.
    pub waited_ms: Option<u64>,
    /// How much of the last few milliseconds it ran, in percent.
    pub recently_ran_percent: Option<u64>,
    /// How often its tasks were polled in this window, or since the heart was due if that is later. `None`: the program does
    /// not [count](crate::Heart::set_poll_counter) that, the polls of the stall cannot be told from those before, or there
    /// were none while the thread was examined, although it ran.
    pub polls: Option<u64>,
    /// Whether the runtime said that it parked the thread, or the thread sleeps where the runtime allows it (tokio's
    /// `block_in_place`, and threads for blocking work).
    pub is_parked: bool,
    /// How much of the time on a CPU was in the kernel. In steps of 10 ms.
    pub system_ms: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// The system call that it is blocked in.
    pub syscall: Option<Syscall>,
    /// The kernel function that it sleeps in.
    pub wchan: Option<String>,
    /// The kernel's stack, with the permission for it.
    pub kernel_stack: Vec<String>,
    /// Its stack, several times if it runs: at most 16.
    pub stacks: Vec<Stack>,
}

/// One look at what can be seen without the stalled thread.
///
/// Figures of the machine (from TIME_WAIT and ports to throttling) are there at every fourth look, and at those while a
/// heart is late.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Look {
    /// When, in milliseconds since the detector started.
    pub at_ms: u64,
    /// How late the latest heart was, in milliseconds, if it was late by the threshold.
    pub heart_late_ms: Option<u64>,
    /// The listeners of this process, at most 64.
    pub listeners: Vec<Listener>,
    /// Connection requests that were dropped because an accept queue was full, in this network namespace since boot.
    pub listen_overflows: Option<u64>,
    /// The rings of this process, at most 64.
    pub rings: Vec<Ring>,
    /// Open descriptors. Counting stops at 65,536. Before Linux 6.2 a number over 1,024 may be 10 s old.
    pub descriptors: Option<u64>,
    /// The limit of open descriptors.
    pub descriptors_max: Option<u64>,
    /// Connections that came to a listener of this process, whose peer has closed, and that this process neither closes
    /// nor sends to; at most 4,096 are inspected. This figure and the next four are of the last inspection, see
    /// [`Config::connections_interval`](crate::Config::connections_interval).
    pub close_wait: Option<u64>,
    /// How many of them were in that state at the inspection before, too.
    pub close_wait_old: Option<u64>,
    /// Connections with bytes that nobody reads, that had some at the inspection before, too.
    pub unread_connections: Option<u64>,
    /// How many of these came to a listener of this process, were accepted, and had nothing read from them or sent to
    /// them since.
    pub never_served: Option<u64>,
    /// The listeners whose connections the program counted since the inspection before.
    pub counted: Vec<CountedConnections>,
    /// The listeners whose accept loops wait on purpose, as the program says: see
    /// [`Detector::accept_pauses`](crate::Detector::accept_pauses).
    pub accept_pauses: Vec<SocketAddr>,
    /// Connections in TIME_WAIT in this network namespace.
    pub time_wait: Option<u64>,
    /// Local ports for outgoing connections.
    pub local_ports: Option<u64>,
    /// What the program registered.
    pub gauges: Vec<GaugeValue>,
    /// The last probe.
    pub probe: Option<ProbeResult>,
    /// Time that some task waited for memory, in microseconds: of this process's cgroup if the kernel shows that, else of
    /// the machine.
    pub memory_pressure_us: Option<u64>,
    /// Time that the hypervisor ran others, in clock ticks of 10 ms, over all CPUs.
    pub steal_ticks: Option<u64>,
    /// Time that the quotas of the cgroup and of those around it stopped its threads, in microseconds, over all CPUs.
    pub throttled_us: Option<u64>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Listener {
    /// Its address.
    pub addr: SocketAddr,
    /// Tells it from others with the same address.
    pub inode: u32,
    /// Connections that wait for accept.
    pub queue: u32,
    /// How many may wait.
    pub backlog: u32,
    /// Packets that it has dropped, nearly all of them connection requests that found the queue full. The counter wraps
    /// around. `None`: the kernel does not say.
    #[serde(default)]
    pub dropped: Option<u32>,
}

/// Connections of a listener that the program counts, see [`Detector::connections`](crate::Detector::connections).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CountedConnections {
    /// The address of the listener.
    pub addr: SocketAddr,
    /// Connections to it that are open and were open at the inspection before, without those that were never served.
    pub open: u64,
    /// The most that the program had at a look since then.
    pub counted_max: u64,
}

/// A gauge and its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GaugeValue {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u64,
    /// What the program said it should not exceed.
    pub limit: Option<u64>,
}

/// What a probe met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProbeResult {
    /// The address that it connected to.
    pub addr: SocketAddr,
    /// When the probe began, in milliseconds since the detector started.
    pub at_ms: u64,
    /// How long it took, or has taken so far.
    pub took_ms: u64,
    /// How long it may take.
    pub limit_ms: u64,
    /// How far it came.
    pub outcome: ProbeOutcome,
    /// How many probes in a row got no byte, with this one.
    pub silent: u32,
}

/// How far a probe came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ProbeOutcome {
    /// It got what it waited for.
    Answered,
    /// The connection stood, and no byte came within the limit.
    NoByte,
    /// No connection within the limit: SYNs were dropped.
    NoConnection,
    /// The connection was refused: nobody listens.
    Refused,
    /// No local port was left for it.
    NoPort,
    /// Another error of the probe's own.
    Failed,
}

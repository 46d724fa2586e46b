//! [`Limits`]: what a connection may use, and how the memory of a worker is divided.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::memory::Memory;

/// What a worker grants its connections. Limits over all workers, and the times of a drain, are in
/// [`Config`](super::Config). An option in seconds is a [`Duration`] here: `--message-seconds-max` is
/// `message_time_max`. The default values, and their reasons, are in the code of [`default`](Self::default).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that are served at once, for each worker. The workers share the sum.
    pub connections_max: usize,
    /// Bytes of a message.
    pub message_bytes_max: usize,
    /// How long a message may take to arrive once it has begun. It is also how long a client may take nothing of what
    /// is sent to it; over TCP and TLS, where one answer is written at a time, how long a write of at most 64 KiB may
    /// take. And it is how long a message may wait for memory.
    pub message_time_max: Duration,
    /// How long a connection of echo, sink, source or Iggy over TCP or TLS may be without a byte from its client. None:
    /// for ever. WebSockets have no such limit: pings find out whether their peers are there.
    pub tcp_idle_time_max: Option<Duration>,
    /// How long the server waits for a client to end the connection after the server's last byte, over HTTP, WebSocket
    /// and TLS: the `close_timeout` of those protocols.
    pub linger_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Fits the descriptors that many systems allow a process (20,000), with room for the runtime's own.
            connections_max: 16_000,
            // The largest message of the workloads.
            message_bytes_max: 16 << 20,
            // 16 MiB at 5 Mbit/s.
            message_time_max: Duration::from_secs(30),
            tcp_idle_time_max: Some(Duration::from_secs(300)),
            // Two round trips and some lost packets.
            linger_time: Duration::from_secs(5),
        }
    }
}

/// The connections for each worker, and the division of a worker's memory. By default the workers share half of
/// the machine's memory, and there are 16,000 connections for each worker, or as many as its memory has room for.
pub(super) fn connections_and_memory(
    memory_max: Option<NonZeroUsize>,
    workers: NonZeroUsize,
    connections_max: Option<NonZeroUsize>,
) -> Result<(usize, Memory), String> {
    let bytes_max = memory_max.map_or_else(
        || {
            let machine = owned_io_os::memory_bytes().unwrap_or(MEMORY_BYTES_UNKNOWN) as usize;
            machine / 2 / workers
        },
        NonZeroUsize::get,
    );
    let fit = Memory::connections_that_fit(bytes_max) / workers;
    let connections_max = connections_max
        .map_or_else(|| Limits::default().connections_max.min(fit).max(1), NonZeroUsize::get);
    // Any worker may come to have all connections.
    let all = connections_max.saturating_mul(workers.get());
    let memory = Memory::divide(bytes_max, all).ok_or_else(|| {
        let least = Memory::least(all);
        format!(
            "--memory-max is {bytes_max}, and a worker that may have {all} connections needs {least}: give \
             it more, or fewer connections by --connections-max"
        )
    })?;
    Ok((connections_max, memory))
}

/// The memory that is assumed if the kernel does not report it: 1 GiB.
const MEMORY_BYTES_UNKNOWN: u64 = 1 << 30;

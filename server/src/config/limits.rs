//! [`Limits`]: what a connection may use.

use std::time::Duration;

/// What a connection may use, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that are served at once, for each worker. The workers share the sum. Default 16,000: fits
    /// the descriptors that many systems allow a process (20,000), with room for the runtime's own.
    pub connections_max: usize,
    /// Bytes of a message. Default 16 MiB: the largest message of the workloads.
    pub message_bytes_max: usize,
    /// How long a message may take to arrive once it is announced, and how long an answer may take to be
    /// written. Default 30 s: 16 MiB at 5 Mbit/s. Over WebSocket, where several messages are written at once, it
    /// is how long the peer may take nothing of what is written.
    pub message_time_max: Duration,
    /// How long a connection of echo, sink or source over TCP or TLS may be without a message. Default 5
    /// minutes. None: for ever. WebSockets have no such limit: pings find out whether their peers are there.
    pub tcp_idle_time_max: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 16_000,
            message_bytes_max: 16 << 20,
            message_time_max: Duration::from_secs(30),
            tcp_idle_time_max: Some(Duration::from_secs(300)),
        }
    }
}

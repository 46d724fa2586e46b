//! [`Limits`]: what connections may use.

use std::time::Duration;

/// What connections may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections for each worker that are served at once; the workers share the places. Default 16,000:
    /// fits the descriptors that many systems allow a process (20,000), with room for the runtime's own.
    pub connections_max: usize,
    /// Bytes of a message. Default 16 MiB: the largest that the workloads ask for.
    pub message_bytes_max: usize,
    /// How long a message may take once it is announced, and to be taken. Default 30 s: 16 MiB at 5
    /// Mbit/s. Over WebSocket, where several are sent at once, it is how long the peer may take nothing of
    /// what is written.
    pub message_time_max: Duration,
    /// How long a connection of echo, sink or source may be without a message, over TCP and TLS. Default 5
    /// minutes; none: for ever. A WebSocket is asked whether it is there, by a ping.
    pub idle_time_max: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 16_000,
            message_bytes_max: 16 << 20,
            message_time_max: Duration::from_secs(30),
            idle_time_max: Some(Duration::from_secs(300)),
        }
    }
}

//! [`Limits`]: what a connection may use.

use std::time::Duration;

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

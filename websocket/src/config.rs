//! [`Config`]: what a connection accepts, holds and waits for; and [`compressed_bytes_max`], which some of
//! its limits follow.

use std::time::Duration;

/// What a connection accepts, holds and waits for at most.
///
/// ```
/// use std::time::Duration;
///
/// let mut config = owned_io_websocket::Config::default();
/// config.engine.message_bytes_max = 64 * 1024;
/// config.stream.idle_timeout = Some(Duration::from_secs(60));
/// config.handshake.head_bytes_max = 4 * 1024;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// How long frames, messages and the write queue may be.
    pub engine: EngineConfig,
    /// How long an open connection waits, and for what; and how messages are put together.
    pub stream: StreamConfig,
    /// The opening handshake.
    pub handshake: HandshakeConfig,
}

/// The limits of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The longest payload of one frame that the peer may send, in bytes. Checked when the header
    /// is read, before anybody allocates. Default 16 MiB.
    pub frame_bytes_max: usize,
    /// The longest message that the peer may send, over all its fragments, in bytes; of one that is
    /// compressed, what it decompresses to. Default 64 MiB: what one connection can make a program hold
    /// that assembles messages.
    pub message_bytes_max: usize,
    /// The most bytes that may be encoded and not yet written. What would exceed it is refused, so
    /// that a peer that does not read cannot make the program hold more; a message that is to be
    /// compressed too if it [might](compressed_bytes_max) exceed it. Default 16 MiB.
    pub queue_bytes_max: usize,
}

/// The time-outs of an open connection, and where its messages are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// How long the peer may be silent before it is sent a ping. Default 30 s, less than what
    /// most NATs and proxies take for a dead connection. None: no pings.
    pub ping_interval: Option<Duration>,
    /// How long the peer may stay silent after a ping before the connection fails. Any byte counts,
    /// not a pong alone: within a long frame a peer has no way to send one. Default 20 s.
    pub pong_timeout: Duration,
    /// How long a connection stays open with no message either way, pings answered or not; a program that
    /// neither receives nor sends for that long is idle, too. Default none: waiting for something to happen
    /// is what many connections are for.
    pub idle_timeout: Option<Duration>,
    /// How long a message may take to come, from the first byte of its first frame to the last of its
    /// last; time in which nobody waits for more of it, because the program is busy, does not count. Default
    /// 2 minutes: 64 MiB at 5 Mbit/s. A peer that sends a byte now and then answers pings well enough, and
    /// would have the program hold what it has of the message for ever. None, for messages without end,
    /// which are taken in pieces.
    pub message_timeout: Option<Duration>,
    /// How long the peer may take nothing of what is being written to it. Default 60 s: a peer that
    /// only sends is there, as far as pings can tell, and would have the program hold a queue for ever.
    pub write_timeout: Option<Duration>,
    /// How long the peer may take for its part of the closing handshake, from the time it last took
    /// some of what was queued before the close frame, and that. Default 5 s.
    pub close_timeout: Duration,
}

/// The limits of the opening handshake, and what a server agrees to in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeConfig {
    /// The longest head, in bytes. Default 8 KiB: browsers send a few hundred bytes, and cookies. A buffer
    /// of the pool holds it, and may be shorter.
    pub head_bytes_max: usize,
    /// How long each step may take: for a client, its request and the answer to it; for a server, the
    /// request, from when it is waited for, its own answer, and after a refusal the client's ending the
    /// stream. Default 10 s.
    pub timeout: Duration,
    /// Whether a server agrees to compression that it is offered, and how messages are compressed then. A
    /// client offers what its [`Offer`](crate::handshake::Offer::deflate) says. Default none: it takes
    /// several times as long as all else that is done for a message, which pays where the network is slow
    /// or costs money.
    #[cfg(feature = "deflate")]
    pub deflate: Option<crate::deflate::Deflate>,
}

/// How long a message of `message_bytes` bytes is at most when it is compressed (RFC 7692), in bytes: what
/// does not shrink gets longer, whoever compresses it with zlib.
///
/// zlib's fastest level has literals of 9 bits (RFC 1951 section 3.2.6), an eighth more; heads of blocks come
/// on top of that, which makes a seventh of a long message, and 64 bytes where it is short.
///
/// ```
/// use owned_io_websocket::{EngineConfig, compressed_bytes_max};
///
/// let mut limits = EngineConfig::default();
/// limits.message_bytes_max = 64 * 1024;
/// limits.frame_bytes_max = compressed_bytes_max(limits.message_bytes_max); // or some do not come through
/// ```
pub const fn compressed_bytes_max(message_bytes: usize) -> usize {
    message_bytes.saturating_add(message_bytes / 7 + 64)
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            frame_bytes_max: 16 * 1024 * 1024,
            message_bytes_max: 64 * 1024 * 1024,
            queue_bytes_max: 16 * 1024 * 1024,
        }
    }
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            ping_interval: Some(Duration::from_secs(30)),
            pong_timeout: Duration::from_secs(20),
            idle_timeout: None,
            message_timeout: Some(Duration::from_secs(120)),
            write_timeout: Some(Duration::from_secs(60)),
            close_timeout: Duration::from_secs(5),
        }
    }
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        Self {
            head_bytes_max: 8 * 1024,
            timeout: Duration::from_secs(10),
            #[cfg(feature = "deflate")]
            deflate: None,
        }
    }
}

//! [`Config`]: the limits and timeouts of a connection; and [`compressed_bytes_max`], for choosing
//! limits.

use std::time::Duration;

/// The limits and timeouts of a connection.
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
    /// Limits on frames, messages and the write queue.
    pub engine: EngineConfig,
    /// The timeouts of an open connection.
    pub stream: StreamConfig,
    /// The limits of the opening handshake.
    pub handshake: HandshakeConfig,
}

/// The limits of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The longest payload of a frame from the peer, in bytes. It is checked when the header is
    /// decoded, before anything is allocated. Default 16 MiB.
    pub frame_bytes_max: usize,
    /// The longest message from the peer, in bytes, over all its fragments and after decompression.
    /// A program that assembles messages may hold this much for one connection. Default 64 MiB.
    pub message_bytes_max: usize,
    /// The most bytes that may be encoded and not yet written. A message that would exceed it is
    /// refused, so that a peer that does not read cannot make the program hold more. A message that
    /// is to be compressed is refused if it [might](compressed_bytes_max) exceed it. Default 16
    /// MiB.
    pub queue_bytes_max: usize,
}

/// The timeouts of an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// How long the peer may be silent before a ping is sent. `None`: no pings. Default 30 s, which
    /// is shorter than the idle limits of most NATs and proxies.
    pub ping_interval: Option<Duration>,
    /// How long the peer may stay silent after a ping before the connection fails. Any byte counts,
    /// not only a pong, because a peer cannot send a pong within a long frame. Default 20 s.
    pub pong_timeout: Duration,
    /// How long a connection may have no data frame in either direction before it fails. A fragment
    /// of a message counts, pings and pongs do not. A program that neither receives nor sends for that
    /// long is idle too. `None`: no limit. Default `None`, because many connections exist to wait for
    /// events.
    pub idle_timeout: Option<Duration>,
    /// How long a message, or a control frame between messages, may take to arrive, from the first
    /// byte of its first frame to the last byte of its last. Time in which nobody waits for more of it,
    /// because the program is busy, does not count. Default 2 minutes: 64 MiB at 5 Mbit/s.
    ///
    /// It also bounds each wait for [memory](crate::stream#memory): to receive, when nothing is read,
    /// and to send. Without it, that is 30 s.
    ///
    /// Without it, a peer that answers pings and sends a byte now and then makes the program hold a
    /// partial message for ever. `None`: no limit, for endless messages that are received in
    /// pieces.
    pub message_timeout: Option<Duration>,
    /// How long the peer may accept nothing of what is being written. `None`: no limit. Default 60
    /// s. Pings do not replace it: a peer that sends but never reads is alive, and makes the
    /// program hold a queue for ever.
    pub write_timeout: Option<Duration>,
    /// How long the peer may take for its part of the closing handshake, and then to end the stream
    /// where we [wait](crate::stream::Incoming::receive) for that. The time begins when the peer
    /// last accepted some of the close frame or of the data before it. Default 5 s: enough for two
    /// round trips and some lost packets.
    pub close_timeout: Duration,
}

/// The limits of the opening handshake, and what a server accepts in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeConfig {
    /// The longest head of a request or response, in bytes. A buffer of the pool holds the head, so
    /// the length of those buffers is a limit too. Default 8 KiB: browsers send a few hundred
    /// bytes, and cookies.
    pub head_bytes_max: usize,
    /// How long each step may take. For a client: sending the request and receiving the response.
    /// For a server: receiving the request, counted from the start of the wait; and sending the
    /// response. Default 10 s.
    pub timeout: Duration,
    /// How long a server waits for the client to end the stream after any response but an upgrade.
    /// Default 5 s, as for [`StreamConfig::close_timeout`].
    pub close_timeout: Duration,
    /// Whether a server accepts offered compression, and how it compresses. A client uses
    /// [`Offer::deflate`](crate::handshake::Offer::deflate) instead. Default `None`: compressing a
    /// message costs several times as much as everything else done for it, which pays if the
    /// network is slow or charged by volume.
    #[cfg(feature = "deflate")]
    pub deflate: Option<crate::deflate::Deflate>,
}

/// The most bytes that a message of `message_bytes` bytes has after compression (RFC 7692). zlib
/// makes incompressible data longer.
///
/// At its fastest level zlib uses literals of up to 9 bits (RFC 1951 section 3.2.6), which adds an
/// eighth. With the headers of blocks that is a seventh for long messages, and at most 64 bytes
/// more for short ones.
///
/// ```
/// use owned_io_websocket::{EngineConfig, compressed_bytes_max};
///
/// let mut limits = EngineConfig::default();
/// limits.message_bytes_max = 64 * 1024;
/// limits.frame_bytes_max = compressed_bytes_max(limits.message_bytes_max); // or some are refused
/// ```
pub const fn compressed_bytes_max(message_bytes: usize) -> usize {
    message_bytes.saturating_add(message_bytes / 7 + 64)
}

const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl HandshakeConfig {
    /// The same without compression.
    pub(crate) const fn uncompressed(self) -> Self {
        Self {
            #[cfg(feature = "deflate")]
            deflate: None,
            ..self
        }
    }
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
            close_timeout: CLOSE_TIMEOUT,
        }
    }
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        Self {
            head_bytes_max: 8 * 1024,
            timeout: Duration::from_secs(10),
            close_timeout: CLOSE_TIMEOUT,
            #[cfg(feature = "deflate")]
            deflate: None,
        }
    }
}

//! [`Config`]: the limits and timeouts of a connection.

use std::time::Duration;

/// The limits and timeouts of a connection, and how the server names itself.
///
/// ```
/// let mut config = owned_io_http::Config::default();
/// config.limits.body_bytes_max = 16 << 20;
/// config.server = Some("example");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Limits on requests and on the queue.
    pub limits: Limits,
    /// How long each wait may take.
    pub timeouts: Timeouts,
    /// The value of `Server` in each answer. `None`: no such header. Default `None`: it tells an attacker more
    /// than a user.
    pub server: Option<&'static str>,
}

/// The limits on requests and on the queue, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest request line, with its line end. A longer one is answered 414. Default 8,000, which RFC 9112
    /// section 3 recommends as the least.
    pub request_line_bytes_max: usize,
    /// The longest head: request line, headers and the empty line. A longer one is answered 431. A buffer of the
    /// pool holds the head, so the length of those buffers is a limit too. Default 12 KiB: a request line of 8,000
    /// bytes, and 4 KiB of cookies.
    pub head_bytes_max: usize,
    /// The longest body of a request, without the framing of chunks. A longer one is answered 413: at once if
    /// its length is announced. Default 1 MiB, as in nginx.
    pub body_bytes_max: u64,
    /// The longest rest of a request's body that is read and discarded to keep the connection. Default 64 KiB:
    /// reading that much costs less than a new connection.
    pub discard_bytes_max: u64,
    /// The connection writes its queue once the queue is this long, without the pieces that are not copied. It may
    /// become longer by a head and 1,024 bytes of a body. Default 64 KiB: longer writes save few system calls.
    pub queue_bytes_max: usize,
    /// The connection writes its queue once the pieces in it that are not copied have this many bytes. They may have
    /// more by one piece. Default 64 KiB.
    pub queue_shared_bytes_max: usize,
}

/// How long each wait for the client may take. Time in which the connection does not wait does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// How long a connection may wait for the first byte of a request. Then it ends without an answer. Default
    /// 75 s, as in nginx: longer than the 60 s after which many proxies end their side.
    pub idle: Duration,
    /// How long a head may take, from its first byte. Then it is answered 408, unless the connection has received
    /// nothing of it but a line end. Default 10 s: several retransmissions.
    pub head: Duration,
    /// How long the client may send nothing of a body that is waited for. Then it is answered 408. Default 30 s.
    pub body: Duration,
    /// The least average rate of a body, in bytes per second, after the first [`body`](Self::body). A client
    /// that sends a byte now and then would otherwise hold the connection for ever. Default 1,024: a client on a
    /// bad mobile network is faster. Zero: no limit.
    pub body_rate_min: u32,
    /// How long the client may accept nothing of what is being written. Then the connection is reset. Default
    /// 60 s.
    pub write: Duration,
    /// The least average rate at which the client accepts the queue each time that it is written, in bytes per second,
    /// after the first [`write`](Self::write). Default 1,024, as for a body. Zero: no limit.
    pub write_rate_min: u32,
    /// How long the client may take to end its side after the last answer. Default 5 s: two round trips and
    /// some lost packets.
    pub close: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_line_bytes_max: 8_000,
            head_bytes_max: 12 * 1024,
            body_bytes_max: 1024 * 1024,
            discard_bytes_max: 64 * 1024,
            queue_bytes_max: 64 * 1024,
            queue_shared_bytes_max: 64 * 1024,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(75),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            body_rate_min: 1_024,
            write: Duration::from_secs(60),
            write_rate_min: 1_024,
            close: Duration::from_secs(5),
        }
    }
}

//! The services of the server, generic over the runtime. This library names no runtime; the binary does,
//! behind its cargo features.
//!
//! | service | what a client does |
//! |---|---|
//! | [`echo`](service::echo) | sends bytes, and gets them back as they arrive |
//! | [`sink`](service::sink) | sends messages, each answered by its length |
//! | [`source`](service::source) | asks for messages, and receives them |
//! | [`iggy`](service::iggy) | sends messages to streams and polls them, by Iggy's protocol |
//! | [`http`](service::http) | asks for the server's health, for an [object](service::object), or for one of the four over WebSocket, or sends [events](service::events) |
//! | [`admin`](service::admin) | asks for a page about the server, its health, its stalls and its metrics, however busy the server is |
//!
//! With feature `tls`, each of them but the last is available over TLS too. To sink, and from source, a message on TCP
//! is its length (`u32`, little-endian) and then that many bytes.
//!
//! # Where things are
//!
//! | module | subject |
//! |---|---|
//! | [`config`] | the configuration: flags, a TOML file, limits, listeners |
//! | [`server`], `worker` | what runs: all workers together, and each of them |
//! | [`accept`] | the accept loop of a listener |
//! | [`balance`] | which worker serves what is accepted |
//! | [`connection_limit`] | how many connections are served at once, in total and for each address |
//! | [`connections`] | the registry of open connections, and how each is closed |
//! | [`context`] | what a service is given for a connection |
//! | [`watch`] | ends connections of echo, sink, source and Iggy that are idle, or whose peers take nothing |
//! | [`stalls`] | watches for workers that stall |
//! | [`drain`] | ends the server without cutting connections off |
//! | [`ticker`] | wakes the watch of each worker periodically |
//! | [`memory`] | how a worker's memory is divided |
//! | [`metrics`] | what the server counts, and how `/metrics` shows it |
//! | [`object`] | the cache of an origin's objects |
//! | [`iggy`] | Iggy's protocol: streams, topics, consumer groups, messages, in memory or on disk |
//! | [`tls`] | certificates, and the handshake |
//! | [`log_limit`] | keeps repeated lines of log rare |
//! | [`service`] | the services |
//!
//! # How a connection ends
//!
//! The side that ends first sends its last byte, and waits for its peer to end too: closing a socket with unread bytes
//! resets it, and the peer may lose what was sent last. `--linger-seconds` limits the wait; then the connection is shut
//! down in both directions.
//!
//! | the connection ends | the wait for the client | by |
//! |---|---|---|
//! | a WebSocket: both have sent their close frame, nothing came with the client's behind it, and no ping waits for its pong | none: the client has no more to send. The connection is closed. If something has arrived, it is shut down and read before | `read_driver.rs` of `owned-io-websocket` |
//! | any other close of a WebSocket, or a failure that the client is told with a close code | `--linger-seconds` | the same, `incoming.rs` of the bridge |
//! | the last HTTP answer, for example a refusal | `--linger-seconds`, or 1 MiB of what the client still sends | `connection/end.rs` of `owned-io-http` |
//! | HTTP: 408, an idle connection, and one that waits for its client when the drain begins | none: nothing is read any more | the same |
//! | TLS: a handshake that fails, or a connection that fails later | `--linger-seconds`, or 6 MiB | `handshake.rs` and `stream.rs` of `owned-io-tls` |
//! | Iggy over TCP: a length that is not possible or over the limit, which the client is told | `--linger-seconds`, or 1 MiB of what the client still sends | [`service::iggy`] |
//! | echo, sink, source and Iggy: their client has ended first, or an error | none | [`service`] |
//! | a client takes nothing of what is sent to it, or holds memory that others need and takes nothing | none: a reset, so that the kernel keeps nothing for it | [`watch`], [`message_time_max`](config::Limits::message_time_max), [`MemoryBudget`](owned_io::MemoryBudget) |
//! | an idle connection of echo, sink, source or Iggy over TCP | none: the service ends the stream, or, if that waits for the client over TLS, a reset after `--message-seconds-max` | [`watch`] |
//! | the drain is over | none: a reset | [`drain`] |
//!
//! # How the server ends
//!
//! 1. [Notice](drain::DrainSignal::notice): `/health` answers 503 for `--drain-notice-seconds`, so that load
//!    balancers send new clients elsewhere. Everything else goes on.
//! 2. [Stop](drain::DrainSignal::stop): the listeners close. A connection that has asked for nothing is closed
//!    at once, a WebSocket is closed as going away, and other connections are answered and closed. Admins are
//!    answered until all connections have ended, and then closed in the same way, within 250 ms.
//! 3. Connections that have not ended after `--drain-seconds` are reset, counted and logged. The exit code is
//!    then 3.
//! 4. The log of `--data` is synced and closed, in what is left of `--drain-seconds`, but half a second at least. If
//!    a sync fails, the exit code is 1. With `--store kafka`, messages that wait for their acknowledgement are waited for
//!    as long, and the exit code is 1 if some are left.
//!
//! # Limits
//!
//! - The workers share the [permits](connection_limit) for connections: `--connections-max` times `--workers`.
//!   A client waits in the kernel's queue only while no worker has a free permit. [Admins](service::admin) have
//!   permits of their own.
//! - An address has at most `--connections-per-address-max` connections, over all workers, and
//!   [by default](connection_limit::AddressLimit) any number: behind a proxy all clients have its address.
//! - A connection of echo, sink, source or Iggy over TCP or TLS that is [idle](watch) for `--idle-seconds-max` is closed.
//!   WebSockets are never closed for idleness. A connection that is open, and whose client takes nothing for
//!   `--message-seconds-max`, is reset, and leaves nothing in the kernel. The table above is about a connection that ends.
//! - A client that has vanished is noticed after two minutes ([`Keepalive`](owned_io::Keepalive)), or after
//!   `--message-seconds-max` if that is longer. Pings notice it after 50 s on a WebSocket of the native engine.
//! - A request of HTTP must begin within ten seconds, of an [admin](service::admin) within a minute; otherwise its
//!   connection ends. The head must arrive within ten seconds; a client that is late is answered 408. A client that
//!   accepts nothing of an answer for ten seconds is reset.
//! - Pages of any [origin](config::AllowedOrigins) may open WebSockets, unless `--origins` lists some.
//! - Writing logs blocks nothing: lines that nobody reads are dropped, and counted. Lines that clients can cause
//!   are logged [once a second](log_limit).

#![forbid(unsafe_code)]

pub mod accept;
pub mod balance;
pub mod config;
pub mod connection_limit;
pub mod connections;
pub mod context;
pub mod drain;
pub mod iggy;
pub mod log_limit;
pub mod memory;
pub mod metrics;
pub mod object;
pub mod server;
pub mod service;
pub mod stalls;
pub mod ticker;
pub mod tls;
pub mod usage;
pub mod watch;
mod worker;

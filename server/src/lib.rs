//! The services of the server, generic over the runtime: this library names none. The binary does,
//! behind its cargo features.
//!
//! | service | what a connection does |
//! |---|---|
//! | [`echo`](service::echo) | gets back what it sends, as it arrives |
//! | [`sink`](service::sink) | sends messages, each answered by its length |
//! | [`source`](service::source) | asks for messages, and is sent them |
//! | [`http`](service::http) | asks how the server is, or for one of the three over WebSocket |
//! | [`admin`](service::admin) | asks how the server is, whatever it has to do |
//!
//! Each of them over TLS too, with feature `tls`, but the last.
//!
//! # How it ends
//!
//! 1. It is [given notice](drain::DrainSignal::notice): `/health` says 503, and all else goes on for
//!    `--drain-notice-seconds`, so that load balancers send new clients elsewhere.
//! 2. It [ends](drain::DrainSignal::stop): nobody is accepted any more. Who has asked for nothing is closed
//!    at once, a WebSocket is closed as going away, others are answered and closed. Admins are answered
//!    to the end.
//! 3. What has not ended after `--drain-seconds` is reset, counted and logged, and the exit code is 3.
//!
//! # Who may hold what
//!
//! - The workers share [`places`]: `--connections-max` times `--workers`. A client waits in the
//!   kernel's queue only while all of them are taken; [admins](service::admin) have their own.
//! - An address has [at most](per_address) `--connections-per-address-max` of them, over all workers. By
//!   default any number: behind a proxy all clients have its address.
//! - A connection over TCP or TLS that is [idle](watch) for `--idle-seconds-max` is closed; one whose peer
//!   takes nothing for `--message-seconds-max` is reset, and leaves nothing in the kernel. A peer that has
//!   vanished is noticed after two minutes ([`Keepalive`](owned_io::Keepalive)).
//! - A request has ten seconds to come, and who has begun one is told that it is late (408).
//! - A WebSocket is opened by pages of any [origin](origins), unless `--origins` lists some.
//! - Logs wait for nobody: what is not taken is dropped, and counted. What clients can cause is logged
//!   [once a second](repeated).
//!
//! On TCP a message is its length (`u32`, little-endian) and then that many bytes.

#![forbid(unsafe_code)]

pub mod accept;
pub mod config;
pub mod connections;
pub mod context;
pub mod drain;
pub mod memory;
pub mod origins;
pub mod per_address;
pub mod places;
pub mod repeated;
pub mod server;
pub mod service;
pub mod tls;
pub mod watch;
mod worker;

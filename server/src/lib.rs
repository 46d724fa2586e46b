//! The services of the server, generic over the runtime: this library names none. The binary does,
//! behind its cargo features.
//!
//! | service | what a connection does |
//! |---|---|
//! | [`echo`](service::echo) | gets back what it sends, as it arrives |
//! | [`sink`](service::sink) | sends messages, each answered by its length |
//! | [`source`](service::source) | asks for messages, and is sent them |
//! | [`http`](service::http) | asks how the server is, or for one of the three over WebSocket |
//!
//! Each of them over TLS too, with feature `tls`.
//!
//! On TCP a message is its length (`u32`, little-endian) and then that many bytes.

#![forbid(unsafe_code)]

pub mod accept;
pub mod config;
pub mod connections;
pub mod places;
pub mod service;
pub mod tls;
pub mod worker;

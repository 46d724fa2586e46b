//! The load generator: one module per command, on one set of connections.
//!
//! A command opens a [`session`](self) of connections on one epoll, decides when each may send, and
//! keeps what it saw in a [`Report`]. What is sent and what is expected back is an exchange; when it
//! is sent is a schedule. Nothing is allocated per message.

mod connection;
mod dial;
mod exchange;
mod histogram;
mod options;
mod pace;
mod report;
mod server;
mod session;
mod steady;
mod window;

pub mod arrivals;
pub mod burst;
pub mod echo;
pub mod hold;
pub mod limit;
pub mod sink;
pub mod source;

use std::fmt;

pub use options::{Common, Steady};
pub use report::Report;

/// Why there was no run, in one sentence.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

//! The load generator: one module per command, on one set of connections.
//!
//! A command opens a [`session`](self) of connections on one epoll, decides when each may send, and
//! keeps what it saw in a [`Report`]. What is sent and what is expected back is an exchange; when it
//! is sent is a schedule. Nothing is allocated per message.

mod connection;
mod dial;
mod exchange;
mod frames;
mod histogram;
mod options;
mod pace;
mod perf;
mod report;
mod series;
mod server;
mod session;
mod steady;
mod transport;
mod upgrade;
mod window;

pub mod arrivals;
pub mod burst;
pub mod churn;
pub mod deflate;
pub mod echo;
pub mod fetch;
pub mod hold;
pub mod limit;
pub mod sink;
pub mod source;

pub use options::{Common, Steady};
pub use report::Report;

use crate::Failure;

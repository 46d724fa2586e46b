//! The load generator: one module per command, on one set of connections.
//!
//! A command opens a [`session`](self) of connections on one epoll, decides when each may send, and
//! returns a [`Report`]. An exchange defines what is sent and what is expected back; a schedule defines when it
//! is sent. Nothing is allocated per message.

mod bounds;
mod command;
mod connection;
mod dial;
mod exchange;
mod frames;
mod histogram;
mod http;
mod login;
mod options;
mod pace;
mod perf;
pub(crate) mod report;
mod series;
mod session;
mod steady;
mod transport;
mod upgrade;
mod usage;
mod window;
mod windows;

pub mod arrivals;
pub mod burst;
pub mod churn;
pub mod deflate;
pub mod echo;
pub mod fetch;
pub mod hold;
pub mod iggy;
pub mod limit;
pub mod object;
pub mod post;
pub mod sink;
pub mod source;
pub mod subscribe;

pub use bounds::{
    Bounded, ConnectionRate, Connections, InFlight, MessageRate, NonZeroSeconds, Payload, Seconds,
};
pub use command::{CommandLine, Load};
pub use options::{Steady, Target};
pub use report::Report;

pub(crate) use histogram::Percentiles;
pub(crate) use series::Series;
#[cfg(test)]
pub(crate) use series::Stalls;
#[cfg(test)]
pub(crate) use session::Tally;
#[cfg(test)]
pub(crate) use usage::ResourceUsage;
pub(crate) use usage::{PerMessage, UsageSnapshot};
pub(crate) use windows::{WINDOW_MS_MAX, WindowAnswer};

use crate::Failure;

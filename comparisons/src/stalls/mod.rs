//! The stall lab: each kind of stall on each runtime, with a naive server and with ours.
//!
//! A scenario (`comparisons/stalls.toml`) says what happens to a server, and which class of stall that is. A run starts
//! a server, watches it with new clients before the fault, during it and after it, and compares what the detector says
//! with the truth. Like the [matrix](crate::matrix), this links nothing that it measures.

mod figures;
mod html;
mod judge;
mod markdown;
mod measure;
mod network;
mod plan;
mod record;
mod results;
mod run;
mod scheduler;
mod stress;
mod terminal;
mod timeline;
mod watch;

pub use run::Options;

use crate::Failure;

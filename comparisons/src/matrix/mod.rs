//! The matrix: servers × workloads, in interleaved rounds.
//!
//! A [`Plan`] lists the workloads. Each row of a workload is a server, which starts for each round on
//! a core of its own, with the [load generator](crate::load) on another. Rounds are interleaved (A B C,
//! C B A, …), so that drift affects all rows alike, and ratios are taken within a round. This program
//! links nothing that it measures: it builds programs and runs them.

mod alternate;
mod axis;
mod calls;
mod certificate;
mod compare;
mod curves;
mod escape;
mod figures;
mod findings;
mod heat;
mod host;
mod html;
mod interrupt;
mod load_process;
mod measure;
mod overview;
mod pairs;
mod plan;
mod plots;
mod program;
mod progress;
mod report;
mod results;
mod run;
mod self_check;
mod servers;
mod statistics;
mod stopping;
mod strips;
mod table;
mod terminal;
mod versions;
mod workload;

pub use plan::Plan;
pub use run::{Compare, Options, Report};

use crate::Failure;

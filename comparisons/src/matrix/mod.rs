//! The matrix: servers × workloads, in interleaved rounds or in pairs.
//!
//! A [`Plan`] lists the workloads. Each row of a workload is a server, which starts for each round on
//! a core of its own, with the [load generator](crate::load) on another. Rounds are interleaved (A B C,
//! C B A, …), so that drift affects all rows alike, and ratios are taken within a round. In a workload that is
//! measured in pairs, all servers of a round are alive, and short windows of a row and its baseline alternate. This
//! program links nothing that it measures: it builds programs and runs them.

mod alternate;
pub(crate) mod axis;
mod calls;
mod compare;
pub(crate) mod credentials;
mod curves;
mod data_folder;
pub(crate) mod escape;
mod figures;
mod findings;
mod heat;
pub(crate) mod host;
mod html;
pub(crate) mod interrupt;
pub(crate) mod load_process;
mod measure;
mod objects_folder;
mod overview;
pub(crate) mod page;
mod pairs;
mod plan;
pub(crate) mod plots;
pub(crate) mod program;
mod progress;
mod report;
pub(crate) mod results;
pub(crate) mod run;
mod self_check;
pub(crate) mod servers;
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

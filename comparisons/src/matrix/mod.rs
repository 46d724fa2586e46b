//! The matrix: servers × workloads, in interleaved rounds.
//!
//! A [`Plan`] says what is measured. Each row of a workload is a server, started anew for each round on
//! a core of its own, with the [load generator](crate::load) on another. Rounds are interleaved (A B C,
//! C B A, …), so that whatever drifts hits all rows alike, and ratios are taken within a round. Nothing
//! that is measured is linked into this program: it builds programs, and runs them.

mod host;
mod plan;
mod program;
mod report;
mod run;
mod statistics;

use std::fmt;

pub use plan::Plan;
pub use run::Options;

/// Why there is no matrix, in one sentence.
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

//! `load sink`: every message is answered by its length.

use clap::Args;

use super::exchange::Sink;
use super::options::{self, Common, Steady};
use super::{Failure, Report, steady};

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    steady: Steady,
    /// The length of a message, nothing counted that is before it.
    #[arg(long, value_name = "BYTES", value_parser = options::payload)]
    payload: u32,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(&self) -> Result<Report, Failure> {
        steady::run(&self.common, &self.steady, Sink::new(self.common.wire(), self.payload))
    }
}

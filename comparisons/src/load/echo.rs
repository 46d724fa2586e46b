//! `load echo`: every message comes back.

use clap::Args;

use super::exchange::Echo;
use super::options::{self, Common, Steady};
use super::{Failure, Report, steady};

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    steady: Steady,
    /// The length of a message.
    #[arg(long, value_name = "BYTES", value_parser = options::payload)]
    payload: u32,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(&self) -> Result<Report, Failure> {
        let echo = Echo::new(self.common.wire(), self.payload as usize);
        steady::run(&self.common, &self.steady, echo)
    }
}

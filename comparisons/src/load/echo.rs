//! `load echo`: every message comes back.

use super::exchange::Echo;
use super::{Failure, Report, Steady, Target, steady};

/// Runs it and prints the report.
///
/// # Errors
/// When there was no run; what happens to connections in a run is in the report.
pub fn run(options: &Steady, target: &Target) -> Result<Report, Failure> {
    steady::run(options, target, Echo::new(target.wire(), options.payload.count()))
}

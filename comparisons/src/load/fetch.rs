//! `load fetch`: a message is asked for, and comes.

use super::exchange::Fetch;
use super::{Failure, Report, Steady, Target, steady};

/// Runs it and prints the report.
///
/// # Errors
/// When there was no run; what happens to connections in a run is in the report.
pub fn run(options: &Steady, target: &Target) -> Result<Report, Failure> {
    steady::run(options, target, Fetch::new(target.wire(), 1, options.payload.get() as u32, 1))
}

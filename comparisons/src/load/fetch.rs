//! `load fetch`: a message is asked for, and comes.

use super::exchange::Fetch;
use super::{Failure, Report, Steady, steady};

/// Runs it and prints the report.
///
/// # Errors
/// When there was no run; what happens to connections in a run is in the report.
pub fn run(options: &Steady) -> Result<Report, Failure> {
    steady::run(options, Fetch::new(options.common.wire(), options.payload))
}

//! `load sink`: every message is answered by its length.

use super::exchange::Sink;
use super::{Failure, Report, Steady, Target, steady};

/// Runs it and prints the report.
///
/// # Errors
/// When there was no run; what happens to connections in a run is in the report.
pub fn run(options: &Steady, target: &Target) -> Result<Report, Failure> {
    steady::run(options, target, Sink::new(target.wire(), options.payload.get() as u32))
}

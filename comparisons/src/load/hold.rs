//! `load hold`: idle connections, and what they cost the server.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::bounds::{Connections, NonZeroSeconds, Seconds};
use super::dial::Dialer;
use super::exchange::{Echo, Exchange};
use super::options::{self, NO_TIME, PATIENCE, Target};
use super::pace::{Clock, ns};
use super::report::Hold;
use super::session::{Opening, Session};
use super::usage::UsageSnapshot;
use super::window::Window;
use super::{Failure, Report};

/// The options of `load hold`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many connections.
    #[arg(long, value_name = "N")]
    connections: Connections,
    /// How long they stay.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// Opens them evenly over so long.
    #[arg(long, value_name = "S", default_value_t = NO_TIME)]
    #[serde(default = "options::no_time")]
    pub(crate) ramp: Seconds,
    /// How long a connect may take.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "options::patience")]
    pub(crate) patience: NonZeroSeconds,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(&self, target: &Target) -> Result<Report, Failure> {
        let connections = self.connections.count();
        target.prepare(connections)?;
        let before = target.server_pid.map(UsageSnapshot::of).transpose()?;
        let clock = Clock::new();
        let mut session = Session::new(Echo::new(target.wire(), 1), clock, connections, 1, 0)?;
        let mut dialer = Dialer::new(target, connections)?;
        session.open_all(&mut dialer, self.patience.get(), self.ramp.get(), Opening::Connect)?;
        session.tally.require_opened()?;

        let opening = clock.now();
        let mut window = Window::new(opening, opening + ns(self.seconds.get()), target);
        idle_until_end(&mut session, &mut window)?;
        let still_open = session.open as u64;
        let stats = window.finish(clock, &session.tally);

        let mut report = Report::new(stats.seconds, self.connections.get(), &session.tally);
        let grown = before
            .zip(stats.server.as_ref())
            .map(|(before, after)| (after.rss_kib * 1024).saturating_sub(before.rss_bytes()));
        report.hold = Some(Hold {
            opening_us: opening as f64 / 1e3,
            still_open,
            server_rss_bytes_each: grown.map(|bytes| bytes as f64 / still_open.max(1) as f64),
        });
        report.client = stats.client;
        report.server = stats.server;
        report.finish(target)
    }
}

/// Leaves the connections idle until the window is over.
pub(crate) fn idle_until_end<E: Exchange>(
    session: &mut Session<E>,
    window: &mut Window,
) -> Result<(), Failure> {
    let clock = session.clock;
    let mut ready = Vec::new();
    loop {
        let now = clock.now();
        window.observe(clock, now, &session.tally)?;
        if now >= window.end {
            return Ok(());
        }
        session.wait(&mut ready, Duration::from_nanos(window.next_after(now, now) - now))?;
        for event in &ready {
            // The only events are pings and ends of connections; the tally counts the latter.
            session.handle_event(*event);
            session.flush(event.index);
        }
    }
}

//! `load hold`: connections that do nothing, for what they cost.

use std::time::Duration;

use clap::Args;

use super::dial::Dialer;
use super::exchange::{Echo, Exchange};
use super::options::{self, Common};
use super::pace::{Clock, ns};
use super::report::Hold;
use super::server::Usage;
use super::session::{Opening, Session};
use super::window::Window;
use super::{Failure, Report};

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    /// How many connections.
    #[arg(long, value_name = "N", value_parser = options::connections)]
    connections: usize,
    /// How long they stay.
    #[arg(long, value_name = "S", value_parser = options::seconds)]
    seconds: Duration,
    /// Opens them evenly over so long.
    #[arg(long, value_name = "S", default_value = "0", value_parser = options::seconds_or_none)]
    ramp: Duration,
    /// How long a connect may take.
    #[arg(long, value_name = "S", default_value = "10", value_parser = options::seconds)]
    patience: Duration,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(&self) -> Result<Report, Failure> {
        self.common.prepare(self.connections)?;
        let before = self.common.server_pid.map(Usage::of).transpose()?;
        let clock = Clock::new();
        let mut session =
            Session::new(Echo::new(self.common.wire(), 1), clock, self.connections, 1, 0)?;
        let mut dialer = Dialer::new(&self.common, self.connections)?;
        session.open_all(&mut dialer, self.patience, self.ramp, Opening::Connect)?;
        session.tally.require_opened()?;

        let opening = clock.now();
        let mut window = Window::new(opening, opening + ns(self.seconds), &self.common);
        stay(&mut session, &mut window)?;
        let still_open = session.open as u64;
        let seen = window.finish(clock, &session.tally);

        let mut report = Report::new(seen.seconds, self.connections as u64, &session.tally);
        let grown = before
            .zip(seen.server.as_ref())
            .map(|(before, after)| (after.used.rss_kib * 1024).saturating_sub(before.rss_bytes()));
        report.hold = Some(Hold {
            opening_us: opening as f64 / 1e3,
            still_open,
            server_rss_bytes_each: grown.map(|bytes| bytes as f64 / still_open.max(1) as f64),
        });
        report.client = seen.client;
        report.server = seen.server;
        report.finish(&self.common)
    }
}

/// Lets connections do nothing until the window is over.
pub(crate) fn stay<E: Exchange>(
    session: &mut Session<E>,
    window: &mut Window,
) -> Result<(), Failure> {
    let clock = session.clock;
    let mut ready = Vec::new();
    loop {
        let now = clock.now();
        window.look(clock, now, &session.tally)?;
        if now >= window.end {
            return Ok(());
        }
        session.wait(&mut ready, Duration::from_nanos(window.next_after(now, now) - now))?;
        for event in &ready {
            // Nothing is to come but the end of a connection, which goes to the tally, or a ping.
            session.turn(*event);
            session.flush(event.index);
        }
    }
}

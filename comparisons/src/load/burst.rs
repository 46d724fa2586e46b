//! `load burst`: connections that come all at once.

use std::time::Duration;

use clap::Args;

use super::dial::Dialer;
use super::exchange::Echo;
use super::histogram::Histogram;
use super::options::{self, Common};
use super::pace::{Clock, ns};
use super::report::Burst;
use super::session::Session;
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
    /// The length of the message that each sends.
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = options::payload)]
    payload: u32,
    /// How long a first echo may take.
    #[arg(long, value_name = "S", default_value = "30", value_parser = options::seconds)]
    patience: Duration,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(&self) -> Result<Report, Failure> {
        self.common.prepare(self.connections)?;
        let clock = Clock::new();
        let echo = Echo::new(self.common.wire(), self.payload as usize);
        let mut session = Session::new(echo, clock, self.connections, 1, 0)?;
        let mut dialer = Dialer::new(&self.common, self.connections)?;
        let mut ready = Vec::new();
        let (mut connect, mut first_echo) = (Histogram::new(), Histogram::new());

        let mut start = clock.now();
        let mut window = Window::new(start, u64::MAX, &self.common);
        window.look(clock, start, &session.tally)?;
        start = clock.now();
        for index in 0..self.connections {
            if session.open(index, &mut dialer) {
                session.release(index, start);
            }
        }
        let issued = clock.now() - start;
        let last = start.saturating_add(ns(self.patience));
        while session.outstanding > 0 && clock.now() < last {
            session.wait(&mut ready, Duration::from_nanos(last.saturating_sub(clock.now())))?;
            for event in &ready {
                let turn = session.turn(*event);
                if turn.connected {
                    connect.record(turn.now - start);
                }
                if !turn.answered.is_empty() {
                    first_echo.record(turn.now - start);
                    session.tally.opened += 1;
                }
                session.flush(event.index);
            }
        }
        // Each owes one echo for as long as it is not over.
        let never = session.outstanding;
        let failed = self.connections as u64 - first_echo.len() - never;
        let seen = window.finish(clock, &session.tally);
        if connect.len() == 0 {
            session.close_all("no echo");
            session.tally.require_opened()?;
        }

        let mut report = Report::new(seen.seconds, self.connections as u64, &session.tally);
        report.burst = Some(Burst {
            issued_us: issued as f64 / 1e3,
            connected: connect.len(),
            connected_over_1_s: connect.over_1_s(),
            echoed: first_echo.len(),
            echoed_over_1_s: first_echo.over_1_s(),
            never,
            failed,
            connect_us: connect.percentiles(),
            first_echo_us: first_echo.percentiles(),
        });
        report.client = seen.client;
        report.server = seen.server;
        report.finish(&self.common)
    }
}

//! `load burst`: many connections are opened at once.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::bounds::{Connections, NonZeroSeconds, Payload};
use super::dial::Dialer;
use super::exchange::Echo;
use super::histogram::Histogram;
use super::options::Target;
use super::pace::{Clock, ns};
use super::report::Burst;
use super::session::Session;
use super::window::Window;
use super::{Failure, Report};

/// The options of `load burst`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many connections.
    #[arg(long, value_name = "N")]
    connections: Connections,
    /// The length of the message that each sends.
    #[arg(long, value_name = "BYTES", default_value_t = SMALL)]
    #[serde(default = "small")]
    payload: Payload,
    /// How long a first echo may take.
    #[arg(long, value_name = "S", default_value_t = FIRST_ECHO)]
    #[serde(default = "first_echo")]
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
        let clock = Clock::new();
        let echo = Echo::new(target.wire(), self.payload.count());
        let mut session = Session::new(echo, clock, connections, 1, 0)?;
        let mut dialer = Dialer::new(target, connections)?;
        let mut ready = Vec::new();
        let (mut connect, mut first_echo) = (Histogram::new(), Histogram::new());

        let mut start = clock.now();
        let mut window = Window::new(start, u64::MAX, target);
        window.observe(clock, start, &session.tally)?;
        start = clock.now();
        for index in 0..connections {
            if session.open(index, &mut dialer) {
                session.release(index, start);
            }
        }
        let issued = clock.now() - start;
        let last = start.saturating_add(ns(self.patience.get()));
        while session.outstanding > 0 && clock.now() < last {
            session.wait(&mut ready, Duration::from_nanos(last.saturating_sub(clock.now())))?;
            for event in &ready {
                let outcome = session.handle_event(*event);
                if outcome.connected {
                    connect.record(outcome.now - start);
                }
                if !outcome.answered.is_empty() {
                    first_echo.record(outcome.now - start);
                    session.tally.opened += 1;
                }
                session.flush(event.index);
            }
        }
        // Each connection that is not over has one echo outstanding.
        let never = session.outstanding;
        let failed = self.connections.get() - first_echo.len() - never;
        let stats = window.finish(clock, &session.tally);
        if connect.len() == 0 {
            session.close_all("no echo");
            session.tally.require_opened()?;
        }

        let mut report = Report::new(stats.seconds, self.connections.get(), &session.tally);
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
        report.client = stats.client;
        report.server = stats.server;
        report.finish(target)
    }
}

/// How long a first echo may take by default.
const FIRST_ECHO: NonZeroSeconds = NonZeroSeconds::of::<30>();

const fn first_echo() -> NonZeroSeconds {
    FIRST_ECHO
}

/// The default length of a message.
const SMALL: Payload = Payload::of::<64>();

const fn small() -> Payload {
    SMALL
}

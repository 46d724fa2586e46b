//! `load source`: asks for messages and checks what comes.

use std::time::Duration;

use clap::Args;

use super::Failure;
use super::dial::Dialer;
use super::exchange::{Exchange, Source};
use super::histogram::Histogram;
use super::options::{self, Common};
use super::pace::{Clock, ns};
use super::report::{Messages, Report, ServerUse};
use super::session::{Opening, Session};
use super::window::Window;

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    /// How many messages each connection asks for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// The length of a message, its prefix of four bytes not counted.
    #[arg(long, value_name = "S", value_parser = options::payload)]
    bytes: u32,
    /// How many messages the server is to send at once.
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// How many connections ask.
    #[arg(long, value_name = "N", default_value = "1", value_parser = options::connections)]
    connections: usize,
    /// How long to wait while nothing comes.
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
        let clock = Clock::new();
        let source = Source::new(self.messages, self.bytes, self.batch);
        let mut session = Session::new(source, clock, self.connections, 1, 0)?;
        let mut dialer = Dialer::new(self.common.addr, self.connections);
        session.open_all(&mut dialer, self.patience, Opening::Connect)?;
        session.tally.require_opened()?;

        let now = clock.now();
        let mut window = Window::new(now, u64::MAX, self.common.server_pid);
        window.look(clock, now, &session.tally)?;
        let mut latency = Histogram::new();
        let bytes = self.receive(&mut session, &mut latency)?;
        let seen = window.finish(clock, &session.tally);
        let request_bytes = session.exchange.request_bytes();
        let received = bytes.iter().map(|bytes| session.exchange.messages_in(*bytes)).sum::<u64>();
        session.linger()?;
        let unfinished = format!("nothing came for {} s", self.patience.as_secs_f64());
        session.close_all(&unfinished);

        let mut report = Report::new(seen.seconds, self.connections as u64, &session.tally);
        report.messages = Some(Messages {
            offered_per_s: None,
            sent: seen.sent,
            received,
            received_per_s: seen.per_s(received),
            received_mib_per_s: seen.mib_per_s(seen.received_bytes),
            sent_mib_per_s: seen.mib_per_s(seen.sent * request_bytes),
            unanswered: self.connections as u64 * u64::from(self.messages) - received,
            unsent: session.tally.unsent,
            held_back: None,
        });
        report.latency_us = latency.percentiles();
        report.client = seen.client;
        report.server = seen.server.map(|server| ServerUse::new(server.used, received));
        report.finish(&self.common)
    }

    /// Until all have all, or nothing comes; how many bytes came to each.
    fn receive(
        &self,
        session: &mut Session<Source>,
        latency: &mut Histogram,
    ) -> Result<Vec<u64>, Failure> {
        let mut bytes = vec![0; self.connections];
        let mut ready = Vec::new();
        let mut heard = session.clock.now();
        for index in 0..self.connections {
            session.release(index, session.clock.now());
            session.flush(index);
        }
        while session.outstanding > 0 {
            let deadline = heard + ns(self.patience);
            let now = session.clock.now();
            if now >= deadline {
                break;
            }
            session.wait(&mut ready, Duration::from_nanos(deadline - now))?;
            for event in &ready {
                let turn = session.turn(*event);
                bytes[event.index] += turn.bytes;
                if turn.bytes > 0 {
                    heard = turn.now;
                }
                for message in turn.answered.clone() {
                    latency.record(turn.now - session.started(event.index, message));
                }
                session.flush(event.index);
            }
        }
        Ok(bytes)
    }
}

//! `load source`: asks for messages and checks what comes.

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::Failure;
use super::dial::Dialer;
use super::exchange::{Source, Wire};
use super::options::{self, Common};
use super::pace::{Clock, ns};
use super::report::{Messages, Report};
use super::session::{Opening, Session};
use super::window::Window;

/// What is asked for when time is to end it: more than can come in any window.
const MESSAGES_MAX: u32 = u32::MAX;

/// What it is told.
#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new("end").required(true)))]
pub struct Options {
    #[command(flatten)]
    common: Common,
    /// How many messages each connection asks for: all of them are measured, from the first connect.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), group = "end")]
    messages: Option<u32>,
    /// Asks for 4,294,967,295 and measures for so long.
    #[arg(long, value_name = "S", value_parser = options::seconds, group = "end")]
    seconds: Option<Duration>,
    /// The time before that.
    #[arg(long, value_name = "S", default_value = "1", value_parser = options::seconds_or_none)]
    warm_up: Duration,
    /// The length of a message, nothing counted that is before it.
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
        let mut common = self.common.clone();
        if let Some(path) = &mut common.websocket {
            *path += &self.query();
        }
        common.prepare(self.connections)?;
        let clock = Clock::new();
        let messages = self.messages.unwrap_or(MESSAGES_MAX);
        let source = Source::new(common.wire(), messages, self.bytes, self.batch);
        let mut session = Session::new(source, clock, self.connections, 1, 0)?;
        let mut dialer = Dialer::new(&common, self.connections)?;

        let mut window = Window::new(clock.now(), u64::MAX, &common);
        if self.seconds.is_none() {
            window.look(clock, clock.now(), &session.tally)?;
        }
        session.open_all(&mut dialer, self.patience, Duration::ZERO, Opening::Send)?;
        session.tally.require_opened()?;
        if let Some(seconds) = self.seconds {
            let start = clock.now() + ns(self.warm_up);
            window = Window::new(start, start + ns(seconds), &common);
        }
        let in_time = self.receive(&mut session, &mut window)?;
        let seen = window.finish(clock, &session.tally);
        self.end(&mut session, in_time)?;

        let asked = self.messages.map_or(0, u64::from) * self.connections as u64;
        let mut report = Report::new(seen.seconds, self.connections as u64, &session.tally);
        let messages = seen.messages(&session, None);
        let unanswered = asked.saturating_sub(seen.received);
        report.messages = Some(Messages { unanswered, ..messages });
        report.client = seen.client;
        report.server = seen.server;
        report.finish(&common)
    }

    fn query(&self) -> String {
        let messages = self.messages.unwrap_or(MESSAGES_MAX);
        format!("?messages={messages}&bytes={}&batch={}", self.bytes, self.batch)
    }

    /// Until the window is over or all have all, which includes the end of a WebSocket; false when
    /// nothing comes. Who had no message in the window is given up: that others had some does not make
    /// up for it.
    fn receive(&self, session: &mut Session<Source>, window: &mut Window) -> Result<bool, Failure> {
        let mut ready = Vec::new();
        let mut heard = session.clock.now();
        // For each connection, when its last message came.
        let mut answered = vec![0; self.connections];
        loop {
            let now = session.clock.now();
            window.look(session.clock, now, &session.tally)?;
            let over = match self.common.wire() {
                Wire::Tcp => session.outstanding == 0,
                Wire::WebSocket => session.open == 0,
            };
            if over {
                return Ok(true);
            }
            if now >= window.end {
                for (index, last) in answered.iter().enumerate() {
                    if session.is_open(index) && *last < window.start {
                        session.give_up(index, "no message came in the window");
                    }
                }
                return Ok(true);
            }
            let deadline = heard.saturating_add(ns(self.patience));
            if now >= deadline {
                return Ok(false);
            }
            let next = window.next_after(now, deadline).min(deadline);
            session.wait(&mut ready, Duration::from_nanos(next - now))?;
            for event in &ready {
                let turn = session.turn(*event);
                if turn.bytes > 0 || turn.over {
                    heard = turn.now;
                }
                if !turn.answered.is_empty() {
                    answered[event.index] = turn.now;
                }
                session.flush(event.index);
            }
        }
    }

    fn end(&self, session: &mut Session<Source>, in_time: bool) -> Result<(), Failure> {
        if in_time && self.seconds.is_none() {
            session.linger()?;
        }
        for index in 0..self.connections {
            if in_time {
                session.close(index);
            } else if session.is_open(index) {
                let patience = self.patience.as_secs_f64();
                session.give_up(index, &format!("nothing came for {patience} s"));
            }
        }
        Ok(())
    }
}

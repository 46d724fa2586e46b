//! `load source`: asks for messages and checks what comes.

use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::{Deserialize, Serialize};

use super::Failure;
use super::bounds::{Bounded, Connections, NonZeroSeconds, Payload, Seconds};
use super::dial::Dialer;
use super::exchange::{Fetch, Source, Wire};
use super::options::{self, PATIENCE, Target, WARM_UP};
use super::pace::{Clock, ns};
use super::report::{Messages, Report};
use super::session::{Opening, Session};
use super::window::Window;
use super::windows::{self, Loop};

/// The number that is asked for if time ends the run: more than any window can receive.
const MESSAGES_MAX: u64 = u32::MAX as u64;

/// How many messages; on the wire a `u32`.
type Count = Bounded<1, MESSAGES_MAX>;

/// The options of `load source`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[command(group(ArgGroup::new("end").required(true)))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many messages each connection asks for. All are measured, from the first connect on.
    #[arg(long, value_name = "N", group = "end")]
    pub(crate) messages: Option<Count>,
    /// Asks for 4,294,967,295 and measures for so long.
    #[arg(long, value_name = "S", group = "end")]
    pub(crate) seconds: Option<NonZeroSeconds>,
    /// The time before that.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// The length of a message, without its prefix.
    #[arg(long, value_name = "BYTES")]
    bytes: Payload,
    /// How many messages the server is to send at once.
    #[arg(long, value_name = "B")]
    batch: Count,
    /// How many connections ask.
    #[arg(long, value_name = "N", default_value_t = ONE)]
    #[serde(default = "one")]
    connections: Connections,
    /// How long to wait while nothing arrives.
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
        if target.windows {
            return self.run_windows(target);
        }
        let mut target = target.clone();
        if let Some(path) = &mut target.websocket {
            *path += &self.query();
        }
        let connections = self.connections.count();
        target.prepare(connections)?;
        let clock = Clock::new();
        let [bytes, batch] = [self.bytes.get(), self.batch.get()].map(|it| it as u32);
        let source = Source::new(target.wire(), self.asked() as u32, bytes, batch);
        let mut session = Session::new(source, clock, connections, 1, 0)?;
        let mut dialer = Dialer::new(&target, connections)?;

        let mut window = Window::new(clock.now(), u64::MAX, &target);
        if self.seconds.is_none() {
            window.observe(clock, clock.now(), &session.tally)?;
        }
        let patience = self.patience.get();
        session.open_all(&mut dialer, patience, Duration::ZERO, Opening::Send)?;
        session.tally.require_opened()?;
        if let Some(seconds) = self.seconds {
            let start = clock.now() + ns(self.warm_up.get());
            window = Window::new(start, start + ns(seconds.get()), &target);
        }
        let in_time = self.receive(&mut session, &mut window, target.wire())?;
        let stats = window.finish(clock, &session.tally);
        self.end(&mut session, in_time)?;

        let asked = self.messages.map_or(0, Count::get) * self.connections.get();
        let mut report = Report::new(stats.seconds, self.connections.get(), &session.tally);
        let messages = stats.messages(&session, None);
        let unanswered = asked.saturating_sub(stats.received);
        report.messages = Some(Messages { unanswered, ..messages });
        report.client = stats.client;
        report.server = stats.server;
        report.finish(&target)
    }

    /// Asks for some messages again and again: a stream without end could not stop at the end of a window.
    fn run_windows(&self, target: &Target) -> Result<Report, Failure> {
        let [bytes, batch] = [self.bytes.get(), self.batch.get()].map(|it| it as u32);
        let requests = Fetch::new(target.wire(), request_messages(bytes, batch), bytes, batch);
        let options = Loop {
            connections: self.connections.count(),
            in_flight: 1,
            patience: self.patience.get(),
            ramp: Duration::ZERO,
        };
        windows::run(&options, target, requests, &mut ())
    }

    fn query(&self) -> String {
        format!("?messages={}&bytes={}&batch={}", self.asked(), self.bytes, self.batch)
    }

    /// How many messages each connection asks for.
    fn asked(&self) -> u64 {
        self.messages.map_or(MESSAGES_MAX, Count::get)
    }

    /// Whether the options fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.messages.is_some() == self.seconds.is_some() {
            return Err("a source ends after --messages or after --seconds: say one".to_owned());
        }
        Ok(())
    }

    /// Receives until the window is over, or until every connection has all messages (a WebSocket: and its close). False
    /// after patience without data. A connection without a message in the window is given up, even if others had some.
    fn receive(
        &self,
        session: &mut Session<Source>,
        window: &mut Window,
        wire: Wire,
    ) -> Result<bool, Failure> {
        let mut ready = Vec::new();
        let mut last_received = session.clock.now();
        // For each connection, when its last message came.
        let mut answered = vec![0; self.connections.count()];
        loop {
            let now = session.clock.now();
            window.observe(session.clock, now, &session.tally)?;
            let over = match wire {
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
            let deadline = last_received.saturating_add(ns(self.patience.get()));
            if now >= deadline {
                return Ok(false);
            }
            let next = window.next_after(now, deadline).min(deadline);
            session.wait(&mut ready, Duration::from_nanos(next - now))?;
            for event in &ready {
                let outcome = session.handle_event(*event);
                if outcome.bytes > 0 || outcome.over {
                    last_received = outcome.now;
                }
                if !outcome.answered.is_empty() {
                    answered[event.index] = outcome.now;
                }
                session.flush(event.index);
            }
        }
    }

    fn end(&self, session: &mut Session<Source>, in_time: bool) -> Result<(), Failure> {
        if in_time && self.seconds.is_none() {
            session.linger()?;
        }
        for index in 0..self.connections.count() {
            if in_time {
                session.close(index);
            } else if session.is_open(index) {
                let patience = self.patience.get().as_secs_f64();
                session.give_up(index, &format!("nothing came for {patience} s"));
            }
        }
        Ok(())
    }
}

/// How many connections by default.
const ONE: Connections = Connections::of::<1>();

const fn one() -> Connections {
    ONE
}

/// In windows, a request is for whole batches of about so many bytes.
const REQUEST_BYTES: u32 = 16_000_000;

/// At most so many messages are asked for at once in a window, unless a batch is larger.
const REQUEST_MESSAGES: u32 = 16_384;

/// How many messages are asked for at once in a window: the round trip between two requests is then little of it.
fn request_messages(bytes: u32, batch: u32) -> u32 {
    let wanted = (REQUEST_BYTES / bytes.max(1)).clamp(1, REQUEST_MESSAGES);
    wanted.div_ceil(batch).saturating_mul(batch)
}

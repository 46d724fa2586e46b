//! `load churn`: connections open and close. Each connects, is upgraded if it is to be a WebSocket,
//! has one echo, and closes.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::bounds::{ConnectionRate, Connections, NonZeroSeconds, Payload, Seconds};
use super::dial::Dialer;
use super::exchange::Echo;
use super::histogram::Histogram;
use super::options::{self, PATIENCE, Target, WARM_UP};
use super::pace::{Clock, Schedule, Timer, ns};
use super::report::Churn;
use super::session::{OTHER, ReadyEvent, Session};
use super::window::Window;
use super::{Failure, Report};

/// How often time-outs are checked, and the slots of failed connections are used again.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The options of `load churn`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// The most connections at a time. Without --rate there are always as many: a new one opens as soon as one has
    /// closed.
    #[arg(long, value_name = "N")]
    connections: Connections,
    /// The length of the message that each sends.
    #[arg(long, value_name = "BYTES", default_value_t = SMALL)]
    #[serde(default = "small")]
    payload: Payload,
    /// Open loop: so many open in a second. Those without room wait, also after the window.
    #[arg(long, value_name = "CONN_PER_S")]
    pub(crate) rate: Option<ConnectionRate>,
    /// The measured window.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// The time before it.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// How long a connection may take, and how long after the window a waiting one may begin.
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
        let echo = Echo::new(target.wire(), self.payload.count());
        let session = Session::new(echo, Clock::new(), connections, 1, 0)?;
        // One local address: the number of connections is not known, and within one machine a port is reserved for
        // only a second after its connection (tcp_tw_reuse, ip-sysctl).
        let dialer = Dialer::new(target, 0)?;
        let mut run = Run::new(self, target, session, dialer)
            .map_err(|error| Failure::new(format!("cannot set a timer: {error}")))?;
        run.drive()?;
        run.session.tally.require_opened()?;
        run.into_report(self, target).finish(target)
    }
}

/// The default length of a message.
const SMALL: Payload = Payload::of::<64>();

const fn small() -> Payload {
    SMALL
}

struct Run {
    clock: Clock,
    session: Session<Echo>,
    dialer: Dialer,
    window: Window,
    schedule: Option<Schedule>,
    timer: Timer,
    patience: u64,
    /// Slots without a connection.
    free_slots: Vec<usize>,
    /// Slots whose connection could not be started, until the next check.
    failed: Vec<usize>,
    /// Until when there was no slot.
    full_until: u64,
    /// When time-outs are checked next.
    next_check: u64,
    /// All connections that were started.
    came: u64,
    /// Connections that closed in the window.
    done: u64,
    /// Those with an echo that resumed a TLS session.
    resumed: u64,
    /// Connections that waited for a slot.
    held_back: u64,
    first_echo: Histogram,
    whole: Histogram,
    lateness: Histogram,
}

impl Run {
    fn new(
        options: &Options,
        target: &Target,
        session: Session<Echo>,
        dialer: Dialer,
    ) -> std::io::Result<Self> {
        let clock = session.clock;
        let now = clock.now();
        let start = now + ns(options.warm_up.get());
        let end = start + ns(options.seconds.get());
        Ok(Self {
            clock,
            dialer,
            window: Window::new(start, end, target),
            schedule: options.rate.map(|rate| Schedule::new(now, end, rate.get())),
            timer: Timer::new(session.registry(), OTHER)?,
            patience: ns(options.patience.get()),
            free_slots: (0..options.connections.count()).rev().collect(),
            failed: Vec::new(),
            full_until: 0,
            next_check: now + ns(CHECK_EVERY),
            came: 0,
            done: 0,
            resumed: 0,
            held_back: 0,
            first_echo: Histogram::new(),
            whole: Histogram::new(),
            lateness: Histogram::new(),
            session,
        })
    }

    /// Until the window is over and all of its connections have closed, or until patience is over.
    fn drive(&mut self) -> Result<(), Failure> {
        let last = self.window.end + self.patience;
        let mut ready: Vec<ReadyEvent> = Vec::new();
        loop {
            let now = self.clock.now();
            self.window.observe(self.clock, now, &self.session.tally)?;
            if now >= self.next_check {
                self.check_timeouts(now);
            }
            if now >= last
                || now >= self.window.end && self.session.open == 0 && self.waiting() == 0
            {
                return Ok(());
            }
            self.begin(now);
            let timeout = self.timeout()?;
            self.session.wait(&mut ready, timeout)?;
            for event in &ready {
                self.handle_ready(*event);
            }
        }
    }

    /// Open loop: how many of the scheduled connections have not begun.
    fn waiting(&self) -> u64 {
        self.schedule.as_ref().map_or(0, Schedule::left)
    }

    fn timeout(&self) -> Result<Duration, Failure> {
        let now = self.clock.now();
        let boundary = self.window.next_after(now, self.next_check).min(self.next_check);
        let longest = Duration::from_nanos(boundary.saturating_sub(now));
        let schedule = self.schedule.as_ref().filter(|_| !self.free_slots.is_empty());
        schedule.map_or(Ok(longest), |schedule| self.timer.until_next(schedule, now, longest))
    }

    /// Opens the connections that are due, as far as there is room. The schedule ends with the window; a connection
    /// that waits at that moment opens later.
    fn begin(&mut self, now: u64) {
        while let Some(slot) = self.free_slots.last().copied() {
            let mut intended = now;
            if self.schedule.is_none() && now >= self.window.end {
                return;
            }
            if let Some(schedule) = &mut self.schedule {
                let Some((_, due)) = schedule.take_due(now) else { return };
                intended = due;
                if due < self.full_until {
                    self.held_back += 1;
                } else if self.window.contains(due) {
                    self.lateness.record(now - due);
                }
            }
            self.free_slots.pop();
            self.came += 1;
            if self.session.open(slot, &mut self.dialer) {
                self.session.release(slot, intended);
            } else {
                self.failed.push(slot);
            }
        }
    }

    fn handle_ready(&mut self, event: ReadyEvent) {
        let slot = event.index;
        if !self.session.is_open(slot) {
            return;
        }
        let outcome = self.session.handle_event(event);
        let intended = self.session.started(slot, 0);
        let measured = self.window.contains(intended);
        let mut gone = outcome.ended;
        if !outcome.answered.is_empty() && !outcome.over {
            self.session.tally.record_opened(outcome.now - intended);
            if measured {
                self.first_echo.record(outcome.now - intended);
                self.resumed += u64::from(self.session.is_resumed(slot));
            }
            if !self.session.start_close(slot) {
                self.session.close(slot);
                gone = true;
            }
        }
        if gone {
            self.done += u64::from(self.window.contains(outcome.now));
            if measured {
                self.whole.record(self.clock.now() - intended);
            }
        }
        if gone || outcome.over || !self.session.flush(slot) {
            self.free_slot(slot);
        }
    }

    fn free_slot(&mut self, slot: usize) {
        if self.free_slots.is_empty() {
            self.full_until = self.clock.now();
        }
        self.free_slots.push(slot);
    }

    /// Gives up connections that take too long, and frees the slots of failed ones.
    fn check_timeouts(&mut self, now: u64) {
        self.next_check = now + ns(CHECK_EVERY);
        while let Some(slot) = self.failed.pop() {
            self.free_slot(slot);
        }
        self.give_up_before(now.saturating_sub(self.patience));
    }

    /// Gives up the connections that were scheduled before `then` and have not closed.
    fn give_up_before(&mut self, then: u64) {
        let kind = format!("not closed within {} s", self.patience as f64 / 1e9);
        for slot in 0..self.session.connections() {
            if self.session.is_open(slot) && self.session.started(slot, 0) < then {
                self.session.give_up(slot, &kind);
                self.free_slot(slot);
            }
        }
    }

    fn into_report(mut self, options: &Options, target: &Target) -> Report {
        // Connections with their echo may not have closed.
        self.give_up_before(u64::MAX);
        let never_begun = self.waiting();
        if never_begun > 0 {
            let patience = options.patience.get().as_secs_f64();
            let kind = format!("not begun within {patience} s after the window: no slot was free");
            self.session.tally.errors.insert(kind, never_begun);
        }
        let stats = self.window.finish(self.clock, &self.session.tally);
        let mut report = Report::new(stats.seconds, self.came + never_begun, &self.session.tally);
        let mut messages = stats.messages(&self.session, options.rate.map(ConnectionRate::get));
        messages.unsent += never_begun;
        messages.held_back = options.rate.map(|_| self.held_back);
        report.messages = Some(messages);
        report.churn = Some(Churn {
            done: self.done,
            done_per_s: stats.per_s(self.done),
            resumed_percent: target
                .tls
                .as_ref()
                .map(|_| self.resumed as f64 * 100.0 / self.first_echo.len().max(1) as f64),
            first_echo_us: self.first_echo.percentiles(),
            whole_us: self.whole.percentiles(),
        });
        report.lateness_us = self.lateness.percentiles();
        report.client = stats.client;
        report.server = stats.server;
        report
    }
}

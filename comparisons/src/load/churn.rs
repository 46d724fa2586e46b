//! `load churn`: connections that come and go. Each connects, is upgraded if it is to be a WebSocket,
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

/// How often connections without an end are looked for, and failed ones tried again.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// What it is told.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// The most connections at a time. Without --rate as many as that: another comes as soon as one has
    /// gone.
    #[arg(long, value_name = "N")]
    connections: Connections,
    /// The length of the message that each sends.
    #[arg(long, value_name = "BYTES", default_value_t = SMALL)]
    #[serde(default = "small")]
    payload: Payload,
    /// Open loop: so many come in a second; those for whom there is no room wait, also when the window is
    /// over.
    #[arg(long, value_name = "CONN_PER_S")]
    pub(crate) rate: Option<ConnectionRate>,
    /// The measured window.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// The time before it.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// How long one may take; and how long after the window those that wait may begin.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "options::patience")]
    patience: NonZeroSeconds,
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
        // From one address: how many will come is not known, and what a port rests after a connection
        // within one machine is a second (tcp_tw_reuse, ip-sysctl).
        let dialer = Dialer::new(target, 0)?;
        let mut run = Run::new(self, target, session, dialer)
            .map_err(|error| Failure::new(format!("cannot set a timer: {error}")))?;
        run.drive()?;
        run.session.tally.require_opened()?;
        run.into_report(self, target).finish(target)
    }
}

/// The length of a message where nothing says so.
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
    /// Places for connections.
    free_slots: Vec<usize>,
    /// Those whose connection could not even be begun, until the next look.
    failed: Vec<usize>,
    /// Until when there was no slot.
    full_until: u64,
    /// The next look.
    next_check: u64,
    /// Connections that came, all in all.
    came: u64,
    /// That came and went in the window.
    done: u64,
    /// That resumed a TLS session, and had their echo.
    resumed: u64,
    /// That waited for a slot.
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

    /// Until the window is over and all that were to come in it have come and gone, or patience is.
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

    /// Open loop: how many were to come by the end of the window and have not begun.
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

    /// Lets those come whose time it is and for whom there is room. A schedule ends with the window; who
    /// waits from before its end comes after it.
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
            self.session.tally.opened += 1;
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

    /// Gives up those that take too long, and those that failed their place back.
    fn check_timeouts(&mut self, now: u64) {
        self.next_check = now + ns(CHECK_EVERY);
        while let Some(slot) = self.failed.pop() {
            self.free_slot(slot);
        }
        self.give_up_before(now.saturating_sub(self.patience));
    }

    /// Gives up those that were to come before then and have not gone.
    fn give_up_before(&mut self, then: u64) {
        let kind = format!("not gone within {} s", self.patience as f64 / 1e9);
        for slot in 0..self.session.connections() {
            if self.session.is_open(slot) && self.session.started(slot, 0) < then {
                self.session.give_up(slot, &kind);
                self.free_slot(slot);
            }
        }
    }

    fn into_report(mut self, options: &Options, target: &Target) -> Report {
        // Those that have their echo may still owe their close.
        self.give_up_before(u64::MAX);
        let never_begun = self.waiting();
        if never_begun > 0 {
            let patience = options.patience.get().as_secs_f64();
            let kind = format!("not begun within {patience} s after the window: no place was free");
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

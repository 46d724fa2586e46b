//! `load arrivals`: new connections arrive at a rate while others are busy.

use std::os::fd::RawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use mio::Interest;
use mio::unix::SourceFd;
use serde::{Deserialize, Serialize};

use super::bounds::{Bounded, ConnectionRate, NonZeroSeconds, Payload, Seconds};
use super::dial::Dialer;
use super::exchange::Echo;
use super::histogram::Histogram;
use super::options::{self, Target, WARM_UP};
use super::pace::{Clock, Schedule, Timer, ns};
use super::report::{Arrivals, Messages, Timeline};
use super::series::Recorder;
use super::session::{EventOutcome, OTHER, Opening, ReadyEvent, Session};
use super::window::Window;
use super::{Failure, Report};

/// New connections are handled after at most this many events of busy ones.
const BUSY_EVENTS_MAX: usize = 32;

/// How often new connections without an echo are checked for their time-out.
const EXPIRY: Duration = Duration::from_millis(50);

/// A bound on memory: no sensible run has more.
const NEWCOMERS_MAX: u64 = 10_000_000;

/// The options of `load arrivals`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many connections are busy: each sends again as soon as it is answered.
    #[arg(long, value_name = "N")]
    pub(crate) busy: Bounded<0, 1_000_000>,
    /// The length of a message.
    #[arg(long, value_name = "BYTES")]
    payload: Payload,
    /// How many new connections come in a second.
    #[arg(long, value_name = "CONN_PER_S")]
    pub(crate) rate: ConnectionRate,
    /// For how long they come.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// How long the busy connections run before that.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
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
        let newcomers = self.newcomers(self.seconds.get());
        if newcomers > NEWCOMERS_MAX {
            return Err(Failure::new(format!(
                "{newcomers} connections would come; {NEWCOMERS_MAX} is the most"
            )));
        }
        let at_once = newcomers.min(self.newcomers(self.patience.get()));
        let (busy, patience) = (self.busy.count(), self.patience.get());
        target.prepare(busy + at_once as usize)?;
        let newcomers = newcomers as usize;

        let clock = Clock::new();
        let echo = || Echo::new(target.wire(), self.payload.count());
        let mut dialer = Dialer::new(target, busy + newcomers)?;
        let mut connections = Session::new(echo(), clock, busy, 1, 0)?;
        connections.open_all(&mut dialer, patience, Duration::ZERO, Opening::Answer)?;
        if busy > 0 {
            connections.tally.require_opened()?;
        }
        let newcomers = Session::new(echo(), clock, newcomers, 1, busy as u32)?;
        let mut run = Run::new(self, target, connections, newcomers, dialer)
            .map_err(|error| Failure::new(format!("cannot set up epoll: {error}")))?;
        run.drive()?;
        run.into_report(self).finish(target)
    }

    /// How many connections arrive in `time`.
    fn newcomers(&self, time: Duration) -> u64 {
        (time.as_secs_f64() * self.rate.get() as f64).ceil() as u64
    }
}

/// How long a first echo may take by default.
const FIRST_ECHO: NonZeroSeconds = NonZeroSeconds::of::<30>();

const fn first_echo() -> NonZeroSeconds {
    FIRST_ECHO
}

struct Run {
    clock: Clock,
    busy: Session<Echo>,
    newcomers: Session<Echo>,
    dialer: Dialer,
    window: Window,
    schedule: Schedule,
    timer: Timer,
    patience: u64,
    latency: Histogram,
    first_echo: Histogram,
    lateness: Histogram,
    /// The beginning of the window.
    began_unix_ms: f64,
    busy_recorder: Recorder,
    newcomers_recorder: Recorder,
    failed_recorder: Recorder,
    /// Of each new connection, whether its echo came.
    is_answered: Vec<bool>,
    /// How many new connections were opened.
    came: usize,
    /// The first new connection that may not be over.
    oldest: usize,
    never: u64,
    ready_newcomers: Vec<ReadyEvent>,
}

impl Run {
    fn new(
        options: &Options,
        target: &Target,
        busy: Session<Echo>,
        newcomers: Session<Echo>,
        dialer: Dialer,
    ) -> std::io::Result<Self> {
        let clock = busy.clock;
        let start = clock.now() + ns(options.warm_up.get());
        let end = start + ns(options.seconds.get());
        let timer = Timer::new(busy.registry(), OTHER)?;
        let is_answered = vec![false; newcomers.connections()];
        // New connections have an epoll of their own, so that they do not queue behind busy ones.
        let epoll: RawFd = newcomers.epoll();
        busy.registry().register(&mut SourceFd(&epoll), OTHER, Interest::READABLE)?;
        Ok(Self {
            clock,
            busy,
            newcomers,
            dialer,
            window: Window::new(start, end, target),
            schedule: Schedule::new(start, end, options.rate.get()),
            timer,
            patience: ns(options.patience.get()),
            latency: Histogram::new(),
            first_echo: Histogram::new(),
            lateness: Histogram::new(),
            began_unix_ms: unix_ms() + options.warm_up.get().as_secs_f64() * 1e3,
            busy_recorder: Recorder::new(start, end),
            newcomers_recorder: Recorder::new(start, end),
            failed_recorder: Recorder::new(start, end),
            is_answered,
            came: 0,
            oldest: 0,
            never: 0,
            ready_newcomers: Vec::new(),
        })
    }

    /// Keeps the busy connections busy until the last new connection has its echo; the last new ones need the load as
    /// much as the first. Then waits for the last answers.
    fn drive(&mut self) -> Result<(), Failure> {
        for index in 0..self.busy.connections() {
            self.busy.release(index, self.clock.now());
            self.busy.flush(index);
        }
        let mut ready: Vec<ReadyEvent> = Vec::new();
        let mut last = None;
        loop {
            let now = self.clock.now();
            self.window.observe(self.clock, now, &self.busy.tally)?;
            self.handle_newcomers()?;
            let over = now >= self.window.end && self.oldest == self.came;
            if over {
                let last = *last.get_or_insert(now + self.patience);
                if self.busy.outstanding == 0 || now >= last {
                    return Ok(());
                }
            }
            let timeout = self.timeout()?;
            self.busy.wait(&mut ready, timeout)?;
            for events in ready.chunks(BUSY_EVENTS_MAX) {
                for event in events {
                    let outcome = self.busy.handle_event(*event);
                    self.answered(event.index, &outcome, !over);
                }
                self.handle_newcomers()?;
            }
        }
    }

    fn timeout(&self) -> Result<Duration, Failure> {
        let now = self.clock.now();
        let boundary = self.window.next_after(now, u64::MAX);
        let longest = EXPIRY.min(Duration::from_nanos(boundary - now));
        self.timer.until_next(&self.schedule, now, longest)
    }

    fn answered(&mut self, index: usize, outcome: &EventOutcome, again: bool) {
        let mut longest = 0;
        for message in outcome.answered.clone() {
            let started = self.busy.started(index, message);
            longest = longest.max(outcome.now - started);
            if self.window.contains(started) {
                self.latency.record(outcome.now - started);
            }
            if again {
                self.busy.release(index, outcome.now);
            }
        }
        if !outcome.answered.is_empty() {
            let answers = outcome.answered.end - outcome.answered.start;
            self.busy_recorder.record(outcome.now, answers, longest);
        }
        self.busy.flush(index);
    }

    /// Opens new connections that are due, and handles the events of all new connections.
    fn handle_newcomers(&mut self) -> Result<(), Failure> {
        while let Some((_, intended)) = self.schedule.take_due(self.clock.now()) {
            self.lateness.record(self.clock.now() - intended);
            if self.newcomers.open(self.came, &mut self.dialer) {
                self.newcomers.release(self.came, intended);
            }
            self.came += 1;
        }
        let mut ready = std::mem::take(&mut self.ready_newcomers);
        // Until none is left: the epoll is edge-triggered.
        loop {
            self.newcomers.wait(&mut ready, Duration::ZERO)?;
            if ready.is_empty() {
                break;
            }
            for event in &ready {
                self.handle_newcomer(*event);
            }
        }
        self.ready_newcomers = ready;
        self.expire();
        Ok(())
    }

    fn handle_newcomer(&mut self, event: ReadyEvent) {
        let outcome = self.newcomers.handle_event(event);
        if outcome.answered.is_empty() {
            self.newcomers.flush(event.index);
        } else if !outcome.over {
            let started = self.newcomers.started(event.index, 0);
            self.first_echo.record(outcome.now - started);
            self.newcomers_recorder.add(started, 1, outcome.now - started);
            self.is_answered[event.index] = true;
            self.newcomers.close(event.index);
        }
    }

    fn expire(&mut self) {
        let now = self.clock.now();
        while self.oldest < self.came {
            let intended = self.schedule.intended(self.oldest as u64);
            if self.newcomers.is_open(self.oldest) {
                if now - self.newcomers.started(self.oldest, 0) < self.patience {
                    return;
                }
                self.newcomers.close(self.oldest);
                self.never += 1;
                self.newcomers_recorder.add(intended, 0, self.patience);
            } else if !self.is_answered[self.oldest] {
                self.failed_recorder.add(intended, 1, 0);
            }
            self.oldest += 1;
        }
    }

    fn into_report(mut self, options: &Options) -> Report {
        let stats = self.window.finish(self.clock, &self.busy.tally);
        let patience = options.patience.get().as_secs_f64();
        self.busy.close_all(&format!("not answered within {patience} s"));
        let newcomers = self.newcomers.tally;
        let over_1_s = self.first_echo.over_1_s();
        let (busy, stalls) = self.busy_recorder.finish();
        let mut report = Report::new(stats.seconds, options.busy.get(), &self.busy.tally);
        report.add_wrong(&newcomers);
        // The client's CPU is that of newcomers, too: it says nothing of how many messages it could do.
        let messages = stats.messages(&self.busy, None);
        report.messages = Some(Messages { ceiling_per_s: None, ..messages });
        report.arrivals = Some(Arrivals {
            offered_per_s: options.rate.get(),
            came: self.came as u64,
            within_1_s: self.first_echo.len() - over_1_s,
            over_1_s,
            never: self.never,
            failed: newcomers.errors.values().sum(),
            errors: newcomers.errors,
            first_echo_us: self.first_echo.percentiles(),
            timeline: Some(Timeline {
                began_unix_ms: self.began_unix_ms,
                busy,
                stalls,
                newcomers: self.newcomers_recorder.finish().0,
                failed: self.failed_recorder.finish().0.received,
            }),
        });
        report.latency_us = self.latency.percentiles();
        report.lateness_us = self.lateness.percentiles();
        report.client = stats.client;
        report.server = stats.server;
        report
    }
}

fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

//! `load limit`: more connections than the server has descriptors for.

use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::bounds::{Connections, NonZeroSeconds, Payload, Seconds};
use super::dial::Dialer;
use super::exchange::Echo;
use super::histogram::Histogram;
use super::options::{self, PATIENCE, Target, WARM_UP};
use super::pace::{Clock, ns};
use super::report::{Limit, Throughput};
use super::session::{Opening, Session, Tally};
use super::window::{Window, WindowStats};
use super::{Failure, Report, hold, steady};

/// When no answer has arrived for so long, connections without one count as waiting for a descriptor. Servers retry
/// after milliseconds.
const SETTLED: Duration = Duration::from_millis(500);

/// The options of `load limit`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many connections: more than the server has descriptors for, and fewer than these and its backlog together.
    #[arg(long, value_name = "N")]
    connections: Connections,
    /// How many served connections are used to measure the speed, before the limit and at it.
    #[arg(long, value_name = "K", default_value_t = BUSY)]
    #[serde(default = "busy")]
    busy: Connections,
    /// The length of a message.
    #[arg(long, value_name = "BYTES")]
    payload: Payload,
    /// How long all of them are idle at the limit.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// How long each of the two speeds is measured.
    #[arg(long, value_name = "S", default_value_t = SPEED_SECONDS)]
    #[serde(default = "speed_seconds")]
    pub(crate) speed_seconds: NonZeroSeconds,
    /// The warm-up before each of the two.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// How many served connections are closed at the end, to make room.
    #[arg(long, value_name = "M", default_value_t = RELEASE)]
    #[serde(default = "release")]
    release: Connections,
    /// How long a connect and an answer may take.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "options::patience")]
    pub(crate) patience: NonZeroSeconds,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run, or the server never came to its limit; what happens to connections in
    /// a run is in the report.
    pub fn run(&self, target: &Target) -> Result<Report, Failure> {
        self.check().map_err(Failure::new)?;
        target.prepare(self.connections.count())?;
        let mut run = Run::new(self, target)?;
        let before = run.speed()?;
        run.reach_the_limit()?;
        let (served, waiting) = (run.served(), run.waiting());
        let open = run.open();
        let idle = run.idle()?;
        let at_limit = run.speed()?;
        thread::sleep(random_up_to(SETTLED));
        run.busy.catch_up()?;
        run.others.catch_up()?;
        let lost = open - run.open();
        let (released, resumed) = run.release()?;

        let tally = run.end()?;
        let mut report = Report::new(idle.seconds, self.connections.get(), &tally);
        report.limit = Some(Limit {
            served: served as u64,
            waiting: waiting as u64,
            lost: lost as u64,
            idle_cpu_percent: idle.server.as_ref().map(|server| server.cpu_percent),
            speed_ratio: (before.received > 0)
                .then(|| at_limit.received_per_s / before.received_per_s),
            before,
            at_limit,
            released: released as u64,
            resumed: resumed.len(),
            never: (released as u64).saturating_sub(resumed.len()),
            resume_us: resumed.percentiles(),
        });
        report.client = idle.client;
        report.server = idle.server;
        report.finish(target)
    }

    /// Whether the options fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.busy.get() < self.connections.get() {
            Ok(())
        } else {
            Err("--busy must be less than --connections".to_owned())
        }
    }
}

/// The defaults.
const BUSY: Connections = Connections::of::<50>();
const RELEASE: Connections = Connections::of::<20>();
const SPEED_SECONDS: NonZeroSeconds = NonZeroSeconds::of::<2>();

const fn busy() -> Connections {
    BUSY
}

const fn release() -> Connections {
    RELEASE
}

const fn speed_seconds() -> NonZeroSeconds {
    SPEED_SECONDS
}

struct Run<'a> {
    options: &'a Options,
    target: &'a Target,
    clock: Clock,
    dialer: Dialer,
    /// The connections that the speed is measured with.
    busy: Session<Echo>,
    /// All others. They have an epoll of their own, so that they do not affect the speed.
    others: Session<Echo>,
}

impl<'a> Run<'a> {
    /// Opens the busy connections.
    fn new(options: &'a Options, target: &'a Target) -> Result<Self, Failure> {
        let (connections, busy) = (options.connections.count(), options.busy.count());
        let patience = options.patience.get();
        let clock = Clock::new();
        let echo = || Echo::new(target.wire(), options.payload.count());
        let mut run = Self {
            options,
            target,
            clock,
            dialer: Dialer::new(target, connections)?,
            busy: Session::new(echo(), clock, busy, 1, 0)?,
            others: Session::new(echo(), clock, connections - busy, 1, busy as u32)?,
        };
        run.busy.open_all(&mut run.dialer, patience, Duration::ZERO, Opening::Answer)?;
        run.busy.tally.require_opened()?;
        if run.busy.tally.opened < busy as u64 && !run.has_wrong_answer() {
            let opened = run.busy.tally.opened;
            return Err(Failure::new(format!(
                "the server took {opened} of the {busy} that are to be busy: ask for fewer (--busy)"
            )));
        }
        Ok(run)
    }

    /// Measures the busy connections in a closed loop, with one message in flight on each.
    fn speed(&mut self) -> Result<Throughput, Failure> {
        let Options { warm_up, speed_seconds, patience, .. } = self.options;
        let window = self.window(warm_up.get(), speed_seconds.get());
        let (stats, latency) = steady::closed_loop(&mut self.busy, window, patience.get())?;
        Ok(Throughput {
            received: stats.received,
            received_per_s: stats.per_s(stats.received),
            cpu_ns: stats.server.and_then(|server| server.per_message).map(|each| each.cpu_ns),
            latency_us: latency.percentiles(),
            client_cpu_percent: stats.client.cpu_percent,
        })
    }

    /// Opens the others, and waits until no more answers arrive.
    fn reach_the_limit(&mut self) -> Result<(), Failure> {
        let Self { others, clock, .. } = self;
        let patience = self.options.patience.get();
        others.open_all(&mut self.dialer, patience, Duration::ZERO, Opening::Send)?;
        let mut last_received = clock.now();
        let last = last_received.saturating_add(ns(patience));
        let mut ready = Vec::new();
        loop {
            let until = last.min(last_received + ns(SETTLED));
            let Some(left) = until.checked_sub(clock.now()).filter(|left| *left > 0) else { break };
            others.wait(&mut ready, Duration::from_nanos(left))?;
            for event in &ready {
                let outcome = others.handle_event(*event);
                others.flush(event.index);
                if !outcome.answered.is_empty() {
                    last_received = outcome.now;
                }
            }
        }
        if self.waiting() > 0 || self.has_wrong_answer() {
            return Ok(());
        }
        let (served, all) = (self.served(), self.options.connections.count());
        Err(Failure::new(format!(
            "the server never came to its limit: of {all} connections it served {served}, {} failed \
             and none waited; give it fewer descriptors (ulimit -n) or ask for more connections",
            all - served
        )))
    }

    /// Leaves all connections idle.
    fn idle(&mut self) -> Result<WindowStats, Failure> {
        let mut window = self.window(Duration::ZERO, self.options.seconds.get());
        hold::idle_until_end(&mut self.others, &mut window)?;
        let stats = window.finish(self.clock, &self.others.tally);
        self.busy.catch_up()?;
        Ok(stats)
    }

    /// Closes some served connections, at most as many as wait, so that their descriptors go to waiting ones. Returns how
    /// many were closed, and the times from then to the answers.
    fn release(&mut self) -> Result<(usize, Histogram), Failure> {
        let count = self.options.release.count().min(self.waiting());
        let Self { others, clock, .. } = self;
        let served: Vec<usize> = others.answered().take(count).collect();
        let released = served.len();
        let mut resumed = Histogram::new();
        let mut ready = Vec::new();
        let start = clock.now();
        for index in served {
            others.close(index);
        }
        let last = start.saturating_add(ns(self.options.patience.get()));
        while resumed.len() < released as u64 && clock.now() < last {
            others.wait(&mut ready, Duration::from_nanos(last.saturating_sub(clock.now())))?;
            for event in &ready {
                let outcome = others.handle_event(*event);
                others.flush(event.index);
                if !outcome.answered.is_empty() {
                    resumed.record(outcome.now - start);
                }
            }
        }
        Ok((released, resumed))
    }

    /// Closes all connections and sums up their tallies.
    fn end(mut self) -> Result<Tally, Failure> {
        self.busy.linger()?;
        self.others.linger()?;
        let patience = self.options.patience.get().as_secs_f64();
        self.busy.close_all(&format!("not answered within {patience} s"));
        let mut tally = self.busy.tally;
        tally.add(self.others.tally);
        Ok(tally)
    }

    fn window(&self, warm_up: Duration, seconds: Duration) -> Window {
        let start = self.clock.now() + ns(warm_up);
        Window::new(start, start + ns(seconds), self.target)
    }

    fn open(&self) -> usize {
        self.busy.open + self.others.open
    }

    fn served(&self) -> usize {
        self.busy.answered().count() + self.others.answered().count()
    }

    /// A run with a wrong answer always ends in a report.
    fn has_wrong_answer(&self) -> bool {
        self.busy.tally.wrong + self.others.tally.wrong > 0
    }

    /// How many connections wait for the answer to their only message.
    fn waiting(&self) -> usize {
        self.others.outstanding as usize
    }
}

/// A random time up to `most`. All other times are fixed: without this, every run would meet a server that checks for
/// descriptors at intervals at the same moment of its interval.
fn random_up_to(most: Duration) -> Duration {
    let chance = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    most.mul_f64(chance)
}

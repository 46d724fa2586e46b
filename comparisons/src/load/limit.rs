//! `load limit`: more connections than the server has descriptors for.

use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::Duration;

use clap::Args;

use super::dial::Dialer;
use super::exchange::Echo;
use super::histogram::Histogram;
use super::options::{self, Common};
use super::pace::{Clock, ns};
use super::report::{Limit, Speed};
use super::session::{Opening, Session, Tally};
use super::window::{Seen, Window};
use super::{Failure, Report, hold, steady};

/// When no answer has come for so long, those that have none are taken to wait for a descriptor.
/// Servers look for one again after milliseconds.
const SETTLED: Duration = Duration::from_millis(500);

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    /// How many connections: more than the server can take, and fewer than that and its backlog.
    #[arg(long, value_name = "N", value_parser = options::connections)]
    connections: usize,
    /// How many of those that are served are used for the speed, before the limit and at it.
    #[arg(long, value_name = "K", default_value = "50", value_parser = options::connections)]
    busy: usize,
    /// The length of a message.
    #[arg(long, value_name = "BYTES", value_parser = options::payload)]
    payload: u32,
    /// How long all of them are idle at the limit.
    #[arg(long, value_name = "S", value_parser = options::seconds)]
    seconds: Duration,
    /// How long each of the two speeds is measured.
    #[arg(long, value_name = "S", default_value = "2", value_parser = options::seconds)]
    speed_seconds: Duration,
    /// How long the busy are busy before each of the two.
    #[arg(long, value_name = "S", default_value = "1", value_parser = options::seconds_or_none)]
    warm_up: Duration,
    /// How many of those that are served are closed at the end, to make room.
    #[arg(long, value_name = "M", default_value = "20", value_parser = options::connections)]
    release: usize,
    /// How long a connect and an answer may take.
    #[arg(long, value_name = "S", default_value = "10", value_parser = options::seconds)]
    patience: Duration,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run, or the server never came to its limit; what happens to connections in
    /// a run is in the report.
    pub fn run(&self) -> Result<Report, Failure> {
        if self.busy >= self.connections {
            return Err(Failure::new("--busy must be less than --connections"));
        }
        self.common.prepare(self.connections)?;
        let mut run = Run::new(self)?;
        let before = run.speed()?;
        run.reach_the_limit()?;
        let (served, waiting) = (run.served(), run.waiting());
        let open = run.open();
        let idle = run.idle()?;
        let at_limit = run.speed()?;
        thread::sleep(by_chance(SETTLED));
        run.busy.catch_up()?;
        run.others.catch_up()?;
        let lost = open - run.open();
        let (released, resumed) = run.release()?;

        let tally = run.end()?;
        let mut report = Report::new(idle.seconds, self.connections as u64, &tally);
        report.limit = Some(Limit {
            served: served as u64,
            waiting: waiting as u64,
            lost: lost as u64,
            idle_cpu_percent: idle.server.as_ref().map(|server| server.used.cpu_percent),
            speed_ratio: at_limit.received_per_s / before.received_per_s,
            before,
            at_limit,
            released: released as u64,
            resumed: resumed.len(),
            never: (released as u64).saturating_sub(resumed.len()),
            resume_us: resumed.percentiles(),
        });
        report.client = idle.client;
        report.server = idle.server;
        report.finish(&self.common)
    }
}

struct Run<'a> {
    options: &'a Options,
    clock: Clock,
    dialer: Dialer,
    /// Those that are used for the speed.
    busy: Session<Echo>,
    /// All others: they have an epoll of their own, so that the speed does not look at them.
    others: Session<Echo>,
}

impl<'a> Run<'a> {
    /// The busy are open, the others are not yet.
    fn new(options: &'a Options) -> Result<Self, Failure> {
        let clock = Clock::new();
        let echo = || Echo::new(options.common.wire(), options.payload as usize);
        let (count, first_id) = (options.connections - options.busy, options.busy as u32);
        let mut run = Self {
            options,
            clock,
            dialer: Dialer::new(&options.common, options.connections)?,
            busy: Session::new(echo(), clock, options.busy, 1, 0)?,
            others: Session::new(echo(), clock, count, 1, first_id)?,
        };
        run.busy.open_all(&mut run.dialer, options.patience, Duration::ZERO, Opening::Answer)?;
        run.busy.tally.require_opened()?;
        if run.busy.tally.opened < options.busy as u64 && !run.has_wrong_answer() {
            let (opened, busy) = (run.busy.tally.opened, options.busy);
            return Err(Failure::new(format!(
                "the server took {opened} of the {busy} that are to be busy: ask for fewer (--busy)"
            )));
        }
        Ok(run)
    }

    /// As fast as the busy are answered, one message in flight on each.
    fn speed(&mut self) -> Result<Speed, Failure> {
        let Options { warm_up, speed_seconds, patience, .. } = self.options;
        let window = self.window(*warm_up, *speed_seconds);
        let (seen, latency) = steady::closed_loop(&mut self.busy, window, *patience)?;
        Ok(Speed {
            received: seen.received,
            received_per_s: seen.per_s(seen.received),
            cpu_ns: seen.server.and_then(|server| server.per_message).map(|each| each.cpu_ns),
            latency_us: latency.percentiles(),
            client_cpu_percent: seen.client.cpu_percent,
        })
    }

    /// Opens the others, and waits until nobody is answered any more.
    fn reach_the_limit(&mut self) -> Result<(), Failure> {
        let Self { others, clock, .. } = self;
        others.open_all(&mut self.dialer, self.options.patience, Duration::ZERO, Opening::Send)?;
        let mut heard = clock.now();
        let last = heard.saturating_add(ns(self.options.patience));
        let mut ready = Vec::new();
        loop {
            let until = last.min(heard + ns(SETTLED));
            let Some(left) = until.checked_sub(clock.now()).filter(|left| *left > 0) else { break };
            others.wait(&mut ready, Duration::from_nanos(left))?;
            for event in &ready {
                let turn = others.turn(*event);
                others.flush(event.index);
                if !turn.answered.is_empty() {
                    heard = turn.now;
                }
            }
        }
        if self.waiting() > 0 || self.has_wrong_answer() {
            return Ok(());
        }
        let (served, all) = (self.served(), self.options.connections);
        Err(Failure::new(format!(
            "the server never came to its limit: of {all} connections it served {served}, {} failed \
             and none waited; give it fewer descriptors (ulimit -n) or ask for more connections",
            all - served
        )))
    }

    /// Nobody does anything.
    fn idle(&mut self) -> Result<Seen, Failure> {
        let mut window = self.window(Duration::ZERO, self.options.seconds);
        hold::stay(&mut self.others, &mut window)?;
        let seen = window.finish(self.clock, &self.others.tally);
        self.busy.catch_up()?;
        Ok(seen)
    }

    /// Closes some that are served, at most as many as wait, and gives their descriptors to those:
    /// how many were closed, and how long after that the answers came.
    fn release(&mut self) -> Result<(usize, Histogram), Failure> {
        let count = self.options.release.min(self.waiting());
        let Self { others, clock, .. } = self;
        let served: Vec<usize> = others.answered().take(count).collect();
        let released = served.len();
        let mut resumed = Histogram::new();
        let mut ready = Vec::new();
        let start = clock.now();
        for index in served {
            others.close(index);
        }
        let last = start.saturating_add(ns(self.options.patience));
        while resumed.len() < released as u64 && clock.now() < last {
            others.wait(&mut ready, Duration::from_nanos(last.saturating_sub(clock.now())))?;
            for event in &ready {
                let turn = others.turn(*event);
                others.flush(event.index);
                if !turn.answered.is_empty() {
                    resumed.record(turn.now - start);
                }
            }
        }
        Ok((released, resumed))
    }

    /// Ends all, and says what became of them.
    fn end(mut self) -> Result<Tally, Failure> {
        self.busy.linger()?;
        self.others.linger()?;
        let patience = self.options.patience.as_secs_f64();
        self.busy.close_all(&format!("not answered within {patience} s"));
        let mut tally = self.busy.tally;
        tally.add(self.others.tally);
        Ok(tally)
    }

    fn window(&self, warm_up: Duration, seconds: Duration) -> Window {
        let start = self.clock.now() + ns(warm_up);
        Window::new(start, start + ns(seconds), &self.options.common)
    }

    fn open(&self) -> usize {
        self.busy.open + self.others.open
    }

    fn served(&self) -> usize {
        self.busy.answered().count() + self.others.answered().count()
    }

    /// Then there is a report, whatever else: it says so.
    fn has_wrong_answer(&self) -> bool {
        self.busy.tally.wrong + self.others.tally.wrong > 0
    }

    /// Each of them waits for the answer to its only message.
    fn waiting(&self) -> usize {
        self.others.outstanding as usize
    }
}

/// Up to `most`. All else takes so long as it is told: a server that looks for descriptors at
/// intervals would be met at the same moment of its interval in every run.
fn by_chance(most: Duration) -> Duration {
    let chance = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    most.mul_f64(chance)
}

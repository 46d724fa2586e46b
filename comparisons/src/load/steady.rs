//! A load that does not change: as fast as answers come (closed loop), or at a rate (open loop).

use std::time::Duration;

use super::Failure;
use super::bounds::MessageRate;
use super::dial::Dialer;
use super::exchange::Exchange;
use super::histogram::Histogram;
use super::options::{Steady, Target};
use super::pace::{Clock, Schedule, Timer, ns};
use super::report::Report;
use super::series::Recorder;
use super::session::{EventOutcome, OTHER, Opening, ReadyEvent, Session};
use super::window::{Window, WindowStats};
use super::windows::{self, Loop};

/// Runs it and prints the report.
pub(crate) fn run<E: Exchange>(
    options: &Steady,
    target: &Target,
    exchange: E,
) -> Result<Report, Failure> {
    if target.windows {
        if options.rate.is_some() {
            return Err(Failure::new("--windows is a closed loop, without --rate"));
        }
        let options = Loop {
            connections: options.connections.count(),
            in_flight: options.in_flight.get() as u32,
            patience: options.patience.get(),
            ramp: options.ramp.get(),
        };
        return windows::run(&options, target, exchange, &mut ());
    }
    let Steady { patience, ramp, .. } = options;
    let (connections, patience) = (options.connections.count(), patience.get());
    target.prepare(connections)?;
    let clock = Clock::new();
    let mut session =
        Session::new(exchange, clock, connections, options.in_flight.get() as u32, 0)?;
    let mut dialer = Dialer::new(target, connections)?;
    session.open_all(&mut dialer, patience, ramp.get(), Opening::Answer)?;
    session.tally.require_opened()?;
    let now = clock.now();
    let start = now + ns(options.warm_up.get());
    let window = Window::new(start, start + ns(options.seconds.get()), target);
    let open_loop = match options.rate {
        Some(rate) => Some(OpenLoop::new(&session, Schedule::new(now, window.end, rate.get()))?),
        None => None,
    };
    let mut load = SteadyRun::new(&mut session, window, open_loop);
    load.drive(ns(patience))?;
    load.into_report(options)?.finish(target)
}

/// Runs a closed loop: every connection sends again as soon as it is answered. Ends when the window is over and
/// everything is answered, or patience is over. Returns the figures of the window and the latencies.
pub(crate) fn closed_loop<E: Exchange>(
    session: &mut Session<E>,
    window: Window,
    patience: Duration,
) -> Result<(WindowStats, Histogram), Failure> {
    let mut load = SteadyRun::new(session, window, None);
    load.drive(ns(patience))?;
    let SteadyRun { session, window, latency, .. } = load;
    Ok((window.finish(session.clock, &session.tally), latency))
}

struct SteadyRun<'a, E> {
    session: &'a mut Session<E>,
    window: Window,
    latency: Histogram,
    recorder: Recorder,
    open_loop: Option<OpenLoop>,
}

impl<'a, E: Exchange> SteadyRun<'a, E> {
    fn new(session: &'a mut Session<E>, window: Window, open_loop: Option<OpenLoop>) -> Self {
        let recorder = Recorder::new(window.start, window.end);
        Self { session, window, latency: Histogram::new(), recorder, open_loop }
    }

    /// Runs until the window is over and everything is answered, or patience is over.
    fn drive(&mut self, patience: u64) -> Result<(), Failure> {
        let clock = self.session.clock;
        let last = self.window.end + patience;
        let mut ready: Vec<ReadyEvent> = Vec::new();
        self.start_closed_loop();
        loop {
            let now = clock.now();
            self.window.observe(clock, now, &self.session.tally)?;
            self.send_due(now);
            if self.session.open == 0
                || now >= last
                || now >= self.window.end && !self.has_outstanding()
            {
                return Ok(());
            }
            let timeout = self.timeout(clock.now(), last)?;
            self.session.wait(&mut ready, timeout)?;
            for event in &ready {
                let outcome = self.session.handle_event(*event);
                self.answered(event.index, &outcome);
                if outcome.now < self.window.end {
                    // Handling a long list of events must not delay the next message.
                    self.send_due(outcome.now);
                }
            }
        }
    }

    fn start_closed_loop(&mut self) {
        if self.open_loop.is_some() {
            return;
        }
        for index in 0..self.session.connections() {
            let now = self.session.clock.now();
            while self.session.has_room(index) {
                self.session.release(index, now);
            }
            self.session.flush(index);
        }
    }

    /// Whether anything is still to be sent or answered.
    fn has_outstanding(&self) -> bool {
        self.session.outstanding > 0 || self.open_loop.as_ref().is_some_and(|open| open.held() > 0)
    }

    /// Records answers, then sends as far as there is room.
    fn answered(&mut self, index: usize, outcome: &EventOutcome) {
        let mut longest = 0;
        for message in outcome.answered.clone() {
            let started = self.session.started(index, message);
            longest = longest.max(outcome.now - started);
            if self.window.contains(started) {
                self.latency.record(outcome.now - started);
            }
        }
        if !outcome.answered.is_empty() {
            let answers = outcome.answered.end - outcome.answered.start;
            self.recorder.record(outcome.now, answers, longest);
        }
        if let Some(open_loop) = &mut self.open_loop {
            open_loop.release_and_flush(self.session, index);
            return;
        }
        if outcome.now < self.window.end {
            for _ in outcome.answered.clone() {
                self.session.release(index, outcome.now);
            }
        }
        self.session.flush(index);
    }

    fn send_due(&mut self, now: u64) {
        if let Some(open_loop) = &mut self.open_loop {
            open_loop.send_due(self.session, &self.window, now);
        }
    }

    fn timeout(&self, now: u64, last: u64) -> Result<Duration, Failure> {
        let boundary = self.window.next_after(now, last);
        let longest = Duration::from_nanos(boundary.saturating_sub(now));
        let Some(OpenLoop { schedule, timer, .. }) = &self.open_loop else { return Ok(longest) };
        timer.until_next(schedule, now, longest)
    }

    fn into_report(self, options: &Steady) -> Result<Report, Failure> {
        let clock = self.session.clock;
        let patience = options.patience.get().as_secs_f64();
        let stats = self.window.finish(clock, &self.session.tally);
        self.session.linger()?;
        let held = self.open_loop.as_ref().map_or(0, OpenLoop::held);
        self.session.close_all(&format!("not answered within {patience} s"));
        let lost = self.open_loop.as_ref().map_or(0, |open_loop| open_loop.lost);
        let mut report = Report::new(stats.seconds, options.connections.get(), &self.session.tally);
        let mut messages = stats.messages(self.session, options.rate.map(MessageRate::get));
        messages.unsent += held + lost;
        messages.held_back = self.open_loop.as_ref().map(|open_loop| open_loop.held_back);
        report.messages = Some(messages);
        report.latency_us = self.latency.percentiles();
        report.curve = self.latency.curve();
        let (series, stalls) = self.recorder.finish();
        report.series = Some(series);
        report.stalls = Some(stalls);
        report.lateness_us =
            self.open_loop.as_ref().and_then(|open_loop| open_loop.lateness.percentiles());
        report.client = stats.client;
        report.server = stats.server;
        Ok(report)
    }
}

/// Assigns the messages of a schedule to the open connections, round-robin.
struct OpenLoop {
    schedule: Schedule,
    timer: Timer,
    /// The connections that were open at the beginning, by lane: message `k` of the schedule belongs to lane
    /// `k % lanes`.
    lanes: Vec<usize>,
    /// For each connection.
    paced: Vec<LaneState>,
    /// Connections with something new to send.
    touched: Vec<usize>,
    /// How late messages were assigned.
    lateness: Histogram,
    /// Messages that had to wait for room on their connection.
    held_back: u64,
    /// Messages whose connection was over.
    lost: u64,
}

/// How many messages of a connection are due, and how many of them were released.
#[derive(Clone, Copy, Default)]
struct LaneState {
    lane: u64,
    due: u64,
    released: u64,
    touched: bool,
}

impl OpenLoop {
    fn new<E: Exchange>(session: &Session<E>, schedule: Schedule) -> Result<Self, Failure> {
        let timer = Timer::new(session.registry(), OTHER)
            .map_err(|error| Failure::new(format!("no timer: {error}")))?;
        let lanes: Vec<usize> =
            (0..session.connections()).filter(|index| session.is_open(*index)).collect();
        let mut paced = vec![LaneState::default(); session.connections()];
        for (lane, index) in lanes.iter().enumerate() {
            paced[*index].lane = lane as u64;
        }
        let touched = Vec::with_capacity(lanes.len());
        let lateness = Histogram::new();
        Ok(Self { schedule, timer, lanes, paced, touched, lateness, held_back: 0, lost: 0 })
    }

    /// Messages that wait for room.
    fn held(&self) -> u64 {
        self.paced.iter().map(|paced| paced.due - paced.released).sum()
    }

    fn send_due<E: Exchange>(&mut self, session: &mut Session<E>, window: &Window, now: u64) {
        if self.lanes.is_empty() {
            // No connection was open at the beginning.
            return;
        }
        while let Some((number, intended)) = self.schedule.take_due(now) {
            if window.contains(intended) {
                self.lateness.record(now - intended);
            }
            let index = self.lanes[(number % self.lanes.len() as u64) as usize];
            if !session.is_open(index) {
                self.lost += 1;
                continue;
            }
            let paced = &mut self.paced[index];
            paced.due += 1;
            if paced.due - paced.released > 1 || !session.has_room(index) {
                self.held_back += 1;
            } else if !paced.touched {
                paced.touched = true;
                self.touched.push(index);
            }
            self.release(session, index);
        }
        while let Some(index) = self.touched.pop() {
            self.paced[index].touched = false;
            self.release_and_flush(session, index);
        }
    }

    fn release_and_flush<E: Exchange>(&mut self, session: &mut Session<E>, index: usize) {
        self.release(session, index);
        if !session.flush(index) {
            self.release(session, index);
        }
    }

    /// Releases the due messages of a connection, as far as there is room. They are lost if it is over.
    fn release<E: Exchange>(&mut self, session: &mut Session<E>, index: usize) {
        let lanes = self.lanes.len() as u64;
        let paced = &mut self.paced[index];
        if !session.is_open(index) {
            self.lost += paced.due - paced.released;
            paced.released = paced.due;
        }
        while paced.released < paced.due && session.has_room(index) {
            let intended = self.schedule.intended(paced.released * lanes + paced.lane);
            session.release(index, intended);
            paced.released += 1;
        }
    }
}

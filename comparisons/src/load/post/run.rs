//! [`Run`]: the connections of `load post`, and when each of them posts.

use std::io;
use std::time::Duration;

use mio::{Events, Interest, Poll, Token};
use peers_common::AlignedBytes;

use super::super::bounds::MessageRate;
use super::super::dial::Dialer;
use super::super::histogram::Histogram;
use super::super::options::Target;
use super::super::pace::{Clock, Schedule, Timer, ns};
use super::super::report::Posts;
use super::super::series::Recorder;
use super::super::session::{OTHER, Tally};
use super::super::window::Window;
use super::super::{Failure, Report};
use super::answer::{Offsets, Verdict, judge};
use super::client::{Client, Problem, Progress, Ready};
use super::slots::{Slots, State};
use super::{Options, Request};

/// How often time-outs are checked, and slots are used again that had to wait.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// How long a slot waits after a connection that failed and after an event that did. A server that is gone is not asked
/// all the time.
const PAUSE: Duration = Duration::from_millis(100);

/// The size of one read. Answers are short, but TLS reads only where there is room for several records.
const SCRATCH_BYTES: usize = 128 * 1024;

const EVENTS_MAX: usize = 1024;

/// A run.
pub(super) struct Run {
    clock: Clock,
    poll: Poll,
    dialer: Dialer,
    window: Window,
    schedule: Option<Schedule>,
    timer: Timer,
    patience: u64,
    per_connection: bool,
    slots: Slots,
    request_bytes: u64,
    /// When time-outs are checked next.
    next_check: u64,
    scratch: AlignedBytes,
    tally: Tally,
    /// Connections that were started.
    dialed: u64,
    /// Events that were begun: the number of the next one.
    begun: u64,
    posts: Posts,
    offsets: Offsets,
    held_back: u64,
    connect: Histogram,
    latency: Histogram,
    lateness: Histogram,
    recorder: Recorder,
}

impl Run {
    pub(super) fn new(
        options: &Options,
        target: &Target,
        request: &Request,
    ) -> Result<Self, Failure> {
        let cannot = |error: io::Error| Failure::new(format!("cannot wait for events: {error}"));
        let connections = options.connections.count();
        // The number of connections is not known if each has one request.
        let dialer = Dialer::new(target, if options.per_connection { 0 } else { connections })?;
        let poll = Poll::new().map_err(cannot)?;
        let timer = Timer::new(poll.registry(), OTHER).map_err(cannot)?;
        let clock = Clock::new();
        let now = clock.now();
        let start = now + ns(options.warm_up.get());
        let end = start + ns(options.seconds.get());
        Ok(Self {
            clock,
            poll,
            dialer,
            window: Window::new(start, end, target),
            schedule: options.rate.map(|rate| Schedule::new(now, end, rate.get())),
            timer,
            patience: ns(options.patience.get()),
            per_connection: options.per_connection,
            slots: Slots::new(connections, request),
            request_bytes: request.bytes.len() as u64,
            next_check: now + ns(CHECK_EVERY),
            scratch: AlignedBytes::zeroed(SCRATCH_BYTES),
            tally: Tally::default(),
            dialed: 0,
            begun: 0,
            posts: Posts::default(),
            offsets: Offsets::default(),
            held_back: 0,
            connect: Histogram::new(),
            latency: Histogram::new(),
            lateness: Histogram::new(),
            recorder: Recorder::new(start, end),
        })
    }

    /// Until the window is over and all is answered, or until patience is over.
    pub(super) fn drive(&mut self) -> Result<(), Failure> {
        let last = self.window.end + self.patience;
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            let now = self.clock.now();
            self.window.observe(self.clock, now, &self.tally)?;
            if now >= self.next_check {
                self.check_times(now);
            }
            if now >= last
                || now >= self.window.end && self.slots.busy() == 0 && self.waiting() == 0
            {
                return Ok(());
            }
            self.begin(now);
            let timeout = self.timeout()?;
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(Failure::new(format!("cannot wait for events: {error}")));
                }
                _ => {}
            }
            for event in &events {
                if event.token() != OTHER {
                    let Token(index) = event.token();
                    let now = self.clock.now();
                    self.handle_ready(index, Ready::of(event), now);
                    // Handling a long list of events must not delay the next request.
                    self.begin(now);
                }
            }
        }
    }

    /// Open loop: how many of the scheduled events have not begun.
    fn waiting(&self) -> u64 {
        self.schedule.as_ref().map_or(0, Schedule::left)
    }

    fn timeout(&self) -> Result<Duration, Failure> {
        let now = self.clock.now();
        let boundary = self.window.next_after(now, self.next_check).min(self.next_check);
        let longest = Duration::from_nanos(boundary.saturating_sub(now));
        let schedule = self.schedule.as_ref().filter(|_| self.slots.has_free());
        schedule.map_or(Ok(longest), |schedule| self.timer.until_next(schedule, now, longest))
    }

    /// Posts the events that are due, as far as there is room. The schedule ends with the window; an event that waits at
    /// that moment is posted later.
    fn begin(&mut self, now: u64) {
        while self.slots.has_free() {
            let mut intended = now;
            if self.schedule.is_none() && now >= self.window.end {
                return;
            }
            if let Some(schedule) = &mut self.schedule {
                let Some((_, due)) = schedule.take_due(now) else { return };
                intended = due;
                if self.slots.was_full(due) {
                    self.held_back += 1;
                } else if self.window.contains(due) {
                    self.lateness.record(now - due);
                }
            }
            let Some(index) = self.slots.begin(intended, now) else { return };
            self.post(index, now);
        }
    }

    /// Posts the next event.
    fn post(&mut self, index: usize, now: u64) {
        let number = self.begun;
        self.begun += 1;
        if self.slots.get(index).client.is_none()
            && let Err(error) = self.dial(index, now)
        {
            return self.end_by(index, Problem::Failed(format!("connect: {error}")), now);
        }
        let slot = self.slots.get(index);
        slot.request.number(number);
        let Some(client) = &mut slot.client else { return };
        client.start();
        match client.flush(&slot.request.bytes) {
            Ok(sent) => self.tally.sent += u64::from(sent),
            Err(problem) => self.end_by(index, problem, now),
        }
    }

    fn dial(&mut self, index: usize, now: u64) -> io::Result<()> {
        let mut client = Client::new(self.dialer.dial()?, now);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(client.tcp_mut(), Token(index), interest)?;
        self.slots.get(index).client = Some(client);
        self.dialed += 1;
        Ok(())
    }

    fn handle_ready(&mut self, index: usize, ready: Ready, now: u64) {
        let slot = self.slots.get(index);
        let Some(client) = &mut slot.client else { return };
        let progress = match client.handle(ready, &slot.request.bytes, &mut self.scratch) {
            Ok(progress) => progress,
            Err(problem) => return self.end_by(index, problem, now),
        };
        self.tally.sent += u64::from(progress.sent);
        self.tally.received_bytes += progress.bytes;
        if progress.connected {
            self.connect.record(now - client.dialed);
        }
        if self.handle_answer(index, progress, now) && progress.ended {
            self.ended(index, now);
        }
    }

    /// Handles the answer, if there is one. False if that ended the connection.
    fn handle_answer(&mut self, index: usize, progress: Progress, now: u64) -> bool {
        let slot = self.slots.get(index);
        let (Some(head), Some(client)) = (progress.answer, &mut slot.client) else { return true };
        let verdict = judge(head, client.body()).and_then(|verdict| {
            if let Verdict::Acknowledged { partition, offset } = verdict {
                self.offsets.insert(partition, offset)?;
            }
            Ok(verdict)
        });
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(why) => {
                self.end_by(index, Problem::Wrong(why), now);
                return false;
            }
        };
        if !client.has_answered {
            client.has_answered = true;
            self.tally.record_opened(now - client.dialed);
        }
        match verdict {
            Verdict::Acknowledged { .. } => {
                self.posts.acknowledged += 1;
                self.tally.received += 1;
                let took = now - slot.intended;
                if self.window.contains(slot.intended) {
                    self.latency.record(took);
                }
                self.recorder.record(now, 1, took);
            }
            Verdict::Refused { retry } => {
                self.posts.refused += 1;
                slot.rests_until = now + ns(retry);
            }
            Verdict::Failed => {
                self.posts.failed += 1;
                slot.rests_until = now + ns(PAUSE);
            }
        }
        // Who is answered early sends the rest to nobody.
        let is_sent = client.has_sent(&slot.request.bytes);
        if self.per_connection || head.closes || !is_sent {
            slot.state = State::Closing;
        } else {
            self.slots.end(index, now);
        }
        true
    }

    /// The server has ended the connection of this slot.
    fn ended(&mut self, index: usize, now: u64) {
        let slot = self.slots.get(index);
        match slot.state {
            State::InFlight => {
                self.end_by(index, Problem::Failed("closed by the server".to_owned()), now);
            }
            State::Closing => {
                slot.client = None;
                self.slots.end(index, now);
            }
            // It was idle. The next event has a new one.
            State::Free | State::Resting => slot.client = None,
        }
    }

    /// Closes the connection of a slot because of a problem, and counts both.
    fn end_by(&mut self, index: usize, problem: Problem, now: u64) {
        match problem {
            Problem::Failed(kind) => self.tally.error(kind),
            Problem::Wrong(what) => {
                self.tally.error("wrong answer");
                self.tally.wrong(format!("connection {index}: {what}"));
            }
        }
        let slot = self.slots.get(index);
        let has_begun = slot.client.take().is_some_and(|client| client.has_begun());
        slot.rests_until = slot.rests_until.max(now + ns(PAUSE));
        match slot.state {
            State::InFlight if has_begun => self.tally.unanswered += 1,
            State::InFlight => self.tally.unsent += 1,
            State::Closing => {}
            State::Free | State::Resting => return,
        }
        self.slots.end(index, now);
    }

    /// Gives up requests that take too long, and lets slots post again that have rested.
    fn check_times(&mut self, now: u64) {
        self.next_check = now + ns(CHECK_EVERY);
        self.slots.wake(now);
        self.give_up_before(now.saturating_sub(self.patience), now);
    }

    /// Gives up the requests that began before `then`, and connections that the server has not closed.
    fn give_up_before(&mut self, then: u64, now: u64) {
        let seconds = self.patience as f64 / 1e9;
        let mut next = 0;
        while let Some((index, state)) = self.slots.next_late(next, then) {
            let what = if state == State::Closing { "closed by the server" } else { "answered" };
            let kind = format!("not {what} within {seconds} s");
            self.end_by(index, Problem::Failed(kind), now);
            next = index + 1;
        }
    }

    pub(super) fn into_report(mut self, options: &Options) -> Result<Report, Failure> {
        self.give_up_before(u64::MAX, self.clock.now());
        self.tally.require_opened()?;
        let never_begun = self.waiting();
        if never_begun > 0 {
            let patience = options.patience.get().as_secs_f64();
            let kind = format!("not begun within {patience} s after the window: no slot was free");
            self.tally.errors.insert(kind, never_begun);
            self.tally.unsent += never_begun;
        }
        let stats = self.window.finish(self.clock, &self.tally);
        let mut report = Report::new(stats.seconds, self.dialed, &self.tally);
        let rate = options.rate.map(MessageRate::get);
        let mut messages = stats.messages_of(&self.tally, self.request_bytes, rate);
        messages.held_back = rate.map(|_| self.held_back);
        report.messages = Some(messages);
        self.posts.connect_us = self.connect.percentiles();
        self.posts.partitions = self.offsets.report();
        report.posts = Some(self.posts);
        report.latency_us = self.latency.percentiles();
        report.curve = self.latency.curve();
        let (series, stalls) = self.recorder.finish();
        report.series = Some(series);
        report.stalls = Some(stalls);
        report.lateness_us = self.lateness.percentiles();
        report.client = stats.client;
        report.server = stats.server;
        Ok(report)
    }
}

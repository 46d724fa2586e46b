//! Windows on command: the connections stay, and a line on stdin says when to measure.
//!
//! | line | what happens |
//! |---|---|
//! | `warm-up MS` | a closed loop for so long, which is not reported |
//! | `window MS` | the same, reported |
//! | `end` | a last report, of all windows together; `load` ends, as it does at the end of stdin |
//!
//! A load may have something to do besides, while no message is in flight: its [`Upkeep`].
//!
//! Each line is answered by one line of JSON: a [`WindowAnswer`], for `end` the [`Report`] alone. In between, `load` waits
//! for stdin, and keeps the connections: it answers pings, and sends a request of HTTP now and then.
//!
//! A window ends when time is over *and* everything that was sent is answered: its messages are all answers, and the
//! server is idle at both of its ends, so that its CPU time is all for them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::Failure;
use super::dial::Dialer;
use super::exchange::Exchange;
use super::histogram::Histogram;
use super::options::Target;
use super::pace::{Clock, ns};
use super::report::Report;
use super::series::{Recorder, Stalls};
use super::session::{EventOutcome, Opening, ReadyEvent, Session};
use super::usage::UsageSnapshot;
use super::window::WindowStats;

/// The longest window: an hour.
pub(crate) const WINDOW_MS_MAX: u64 = 3_600_000;

/// The server is looked at so many times at the most, until it is asleep.
const SETTLE_READS: usize = 10;

/// The time between two looks. Bytes that were not asked for arrive meanwhile.
const SETTLE_EVERY: Duration = Duration::from_millis(1);

/// How often pings are answered between windows. This project's server sends one after 30 s of silence, and closes the
/// connection if it is not answered for 20 s. Other rows may be measured for longer than that.
const PINGS_EVERY: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// How often connections of HTTP have requests between windows. This project's server closes one that is idle for 10 s.
const REQUESTS_EVERY: Timespec = Timespec { tv_sec: 4, tv_nsec: 0 };

/// The answer to `warm-up` and `window`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowAnswer {
    /// The window; after a warm-up, none.
    pub(crate) report: Option<Report>,
    /// The CPU that the server used since the window or warm-up before this one, in per cent of a core: it had
    /// nothing to do. None before the first.
    pub(crate) idle_percent: Option<f64>,
}

/// The connections of a load, and how long an answer may take.
pub(crate) struct Loop {
    pub(crate) connections: usize,
    pub(crate) in_flight: u32,
    pub(crate) patience: Duration,
    pub(crate) ramp: Duration,
}

/// What a load does besides sending messages, while none is in flight. Most loads do nothing.
pub(crate) trait Upkeep<E> {
    /// After each window and warm-up, before its report. What the server did wrongly goes to the session's tally. True if
    /// it asked something of the server.
    ///
    /// # Errors
    /// The run cannot go on.
    fn after_window(&mut self, _session: &mut Session<E>) -> Result<bool, Failure> {
        Ok(false)
    }

    /// After the last window, before the connections are closed.
    ///
    /// # Errors
    /// There is no report.
    fn at_end(&mut self, _session: &mut Session<E>) -> Result<(), Failure> {
        Ok(())
    }
}

impl<E> Upkeep<E> for () {}

/// Opens the connections, then does what stdin says.
///
/// # Errors
/// When no connection could be opened, or a line is not understood.
pub(crate) fn run<E: Exchange>(
    options: &Loop,
    target: &Target,
    exchange: E,
    upkeep: &mut impl Upkeep<E>,
) -> Result<Report, Failure> {
    let Loop { connections, in_flight, patience, ramp } = *options;
    target.prepare(connections)?;
    let clock = Clock::new();
    let mut session = Session::new(exchange, clock, connections, in_flight, 0)?;
    let mut dialer = Dialer::new(target, connections)?;
    session.open_all(&mut dialer, patience, ramp, Opening::Answer)?;
    session.tally.require_opened()?;
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(unread)?);
    let mut windows = Windows {
        stdin: BufReader::new(stdin),
        clock,
        session,
        patience: ns(patience),
        server_pid: target.server_pid,
        last: None,
        total: Total::new(),
        unsettled: 0,
    };
    while let Some(line) = windows.next_line()? {
        let (report, window) = match parse(&line)? {
            Command::End => break,
            Command::WarmUp(window) => (false, window),
            Command::Window(window) => (true, window),
        };
        let (mut measured, idle_percent) = windows.measure(window)?;
        if upkeep.after_window(&mut windows.session)? {
            // The server is not left alone.
            windows.last = None;
        }
        if report {
            windows.total.add(&measured);
            windows.unsettled += u64::from(!measured.is_settled);
            measured.is_reported = true;
        }
        print(&WindowAnswer { report: windows.report(measured), idle_percent })?;
    }
    windows.session.linger()?;
    upkeep.at_end(&mut windows.session)?;
    let report = windows.finish()?.warned(target);
    print(&report)?;
    Ok(report)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    WarmUp(Duration),
    Window(Duration),
    End,
}

fn parse(line: &str) -> Result<Command, Failure> {
    let wrong =
        || Failure::new(format!("stdin: {line:?} is not one of warm-up MS, window MS, end"));
    let Some((name, ms)) = line.split_once(' ') else {
        return if line == "end" { Ok(Command::End) } else { Err(wrong()) };
    };
    let ms = ms.parse().ok().filter(|ms| (1..=WINDOW_MS_MAX).contains(ms)).ok_or_else(wrong)?;
    let time = Duration::from_millis(ms);
    match name {
        "warm-up" => Ok(Command::WarmUp(time)),
        "window" => Ok(Command::Window(time)),
        _ => Err(wrong()),
    }
}

fn unread(error: impl Into<io::Error>) -> Failure {
    Failure::new(format!("cannot read stdin: {}", error.into()))
}

fn print(answer: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(answer).map_err(|error| Failure::new(error.to_string()))?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(&line).and_then(|()| stdout.flush());
    printed.map_err(|error| Failure::new(format!("cannot answer on stdout: {error}")))
}

/// One window.
struct Measured {
    stats: WindowStats,
    latency: Histogram,
    stalls: Stalls,
    /// Whether the server was asleep at its end, so that its CPU time is exact.
    is_settled: bool,
    is_reported: bool,
}

/// All windows together.
struct Total {
    stats: Option<WindowStats>,
    latency: Histogram,
    stalls: Stalls,
}

struct Windows<E> {
    stdin: BufReader<File>,
    clock: Clock,
    session: Session<E>,
    patience: u64,
    server_pid: Option<u32>,
    /// What the server had used after the last window, and when.
    last: Option<(u64, UsageSnapshot)>,
    total: Total,
    /// How many windows ended before the server was asleep.
    unsettled: u64,
}

impl<E: Exchange> Windows<E> {
    /// Waits for a line on stdin, and keeps the connections meanwhile. None: stdin has ended.
    fn next_line(&mut self) -> Result<Option<String>, Failure> {
        let is_http = self.session.exchange.is_http();
        let every = if is_http { REQUESTS_EVERY } else { PINGS_EVERY };
        while self.stdin.buffer().is_empty() {
            let mut stdin = [PollFd::new(self.stdin.get_ref(), PollFlags::IN)];
            if poll(&mut stdin, Some(&every)).map_err(unread)? > 0 {
                break;
            }
            self.session.catch_up()?;
            if is_http {
                self.send_once()?;
            }
        }
        let mut line = String::new();
        let len = self.stdin.read_line(&mut line).map_err(unread)?;
        Ok((len > 0).then(|| line.trim_end().to_owned()))
    }

    /// A closed loop for a time. Also returns the CPU that the server used before it, in per cent.
    fn measure(&mut self, time: Duration) -> Result<(Measured, Option<f64>), Failure> {
        // Connections may have ended, or pings have come.
        self.session.catch_up()?;
        let before = self.server()?;
        let idle_from = self.last.as_ref().zip(before.as_ref());
        let idle_percent = idle_from
            .map(|((at, last), before)| before.since(last, self.clock.now() - at).cpu_percent);
        let client = UsageSnapshot::own();
        let (sent, received) = (self.session.tally.sent, self.session.tally.received);
        let received_bytes = self.session.tally.received_bytes;
        let start = self.clock.now();
        let end = start + ns(time);
        let mut latency = Histogram::new();
        let mut recorder = Recorder::new(start, end);
        self.drive(end, &mut latency, &mut recorder)?;
        let window_ns = self.clock.now() - start;
        let client = UsageSnapshot::own().since(&client, window_ns);
        let (after, is_settled) = self.settled()?;
        let tally = &self.session.tally;
        let messages = tally.received - received;
        let server = after
            .as_ref()
            .zip(before.as_ref())
            .map(|(after, before)| after.since(before, window_ns).over_messages(messages));
        self.last = after.map(|after| (self.clock.now(), after));
        let stats = WindowStats {
            seconds: window_ns as f64 / 1e9,
            sent: tally.sent - sent,
            received: messages,
            received_bytes: tally.received_bytes - received_bytes,
            client,
            server,
        };
        let (_, stalls) = recorder.finish();
        let is_reported = false;
        Ok((Measured { stats, latency, stalls, is_settled, is_reported }, idle_percent))
    }

    /// Sends until `end`, then waits for what is outstanding; at most for as long as patience lasts.
    fn drive(
        &mut self,
        end: u64,
        latency: &mut Histogram,
        recorder: &mut Recorder,
    ) -> Result<(), Failure> {
        let last = end + self.patience;
        let mut ready: Vec<ReadyEvent> = Vec::new();
        for index in 0..self.session.connections() {
            self.release(index, self.clock.now());
        }
        loop {
            let now = self.clock.now();
            if self.session.open == 0 || now >= end && self.session.outstanding == 0 {
                return Ok(());
            }
            if now >= last {
                self.give_up();
                return Ok(());
            }
            let boundary = if now < end { end } else { last };
            self.session.wait(&mut ready, Duration::from_nanos(boundary - now))?;
            for event in &ready {
                let outcome = self.session.handle_event(*event);
                self.record(event.index, &outcome, latency, recorder);
                if outcome.now < end {
                    self.release(event.index, outcome.now);
                } else {
                    self.session.flush(event.index);
                }
            }
        }
    }

    /// Sends once as much as there is room for, and waits for the answers.
    fn send_once(&mut self) -> Result<(), Failure> {
        let now = self.clock.now();
        // The server is not left alone.
        self.last = None;
        self.drive(now, &mut Histogram::new(), &mut Recorder::new(now, now))
    }

    /// Sends as much as there is room for.
    fn release(&mut self, index: usize, now: u64) {
        while self.session.has_room(index) {
            self.session.release(index, now);
        }
        self.session.flush(index);
    }

    fn record(
        &self,
        index: usize,
        outcome: &EventOutcome,
        latency: &mut Histogram,
        recorder: &mut Recorder,
    ) {
        if outcome.answered.is_empty() {
            return;
        }
        let mut longest = 0;
        // A request with many answers has no latency of a message.
        if self.session.exchange.answers() == 1 {
            for message in outcome.answered.clone() {
                let took = outcome.now - self.session.started(index, message);
                longest = longest.max(took);
                latency.record(took);
            }
        }
        recorder.record(outcome.now, outcome.answered.end - outcome.answered.start, longest);
    }

    fn give_up(&mut self) {
        let kind = format!("not answered within {} s", self.patience as f64 / 1e9);
        for index in 0..self.session.connections() {
            if self.session.is_open(index) && self.session.has_outstanding(index) {
                self.session.give_up(index, &kind);
            }
        }
    }

    fn server(&self) -> Result<Option<UsageSnapshot>, Failure> {
        self.server_pid.map(UsageSnapshot::of).transpose()
    }

    /// What the server has used once it is asleep, and whether it is: it goes to sleep some time after the last answer,
    /// and the time of a thread that runs is known at ticks only. It is asleep when no thread runs in two reads with the
    /// same time. Meanwhile bytes that were not asked for are found.
    fn settled(&mut self) -> Result<(Option<UsageSnapshot>, bool), Failure> {
        let mut ready = Vec::new();
        let mut before = None;
        for _ in 0..SETTLE_READS {
            self.session.wait(&mut ready, SETTLE_EVERY)?;
            for event in &ready {
                self.session.handle_event(*event);
            }
            let now = self.server()?;
            let is_settled = |(before, now): (&UsageSnapshot, &UsageSnapshot)| {
                before.is_asleep() && now.is_asleep() && now.since(before, 1).cpu_ns() == 0
            };
            if now.is_none() || before.as_ref().zip(now.as_ref()).is_some_and(is_settled) {
                return Ok((now, true));
            }
            before = now;
        }
        Ok((before, false))
    }

    /// None of a warm-up.
    fn report(&self, measured: Measured) -> Option<Report> {
        let Measured { stats, latency, stalls, .. } = measured;
        measured.is_reported.then(|| self.report_of(stats, &latency, stalls))
    }

    fn report_of(&self, stats: WindowStats, latency: &Histogram, stalls: Stalls) -> Report {
        let wanted = self.session.connections() as u64;
        let mut report = Report::new(stats.seconds, wanted, &self.session.tally);
        report.messages = Some(stats.messages(&self.session, None));
        report.latency_us = latency.percentiles();
        report.stalls = (self.session.exchange.answers() == 1).then_some(stalls);
        report.client = stats.client;
        report.server = stats.server;
        report
    }

    /// The report of all windows.
    fn finish(mut self) -> Result<Report, Failure> {
        self.session.close_all("not answered");
        let Total { stats, latency, stalls } = std::mem::replace(&mut self.total, Total::new());
        let stats = stats.ok_or_else(|| Failure::new("no window was asked for"))?;
        let mut report = self.report_of(stats, &latency, stalls);
        report.curve = latency.curve();
        if self.unsettled > 0 {
            report.warnings.push(format!(
                "the server was not asleep at the end of {} windows: their CPU time is wrong by up to a tick at each end",
                self.unsettled
            ));
        }
        Ok(report)
    }
}

impl Total {
    fn new() -> Self {
        Self { stats: None, latency: Histogram::new(), stalls: Stalls::default() }
    }

    fn add(&mut self, measured: &Measured) {
        self.latency.add(&measured.latency);
        let before = self.stats.as_ref().map_or(0.0, |stats| stats.seconds);
        self.stalls.append(&measured.stalls, before * 1e3);
        match &mut self.stats {
            None => self.stats = Some(measured.stats.clone()),
            Some(stats) => stats.add(&measured.stats),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_and_their_times_bounded() {
        assert_eq!(parse("window 50").unwrap(), Command::Window(Duration::from_millis(50)));
        assert_eq!(parse("warm-up 1").unwrap(), Command::WarmUp(Duration::from_millis(1)));
        assert_eq!(parse("end").unwrap(), Command::End);
        for line in ["", "window", "window 0", "window 3600001", "window x", "ends", "end 1"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}

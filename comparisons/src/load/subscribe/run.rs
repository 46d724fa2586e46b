//! [`Run`]: subscribers and a producer on one thread.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use peers_common::AlignedBytes;

use super::super::Failure;
use super::super::dial::Dialer;
use super::super::histogram::Histogram;
use super::super::options::Target;
use super::super::pace::{Clock, Schedule, Timer, ns};
use super::super::report::{FanOut, Messages, Report, SlowReaders};
use super::super::session::{OTHER, Opening, ReadyEvent, Session, Tally};
use super::super::upgrade::Upgrade;
use super::super::usage::UsageSnapshot;
use super::super::window::Window;
use super::Options;
use super::feed::{Checker, Feed, Publish};
use super::subscriber::{Fault, Subscriber};
use super::tracker::{Spreads, Tracker};

const EVENTS_MAX: usize = 1024;

/// After so many events, messages that are due are published.
const EVENTS_BEFORE_PUBLISHING: usize = 32;

/// How many connections are opened at the same time: far fewer than any backlog.
const OPENING_MAX: usize = 64;

/// How often connections that are being opened are checked for their time-out.
const OPENING_CHECK_EVERY: Duration = Duration::from_millis(10);

/// The most messages that wait for Iggy's answer. More are held back.
const IN_FLIGHT: u32 = 1024;

/// What a fast subscriber reads at once.
const READ_BYTES: usize = 64 * 1024 - peers_common::SHORT_OF_PAGE_BYTES;

/// What a slow one reads at once, and how often.
const SLOW_READ_BYTES: usize = 4 * 1024;
const SLOW_EVERY: Duration = Duration::from_millis(50);

/// The receive buffer of a slow one: what it does not read waits at the server, not here.
const SLOW_RECEIVE_BYTES: usize = 8 * 1024;

/// How long all are idle before the server's memory is read.
const IDLE: Duration = Duration::from_millis(300);

pub(super) struct Run<'a> {
    options: &'a Options,
    target: &'a Target,
    clock: Clock,
    poll: Poll,
    events: Events,
    subscribers: Vec<Option<Subscriber>>,
    producer: Session<Publish>,
    checker: Checker,
    tracker: Tracker,
    /// Deliveries to those that are not slow, and their connections.
    tally: Tally,
    /// Deliveries to slow ones.
    slow_received: u64,
    /// Slow ones that ended.
    slow_ended: u64,
    latency: Histogram,
    lateness: Histogram,
    /// Connections with more to read.
    unfinished: Vec<usize>,
    scratch: AlignedBytes,
    /// The growth of the server's memory for each subscriber.
    rss_bytes_each: Option<f64>,
    last_received: u64,
}

impl<'a> Run<'a> {
    /// Opens all connections.
    ///
    /// # Errors
    /// The producer cannot connect, or no subscriber can.
    pub(super) fn open(
        options: &'a Options,
        target: &'a Target,
        feed: &Feed,
        upgrade: Upgrade,
    ) -> Result<Self, Failure> {
        let (count, bytes) = (options.subscribers.count(), options.bytes.count());
        let before = target.server_pid.map(UsageSnapshot::of).transpose()?;
        let clock = Clock::new();
        let poll = Poll::new().map_err(|error| Failure::new(format!("no epoll: {error}")))?;
        let seconds = f64::from(options.seconds) + f64::from(options.warm_up);
        let messages = (seconds * options.rate.get() as f64).ceil() as usize;
        let mut run = Self {
            options,
            target,
            clock,
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            subscribers: (0..count).map(|_| None).collect(),
            producer: Session::new(Publish::new(feed, bytes), clock, 1, IN_FLIGHT, count as u32)?,
            checker: Checker::new(feed, bytes),
            tracker: Tracker::with_capacity(messages),
            tally: Tally::default(),
            slow_received: 0,
            slow_ended: 0,
            latency: Histogram::new(),
            lateness: Histogram::new(),
            unfinished: Vec::new(),
            scratch: AlignedBytes::zeroed(READ_BYTES),
            rss_bytes_each: None,
            last_received: 0,
        };
        let mut dialer = Dialer::new(target, count)?.with_upgrade(upgrade);
        run.open_subscribers(&mut dialer)?;
        run.tally.require_opened()?;
        run.rest(IDLE)?;
        let after = target.server_pid.map(UsageSnapshot::of).transpose()?;
        run.rss_bytes_each = before.zip(after).map(|(before, after)| {
            after.rss_bytes().saturating_sub(before.rss_bytes()) as f64 / count as f64
        });
        let patience = options.patience.get();
        let mut dialer = Dialer::new(target, 1)?;
        run.producer.open_all(&mut dialer, patience, Duration::ZERO, Opening::Connect)?;
        run.producer.tally.require_opened()?;
        let producer = run.producer.epoll();
        run.poll
            .registry()
            .register(&mut SourceFd(&producer), OTHER, Interest::READABLE)
            .map_err(|error| Failure::new(format!("cannot set up epoll: {error}")))?;
        Ok(run)
    }

    /// Publishes, and makes the report.
    ///
    /// # Errors
    /// The clock or epoll fails.
    pub(super) fn report(mut self) -> Result<Report, Failure> {
        let Options { warm_up, seconds, rate, patience, .. } = self.options;
        let start = self.clock.now() + ns(warm_up.get());
        let mut window = Window::new(start, start + ns(seconds.get()), self.target);
        let mut schedule = Schedule::new(self.clock.now(), window.end, rate.get());
        self.publish_until_end(&mut window, &mut schedule)?;
        self.wait_for_the_last(&window, ns(patience.get()))?;
        let Spreads { first, last, spread } = self.tracker.spreads(&window, self.fast());
        let (missing, unpublished) = (self.missing(), schedule.left());
        let slow = self.slow_readers();
        let stats = window.finish(self.clock, &self.tally);
        self.producer.close_all("not answered");
        let wanted = self.options.subscribers.get();
        let mut report = Report::new(stats.seconds, wanted, &self.tally);
        report.add_wrong(&self.producer.tally);
        report.add_errors(&self.producer.tally);
        report.messages = Some(Messages {
            offered_per_s: Some(rate.get()),
            sent: stats.sent,
            received: stats.received,
            received_per_s: stats.per_s(stats.received),
            received_mib_per_s: stats.per_s(stats.received_bytes) / f64::from(1 << 20),
            sent_mib_per_s: stats.per_s(stats.sent * self.options.bytes.get()) / f64::from(1 << 20),
            unanswered: missing,
            unsent: unpublished,
            held_back: None,
            ceiling_per_s: None,
        });
        report.fan_out = Some(FanOut {
            first_us: first.percentiles(),
            last_us: last.percentiles(),
            spread_us: spread.percentiles(),
            server_rss_bytes_each: self.rss_bytes_each,
            slow,
        });
        report.latency_us = self.latency.percentiles();
        report.curve = self.latency.curve();
        report.lateness_us = self.lateness.percentiles();
        report.client = stats.client;
        report.server = stats.server;
        Ok(report)
    }

    /// How many subscribers are not slow.
    fn fast(&self) -> usize {
        self.options.subscribers.count() - self.options.slow.count()
    }

    /// Connects and upgrades all, a few at a time.
    fn open_subscribers(&mut self, dialer: &mut Dialer) -> Result<(), Failure> {
        let (count, fast) = (self.subscribers.len(), self.fast());
        let patience = ns(self.options.patience.get());
        let mut next = 0;
        // Those that are not open yet, with the moment each began.
        let mut began = vec![0; count];
        let mut opening = BTreeSet::new();
        while next < count || !opening.is_empty() {
            while next < count && opening.len() < OPENING_MAX {
                began[next] = self.clock.now();
                if self.dial(next, dialer, next >= fast) {
                    opening.insert(next);
                }
                next += 1;
            }
            for (index, is_writable) in self.wait(OPENING_CHECK_EVERY)? {
                self.handle(index, is_writable, None);
            }
            let now = self.clock.now();
            for index in mem::take(&mut opening) {
                match &self.subscribers[index] {
                    None => {}
                    Some(subscriber) if subscriber.is_open() => {
                        self.tally.record_opened(now - began[index]);
                    }
                    Some(_) if now - began[index] > patience => {
                        let seconds = self.options.patience.get().as_secs_f64();
                        let kind = format!("not open within {seconds} s");
                        self.end(index, Fault::Failed(kind));
                    }
                    Some(_) => {
                        opening.insert(index);
                    }
                }
            }
        }
        Ok(())
    }

    fn dial(&mut self, index: usize, dialer: &mut Dialer, is_slow: bool) -> bool {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let receive_bytes = is_slow.then_some(SLOW_RECEIVE_BYTES);
        let dialed = dialer.dial_with(receive_bytes).and_then(|mut stream| {
            self.poll.registry().register(stream.tcp_mut(), Token(index), interest)?;
            Ok(stream)
        });
        match (dialed, dialer.upgrade()) {
            (Ok(stream), Some(upgrade)) => {
                let subscriber = Subscriber::new(stream, index as u32, upgrade, is_slow);
                self.subscribers[index] = Some(subscriber);
                true
            }
            (Ok(_), None) => false,
            (Err(error), _) => {
                self.tally.error(format!("connect: {error}"));
                false
            }
        }
    }

    /// Waits for events. Returns the connections that have one, and whether they became writable.
    fn wait(&mut self, timeout: Duration) -> Result<Vec<(usize, bool)>, Failure> {
        let timeout = if self.unfinished.is_empty() { timeout } else { Duration::ZERO };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(Failure::new(format!("cannot wait for events: {error}")));
            }
            _ => {}
        }
        let events = self.events.iter().filter(|event| event.token() != OTHER);
        let ready = events.map(|event| {
            let Token(index) = event.token();
            (index, event.is_writable() || event.is_error())
        });
        let unfinished = self.unfinished.drain(..).map(|index| (index, false));
        let ready = ready.chain(unfinished).collect();
        // The end of a stream may come with its last bytes: it takes another read, for which there is no other event.
        let ended = self.events.iter().filter(|event| event.token() != OTHER);
        let ended = ended.filter(|event| event.is_read_closed()).map(|event| event.token().0);
        self.unfinished.extend(ended);
        Ok(ready)
    }

    /// Handles an event of a subscriber. Deliveries of messages that were to be published in `window` are timed.
    fn handle(&mut self, index: usize, is_writable: bool, window: Option<&Window>) {
        let Some(subscriber) = &mut self.subscribers[index] else { return };
        if is_writable && let Err(fault) = subscriber.send() {
            return self.end(index, fault);
        }
        // A slow one reads when it is its time.
        if !subscriber.is_slow || !subscriber.is_open() {
            self.read(index, READ_BYTES, window);
        }
    }

    fn read(&mut self, index: usize, bytes: usize, window: Option<&Window>) {
        let now = self.clock.now();
        let Some(subscriber) = &mut self.subscribers[index] else { return };
        let is_slow = subscriber.is_slow;
        let (tracker, latency) = (&mut self.tracker, &mut self.latency);
        let mut deliveries = 0;
        let mut is_unknown = false;
        let received =
            subscriber.receive(&mut self.checker, &mut self.scratch[..bytes], |number| {
                deliveries += 1;
                if is_slow {
                    return;
                }
                match tracker.deliver(number, now) {
                    None => is_unknown = true,
                    Some(intended) if window.is_some_and(|window| window.contains(intended)) => {
                        latency.record(now.saturating_sub(intended));
                    }
                    Some(_) => {}
                }
            });
        if is_slow {
            self.slow_received += deliveries;
        } else {
            self.tally.received += deliveries;
        }
        if deliveries > 0 {
            self.last_received = now;
        }
        let sent = subscriber.send();
        match received {
            Ok(received) => {
                self.tally.received_bytes += if is_slow { 0 } else { received.bytes };
                if received.is_unfinished {
                    self.unfinished.push(index);
                }
                if is_unknown {
                    let what = format!("subscriber {index}: a message before it was published");
                    self.end(index, Fault::Wrong(what));
                } else if let Err(fault) = sent {
                    self.end(index, fault);
                }
            }
            Err(fault) => self.end(index, fault),
        }
    }

    /// Ends a subscriber. A slow one may be closed: that is a result.
    fn end(&mut self, index: usize, fault: Fault) {
        let Some(subscriber) = self.subscribers[index].take() else { return };
        match fault {
            Fault::Failed(_) if subscriber.is_slow && subscriber.is_open() => self.slow_ended += 1,
            Fault::Failed(kind) => self.tally.error(kind),
            Fault::Wrong(sentence) => {
                self.tally.error("wrong message");
                self.tally.wrong(sentence);
            }
        }
    }

    /// Leaves all alone for a time.
    fn rest(&mut self, time: Duration) -> Result<(), Failure> {
        let until = self.clock.now() + ns(time);
        loop {
            let now = self.clock.now();
            if now >= until {
                return Ok(());
            }
            for (index, is_writable) in self.wait(Duration::from_nanos(until - now))? {
                self.handle(index, is_writable, None);
            }
        }
    }

    /// Publishes as the schedule says until the window is over.
    fn publish_until_end(
        &mut self,
        window: &mut Window,
        schedule: &mut Schedule,
    ) -> Result<(), Failure> {
        let timer = Timer::new(self.poll.registry(), OTHER)
            .map_err(|error| Failure::new(format!("no timer: {error}")))?;
        let mut slow_at = self.clock.now();
        loop {
            let now = self.clock.now();
            self.tally.sent = self.producer.tally.sent;
            window.observe(self.clock, now, &self.tally)?;
            if now >= window.end {
                return Ok(());
            }
            self.publish(window, schedule)?;
            if now >= slow_at {
                slow_at = now + ns(SLOW_EVERY);
                self.read_slow(SLOW_READ_BYTES);
            }
            let now = self.clock.now();
            let next = window.next_after(now, window.end).min(slow_at);
            let longest = Duration::from_nanos(next.saturating_sub(now));
            let timeout = timer.until_next(schedule, now, longest)?;
            let ready = self.wait(timeout)?;
            for events in ready.chunks(EVENTS_BEFORE_PUBLISHING) {
                for (index, is_writable) in events {
                    self.handle(*index, *is_writable, Some(&*window));
                }
                if self.clock.now() < window.end {
                    self.publish(window, schedule)?;
                }
            }
        }
    }

    /// Publishes what is due, and handles answers.
    fn publish(&mut self, window: &Window, schedule: &mut Schedule) -> Result<(), Failure> {
        self.handle_answers()?;
        let mut is_new = false;
        while self.producer.has_room(0)
            && let Some((_, intended)) = schedule.take_due(self.clock.now())
        {
            if window.contains(intended) {
                self.lateness.record(self.clock.now() - intended);
            }
            self.tracker.publish(intended);
            self.producer.release(0, intended);
            is_new = true;
        }
        if is_new {
            self.producer.flush(0);
        }
        Ok(())
    }

    fn handle_answers(&mut self) -> Result<(), Failure> {
        let mut ready: Vec<ReadyEvent> = Vec::new();
        // Until none is left: the epoll is edge-triggered.
        loop {
            self.producer.wait(&mut ready, Duration::ZERO)?;
            if ready.is_empty() {
                return Ok(());
            }
            for event in &ready {
                self.producer.handle_event(*event);
                self.producer.flush(0);
            }
        }
    }

    fn read_slow(&mut self, bytes: usize) {
        for index in self.fast()..self.subscribers.len() {
            self.read(index, bytes, None);
        }
    }

    /// Reads until all subscribers have all messages and the producer has all answers, or no message has arrived for as
    /// long as `patience`. Slow ones hurry now.
    fn wait_for_the_last(&mut self, window: &Window, patience: u64) -> Result<(), Failure> {
        self.last_received = self.clock.now();
        let until = self.clock.now().saturating_add(LAST_PATIENCES * patience);
        loop {
            let now = self.clock.now();
            let is_over = now >= self.last_received.saturating_add(patience) || now >= until;
            if is_over || (self.has_all() && self.producer.outstanding == 0) {
                return Ok(());
            }
            self.handle_answers()?;
            self.read_slow(READ_BYTES);
            for (index, is_writable) in self.wait(OPENING_CHECK_EVERY)? {
                self.handle(index, is_writable, Some(window));
            }
        }
    }

    /// Whether each open connection has all messages.
    fn has_all(&self) -> bool {
        let count = self.tracker.count();
        self.subscribers.iter().flatten().all(|subscriber| subscriber.next == count)
    }

    /// Deliveries to subscribers that are not slow which never came.
    fn missing(&self) -> u64 {
        let count = self.tracker.count();
        let fast = self.subscribers.iter().take(self.fast()).flatten();
        fast.map(|subscriber| count.saturating_sub(subscriber.next)).sum()
    }

    /// What became of slow ones. Those that are not slow and lack messages are errors.
    fn slow_readers(&mut self) -> Option<SlowReaders> {
        let (count, fast) = (self.tracker.count(), self.fast());
        let patience = self.options.patience.get().as_secs_f64();
        for index in 0..fast {
            let lacks = self.subscribers[index].as_ref().is_some_and(|it| it.next < count);
            if lacks {
                self.tally.error(format!("not all messages came within {patience} s"));
            }
        }
        let slow = || self.subscribers.iter().skip(fast).flatten();
        (self.options.slow.get() > 0).then(|| SlowReaders {
            subscribers: self.options.slow.get(),
            received: self.slow_received,
            lost: slow().map(|subscriber| subscriber.lost).sum(),
            ended: self.slow_ended,
            caught_up: slow().filter(|subscriber| subscriber.next == count).count() as u64,
        })
    }
}

/// The wait for the last messages takes at most as long as patience so many times, even if something arrives.
const LAST_PATIENCES: u64 = 3;

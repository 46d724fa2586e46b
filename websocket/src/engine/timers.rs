//! [`Timers`]: deadlines, computed from the times that the engine is given.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use crate::{StreamConfig, Timeout};

/// The timers of a connection.
#[derive(Debug)]
#[repr(C)] // the fields that each message uses come first, in as few cache lines as possible
pub(super) struct Timers {
    /// When the connection began.
    start: Instant,
    /// The latest time that the engine was given.
    now: Cell<Time>,
    /// When bytes of the peer last arrived.
    received_at: Cell<Time>,
    /// When a ping was sent, if nothing has arrived since.
    ping_sent_at: Cell<Option<Time>>,
    /// When a message was last received or sent, not counting `has_new_data`.
    data_at: Cell<Time>,
    /// When a partially received message began. Moved forward by time in which nobody read.
    message_at: Cell<Option<Time>>,
    /// When a write that waits for the peer began, or the peer last accepted a part of it.
    blocked_at: Cell<Option<Time>>,
    /// When the closing handshake began, or the peer last accepted some of the data before the
    /// close frame.
    closing_at: Cell<Option<Time>>,
    /// Whether a message was received or sent since `now`. Its time is that of the next write if a
    /// write is reported next, and otherwise `now`. So a message costs one store, and needs no
    /// reading of the clock.
    has_new_data: Cell<bool>,
    /// Bytes arrived and no read has begun since.
    has_received_since_read: Cell<bool>,
    /// Whether the closing handshake began since `now`. `now` may be long ago, because a frame may
    /// be decoded long after it was read. So the next time that is given counts as the beginning.
    is_closing_new: Cell<bool>,

    idle_timeout: Limit,
    ping_interval: Limit,
    pong_timeout: Limit,
    message_timeout: Limit,
    write_timeout: Limit,
    close_timeout: Limit,
}

/// A limit of time in nanoseconds, in half the space of a duration. One of more than 584 years is [none](Self::NONE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(u64);

impl Limit {
    const NONE: Self = Self(u64::MAX);

    fn new(limit: Option<Duration>) -> Self {
        let nanos = limit.and_then(|limit| u64::try_from(limit.as_nanos()).ok());
        nanos.map_or(Self::NONE, Self)
    }

    const fn get(self) -> Option<Duration> {
        if self.0 == Self::NONE.0 { None } else { Some(Duration::from_nanos(self.0)) }
    }

    /// When it is exceeded, if it counts from `at` on.
    fn after(self, at: Time) -> Option<Time> {
        if self == Self::NONE { None } else { at.0.checked_add(self.0).map(Time) }
    }
}

/// A time in nanoseconds since [`Timers::start`], which is 1. It has half the size of an instant, also where it is
/// optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Time(NonZeroU64);

impl Time {
    const START: Self = Self(NonZeroU64::MIN);

    fn nanos_since(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }
}

/// What a deadline demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerEvent {
    Ping,
    Timeout(Timeout),
}

impl Timers {
    pub(super) fn new(config: &StreamConfig, now: Instant) -> Self {
        Self {
            ping_interval: Limit::new(config.ping_interval),
            pong_timeout: Limit::new(Some(config.pong_timeout)),
            idle_timeout: Limit::new(config.idle_timeout),
            message_timeout: Limit::new(config.message_timeout),
            write_timeout: Limit::new(config.write_timeout),
            close_timeout: Limit::new(Some(config.close_timeout)),
            start: now,
            now: Cell::new(Time::START),
            received_at: Cell::new(Time::START),
            ping_sent_at: Cell::new(None),
            data_at: Cell::new(Time::START),
            message_at: Cell::new(None),
            blocked_at: Cell::new(None),
            closing_at: Cell::new(None),
            has_new_data: Cell::new(false),
            has_received_since_read: Cell::new(false),
            is_closing_new: Cell::new(false),
        }
    }

    pub(super) fn advance(&self, now: Instant) {
        self.commit_data_time();
        self.now.set(self.time(now).max(self.now.get()));
        if self.is_closing_new.take() {
            self.closing_at.set(Some(self.now.get()));
        }
    }

    /// A read begins.
    pub(super) fn handle_read_start(&self, now: Instant) {
        self.advance(now);
        if self.has_received_since_read.take() {
            self.exclude_pause();
        }
    }

    /// Nothing was read up to `now`.
    pub(super) fn handle_read_pause(&self, now: Instant) {
        self.advance(now);
        self.exclude_pause();
        self.received_at.set(self.now.get());
    }

    /// Excludes the time since bytes last arrived from the time of the message.
    fn exclude_pause(&self) {
        if let Some(began_at) = self.message_at.get() {
            let now = self.now.get();
            let paused = now.nanos_since(self.received_at.get());
            self.message_at.set(Some(Time(began_at.0.saturating_add(paused)).min(now)));
        }
    }

    pub(super) fn handle_received(&self, now: Instant) {
        self.advance(now);
        self.received_at.set(self.now.get());
        self.ping_sent_at.set(None);
        self.has_received_since_read.set(true);
    }

    #[inline]
    pub(super) fn handle_data(&self) {
        self.has_new_data.set(true);
    }

    /// Whether a message is partially received, after the bytes that arrived last.
    pub(super) fn handle_message_progress(&self, is_under_way: bool) {
        let began_at = self.message_at.get().unwrap_or_else(|| self.now.get());
        self.message_at.set(is_under_way.then_some(began_at));
    }

    pub(super) const fn message_timeout(&self) -> Option<Duration> {
        self.message_timeout.get()
    }

    /// When the partially received message times out.
    #[inline]
    pub(super) fn message_deadline(&self) -> Option<Instant> {
        self.instant(self.message_due()?)
    }

    #[inline]
    fn message_due(&self) -> Option<Time> {
        self.message_timeout.after(self.message_at.get()?)
    }

    /// A write has progressed. So has what was sent since the time that was given last, however long
    /// ago that is. `now` may be left out if nothing [depends](Self::needs_write_time) on it.
    pub(super) fn handle_write(&self, now: Option<Instant>) {
        let had_new_data = self.has_new_data.take();
        if let Some(now) = now {
            self.advance(now);
        }
        if had_new_data {
            self.data_at.set(self.now.get());
        }
    }

    /// Whether a write waits for the peer. True also after the peer has accepted a part.
    pub(super) fn handle_blocked(&self, is_blocked: bool) {
        self.blocked_at.set(is_blocked.then_some(self.now.get()));
    }

    /// When the write that waits times out, if one waits.
    pub(super) fn write_deadline(&self) -> Option<Instant> {
        self.instant(self.write_due()?)
    }

    fn write_due(&self) -> Option<Time> {
        self.write_timeout.after(self.blocked_at.get()?)
    }

    /// The closing handshake begins.
    pub(super) fn handle_close(&self) {
        self.closing_at.set(Some(self.now.get()));
        self.is_closing_new.set(true);
    }

    /// The peer has accepted some of the data before the close frame, or the close frame.
    pub(super) fn handle_close_progress(&self) {
        self.closing_at.set(Some(self.now.get()));
    }

    /// Whether a deadline depends on when a write ended.
    pub(super) const fn needs_write_time(&self) -> bool {
        self.idle_timeout.get().is_some() || self.is_closing()
    }

    /// Whether a ping was sent and nothing has arrived since.
    pub(super) const fn is_awaiting_pong(&self) -> bool {
        self.ping_sent_at.get().is_some()
    }

    pub(super) const fn is_closing(&self) -> bool {
        self.closing_at.get().is_some()
    }

    /// The next deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.instant(self.next_event()?.0)
    }

    /// The event that is due at `now`, if any.
    pub(super) fn handle_timeout(&self, now: Instant) -> Option<TimerEvent> {
        self.advance(now);
        let (_, event) = self.next_event().filter(|(at, _)| *at <= self.now.get())?;
        if event == TimerEvent::Ping {
            self.ping_sent_at.set(Some(self.now.get()));
        }
        Some(event)
    }

    /// The next event and its time. There is none if its time cannot be represented.
    fn next_event(&self) -> Option<(Time, TimerEvent)> {
        if let Some(at) = self.closing_at.get() {
            let at = self.close_timeout.after(at)?;
            return Some((at, TimerEvent::Timeout(Timeout::Close)));
        }
        self.commit_data_time();
        let alive = match self.ping_sent_at.get() {
            Some(at) => {
                self.pong_timeout.after(at).map(|at| (at, TimerEvent::Timeout(Timeout::Pong)))
            }
            None => {
                self.ping_interval.after(self.received_at.get()).map(|at| (at, TimerEvent::Ping))
            }
        };
        let idle = self
            .idle_timeout
            .after(self.data_at.get())
            .map(|at| (at, TimerEvent::Timeout(Timeout::Idle)));
        let message = self.message_due().map(|at| (at, TimerEvent::Timeout(Timeout::Message)));
        let write = self.write_due().map(|at| (at, TimerEvent::Timeout(Timeout::Write)));
        [alive, idle, message, write].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn time(&self, at: Instant) -> Time {
        let nanos = at.saturating_duration_since(self.start).as_nanos();
        Time(NonZeroU64::MIN.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// None if it cannot be represented.
    fn instant(&self, at: Time) -> Option<Instant> {
        self.start.checked_add(Duration::from_nanos(at.nanos_since(Time::START)))
    }

    fn commit_data_time(&self) {
        if self.has_new_data.take() {
            self.data_at.set(self.now.get());
        }
    }
}

//! [`watch`]: ends connections of echo, sink, source and Iggy, over TCP and TLS, that are idle, or whose peers take
//! nothing.
//! WebSockets have timers of their own ([`StreamConfig`](owned_io_websocket::StreamConfig)).
//!
//! A timer for each wait would cost as much as the bytes of a message. Instead a connection records its progress,
//! which costs a store, and the watch checks all connections now and then.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use owned_io::{Runtime, ShutdownHandle};

use crate::config::Limits;
use crate::connections::{CloseMethod, Connections};
use crate::ticker::Ticker;

/// How often each connection is checked within the shorter of its two limits. A limit is exceeded when that many
/// checks in a row have found no progress; for the longer limit it is more checks, rounded up. Checks are up to a
/// [`SLACK`](Ticker::SLACK) further apart than a period, and the first one comes up to as long after the progress.
/// With 8 checks all of that together is less than a third of either limit.
const CHECKS: u32 = 8;

/// How many connections are checked before other tasks run: some ten microseconds of work.
const CHECKED_AT_ONCE_MAX: usize = 512;

/// The progress of a connection, for the [`watch`].
#[derive(Debug, Default)]
pub struct Activity {
    awaited: Cell<Awaited>,
    has_moved: Cell<bool>,
    /// Checks in a row that found no progress.
    quiet: Cell<u32>,
    was_ended: Cell<bool>,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Awaited {
    /// Bytes of its peer.
    #[default]
    Bytes,
    /// That its peer takes an answer.
    Taking,
    /// Not its peer.
    Work,
}

impl Activity {
    /// Records that the service works on an answer. It may wait for a disk, for another worker or for memory. That is
    /// not for the peer to answer for, so the watch ignores the connection until one of the other two calls.
    #[inline]
    pub fn begin_work(&self) {
        self.awaited.set(Awaited::Work);
    }

    /// Records progress, and that the service begins to write an answer. The peer must take all of it within
    /// [`message_time_max`](Limits::message_time_max).
    #[inline]
    pub fn begin_answer(&self) {
        self.awaited.set(Awaited::Taking);
        self.has_moved.set(true);
    }

    /// Records progress, and that the service waits for the peer again. The peer must send something within
    /// [`tcp_idle_time_max`](Limits::tcp_idle_time_max).
    #[inline]
    pub fn begin_wait(&self) {
        self.awaited.set(Awaited::Bytes);
        self.has_moved.set(true);
    }

    /// The outcome of the connection: [`TimedOut`](io::ErrorKind::TimedOut) if the [`watch`] ended it.
    pub(crate) fn outcome<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        if self.was_ended.get() { Err(io::ErrorKind::TimedOut.into()) } else { outcome }
    }

    fn check(&self, close_method: &CloseMethod, handle: &ShutdownHandle, checks: CheckLimits) {
        let awaited = self.awaited.get();
        if self.has_moved.take() || awaited == Awaited::Work {
            return self.quiet.set(0);
        }
        let quiet = self.quiet.get().saturating_add(1);
        self.quiet.set(quiet);
        let was_asked = self.was_ended.get();
        if awaited == Awaited::Taking || was_asked {
            if quiet >= checks.writing {
                self.was_ended.set(true);
                // Otherwise what the peer has not taken would stay in the kernel.
                handle.abort();
            }
        } else if checks.idle.is_some_and(|idle| quiet >= idle) {
            self.was_ended.set(true);
            self.quiet.set(0);
            // The service ends the stream in order. If it still writes its end (over TLS) when the time for a write is
            // over, the connection is reset.
            close_method.close();
        }
    }
}

/// How many checks in a row may find no progress.
#[derive(Clone, Copy, Debug)]
struct CheckLimits {
    writing: u32,
    idle: Option<u32>,
}

impl CheckLimits {
    fn new(limits: Limits) -> Self {
        let period = period(limits).as_nanos().max(1);
        let checks = |limit: Duration| {
            let checks = limit.as_nanos().div_ceil(period);
            u32::try_from(checks).unwrap_or(u32::MAX)
        };
        Self {
            writing: checks(limits.message_time_max),
            idle: limits.tcp_idle_time_max.map(checks),
        }
    }
}

/// The time between two checks of a connection by [`watch`], short enough for both limits.
pub fn period(limits: Limits) -> Duration {
    limits.tcp_idle_time_max.unwrap_or(Duration::MAX).min(limits.message_time_max) / CHECKS
}

/// Closes the watched `connections` that are idle for too long. Resets those that have not ended
/// [`message_time_max`](Limits::message_time_max) later, and those whose peers take nothing for as long. Never ends.
///
/// `ticker` ticks once in a [`period`].
pub async fn watch<R: Runtime>(connections: Connections, limits: Limits, ticker: Ticker) {
    let (period, checks) = (period(limits), CheckLimits::new(limits));
    let mut ticked = R::now();
    loop {
        ticker.tick::<R>(period).await;
        // A busy worker notices a tick late, and then the next one is early. An early tick is skipped, so that
        // nothing is closed early.
        let now = R::now();
        if now < ticked + period - period / Ticker::SLACK {
            continue;
        }
        ticked = now;
        check_all::<R>(&connections, checks).await;
    }
}

async fn check_all<R: Runtime>(connections: &Connections, checks: CheckLimits) {
    let mut after = None;
    // Each iteration checks some of the connections; the last one ends the list.
    loop {
        after = connections.check(after, CHECKED_AT_ONCE_MAX, |activity, close_method, handle| {
            activity.check(close_method, handle, checks);
        });
        if after.is_none() {
            return;
        }
        R::sleep(Duration::ZERO).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `--idle-seconds-max` documents.
    #[test]
    fn a_limit_is_exceeded_by_less_than_a_third() {
        let seconds = |seconds: u64| Duration::from_secs(seconds);
        for (message, idle) in
            (1..100).flat_map(|message| (1..400).map(move |idle| (message, idle)))
        {
            let (message_time_max, tcp_idle_time_max) = (seconds(message), Some(seconds(idle)));
            let limits = Limits { message_time_max, tcp_idle_time_max, ..Limits::default() };
            let (period, checks) = (period(limits), CheckLimits::new(limits));
            let apart = period + period / Ticker::SLACK;
            for (limit, checks) in [(idle, checks.idle.unwrap()), (message, checks.writing)] {
                assert!(period * checks >= seconds(limit), "never early: {limits:?}");
                // The progress may come just behind a check.
                let latest = apart * (checks + 1);
                assert!(latest <= seconds(limit) * 4 / 3, "{latest:?}: {limits:?}");
            }
        }
    }
}

//! [`watch`]: ends connections of echo, sink and source, over TCP and TLS, that are idle, or whose peers take nothing.
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

/// How often each connection is checked within its limit. So it ends up to a third of the limit late.
const LOOKS: u32 = 4;

/// How many connections are checked before other tasks run: some ten microseconds of work.
const LOOKED_AT_MAX: usize = 512;

/// The progress of a connection, for the [`watch`].
#[derive(Debug, Default)]
pub struct Activity {
    is_writing: Cell<bool>,
    has_moved: Cell<bool>,
    /// Checks in a row that found no progress.
    quiet: Cell<u32>,
    was_ended: Cell<bool>,
}

impl Activity {
    /// Records progress, and that the service begins to write an answer. The peer must take all of it within
    /// [`message_time_max`](Limits::message_time_max).
    #[inline]
    pub fn begin_answer(&self) {
        self.is_writing.set(true);
        self.has_moved.set(true);
    }

    /// Records progress, and that the service waits for the peer again. The peer must send something within
    /// [`tcp_idle_time_max`](Limits::tcp_idle_time_max).
    #[inline]
    pub fn begin_wait(&self) {
        self.is_writing.set(false);
        self.has_moved.set(true);
    }

    /// The outcome of the connection: [`TimedOut`](io::ErrorKind::TimedOut) if the [`watch`] ended it.
    pub(crate) fn outcome<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        if self.was_ended.get() { Err(io::ErrorKind::TimedOut.into()) } else { outcome }
    }

    fn look(&self, close_method: &CloseMethod, handle: &ShutdownHandle, looks_at: LookAt) {
        if self.is_writing.get() != (looks_at == LookAt::Writing) {
            return;
        }
        if self.has_moved.take() {
            return self.quiet.set(0);
        }
        self.quiet.set(self.quiet.get() + 1);
        if self.quiet.get() < LOOKS {
            return;
        }
        let was_asked = self.was_ended.replace(true);
        match looks_at {
            // The service ends the stream in order. If it still writes its end (over TLS) at the next check, the
            // connection is reset.
            LookAt::Idle if !was_asked => close_method.close(),
            // Otherwise what the peer has not taken would stay in the kernel.
            _ => handle.abort(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LookAt {
    Idle,
    Writing,
}

/// The time between two checks of a connection by [`watch`], short enough for both limits.
pub fn period(limits: Limits) -> Duration {
    limits.tcp_idle_time_max.unwrap_or(Duration::MAX).min(limits.message_time_max) / LOOKS
}

/// Closes the watched `connections` that are idle for too long. Resets those that have not ended by the next check, and
/// those whose peers take nothing. Never ends.
///
/// `ticker` ticks once in a [`period`].
pub async fn watch<R: Runtime>(connections: Connections, limits: Limits, ticker: Ticker) {
    let period = period(limits);
    // The number of ticks between two checks against a limit.
    let ticks_of = |limit: Duration| (limit / LOOKS).as_nanos().div_ceil(period.as_nanos().max(1));
    let writing = (ticks_of(limits.message_time_max), LookAt::Writing);
    let idle = limits.tcp_idle_time_max.map(|limit| (ticks_of(limit), LookAt::Idle));
    let (mut tick, mut ticked) = (0, R::now());
    loop {
        ticker.tick::<R>(period).await;
        // A busy worker notices a tick late, and then the next one is early. An early tick is skipped, so that
        // nothing is closed early.
        let now = R::now();
        if now < ticked + period - period / Ticker::SLACK {
            continue;
        }
        (tick, ticked) = (tick + 1, now);
        for (ticks, looks_at) in [Some(writing), idle].into_iter().flatten() {
            if tick % ticks.max(1) == 0 {
                look_at_all::<R>(&connections, looks_at).await;
            }
        }
    }
}

async fn look_at_all<R: Runtime>(connections: &Connections, looks_at: LookAt) {
    let mut after = None;
    // Each iteration checks some of the connections; the last one ends the list.
    loop {
        after = connections.look(after, LOOKED_AT_MAX, |activity, close_method, handle| {
            activity.look(close_method, handle, looks_at);
        });
        if after.is_none() {
            return;
        }
        R::sleep(Duration::ZERO).await;
    }
}

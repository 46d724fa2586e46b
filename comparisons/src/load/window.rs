//! The measured window: what both sides used, sent and received between its two ends.

use super::Failure;
use super::exchange::Exchange;
use super::options::Target;
use super::pace::Clock;
use super::perf::Perf;
use super::report::Messages;
use super::session::{Session, Tally};
use super::usage::{ResourceUsage, UsageSnapshot};

const MIB: f64 = 1024.0 * 1024.0;

/// From `start` on, until before `end`.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) end: u64,
    server_pid: Option<u32>,
    perf: Option<Perf>,
    began: Option<Snapshot>,
    ended: Option<Snapshot>,
}

/// The figures of a window.
#[derive(Clone, Debug)]
pub(crate) struct WindowStats {
    pub(crate) seconds: f64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    pub(crate) client: ResourceUsage,
    pub(crate) server: Option<ResourceUsage>,
}

#[derive(Clone, Debug)]
struct Snapshot {
    at: u64,
    client: UsageSnapshot,
    server: Option<UsageSnapshot>,
    sent: u64,
    received: u64,
    received_bytes: u64,
}

impl WindowStats {
    /// Adds those of a later window.
    pub(crate) fn add(&mut self, later: &Self) {
        self.seconds += later.seconds;
        self.sent += later.sent;
        self.received += later.received;
        self.received_bytes += later.received_bytes;
        let window_ns = (self.seconds * 1e9) as u64;
        self.client.add(&later.client, window_ns);
        let added = self.server.take().zip(later.server.as_ref());
        self.server = added.map(|(mut server, later)| {
            server.add(later, window_ns);
            server.over_messages(self.received)
        });
    }

    pub(crate) fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1e-9)
    }

    /// The messages of the window, with the rate of an open loop, and the missing messages of the whole run.
    pub(crate) fn messages<E: Exchange>(&self, of: &Session<E>, rate: Option<u64>) -> Messages {
        self.messages_of(&of.tally, of.exchange.request_bytes(), rate)
    }

    /// The same of messages that have so many bytes.
    pub(crate) fn messages_of(
        &self,
        tally: &Tally,
        request_bytes: u64,
        rate: Option<u64>,
    ) -> Messages {
        let Self { sent, received, .. } = *self;
        Messages {
            offered_per_s: rate,
            sent,
            received,
            received_per_s: self.per_s(received),
            received_mib_per_s: self.per_s(self.received_bytes) / MIB,
            sent_mib_per_s: self.per_s(sent * request_bytes) / MIB,
            unanswered: tally.unanswered,
            unsent: tally.unsent,
            held_back: None,
            ceiling_per_s: self.ceiling_per_s().filter(|_| rate.is_none()),
        }
    }

    /// The rate if the client used a whole core at its present cost per message.
    fn ceiling_per_s(&self) -> Option<f64> {
        let cpu_ns = self.client.cpu_ns();
        (self.received > 0 && cpu_ns > 0).then(|| self.received as f64 * 1e9 / cpu_ns as f64)
    }
}

impl Window {
    pub(crate) fn new(start: u64, end: u64, target: &Target) -> Self {
        let (server_pid, perf) = (target.server_pid, target.perf.clone());
        Self { start, end, server_pid, perf, began: None, ended: None }
    }

    pub(crate) fn contains(&self, at: u64) -> bool {
        (self.start..self.end).contains(&at)
    }

    /// The next end that [`observe`](Self::observe) waits for, or `last`.
    pub(crate) fn next_after(&self, now: u64, last: u64) -> u64 {
        [self.start, self.end].into_iter().find(|at| *at > now).unwrap_or(last)
    }

    /// Takes a snapshot if one of the two ends has come.
    pub(crate) fn observe(&mut self, clock: Clock, now: u64, tally: &Tally) -> Result<(), Failure> {
        if self.began.is_none() && now >= self.start {
            self.perf.iter().try_for_each(Perf::begin)?;
            let snapshot = Snapshot::take(clock, tally, self.server_pid);
            // The server must exist at the beginning; at the end the load may have killed it.
            if let (None, Some(pid)) = (&snapshot.server, self.server_pid) {
                UsageSnapshot::of(pid)?;
            }
            self.began = Some(snapshot);
        }
        if self.ended.is_none() && now >= self.end {
            self.ended = Some(Snapshot::take(clock, tally, self.server_pid));
            self.perf.iter().try_for_each(Perf::end)?;
        }
        Ok(())
    }

    /// The figures of the window; up to now if its end has not come.
    pub(crate) fn finish(self, clock: Clock, tally: &Tally) -> WindowStats {
        let ended = self.ended.unwrap_or_else(|| Snapshot::take(clock, tally, self.server_pid));
        let began = self.began.unwrap_or_else(|| ended.clone());
        let window_ns = ended.at - began.at;
        let received = ended.received - began.received;
        WindowStats {
            seconds: window_ns as f64 / 1e9,
            sent: ended.sent - began.sent,
            received,
            received_bytes: ended.received_bytes - began.received_bytes,
            client: ended.client.since(&began.client, window_ns),
            server: ended
                .server
                .zip(began.server)
                .map(|(ended, began)| ended.since(&began, window_ns).over_messages(received)),
        }
    }
}

impl Snapshot {
    fn take(clock: Clock, tally: &Tally, server_pid: Option<u32>) -> Self {
        Self {
            server: server_pid.and_then(|pid| UsageSnapshot::of(pid).ok()),
            client: UsageSnapshot::own(),
            sent: tally.sent,
            received: tally.received,
            received_bytes: tally.received_bytes,
            at: clock.now(),
        }
    }
}

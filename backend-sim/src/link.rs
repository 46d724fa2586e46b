//! [`Link`]: what is between two hosts.

use std::time::Duration;

use crate::core::{Core, Time, after};
use crate::dice::Dice;
use crate::host::HostId;

/// What is between two hosts, each way.
///
/// There is nothing between tasks of one host: what one of them sends is there at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// How long everything is under way at least. Default 100 µs: two machines of one data centre.
    pub latency: Duration,
    /// How much longer it may be, evenly. What is sent on one connection stays in order. Default 400 µs.
    pub jitter: Duration,
    /// Bytes per second, for all connections together. Default 1.25 billion: 10 Gbit/s.
    pub bandwidth: u64,
    /// How many of a million segments are lost, and sent again after a while. Default 0.
    pub lost_per_million: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(100),
            jitter: Duration::from_micros(400),
            bandwidth: 1_250_000_000,
            lost_per_million: 0,
        }
    }
}

/// What becomes of what a host sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Now,
    /// Not before this.
    Held(Time),
    Lost,
}

/// Those of all pairs of hosts.
pub(crate) struct Links {
    /// By the sender, then by the receiver.
    rows: Vec<Vec<Directed>>,
}

/// One direction of a link, and the faults that it has at present.
#[derive(Clone, Copy, Default)]
struct Directed {
    link: Link,
    /// Until when earlier bytes occupy it.
    busy_until: Time,
    cut_until: Time,
    held_until: Time,
    slow_until: Time,
    slow_by: Time,
    lossy_until: Time,
    lossy_per_million: u32,
}

impl Links {
    pub(crate) fn new() -> Self {
        Self { rows: vec![vec![Directed::default()]] }
    }

    /// One more host, with a default link to each.
    pub(crate) fn add_host(&mut self) {
        for row in &mut self.rows {
            row.push(Directed::default());
        }
        self.rows.push(vec![Directed::default(); self.rows.len() + 1]);
    }

    pub(crate) fn set(&mut self, a: HostId, b: HostId, link: Link) {
        self.between(a, b).link = link;
        self.between(b, a).link = link;
    }

    /// When something short arrives that is sent now.
    pub(crate) fn arrival_of_news(
        &self,
        from: HostId,
        to: HostId,
        now: Time,
        dice: &mut Dice,
    ) -> Time {
        now.saturating_add(self.rows[from.index()][to.index()].delay(now, dice))
    }

    /// When so many bytes arrive that are sent now.
    pub(crate) fn arrival_of(
        &mut self,
        from: HostId,
        to: HostId,
        bytes: usize,
        now: Time,
        dice: &mut Dice,
    ) -> Time {
        let directed = self.between(from, to);
        let delay = directed.delay(now, dice);
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(directed.link.bandwidth.max(1));
        let nanos = Time::try_from(nanos).unwrap_or(Time::MAX);
        directed.busy_until = directed.busy_until.max(now).saturating_add(nanos);
        directed.busy_until.saturating_add(delay)
    }

    /// Whether news of `at` from one host can have come to the other.
    pub(crate) fn has_heard_of(&self, at: Time, from: HostId, to: HostId, now: Time) -> bool {
        let directed = &self.rows[from.index()][to.index()];
        let is_silent = directed.cut_until > now || directed.held_until > now;
        !is_silent && at.saturating_add(directed.latency(now)) <= now
    }

    /// Whether a segment arrives.
    fn passes(&self, from: HostId, to: HostId, now: Time, dice: &mut Dice) -> Arrival {
        let directed = &self.rows[from.index()][to.index()];
        let mut lost_per_million = directed.link.lost_per_million;
        if directed.lossy_until > now {
            lost_per_million = lost_per_million.max(directed.lossy_per_million);
        }
        let lost = lost_per_million > 0 && dice.below(1_000_000) < lost_per_million.into();
        if directed.cut_until > now || lost {
            Arrival::Lost
        } else if directed.held_until > now {
            Arrival::Held(directed.held_until)
        } else {
            Arrival::Now
        }
    }

    pub(crate) fn cut(&mut self, a: HostId, b: HostId, until: Time) {
        for directed in [(a, b), (b, a)] {
            let directed = self.between(directed.0, directed.1);
            directed.cut_until = directed.cut_until.max(until);
        }
    }

    pub(crate) fn hold(&mut self, from: HostId, to: HostId, until: Time) {
        let directed = self.between(from, to);
        directed.held_until = directed.held_until.max(until);
    }

    pub(crate) fn slow_down(&mut self, a: HostId, b: HostId, by: Time, until: Time) {
        for directed in [(a, b), (b, a)] {
            let directed = self.between(directed.0, directed.1);
            (directed.slow_by, directed.slow_until) = (by, until);
        }
    }

    pub(crate) fn lose(&mut self, a: HostId, b: HostId, per_million: u32, until: Time) {
        for directed in [(a, b), (b, a)] {
            let directed = self.between(directed.0, directed.1);
            (directed.lossy_per_million, directed.lossy_until) = (per_million, until);
        }
    }

    fn between(&mut self, from: HostId, to: HostId) -> &mut Directed {
        &mut self.rows[from.index()][to.index()]
    }
}

impl Directed {
    /// How long everything is under way at least.
    fn latency(&self, now: Time) -> Time {
        let slow = if self.slow_until > now { self.slow_by } else { 0 };
        after(slow, self.link.latency)
    }

    fn delay(&self, now: Time, dice: &mut Dice) -> Time {
        let jitter = after(0, self.link.jitter);
        let longer = if jitter > 0 { dice.below(jitter) } else { 0 };
        self.latency(now).saturating_add(longer)
    }
}

impl Core {
    /// What becomes of something that comes to `to` now.
    pub(crate) fn arrival(&mut self, from: HostId, to: HostId) -> Arrival {
        if from == to {
            return Arrival::Now;
        }
        if !self.hosts.get(to).is_up {
            return Arrival::Lost;
        }
        self.links.passes(from, to, self.now, &mut self.dice)
    }
}

//! [`Link`]: the connection between two hosts.

use std::time::Duration;

use crate::core::{Core, Time, after};
use crate::host::HostId;
use crate::rng::Rng;

/// The network between two hosts, the same in each direction.
///
/// Tasks of one host have no link between them: their segments arrive at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The shortest time that a segment takes. Default 100 µs: two machines in one data centre.
    pub latency: Duration,
    /// The largest extra delay, uniformly distributed. Segments of one connection stay in order. Default 400 µs.
    pub jitter: Duration,
    /// Bytes per second, of all connections together. Default 1.25 billion: 10 Gbit/s.
    pub bandwidth: u64,
    /// How many of a million segments are lost and sent again. Default 0.
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

/// The fate of a segment when it would arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Now,
    /// It arrives at this time or later.
    Held(Time),
    Lost,
}

/// The links of all pairs of hosts.
pub(crate) struct Links {
    /// Indexed by the sender, then by the receiver.
    rows: Vec<Vec<LinkDirection>>,
}

/// One direction of a link, with its current faults.
#[derive(Clone, Copy, Default)]
struct LinkDirection {
    link: Link,
    /// Until when earlier bytes occupy the bandwidth.
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
        Self { rows: vec![vec![LinkDirection::default()]] }
    }

    /// Adds a host, with a default link to each of the others.
    pub(crate) fn add_host(&mut self) {
        for row in &mut self.rows {
            row.push(LinkDirection::default());
        }
        self.rows.push(vec![LinkDirection::default(); self.rows.len() + 1]);
    }

    pub(crate) fn set(&mut self, a: HostId, b: HostId, link: Link) {
        self.between(a, b).link = link;
        self.between(b, a).link = link;
    }

    /// When a control segment (no data) arrives that is sent now.
    pub(crate) fn arrival_of_control(
        &self,
        from: HostId,
        to: HostId,
        now: Time,
        rng: &mut Rng,
    ) -> Time {
        now.saturating_add(self.rows[from.index()][to.index()].delay(now, rng))
    }

    /// When `bytes` bytes arrive that are sent now.
    pub(crate) fn arrival_of_data(
        &mut self,
        from: HostId,
        to: HostId,
        bytes: usize,
        now: Time,
        rng: &mut Rng,
    ) -> Time {
        let direction = self.between(from, to);
        let delay = direction.delay(now, rng);
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(direction.link.bandwidth.max(1));
        let nanos = Time::try_from(nanos).unwrap_or(Time::MAX);
        direction.busy_until = direction.busy_until.max(now).saturating_add(nanos);
        direction.busy_until.saturating_add(delay)
    }

    /// Whether a segment that `from` sent at time `at` can have reached `to`.
    pub(crate) fn has_heard_of(&self, at: Time, from: HostId, to: HostId, now: Time) -> bool {
        let direction = &self.rows[from.index()][to.index()];
        let is_silent = direction.cut_until > now || direction.held_until > now;
        !is_silent && at.saturating_add(direction.latency(now)) <= now
    }

    /// The fate of a segment that would arrive now.
    fn passes(&self, from: HostId, to: HostId, now: Time, rng: &mut Rng) -> Arrival {
        let direction = &self.rows[from.index()][to.index()];
        let mut lost_per_million = direction.link.lost_per_million;
        if direction.lossy_until > now {
            lost_per_million = lost_per_million.max(direction.lossy_per_million);
        }
        let lost = lost_per_million > 0 && rng.below(1_000_000) < lost_per_million.into();
        if direction.cut_until > now || lost {
            Arrival::Lost
        } else if direction.held_until > now {
            Arrival::Held(direction.held_until)
        } else {
            Arrival::Now
        }
    }

    pub(crate) fn cut(&mut self, a: HostId, b: HostId, until: Time) {
        for direction in [(a, b), (b, a)] {
            let direction = self.between(direction.0, direction.1);
            direction.cut_until = direction.cut_until.max(until);
        }
    }

    pub(crate) fn hold(&mut self, from: HostId, to: HostId, until: Time) {
        let direction = self.between(from, to);
        direction.held_until = direction.held_until.max(until);
    }

    pub(crate) fn slow_down(&mut self, a: HostId, b: HostId, by: Time, until: Time) {
        for direction in [(a, b), (b, a)] {
            let direction = self.between(direction.0, direction.1);
            (direction.slow_by, direction.slow_until) = (by, until);
        }
    }

    pub(crate) fn lose(&mut self, a: HostId, b: HostId, per_million: u32, until: Time) {
        for direction in [(a, b), (b, a)] {
            let direction = self.between(direction.0, direction.1);
            (direction.lossy_per_million, direction.lossy_until) = (per_million, until);
        }
    }

    fn between(&mut self, from: HostId, to: HostId) -> &mut LinkDirection {
        &mut self.rows[from.index()][to.index()]
    }
}

impl LinkDirection {
    /// The shortest time that a segment takes.
    fn latency(&self, now: Time) -> Time {
        let slow = if self.slow_until > now { self.slow_by } else { 0 };
        after(slow, self.link.latency)
    }

    fn delay(&self, now: Time, rng: &mut Rng) -> Time {
        let jitter = after(0, self.link.jitter);
        let longer = if jitter > 0 { rng.below(jitter) } else { 0 };
        self.latency(now).saturating_add(longer)
    }
}

impl Core {
    /// The fate of a segment that would arrive at `to` now.
    pub(crate) fn arrival(&mut self, from: HostId, to: HostId) -> Arrival {
        if from == to {
            return Arrival::Now;
        }
        if !self.hosts.get(to).is_up {
            return Arrival::Lost;
        }
        self.links.passes(from, to, self.now, &mut self.rng)
    }
}

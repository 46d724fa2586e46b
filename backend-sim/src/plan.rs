//! [`Plan`]: what goes wrong, and when.

use std::fmt;
use std::time::Duration;

use crate::executor;
use crate::host::{Host, HostId};

/// What goes wrong in a simulation, and when: written by hand, or drawn from the seed.
///
/// ```
/// use std::time::Duration;
/// use owned_io_sim::{Fault, Plan, Random};
///
/// owned_io_sim::run([0], async |world| {
///     let (server, client) = (world.host("server"), world.host("client"));
///     let lasts = Duration::from_secs(2);
///     let script = Plan::new()
///         .at(Duration::from_secs(1), Fault::Partition { a: server.clone(), b: client.clone(), lasts })
///         .at(Duration::from_secs(5), Fault::Crash { host: server.clone(), down: lasts });
///     world.inject(script);
///     world.inject(Plan::random(&[server, client], Random::default()));
///     Ok(())
/// });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Each with its time, from when the plan is injected on.
    pub(crate) faults: Vec<(Duration, Fault)>,
}

/// One thing that goes wrong. All but [`Clock`](Self::Clock) pass.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing gets through between two hosts. It is sent again and again, at growing intervals, and
    /// given up after 15 minutes (`ETIMEDOUT`), as by Linux.
    Partition {
        /// One host.
        a: Host,
        /// The other.
        b: Host,
        /// For how long.
        lasts: Duration,
    },
    /// What one host sends to another is held back, and arrives all at once when this is over.
    Stall {
        /// Who sends.
        from: Host,
        /// Who does not receive.
        to: Host,
        /// For how long.
        lasts: Duration,
    },
    /// All between two hosts is under way for longer.
    Latency {
        /// One host.
        a: Host,
        /// The other.
        b: Host,
        /// By how much.
        by: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// Segments between two hosts are lost, and sent again after 200 ms or more.
    Loss {
        /// One host.
        a: Host,
        /// The other.
        b: Host,
        /// How many of a million.
        per_million: u32,
        /// For how long.
        lasts: Duration,
    },
    /// A host loses its power: its tasks are gone, and nobody is told. Peers learn it from their
    /// timeouts, or from the resets that they get once it is up again.
    Crash {
        /// Which.
        host: Host,
        /// When its service starts again.
        down: Duration,
    },
    /// The process of a host is killed: its kernel closes the connections, and refuses new ones.
    Kill {
        /// Which.
        host: Host,
        /// When its service starts again.
        down: Duration,
    },
    /// No task of a host has a turn; its kernel goes on to receive.
    Pause {
        /// Which.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// Each read on a host takes 10 ms longer, and gives 16 bytes at most.
    SlowReader {
        /// Which.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// A host has no descriptors left: what would open one fails with `EMFILE`.
    Descriptors {
        /// Which.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// The time of day on a host jumps ([`Clock::wall_clock`](owned_io::Clock::wall_clock); the
    /// clock that timers go by does not).
    Clock {
        /// Which.
        host: Host,
        /// How far, in milliseconds; back, if it is negative.
        ahead_millis: i64,
    },
}

/// What kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "those of `Fault`, by the same names")]
pub enum Kind {
    Partition,
    Stall,
    Latency,
    Loss,
    Crash,
    Kill,
    Pause,
    SlowReader,
    Descriptors,
    Clock,
}

impl Kind {
    /// Each.
    pub const ALL: [Self; 10] = [
        Self::Partition,
        Self::Stall,
        Self::Latency,
        Self::Loss,
        Self::Crash,
        Self::Kill,
        Self::Pause,
        Self::SlowReader,
        Self::Descriptors,
        Self::Clock,
    ];

    /// Those that no connection is lost by, unless they last for a quarter of an hour. One that is being
    /// made may fail: for want of a descriptor, or because its time is over.
    pub const HARMLESS: [Self; 8] = [
        Self::Partition,
        Self::Stall,
        Self::Latency,
        Self::Loss,
        Self::Pause,
        Self::SlowReader,
        Self::Descriptors,
        Self::Clock,
    ];
}

/// How a random plan is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random {
    /// How many faults: so many under most seeds, fewer, but one at least, under the others. Default 5.
    pub count_max: u32,
    /// When the last of them begins. Default 10 s.
    pub within: Duration,
    /// How long one lasts at most; the most are far shorter. Default 5 s.
    pub lasts_max: Duration,
    /// Of which kinds. Default [`Kind::ALL`].
    pub kinds: &'static [Kind],
}

impl Default for Random {
    fn default() -> Self {
        Self {
            count_max: 5,
            within: Duration::from_secs(10),
            lasts_max: Duration::from_secs(5),
            kinds: &Kind::ALL,
        }
    }
}

impl Plan {
    /// Nothing goes wrong.
    pub const fn new() -> Self {
        Self { faults: Vec::new() }
    }

    /// And this, then, from when the plan is [injected](crate::World::inject) on.
    #[must_use]
    pub fn at(mut self, when: Duration, fault: Fault) -> Self {
        self.faults.push((when, fault));
        self
    }

    /// What the seed says, on these hosts. The main host may be among them: it does not go down.
    ///
    /// # Panics
    /// Outside the simulation; if there are no kinds, or not two hosts.
    pub fn random(hosts: &[Host], random: Random) -> Self {
        assert!(hosts.len() >= 2, "a random plan needs two hosts at least");
        executor::current().with(|core| {
            let mut draw = Draw { dice: &mut core.dice, hosts, random };
            let mut faults: Vec<_> = (0..draw.count()).map(|_| draw.fault()).collect();
            faults.sort_by_key(|(when, _)| *when);
            Self { faults }
        })
    }
}

impl Fault {
    pub(crate) fn hosts(&self) -> [&Host; 2] {
        match self {
            Self::Partition { a, b, .. } | Self::Latency { a, b, .. } | Self::Loss { a, b, .. } => {
                [a, b]
            }
            Self::Stall { from, to, .. } => [from, to],
            Self::Crash { host, .. }
            | Self::Kill { host, .. }
            | Self::Pause { host, .. }
            | Self::SlowReader { host, .. }
            | Self::Descriptors { host, .. }
            | Self::Clock { host, .. } => [host, host],
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition { a, b, lasts } => write!(f, "partition of {a} and {b} for {lasts:?}"),
            Self::Stall { from, to, lasts } => write!(f, "stall from {from} to {to} for {lasts:?}"),
            Self::Latency { a, b, by, lasts } => {
                write!(f, "{by:?} more between {a} and {b} for {lasts:?}")
            }
            Self::Loss { a, b, per_million, lasts } => {
                write!(f, "{per_million} of a million lost between {a} and {b} for {lasts:?}")
            }
            Self::Crash { host, down } => write!(f, "crash of {host} for {down:?}"),
            Self::Kill { host, down } => write!(f, "kill of {host} for {down:?}"),
            Self::Pause { host, lasts } => write!(f, "pause of {host} for {lasts:?}"),
            Self::SlowReader { host, lasts } => write!(f, "slow reads on {host} for {lasts:?}"),
            Self::Descriptors { host, lasts } => {
                write!(f, "no descriptors on {host} for {lasts:?}")
            }
            Self::Clock { host, ahead_millis } => {
                write!(f, "time of day on {host} jumps by {ahead_millis} ms")
            }
        }
    }
}

/// A line for each fault.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (when, fault)) in self.faults.iter().enumerate() {
            writeln!(f, "{:>14.6} s  {number}: {fault}", when.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Draws faults.
struct Draw<'a> {
    dice: &'a mut crate::dice::Dice,
    hosts: &'a [Host],
    random: Random,
}

impl Draw<'_> {
    fn count(&mut self) -> usize {
        self.dice.part_of(self.random.count_max as usize)
    }

    fn fault(&mut self) -> (Duration, Fault) {
        let when = self.millis_up_to(self.random.within);
        let mut kind = self.random.kinds[self.dice.index(self.random.kinds.len())];
        let first = self.dice.index(self.hosts.len());
        let other = (first + 1 + self.dice.index(self.hosts.len() - 1)) % self.hosts.len();
        let (host, b) = (self.hosts[first].clone(), self.hosts[other].clone());
        // The short ones are the most, but a long one finds what a short one does not.
        let longest = self.random.lasts_max / (1 << self.dice.below(8));
        let lasts = self.millis_up_to(longest);
        if host.id == HostId::MAIN && matches!(kind, Kind::Crash | Kind::Kill | Kind::Pause) {
            kind = Kind::Clock;
        }
        let fault = match kind {
            Kind::Partition => Fault::Partition { a: host, b, lasts },
            Kind::Stall => Fault::Stall { from: host, to: b, lasts },
            Kind::Latency => {
                let by = self.millis_up_to(Duration::from_millis(500));
                Fault::Latency { a: host, b, by, lasts }
            }
            Kind::Loss => {
                let per_million = 1 << (10 + self.dice.below(10));
                Fault::Loss { a: host, b, per_million, lasts }
            }
            Kind::Crash => Fault::Crash { host, down: lasts },
            Kind::Kill => Fault::Kill { host, down: lasts },
            Kind::Pause => Fault::Pause { host, lasts },
            Kind::SlowReader => Fault::SlowReader { host, lasts },
            Kind::Descriptors => Fault::Descriptors { host, lasts },
            Kind::Clock => {
                let ahead_millis = self.dice.below(7_200_000) as i64 - 3_600_000;
                Fault::Clock { host, ahead_millis }
            }
        };
        (when, fault)
    }

    fn millis_up_to(&mut self, longest: Duration) -> Duration {
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(1 + self.dice.below(millis.max(1)))
    }
}

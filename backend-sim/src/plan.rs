//! [`FaultPlan`]: the faults of a simulation and their times.

use std::fmt;
use std::time::Duration;

use crate::executor;
use crate::host::{Host, HostId};

/// The faults of a simulation and their times, written by hand or drawn from the seed.
///
/// ```
/// use std::time::Duration;
/// use owned_io_sim::{Fault, FaultPlan, RandomFaults};
///
/// owned_io_sim::run([0], async |world| {
///     let (server, client) = (world.host("server"), world.host("client"));
///     let lasts = Duration::from_secs(2);
///     let script = FaultPlan::new()
///         .at(Duration::from_secs(1), Fault::Partition { a: server.clone(), b: client.clone(), lasts })
///         .at(Duration::from_secs(5), Fault::Crash { host: server.clone(), down: lasts });
///     world.inject(script);
///     world.inject(FaultPlan::random(&[server, client], RandomFaults::default()));
///     Ok(())
/// });
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Each with its time, counted from the injection of the plan.
    pub(crate) faults: Vec<(Duration, Fault)>,
}

/// One fault. All except [`Clock`](Self::Clock) end after a while.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing gets through between two hosts. As on Linux, segments are sent again at growing intervals, and
    /// the connection fails after 15 minutes (`ETIMEDOUT`).
    Partition {
        /// One host.
        a: Host,
        /// The other.
        b: Host,
        /// For how long.
        lasts: Duration,
    },
    /// Everything that one host sends to another is held back, and arrives at once when the fault ends.
    Stall {
        /// The host that sends.
        from: Host,
        /// The host that does not receive.
        to: Host,
        /// For how long.
        lasts: Duration,
    },
    /// Segments between two hosts take longer.
    Latency {
        /// One host.
        a: Host,
        /// The other.
        b: Host,
        /// How much longer.
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
        /// How many segments of a million.
        per_million: u32,
        /// For how long.
        lasts: Duration,
    },
    /// A host loses its power. Its tasks are gone, and nobody is told. Peers notice by their timeouts, or by the
    /// resets that they get once the host is up again.
    Crash {
        /// The host.
        host: Host,
        /// How long until its service starts again.
        down: Duration,
    },
    /// The process of a host is killed. Its kernel closes the connections and refuses new ones.
    Kill {
        /// The host.
        host: Host,
        /// How long until its service starts again.
        down: Duration,
    },
    /// No task of a host is polled. Its kernel continues to receive.
    Pause {
        /// The host.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// Each read on a host takes 10 ms longer and returns at most 16 bytes.
    SlowReader {
        /// The host.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// A host has no descriptors left: opening one fails with `EMFILE`.
    Descriptors {
        /// The host.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// The time of day on a host jumps ([`Clock::wall_clock`](owned_io::Clock::wall_clock)). The clock of timers
    /// does not.
    Clock {
        /// The host.
        host: Host,
        /// How far, in milliseconds. A negative jump goes back.
        ahead_millis: i64,
    },
    /// The disk of a host is full: a write that needs more space fails with `ENOSPC`.
    DiskFull {
        /// Which.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// Reads of files on a host fail with `EIO`.
    ReadErrors {
        /// Which.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// Syncs on a host fail with `EIO`. As on Linux, some of the bytes are not written after that, and a later sync
    /// succeeds without them.
    SyncErrors {
        /// Which.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
    /// Each operation on files of a host takes up to a second.
    SlowDisk {
        /// Which.
        host: Host,
        /// For how long.
        lasts: Duration,
    },
}

/// A kind of [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variants of `Fault` have the same names")]
pub enum FaultKind {
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
    DiskFull,
    ReadErrors,
    SyncErrors,
    SlowDisk,
}

impl FaultKind {
    /// The kinds of faults of disks.
    pub const DISK: [Self; 4] =
        [Self::DiskFull, Self::ReadErrors, Self::SyncErrors, Self::SlowDisk];

    /// All kinds except those of [disks](Self::DISK).
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

    /// The kinds that break no connection unless they last for a quarter of an hour. An attempt to connect may
    /// still fail, because it has no descriptor or because its time is over.
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

/// How [`FaultPlan::random`] draws faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomFaults {
    /// The largest number of faults. A seed has this many with a probability of one half, else any number from 1
    /// to this. Default 5.
    pub count_max: u32,
    /// The latest time at which a fault begins. Default 10 s.
    pub within: Duration,
    /// The longest duration of a fault. Most are far shorter. Default 5 s.
    pub lasts_max: Duration,
    /// The kinds to choose from. Default [`FaultKind::ALL`].
    pub kinds: &'static [FaultKind],
}

impl Default for RandomFaults {
    fn default() -> Self {
        Self {
            count_max: 5,
            within: Duration::from_secs(10),
            lasts_max: Duration::from_secs(5),
            kinds: &FaultKind::ALL,
        }
    }
}

impl FaultPlan {
    /// A plan without faults.
    pub const fn new() -> Self {
        Self { faults: Vec::new() }
    }

    /// Adds a fault at a time, counted from the [injection](crate::World::inject) of the plan.
    #[must_use]
    pub fn at(mut self, when: Duration, fault: Fault) -> Self {
        self.faults.push((when, fault));
        self
    }

    /// Draws a plan from the seed, for these hosts. The main host may be among them: it does not go down.
    ///
    /// # Panics
    /// Outside a simulation, without kinds, and with fewer than two hosts.
    pub fn random(hosts: &[Host], random: RandomFaults) -> Self {
        assert!(hosts.len() >= 2, "a random plan needs at least two hosts");
        executor::current().with(|core| {
            let mut draw = Draw { rng: &mut core.rng, hosts, random };
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
            | Self::Clock { host, .. }
            | Self::DiskFull { host, .. }
            | Self::ReadErrors { host, .. }
            | Self::SyncErrors { host, .. }
            | Self::SlowDisk { host, .. } => [host, host],
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
            Self::DiskFull { host, lasts } => write!(f, "full disk of {host} for {lasts:?}"),
            Self::ReadErrors { host, lasts } => write!(f, "read errors on {host} for {lasts:?}"),
            Self::SyncErrors { host, lasts } => write!(f, "sync errors on {host} for {lasts:?}"),
            Self::SlowDisk { host, lasts } => write!(f, "slow disk of {host} for {lasts:?}"),
        }
    }
}

/// One line for each fault.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (when, fault)) in self.faults.iter().enumerate() {
            writeln!(f, "{:>14.6} s  {number}: {fault}", when.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Draws faults.
struct Draw<'a> {
    rng: &'a mut crate::rng::Rng,
    hosts: &'a [Host],
    random: RandomFaults,
}

impl Draw<'_> {
    fn count(&mut self) -> usize {
        self.rng.part_of(self.random.count_max as usize)
    }

    fn fault(&mut self) -> (Duration, Fault) {
        let when = self.millis_up_to(self.random.within);
        let mut kind = self.random.kinds[self.rng.index(self.random.kinds.len())];
        let first = self.rng.index(self.hosts.len());
        let other = (first + 1 + self.rng.index(self.hosts.len() - 1)) % self.hosts.len();
        let (host, b) = (self.hosts[first].clone(), self.hosts[other].clone());
        // Most faults are short, but a long one finds bugs that a short one does not.
        let longest = self.random.lasts_max / (1 << self.rng.below(8));
        let lasts = self.millis_up_to(longest);
        if host.id == HostId::MAIN
            && matches!(kind, FaultKind::Crash | FaultKind::Kill | FaultKind::Pause)
        {
            kind = FaultKind::Clock;
        }
        let fault = match kind {
            FaultKind::Partition => Fault::Partition { a: host, b, lasts },
            FaultKind::Stall => Fault::Stall { from: host, to: b, lasts },
            FaultKind::Latency => {
                let by = self.millis_up_to(Duration::from_millis(500));
                Fault::Latency { a: host, b, by, lasts }
            }
            FaultKind::Loss => {
                let per_million = 1 << (10 + self.rng.below(10));
                Fault::Loss { a: host, b, per_million, lasts }
            }
            FaultKind::Crash => Fault::Crash { host, down: lasts },
            FaultKind::Kill => Fault::Kill { host, down: lasts },
            FaultKind::Pause => Fault::Pause { host, lasts },
            FaultKind::SlowReader => Fault::SlowReader { host, lasts },
            FaultKind::Descriptors => Fault::Descriptors { host, lasts },
            FaultKind::Clock => {
                let ahead_millis = self.rng.below(7_200_000) as i64 - 3_600_000;
                Fault::Clock { host, ahead_millis }
            }
            FaultKind::DiskFull => Fault::DiskFull { host, lasts },
            FaultKind::ReadErrors => Fault::ReadErrors { host, lasts },
            FaultKind::SyncErrors => Fault::SyncErrors { host, lasts },
            FaultKind::SlowDisk => Fault::SlowDisk { host, lasts },
        };
        (when, fault)
    }

    fn millis_up_to(&mut self, longest: Duration) -> Duration {
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(1 + self.rng.below(millis.max(1)))
    }
}

//! How even the connections of workers are, by the rule that chooses the worker.
//!
//! ```text
//! cargo run --release -p owned-io-server --example balance
//! ```
//!
//! It simulates connections without a network: the kernel's hash brings each to a worker at random, and the rule says
//! which worker serves it. The seeds are fixed, so the output is always the same.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroUsize;

use owned_io_server::balance::{Assignment, ConnectionCounts};

/// How many are open: of [`Lifetime::Endless`] at the end, of the others on average.
const CONNECTIONS: usize = 1_000;

/// Runs with other seeds, over which figures are averaged. One in which connections end has a hundred figures itself.
const RUNS: [u64; 2] = [1_000, 20];

const WORKERS: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Which worker serves a connection.
#[derive(Clone, Copy)]
enum Rule {
    /// The one to which the kernel sends it (`--balance hash`).
    Hash,
    /// Of that one and another, chosen at random, the one with fewer connections.
    TwoChoices,
    /// The one with the fewest connections (`--balance least-connections`).
    Least,
}

/// How long connections last, in units of their mean.
#[derive(Clone, Copy)]
enum Lifetime {
    /// All are open at the end.
    Endless,
    /// Exponentially distributed.
    Exponential,
    /// Pareto with an exponent of 1.5: most are short, and few are very long.
    Pareto,
}

/// What a run has seen.
#[derive(Default)]
struct Outcome {
    /// The connections of the fullest worker over the mean of all workers, as the mean over time.
    fullest: f64,
    /// The part of all connections that another worker than the accepting one serves.
    handed_over: f64,
}

fn main() {
    println!("{CONNECTIONS} connections: the fullest worker over the mean, in %;");
    println!("in parentheses the connections that are handed over, in % of all\n");
    for (lifetime, title) in [
        (Lifetime::Endless, "none ends"),
        (Lifetime::Exponential, "they come and go, exponential lifetimes"),
        (Lifetime::Pareto, "they come and go, most short and few very long (Pareto, 1.5)"),
    ] {
        println!("{title}\n{:>8}{:>14}{:>16}{:>16}", "workers", "hash", "two choices", "least");
        for workers in WORKERS {
            let cell = |rule| {
                let outcome = average(workers, rule, lifetime);
                format!("+{:.1}", (outcome.fullest - 1.0) * 100.0)
                    + &format!(" ({:2.0})", outcome.handed_over * 100.0)
            };
            let [hash, two, least] = [Rule::Hash, Rule::TwoChoices, Rule::Least].map(cell);
            println!("{workers:>8}{hash:>14}{two:>16}{least:>16}");
        }
        println!();
    }
}

fn average(workers: usize, rule: Rule, lifetime: Lifetime) -> Outcome {
    let mut sum = Outcome::default();
    let runs = RUNS[usize::from(!matches!(lifetime, Lifetime::Endless))];
    for seed in 0..runs {
        let outcome = run(workers, rule, lifetime, &mut Random(seed));
        sum.fullest += outcome.fullest / runs as f64;
        sum.handed_over += outcome.handed_over / runs as f64;
    }
    sum
}

fn run(workers: usize, rule: Rule, lifetime: Lifetime, random: &mut Random) -> Outcome {
    let counts = ConnectionCounts::new(NonZeroUsize::new(workers).expect("there are workers"));
    let fullest_over_mean = || {
        let all: usize = counts.counts().sum();
        counts.counts().max().unwrap_or(0) as f64 * workers as f64 / all.max(1) as f64
    };
    // Those that are open, by the time at which they end.
    let mut open = BinaryHeap::new();
    let (mut time, mut handed_over) = (0.0, 0);
    if matches!(lifetime, Lifetime::Endless) {
        for _ in 0..CONNECTIONS {
            let here = random.below(workers);
            let assignment = assign(&counts, rule, here, random);
            handed_over += usize::from(assignment.worker() != here);
            open.push(Reverse(Open { end: f64::MAX, _assignment: assignment }));
        }
        let handed_over = handed_over as f64 / CONNECTIONS as f64;
        return Outcome { fullest: fullest_over_mean(), handed_over };
    }
    // By Little's law, as many as arrive in a mean lifetime are open. The first half of the run fills the workers.
    let arrivals = 20 * CONNECTIONS;
    let (mut fullest, mut measured) = (0.0, 0);
    for arrival in 0..arrivals {
        time += random.exponential() / CONNECTIONS as f64;
        while open.peek().is_some_and(|Reverse(next): &Reverse<Open>| next.end <= time) {
            open.pop();
        }
        let here = random.below(workers);
        let assignment = assign(&counts, rule, here, random);
        handed_over += usize::from(assignment.worker() != here);
        let end = time + random.lifetime(lifetime);
        open.push(Reverse(Open { end, _assignment: assignment }));
        if arrival >= arrivals / 2 && arrival % 100 == 0 {
            fullest += fullest_over_mean();
            measured += 1;
        }
    }
    Outcome {
        fullest: fullest / f64::from(measured),
        handed_over: handed_over as f64 / arrivals as f64,
    }
}

/// `here`: the worker to which the kernel sends it.
fn assign(counts: &ConnectionCounts, rule: Rule, here: usize, random: &mut Random) -> Assignment {
    match rule {
        Rule::Hash => counts.assign_to(here),
        Rule::TwoChoices => {
            let all: Vec<_> = counts.counts().collect();
            let other = (here + 1 + random.below(all.len() - 1)) % all.len();
            counts.assign_to(if all[other] < all[here] { other } else { here })
        }
        Rule::Least => counts.assign(here),
    }
}

/// An open connection. They are in the order of their ends.
struct Open {
    end: f64,
    _assignment: Assignment,
}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.end.total_cmp(&other.end)
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Open {}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// As the kernel scales a hash to the number of listeners (`reciprocal_scale`).
    fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// Between 0 and 1, neither included.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// With a mean of 1.
    fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// With a mean of 1.
    fn lifetime(&mut self, lifetime: Lifetime) -> f64 {
        match lifetime {
            Lifetime::Endless => f64::MAX,
            Lifetime::Exponential => self.exponential(),
            // The least is (a - 1) / a for an exponent of a.
            Lifetime::Pareto => self.unit().powf(-1.0 / 1.5) / 3.0,
        }
    }
}

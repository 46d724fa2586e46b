//! [`run`]: a scenario under many seeds, and what is said when it fails under one.

use std::any::Any;
use std::env;
use std::fmt::Write;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use owned_io::Panicked;

use crate::executor::{self, Shared};
use crate::runtime::Config;
use crate::trace::RECORDS_KEPT;
use crate::world::World;

/// Runs this seed alone, and shows more of its trace.
const SEED: &str = "SIM_SEED";

/// How many seeds to run.
const SEEDS: &str = "SIM_SEEDS";

/// How much of the trace is shown when many seeds are run, in lines.
const LINES_SHOWN: usize = 60;

/// How much of it is kept, and shown, when one seed is run again.
const LINES_AGAIN: usize = 20_000;

/// See [`Config::events_max`].
const EVENTS_MAX: u64 = 20_000_000;

/// Runs `scenario` under each of `seeds`, in a world of its own, and panics under the first where it
/// fails: where it panics, returns an error, or waits for what never comes.
///
/// The panic's message has the seed, the faults that were planned, and the last events. With `SIM_SEED`
/// in the environment that seed alone is run, with a longer trace. The first seed is run twice: if it
/// does not repeat exactly, something decides that the seed does not (a real clock, the order of a hash
/// map, another thread), and no failure could be relied on to come again.
///
/// A scenario runs with [`Config::dropped_may_happen`] and [`Config::events_max`] set.
///
/// # Panics
/// If the scenario fails, or does not repeat; and within a simulation.
pub fn run(seeds: impl IntoIterator<Item = u64>, scenario: impl AsyncFn(World) -> io::Result<()>) {
    if let Some(seed) = from_environment(SEED) {
        let config = Config { trace_records: LINES_AGAIN, ..hard(seed) };
        println!("{:?}", simulate(config, scenario));
        return;
    }
    for (number, seed) in seeds.into_iter().enumerate() {
        let first = simulate(hard(seed), &scenario);
        if number == 0 {
            let again = simulate(hard(seed), &scenario);
            assert!(
                first == again,
                "seed {seed} does not repeat: something decides that the seed does not.\n\
                 first: {first:?}\nagain: {again:?}"
            );
        }
    }
}

/// The first `count` seeds, or as many as `SIM_SEEDS` in the environment says: a few for each change, many
/// at night.
pub fn seeds(count: u64) -> Range<u64> {
    0..from_environment(SEEDS).unwrap_or(count)
}

/// Runs `scenario` once, in a world of its own, and tells what came of it.
///
/// # Panics
/// As [`run`](fn@run) does.
pub fn simulate(config: Config, scenario: impl AsyncFn(World) -> io::Result<()>) -> Summary {
    let world = Shared::new(config);
    let running = || executor::run(&world, scenario(World::new()));
    let why = match catch_unwind(AssertUnwindSafe(running)) {
        Ok(Ok(Ok(()))) => return Summary::of(&world, config.seed),
        Ok(Ok(Err(error))) => format!("it returned an error: {error}"),
        Ok(Err(panicked)) => panicked.to_string(),
        Err(payload) => Panicked::new(payload as Box<dyn Any + Send>).message().to_owned(),
    };
    panic!("{}", report(&world, config, &why))
}

/// What came of a simulation. That of the same seed, configuration and scenario is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Of the configuration.
    pub seed: u64,
    /// How many events there were.
    pub events: u64,
    /// The number that all of them together make.
    pub trace_hash: u64,
    /// How long it took by the virtual clock.
    pub elapsed: Duration,
}

impl Summary {
    fn of(world: &Rc<Shared>, seed: u64) -> Self {
        let core = world.core.borrow();
        Self {
            seed,
            events: core.trace.count(),
            trace_hash: core.trace.hash(),
            elapsed: Duration::from_nanos(core.now),
        }
    }
}

/// What a scenario has to stand.
const fn hard(seed: u64) -> Config {
    Config {
        dropped_may_happen: true,
        events_max: EVENTS_MAX,
        waits_for_threads: false,
        ..Config::with_seed(seed)
    }
}

fn report(world: &Shared, config: Config, why: &str) -> String {
    let core = world.core.borrow();
    let seed = config.seed;
    let mut text = format!("the simulation has failed under seed {seed}: {why}\n");
    if !core.plan.faults.is_empty() {
        let _ = write!(text, "\nwhat was to go wrong:\n{}", core.plan);
    }
    let most = if config.trace_records > RECORDS_KEPT { usize::MAX } else { LINES_SHOWN };
    let (count, hash) = (core.trace.count(), core.trace.hash());
    let _ = write!(text, "\nthe last of {count} events (their hash is {hash:016x}):\n");
    text += &core.trace.to_text(&core.hosts, most);
    let test = thread::current().name().filter(|name| *name != "main").map(str::to_owned);
    let test = test.map_or_else(String::new, |name| format!(" cargo test {name}"));
    let _ = write!(text, "\nthis seed alone, with more of the trace: {SEED}={seed}{test}");
    text
}

/// # Panics
/// If it is there and no number.
fn from_environment(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

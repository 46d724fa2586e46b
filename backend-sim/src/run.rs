//! [`run`]: a scenario under many seeds, and the report when it fails.

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

/// The environment variable that selects a single seed, with a longer trace.
const SEED: &str = "SIM_SEED";

/// The environment variable that says how many seeds to run.
const SEEDS: &str = "SIM_SEEDS";

/// How many lines of the trace are shown when many seeds are run.
const LINES_SHOWN: usize = 60;

/// How many lines are kept and shown when a single seed is run again.
const LINES_AGAIN: usize = 20_000;

/// See [`Config::events_max`].
const EVENTS_MAX: u64 = 20_000_000;

/// Runs `scenario` under each of `seeds`, each time in a new simulation. Panics at the first seed under which the
/// scenario fails: it panics, returns an error, or waits for something that never comes.
///
/// The panic message has the seed, the planned faults and the last events. With `SIM_SEED` in the environment
/// only that seed is run, with a longer trace. The first seed is run twice. If the two runs differ, something
/// other than the seed decides (a real clock, the order of a hash map, another thread), and failures would not
/// repeat.
///
/// A scenario runs with [`Config::dropped_operations_may_complete`] and [`Config::events_max`] set.
///
/// # Panics
/// If the scenario fails, or does not repeat; and within a simulation.
pub fn run(seeds: impl IntoIterator<Item = u64>, scenario: impl AsyncFn(World) -> io::Result<()>) {
    if let Some(seed) = from_environment(SEED) {
        let config = Config { trace_records: LINES_AGAIN, ..scenario_config(seed) };
        println!("{:?}", simulate(config, scenario));
        return;
    }
    for (number, seed) in seeds.into_iter().enumerate() {
        let first = simulate(scenario_config(seed), &scenario);
        if number == 0 {
            let again = simulate(scenario_config(seed), &scenario);
            assert!(
                first == again,
                "seed {seed} does not repeat: something other than the seed decides.\n\
                 first: {first:?}\nagain: {again:?}"
            );
        }
    }
}

/// The first `count` seeds. `SIM_SEEDS` in the environment replaces `count`: a few seeds for each change, many at
/// night.
pub fn seeds(count: u64) -> Range<u64> {
    0..from_environment(SEEDS).unwrap_or(count)
}

/// Runs `scenario` once, in a new simulation, and returns a summary.
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

/// The outcome of a simulation. It is equal for the same seed, configuration and scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The seed of the configuration.
    pub seed: u64,
    /// How many events there were.
    pub events: u64,
    /// The hash over all events.
    pub trace_hash: u64,
    /// How long the run took by the virtual clock.
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

/// The configuration under which [`run`] runs a scenario.
const fn scenario_config(seed: u64) -> Config {
    Config {
        dropped_operations_may_complete: true,
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
        let _ = write!(text, "\nthe planned faults:\n{}", core.plan);
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
/// If the variable is set and not a number.
fn from_environment(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod connect;
mod connection;
mod core;
mod delivery;
mod disk;
mod errno;
mod executor;
mod fault;
mod file;
mod host;
mod link;
mod listener;
mod pending;
mod plan;
mod ports;
mod queue;
mod ready;
mod rng;
mod run;
mod runtime;
mod slab;
mod stream;
mod timer;
mod trace;
mod world;

pub use file::SimFile;
pub use host::Host;
pub use link::Link;
pub use listener::{SimDetached, SimListener};
pub use plan::{Fault, FaultKind, FaultPlan, RandomFaults};
pub use run::{Summary, run, seeds, simulate};
pub use runtime::{Config, Sim, run_workers};
pub use stream::{SimReadHalf, SimStream, SimWriteHalf, pipe};
pub use world::World;

/// Runs `future` in a simulation with seed 0. For examples and small tests.
///
/// # Panics
/// As [`Executor::block_on`](owned_io::Executor::block_on) of [`Sim`] does.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let world = executor::Shared::new(Config::default());
    executor::run(&world, future).unwrap_or_else(|panicked| panicked.resume())
}

//! [`owned_io`] in memory: the reference backend.
//!
//! One thread runs everything, the clock jumps from one event to the next, and every choice comes
//! from one seed: which task runs next, how short a read or write is, which of several listeners
//! gets a client. So a run repeats exactly, and code that relies on a read being complete, or on a
//! task running first, fails here under some seed.
//!
//! ```
//! use std::time::Duration;
//! use owned_io::{OwnedReadExt, OwnedWriteExt, Runtime};
//! use owned_io_sim::{Config, Sim};
//!
//! let read = Sim::block_on(Config::with_seed(7), async {
//!     let (mut a, mut b) = owned_io_sim::pipe();
//!     drop(Sim::spawn(async move {
//!         Sim::sleep(Duration::from_secs(3600)).await; // passes at once
//!         a.write_all("an hour later").await.into_result()
//!     }));
//!     b.read_exact(Vec::with_capacity(13), 13).await.into_result()
//! })?;
//! assert_eq!(read?.1, b"an hour later");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What is simulated
//!
//! Tasks, time, and TCP without loss: addresses of one host, accept queues that overflow, finite
//! socket buffers, half-close, reset. Randomness and the time of day too. Not latency, bandwidth,
//! faults, descriptors or files.
//!
//! # What a drop does
//!
//! | dropped while pending | buffer | bytes | stream afterwards |
//! |---|---|---|---|
//! | read, pooled read | freed at once | none lost | usable |
//! | write, vectored write | freed at once | none sent | usable |
//! | accept | – | no client lost | usable |
//! | connect | – | – | attempt given up |
//! | stream | – | unread bytes reset the connection, as on Linux | closed |
//!
//! # Deviations
//!
//! `spawn_blocking` runs its closure, and `run_workers` its workers, on the simulation's own thread:
//! another thread's progress could not be repeated.

#![forbid(unsafe_code)]

mod listener;
mod runtime;
mod stream;
mod world;

pub use listener::SimListener;
pub use runtime::{Config, Sim};
pub use stream::{SimReadHalf, SimStream, SimWriteHalf, pipe};

/// Runs `future` in a simulation with seed 0, for examples and small tests.
///
/// # Panics
/// As [`Runtime::block_on`](owned_io::Runtime::block_on) of [`Sim`] does.
pub fn block_on<F: Future>(future: F) -> F::Output {
    world::run(0, future)
}

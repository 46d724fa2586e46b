#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod config;
mod detector;
pub mod evidence;
mod examine;
mod fork;
mod gauge;
mod heart;
mod histogram;
mod incident;
mod look;
mod pool;
mod probe;
// Public for the fuzz target `proc` alone. It is no part of the interface, and may change at any time.
#[doc(hidden)]
pub mod proc;
mod registry;
mod report;
mod sockets;
mod stack;
mod stop;
mod ticks;
mod verdict;
mod watchdog;

pub use config::{Config, Probe};
pub use detector::{Detector, Snapshot, WorkerSnapshot};
pub use evidence::Evidence;
pub use gauge::{Counted, Gauge};
pub use heart::Heart;
pub use histogram::LatenessSummary;
pub use incident::Incident;
pub use pool::Pool;
pub use verdict::{Class, Confidence, Finding, Verdict, judge};

/// Beats `heart` on a runtime of `owned-io`, without an end. Spawn it on the worker.
#[cfg(feature = "owned-io")]
pub async fn heartbeat<R: owned_io::Clock>(heart: Heart) {
    heart.set_poll_counter(owned_io::coop::poll_counter());
    loop {
        heart.beat();
        R::sleep(heart.interval()).await;
    }
}

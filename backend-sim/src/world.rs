//! [`World`]: a test's interface to the simulation.

use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;

use crate::executor;
use crate::host::{Host, HostId};
use crate::link::Link;
use crate::plan::{Fault, FaultPlan};

/// A test's interface to the simulation that runs on this thread: its hosts, links and faults.
///
/// # Panics
/// All its functions panic outside a simulation.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl World {
    /// The simulation that runs on this thread.
    pub fn current() -> Self {
        drop(executor::current());
        Self { thread: PhantomData }
    }

    /// Adds a host, with a default [`Link`] to each of the others.
    pub fn host(&self, name: &str) -> Host {
        executor::current().with(|core| {
            core.links.add_host();
            core.hosts.add(name)
        })
    }

    /// The host that the main future runs on. It has every address that no other host has.
    pub fn main_host(&self) -> Host {
        executor::current().with(|core| core.hosts.handle(HostId::MAIN))
    }

    /// Sets the link between two hosts, in both directions.
    pub fn link(&self, a: &Host, b: &Host, link: Link) {
        executor::current().with(|core| core.links.set(a.id, b.id, link));
    }

    /// Schedules the faults of a plan, counted from now.
    ///
    /// # Panics
    /// If a fault takes the main host down or pauses it.
    pub fn inject(&self, plan: FaultPlan) {
        executor::current().with(|core| core.inject(plan));
    }

    /// Applies a fault now.
    ///
    /// # Panics
    /// If the fault takes the main host down or pauses it.
    pub fn apply(&self, fault: Fault) {
        executor::current().with(|core| {
            core.inject(FaultPlan::new().at(Duration::ZERO, fault));
            core.fire_due();
        });
    }

    /// Virtual time since the simulation began.
    pub fn elapsed(&self) -> Duration {
        executor::current().elapsed()
    }

    /// How many events there were: polls of tasks, operations, arrivals, faults.
    pub fn events(&self) -> u64 {
        executor::current().core.borrow().trace.count()
    }

    /// A hash over all events: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        executor::current().core.borrow().trace.hash()
    }

    /// The last events, one line each.
    pub fn trace(&self) -> String {
        let world = executor::current();
        let core = world.core.borrow();
        core.trace.to_text(&core.hosts, usize::MAX)
    }

    /// Adds a line of your own to the trace.
    pub fn note(&self, text: impl Display) {
        let world = executor::current();
        let text = text.to_string();
        world.with(|core| core.trace.note(core.now, world.host(), text));
    }

    /// A number below `bound`, drawn from the seed.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn random(&self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        executor::current().with(|core| core.rng.below(bound))
    }

    pub(crate) const fn new() -> Self {
        Self { thread: PhantomData }
    }
}

//! [`World`]: the simulation, as a test sees it.

use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;

use crate::executor;
use crate::host::{Host, HostId};
use crate::link::Link;
use crate::plan::{Fault, Plan};

/// The simulation that runs on this thread, as a test sees it: its hosts, what is between them, what goes
/// wrong.
///
/// # Panics
/// All its functions do outside of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// It stays on its thread.
    thread: PhantomData<*const ()>,
}

impl World {
    /// The one that runs on this thread.
    pub fn current() -> Self {
        drop(executor::current());
        Self { thread: PhantomData }
    }

    /// One more host, with a default [`Link`] to each other.
    pub fn host(&self, name: &str) -> Host {
        executor::current().with(|core| {
            core.links.add_host();
            core.hosts.add(name)
        })
    }

    /// The host that the test itself runs on. It has every address that no other host has.
    pub fn main_host(&self) -> Host {
        executor::current().with(|core| core.hosts.handle(HostId::MAIN))
    }

    /// Sets what is between two hosts, in both directions.
    pub fn link(&self, a: &Host, b: &Host, link: Link) {
        executor::current().with(|core| core.links.set(a.id, b.id, link));
    }

    /// Has a plan carried out, from now on.
    ///
    /// # Panics
    /// If the main host is to go down.
    pub fn inject(&self, plan: Plan) {
        executor::current().with(|core| core.inject(plan));
    }

    /// Has a fault begin now.
    ///
    /// # Panics
    /// If the main host is to go down.
    pub fn strike(&self, fault: Fault) {
        executor::current().with(|core| {
            core.inject(Plan::new().at(Duration::ZERO, fault));
            core.fire_due();
        });
    }

    /// Virtual time since the simulation began.
    pub fn elapsed(&self) -> Duration {
        executor::current().elapsed()
    }

    /// How many events there were: turns of tasks, operations, arrivals, faults.
    pub fn events(&self) -> u64 {
        executor::current().core.borrow().trace.count()
    }

    /// A number that all of them together make: the same for the same run.
    pub fn trace_hash(&self) -> u64 {
        executor::current().core.borrow().trace.hash()
    }

    /// The last events, a line each.
    pub fn trace(&self) -> String {
        let world = executor::current();
        let core = world.core.borrow();
        core.trace.to_text(&core.hosts, usize::MAX)
    }

    /// Adds a line of one's own to the trace.
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
        executor::current().with(|core| core.dice.below(bound))
    }

    pub(crate) const fn new() -> Self {
        Self { thread: PhantomData }
    }
}

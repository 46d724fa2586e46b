//! Iggy's streams in a directory, in the simulation: what is there after a restart, a loss of power, or a full disk.

mod client;
mod closing;
mod crash;
mod events;
mod faults;
mod health;
mod memory;
mod recovery;
mod restart;
mod tail;

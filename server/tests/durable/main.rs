//! Iggy's streams in a directory, in the simulation: what is there after a restart, a loss of power, a full disk,
//! or damage to the files.

mod client;
mod closing;
mod crash;
mod damage;
mod events;
mod faults;
mod health;
mod memory;
mod newer;
mod recovery;
mod restart;
mod tail;

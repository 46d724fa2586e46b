//! The server in the simulation, where time is virtual and a seed decides what happens.

mod accepting;
mod application;
mod balance;
mod draining;
mod fairness;
mod faults;
mod services;
mod watching;

//! The suite itself, tested: each broken backend fails the case named for it.

owned_io::canaries! { runtime: owned_io_sim::Sim, config: owned_io_sim::Config::default() }

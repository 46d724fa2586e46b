//! The contract, on tokio.

#![cfg(target_os = "linux")]

use owned_io_tokio::{Config, Tokio};

owned_io::conformance! {
    runtime: Tokio,
    config: Config::default(),
    dropped_read: LosesNothing,
}

mod hand_over {
    use super::*;

    owned_io::hand_over_conformance! { runtime: Tokio, config: Config::default() }
}

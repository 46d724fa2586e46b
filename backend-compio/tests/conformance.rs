//! The contract, on compio: with its own ring settings, and with the tuned ones.

#![cfg(target_os = "linux")]

use owned_io::Executor;
use owned_io_compio::{Compio, Config};

mod default {
    use super::*;

    owned_io::conformance! {
        runtime: Compio,
        config: Config::default(),
        io_uring: true,
        dropped_read: Cancelled,
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: Compio, config: Config::default() }
    }
}

mod tuned {
    use super::*;

    owned_io::conformance! {
        runtime: Compio,
        config: Compio::tuned(),
        io_uring: true,
        dropped_read: Cancelled,
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: Compio, config: Compio::tuned() }
    }
}

//! The contract about files, on compio.

#![cfg(target_os = "linux")]

use owned_io_compio::{Compio, Config};

owned_io::file_conformance! { runtime: Compio, config: Config::default() }

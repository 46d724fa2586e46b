//! The contract about files, on monoio.

#![cfg(target_os = "linux")]

use owned_io_monoio::{Config, Monoio};

owned_io::file_conformance! { runtime: Monoio, config: Config::default() }

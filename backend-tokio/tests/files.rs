//! The contract about files, on tokio.

#![cfg(target_os = "linux")]

use owned_io_tokio::{Config, Tokio};

owned_io::file_conformance! { runtime: Tokio, config: Config::default() }

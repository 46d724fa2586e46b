//! The contract about files, on tokio-uring.

#![cfg(target_os = "linux")]

use owned_io_tokio_uring::{Config, TokioUring};

owned_io::file_conformance! { runtime: TokioUring, config: Config::default() }

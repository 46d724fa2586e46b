//! The contract about files, on glommio.

#![cfg(target_os = "linux")]

use owned_io_glommio::{Config, Glommio};

owned_io::file_conformance! { runtime: Glommio, config: Config::default() }

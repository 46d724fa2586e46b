#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod failure;
pub mod load;
pub mod matrix;
pub mod stalls;

pub use failure::Failure;

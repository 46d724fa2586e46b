#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

pub mod load;
pub mod matrix;

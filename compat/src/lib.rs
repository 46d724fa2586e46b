#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "hyper")]
mod memory;
#[cfg(feature = "hyper")]
mod polled;

#[cfg(feature = "hyper")]
pub use self::hyper::HyperIo;

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod memory;
#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod polled;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "futures-io")]
pub use self::futures::FuturesIo;
#[cfg(feature = "hyper")]
pub use self::hyper::HyperIo;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioIo;

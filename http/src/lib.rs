#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod config;
mod connection;
pub mod engine;
mod error;

pub use config::{Config, Limits, Timeouts};
pub use connection::{Connection, EndHandle, Parts};
pub use engine::{BodyLength, InvalidHeader, RangeChoice, Refusal, Request, Response};
pub use error::{Error, Misuse};

//! The services: a function `serve` for each, over any [`ByteStream`](owned_io::ByteStream).

pub mod admin;
pub mod application;
pub mod echo;
pub mod events;
pub mod http;
pub mod iggy;
pub(crate) mod metrics;
pub mod object;
pub mod page;
pub mod sink;
pub mod source;
pub(crate) mod stalls;
pub mod tail;
pub mod websocket;

mod message;
mod streams;

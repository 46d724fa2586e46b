//! What a connection is served: one function for each service, over any stream of the contract.

pub mod admin;
pub mod echo;
pub mod http;
pub mod sink;
pub mod source;
pub mod websocket;

mod message;

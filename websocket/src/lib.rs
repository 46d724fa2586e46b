#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod any;
mod close;
mod config;
#[cfg(feature = "deflate")]
pub mod deflate;
pub mod engine;
mod error;
pub mod frame;
pub mod handshake;
mod message;
pub mod stream;
mod utf8;

pub use any::{AnyIncoming, AnyOutgoing, PieceInfo};
pub use close::{CloseCode, CloseFrame};
pub use config::{Config, EngineConfig, HandshakeConfig, StreamConfig, compressed_bytes_max};
pub use error::{Limit, Misuse, ProtocolError, Timeout, Violation};
pub use message::{Fragment, MessageKind};
pub use stream::{
    Error, Incoming, Lagged, Message, OnLag, Outgoing, PendingRequest, Received, Subscriber, Topic,
    WebSocket, accept, connect,
};

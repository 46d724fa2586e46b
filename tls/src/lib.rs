#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod alert;
mod error;
mod handshake;
mod identity;
mod incoming;
mod info;
mod memory;
mod outgoing;
mod session;
mod shared;
mod side;
mod stream;

pub use error::TlsError;
pub use handshake::{Acceptor, Connector};
pub use identity::{Identity, IdentityError};
pub use info::{TlsConnection, TlsSession};
pub use session::WRITE_BYTES_MAX;
pub use stream::{TlsReadHalf, TlsStream, TlsWriteHalf};

/// Part of the signatures of this crate.
pub use owned_io::Buffers;
/// Part of the signatures of this crate.
pub use rustls;

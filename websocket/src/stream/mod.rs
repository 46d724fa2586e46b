//! WebSocket over any connection of [`owned_io`]: the [`Engine`](crate::engine::Engine) joined to a
//! [`ByteStream`].
//!
//! [`accept`] and [`connect`] open a connection. It has two halves, which can be used in one task
//! or in two. The [`Buffers`], which all connections of a worker share, lend it memory when it
//! needs some.
//!
//! ```
//! use owned_io::{ByteStream, Clock, MemoryBudget, Pool, PoolConfig, Random};
//! use owned_io_websocket::handshake::Offer;
//! use owned_io::Buffers;
//! use owned_io_websocket::{
//!     CloseCode, CloseFrame, Config, Error, Message, WebSocket, accept, connect,
//! };
//!
//! async fn server<R: Clock>(stream: impl ByteStream, buffers: Buffers) -> Result<(), Error> {
//!     let WebSocket { mut incoming, mut outgoing } =
//!         accept::<R, _>(stream, &buffers, Config::default()).await?;
//!     while let Some(message) = incoming.receive().await? {
//!         outgoing.write(message)?;
//!         while let Some(message) = incoming.try_receive() {
//!             outgoing.write(message)?; // one write answers all messages of one read
//!         }
//!         outgoing.flush().await?;
//!     }
//!     Ok(())
//! }
//!
//! async fn client<R: Clock + Random>(stream: impl ByteStream, buffers: Buffers) -> Result<(), Error> {
//!     let offer = Offer { host: "example.com", path: "/echo", ..Offer::default() };
//!     let (mut socket, _protocol) =
//!         connect::<R, _>(stream, &buffers, Config::default(), &offer).await?;
//!     socket.outgoing.send(Message::Text("hello")).await?;
//!     assert_eq!(socket.incoming.receive().await?, Some(Message::Text("hello")));
//!     socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await
//! }
//!
//! # use owned_io::Executor;
//! # use owned_io_sim::Sim;
//! # owned_io_sim::block_on(async {
//! let (a, b) = owned_io_sim::pipe();
//! let budget = MemoryBudget::new(64 * 1024 * 1024);
//! let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
//! let server = Sim::spawn(server::<Sim>(a, buffers.clone()));
//! client::<Sim>(b, buffers).await?;
//! server.await.expect("no panic")?;
//! # Ok::<(), Error>(())
//! # }).unwrap();
//! ```
//!
//! # Memory
//!
//! A connection reads into the pool of its [`Buffers`]. Its account reserves everything else that
//! it holds: assembled messages, as their bytes arrive; partially received frames; queued output;
//! compressors and decompressors. Messages that do not fit the pool's buffers, or arrive in several
//! frames, are [aligned](Buffers::aligned_to) in memory.
//!
//! If a reservation is refused, the connection stops reading until memory is released. A message
//! that can never fit fails its connection with [`Limit::Memory`](crate::Limit::Memory). So does a
//! connection that holds much memory while others wait
//! ([`MemoryBudget::evict_holders`](owned_io::MemoryBudget::evict_holders)). The peer is told
//! [`CloseCode::TRY_AGAIN`](crate::CloseCode::TRY_AGAIN).

mod assembly;
#[cfg_attr(not(feature = "deflate"), path = "no_compression.rs")]
mod compression;
mod encoded;
mod error;
mod handshake;
mod incoming;
mod lazy_timer;
mod outgoing;
mod partial_frame;
mod queue;
mod read_driver;
mod receive_buffer;
mod shared;
mod topic;
mod writing;

use std::fmt;

use bytes::Bytes;
pub use owned_io::Buffers;
use owned_io::ByteStream;

pub use encoded::EncodedFrame;
pub use error::{Error, Unsent};
pub use handshake::{
    Acceptance, POOL_BUF_BYTES_MIN, PendingRequest, Upgraded, accept, connect, upgrade,
};
pub use incoming::Incoming;
pub use outgoing::{CloseHandle, Outgoing};
pub use queue::COPIED_BYTES_MAX;
pub use topic::{Lagged, OnLag, Subscriber, Topic};

use crate::{CloseFrame, MessageKind};

/// A connection. The halves can be moved apart.
///
/// Dropping both halves closes the connection, without a closing handshake if there was none.
#[derive(Debug)]
pub struct WebSocket<S: ByteStream> {
    /// The half that receives.
    pub incoming: Incoming<S::ReadHalf>,
    /// The half that sends.
    pub outgoing: Outgoing,
}

/// A whole message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A text message, UTF-8.
    Text(&'a str),
    /// A binary message.
    Binary(&'a [u8]),
}

/// A message, borrowed or owned, as [`Incoming::receive_owned`] returns it.
pub enum Received<'a> {
    /// Borrowed from the receive buffer until the next message is asked for.
    Borrowed(Message<'a>),
    /// An assembled message, moved out with its buffer, for [`Outgoing::write_bytes`] or to keep.
    /// Text is UTF-8, unless the transport changed bytes after it had received them.
    Owned(MessageKind, Bytes),
}

impl<S: ByteStream> WebSocket<S> {
    /// Closes the connection: sends what is queued and then the close frame, and waits for the
    /// peer's close frame. No step may take longer than
    /// [`close_timeout`](crate::StreamConfig::close_timeout). Messages that arrive meanwhile are
    /// discarded.
    ///
    /// # Errors
    /// As for [`Outgoing::close`] and [`Incoming::receive_piece`].
    ///
    /// # Cancellation
    /// As for [`Incoming::receive_piece`].
    pub async fn close(&mut self, frame: CloseFrame<'_>) -> Result<(), Error> {
        self.outgoing.begin_close(frame)?;
        while self.incoming.receive_piece().await?.is_some() {}
        Ok(())
    }
}

impl<'a> Message<'a> {
    /// Whether it is text or binary.
    pub const fn kind(self) -> MessageKind {
        match self {
            Self::Text(_) => MessageKind::Text,
            Self::Binary(_) => MessageKind::Binary,
        }
    }

    /// The payload.
    pub const fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

impl Received<'_> {
    /// Whether it is text or binary.
    pub const fn kind(&self) -> MessageKind {
        match self {
            Self::Borrowed(message) => message.kind(),
            Self::Owned(kind, _) => *kind,
        }
    }

    /// The payload.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(message) => message.as_bytes(),
            Self::Owned(_, payload) => payload,
        }
    }
}

impl fmt::Debug for Message<'_> {
    /// Prints the length of the payload, not the payload: it may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({} bytes)", self.kind(), self.as_bytes().len())
    }
}

impl fmt::Debug for Received<'_> {
    /// Prints the length of the payload, as [`Message`] does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Borrowed(message) => f.debug_tuple("Borrowed").field(message).finish(),
            Self::Owned(kind, payload) => write!(f, "Owned({kind:?}({} bytes))", payload.len()),
        }
    }
}

//! WebSocket over any connection of [`owned_io`]: the [`Engine`](crate::engine::Engine) joined to a
//! [`ByteStream`].
//!
//! A connection is opened by [`accept`] or [`connect`]. It is two halves, which can be used where they
//! are or in a task each; the [`Buffers`] that all connections of a worker share lend it memory while
//! it needs some.
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
//!             outgoing.write(message)?; // all that came with one read is answered by one write
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
//! A connection reads into buffers of the pool of its [`Buffers`]. What it holds beyond those is reserved in
//! its account: messages that are put together, as their bytes come; the beginnings of frames; output that
//! is queued; what compresses and decompresses. Messages that do not fit the pool's buffers, or come in
//! several frames, begin where they are [aligned to](Buffers::aligned_to).
//!
//! Where a reservation is refused, the connection stops reading until memory is given back. A message
//! that could never fit fails its connection with [`Limit::Memory`](crate::Limit::Memory), and so does
//! holding much while others wait ([`MemoryBudget::relieve`](owned_io::MemoryBudget::relieve)); its peer is
//! told [`CloseCode::TRY_AGAIN`](crate::CloseCode::TRY_AGAIN).

mod assembly;
#[cfg_attr(not(feature = "deflate"), path = "no_compression.rs")]
mod compression;
mod encoded;
mod error;
mod handshake;
mod incoming;
mod outgoing;
mod partial_frame;
mod queue;
mod read_driver;
mod receive_buffer;
mod shared;
mod timer;
mod writing;

use std::fmt;

use bytes::Bytes;
pub use owned_io::Buffers;
use owned_io::ByteStream;

pub use encoded::EncodedFrame;
pub use error::{Error, Unsent};
pub use handshake::{POOL_BUF_BYTES_MIN, PendingRequest, Upgraded, accept, connect, upgrade};
pub use incoming::Incoming;
pub use outgoing::{CloseHandle, Outgoing};
pub use queue::COPIED_BYTES_MAX;

use crate::{CloseFrame, Kind};

/// A connection: what comes in and what goes out, to be moved apart as one likes.
///
/// It is closed when both halves are dropped; without a closing handshake, unless there was one.
#[derive(Debug)]
pub struct WebSocket<S: ByteStream> {
    /// Receives.
    pub incoming: Incoming<S::ReadHalf>,
    /// Sends.
    pub outgoing: Outgoing,
}

/// A message, whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// UTF-8.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
}

/// A message, and who owns its bytes: what [`Incoming::receive_owned`] gives.
pub enum Received<'a> {
    /// It is where it was received, until the next is asked for.
    Borrowed(Message<'a>),
    /// One that was put together: its buffer, moved out, for [`Outgoing::write_bytes`] or for keeping.
    /// Text is UTF-8, unless the transport changed bytes that it had received.
    Owned(Kind, Bytes),
}

impl<S: ByteStream> WebSocket<S> {
    /// Closes the connection: sends what is queued and then the close frame, and waits for the
    /// peer's; at no step of that for longer than [`close_timeout`](crate::StreamConfig::close_timeout).
    /// Messages that come meanwhile are thrown away.
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
    /// What it is made of.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Text(_) => Kind::Text,
            Self::Binary(_) => Kind::Binary,
        }
    }

    /// Its payload.
    pub const fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

impl Received<'_> {
    /// What it is made of.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Borrowed(message) => message.kind(),
            Self::Owned(kind, _) => *kind,
        }
    }

    /// Its payload.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(message) => message.as_bytes(),
            Self::Owned(_, payload) => payload,
        }
    }
}

impl fmt::Debug for Message<'_> {
    /// How long the payload is, not what it is: that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({} bytes)", self.kind(), self.as_bytes().len())
    }
}

impl fmt::Debug for Received<'_> {
    /// As of a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Borrowed(message) => f.debug_tuple("Borrowed").field(message).finish(),
            Self::Owned(kind, payload) => write!(f, "Owned({kind:?}({} bytes))", payload.len()),
        }
    }
}

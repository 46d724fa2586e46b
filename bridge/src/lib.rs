#![doc = include_str!("../README.md")]
//!
//! Requests, messages and errors are those of `owned-io-websocket`. Code that takes either is written on its
//! [`AnyIncoming`](owned_io_websocket::AnyIncoming) and [`AnyOutgoing`](owned_io_websocket::AnyOutgoing). What
//! tungstenite does not do, or does in another way:
//!
//! | | `owned-io-websocket` | here |
//! |---|---|---|
//! | a peer that is gone without a word | pings find out; [`idle_timeout`](owned_io_websocket::StreamConfig::idle_timeout) | is noticed when something is sent to it |
//! | [`message_timeout`](owned_io_websocket::StreamConfig::message_timeout) | counts time in which somebody waits for the message | counts all the time, the program's own included |
//! | messages in pieces | as they come | put together, always: a piece is a message |
//! | [`receive_owned`](Incoming::receive_owned) | lends short messages | moves out each message |
//! | memory for what a frame announces | reserved as it comes, read into directly | reserved at once, in the same [budget](owned_io_websocket::stream#memory): all of it, as tungstenite takes it. It is given back when both halves are dropped, and an eviction only ends the connection |
//! | memory of an idle connection | none, where a pending read pins none | tungstenite's own buffer, as large as the bridge's is at first and as the longest frame that came afterwards; and another as large as the longest that was queued |
//! | [`write_bytes`](Outgoing::write_bytes) | sends long payloads from where they are | copies them twice |
//! | compression | with feature `deflate` | none is offered or agreed to |
//! | one frame to many connections | [`EncodedFrame`](owned_io_websocket::stream::EncodedFrame) | none |
//! | pings that come faster than pongs leave | 4 KiB of pongs wait, then the latest alone | as many as [`queue_bytes_max`](owned_io_websocket::EngineConfig::queue_bytes_max) holds |
//! | a length not written in the fewest bytes (5.2) | [`LengthNotMinimal`](owned_io_websocket::Violation::LengthNotMinimal) | accepted |
//! | a close code that must not be sent (7.4) | [`ReservedCloseCode`](owned_io_websocket::Violation::ReservedCloseCode) | answered by 1002, and taken for a close |
//! | a close reason that is not UTF-8 | [`CloseReasonNotUtf8`](owned_io_websocket::Violation::CloseReasonNotUtf8) | [`TextNotUtf8`](owned_io_websocket::Violation::TextNotUtf8) |
//! | what is wrong with a frame, or with the text in it | is refused once the bytes are there that show it | once the frame is there; but for its length and its opcode |
//! | [`queued_bytes`](Outgoing::queued_bytes) | not yet known to be written | queued since all was written |
//!
//! ```
//! use owned_io::{ByteStream, MemoryBudget, Pool, PoolConfig, Runtime};
//! use owned_io_tungstenite::{Strategy, WebSocket, accept, connect};
//! use owned_io_websocket::handshake::Offer;
//! use owned_io_websocket::stream::{Buffers, Error, Message};
//! use owned_io_websocket::{CloseCode, CloseFrame, Config};
//!
//! async fn server<R: Runtime>(stream: impl ByteStream, buffers: Buffers) -> Result<(), Error> {
//!     let WebSocket { mut incoming, mut outgoing } =
//!         accept::<R, _>(stream, &buffers, Config::default(), Strategy::LINEAR).await?;
//!     while let Some(message) = incoming.receive().await? {
//!         outgoing.send(message).await?;
//!     }
//!     Ok(())
//! }
//!
//! async fn client<R: Runtime>(stream: impl ByteStream, buffers: Buffers) -> Result<(), Error> {
//!     let (config, strategy) = (Config::default(), Strategy::EXPONENTIAL);
//!     let (mut socket, _protocol) =
//!         connect::<R, _>(stream, &buffers, config, strategy, &Offer::default()).await?;
//!     socket.outgoing.send(Message::Text("hello")).await?;
//!     assert_eq!(socket.incoming.receive().await?, Some(Message::Text("hello")));
//!     socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await
//! }
//!
//! # use owned_io::Executor;
//! # use owned_io_sim::Sim;
//! # owned_io_sim::block_on(async {
//! let (a, b) = owned_io_sim::pipe();
//! let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 * 1024 * 1024));
//! let server = Sim::spawn(server::<Sim>(a, buffers.clone()));
//! client::<Sim>(b, buffers).await?;
//! server.await.expect("no panic")?;
//! # Ok::<(), Error>(())
//! # }).unwrap();
//! ```

#![forbid(unsafe_code)]

mod any;
mod engine;
mod engine_memory;
mod error;
mod frame_tracker;
mod incoming;
mod outgoing;
mod shared;
mod strategy;
mod sync_buffers;
mod writing;

use std::rc::Rc;

use owned_io::{ByteStream, Runtime};
use owned_io_websocket::handshake::{Offer, Origins};
use owned_io_websocket::stream::{self, Buffers, Error, PendingRequest, Upgraded};
use owned_io_websocket::{CloseFrame, Config};
use tungstenite::protocol::Role;

pub use incoming::Incoming;
pub use outgoing::{CloseHandle, Outgoing};
pub use strategy::Strategy;
pub use sync_buffers::CopyStats;

use engine::Engine;
use engine_memory::EngineMemory;
use frame_tracker::FrameTracker;
use shared::Shared;
use sync_buffers::SyncBuffers;

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

impl<S: ByteStream> WebSocket<S> {
    /// Closes the connection: sends what is queued and then the close frame, and waits for the
    /// peer's, for at most [`close_timeout`](owned_io_websocket::StreamConfig::close_timeout). Messages that come meanwhile are
    /// thrown away.
    ///
    /// # Errors
    /// As for [`Outgoing::close`] and [`Incoming::receive`].
    ///
    /// # Cancellation
    /// As for [`Incoming::receive`].
    pub async fn close(&mut self, frame: CloseFrame<'_>) -> Result<(), Error> {
        self.outgoing.begin_close(frame)?;
        while self.incoming.receive().await?.is_some() {}
        Ok(())
    }
}

/// The server's side of a connection, whatever path it asks for and wherever it comes from.
///
/// To look at the request first, see [`PendingRequest`].
///
/// # Errors
/// As for [`PendingRequest::read`] and [`PendingRequest::accept`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If the strategy allows a buffer no bytes.
pub async fn accept<R: Runtime, S: ByteStream>(
    stream: S,
    buffers: &Buffers,
    config: Config,
    strategy: Strategy,
) -> Result<WebSocket<S>, Error> {
    let pending = PendingRequest::<R, S>::read(stream, buffers, config).await?;
    accept_pending(pending, Origins::Any, None, &[], strategy).await
}

/// The same as [`PendingRequest::accept`], for a connection over tungstenite.
///
/// # Errors
/// As for [`PendingRequest::accept`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If the strategy allows a buffer no bytes.
pub async fn accept_pending<R: Runtime, S: ByteStream>(
    pending: PendingRequest<R, S>,
    origins: Origins<'_>,
    protocol: Option<&str>,
    headers: &[(&str, &str)],
    strategy: Strategy,
) -> Result<WebSocket<S>, Error> {
    let upgraded = pending.upgrade(origins, protocol, headers).await?;
    Ok(open::<R, S>(upgraded, strategy, Role::Server))
}

/// The client's side of a connection that is open already; and the subprotocol that was agreed on,
/// one of those of the offer.
///
/// # Errors
/// As for [`stream::connect`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If the strategy allows a buffer no bytes.
pub async fn connect<'o, R: Runtime, S: ByteStream>(
    stream: S,
    buffers: &Buffers,
    config: Config,
    strategy: Strategy,
    offer: &Offer<'o>,
) -> Result<(WebSocket<S>, Option<&'o str>), Error> {
    let (upgraded, protocol) = stream::upgrade::<R, S>(stream, buffers, config, offer).await?;
    Ok((open::<R, S>(upgraded, strategy, Role::Client), protocol))
}

/// A connection whose handshake is done, with what came behind the head.
fn open<R: Runtime, S: ByteStream>(
    upgraded: Upgraded<S>,
    strategy: Strategy,
    role: Role,
) -> WebSocket<S> {
    let first = upgraded.received().to_vec();
    let Upgraded { stream, buffers, config, .. } = upgraded;
    let pool = buffers.pool().clone();
    let mut frame_tracker = FrameTracker::default();
    frame_tracker.push(&first);
    let memory = EngineMemory::new(&buffers.account(), config.engine);
    let engine =
        Engine::new(SyncBuffers::new(strategy, buffers), memory, first, role, config.engine);
    let connection = stream.shutdown_handle();
    let (read, write) = stream.into_split();
    let shared = Rc::new(Shared::new::<R>(engine, frame_tracker, write, connection, config.stream));
    let incoming = Incoming::new(read, pool, Rc::clone(&shared));
    WebSocket { incoming, outgoing: Outgoing::new(shared) }
}

#![doc = include_str!("../README.md")]
//!
//! Requests, messages and errors are those of `owned-io-websocket`. Code for both is written on its
//! traits [`AnyIncoming`](owned_io_websocket::AnyIncoming) and
//! [`AnyOutgoing`](owned_io_websocket::AnyOutgoing). tungstenite differs in the following:
//!
//! | | `owned-io-websocket` | here |
//! |---|---|---|
//! | a peer that has vanished | detected by pings and [`idle_timeout`](owned_io_websocket::StreamConfig::idle_timeout) | detected by TCP keepalive, or when something is sent to it |
//! | [`message_timeout`](owned_io_websocket::StreamConfig::message_timeout) | counts the time in which the program waits for the message | counts all time |
//! | messages in pieces | as they arrive | always assembled: a piece is a message |
//! | [`receive_owned`](Incoming::receive_owned) | borrows short messages | moves out each message |
//! | memory for an announced frame | reserved as bytes arrive, read into directly | all of it reserved at once, in the same [budget](owned_io_websocket::stream#memory), as tungstenite allocates it. It is released when both halves are dropped; an eviction only ends the connection |
//! | memory of an idle connection | none, if a pending read holds none | tungstenite's receive buffer: at first as large as the bridge's, later as the longest frame so far; and a write buffer as large as the longest queue so far |
//! | [`write_bytes`](Outgoing::write_bytes) | sends long payloads in place | copies them twice |
//! | compression | with feature `deflate` | neither offered nor accepted |
//! | one frame to many connections | [`EncodedFrame`](owned_io_websocket::stream::EncodedFrame) | none |
//! | pings faster than pongs can be sent | 4 KiB of pongs are queued, then only the latest | the same, in each of two buffers |
//! | a length not encoded in the fewest bytes (5.2) | [`LengthNotMinimal`](owned_io_websocket::Violation::LengthNotMinimal) | accepted |
//! | a close code that must not be sent (7.4) | [`ReservedCloseCode`](owned_io_websocket::Violation::ReservedCloseCode) | answered with 1002, and treated as a close |
//! | a close reason that is not UTF-8 | [`CloseReasonNotUtf8`](owned_io_websocket::Violation::CloseReasonNotUtf8) | [`TextNotUtf8`](owned_io_websocket::Violation::TextNotUtf8) |
//! | an invalid frame, or invalid text | refused when the invalid byte arrives | refused when the frame is complete; lengths and opcodes earlier |
//! | [`queued_bytes`](Outgoing::queued_bytes) | bytes not yet known to be written | bytes queued since the queue was last empty |
//!
//! ```
//! use owned_io::{ByteStream, MemoryBudget, Pool, PoolConfig, Runtime};
//! use owned_io_tungstenite::{BufferGrowth, WebSocket, accept, connect};
//! use owned_io_websocket::handshake::Offer;
//! use owned_io_websocket::stream::{Buffers, Error, Message};
//! use owned_io_websocket::{CloseCode, CloseFrame, Config};
//!
//! async fn server<R: Runtime>(stream: impl ByteStream, buffers: Buffers) -> Result<(), Error> {
//!     let WebSocket { mut incoming, mut outgoing } =
//!         accept::<R, _>(stream, &buffers, Config::default(), BufferGrowth::LINEAR).await?;
//!     while let Some(message) = incoming.receive().await? {
//!         outgoing.send(message).await?;
//!     }
//!     Ok(())
//! }
//!
//! async fn client<R: Runtime>(stream: impl ByteStream, buffers: Buffers) -> Result<(), Error> {
//!     let (config, growth) = (Config::default(), BufferGrowth::EXPONENTIAL);
//!     let (mut socket, _protocol) =
//!         connect::<R, _>(stream, &buffers, config, growth, &Offer::default()).await?;
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
mod buffer_growth;
mod engine;
mod engine_memory;
mod error;
mod frame_tracker;
mod incoming;
mod outgoing;
mod shared;
mod sync_buffers;
mod writing;

use std::rc::Rc;

use owned_io::{ByteStream, MemoryWait, Runtime};
use owned_io_websocket::handshake::{Offer, Origins};
use owned_io_websocket::stream::{self, Buffers, Error, PendingRequest, Upgraded};
use owned_io_websocket::{CloseFrame, Config};
use tungstenite::protocol::Role;

pub use buffer_growth::BufferGrowth;
pub use incoming::Incoming;
pub use outgoing::{CloseHandle, Outgoing};
pub use sync_buffers::CopyStats;

use engine::Engine;
use engine_memory::EngineMemory;
use frame_tracker::FrameTracker;
use shared::Shared;
use sync_buffers::SyncBuffers;

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

impl<S: ByteStream> WebSocket<S> {
    /// Closes the connection: sends what is queued and then the close frame, and waits for the
    /// peer's close frame for at most
    /// [`close_timeout`](owned_io_websocket::StreamConfig::close_timeout). Messages that arrive
    /// meanwhile are discarded.
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

/// Opens the server's side of a connection. Accepts every path and every origin.
///
/// To look at the request first, use [`PendingRequest`] and [`accept_pending`].
///
/// # Errors
/// As for [`PendingRequest::read`] and [`PendingRequest::accept`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If `growth` allows buffers of no bytes.
pub async fn accept<R: Runtime, S: ByteStream>(
    stream: S,
    buffers: &Buffers,
    config: Config,
    growth: BufferGrowth,
) -> Result<WebSocket<S>, Error> {
    let pending = PendingRequest::<R, S>::read(stream, buffers, config).await?;
    accept_pending(pending, Origins::Any, None, &[], growth).await
}

/// Accepts a request, like [`PendingRequest::accept`], for a connection over tungstenite.
///
/// # Errors
/// As for [`PendingRequest::accept`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If `growth` allows buffers of no bytes.
pub async fn accept_pending<R: Runtime, S: ByteStream>(
    pending: PendingRequest<R, S>,
    origins: Origins<'_>,
    protocol: Option<&str>,
    headers: &[(&str, &str)],
    growth: BufferGrowth,
) -> Result<WebSocket<S>, Error> {
    Ok(serve_upgraded::<R, S>(pending.upgrade(origins, protocol, headers).await?, growth))
}

/// The server's side of a connection over tungstenite, after the handshake:
/// [`PendingRequest::upgrade`], or [`Acceptance::upgrade`](stream::Acceptance::upgrade).
///
/// # Panics
/// If `growth` allows buffers of no bytes.
pub fn serve_upgraded<R: Runtime, S: ByteStream>(
    upgraded: Upgraded<S>,
    growth: BufferGrowth,
) -> WebSocket<S> {
    open::<R, S>(upgraded, growth, Role::Server)
}

/// Opens the client's side on a connected stream. Returns the subprotocol too, if the server chose
/// one from the offer.
///
/// # Errors
/// As for [`stream::connect`].
///
/// # Cancellation
/// The connection is dropped.
///
/// # Panics
/// If `growth` allows buffers of no bytes.
pub async fn connect<'o, R: Runtime, S: ByteStream>(
    stream: S,
    buffers: &Buffers,
    config: Config,
    growth: BufferGrowth,
    offer: &Offer<'o>,
) -> Result<(WebSocket<S>, Option<&'o str>), Error> {
    let (upgraded, protocol) = stream::upgrade::<R, S>(stream, buffers, config, offer).await?;
    Ok((open::<R, S>(upgraded, growth, Role::Client), protocol))
}

/// Creates a connection after its handshake, with the bytes that arrived behind the handshake.
fn open<R: Runtime, S: ByteStream>(
    upgraded: Upgraded<S>,
    growth: BufferGrowth,
    role: Role,
) -> WebSocket<S> {
    let first = upgraded.received().to_vec();
    let Upgraded { stream, buffers, config, .. } = upgraded;
    let pool = buffers.pool().clone();
    let mut frame_tracker = FrameTracker::default();
    frame_tracker.push(&first);
    let waited = config.stream.message_timeout.map_or_else(MemoryWait::default, MemoryWait::new);
    let memory = EngineMemory::new(&buffers.account(), config.engine, waited);
    let engine = Engine::new(SyncBuffers::new(growth, buffers), memory, first, role, config.engine);
    let connection = stream.shutdown_handle();
    let (read, write) = stream.into_split();
    let shared = Rc::new(Shared::new::<R>(engine, frame_tracker, write, connection, config.stream));
    let incoming = Incoming::new(read, pool, Rc::clone(&shared));
    WebSocket { incoming, outgoing: Outgoing::new(shared) }
}
